//! The shipped mini bundle, for tests.

use std::sync::OnceLock;

use crate::tokenizer::Tokenizer;

#[path = "../../models/mini.rs"]
mod files;

/// One of its files.
pub(crate) fn file(name: &str) -> &'static [u8] {
    files::FILES.iter().find(|(found, _)| *found == name).unwrap().1
}

/// Its tokenizer, read once.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_bytes(file("tokenizer.json"), "tokenizer.json").unwrap())
}
