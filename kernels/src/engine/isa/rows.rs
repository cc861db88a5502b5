//! Loops over one row or one block, in plain Rust: each table compiles them for its own features.
//!
//! They are written for vectors: sums run in [`NR`] separate lanes that are added at the end, so that the order of every
//! sum is written here and no compiler may or need change it.

#![expect(clippy::inline_always, reason = "a body must be compiled inside the function that has the features")]

use super::{Lanes, NR};

/// RMSNorm in place: `row[i] = row[i] * r * gain[i]`, `r = 1 / sqrt(mean(row^2) + eps)`.
///
/// `gain` is as long as the vector that is normalized; what follows it in `row` is padding, which becomes 0.
#[inline(always)]
pub(super) fn normalize(row: &mut [f32], gain: &[f32], eps: f32) {
    let (row, padding) = row.split_at_mut(gain.len());
    let mean_square = sum(row, |x| x * x) / gain.len() as f32;
    let r = 1.0 / (mean_square + eps).sqrt();
    row.iter_mut().zip(gain).for_each(|(x, gain)| *x = *x * r * gain);
    padding.fill(0.0);
}

/// The sum of `term(x)`, in lanes, then the lanes in halves.
#[inline(always)]
fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; NR];
    let (chunks, rest) = row.as_chunks::<NR>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += term(x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &x)| *lane += term(x));
    reduce(lanes, |a, b| a + b)
}

#[inline(always)]
fn reduce(mut lanes: Lanes, with: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = NR;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = with(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// Added to a float below 2^22 in size and taken away again, it leaves the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// Rounds a row to integers of at most `greatest` in size, and returns the scale: `row[k] ~ scale * integer[k]`.
///
/// `row` has an even length, and `pairs[k / 2]` holds integers `k` (low half) and `k + 1`. A row with a NaN or an infinity
/// in it gets a scale of NaN, so that it cannot pass for a number later.
#[inline(always)]
pub(super) fn quantize(row: &[f32], greatest: f32, pairs: &mut [i32]) -> f32 {
    let mut lanes = [0.0_f32; NR];
    // A product with zero is zero for a number, and NaN for what is none.
    let mut poison = [0.0_f32; NR];
    let (chunks, rest) = row.as_chunks::<NR>();
    for chunk in chunks {
        for ((lane, poison), &x) in lanes.iter_mut().zip(&mut poison).zip(chunk) {
            let size = x.abs();
            *lane = if size > *lane { size } else { *lane };
            *poison += x * 0.0;
        }
    }
    for ((lane, poison), &x) in lanes.iter_mut().zip(&mut poison).zip(rest) {
        let size = x.abs();
        *lane = if size > *lane { size } else { *lane };
        *poison += x * 0.0;
    }
    let most = reduce(lanes, |a, b| if a > b { a } else { b });
    let inverse = if most > 0.0 { greatest / most } else { 0.0 };
    // A row so small that its inverse overflows is as good as zero.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    for (pair, x) in pairs.iter_mut().zip(row.as_chunks::<2>().0) {
        *pair = round(x[0] * inverse) & 0xffff | round(x[1] * inverse) << 16;
    }
    most / greatest + reduce(poison, |a, b| a + b)
}

/// The nearest integer to a float below 2^15 in size.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    // Between 2^23 and 2^24 neighbors differ by one, so the mantissa counts.
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// Rotates a head by the angles of its position: element `i` of the first half with element `i` of the second.
#[inline(always)]
pub(super) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// `out[i] = silu(gate[i]) * up[i]`, where the lower half of `gate_up` is gate and the upper is up.
#[inline(always)]
pub(super) fn silu_mul(gate_up: &Lanes, out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(NR / 2);
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

/// Running maximum, sum and last correction of an online softmax, for each query of a block.
#[derive(Clone, Debug)]
pub(crate) struct Softmax {
    /// The greatest score so far.
    pub(crate) most: Lanes,
    /// The sum of `exp(score - most)` so far.
    pub(crate) sum: Lanes,
    /// What sums from before the last block must be multiplied with.
    pub(crate) correction: Lanes,
}

impl Softmax {
    /// Before the first block.
    pub(crate) const START: Self = Self { most: [f32::NEG_INFINITY; NR], sum: [0.0; NR], correction: [0.0; NR] };
}

/// Replaces the scores of some keys (rows) for [`NR`] queries (columns) by their weights, relative to the new maximum.
///
/// Row `i` is key `first_key + i`; a key after `last_key` of its query weighs exactly nothing. A query must have seen at
/// least one key after its first block, which the causal mask gives: key 0 comes first.
#[inline(always)]
pub(super) fn softmax_block(scores: &mut [Lanes], first_key: u32, last_key: &[u32; NR], state: &mut Softmax) {
    let end = first_key + u32::try_from(scores.len()).unwrap_or(u32::MAX);
    if last_key.iter().any(|&last| last < end - 1) {
        for (key, scores) in (first_key..).zip(scores.iter_mut()) {
            for (score, &last) in scores.iter_mut().zip(last_key) {
                *score = if key <= last { *score } else { f32::NEG_INFINITY };
            }
        }
    }
    let mut most = state.most;
    for scores in scores.iter() {
        // A NaN fails the comparison here, and poisons the sum below.
        most.iter_mut().zip(scores).for_each(|(most, &score)| *most = if score > *most { score } else { *most });
    }
    let mut sum = [0.0; NR];
    for scores in scores.iter_mut() {
        for ((score, most), sum) in scores.iter_mut().zip(&most).zip(&mut sum) {
            *score = exp(*score - most);
            *sum += *score;
        }
    }
    for lane in 0..NR {
        state.correction[lane] = exp(state.most[lane] - most[lane]);
        state.sum[lane] = state.sum[lane] * state.correction[lane] + sum[lane];
    }
    state.most = most;
}

/// Multiplies every row by `by`, lane by lane.
#[inline(always)]
pub(super) fn scale(rows: &mut [Lanes], by: &Lanes) {
    for row in rows {
        row.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
    }
}

/// `row[i] = row[i] * (by * columns[i])`.
#[inline(always)]
pub(super) fn scale_outer(row: &mut [f32], by: f32, columns: &[f32]) {
    row.iter_mut().zip(columns).for_each(|(x, column)| *x *= by * column);
}

/// `row[i] = row[i] + by * other[i]`, in one rounding.
#[inline(always)]
pub(super) fn add_scaled(row: &mut [f32], by: f32, other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(x, &other)| *x = by.mul_add(other, *x));
}

/// `e^x` for the two uses here: within 2 units in the last place from -87 up to 88, 0 below, infinite above.
///
/// `x = n ln 2 + r` with |r| at most `ln 2 / 2`, where six terms of the series leave 2e-8 (minimax coefficients of
/// Cephes' `expf`); then n is added to the exponent.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Below it, the result would not be a normal number.
    const LEAST: f32 = -87.0;
    /// Above it, the exponent would overflow.
    const MOST: f32 = 88.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let clamped = if x > LEAST { x } else { LEAST };
    let clamped = if clamped < MOST { clamped } else { MOST };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let mut series = 1.987_569_1e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        series = series.mul_add(r, coefficient);
    }
    let series = (series * r).mul_add(r, r) + 1.0;
    let scaled = f32::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < LEAST {
        0.0
    } else if x >= MOST {
        f32::INFINITY
    } else if x.is_nan() {
        x
    } else {
        scaled
    }
}
