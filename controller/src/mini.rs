//! The shipped mini bundle, for tests.

use std::sync::OnceLock;

use crate::tokenizer::Tokenizer;

/// Its files, by name.
pub(crate) const FILES: [(&str, &[u8]); 7] = [
    ("config.json", include_bytes!("../../models/mini/config.json")),
    ("model.safetensors", include_bytes!("../../models/mini/model.safetensors")),
    ("tokenizer.json", TOKENIZER_JSON),
    ("adapter_config.json", include_bytes!("../../models/mini/adapter_config.json")),
    ("adapter_model.safetensors", include_bytes!("../../models/mini/adapter_model.safetensors")),
    ("heads.safetensors", include_bytes!("../../models/mini/heads.safetensors")),
    ("controller.json", include_bytes!("../../models/mini/controller.json")),
];

pub(crate) const TOKENIZER_JSON: &[u8] = include_bytes!("../../models/mini/tokenizer.json");

pub(crate) fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|(found, _)| *found == name).unwrap().1
}

/// Its tokenizer, read once.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_bytes(TOKENIZER_JSON, "tokenizer.json").unwrap())
}
