//! Rounding where it hurts: trained networks have a few channels that are a hundred times as large as the rest, which
//! random weights lack. Here they are planted, in each place where a matrix gets its inputs from.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use safetensors::tensor::TensorView;
use tack_kernels::reference::Reference;
use tack_kernels::{
    ActionHeads, Adapter, BundleSource, Engine, EngineOptions, Network, Precision, PrecisionPolicy, Stop,
};

const V: usize = 512;
const D: usize = 256;
const F: usize = 512;
const LAYERS: usize = 3;
const QUERY: usize = 256;
const KEY: usize = 128;
const E: usize = 64;

/// Channels that are planted, and how much larger they are.
const CHANNELS: [usize; 3] = [3, 77, 200];
const FACTOR: f32 = 100.0;

/// Relative L2 error of the hidden state, and its cosine, against 64-bit floats.
const ERROR_LIMIT: f64 = 6e-3;
const COSINE_LIMIT: f64 = 0.9999;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    Nowhere,
    /// Columns of the embedding, so that the residual stream carries them through every layer.
    Embedding,
    /// Gains of both norms of every layer.
    Gains,
    /// Rows of up, so that the input of down has them.
    Up,
    /// Rows of v, so that the input of o has them.
    Values,
}

/// Normal numbers from a seed: `SplitMix64`, sums of four.
fn normal(seed: u64, count: usize, deviation: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let uniform = |bits: u64, part: u32| ((bits >> (16 * part)) & 0xffff) as f32 / 65_536.0 - 0.5;
    (0..count)
        .map(|_| {
            let bits = next();
            (0..4).map(|part| uniform(bits, part)).sum::<f32>() * 3.0_f32.sqrt() * deviation
        })
        .collect()
}

fn bundle(planted: Planted) -> BundleSource {
    let config = format!(
        r#"{{"architectures": ["Qwen3Model"], "model_type": "qwen3", "hidden_act": "silu", "vocab_size": {V},
        "hidden_size": {D}, "intermediate_size": {F}, "num_hidden_layers": {LAYERS}, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": {E}, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "max_position_embeddings": 4096}}"#
    );
    let mut tensors: Vec<(String, Vec<usize>)> =
        vec![("embed_tokens.weight".into(), vec![V, D]), ("norm.weight".into(), vec![D])];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![D]),
            ("post_attention_layernorm", vec![D]),
            ("mlp.down_proj", vec![D, F]),
            ("mlp.gate_proj", vec![F, D]),
            ("mlp.up_proj", vec![F, D]),
            ("self_attn.k_norm", vec![E]),
            ("self_attn.q_norm", vec![E]),
            ("self_attn.k_proj", vec![KEY, D]),
            ("self_attn.o_proj", vec![D, QUERY]),
            ("self_attn.q_proj", vec![QUERY, D]),
            ("self_attn.v_proj", vec![KEY, D]),
        ] {
            tensors.push((format!("layers.{layer}.{name}.weight"), shape));
        }
    }
    let heads = [("success.weight", [5, D]), ("cost.weight", [5, D])].map(|(name, shape)| (name.into(), shape.into()));
    let biases = [("success.bias", [5]), ("cost.bias", [5])].map(|(name, shape)| (name.into(), shape.into()));
    let heads: Vec<(String, Vec<usize>)> = heads.into_iter().chain(biases).collect();

    let file = |tensors: &[(String, Vec<usize>)]| {
        let made = tensors.iter().enumerate().map(|(index, (name, shape))| {
            let count = shape.iter().product();
            let norm = name.contains("norm");
            let mut elements = if norm { vec![1.0; count] } else { normal(index as u64, count, 0.06) };
            let grow = |elements: &mut [f32]| elements.iter_mut().for_each(|x| *x *= FACTOR);
            for channel in CHANNELS {
                match planted {
                    Planted::Embedding if name == "embed_tokens.weight" => {
                        elements.chunks_mut(D).for_each(|row| grow(&mut row[channel..=channel]));
                    }
                    Planted::Gains if name.contains("layernorm") => grow(&mut elements[channel..=channel]),
                    Planted::Up if name.contains("up_proj") => grow(&mut elements[channel * D..(channel + 1) * D]),
                    Planted::Values if name.contains("v_proj") => {
                        let row = channel % KEY;
                        grow(&mut elements[row * D..(row + 1) * D]);
                    }
                    _ => {}
                }
            }
            let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
            (name, shape, bytes)
        });
        let made: Vec<_> = made.collect();
        let views = made.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(safetensors::Dtype::F32, (*shape).clone(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    };
    BundleSource::memory([
        ("config.json", config.into_bytes()),
        ("model.safetensors", file(&tensors)),
        ("heads.safetensors", file(&heads)),
    ])
}

/// Worst relative error and cosine over some texts.
fn errors(engine: &mut Engine, texts: &[Vec<u32>], exact: &[Vec<f64>]) -> (f64, f64) {
    let mut worst = (0.0_f64, 1.0_f64);
    for (tokens, exact) in texts.iter().zip(exact) {
        let hidden = engine.hidden(tokens, Stop::never()).unwrap();
        let hidden: Vec<f64> = hidden.into_iter().map(f64::from).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let difference: Vec<f64> = hidden.iter().zip(exact).map(|(a, b)| a - b).collect();
        let error = (dot(&difference, &difference) / dot(exact, exact)).sqrt();
        let cosine = dot(&hidden, exact) / (dot(&hidden, &hidden) * dot(exact, exact)).sqrt();
        assert!(error.is_finite() && cosine.is_finite());
        worst = (worst.0.max(error), worst.1.min(cosine));
    }
    worst
}

#[test]
fn planted_outliers_are_met_with_more_bits_where_they_cost() {
    for planted in [Planted::Nowhere, Planted::Embedding, Planted::Gains, Planted::Up, Planted::Values] {
        let source = bundle(planted);
        let texts: Vec<Vec<u32>> = [5, 70]
            .map(|length: u32| (0..length).map(|i| (i * 7919 + length) % u32::try_from(V).unwrap()).collect())
            .to_vec();
        let reference = Reference::load::<ActionHeads>(&source, false).unwrap();
        let exact: Vec<_> = texts.iter().map(|tokens| reference.hidden(tokens).unwrap()).collect();
        let load = |precision| {
            let options = EngineOptions { adapter: Adapter::None, precision, ..EngineOptions::default() };
            Engine::load(&source, &options).unwrap()
        };
        let mut measured: Engine = load(PrecisionPolicy::Measured);
        let mut standard = load(PrecisionPolicy::Fixed(Precision::STANDARD));
        let mut float = load(PrecisionPolicy::Fixed(Precision::Float));
        let finer = measured.precisions().iter().flatten().filter(|&&it| it != Precision::STANDARD).count();
        let [of_measured, of_standard, of_float] =
            [&mut measured, &mut standard, &mut float].map(|engine| errors(engine, &texts, &exact));
        println!(
            "{planted:?}: standard {:.1e}, measured {:.1e} (cosine 1 - {:.0e}) with {finer} of {} matrices finer, float {:.1e}",
            of_standard.0,
            of_measured.0,
            1.0 - of_measured.1,
            4 * LAYERS,
            of_float.0
        );
        assert!(of_measured.0 <= ERROR_LIMIT && of_measured.1 > COSINE_LIMIT, "{planted:?}: {of_measured:?}");
        assert!(of_float.0 < 1e-5, "{planted:?}: {of_float:?}");
        if planted == Planted::Nowhere {
            assert!(finer <= LAYERS, "{finer} matrices were refined without need");
        }
    }
}
