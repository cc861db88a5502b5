//! Causal grouped-query attention, one block of keys at a time with a running maximum.

use crate::cpu::gemm::column_blocks;
use crate::cpu::pool::Pool;
use crate::network::ForwardError;
use crate::sys::simd::{Isa, Lanes, TILE_COLUMNS, TILE_ROWS};

/// Keys that one step of the running softmax takes: a block of scores is at most 24 x 128 floats, 12 kB.
const BLOCK_KEYS: usize = 8 * TILE_COLUMNS;

/// Queries of one task.
const BLOCK_QUERIES: usize = 4 * TILE_ROWS;

/// The sizes of one attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    /// H.
    pub(crate) query_heads: usize,
    /// G, a divisor of H: query head h reads kv head `h / (H / G)`.
    pub(crate) key_value_heads: usize,
    /// E.
    pub(crate) head_dim: usize,
}

/// Keys and values of one layer, arranged for the tiles.
pub(crate) struct KeysValues {
    shape: HeadShape,
    keys: usize,
    /// `[G][ceil(T / 16)][E]` lanes: 16 neighboring keys a lane group; past T zeros.
    k: Vec<Lanes>,
    /// `[G][ceil(E / 16)][T]` lanes: 16 neighboring columns of the values; past E zeros.
    v: Vec<Lanes>,
}

impl KeysValues {
    /// Arranges k and v, each `[T, G E]` row-major.
    pub(crate) fn new(k: &[f32], v: &[f32], shape: HeadShape) -> Self {
        let HeadShape { key_value_heads, head_dim, .. } = shape;
        let width = key_value_heads * head_dim;
        let keys = k.len() / width;
        let key_panels = keys.div_ceil(TILE_COLUMNS);
        let value_panels = head_dim.div_ceil(TILE_COLUMNS);
        let zero = [0.0; TILE_COLUMNS];
        let mut packed_k = vec![zero; key_value_heads * key_panels * head_dim];
        let mut packed_v = vec![zero; key_value_heads * value_panels * keys];
        for (key, (k, v)) in k.chunks_exact(width).zip(v.chunks_exact(width)).enumerate() {
            for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
                let panel = (head * key_panels + key / TILE_COLUMNS) * head_dim;
                for (lanes, &element) in packed_k[panel..panel + head_dim].iter_mut().zip(k) {
                    lanes[key % TILE_COLUMNS] = element;
                }
                for (panel, part) in v.chunks(TILE_COLUMNS).enumerate() {
                    packed_v[(head * value_panels + panel) * keys + key][..part.len()].copy_from_slice(part);
                }
            }
        }
        Self { shape, keys, k: packed_k, v: packed_v }
    }

    /// The panel of 16 keys from `first` on, a multiple of 16: `[E]` lanes.
    fn key_panel(&self, head: usize, first: usize) -> &[Lanes] {
        let HeadShape { head_dim, .. } = self.shape;
        let panel = head * self.keys.div_ceil(TILE_COLUMNS) + first / TILE_COLUMNS;
        &self.k[panel * head_dim..][..head_dim]
    }

    /// 16 columns of the values of `keys`, from column `16 * panel` on: one lane group a key.
    fn value_panel(&self, head: usize, panel: usize, first: usize, count: usize) -> &[Lanes] {
        let panel = head * self.shape.head_dim.div_ceil(TILE_COLUMNS) + panel;
        &self.v[panel * self.keys + first..][..count]
    }
}

/// `out[t] = sum over keys s <= position of t of softmax(q[t] . k[s] / sqrt(E)) v[s]`, head by head.
///
/// q and out are `[queries, H E]`; the queries are the last of the positions that `past` holds. Keys are taken in
/// blocks whose borders are fixed, so a row depends on its own position alone: not on the keys after it, the queries
/// beside it, or the threads.
///
/// # Errors
/// [`ForwardError::Stopped`].
pub(crate) fn attention(
    isa: Isa,
    pool: &Pool<'_>,
    q: &[f32],
    past: &KeysValues,
    out: &mut [f32],
) -> Result<(), ForwardError> {
    let HeadShape { query_heads, key_value_heads, head_dim } = past.shape;
    let width = query_heads * head_dim;
    let queries = q.len() / width;
    let first_position = past.keys - queries;
    let mut tasks = Vec::new();
    for (block, out) in out.chunks_mut(BLOCK_QUERIES * width).enumerate() {
        for (first_column, out) in column_blocks(out, width, head_dim) {
            tasks.push((block * BLOCK_QUERIES, first_column, out));
        }
    }
    // The last block has the most keys: begun first, it does not finish last.
    tasks.reverse();
    pool.run(tasks, |(first_query, first_column, mut out)| {
        let rows = q.chunks_exact(width).skip(first_query);
        // Side by side: in place the rows are H E floats apart, often a multiple of a cache's period.
        let q: Vec<f32> = rows.take(out.len()).flat_map(|row| &row[first_column..][..head_dim]).copied().collect();
        let q: Vec<&[f32]> = q.chunks_exact(head_dim).collect();
        let head = first_column / head_dim / (query_heads / key_value_heads);
        attend(isa, &q, first_position + first_query, past, head, &mut out);
    })
}

/// One query head, some neighboring queries: q and out are rows of `[E]`, the first at position `first_position`.
fn attend(isa: Isa, q: &[&[f32]], first_position: usize, past: &KeysValues, head: usize, out: &mut [&mut [f32]]) {
    let head_dim = past.shape.head_dim;
    let scale = (head_dim as f32).sqrt().recip();
    let mut running = vec![Running { greatest: f32::NEG_INFINITY, total: 0.0 }; q.len()];
    for row in out.iter_mut() {
        row.fill(0.0);
    }
    let mut scores = vec![[0.0; BLOCK_KEYS]; q.len()];

    let end = first_position + q.len();
    for first_key in (0..end).step_by(BLOCK_KEYS) {
        let keys = BLOCK_KEYS.min(end - first_key);
        // 1. scores = q . k, 16 keys at a time; what lies past `keys` is not looked at.
        for offset in (0..keys).step_by(TILE_COLUMNS) {
            let panel = past.key_panel(head, first_key + offset);
            for (q, scores) in q.chunks(TILE_ROWS).zip(scores.chunks_mut(TILE_ROWS)) {
                let mut sums = [[0.0; TILE_COLUMNS]; TILE_ROWS];
                isa.tile(q, panel, &mut sums);
                for (scores, sums) in scores.iter_mut().zip(&sums) {
                    scores[offset..offset + TILE_COLUMNS].copy_from_slice(sums);
                }
            }
        }
        // 2. scores become exp(scores - greatest); what was summed under a smaller greatest shrinks.
        for (row, ((scores, running), out)) in scores.iter_mut().zip(&mut running).zip(out.iter_mut()).enumerate() {
            let visible = (first_position + row + 1).saturating_sub(first_key).min(keys);
            let shrink = running.take(&mut scores[..visible], scale);
            scores[visible..keys].fill(0.0); // keys after the query
            out.iter_mut().for_each(|out| *out *= shrink);
        }
        // 3. out += weights . v, 16 columns at a time.
        for panel in 0..head_dim.div_ceil(TILE_COLUMNS) {
            let values = past.value_panel(head, panel, first_key, keys);
            let columns = panel * TILE_COLUMNS..head_dim.min((panel + 1) * TILE_COLUMNS);
            for (scores, out) in scores.chunks(TILE_ROWS).zip(out.chunks_mut(TILE_ROWS)) {
                let mut rows = [&[][..]; TILE_ROWS];
                rows.iter_mut().zip(scores).for_each(|(row, scores)| *row = &scores[..keys]);
                let mut sums = [[0.0; TILE_COLUMNS]; TILE_ROWS];
                isa.tile(&rows[..scores.len()], values, &mut sums);
                for (out, sums) in out.iter_mut().zip(&sums) {
                    out[columns.clone()].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    }
    for (out, running) in out.iter_mut().zip(&running) {
        out.iter_mut().for_each(|out| *out /= running.total);
    }
}

/// The softmax of one row so far.
#[derive(Clone, Copy)]
struct Running {
    greatest: f32,
    total: f32,
}

impl Running {
    /// Turns dot products into weights, adds them to the total, and returns the factor for what came before.
    fn take(&mut self, scores: &mut [f32], scale: f32) -> f32 {
        if scores.is_empty() {
            return 1.0; // the whole block lies after this query
        }
        let greatest = scores.iter().fold(self.greatest, |greatest, score| greatest.max(score * scale));
        let shrink = (self.greatest - greatest).exp();
        let mut total = 0.0;
        for score in scores {
            *score = (*score * scale - greatest).exp();
            total += *score;
        }
        *self = Self { greatest, total: self.total * shrink + total };
        shrink
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::naive;
    use crate::network::Stop;
    use proptest::prelude::*;
    use std::num::NonZeroUsize;

    fn run(isa: Isa, threads: usize, q: &[f32], k: &[f32], v: &[f32], shape: HeadShape) -> Vec<f32> {
        let pool = Pool { threads: NonZeroUsize::new(threads).unwrap(), stop: Stop::never() };
        let mut out = vec![f32::NAN; q.len()];
        attention(isa, &pool, q, &KeysValues::new(k, v, shape), &mut out).unwrap();
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn agrees_with_the_formula(
            keys in prop_oneof![1..40_usize, 125..132_usize, 255..260_usize],
            queries in any::<prop::sample::Index>(), groups in 1..4_usize, shared in 1..4_usize,
            half in 1..13_usize, sharpness in prop::sample::select(vec![0.0_f32, 1.0, 30.0]),
            threads in 1..4_usize, seed in any::<u64>(),
        ) {
            let queries = 1 + queries.index(keys);
            let shape = HeadShape { query_heads: groups * shared, key_value_heads: groups, head_dim: 2 * half };
            let mut q = naive::numbers(seed, queries * shape.query_heads * shape.head_dim);
            for q in &mut q {
                *q *= sharpness;
            }
            let k = naive::numbers(seed ^ 1, keys * groups * shape.head_dim);
            let v = naive::numbers(seed ^ 2, keys * groups * shape.head_dim);
            let [wide_q, wide_k, wide_v] = [&q, &k, &v].map(|x| naive::widen(x));
            let expected = naive::attention(&wide_q, &wide_k, &wide_v, shape);
            for isa in [Isa::detect(), Isa::PORTABLE] {
                // A score is at most 30 sqrt(E) = 150 and off by E roundings of that; a weight is off by as much,
                // relative to itself, and an output is a mean of values up to 1.
                let found = run(isa, threads, &q, &k, &v, shape);
                let score_error = f64::from(sharpness.max(1.0)) * 2.0 * half as f64 * f64::from(f32::EPSILON);
                naive::assert_close(&found, &expected, 4.0 * score_error + 1e-6);
            }
        }

        /// A row does not see the keys after it, the queries beside it, or the threads: not by one bit.
        #[test]
        fn a_prefix_is_computed_as_if_alone(keys in 2..300_usize, cut in any::<prop::sample::Index>(), seed in any::<u64>()) {
            let shape = HeadShape { query_heads: 2, key_value_heads: 1, head_dim: 8 };
            let cut = 1 + cut.index(keys - 1);
            let q = naive::numbers(seed, keys * 16);
            let k = naive::numbers(seed ^ 1, keys * 8);
            let v = naive::numbers(seed ^ 2, keys * 8);
            let whole = run(Isa::detect(), 3, &q, &k, &v, shape);
            let prefix = run(Isa::detect(), 1, &q[..cut * 16], &k[..cut * 8], &v[..cut * 8], shape);
            prop_assert_eq!(&whole[..cut * 16], &prefix[..]);
            let last = run(Isa::detect(), 2, &q[(cut - 1) * 16..cut * 16], &k[..cut * 8], &v[..cut * 8], shape);
            prop_assert_eq!(&prefix[(cut - 1) * 16..], &last[..]);
        }
    }
}
