//! The files of `mini/`, for whatever carries the bundle in itself. The one table of them: it is a module of the command
//! and of the controller's tests, by path.

/// Each file by its name in a bundle.
pub(crate) const FILES: [(&str, &[u8]); 7] = [
    ("config.json", include_bytes!("mini/config.json")),
    ("model.safetensors", include_bytes!("mini/model.safetensors")),
    ("tokenizer.json", include_bytes!("mini/tokenizer.json")),
    ("adapter_config.json", include_bytes!("mini/adapter_config.json")),
    ("adapter_model.safetensors", include_bytes!("mini/adapter_model.safetensors")),
    ("heads.safetensors", include_bytes!("mini/heads.safetensors")),
    ("controller.json", include_bytes!("mini/controller.json")),
];
