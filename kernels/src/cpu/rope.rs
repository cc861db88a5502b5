//! Rotary position embedding.

/// Cosine and sine of every position and pair: `[T, E / 2]` each.
pub(crate) struct Rope {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Angles of positions `0..positions` for heads of width `head_dim`.
    ///
    /// The angle of pair i at position p is `p * theta^(-2 i / E)`. Frequency and angle are rounded to `f32`, because
    /// the published model was trained on the rounded ones: at position 40,000 the exact angle is another one.
    #[expect(clippy::cast_possible_truncation, reason = "the roundings of the published model")]
    pub(crate) fn new(positions: usize, head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64) as f32).collect();
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |&f| f64::from(p as f32 * f)));
        Self { half, cos: angles().map(|a| a.cos() as f32).collect(), sin: angles().map(|a| a.sin() as f32).collect() }
    }

    /// Turns each head of `row`, which is at `position`: `row` is `[heads, E]`, and element i pairs with i + E / 2.
    pub(crate) fn turn(&self, position: usize, row: &mut [f32]) {
        let at = position * self.half..(position + 1) * self.half;
        let (cos, sin) = (&self.cos[at.clone()], &self.sin[at]);
        for head in row.chunks_exact_mut(2 * self.half) {
            let (low, high) = head.split_at_mut(self.half);
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
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
            position in 0..300_usize, heads in 1..4_usize, half in 1..40_usize, seed in any::<u64>(),
            theta in prop::sample::select(vec![1.0, 1e4, 1e6]),
        ) {
            let x = naive::numbers(seed, heads * 2 * half);
            let mut found = x.clone();
            Rope::new(300, 2 * half, theta).turn(position, &mut found);
            let expected = naive::rope(&naive::widen(&x), position, 2 * half, theta);
            // The angle is rounded twice, so it is off by up to 2 units in the last place of itself.
            let angle_error = 2.0 * f64::from(f32::EPSILON) * (position as f64 + 1.0);
            naive::assert_close(&found, &expected, angle_error + 4.0 * f64::from(f32::EPSILON));
        }

        /// A rotation: the length of each pair stays, and position 0 changes nothing.
        #[test]
        fn keeps_lengths(position in 0..300_usize, half in 1..40_usize, seed in any::<u64>()) {
            let x = naive::numbers(seed, 2 * half);
            let rope = Rope::new(300, 2 * half, 1e4);
            let mut turned = x.clone();
            rope.turn(position, &mut turned);
            for i in 0..half {
                prop_assert!((x[i].hypot(x[i + half]) - turned[i].hypot(turned[i + half])).abs() < 1e-6);
            }
            let mut still = x.clone();
            rope.turn(0, &mut still);
            prop_assert_eq!(still, x);
        }
    }
}
