//! The value model that is part of the command, so that `tack decide` works from any folder.

/// The files of `models/mini`, by name.
pub(crate) const FILES: [(&str, &[u8]); 7] = [
    ("config.json", include_bytes!("../../models/mini/config.json")),
    ("model.safetensors", include_bytes!("../../models/mini/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/mini/tokenizer.json")),
    ("adapter_config.json", include_bytes!("../../models/mini/adapter_config.json")),
    ("adapter_model.safetensors", include_bytes!("../../models/mini/adapter_model.safetensors")),
    ("heads.safetensors", include_bytes!("../../models/mini/heads.safetensors")),
    ("controller.json", include_bytes!("../../models/mini/controller.json")),
];
