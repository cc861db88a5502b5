//! What this processor can do at most, measured: the denominator of every share that a benchmark reports.

use std::hint::black_box;
use std::time::Instant;

use crate::engine::isa::{CHAINS, Isa};

/// Steps of one sample: about a quarter of a millisecond, short enough that some sample runs undisturbed.
const STEPS: u32 = 50_000;

/// The instruction peak of one core, in operations a second; a multiplication and an addition are two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Products of 16-bit integers summed in 32 bits.
    pub integer: f64,
    /// 32-bit floats.
    pub float: f64,
}

impl Peak {
    /// Measures with the same instructions that the tiles of `isa` use, on registers alone; the best of `samples`.
    #[must_use]
    pub fn measure(isa: Isa, samples: u32) -> Self {
        let kernels = isa.kernels();
        let best = |burn: fn(u32) -> f32, operations: usize| {
            let seconds = (0..samples).map(|_| {
                let start = Instant::now();
                black_box(burn(black_box(STEPS)));
                start.elapsed().as_secs_f64()
            });
            (operations * CHAINS * kernels.vector) as f64 * f64::from(STEPS) / seconds.fold(f64::INFINITY, f64::min)
        };
        // The portable loop multiplies one pair at a time; a vector instruction two in each 32 bits.
        let per_integer = if kernels.vector == 1 { 2 } else { 4 };
        Self { integer: best(kernels.burn_i16, per_integer), float: best(kernels.burn_f32, 2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_does_something_and_vectors_do_more() {
        let peaks: Vec<_> = Isa::available().into_iter().map(|isa| (isa, Peak::measure(isa, 20))).collect();
        println!("{peaks:?}");
        let scalar = peaks[0].1;
        for (isa, peak) in &peaks[1..] {
            assert!(peak.float > 1.5 * scalar.float && peak.integer > scalar.integer, "{isa}: {peak:?} {scalar:?}");
        }
    }
}
