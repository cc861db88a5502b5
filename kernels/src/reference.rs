//! The network in 64-bit floats, plainly: what every backend is judged by.
//!
//! It shares the bundle's reader with the others and nothing else: each step is its formula, on whole matrices
//! `[T, columns]`, one thread, no blocks, no fusing, the adapter kept apart, all layers for all tokens. At the full shape a
//! token takes about half a second.

use crate::bundle::{Bundle, BundleError, BundleSource, Config, Layer, Projection, Tensor, Weights};
use crate::network::{ForwardError, HeadsKind};

/// The network in 64-bit floats.
pub struct Reference {
    config: Config,
    weights: Weights,
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Reference {
    /// Reads and checks a bundle whose heads are of the kind `H`; the adapter only if `with_adapter`.
    ///
    /// # Errors
    /// [`BundleError`] for whatever is wrong with the bundle.
    pub fn load<H: HeadsKind>(source: &BundleSource, with_adapter: bool) -> Result<Self, BundleError> {
        let Bundle { config, weights, .. } = Bundle::read::<H>(source, with_adapter)?;
        Ok(Self { config, weights })
    }

    /// The hidden state `[D]` of the last token, after the final norm.
    ///
    /// # Errors
    /// [`ForwardError`] for tokens that have no hidden state.
    pub fn hidden(&self, tokens: &[u32]) -> Result<Vec<f64>, ForwardError> {
        ForwardError::check(tokens, &self.config)?;
        let eps = f64::from(self.config.rms_norm_eps);
        let mut x: Vec<Vec<f64>> =
            tokens.iter().map(|&token| row(&self.weights.embed_tokens, token as usize)).collect();
        for layer in &self.weights.layers {
            self.layer(layer, &mut x);
        }
        let last = x.pop().unwrap_or_default();
        Ok(rms_norm(&last, &row(&self.weights.norm, 0), eps))
    }

    fn layer(&self, layer: &Layer, x: &mut [Vec<f64>]) {
        let Config { num_attention_heads, num_key_value_heads, head_dim, .. } = self.config;
        let eps = f64::from(self.config.rms_norm_eps);

        // 1. q, k, v of the normalized input; each head of q and k normalized, then turned by its position.
        let gain = row(&layer.input_layernorm, 0);
        let normalized: Vec<_> = x.iter().map(|x| rms_norm(x, &gain, eps)).collect();
        let heads_of = |projection: &Projection, gain: &Tensor| {
            let gain = row(gain, 0);
            let turned = project(&normalized, projection).into_iter().enumerate().map(|(position, row)| {
                let heads = row.chunks(head_dim).map(|head| self.turn(position, &rms_norm(head, &gain, eps)));
                heads.collect::<Vec<_>>()
            });
            turned.collect::<Vec<_>>()
        };
        let (q, k) = (heads_of(&layer.q_proj, &layer.q_norm), heads_of(&layer.k_proj, &layer.k_norm));
        let v = project(&normalized, &layer.v_proj);

        // 2. Each query head attends to the keys up to its own position.
        let mut attended = vec![vec![0.0; num_attention_heads * head_dim]; x.len()];
        for (position, out) in attended.iter_mut().enumerate() {
            for (head, out) in out.chunks_mut(head_dim).enumerate() {
                let shared = head / (num_attention_heads / num_key_value_heads);
                let score = |key: usize| dot(&q[position][head], &k[key][shared]) / (head_dim as f64).sqrt();
                let scores: Vec<f64> = (0..=position).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (key, weight) in weights.iter().enumerate() {
                    let value = &v[key][shared * head_dim..][..head_dim];
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / total * value);
                }
            }
        }

        // 3. Both halves join the residual stream.
        add(x, &project(&attended, &layer.o_proj));
        let gain = row(&layer.post_attention_layernorm, 0);
        let normalized: Vec<_> = x.iter().map(|x| rms_norm(x, &gain, eps)).collect();
        let mut gated = multiply(&normalized, &layer.gate_proj);
        let up = multiply(&normalized, &layer.up_proj);
        for (gate, up) in gated.iter_mut().zip(&up) {
            gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up / (1.0 + (-*gate).exp()));
        }
        add(x, &multiply(&gated, &layer.down_proj));
    }

    /// Rotary embedding of one head. Frequencies and angles are rounded to 32 bits, since the published model was trained
    /// on the rounded ones.
    #[expect(clippy::cast_possible_truncation, reason = "the roundings of the published model")]
    fn turn(&self, position: usize, head: &[f64]) -> Vec<f64> {
        let half = head.len() / 2;
        let angle = |i: usize| {
            let frequency = self.config.rope_theta.powf(-2.0 * i as f64 / head.len() as f64) as f32;
            f64::from(position as f32 * frequency)
        };
        let low = (0..half).map(|i| head[i] * angle(i).cos() - head[i + half] * angle(i).sin());
        let high = (0..half).map(|i| head[i + half] * angle(i).cos() + head[i] * angle(i).sin());
        low.chain(high).collect()
    }
}

fn row(tensor: &Tensor, row: usize) -> Vec<f64> {
    let mut elements = vec![0.0; tensor.columns];
    tensor.read(row, 0, &mut elements);
    elements.into_iter().map(f64::from).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn rms_norm(x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let root = (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(gain).map(|(x, gain)| x / root * gain).collect()
}

/// `x Wᵀ`.
fn multiply(x: &[Vec<f64>], weight: &Tensor) -> Vec<Vec<f64>> {
    let mut y = vec![vec![0.0; weight.rows]; x.len()];
    for column in 0..weight.rows {
        let weight = row(weight, column);
        y.iter_mut().zip(x).for_each(|(y, x)| y[column] = dot(x, &weight));
    }
    y
}

/// `x Wᵀ + scale (x Aᵀ) Bᵀ`.
fn project(x: &[Vec<f64>], projection: &Projection) -> Vec<Vec<f64>> {
    let mut y = multiply(x, &projection.weight);
    if let Some(lora) = &projection.lora {
        let mut change = multiply(&multiply(x, &lora.a), &lora.b);
        change.iter_mut().flatten().for_each(|change| *change *= f64::from(lora.scale));
        add(&mut y, &change);
    }
    y
}

fn add(x: &mut [Vec<f64>], change: &[Vec<f64>]) {
    x.iter_mut().flatten().zip(change.iter().flatten()).for_each(|(x, change)| *x += change);
}
