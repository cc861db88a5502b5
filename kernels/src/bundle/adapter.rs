//! A LoRA adapter as PEFT saves it.

use serde::Deserialize;
use serde_json::Value;

use crate::bundle::Opened;
use crate::bundle::checkpoint::Checkpoint;
use crate::bundle::config::{Config, Fields, JSON_BYTES_MAX};
use crate::bundle::error::BundleError;
use crate::bundle::tensor::Tensor;
use crate::bundle::weights::Weights;

const CONFIG_FILE: &str = "adapter_config.json";
const MODEL_FILE: &str = "adapter_model.safetensors";

/// Whether a file of a bundle belongs to its adapter.
pub(crate) fn is_file(name: &str) -> bool {
    name == CONFIG_FILE || name == MODEL_FILE
}

/// R, at most. A larger one than the width it is added to would be a second weight, not an adapter; 4,096 is past
/// every rank in use.
const RANK_MAX: u64 = 4_096;

/// The four projections that an adapter may change.
const TARGETS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];

/// The change of one projection: `scale B A`.
pub(crate) struct Lora {
    /// `lora_A.weight`: `[R, in]`.
    pub(crate) a: Tensor,
    /// `lora_B.weight`: `[out, R]`.
    pub(crate) b: Tensor,
    /// `lora_alpha / R`, or `lora_alpha / sqrt(R)` with `use_rslora`.
    pub(crate) scale: f32,
}

/// Reads both files and hangs each pair of matrices on its projection.
pub(crate) fn attach(opened: &mut Opened<'_>, config: &Config, weights: &mut Weights) -> Result<(), BundleError> {
    let bytes = opened.open(CONFIG_FILE)?;
    let fields = Fields { file: opened.source.display(CONFIG_FILE) };
    if bytes.len() > JSON_BYTES_MAX {
        return Err(BundleError::TooLarge { file: fields.file, most: JSON_BYTES_MAX, found: bytes.len() });
    }
    let raw: RawConfig =
        serde_json::from_slice(&bytes).map_err(|source| BundleError::Json { file: fields.file.clone(), source })?;
    let adapter = raw.check(&fields)?;

    let mut tensors = Checkpoint::open_single(opened, MODEL_FILE)?;
    // The adapter of a `Qwen3Model` has one `model.` less, and one whose weights were renamed for it has neither.
    let prefix = ["base_model.model.model.", "base_model.model."]
        .into_iter()
        .find(|prefix| (0..config.num_hidden_layers).any(|layer| adapter.any_in_layer(&tensors, prefix, layer)))
        .unwrap_or("base_model.model.model.");
    for (index, layer) in weights.layers.iter_mut().enumerate() {
        for (name, projection) in layer.projections_mut() {
            if !adapter.targets.contains(&name) {
                continue;
            }
            let (rank, out, inner) = (adapter.rank, projection.weight.rows, projection.weight.columns);
            let mut take = |which, shape: &[usize]| {
                tensors.take(&format!("{prefix}layers.{index}.self_attn.{name}.{which}.weight"), shape, CONFIG_FILE)
            };
            let a = take("lora_A", &[rank, inner])?;
            let b = take("lora_B", &[out, rank])?;
            projection.lora = Some(Lora { a, b, scale: adapter.scale });
        }
    }
    tensors.finish("lora_A and lora_B of the `target_modules` alone", |_| false)
}

/// What of `adapter_config.json` the computation needs.
struct AdapterConfig {
    rank: usize,
    scale: f32,
    targets: Vec<&'static str>,
}

impl AdapterConfig {
    fn any_in_layer(&self, tensors: &Checkpoint, prefix: &str, layer: usize) -> bool {
        self.targets.iter().any(|name| tensors.holds(&format!("{prefix}layers.{layer}.self_attn.{name}.lora_A.weight")))
    }
}

/// `adapter_config.json` as it stands. What PEFT may add to the computation is listed, so that it can be refused.
#[derive(Deserialize)]
struct RawConfig {
    peft_type: String,
    r: u64,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    init_lora_weights: Value,
    /// Everything else: see [`IDLE_FIELDS`].
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// Fields that change what is computed as soon as they hold anything but null, false, or nothing.
const IDLE_FIELDS: [&str; 12] = [
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
];

/// Initializations by name that leave the base alone. Others (`pissa`, `olora`, `corda`, `loftq`) move a part of the
/// base into the adapter, which is then right only beside the base that was changed with it.
const BASE_KEEPING_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

impl RawConfig {
    fn check(self, fields: &Fields) -> Result<AdapterConfig, BundleError> {
        fields.require("peft_type", self.peft_type == "LORA", "\"LORA\"", &self.peft_type)?;
        let bias = self.bias.as_deref().unwrap_or("none");
        fields.require("bias", bias == "none", "\"none\": biases are not implemented", bias)?;
        fields.require("fan_in_fan_out", !self.fan_in_fan_out, "false: Qwen3 stores [out, in]", true)?;
        let init = &self.init_lora_weights;
        let keeps_base = init.as_str().is_none_or(|method| BASE_KEEPING_INITS.contains(&method));
        let expected = "an initialization that leaves the base weights as they are";
        fields.require("init_lora_weights", keeps_base, expected, init)?;
        for field in IDLE_FIELDS {
            if let Some(value) = self.rest.get(field).filter(|value| !is_idle(value)) {
                return Err(fields.error(field, "absent, null, false or empty: it is not implemented", value));
            }
        }
        let rank = fields.within("r", self.r, 1, RANK_MAX)?;
        let divisor = if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
        // The one rounding; PEFT keeps the quotient in double precision and multiplies in the weights' type.
        #[expect(clippy::cast_possible_truncation)]
        let scale = (self.lora_alpha / divisor) as f32;
        fields.require("lora_alpha", scale.is_finite(), "a finite number", self.lora_alpha)?;
        Ok(AdapterConfig { rank, scale, targets: targets(&self.target_modules, fields)? })
    }
}

/// PEFT treats each of these as "not used".
fn is_idle(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

/// `target_modules` as a list of the four names. PEFT also takes a regular expression, which only its own
/// implementation can be trusted to read; it writes the resolved list when it saves.
fn targets(value: &Value, fields: &Fields) -> Result<Vec<&'static str>, BundleError> {
    let refuse = || fields.error("target_modules", format!("a list from {TARGETS:?}"), value);
    let names = value.as_array().filter(|names| !names.is_empty()).ok_or_else(refuse)?;
    let known = |name: &Value| TARGETS.into_iter().find(|target| name.as_str() == Some(target)).ok_or_else(refuse);
    names.iter().map(known).collect()
}
