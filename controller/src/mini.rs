//! The shipped mini bundle, for tests.

use std::path::Path;
use std::sync::OnceLock;

use crate::tokenizer::Tokenizer;

pub(crate) const TOKENIZER_JSON: &[u8] = include_bytes!("../../models/mini/tokenizer.json");

/// Its tokenizer, read once.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_bytes(TOKENIZER_JSON, Path::new("tokenizer.json")).unwrap())
}
