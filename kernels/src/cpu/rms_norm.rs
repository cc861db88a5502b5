//! RMSNorm over the rows of a matrix.

/// `row[i] <- gain[i] * row[i] / sqrt(mean of row^2 + eps)`, for each row of `gain.len()` numbers in `rows`.
///
/// The mean square is summed in `f64`. The published model rounds `row[i] * r` to the type of the weights before it
/// multiplies by the gain; in `f32` the two orders differ by one rounding.
pub(crate) fn rms_norm(rows: &mut [f32], gain: &[f32], eps: f32) {
    for row in rows.chunks_exact_mut(gain.len()) {
        let sum: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let mean_square = sum / gain.len() as f64;
        // The rounding to the type of the activations.
        #[expect(clippy::cast_possible_truncation)]
        let scale = (mean_square + f64::from(eps)).sqrt().recip() as f32;
        for (x, gain) in row.iter_mut().zip(gain) {
            *x = gain * (*x * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::naive;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_formula(
            rows in 1..5_usize, width in 1..70_usize, seed in any::<u64>(), magnitude in -12..12_i32,
        ) {
            let mut x = naive::numbers(seed, rows * width);
            for x in &mut x {
                *x *= 10_f32.powi(magnitude);
            }
            let gain = naive::numbers(seed ^ 1, width);
            let mut found = x.clone();
            rms_norm(&mut found, &gain, 1e-6);
            let expected = naive::rms_norm(&naive::widen(&x), &naive::widen(&gain), 1e-6_f32.into());
            // Four roundings an element, none of them accumulating.
            naive::assert_close(&found, &expected, 4.0 * f64::from(f32::EPSILON));
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero_and_a_large_one_does_not_overflow() {
        let mut zero = [0.0; 8];
        rms_norm(&mut zero, &[1.0; 8], 1e-6);
        assert!(zero.iter().all(|&x| x.abs() < f32::MIN_POSITIVE));
        let mut large = [1e30_f32; 8];
        rms_norm(&mut large, &[1.0; 8], 1e-6);
        assert!(large.iter().all(|x| (x - 1.0).abs() < 1e-6));
    }
}
