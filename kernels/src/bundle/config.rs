//! `config.json`: the shape of the network, and the refusal of every variant that is not implemented.

use serde::Deserialize;

use crate::bundle::error::BundleError;
use crate::bundle::source::BundleSource;

/// The file's name in a bundle.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Bytes of a JSON configuration, at most. Qwen3's has under 2,000.
pub(crate) const JSON_BYTES_MAX: usize = 1 << 20;

/// Any one dimension, at most: 64 times the vocabulary of Qwen3 would still pass. Products of two such dimensions fit
/// in `usize`, and a dimension that passes must still be the dimension of a tensor that is there.
const DIMENSION_MAX: u64 = 10_000_000;

/// Layers, at most. Qwen3's largest has 94.
const LAYERS_MAX: u64 = 1_000;

/// The shape of a Qwen3 network, under the names of Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// V: rows of the embedding; every token is below it.
    pub vocab_size: usize,
    /// D: width of the residual stream.
    pub hidden_size: usize,
    /// F: width inside the feed-forward block.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// H: query heads.
    pub num_attention_heads: usize,
    /// G: key and value heads; divides H.
    pub num_key_value_heads: usize,
    /// E: width of one head; even. Not always D / H.
    pub head_dim: usize,
    /// Added to the mean square before its root is taken.
    pub rms_norm_eps: f32,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// The longest token sequence.
    pub max_position_embeddings: usize,
}

impl Config {
    /// H times E: width of all query heads.
    #[must_use]
    pub const fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// G times E: width of all key heads, and of all value heads.
    #[must_use]
    pub const fn key_value_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Reads and checks `config.json`.
    pub(crate) fn read(source: &BundleSource) -> Result<Self, BundleError> {
        let raw: RawConfig = read_json(source, CONFIG_FILE, JSON_BYTES_MAX)?;
        raw.check(&Fields { file: source.display(CONFIG_FILE) })
    }
}

/// Parses a whole JSON file.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(
    source: &BundleSource,
    file: &str,
    most: usize,
) -> Result<T, BundleError> {
    let bytes = source.open(file)?;
    if bytes.len() > most {
        return Err(BundleError::TooLarge { file: source.display(file), most, found: bytes.len() });
    }
    serde_json::from_slice(&bytes).map_err(|error| BundleError::Json { file: source.display(file), source: error })
}

/// `config.json` as it stands, in the forms that transformers 4 and 5 write.
#[derive(Deserialize)]
struct RawConfig {
    model_type: String,
    #[serde(default)]
    architectures: Vec<String>,
    vocab_size: u64,
    hidden_size: u64,
    intermediate_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    num_key_value_heads: u64,
    head_dim: u64,
    rms_norm_eps: f64,
    max_position_embeddings: u64,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    /// Where transformers 4 keeps it.
    #[serde(default)]
    rope_theta: Option<f64>,
    /// transformers 4: a kind of scaling, or null.
    #[serde(default)]
    rope_scaling: Option<RopeParameters>,
    /// transformers 5: theta and the kind of scaling in one object.
    #[serde(default)]
    rope_parameters: Option<RopeParameters>,
}

#[derive(Deserialize)]
struct RopeParameters {
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default, alias = "type")]
    rope_type: Option<String>,
    #[serde(default)]
    partial_rotary_factor: Option<f64>,
}

impl RawConfig {
    fn check(self, fields: &Fields) -> Result<Config, BundleError> {
        fields.require("model_type", self.model_type == "qwen3", "\"qwen3\"", &self.model_type)?;
        let known = |name: &String| matches!(name.as_str(), "Qwen3ForCausalLM" | "Qwen3Model");
        let architectures = format!("{:?}", self.architectures);
        let expected = "[\"Qwen3ForCausalLM\"] or [\"Qwen3Model\"]";
        fields.require("architectures", self.architectures.iter().all(known), expected, architectures)?;
        fields.require("hidden_act", self.hidden_act == "silu", "\"silu\"", &self.hidden_act)?;
        fields.require("attention_bias", !self.attention_bias, "false: biases are not implemented", true)?;
        fields.require("use_sliding_window", !self.use_sliding_window, "false: windows are not implemented", true)?;
        if let Some(kind) = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
            fields.require("layer_types", false, "full_attention alone", kind)?;
        }

        let dimension = |field, found| fields.within(field, found, 1, DIMENSION_MAX);
        let config = Config {
            vocab_size: dimension("vocab_size", self.vocab_size)?,
            hidden_size: dimension("hidden_size", self.hidden_size)?,
            intermediate_size: dimension("intermediate_size", self.intermediate_size)?,
            num_hidden_layers: fields.within("num_hidden_layers", self.num_hidden_layers, 1, LAYERS_MAX)?,
            num_attention_heads: dimension("num_attention_heads", self.num_attention_heads)?,
            num_key_value_heads: dimension("num_key_value_heads", self.num_key_value_heads)?,
            head_dim: dimension("head_dim", self.head_dim)?,
            rms_norm_eps: narrow(self.rms_norm_eps),
            rope_theta: self.rope_theta(fields)?,
            max_position_embeddings: dimension("max_position_embeddings", self.max_position_embeddings)?,
        };
        let Config { num_attention_heads: heads, num_key_value_heads: groups, head_dim, .. } = config;
        let divides = heads.is_multiple_of(groups);
        fields.require("num_key_value_heads", divides, format!("a divisor of the {heads} query heads"), groups)?;
        fields.require("head_dim", head_dim.is_multiple_of(2), "even: rotary embedding turns pairs", head_dim)?;
        // A negative epsilon makes NaN, and one above 1 swallows the mean square it should only guard.
        let small = config.rms_norm_eps > 0.0 && config.rms_norm_eps <= 1.0;
        fields.require("rms_norm_eps", small, "above 0 and at most 1", self.rms_norm_eps)?;
        Ok(config)
    }

    /// The base of the rotary frequencies, from wherever this version of transformers keeps it.
    fn rope_theta(&self, fields: &Fields) -> Result<f64, BundleError> {
        for rope in self.rope_scaling.iter().chain(&self.rope_parameters) {
            let kind = rope.rope_type.as_deref().unwrap_or("default");
            fields.require("rope_type", kind == "default", "\"default\": scaling is not implemented", kind)?;
            let share = rope.partial_rotary_factor.unwrap_or(1.0);
            fields.require(
                "partial_rotary_factor",
                (share - 1.0).abs() < f64::EPSILON,
                "1: partial rotation is not implemented",
                share,
            )?;
        }
        let nested = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
        let Some(theta) = nested.or(self.rope_theta) else {
            return Err(fields.error("rope_theta", "a number, here or in `rope_parameters`", "absent"));
        };
        if let (Some(nested), Some(outer)) = (nested, self.rope_theta) {
            fields.require(
                "rope_theta",
                nested.to_bits() == outer.to_bits(),
                format!("{nested}, as in `rope_parameters`"),
                outer,
            )?;
        }
        fields.require("rope_theta", (1.0..=1e12).contains(&theta), "between 1 and 1e12", theta)?;
        Ok(theta)
    }
}

/// The rounding to `f32` is the intent: the published model computes with the rounded number too.
#[expect(clippy::cast_possible_truncation)]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// Builds the errors of one configuration file. Expectations and findings are literals and numbers, taken by value.
pub(crate) struct Fields {
    /// The file, as a message names it.
    pub(crate) file: String,
}

#[expect(clippy::needless_pass_by_value, reason = "a reference at every call would say nothing")]
impl Fields {
    pub(crate) fn error(&self, field: &'static str, expected: impl ToString, found: impl ToString) -> BundleError {
        BundleError::Field { file: self.file.clone(), field, expected: expected.to_string(), found: found.to_string() }
    }

    pub(crate) fn require(
        &self,
        field: &'static str,
        holds: bool,
        expected: impl ToString,
        found: impl ToString,
    ) -> Result<(), BundleError> {
        if holds { Ok(()) } else { Err(self.error(field, expected, found)) }
    }

    pub(crate) fn within(&self, field: &'static str, found: u64, least: u64, most: u64) -> Result<usize, BundleError> {
        let fits = usize::try_from(found).ok().filter(|_| (least..=most).contains(&found));
        fits.ok_or_else(|| self.error(field, format!("{least} to {most}"), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn published() -> Value {
        // Qwen/Qwen3-0.6B, config.json, less what no code here reads.
        json!({
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "model_type": "qwen3",
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
            "rope_scaling": null, "rope_theta": 1_000_000, "sliding_window": null, "tie_word_embeddings": true,
            "use_sliding_window": false, "vocab_size": 151_936
        })
    }

    fn read(config: &Value) -> Result<Config, BundleError> {
        Config::read(&BundleSource::memory([(CONFIG_FILE, config.to_string().into_bytes())]))
    }

    #[test]
    fn the_published_file_in_both_dialects() {
        let four = read(&published()).unwrap();
        assert_eq!((four.query_size(), four.key_value_size(), four.rms_norm_eps), (2048, 1024, 1e-6));
        let mut five = published();
        five.as_object_mut().unwrap().remove("rope_theta");
        five["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e6});
        five["layer_types"] = json!(vec!["full_attention"; 28]);
        assert_eq!(read(&five).unwrap(), four);
    }

    #[test]
    fn what_cannot_be_or_is_not_implemented_names_its_field() {
        #[rustfmt::skip]
        let cases = [ // field                   value                                      the error names
            ("model_type",              json!("llama"),                                     "model_type"),
            ("architectures",           json!(["Qwen3MoeForCausalLM"]),                     "architectures"),
            ("hidden_act",              json!("gelu"),                                      "hidden_act"),
            ("attention_bias",          json!(true),                                        "attention_bias"),
            ("use_sliding_window",      json!(true),                                        "use_sliding_window"),
            ("layer_types",             json!(["full_attention", "sliding_attention"]),     "layer_types"),
            ("rope_scaling",            json!({"type": "yarn", "factor": 4.0}),             "rope_type"),
            ("rope_scaling",            json!({"rope_type": "linear", "factor": 4.0}),      "rope_type"),
            ("rope_parameters",         json!({"rope_type": "llama3", "rope_theta": 1e6}),  "rope_type"),
            ("rope_parameters",         json!({"rope_theta": 1e4}),                         "rope_theta"),
            ("rope_parameters",         json!({"partial_rotary_factor": 0.5}),              "partial_rotary_factor"),
            ("rope_theta",              json!(0),                                           "rope_theta"),
            ("rope_theta",              json!(null),                                        "rope_theta"),
            ("num_attention_heads",     json!(0),                                           "num_attention_heads"),
            ("num_key_value_heads",     json!(0),                                           "num_key_value_heads"),
            ("num_key_value_heads",     json!(3),                                           "num_key_value_heads"),
            ("num_hidden_layers",       json!(0),                                           "num_hidden_layers"),
            ("num_hidden_layers",       json!(1_000_000),                                   "num_hidden_layers"),
            ("head_dim",                json!(127),                                         "head_dim"),
            ("head_dim",                json!(0),                                           "head_dim"),
            ("vocab_size",              json!(u64::MAX),                                    "vocab_size"),
            ("hidden_size",             json!(10_000_001),                                  "hidden_size"),
            ("max_position_embeddings", json!(0),                                           "max_position_embeddings"),
            ("rms_norm_eps",            json!(0.0),                                         "rms_norm_eps"),
            ("rms_norm_eps",            json!(-1e-6),                                       "rms_norm_eps"),
            ("rms_norm_eps",            json!(1e300),                                       "rms_norm_eps"),
        ];
        for (field, value, named) in cases {
            let mut config = published();
            config[field] = value.clone();
            match read(&config) {
                Err(BundleError::Field { field: found, .. }) => assert_eq!(found, named, "{field} = {value}"),
                other => panic!("{field} = {value}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_not_even_a_number_names_line_and_field() {
        for (field, value) in [("hidden_size", json!(-1)), ("hidden_size", json!(1.5)), ("hidden_size", json!("1024"))]
        {
            let mut config = published();
            config[field] = value;
            assert!(matches!(read(&config), Err(BundleError::Json { .. })), "{config}");
        }
        let mut config = published();
        config.as_object_mut().unwrap().remove("head_dim");
        let Err(BundleError::Json { source, .. }) = read(&config) else { panic!("accepted without head_dim") };
        assert!(source.to_string().contains("head_dim"), "{source}");
    }
}
