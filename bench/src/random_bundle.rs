//! A model bundle of any shape with random weights: what speed and rounding are measured on where no trained weights are
//! at hand.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The shape of a Qwen3 network, under the names of its `config.json`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// V.
    pub vocab_size: usize,
    /// D.
    pub hidden_size: usize,
    /// F.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// H.
    pub num_attention_heads: usize,
    /// G.
    pub num_key_value_heads: usize,
    /// E.
    pub head_dim: usize,
}

impl Shape {
    /// Qwen3-0.6B.
    pub const QWEN3_0_6B: Self = Self {
        vocab_size: 151_936,
        hidden_size: 1024,
        intermediate_size: 3072,
        num_hidden_layers: 28,
        num_attention_heads: 16,
        num_key_value_heads: 8,
        head_dim: 128,
    };

    /// Operations of one pass over `new` tokens after `cached` ones, the last layer trimmed to the last token: two a
    /// weight and row, four an element of each pair of query and key that attend.
    #[must_use]
    pub fn operations(&self, new: usize, cached: usize) -> f64 {
        let [d, f, e] = [self.hidden_size, self.intermediate_size, self.head_dim].map(|x| x as f64);
        let (query, key) = (self.num_attention_heads as f64 * e, self.num_key_value_heads as f64 * e);
        let (new, cached, layers) = (new as f64, cached as f64, self.num_hidden_layers as f64);
        let per_row = 2.0 * (d * (query + 2.0 * key) + query * d + 3.0 * d * f);
        let pairs = new * cached + new * (new + 1.0) / 2.0;
        let last = new * 4.0 * d * key + (per_row - 4.0 * d * key) + 4.0 * query * (cached + new);
        (layers - 1.0) * (new * per_row + 4.0 * query * pairs) + last
    }
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Near enough to a normal number: the sum of four uniform ones, of standard deviation 1.
    fn normal(&mut self) -> f32 {
        let bits = self.next().to_le_bytes();
        let sum: i32 = bits.as_chunks::<2>().0.iter().map(|&part| i32::from(i16::from_le_bytes(part))).sum();
        // A uniform 16-bit integer has a deviation of 2^16 / sqrt(12); four of them twice that.
        sum as f32 * (3.0_f32.sqrt() / 65_536.0)
    }
}

/// Writes `config.json`, `model.safetensors` (bfloat16, deviation 0.02, gains 1, as Hugging Face initializes) and
/// `heads.safetensors` into `directory`, unless all three are there.
///
/// # Errors
/// The system's, for a file that cannot be written.
pub fn write(directory: &Path, shape: Shape) -> io::Result<()> {
    let files = ["config.json", "heads.safetensors", "model.safetensors"];
    if files.iter().all(|file| directory.join(file).exists()) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let Shape { vocab_size, hidden_size: d, intermediate_size: f, num_hidden_layers, .. } = shape;
    let (query, key) = (shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim);
    let config = format!(
        r#"{{"architectures": ["Qwen3Model"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": false,
 "vocab_size": {vocab_size}, "hidden_size": {d}, "intermediate_size": {f}, "num_hidden_layers": {num_hidden_layers},
 "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
 "max_position_embeddings": 40960, "tie_word_embeddings": true}}
"#,
        shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    );
    fs::write(directory.join("config.json"), config)?;

    let mut random = Random(1);
    let tensors = [
        ("cost.bias", vec![5]),
        ("cost.weight", vec![5, d]),
        ("success.bias", vec![5]),
        ("success.weight", vec![5, d]),
    ];
    let tensors: Vec<_> = tensors.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect();
    write_tensors(&directory.join("heads.safetensors"), &tensors, &mut random)?;

    let mut tensors =
        vec![("embed_tokens.weight".to_owned(), vec![vocab_size, d]), ("norm.weight".to_owned(), vec![d])];
    for layer in 0..num_hidden_layers {
        for (name, shape) in [
            ("input_layernorm", vec![d]),
            ("mlp.down_proj", vec![d, f]),
            ("mlp.gate_proj", vec![f, d]),
            ("mlp.up_proj", vec![f, d]),
            ("post_attention_layernorm", vec![d]),
            ("self_attn.k_norm", vec![shape.head_dim]),
            ("self_attn.k_proj", vec![key, d]),
            ("self_attn.o_proj", vec![d, query]),
            ("self_attn.q_norm", vec![shape.head_dim]),
            ("self_attn.q_proj", vec![query, d]),
            ("self_attn.v_proj", vec![key, d]),
        ] {
            tensors.push((format!("layers.{layer}.{name}.weight"), shape));
        }
    }
    // Last, and under its name only once it is whole.
    let partial = directory.join("model.safetensors.partial");
    write_tensors(&partial, &tensors, &mut random)?;
    fs::rename(partial, directory.join("model.safetensors"))
}

/// Writes a rank-16 adapter of the four attention projections into `directory`, beside the heads of `bundle`.
///
/// # Errors
/// The system's, for a file that cannot be read or written.
pub fn write_adapter(directory: &Path, bundle: &Path, shape: Shape, seed: u64) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::copy(bundle.join("heads.safetensors"), directory.join("heads.safetensors"))?;
    let config = r#"{"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}"#;
    fs::write(directory.join("adapter_config.json"), config)?;
    let (d, rank) = (shape.hidden_size, 16);
    let (query, key) = (shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim);
    let mut tensors = Vec::new();
    for layer in 0..shape.num_hidden_layers {
        for (name, out, inner) in [("k_proj", key, d), ("o_proj", d, query), ("q_proj", query, d), ("v_proj", key, d)] {
            let prefix = format!("base_model.model.layers.{layer}.self_attn.{name}");
            tensors.push((format!("{prefix}.lora_A.weight"), vec![rank, inner]));
            tensors.push((format!("{prefix}.lora_B.weight"), vec![out, rank]));
        }
    }
    write_tensors(&directory.join("adapter_model.safetensors"), &tensors, &mut Random(seed))
}

fn write_tensors(path: &Path, tensors: &[(String, Vec<usize>)], random: &mut Random) -> io::Result<()> {
    let mut header = String::from("{");
    let mut end = 0;
    for (index, (name, shape)) in tensors.iter().enumerate() {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let comma = if index == 0 { "" } else { "," };
        // Writing to a `String` does not fail.
        let _infallible =
            write!(header, r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#);
    }
    header.push('}');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for (name, shape) in tensors {
        // A gain is one, a weight is small.
        let gain = name.contains("norm");
        for _ in 0..shape.iter().product::<usize>() {
            let x = if gain { 1.0 } else { 0.02 * random.normal() };
            // The upper half of a float is a bfloat16.
            file.write_all(&x.to_le_bytes()[2..])?;
        }
    }
    file.flush()
}
