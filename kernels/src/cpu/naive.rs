//! Slow, obvious twins of the operations in `f64`, straight from their formulas. Tests alone use them.

use crate::cpu::attention::HeadShape;

/// `count` numbers in `[-1, 1)` from a seed: `SplitMix64`.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // 24 bits fill a mantissa exactly.
        ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(crate) fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// Panics, naming the worst element, if one is further than `tolerance` times the larger of 1 and its size.
pub(crate) fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let error = |(&found, &expected): (&f32, &f64)| (f64::from(found) - expected).abs() / expected.abs().max(1.0);
    for (place, pair) in found.iter().zip(expected).enumerate() {
        let share = error(pair) / tolerance;
        assert!(share <= 1.0, "element {place}: {} for {}, {share:.2} of the tolerance {tolerance:e}", pair.0, pair.1);
    }
}

pub(crate) fn rms_norm(x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let normalize = |row: &[f64]| {
        let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(gain).map(|(x, g)| g * x / (mean_square + eps).sqrt()).collect::<Vec<_>>()
    };
    x.chunks(gain.len()).flat_map(normalize).collect()
}

pub(crate) fn rope(x: &[f64], position: usize, head_dim: usize, theta: f64) -> Vec<f64> {
    let half = head_dim / 2;
    let mut out = x.to_vec();
    for head in 0..x.len() / head_dim {
        for i in 0..half {
            let angle = position as f64 / theta.powf(2.0 * i as f64 / head_dim as f64);
            let (low, high) = (x[head * head_dim + i], x[head * head_dim + half + i]);
            out[head * head_dim + i] = low * angle.cos() - high * angle.sin();
            out[head * head_dim + half + i] = low * angle.sin() + high * angle.cos();
        }
    }
    out
}

pub(crate) fn gemm(x: &[f64], w: &[f64], t: usize, n: usize, k: usize) -> Vec<f64> {
    let mut y = vec![0.0; t * n];
    for row in 0..t {
        for column in 0..n {
            for i in 0..k {
                y[row * n + column] += x[row * k + i] * w[column * k + i];
            }
        }
    }
    y
}

/// Causal attention of the last `q.len() / (H E)` of the positions that k and v hold.
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], shape: HeadShape) -> Vec<f64> {
    let HeadShape { query_heads, key_value_heads, head_dim } = shape;
    let (q_width, kv_width) = (query_heads * head_dim, key_value_heads * head_dim);
    let (queries, keys) = (q.len() / q_width, k.len() / kv_width);
    let mut out = vec![0.0; q.len()];
    for query in 0..queries {
        let position = keys - queries + query;
        for head in 0..query_heads {
            let shared = head / (query_heads / key_value_heads);
            let q = &q[query * q_width + head * head_dim..][..head_dim];
            let score = |key: usize| {
                let k = &k[key * kv_width + shared * head_dim..][..head_dim];
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
            };
            let scores: Vec<f64> = (0..=position).map(score).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (key, weight) in weights.iter().enumerate() {
                for i in 0..head_dim {
                    out[query * q_width + head * head_dim + i] +=
                        weight / total * v[key * kv_width + shared * head_dim + i];
                }
            }
        }
    }
    out
}
