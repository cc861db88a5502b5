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

/// Groups of [`NR`] columns that pass over a block together: a block of keys and values, 64 KB at the full shape, is then
/// read from memory once for 128 columns, and their queries and outputs stay in the second cache beside it.
const GROUPS: usize = 4;

/// Columns that one call takes, at most.
pub(crate) const COLUMNS: usize = GROUPS * NR;

/// Floats of a cache line.
const LINE: usize = 16;

/// Working space of some groups.
#[derive(Default)]
pub(crate) struct AttentionScratch {
    /// `[groups][E][NR]`.
    queries: Aligned<f32>,
    /// `[BLOCK][NR]`.
    scores: Aligned<f32>,
    /// `[groups][E, rounded up to MR][NR]`.
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

/// The keys and values of one head in one layer of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct KeyHead<'a> {
    pub(crate) sequence: &'a KvSequence,
    pub(crate) layer: usize,
    pub(crate) head: usize,
}

/// What a group of columns knows.
struct Group {
    last_key: [u32; NR],
    /// Keys that some column of the group sees.
    end: usize,
    softmax: Softmax,
}

/// Attends with 1 to [`COLUMNS`] columns of one key head; `out` is `[columns, E]`.
pub(crate) fn attend(
    kernels: &Kernels,
    layout: &HeadLayout,
    keys_of: KeyHead<'_>,
    columns: &[Column<'_>],
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    let head_dim = layout.head_dim;
    let (query_size, output_size) = (head_dim * NR, layout.value_rows * NR);
    let groups = columns.len().div_ceil(NR);
    let queries = scratch.queries.reserve(groups * query_size);
    let scores = scratch.scores.reserve(BLOCK * NR);
    let outputs = scratch.outputs.reserve(groups * output_size);

    // 1. Queries side by side. A column without a query is zero; it sees what the last one sees.
    queries.fill(0.0);
    let begin_group = |(columns, queries): (&[Column<'_>], &mut [f32])| {
        for (lane, column) in columns.iter().enumerate() {
            queries.as_chunks_mut::<NR>().0.iter_mut().zip(column.query).for_each(|(row, &x)| row[lane] = x);
        }
        let position = |lane: usize| columns[lane.min(columns.len() - 1)].position;
        let last_key = std::array::from_fn(|lane| u32::try_from(position(lane)).unwrap_or(u32::MAX));
        let end = columns.iter().map(|column| column.position + 1).max().unwrap_or(0);
        Group { last_key, end, softmax: Softmax::START }
    };
    let mut states: Vec<Group> =
        columns.chunks(NR).zip(queries.chunks_exact_mut(query_size)).map(begin_group).collect();
    let end = states.iter().map(|group| group.end).max().unwrap_or(0);

    // 2. Block by block, group by group: scores, weights, weighted values.
    for (index, first_key) in (0..end).step_by(BLOCK).enumerate() {
        let (keys, values) = keys_of.sequence.block(index).head(layout, keys_of.layer, keys_of.head);
        // The next block comes from memory while this one is multiplied: without being asked for, its first reader waits
        // for it a third of the time. A part with each tile, since only so many lines can be under way.
        let ahead = (first_key + BLOCK < end)
            .then(|| keys_of.sequence.block(index + 1).head(layout, keys_of.layer, keys_of.head))
            .map_or([&[][..], &[][..]], |(keys, values)| [keys, values]);
        let tiles = states.len() * (BLOCK / MR + layout.value_rows / MR);
        let part = ((ahead[0].len() + ahead[1].len()) / tiles).next_multiple_of(LINE).max(LINE);
        let mut ahead = ahead.into_iter().flat_map(|it| it.chunks(part));
        let groups = states.iter_mut().zip(queries.chunks_exact(query_size)).zip(outputs.chunks_exact_mut(output_size));
        for ((group, queries), outputs) in groups.filter(|((group, _), _)| group.end > first_key) {
            let count = (group.end - first_key).min(BLOCK).next_multiple_of(MR);
            let scores = &mut scores[..count * NR];
            for (key, sums) in keys.chunks_exact(head_dim * MR).zip(scores.chunks_exact_mut(MR * NR)) {
                ahead.next().into_iter().for_each(kernels.prefetch);
                (kernels.dot_f32)(key, queries, Tile { sums, stride: NR, accumulate: false });
            }
            let rows: &mut [Lanes] = scores.as_chunks_mut::<NR>().0;
            let first = u32::try_from(first_key).unwrap_or(u32::MAX);
            (kernels.softmax_block)(rows, first, &group.last_key, &mut group.softmax);
            // Most blocks hold no new maximum for anybody; to multiply with 1 changes nothing.
            #[expect(clippy::float_cmp, reason = "exactly 1, or the product is another")]
            let is_corrected = group.softmax.correction.iter().any(|&by| by != 1.0);
            if index > 0 && is_corrected {
                (kernels.scale)(outputs.as_chunks_mut::<NR>().0, &group.softmax.correction);
            }
            for (value, sums) in values.chunks_exact(BLOCK * MR).zip(outputs.chunks_exact_mut(MR * NR)) {
                ahead.next().into_iter().for_each(kernels.prefetch);
                (kernels.dot_f32)(&value[..count * MR], scores, Tile { sums, stride: NR, accumulate: index > 0 });
            }
        }
    }

    // 3. Rows again, divided by the sum of the weights.
    let groups = out.chunks_mut(NR * head_dim).zip(outputs.chunks_exact(output_size)).zip(&states);
    for ((out, outputs), group) in groups {
        for (lane, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let inverse = 1.0 / group.softmax.sum[lane];
            out.iter_mut().zip(outputs.as_chunks::<NR>().0).for_each(|(out, row)| *out = row[lane] * inverse);
        }
    }
}
