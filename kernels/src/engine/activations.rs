//! Inputs of a matrix product, packed for the tile: normalized, rounded and laid out in one pass over each row.

use crate::engine::Threads;
use crate::engine::aligned::Aligned;
use crate::engine::isa::{Kernels, MR};
use crate::engine::matrix::{Matrix, Precision, greatest, interleave};

/// A `[T, K]`, cut into panels of [`MR`] rows: `[T/MR][K][MR]`, or `[T/MR][K/2][MR]` pairs. Rows that fill up the last
/// panel are zero.
#[derive(Clone, Default)]
pub(crate) struct Activations {
    /// T.
    pub(crate) rows: usize,
    /// K, as the matrix has it.
    pub(crate) depth: usize,
    pub(crate) packed: Packed,
}

#[derive(Clone)]
pub(crate) enum Packed {
    Float(Aligned<f32>),
    Integer {
        pairs: Aligned<i32>,
        /// One a row: `input = scale * integer`.
        scales: Aligned<f32>,
    },
}

impl Default for Packed {
    fn default() -> Self {
        Self::Float(Aligned::default())
    }
}

enum PanelMut<'a> {
    Float(&'a mut [f32]),
    Integer(&'a mut [i32], &'a mut [f32]),
}

impl Activations {
    /// Packs `rows` rows for a product with `matrix`; `read` gets a row's number and zeros to write its elements over.
    ///
    /// Returns whether it came to its end before `stop`.
    pub(crate) fn pack(
        &mut self,
        kernels: &Kernels,
        pool: &Threads,
        stop: &(dyn Fn() -> bool + Sync),
        matrix: &Matrix,
        rows: usize,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> bool {
        let depth = matrix.depth;
        let panels = rows.div_ceil(MR);
        (self.rows, self.depth) = (rows, depth);
        let (items, most): (Vec<_>, f32) = match matrix.precision() {
            Precision::Float => {
                if !matches!(self.packed, Packed::Float(_)) {
                    self.packed = Packed::Float(Aligned::default());
                }
                let Packed::Float(elements) = &mut self.packed else { unreachable!("set above") };
                let panels = elements.reserve(panels * depth * MR).chunks_exact_mut(depth * MR);
                (panels.map(PanelMut::Float).enumerate().collect(), 0.0)
            }
            Precision::Integer { activation_bits, .. } => {
                if !matches!(self.packed, Packed::Integer { .. }) {
                    self.packed = Packed::Integer { pairs: Aligned::default(), scales: Aligned::default() };
                }
                let Packed::Integer { pairs, scales } = &mut self.packed else { unreachable!("set above") };
                let scales = scales.reserve(panels * MR).chunks_exact_mut(MR);
                let panels = pairs.reserve(panels * depth / 2 * MR).chunks_exact_mut(depth / 2 * MR).zip(scales);
                (
                    panels.map(|(pairs, scales)| PanelMut::Integer(pairs, scales)).enumerate().collect(),
                    greatest(activation_bits),
                )
            }
        };
        pool.for_each(items, stop, |scratch, (panel, item)| {
            let scratch = &mut scratch.pack;
            let first = panel * MR;
            let read = |row: usize, into: &mut [f32]| {
                into.fill(0.0);
                if row < rows {
                    read(row, into);
                }
            };
            match item {
                PanelMut::Float(elements) => {
                    let all = scratch.row.reserve(MR * depth);
                    all.chunks_exact_mut(depth).zip(first..).for_each(|(into, row)| read(row, into));
                    interleave::<_, MR>(all, elements);
                }
                PanelMut::Integer(pairs, scales) => {
                    let all = scratch.pairs.reserve(MR * depth / 2);
                    let row_buffer = scratch.row.reserve(depth);
                    for ((into, scale), row) in all.chunks_exact_mut(depth / 2).zip(scales).zip(first..) {
                        read(row, row_buffer);
                        *scale = (kernels.quantize)(row_buffer, most, into);
                    }
                    interleave::<_, MR>(all, pairs);
                }
            }
        })
    }
}

impl Activations {
    /// Bytes that they hold.
    pub(crate) fn bytes(&self) -> usize {
        match &self.packed {
            Packed::Float(elements) => elements.bytes(),
            Packed::Integer { pairs, scales } => pairs.bytes() + scales.bytes(),
        }
    }

    /// Reads a row back, as floats; only floats can be.
    pub(crate) fn read(&self, row: usize, into: &mut [f32]) {
        let Packed::Float(elements) = &self.packed else { unreachable!("integers are not read back") };
        let panel = &elements[row / MR * MR * self.depth..][..MR * self.depth];
        into.iter_mut().zip(panel.iter().skip(row % MR).step_by(MR)).for_each(|(to, from)| *to = *from);
    }
}
