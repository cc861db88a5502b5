//! The committed class table of the pre-tokenizer is what the peer's own tables say.

#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use tokenizers::utils::SysRegex;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::canonical_combining_class;

const HEAD: &str = "\
//! Classes of characters: `\\p{L}`, `\\p{N}` and `\\s` as the regular expressions of `tokenizers` 0.23.2 have them
//! (`regex-syntax` 0.8, Unicode 16.0), and what NFC may move (`unicode-normalization-alignments` 0.1.12, Unicode 9.0).
//! First and last code point of each range.
//!
//! Generated: `TACK_WRITE_TABLES=1 cargo test -p tack-controller --test unicode_tables`. Derived from the Unicode
//! Character Database, (c) Unicode, Inc., under the Unicode License v3.
";

fn matching(expression: &str) -> Vec<char> {
    let all: String = ('\0'..=char::MAX).collect();
    let expression = SysRegex::new(expression).unwrap();
    expression.find_iter(&all).flat_map(|(start, end)| all[start..end].chars()).collect()
}

/// Characters that NFC changes or reorders, or composes with what stands before them.
fn moving() -> Vec<char> {
    let mut moving = BTreeSet::new();
    for character in '\0'..=char::MAX {
        let alone = character.to_string();
        let decomposed: Vec<char> = alone.nfd().map(|(part, _)| part).collect();
        let composed: String = alone.nfc().map(|(part, _)| part).collect();
        if canonical_combining_class(character) != 0 || composed != alone {
            moving.insert(character);
        }
        // Any part but the first may be the second half of a composition: as it is, or composed with those behind it.
        for from in 1..decomposed.len() {
            moving.insert(decomposed[from]);
            moving.extend(decomposed[from..].iter().copied().nfc().map(|(part, _)| part).take(1));
        }
    }
    moving.into_iter().collect()
}

fn ranges(characters: &[char]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for code in characters.iter().map(|&it| u32::from(it)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == code => *last = code,
            _ => ranges.push((code, code)),
        }
    }
    ranges
}

fn table(name: &str, doc: &str, characters: &[char]) -> String {
    let ranges = ranges(characters);
    let mut text = format!("\n/// {doc}\n#[rustfmt::skip]\npub(super) static {name}: &[(u32, u32)] = &[\n");
    for line in ranges.chunks(6) {
        let entries: Vec<String> = line.iter().map(|(first, last)| format!("({first:#X}, {last:#X}),")).collect();
        writeln!(text, "    {}", entries.join(" ")).unwrap();
    }
    text + "];\n"
}

#[test]
fn the_committed_tables_are_the_peers() {
    let expected = [
        HEAD.to_owned(),
        table("LETTER", "`\\p{L}`.", &matching(r"\p{L}+")),
        table("NUMBER", "`\\p{N}`.", &matching(r"\p{N}+")),
        table("SPACE", "`\\s`.", &matching(r"\s+")),
        table("MOVES", "What NFC may change, reorder, or compose with what stands before it.", &moving()),
    ]
    .concat();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/bpe/unicode.rs");
    if env::var_os("TACK_WRITE_TABLES").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(found == expected, "src/bpe/unicode.rs differs first at line {:?}", differs.map(|it| it + 1));
}
