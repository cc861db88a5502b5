//! Causal attention of a group of queries over the blocks of their sequence, with an online softmax.
//!
//! Both products of a block are transposed, so that queries are the columns of the tile: scores are `K Qᵀ` `[keys, NR]`
//! and outputs `Vᵀ P` `[E, NR]`. Then every step of the softmax works on whole vectors of queries, and the weights are
//! at once the operand of the second product. Keys and values lie in the cache as its first operand, so neither is ever
//! copied. The queries of all heads that share a key head are stacked: `NR` columns are `NR / (H/G)` positions.
//!
//! A query's sums run over blocks of its sequence from the first on, whatever other queries share its group and
//! wherever the new tokens begin: a key after the query weighs exactly nothing.

use crate::engine::aligned::Aligned;
use crate::engine::isa::{Kernels, Lanes, MR, NR, Softmax, Tile};
use crate::engine::kv::{BLOCK, HeadLayout, KvSequence};

/// Working space of one group.
#[derive(Default)]
pub(crate) struct AttentionScratch {
    /// `[E][NR]`.
    queries: Aligned<f32>,
    /// `[BLOCK][NR]`.
    scores: Aligned<f32>,
    /// `[E, rounded up to MR][NR]`.
    outputs: Aligned<f32>,
}

/// A column of a group: one query head of one position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    /// `[E]`, already multiplied with `1 / sqrt(E)`.
    pub(crate) query: &'a [f32],
    /// The position of its token, which is the last key that it sees.
    pub(crate) position: usize,
}

/// Attends with 1 to [`NR`] columns of one key head; `out` is `[columns, E]`.
pub(crate) fn attend(
    kernels: &Kernels,
    layout: &HeadLayout,
    cache: (&KvSequence, usize, usize),
    columns: &[Column<'_>],
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    let (sequence, layer, head) = cache;
    let head_dim = layout.head_dim;
    let queries = scratch.queries.reserve(head_dim * NR);
    let scores = scratch.scores.reserve(BLOCK * NR);
    let outputs = scratch.outputs.reserve(layout.value_rows * NR);

    // 1. Queries side by side. A column without a query is zero; it sees what the last one sees.
    queries.fill(0.0);
    for (lane, column) in columns.iter().enumerate() {
        queries.as_chunks_mut::<NR>().0.iter_mut().zip(column.query).for_each(|(row, &x)| row[lane] = x);
    }
    let position = |lane: usize| columns[lane.min(columns.len() - 1)].position;
    let last_key: [u32; NR] = std::array::from_fn(|lane| u32::try_from(position(lane)).unwrap_or(u32::MAX));
    let end = columns.iter().map(|column| column.position + 1).max().unwrap_or(0);

    // 2. Block by block: scores, weights, weighted values.
    let mut softmax = Softmax::START;
    for (index, first_key) in (0..end).step_by(BLOCK).enumerate() {
        let (keys, values) = sequence.block(index).head(layout, layer, head);
        let count = (end - first_key).min(BLOCK).next_multiple_of(MR);
        let scores = &mut scores[..count * NR];
        for (key, sums) in keys.chunks_exact(head_dim * MR).zip(scores.chunks_exact_mut(MR * NR)) {
            (kernels.dot_f32)(key, queries, Tile { sums, stride: NR, accumulate: false });
        }
        let rows: &mut [Lanes] = scores.as_chunks_mut::<NR>().0;
        (kernels.softmax_block)(rows, u32::try_from(first_key).unwrap_or(u32::MAX), &last_key, &mut softmax);
        if index > 0 {
            (kernels.scale)(outputs.as_chunks_mut::<NR>().0, &softmax.correction);
        }
        for (value, sums) in values.chunks_exact(BLOCK * MR).zip(outputs.chunks_exact_mut(MR * NR)) {
            (kernels.dot_f32)(&value[..count * MR], scores, Tile { sums, stride: NR, accumulate: index > 0 });
        }
    }

    // 3. Rows again, divided by the sum of the weights.
    for (lane, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let inverse = 1.0 / softmax.sum[lane];
        out.iter_mut().zip(outputs.as_chunks::<NR>().0).for_each(|(out, row)| *out = row[lane] * inverse);
    }
}
