//! Our tokenizer gives the tokens of the `tokenizers` crate, on every string of the corpus.
//!
//! With the mini model's tokenizer always; with Qwen3's own where `TACK_QWEN3_TOKENIZER` names its `tokenizer.json`
//! (`controller/tests/fetch_qwen3_tokenizer` gets it). Where `TACK_TOKENIZER_CORPUS` names folders of real sources, `:`
//! between, on every code point and on those folders too; that takes minutes and wants `--release`.

#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use tack_controller::tokenizer::Tokenizer;

#[path = "exactness/corpus.rs"]
mod corpus;

const MINI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/mini/tokenizer.json");

/// Both tokenizers of a file, and how many strings they agreed on.
struct Pair {
    ours: Tokenizer,
    peer: tokenizers::Tokenizer,
    strings: usize,
    bytes: usize,
}

impl Pair {
    fn of(path: &Path) -> Self {
        let content = fs::read(path).unwrap();
        // The peer without added tokens: to us no text is one.
        let mut plain: serde_json::Value = serde_json::from_slice(&content).unwrap();
        plain["added_tokens"] = serde_json::json!([]);
        let peer = tokenizers::Tokenizer::from_bytes(plain.to_string()).unwrap();
        Self { ours: Tokenizer::from_bytes(&content, "tokenizer.json").unwrap(), peer, strings: 0, bytes: 0 }
    }

    fn check(&mut self, text: &str) {
        let expected = self.peer.encode_fast(text, false).unwrap();
        let found = self.ours.encode(text);
        assert!(found.iter().map(|it| it.id).eq(expected.get_ids().iter().copied()), "{}", self.difference(text));
        // Pieces tile the text: each begins where the one before it ended, or within the same character.
        let mut end = 0;
        for piece in &found {
            assert!(
                piece.start <= end && piece.start < piece.end && end <= piece.end,
                "{text:?}: {piece:?} after {end}"
            );
            assert!(text.is_char_boundary(piece.start) && text.is_char_boundary(piece.end), "{text:?}: {piece:?}");
            end = piece.end;
        }
        assert_eq!(end, text.len(), "{text:?}");
        self.strings += 1;
        self.bytes += text.len();
    }

    /// A shortest string with the difference in it, for a person to read.
    fn difference(&self, text: &str) -> String {
        let differs = |text: &str| {
            let expected = self.peer.encode_fast(text, false).unwrap();
            !self.ours.encode(text).iter().map(|it| it.id).eq(expected.get_ids().iter().copied())
        };
        let mut shortest: Vec<char> = text.chars().collect();
        let mut at = 0;
        while at < shortest.len() {
            let mut without = shortest.clone();
            without.remove(at);
            if differs(&without.iter().collect::<String>()) {
                shortest = without;
            } else {
                at += 1;
            }
        }
        let shortest: String = shortest.into_iter().collect();
        let expected = self.peer.encode_fast(shortest.as_str(), false).unwrap();
        format!("{shortest:?}: expected {:?}, found {:?}", expected.get_ids(), self.ours.encode(&shortest))
    }

    fn check_corpus(&mut self) {
        let given = corpus::folders_given();
        corpus::mixtures(if given.is_empty() { 10_000 } else { 100_000 }, 5, |text| self.check(text));
        corpus::code_points(given.is_empty(), |text| self.check(text));
        corpus::long_runs(2_000, |text| self.check(text));
        let checkout = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![(checkout, 1_500)];
        folders.extend(given.into_iter().map(|folder| (folder, 40_000)));
        for (folder, limit) in folders {
            let before = self.strings;
            corpus::files(&folder, limit, |text| self.check(text));
            assert!(self.strings > before, "no text under {}", folder.display());
        }
    }
}

#[test]
fn the_mini_models_tokens_are_the_peers() {
    let mut pair = Pair::of(Path::new(MINI));
    pair.check_corpus();
    println!("mini: {} strings, {} bytes, equal", pair.strings, pair.bytes);
    assert!(pair.strings > 20_000);
}

#[test]
fn qwen3s_tokens_are_the_peers() {
    let Some(path) = env::var_os("TACK_QWEN3_TOKENIZER") else {
        println!("SKIPPED: needs TACK_QWEN3_TOKENIZER, the path of Qwen3's tokenizer.json");
        return;
    };
    let mut pair = Pair::of(Path::new(&path));
    pair.check_corpus();
    println!("qwen3: {} strings, {} bytes, equal", pair.strings, pair.bytes);
    assert!(pair.strings > 20_000);
}
