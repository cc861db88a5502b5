//! Rotary position embedding: angles of all positions so far.

use crate::bundle::Config;
use crate::engine::isa::Kernels;

/// Cosine and sine of every position and pair, `[positions, E / 2]` each; grows with the longest sequence.
#[derive(Default)]
pub(crate) struct Rope {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Makes sure of positions `0..positions`.
    ///
    /// The angle of pair i at position p is `p * theta^(-2 i / E)`, frequency and angle rounded to `f32`, as the
    /// published model was trained.
    #[expect(clippy::cast_possible_truncation, reason = "the roundings of the published model")]
    pub(crate) fn extend(&mut self, positions: usize, config: &Config) {
        self.half = config.head_dim / 2;
        let known = self.cos.len() / self.half;
        for position in known..positions {
            for i in 0..self.half {
                let frequency = config.rope_theta.powf(-2.0 * i as f64 / config.head_dim as f64) as f32;
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                self.cos.push(cos as f32);
                self.sin.push(sin as f32);
            }
        }
    }

    /// Turns one head, `[E]`, at a position that [`Rope::extend`] made sure of.
    pub(crate) fn turn(&self, kernels: &Kernels, position: usize, head: &mut [f32]) {
        let at = position * self.half..(position + 1) * self.half;
        (kernels.rotate)(head, &self.cos[at.clone()], &self.sin[at]);
    }
}
