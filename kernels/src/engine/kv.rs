//! Keys and values, in blocks of 64 tokens, laid out as the operands of attention.

use std::sync::Arc;

use crate::bundle::Config;
use crate::engine::aligned::Aligned;
use crate::engine::isa::{MR, NR};

/// Tokens of a block: what the cache shares and what attention takes at once. Blocks begin at its multiples.
pub(crate) const BLOCK: usize = 64;

/// How heads are grouped and padded: everything that follows from the configuration and the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadLayout {
    /// E.
    pub(crate) head_dim: usize,
    /// E, rounded up to the rows of a tile.
    pub(crate) value_rows: usize,
    /// Heads that together fill whole panels: the least common multiple of E and [`NR`], in heads.
    pub(crate) heads_per_unit: usize,
    /// G.
    pub(crate) key_value_heads: usize,
    /// H / G.
    pub(crate) queries_per_key: usize,
    /// Number of layers.
    pub(crate) layers: usize,
}

impl HeadLayout {
    pub(crate) fn new(config: &Config) -> Self {
        let head_dim = config.head_dim;
        // NR is a power of two, so the common divisor is the lowest bit of E, at most NR.
        let common = NR.min(1 << head_dim.trailing_zeros());
        Self {
            head_dim,
            value_rows: head_dim.next_multiple_of(MR),
            heads_per_unit: NR / common,
            key_value_heads: config.num_key_value_heads,
            queries_per_key: config.num_attention_heads / config.num_key_value_heads,
            layers: config.num_hidden_layers,
        }
    }

    /// Columns of a unit: whole heads, and whole panels.
    pub(crate) const fn unit_columns(&self) -> usize {
        self.heads_per_unit * self.head_dim
    }

    /// Units that hold so many heads.
    pub(crate) const fn units(&self, heads: usize) -> usize {
        heads.div_ceil(self.heads_per_unit)
    }

    const fn padded_heads(&self) -> usize {
        self.units(self.key_value_heads) * self.heads_per_unit
    }

    /// Elements of the keys of one head in one block: `[BLOCK/MR][E][MR]`.
    pub(crate) const fn key_elements(&self) -> usize {
        BLOCK * self.head_dim
    }

    /// Elements of the values of one head in one block: `[E/MR][BLOCK][MR]`.
    pub(crate) const fn value_elements(&self) -> usize {
        BLOCK * self.value_rows
    }

    const fn layer_elements(&self) -> usize {
        self.padded_heads() * (self.key_elements() + self.value_elements())
    }

    /// Bytes of a block.
    pub(crate) const fn block_bytes(&self) -> usize {
        self.layers * self.layer_elements() * size_of::<f32>()
    }
}

/// Keys and values of [`BLOCK`] consecutive tokens in all layers: `[layers]([heads][keys], [heads][values])`.
#[derive(Clone)]
pub(crate) struct KvBlock {
    elements: Aligned<f32>,
}

/// Where a token's key and value go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the blocks that a pass writes.
    pub(crate) block: usize,
    /// Which token of the block, below [`BLOCK`].
    pub(crate) slot: usize,
    /// The position in its sequence.
    pub(crate) position: usize,
}

impl KvBlock {
    /// All zero: attention multiplies what was never written with a weight of zero, so it must be a number.
    pub(crate) fn zeroed(layout: &HeadLayout) -> Self {
        Self { elements: Aligned::zeroed(layout.block_bytes() / size_of::<f32>()) }
    }

    /// The keys and the values of a layer, to write: `[heads][keys]` and `[heads][values]`.
    pub(crate) fn layer_mut(&mut self, layout: &HeadLayout, layer: usize) -> (&mut [f32], &mut [f32]) {
        let size = layout.layer_elements();
        self.elements[layer * size..(layer + 1) * size].split_at_mut(layout.padded_heads() * layout.key_elements())
    }

    /// The keys and the values of one head in a layer.
    pub(crate) fn head(&self, layout: &HeadLayout, layer: usize, head: usize) -> (&[f32], &[f32]) {
        let size = layout.layer_elements();
        let layer = &self.elements[layer * size..(layer + 1) * size];
        let (keys, values) = layer.split_at(layout.padded_heads() * layout.key_elements());
        let (key, value) = (layout.key_elements(), layout.value_elements());
        (&keys[head * key..(head + 1) * key], &values[head * value..(head + 1) * value])
    }
}

/// Writes the key of one token into the keys of its head: `[BLOCK/MR][E][MR]`.
pub(crate) fn write_key(keys: &mut [f32], slot: usize, key: &[f32]) {
    let panel = &mut keys[slot / MR * MR * key.len()..][..MR * key.len()];
    panel.as_chunks_mut::<MR>().0.iter_mut().zip(key).for_each(|(slots, &x)| slots[slot % MR] = x);
}

/// Writes the value of one token into the values of its head: `[E/MR][BLOCK][MR]`.
pub(crate) fn write_value(values: &mut [f32], slot: usize, value: &[f32]) {
    for (panel, value) in values.as_chunks_mut::<{ BLOCK * MR }>().0.iter_mut().zip(value.chunks(MR)) {
        panel[slot * MR..][..value.len()].copy_from_slice(value);
    }
}

/// The keys and values of one sequence: blocks shared with others, then blocks of its own.
pub(crate) struct KvSequence {
    pub(crate) shared: Vec<Arc<KvBlock>>,
    pub(crate) own: Vec<KvBlock>,
}

impl KvSequence {
    /// The block that holds tokens `BLOCK * index` and on.
    pub(crate) fn block(&self, index: usize) -> &KvBlock {
        match index.checked_sub(self.shared.len()) {
            None => &self.shared[index],
            Some(index) => &self.own[index],
        }
    }
}
