//! The strings on which two tokenizers must agree: every code point among neighbors that matter, random mixtures of
//! what is known to go wrong, and real files, whole, cut, marked as diffs and broken.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Longest string made of a file: long enough for every rule that looks ahead, short enough that a difference can be
/// read.
const WINDOW_BYTES: usize = 1536;

/// Files above this are data, not sources.
const MAX_FILE_BYTES: u64 = 2 << 20;

/// xorshift64*: the same strings on every machine, without a dependency.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform enough in `0..bound`; `bound` is small.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from((self.next() >> 33) % bound as u64).unwrap()
    }
}

/// Code points of which one in [`SAMPLED`] stands for the others: ideographs, syllables, private use, planes in which
/// nothing is assigned.
const UNIFORM: [(char, char); 6] = [
    ('\u{3500}', '\u{4D00}'),
    ('\u{4F00}', '\u{9E00}'),
    ('\u{AE00}', '\u{D600}'),
    ('\u{E100}', '\u{F800}'),
    ('\u{20100}', '\u{2F700}'),
    ('\u{30100}', '\u{10FF00}'),
];
const SAMPLED: u32 = 61;

/// Gives `check` strings that together hold every code point, or with `sample` only some of the uniform ones: alone,
/// among letters, digits, spaces, newlines, punctuation and quotes, and beside marks that compose with it.
pub(super) fn code_points(sample: bool, mut check: impl FnMut(&str)) {
    let uniform = |c: char| UNIFORM.iter().any(|&(first, last)| first <= c && c < last);
    let chars: Vec<char> =
        ('\0'..=char::MAX).filter(|&c| !(sample && uniform(c)) || u32::from(c) % SAMPLED == 0).collect();
    let mut text = String::new();
    // Runs of neighbors in the code space, as words of a script are.
    for run in chars.chunks(12) {
        text.clear();
        text.extend(run);
        check(&text);
    }
    for group in chars.chunks(6) {
        text.clear();
        for &c in group {
            for (before, after) in [("a", "b"), (" ", "1"), ("\n", "'s"), ("(", "\r\n"), ("  ", " ")] {
                text.push_str(before);
                text.push(c);
                text.push_str(after);
            }
            text.push('\'');
            text.push(c);
        }
        check(&text);
    }
    for group in chars.chunks(24) {
        text.clear();
        for &c in group {
            text.extend(['e', c, '\u{301}', c, '\u{327}', '\u{1161}', '\u{11A8}']);
        }
        check(&text);
    }
}

/// What mixtures are made of.
#[rustfmt::skip]
const ATOMS: &[&str] = &[
    "'", "'s", "'S", "'\u{17F}", "'t", "'RE", "'ve", "'m", "'Ll", "'d", "'l", "\u{2019}s", "s", "\u{17F}", "\u{212A}", "st", "\u{FB06}",
    " ", "  ", "   ", "        ", "\t", "\n", "\r", "\r\n", "\n\n", "\u{B}", "\u{C}", "\u{85}", "\u{A0}", "\u{1680}", "\u{2003}",
    "\u{2028}", "\u{2029}", "\u{202F}", "\u{3000}", "\u{200B}", "\u{FEFF}", "\u{180E}", "\0", "\u{1C}", "\u{1F}", "\u{7F}",
    "0", "7", "42", "1000", "\u{663}", "\u{2167}", "\u{BD}", "\u{B2}", "\u{3007}", "\u{1D7D8}",
    "the", "The", "THE", "def", "return", "_", "self", "assertEqual", "getElementById", "x", "i", "TypeError", "\u{E9}", "\u{DF}",
    "e\u{301}", "\u{301}", "\u{327}", "\u{323}\u{307}", "\u{307}\u{323}", "q\u{307}\u{323}", "\u{1E9B}\u{323}", "\u{212B}", "\u{2126}",
    "\u{340}", "\u{344}", "\u{F73}", "\u{958}", "\u{FB1D}", "\u{2ADC}", "\u{1100}", "\u{1161}", "\u{11A8}", "\u{AC00}", "\u{AC01}",
    "\u{1D15E}", "\u{2F800}", "\u{F900}", "\u{11935}\u{11930}", "\u{16129}", "\u{1ACF}", "\u{BC7}\u{BBE}", "\u{9C7}\u{9BE}",
    "\u{4E2D}\u{6587}", "\u{3042}", "\u{30AB}\u{3099}", "\u{FF76}\u{FF9E}", "\u{D55C}\u{AE00}", "\u{E01}\u{E33}", "\u{915}\u{94D}\u{937}",
    "\u{645}\u{64E}", "\u{5D0}\u{5B8}", "\u{1F600}", "\u{1F469}\u{200D}\u{1F467}", "\u{1F1E9}\u{1F1EA}", "\u{FE0F}", "\u{20E3}",
    "\u{FFFD}", "\u{FFFF}", "\u{E000}", "\u{10FFFF}", "\u{378}", "\u{30000}", "\u{323AF}", "\u{1E5D0}", "\u{10D40}",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|fim_prefix|>", "<|", "|>", "<|im_", "\u{120}", "\u{10A}",
    "(", ")", "{}", "[", "];", "==", "!=", "->", "::", "...", "---", "+++", "@@", "#", "//", "/*", "\\", "\\n", "\"", "$", "%", "&", "^", "~", "`",
    "-", "+", "+    ", "-\t", "@@ -1,7 +1,9 @@", "diff --git a/x.py b/x.py\n", "============", "FAILED tests/test_a.py::test_b - assert 1 == 2",
    "https://example.org/a?b=c&d=%20", "aGVsbG8gd29ybGQhIQ==", "0xDEADBEEF", "3.14159e-10",
];

/// Gives `check` `count` random mixtures.
pub(super) fn mixtures(count: usize, seed: u64, mut check: impl FnMut(&str)) {
    let mut random = Random::new(seed);
    let mut text = String::new();
    for _ in 0..count {
        text.clear();
        for _ in 0..=random.below(14) {
            text.push_str(ATOMS[random.below(ATOMS.len())]);
        }
        check(&text);
    }
}

/// Gives `check` single pieces too long for the short paths: runs of one kind, up to `longest` characters.
pub(super) fn long_runs(longest: usize, mut check: impl FnMut(&str)) {
    let mut random = Random::new(11);
    let kinds = [
        "abcdefghijklmnopqrstuvwxyz",
        "aA",
        "a",
        "=",
        "-",
        " ",
        "\n",
        "\t ",
        "\u{4E2D}\u{6587}\u{5B57}",
        "\u{1F600}\u{FE0F}",
        "e\u{301}\u{323}",
    ];
    for kind in kinds {
        let alphabet: Vec<char> = kind.chars().collect();
        let mut length = 1;
        while length <= longest {
            let text: String = (0..length).map(|_| alphabet[random.below(alphabet.len())]).collect();
            check(&text);
            check(&format!(" {text}x"));
            length += 1 + length / 7;
        }
    }
}

/// Gives `check` the files under `folder`: cut into windows at random, each third one marked as lines of a diff are,
/// each fifth one with bytes changed or lost and then read as UTF-8 with replacement.
pub(super) fn files(folder: &Path, limit: usize, mut check: impl FnMut(&str)) {
    let mut paths = Vec::new();
    collect(folder, &mut paths);
    paths.sort();
    let mut random = Random::new(7);
    let mut given = 0;
    for path in paths {
        let Ok(mut bytes) = fs::read(&path) else { continue };
        if bytes.iter().take(4096).any(|&byte| byte == 0) {
            continue; // an archive or a picture
        }
        let mut at = 0;
        while at < bytes.len() {
            if given >= limit {
                return;
            }
            let end = (at + 1 + random.below(WINDOW_BYTES)).min(bytes.len());
            given += 1;
            match given % 15 {
                0 | 5 | 10 => {
                    for _ in 0..4 {
                        let position = at + random.below(end - at);
                        bytes[position] = (random.next() >> 56) as u8;
                    }
                    check(&String::from_utf8_lossy(&bytes[at..end]));
                }
                1 | 4 | 7 | 13 => {
                    let text = String::from_utf8_lossy(&bytes[at..end]);
                    let marked: String = text
                        .split_inclusive('\n')
                        .map(|line| ["+", "-", " "][random.below(3)].to_owned() + line)
                        .collect();
                    check(&marked);
                }
                2 => check(&String::from_utf8_lossy(&bytes[at..end]).replace('\n', "\r\n")),
                _ => check(&String::from_utf8_lossy(&bytes[at..end])),
            }
            at = end;
        }
    }
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        let name = entry.file_name();
        if kind.is_dir() && name != "target" && name != ".git" {
            collect(&path, into);
        } else if kind.is_file() && entry.metadata().is_ok_and(|it| it.len() <= MAX_FILE_BYTES) {
            into.push(path);
        }
    }
}

/// Folders of real sources named by the environment, `:` between them; none if it is unset.
pub(super) fn folders_given() -> Vec<PathBuf> {
    env::var_os("TACK_TOKENIZER_CORPUS").map_or_else(Vec::new, |list| env::split_paths(&list).collect())
}
