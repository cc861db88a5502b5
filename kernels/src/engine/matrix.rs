//! Weights, packed for the tile, and their product with packed activations.

use std::ops::Range;

use crate::engine::activations::{Activations, Packed};
use crate::engine::aligned::{Aligned, Stored};
use crate::engine::isa::{Kernels, MR, NR, Tile};
use crate::engine::{Scratch, Threads};

/// How the numbers of one matrix product are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats: exact weights, exact inputs.
    #[default]
    Float,
    /// Integers of so many bits, sign included, in 16-bit lanes: weights scaled by row, inputs by token.
    Integer {
        /// Bits of a weight.
        weight_bits: u8,
        /// Bits of an input.
        activation_bits: u8,
    },
}

impl Precision {
    /// What a matrix gets unless that is measured to be too coarse: 12-bit weights, 13-bit inputs. The 13th bit is free,
    /// since sums over 256 elements still fit in 32 bits: `2047 * 4095 * 256 < 2^31`.
    pub const STANDARD: Self = Self::Integer { weight_bits: 12, activation_bits: 13 };

    /// From the fastest to the most exact: each step halves the rounding of weights and inputs and quarters the length of
    /// an integer sum, down to 16 elements, where the conversions cost about what they save over floats.
    pub const LADDER: [Self; 4] = [
        Self::STANDARD,
        Self::Integer { weight_bits: 13, activation_bits: 14 },
        Self::Integer { weight_bits: 14, activation_bits: 15 },
        Self::Float,
    ];

    /// Two bytes that stand for it in digests and files: bits of a weight and of an input, 0 for floats.
    #[must_use]
    pub const fn code(self) -> [u8; 2] {
        match self {
            Self::Float => [0, 0],
            Self::Integer { weight_bits, activation_bits } => [weight_bits, activation_bits],
        }
    }

    /// The inverse of [`Precision::code`]; `None` for what is no precision.
    pub(crate) fn from_code(code: [u8; 2]) -> Option<Self> {
        Self::LADDER.into_iter().find(|precision| precision.code() == code)
    }

    /// Elements of K whose products always fit in a sum of 32 bits: `2^(w-1) * 2^(a-1) * length <= 2^31`, and neither
    /// factor reaches its power of two.
    const fn integer_sum(weight_bits: u8, activation_bits: u8) -> usize {
        1 << (33 - weight_bits - activation_bits)
    }
}

/// The greatest integer of so many bits, sign included.
pub(crate) const fn greatest(bits: u8) -> f32 {
    ((1 << (bits - 1)) - 1) as f32
}

/// Elements of K of one panel that stay in the first cache while the rows pass by: 16 KB of pairs, 32 KB of floats.
const K_BLOCK: usize = 256;

/// W `[N, K]`, transposed and cut into panels of [`NR`] columns: `[N/NR][K][NR]`, or `[N/NR][K/2][NR]` pairs.
pub(crate) struct Matrix {
    /// N, a multiple of [`NR`]; missing columns are zero.
    pub(crate) columns: usize,
    /// K, a multiple of [`NR`]; missing elements are zero.
    pub(crate) depth: usize,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Float(Stored<f32>),
    Integer {
        pairs: Stored<i32>,
        /// One a column: `weight = scale * integer`.
        scales: Stored<f32>,
        weight_bits: u8,
        activation_bits: u8,
    },
}

impl Matrix {
    /// No columns: what stands in for a matrix while it is packed anew.
    pub(crate) const EMPTY: Self = Self { columns: 0, depth: 0, body: Body::Float(Stored::Owned(Aligned::EMPTY)) };

    /// Packs a matrix panel by panel, on all threads: `fill` gets the number of a panel and the panel. The memory of
    /// `old` is taken where it fits: new memory must be cleared by the system, which takes as long as packing.
    pub(crate) fn pack(
        pool: &Threads,
        old: Option<Self>,
        columns: usize,
        depth: usize,
        precision: Precision,
        fill: impl Fn(&mut PackScratch, usize, PanelMut<'_>) + Sync,
    ) -> Self {
        let (columns, depth) = (columns.next_multiple_of(NR), depth.next_multiple_of(NR));
        let fill = |scratch: &mut Scratch, (index, panel)| fill(&mut scratch.pack, index, panel);
        let old = old.filter(|old| (old.columns, old.depth) == (columns, depth)).map(|old| old.body);
        let body = match precision {
            Precision::Float => {
                let mut elements = match old {
                    Some(Body::Float(Stored::Owned(elements))) => elements,
                    _ => Aligned::zeroed(columns * depth),
                };
                let panels = elements.chunks_exact_mut(depth * NR).map(PanelMut::Float);
                pool.for_each(panels.enumerate(), &|| false, fill);
                Body::Float(Stored::Owned(elements))
            }
            Precision::Integer { weight_bits, activation_bits } => {
                let (mut pairs, mut scales) = match old {
                    Some(Body::Integer { pairs: Stored::Owned(pairs), scales: Stored::Owned(scales), .. }) => {
                        (pairs, scales)
                    }
                    _ => (Aligned::zeroed(columns * depth / 2), Aligned::zeroed(columns)),
                };
                let panels = pairs.chunks_exact_mut(depth / 2 * NR).zip(scales.chunks_exact_mut(NR));
                let panels = panels.map(|(pairs, scales)| PanelMut::Integer { pairs, scales, weight_bits });
                pool.for_each(panels.enumerate(), &|| false, fill);
                let (pairs, scales) = (Stored::Owned(pairs), Stored::Owned(scales));
                Body::Integer { pairs, scales, weight_bits, activation_bits }
            }
        };
        Self { columns, depth, body }
    }

    /// The precision that it was packed with.
    pub(crate) fn precision(&self) -> Precision {
        match self.body {
            Body::Float(_) => Precision::Float,
            Body::Integer { weight_bits, activation_bits, .. } => Precision::Integer { weight_bits, activation_bits },
        }
    }

    /// Whether no weight was NaN or infinite.
    pub(crate) fn is_finite(&self) -> bool {
        match &self.body {
            Body::Float(elements) => elements.iter().all(|x| x.is_finite()),
            // Rounding a row that is not finite gives it a scale that is none.
            Body::Integer { scales, .. } => scales.iter().all(|x| x.is_finite()),
        }
    }

    /// The weights of one column, as what is multiplied stands for them.
    pub(crate) fn read_column(&self, column: usize, into: &mut [f32]) {
        let (panel, place) = (column / NR, column % NR);
        match &self.body {
            Body::Float(elements) => {
                let panel = &elements[panel * self.depth * NR..][..self.depth * NR];
                into.iter_mut().zip(panel.iter().skip(place).step_by(NR)).for_each(|(to, from)| *to = *from);
            }
            Body::Integer { pairs, scales, .. } => {
                let panel = &pairs[panel * self.depth / 2 * NR..][..self.depth / 2 * NR];
                let scale = scales[column];
                for (to, pair) in into.as_chunks_mut::<2>().0.iter_mut().zip(panel.iter().skip(place).step_by(NR)) {
                    let [a, b, c, d] = pair.to_le_bytes();
                    *to = [[a, b], [c, d]].map(|half| scale * f32::from(i16::from_le_bytes(half)));
                }
            }
        }
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.columns / NR
    }

    /// The same weights in another precision. Only a matrix of floats knows them.
    pub(crate) fn requantized(&self, kernels: &Kernels, pool: &Threads, precision: Precision) -> Self {
        let Body::Float(elements) = &self.body else { unreachable!("integers are made from floats alone") };
        let panels: Vec<&[f32]> = elements.chunks_exact(self.depth * NR).collect();
        Self::pack(pool, None, self.columns, self.depth, precision, |scratch, index, mut panel| {
            panel.fill(kernels, scratch, |place, into| {
                into.iter_mut().zip(panels[index].iter().skip(place).step_by(NR)).for_each(|(to, from)| *to = *from);
            });
        })
    }

    /// `out[row][column] = a[row] . W[column]` for some rows of A, from a multiple of [`MR`] on, and some panels.
    ///
    /// `out` is `[rows, panels * NR]` with the rows rounded up to [`MR`]. The sum of an element is over K in one order,
    /// whatever the rows and panels are.
    pub(crate) fn multiply(
        &self,
        kernels: &Kernels,
        a: &Activations,
        rows: Range<usize>,
        panels: Range<usize>,
        out: &mut [f32],
    ) {
        debug_assert!(rows.start.is_multiple_of(MR) && a.depth == self.depth);
        let stride = panels.len() * NR;
        let row_panels = rows.start / MR..rows.end.div_ceil(MR);
        for (index, panel) in panels.clone().enumerate() {
            for k_start in (0..self.depth).step_by(K_BLOCK) {
                let k_block = k_start..self.depth.min(k_start + K_BLOCK);
                for (row_panel, out) in row_panels.clone().zip(out.chunks_mut(MR * stride)) {
                    let out = &mut out[index * NR..];
                    self.multiply_tile(kernels, a, row_panel, panel, k_block.clone(), out, stride);
                }
            }
        }
        if let (Body::Integer { scales, .. }, Packed::Integer { scales: a_scales, .. }) = (&self.body, &a.packed) {
            let columns = &scales[panels.start * NR..panels.end * NR];
            for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
                (kernels.scale_outer)(out, a_scales[row], columns);
            }
        }
    }

    /// One tile, over one block of K.
    #[expect(clippy::too_many_arguments, reason = "one step of the loops above, which it shares its names with")]
    fn multiply_tile(
        &self,
        kernels: &Kernels,
        a: &Activations,
        row_panel: usize,
        panel: usize,
        k_block: Range<usize>,
        sums: &mut [f32],
        stride: usize,
    ) {
        let accumulate = k_block.start > 0;
        match (&self.body, &a.packed) {
            (Body::Float(weights), Packed::Float(a)) => {
                let part = |width| {
                    let start = self.depth * width;
                    move |panel| start * panel + k_block.start * width..start * panel + k_block.end * width
                };
                let (a, b) = (&a[part(MR)(row_panel)], &weights[part(NR)(panel)]);
                (kernels.dot_f32)(a, b, Tile { sums, stride, accumulate });
            }
            (Body::Integer { pairs, weight_bits, activation_bits, .. }, Packed::Integer { pairs: a, .. }) => {
                let step = Precision::integer_sum(*weight_bits, *activation_bits);
                let mut accumulate = accumulate;
                for k_start in k_block.clone().step_by(step) {
                    let (start, end) = (k_start / 2, k_block.end.min(k_start + step) / 2);
                    let part = |width: usize, panel: usize| {
                        let base = self.depth / 2 * panel;
                        (base + start) * width..(base + end) * width
                    };
                    let (a, b) = (&a[part(MR, row_panel)], &pairs[part(NR, panel)]);
                    (kernels.dot_i16)(a, b, Tile { sums, stride, accumulate });
                    accumulate = true;
                }
            }
            _ => unreachable!("activations are packed for the precision of the matrix"),
        }
    }
}

/// One panel of a matrix that is being packed: [`NR`] columns.
pub(crate) enum PanelMut<'a> {
    Float(&'a mut [f32]),
    Integer { pairs: &'a mut [i32], scales: &'a mut [f32], weight_bits: u8 },
}

impl PanelMut<'_> {
    /// Packs the columns that `read` fills: it gets a column's place in the panel and zeros for its K elements, and
    /// leaves them where the column does not exist.
    pub(crate) fn fill(
        &mut self,
        kernels: &Kernels,
        scratch: &mut PackScratch,
        mut read: impl FnMut(usize, &mut [f32]),
    ) {
        match self {
            Self::Float(elements) => {
                let depth = elements.len() / NR;
                let rows = scratch.row.reserve(NR * depth);
                for (column, row) in rows.chunks_exact_mut(depth).enumerate() {
                    row.fill(0.0);
                    read(column, row);
                }
                interleave::<_, NR>(rows, elements);
            }
            Self::Integer { pairs, scales, weight_bits } => {
                let depth = pairs.len() / NR * 2;
                let (row, integers) = (scratch.row.reserve(depth), scratch.pairs.reserve(NR * depth / 2));
                let columns = integers.chunks_exact_mut(depth / 2).zip(scales.iter_mut());
                for (column, (integers, scale)) in columns.enumerate() {
                    row.fill(0.0);
                    read(column, row);
                    *scale = (kernels.quantize)(row, greatest(*weight_bits), integers);
                }
                interleave::<_, NR>(integers, pairs);
            }
        }
    }
}

/// `[WIDTH][K]` to `[K][WIDTH]`: reads run along the rows, writes along the panel.
pub(crate) fn interleave<T: Copy, const WIDTH: usize>(rows: &[T], panel: &mut [T]) {
    let depth = rows.len() / WIDTH;
    let rows: [&[T]; WIDTH] = std::array::from_fn(|row| &rows[row * depth..][..depth]);
    for (k, out) in panel.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
        *out = rows.map(|row| row[k]);
    }
}

/// Rows on their way into a panel.
#[derive(Default)]
pub(crate) struct PackScratch {
    pub(crate) row: Aligned<f32>,
    pub(crate) pairs: Aligned<i32>,
}
