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

    /// A loop that the compiler saw through would run faster than any processor; one that it could not keep in registers
    /// would run at a few million.
    #[test]
    fn a_peak_is_a_processor_s_and_not_a_compiler_s() {
        for isa in Isa::available() {
            let Peak { integer, float } = Peak::measure(isa, 5);
            println!("{isa}: {integer:.2e} integer, {float:.2e} float");
            for rate in [integer, float] {
                assert!((1e7..2e12).contains(&rate), "{isa}: {rate:.2e} operations a second");
            }
        }
    }
}
