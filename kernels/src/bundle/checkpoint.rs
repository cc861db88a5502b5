//! The base weights: one `model.safetensors`, or an index and its shards.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::bundle::Opened;
use crate::bundle::config::{CONFIG_FILE, Config};
use crate::bundle::error::BundleError;
use crate::bundle::tensor::{Label, Tensor};
use crate::bundle::tensor_file::TensorFile;
use crate::bundle::weights::{Layer, Projection, Weights};

const MODEL_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Bytes of the index, at most. That of the largest Qwen3 has 2 MB.
const INDEX_BYTES_MAX: usize = 16 << 20;

/// Some tensor files under one roof: each tensor is taken once, and what is left at the end is a mistake.
pub(crate) struct Checkpoint {
    files: Vec<TensorFile>,
    /// The file that a missing tensor is missing from.
    named: String,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// The base weights of a bundle. Where both forms are there the single file is taken, as `transformers` does.
    pub(crate) fn open(opened: &mut Opened<'_>) -> Result<Self, BundleError> {
        if opened.source.contains(INDEX_FILE) && !opened.source.contains(MODEL_FILE) {
            Self::open_sharded(opened)
        } else {
            Self::open_single(opened, MODEL_FILE)
        }
    }

    /// One file alone.
    pub(crate) fn open_single(opened: &mut Opened<'_>, file: &str) -> Result<Self, BundleError> {
        let named = opened.source.display(file);
        let files = vec![TensorFile::parse(named.clone(), opened.open(file)?)?];
        Ok(Self { files, named })
    }

    fn open_sharded(opened: &mut Opened<'_>) -> Result<Self, BundleError> {
        let named = opened.source.display(INDEX_FILE);
        let bytes = opened.open(INDEX_FILE)?;
        if bytes.len() > INDEX_BYTES_MAX {
            return Err(BundleError::TooLarge { file: named, most: INDEX_BYTES_MAX, found: bytes.len() });
        }
        let Index { weight_map } =
            serde_json::from_slice(&bytes).map_err(|source| BundleError::Json { file: named.clone(), source })?;
        let mut files = Vec::new();
        for shard in weight_map.values().collect::<BTreeSet<_>>() {
            let shown = opened.source.display(shard);
            let file = TensorFile::parse(shown.clone(), opened.open(shard)?)?;
            if let Some(tensor) = file.entries.keys().find(|tensor| weight_map.get(*tensor) != Some(shard)) {
                return Err(BundleError::NotInIndex { file: named, tensor: tensor.clone(), shard: shown });
            }
            let mut promised = weight_map.iter().filter(|(_, place)| *place == shard).map(|(tensor, _)| tensor);
            if let Some(tensor) = promised.find(|tensor| !file.entries.contains_key(*tensor)) {
                return Err(BundleError::Index { file: named, tensor: tensor.clone(), shard: shown });
            }
            files.push(file);
        }
        Ok(Self { files, named })
    }

    /// Whether the tensor is there and was not taken.
    pub(crate) fn holds(&self, tensor: &str) -> bool {
        self.files.iter().any(|file| file.entries.contains_key(tensor))
    }

    /// Takes a tensor of exactly this shape.
    pub(crate) fn take(
        &mut self,
        tensor: &str,
        expected: &[usize],
        implied_by: &'static str,
    ) -> Result<Tensor, BundleError> {
        for file in &mut self.files {
            let Some(entry) = file.entries.remove(tensor) else {
                continue;
            };
            let label = Label { file: file.file.clone(), tensor: tensor.to_owned() };
            if entry.shape != expected {
                let (Label { file, tensor }, expected) = (label, expected.to_vec());
                return Err(BundleError::Shape { file, tensor, expected, found: entry.shape, implied_by });
            }
            return Ok(Tensor::stored(label, file.bytes.clone(), entry));
        }
        let (file, tensor, expected) = (self.named.clone(), tensor.to_owned(), expected.to_vec());
        Err(BundleError::MissingTensor { file, tensor, expected, implied_by })
    }

    /// The shape of a tensor that was not taken, without taking it.
    pub(crate) fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.files.iter().find_map(|file| file.entries.get(tensor)).map(|entry| entry.shape.as_slice())
    }

    /// Ends the taking: whatever is left and does not pass `ignorable` belongs to another network than this one.
    pub(crate) fn finish(self, expected: &'static str, ignorable: fn(&str) -> bool) -> Result<(), BundleError> {
        for file in self.files {
            if let Some((tensor, entry)) = file.entries.into_iter().find(|(tensor, _)| !ignorable(tensor)) {
                return Err(BundleError::UnexpectedTensor { file: file.file, tensor, found: entry.shape, expected });
            }
        }
        Ok(())
    }

    /// Takes everything that a Qwen3 of this shape needs, and leaves nothing but the head of its language model.
    pub(crate) fn weights(mut self, config: &Config) -> Result<Weights, BundleError> {
        let &Config { vocab_size, hidden_size, intermediate_size, num_hidden_layers, head_dim, .. } = config;
        let (query_size, key_value_size) = (config.query_size(), config.key_value_size());
        // A checkpoint of `Qwen3Model` has no prefix; one of `Qwen3ForCausalLM` has this one.
        let prefix = if self.holds("embed_tokens.weight") { "" } else { "model." };
        let mut take = |name: String, shape: &[usize]| self.take(&format!("{prefix}{name}.weight"), shape, CONFIG_FILE);

        let embed_tokens = take("embed_tokens".into(), &[vocab_size, hidden_size])?;
        let mut layers = Vec::new();
        for layer in 0..num_hidden_layers {
            let mut vector = |name, length| take(format!("layers.{layer}.{name}"), &[length]);
            let input_layernorm = vector("input_layernorm", hidden_size)?;
            let q_norm = vector("self_attn.q_norm", head_dim)?;
            let k_norm = vector("self_attn.k_norm", head_dim)?;
            let post_attention_layernorm = vector("post_attention_layernorm", hidden_size)?;
            let mut matrix = |name, out, inner| {
                take(format!("layers.{layer}.{name}"), &[out, inner]).map(|weight| Projection { weight, lora: None })
            };
            layers.push(Layer {
                input_layernorm,
                q_proj: matrix("self_attn.q_proj", query_size, hidden_size)?,
                k_proj: matrix("self_attn.k_proj", key_value_size, hidden_size)?,
                v_proj: matrix("self_attn.v_proj", key_value_size, hidden_size)?,
                q_norm,
                k_norm,
                o_proj: matrix("self_attn.o_proj", hidden_size, query_size)?,
                post_attention_layernorm,
                gate_proj: matrix("mlp.gate_proj", intermediate_size, hidden_size)?.weight,
                up_proj: matrix("mlp.up_proj", intermediate_size, hidden_size)?.weight,
                down_proj: matrix("mlp.down_proj", hidden_size, intermediate_size)?.weight,
            });
        }
        let norm = take("norm".into(), &[hidden_size])?;
        // The decision needs no next token: where that head is not tied to the embedding it is stored, and not read.
        self.finish("the tensors of `Qwen3ForCausalLM`, without biases", |tensor| tensor == "lm_head.weight")?;
        Ok(Weights { embed_tokens, layers, norm })
    }
}
