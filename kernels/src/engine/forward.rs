//! The forward pass over the new tokens of one or several sequences, as numbered paragraphs.
//!
//! Several sequences share one pass over the weights: their rows stand one after the other, without padding. A row's
//! result is computed from its own sequence in an order that depends on nothing else, so it is the same, bit for bit,
//! alone or in company, with its prefix cached or not, on any number of threads.

use crate::bundle::{Config, Tensor};
use crate::engine::Threads;
use crate::engine::activations::Activations;
use crate::engine::aligned::Aligned;
use crate::engine::apart::LowRows;
use crate::engine::attention::{COLUMNS, Column, KeyHead, attend};
use crate::engine::isa::{Kernels, MR, NR};
use crate::engine::kv::{BLOCK, HeadLayout, KvSequence, Place, write_key, write_value};
use crate::engine::layer::{GATES, PackedLayer, Role};
use crate::engine::matrix::Matrix;
use crate::engine::rope::Rope;
use crate::network::{ForwardError, Stop};

/// The network without its layers.
pub(crate) struct Frame {
    pub(crate) config: Config,
    pub(crate) layout: HeadLayout,
    /// `[V, D]`, as and where it is stored: a pass reads a row a token.
    pub(crate) embed_tokens: Tensor,
    pub(crate) norm: Vec<f32>,
}

/// One sequence of a pass.
pub(crate) struct Sequence<'a> {
    /// The tokens that are not in `cache` yet: at least one.
    pub(crate) tokens: &'a [u32],
    /// The position of the first of them.
    pub(crate) start: usize,
    /// Keys and values of what comes before, and room for these.
    pub(crate) cache: KvSequence,
}

/// Memory that passes use again.
#[derive(Default)]
pub(crate) struct Workspace {
    activations: Activations,
    residual: Aligned<f32>,
    queries: Aligned<f32>,
    attended: Aligned<f32>,
    gated: Aligned<f32>,
    rope: Rope,
    low: LowRows,
}

impl Workspace {
    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        let buffers = [&self.residual, &self.queries, &self.attended, &self.gated];
        self.activations.bytes() + self.low.bytes() + buffers.map(Aligned::bytes).iter().sum::<usize>()
    }
}

/// Rows of one sequence, whose queries are asked for.
#[derive(Clone, Copy)]
struct Segment {
    sequence: usize,
    first_row: usize,
    rows: usize,
    first_position: usize,
}

/// What every layer of one pass shares.
pub(crate) struct Pass<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) pool: &'a Threads,
    pub(crate) stop: Stop<'a>,
    pub(crate) frame: &'a Frame,
    /// Sees the inputs of each matrix, before they are multiplied.
    pub(crate) observe: Option<Observer<'a>>,
}

/// See [`Pass::observe`].
pub(crate) type Observer<'a> = &'a (dyn Fn(Role, &Activations) + Sync);

/// The rows of a pass.
pub(crate) struct Rows {
    segments: Vec<Segment>,
    /// Of all rows, those included whose queries nobody asks for.
    places: Vec<Place>,
}

/// Bytes of packed rows that a thread multiplies with its panels at a time: a share of the second cache.
const ROW_BLOCK_BYTES: usize = 384 << 10;
/// Rows of such a block, at most: what its sums need then, `[128][128]` floats, also fits there.
const ROW_BLOCK_MOST: usize = 128;

fn row_blocks(rows: usize, depth: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let step = (ROW_BLOCK_BYTES / (2 * depth)).clamp(MR, ROW_BLOCK_MOST) / MR * MR;
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

impl Pass<'_> {
    /// What comes before the layers.
    pub(crate) fn begin(&self, sequences: &[Sequence<'_>], workspace: &mut Workspace) -> Rows {
        let Frame { config, embed_tokens, .. } = self.frame;
        let width = config.hidden_size;
        let panels = width.div_ceil(NR);

        // 1. Rows of all sequences one after the other; where the key and value of each go.
        let mut segments = Vec::new();
        let mut places = Vec::new();
        let mut own_blocks = 0;
        for (sequence, Sequence { tokens, start, cache }) in sequences.iter().enumerate() {
            segments.push(Segment { sequence, first_row: places.len(), rows: tokens.len(), first_position: *start });
            places.extend((*start..*start + tokens.len()).map(|position| Place {
                block: own_blocks + position / BLOCK - cache.shared.len(),
                slot: position % BLOCK,
                position,
            }));
            own_blocks += cache.own.len();
        }
        let rows = places.len();
        let last_position = places.iter().map(|place| place.position).max().unwrap_or(0);
        workspace.rope.extend(last_position + 1, config);

        // 2. The residual stream [D/NR][T][NR] begins as the embedding of each token.
        let residual = workspace.residual.reserve(panels * rows * NR);
        let tokens = sequences.iter().flat_map(|sequence| sequence.tokens);
        let mut embedding = vec![0.0; panels * NR];
        for (row, &token) in tokens.enumerate() {
            embed_tokens.read(token as usize, 0, &mut embedding[..width]);
            scatter(&embedding, residual, rows, row);
        }
        Rows { segments, places }
    }

    /// One layer, which adds to the residual stream. Of the last, only the last row of each sequence is asked for, and
    /// only that row is left.
    pub(crate) fn layer(
        &self,
        index: usize,
        layer: &PackedLayer,
        sequences: &mut [Sequence<'_>],
        Rows { segments, places }: &mut Rows,
        workspace: &mut Workspace,
    ) -> Result<(), ForwardError> {
        self.heads_of_layer(index, layer, sequences, workspace, places)?;
        if self.is_last(index) {
            let wanted: Vec<usize> = segments.iter().map(|segment| segment.first_row + segment.rows - 1).collect();
            keep_rows(&wanted, places.len(), &mut workspace.residual);
            for (row, segment) in segments.iter_mut().enumerate() {
                segment.first_position += segment.rows - 1;
                (segment.first_row, segment.rows) = (row, 1);
            }
            *places = wanted.into_iter().map(|row| places[row]).collect();
            self.queries_of_layer(layer, workspace, places)?;
        }
        self.attention(index, sequences, workspace, segments, places.len())?;
        self.mix(layer, workspace, places.len())
    }

    /// The final norm of each sequence's last row.
    pub(crate) fn finish(&self, sequences: usize, workspace: &Workspace) -> Vec<Vec<f32>> {
        let Frame { config, norm, .. } = self.frame;
        let hidden_of = |row| {
            let mut hidden = vec![0.0; config.hidden_size.next_multiple_of(NR)];
            gather(&workspace.residual, sequences, row, &mut hidden);
            hidden.truncate(config.hidden_size);
            (self.kernels.normalize)(&mut hidden, norm, config.rms_norm_eps);
            hidden
        };
        (0..sequences).map(hidden_of).collect()
    }

    fn is_last(&self, layer: usize) -> bool {
        layer + 1 == self.frame.layout.layers
    }

    fn observe(&self, role: Role, activations: &Activations) {
        if let Some(observe) = self.observe {
            observe(role, activations);
        }
    }

    fn stopped(&self) -> impl Fn() -> bool + Sync {
        let stop = self.stop;
        move || stop.requested()
    }

    fn finished(all: bool) -> Result<(), ForwardError> {
        if all { Ok(()) } else { Err(ForwardError::Stopped) }
    }

    /// Norm, then keys and values of every row, which go into the caches, and queries `[H][T][E]`, unless the layer is
    /// the last.
    fn heads_of_layer(
        &self,
        index: usize,
        layer: &PackedLayer,
        sequences: &mut [Sequence<'_>],
        workspace: &mut Workspace,
        places: &[Place],
    ) -> Result<(), ForwardError> {
        let Frame { config, layout, .. } = self.frame;
        let rows = places.len();
        self.pack_normalized(
            &layer.input_layernorm,
            &layer.qkv,
            &mut workspace.activations,
            &workspace.residual,
            rows,
        )?;
        self.observe(Role::Qkv, &workspace.activations);
        self.project_low(layer, &mut workspace.low, &workspace.residual, rows)?;
        let queries = layout.units(config.num_attention_heads);
        let units = layout.units(config.num_key_value_heads);

        let mut items = Vec::new();
        if !self.is_last(index) {
            let elements = layout.heads_per_unit * rows * layout.head_dim;
            let all = workspace.queries.reserve(queries * elements);
            items.extend(all.chunks_exact_mut(elements).map(HeadsOut::Queries));
        }
        // For each unit, its heads in every block that this pass writes.
        let mut keys: Vec<Vec<&mut [f32]>> = (0..units).map(|_| Vec::new()).collect();
        let mut values: Vec<Vec<&mut [f32]>> = (0..units).map(|_| Vec::new()).collect();
        for block in sequences.iter_mut().flat_map(|sequence| &mut sequence.cache.own) {
            let (block_keys, block_values) = block.layer_mut(layout, index);
            let per_unit = block_keys.chunks_exact_mut(layout.heads_per_unit * layout.key_elements());
            keys.iter_mut().zip(per_unit).for_each(|(unit, heads)| unit.push(heads));
            let per_unit = block_values.chunks_exact_mut(layout.heads_per_unit * layout.value_elements());
            values.iter_mut().zip(per_unit).for_each(|(unit, heads)| unit.push(heads));
        }
        let first_unit = if items.is_empty() { queries } else { 0 };
        items.extend(keys.into_iter().map(HeadsOut::Keys));
        items.extend(values.into_iter().map(HeadsOut::Values));
        let Workspace { activations, low, rope, .. } = workspace;
        self.project_heads(layer, [activations, &low.rows], rope, places, first_unit, items)
    }

    /// Norm and queries alone.
    fn queries_of_layer(
        &self,
        layer: &PackedLayer,
        workspace: &mut Workspace,
        places: &[Place],
    ) -> Result<(), ForwardError> {
        let Frame { config, layout, .. } = self.frame;
        let Workspace { activations, residual, queries, rope, low, .. } = workspace;
        self.pack_normalized(&layer.input_layernorm, &layer.qkv, activations, residual, places.len())?;
        self.project_low(layer, low, residual, places.len())?;
        let elements = layout.heads_per_unit * places.len() * layout.head_dim;
        let all = queries.reserve(layout.units(config.num_attention_heads) * elements);
        let items = all.chunks_exact_mut(elements).map(HeadsOut::Queries).collect();
        self.project_heads(layer, [activations, &low.rows], rope, places, 0, items)
    }

    /// Multiplies units of heads, from `first_unit` on; norm and rotation while each head is in the cache.
    fn project_heads(
        &self,
        layer: &PackedLayer,
        [activations, low]: [&Activations; 2],
        rope: &Rope,
        places: &[Place],
        first_unit: usize,
        items: Vec<HeadsOut<'_>>,
    ) -> Result<(), ForwardError> {
        let (kernels, layout, eps) = (self.kernels, &self.frame.layout, self.frame.config.rms_norm_eps);
        let (rows, head_dim) = (places.len(), layout.head_dim);
        let columns = layout.unit_columns();
        let panels = columns / NR;
        let all = self.pool.for_each((first_unit..).zip(items), &self.stopped(), |scratch, (unit, mut out)| {
            for block in row_blocks(rows, layer.qkv.depth) {
                let sums = scratch.sums.reserve(block.len().next_multiple_of(MR) * columns);
                let unit_panels = unit * panels..(unit + 1) * panels;
                layer.qkv.multiply(kernels, activations, block.clone(), unit_panels.clone(), sums);
                if let Some(adapter) = &layer.apart.qkv {
                    let extra = scratch.extra.reserve(block.len().next_multiple_of(MR) * columns);
                    adapter.b.multiply(kernels, low, block.clone(), unit_panels, extra);
                    sums.iter_mut().zip(extra.iter()).for_each(|(x, extra)| *x += extra);
                }
                for (row, heads) in block.zip(sums.chunks_exact_mut(columns)) {
                    let place = places[row];
                    for (head, x) in heads.chunks_exact_mut(head_dim).enumerate() {
                        match &mut out {
                            HeadsOut::Queries(queries) => {
                                (kernels.normalize)(x, &layer.q_norm, eps);
                                rope.turn(kernels, place.position, x);
                                queries[(head * rows + row) * head_dim..][..head_dim].copy_from_slice(x);
                            }
                            HeadsOut::Keys(blocks) => {
                                (kernels.normalize)(x, &layer.k_norm, eps);
                                rope.turn(kernels, place.position, x);
                                let size = layout.key_elements();
                                write_key(&mut blocks[place.block][head * size..(head + 1) * size], place.slot, x);
                            }
                            HeadsOut::Values(blocks) => {
                                let size = layout.value_elements();
                                write_value(&mut blocks[place.block][head * size..(head + 1) * size], place.slot, x);
                            }
                        }
                    }
                }
            }
        });
        Self::finished(all)
    }

    /// Attention of the segments' rows, `[G][T (H/G)][E]`.
    fn attention(
        &self,
        index: usize,
        sequences: &[Sequence<'_>],
        workspace: &mut Workspace,
        segments: &[Segment],
        rows: usize,
    ) -> Result<(), ForwardError> {
        let (kernels, layout) = (self.kernels, &self.frame.layout);
        let (head_dim, shared) = (layout.head_dim, layout.queries_per_key);
        let queries = &*workspace.queries;
        let per_head = rows * shared * head_dim;
        let attended = workspace.attended.reserve(layout.key_value_heads * per_head);

        // As many columns together as leave work for every thread; the sums of a column are the same in any company.
        let wide =
            layout.key_value_heads * segments.iter().map(|it| (it.rows * shared).div_ceil(COLUMNS)).sum::<usize>();
        let step = if wide < 2 * self.pool.threads() { NR } else { COLUMNS };
        let mut items = Vec::new();
        for (head, mut out) in attended.chunks_exact_mut(per_head).enumerate() {
            for segment in segments {
                let columns = segment.rows * shared;
                let (of_segment, rest) = out.split_at_mut(columns * head_dim);
                items.extend(
                    (0..)
                        .step_by(step)
                        .zip(of_segment.chunks_mut(step * head_dim))
                        .map(|(first, out)| (head, *segment, first..columns.min(first + step), out)),
                );
                out = rest;
            }
        }
        // Later queries see more keys: the longest work first, so that no thread is left with it at the end.
        items.sort_by_key(|(_, segment, columns, _)| std::cmp::Reverse(segment.first_position + columns.end / shared));
        let all = self.pool.for_each(items, &self.stopped(), |scratch, (head, segment, columns, out)| {
            let columns: Vec<Column<'_>> = columns
                .map(|column| {
                    let (row, query_head) = (column / shared, head * shared + column % shared);
                    let at = (query_head * rows + segment.first_row + row) * head_dim;
                    Column { query: &queries[at..at + head_dim], position: segment.first_position + row }
                })
                .collect();
            let keys = KeyHead { sequence: &sequences[segment.sequence].cache, layer: index, head };
            attend(kernels, layout, keys, &columns, &mut scratch.attention, out);
        });
        Self::finished(all)
    }

    /// What follows attention: its projection joins the residual stream; norm; SwiGLU joins it.
    fn mix(&self, layer: &PackedLayer, workspace: &mut Workspace, rows: usize) -> Result<(), ForwardError> {
        let kernels = self.kernels;
        let stop = self.stopped();
        let Workspace { activations, residual, attended, gated, low, .. } = workspace;

        // 1. residual += o(attended).
        let per_row = self.frame.layout.queries_per_key * self.frame.layout.head_dim;
        let attended = &**attended;
        let read = |row: usize, into: &mut [f32]| {
            for (into, head) in into.chunks_exact_mut(per_row).zip(attended.chunks_exact(rows * per_row)) {
                into.copy_from_slice(&head[row * per_row..][..per_row]);
            }
        };
        Self::finished(activations.pack(kernels, self.pool, &stop, &layer.o_proj, rows, read))?;
        self.observe(Role::OProj, activations);
        self.multiply_add(&layer.o_proj, activations, residual, rows)?;
        if let Some(adapter) = &layer.apart.o_proj {
            Self::finished(adapter.project(kernels, self.pool, &stop, low, rows, read))?;
            self.multiply_add(&adapter.b, &low.rows, residual, rows)?;
        }

        // 2. gated = silu(gate(x)) * up(x), [F/GATES][T][GATES].
        self.pack_normalized(&layer.post_attention_layernorm, &layer.gate_up, activations, residual, rows)?;
        self.observe(Role::GateUp, activations);
        let gated = gated.reserve(layer.gate_up.panels() * rows * GATES);
        let items = gated.chunks_exact_mut(rows * GATES).enumerate();
        Self::finished(self.pool.for_each(items, &stop, |scratch, (panel, out)| {
            for block in row_blocks(rows, layer.gate_up.depth) {
                let sums = scratch.sums.reserve(block.len().next_multiple_of(MR) * NR);
                layer.gate_up.multiply(kernels, activations, block.clone(), panel..panel + 1, sums);
                let out = &mut out[block.start * GATES..block.end * GATES];
                for (gate_up, out) in sums.as_chunks::<NR>().0.iter().zip(out.chunks_exact_mut(GATES)) {
                    (kernels.silu_mul)(gate_up, out);
                }
            }
        }))?;

        // 3. residual += down(gated).
        let gated = &*gated;
        Self::finished(activations.pack(kernels, self.pool, &stop, &layer.down_proj, rows, |row, into| {
            for (into, from) in into.chunks_exact_mut(GATES).zip(gated.chunks_exact(rows * GATES)) {
                into.copy_from_slice(&from[row * GATES..][..GATES]);
            }
        }))?;
        self.observe(Role::DownProj, activations);
        self.multiply_add(&layer.down_proj, activations, residual, rows)
    }

    /// What an adapter that hangs on queries, keys and values makes of the normalized rows.
    fn project_low(
        &self,
        layer: &PackedLayer,
        low: &mut LowRows,
        residual: &[f32],
        rows: usize,
    ) -> Result<(), ForwardError> {
        let Some(adapter) = &layer.apart.qkv else { return Ok(()) };
        let (kernels, eps) = (self.kernels, self.frame.config.rms_norm_eps);
        Self::finished(adapter.project(kernels, self.pool, &self.stopped(), low, rows, |row, into| {
            gather(residual, rows, row, into);
            (kernels.normalize)(into, &layer.input_layernorm, eps);
        }))
    }

    /// Packs the normalized rows of the residual stream.
    fn pack_normalized(
        &self,
        gain: &[f32],
        matrix: &Matrix,
        activations: &mut Activations,
        residual: &[f32],
        rows: usize,
    ) -> Result<(), ForwardError> {
        let (kernels, eps) = (self.kernels, self.frame.config.rms_norm_eps);
        Self::finished(activations.pack(kernels, self.pool, &self.stopped(), matrix, rows, |row, into| {
            gather(residual, rows, row, into);
            (kernels.normalize)(into, gain, eps);
        }))
    }

    /// `residual += A Wᵀ`.
    fn multiply_add(
        &self,
        matrix: &Matrix,
        activations: &Activations,
        residual: &mut [f32],
        rows: usize,
    ) -> Result<(), ForwardError> {
        let kernels = self.kernels;
        let all = self.pool.for_each(
            residual.chunks_exact_mut(rows * NR).enumerate(),
            &self.stopped(),
            |scratch, (panel, out)| {
                for block in row_blocks(rows, matrix.depth) {
                    let sums = scratch.sums.reserve(block.len().next_multiple_of(MR) * NR);
                    matrix.multiply(kernels, activations, block.clone(), panel..panel + 1, sums);
                    out[block.start * NR..block.end * NR].iter_mut().zip(sums.iter()).for_each(|(x, sum)| *x += sum);
                }
            },
        );
        Self::finished(all)
    }
}

/// What a unit of heads becomes.
enum HeadsOut<'a> {
    /// `[heads of the unit][T][E]`.
    Queries(&'a mut [f32]),
    /// The unit's heads in each block that the pass writes.
    Keys(Vec<&'a mut [f32]>),
    /// The same of the values.
    Values(Vec<&'a mut [f32]>),
}

/// Reads a row of `[D/NR][T][NR]`; `into` is as long as whole panels.
fn gather(residual: &[f32], rows: usize, row: usize, into: &mut [f32]) {
    for (into, panel) in into.chunks_exact_mut(NR).zip(residual.chunks_exact(rows * NR)) {
        into.copy_from_slice(&panel[row * NR..][..NR]);
    }
}

/// Writes a row of `[D/NR][T][NR]`.
fn scatter(from: &[f32], residual: &mut [f32], rows: usize, row: usize) {
    for (from, panel) in from.chunks_exact(NR).zip(residual.chunks_exact_mut(rows * NR)) {
        panel[row * NR..][..NR].copy_from_slice(from);
    }
}

/// Keeps some rows of `[D/NR][T][NR]`, in ascending order.
fn keep_rows(wanted: &[usize], rows: usize, residual: &mut Aligned<f32>) {
    let panels = residual.len() / (rows * NR);
    // A kept row never moves up, so nothing is written over before it was read.
    for panel in 0..panels {
        for (to, from) in wanted.iter().enumerate() {
            let from = (panel * rows + from) * NR;
            residual.copy_within(from..from + NR, (panel * wanted.len() + to) * NR);
        }
    }
    residual.reserve(panels * wanted.len() * NR);
}
