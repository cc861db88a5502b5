//! An adapter kept beside the weights: `y = W x + scale B (A x)`, both of its products in floats.
//!
//! The A of queries, keys and values stand one above the other and share one product; their B stand on the diagonal of
//! one matrix whose columns are those of the packed projection, so that its product is added tile by tile. A pass does
//! about a tenth more work, and the adapter is changed without touching a weight.

use crate::bundle::{BundleError, Config, Layer, Lora};
use crate::engine::Threads;
use crate::engine::activations::Activations;
use crate::engine::aligned::Aligned;
use crate::engine::isa::{Kernels, MR, NR};
use crate::engine::kv::HeadLayout;
use crate::engine::layer::{MatrixShape, shapes};
use crate::engine::matrix::{Matrix, Precision};

/// What hangs on the projections of one layer.
#[derive(Default)]
pub(crate) struct ApartLayer {
    pub(crate) qkv: Option<LowRank>,
    pub(crate) o_proj: Option<LowRank>,
}

/// `B A`, the scale in B.
pub(crate) struct LowRank {
    /// `[R, in]`, R being the ranks of all projections that share it.
    a: Matrix,
    /// `[out, R]`.
    pub(crate) b: Matrix,
}

/// Memory that passes use again.
#[derive(Default)]
pub(crate) struct LowRows {
    inputs: Activations,
    sums: Aligned<f32>,
    /// `A x` of every row, packed for the product with B.
    pub(crate) rows: Activations,
}

impl LowRows {
    pub(crate) fn bytes(&self) -> usize {
        self.inputs.bytes() + self.sums.bytes() + self.rows.bytes()
    }
}

/// Takes the adapter off a bundle's projections, after a look at each of its numbers: q, k, v, o of each layer.
///
/// # Errors
/// [`BundleError::NotFinite`] names the first that is NaN or infinite.
pub(crate) fn detach(layers: &mut [Layer]) -> Result<Vec<[Option<Lora>; 4]>, BundleError> {
    let all: Vec<_> =
        layers.iter_mut().map(|layer| layer.projections_mut().map(|(_, projection)| projection.lora.take())).collect();
    for lora in all.iter().flatten().flatten() {
        lora.a.check_finite()?;
        lora.b.check_finite()?;
    }
    Ok(all)
}

impl ApartLayer {
    /// Packs what was detached from one layer.
    pub(crate) fn pack(kernels: &Kernels, pool: &Threads, config: &Config, lora: &[Option<Lora>; 4]) -> Self {
        let layout = HeadLayout::new(config);
        let [qkv, o, ..] = shapes(config);
        let section = |heads| layout.units(heads) * layout.unit_columns();
        let (queries, keys) = (section(config.num_attention_heads), section(config.num_key_value_heads));
        let [q, k, v, o_lora] = lora.each_ref().map(Option::as_ref);
        Self {
            qkv: LowRank::pack(kernels, pool, qkv, &[(q, 0), (k, queries), (v, queries + keys)]),
            o_proj: LowRank::pack(kernels, pool, o, &[(o_lora, 0)]),
        }
    }
}

impl LowRank {
    /// Packs the adapters of projections that share one matrix, each with the column that its first row stands in.
    fn pack(
        kernels: &Kernels,
        pool: &Threads,
        shape: MatrixShape,
        projections: &[(Option<&Lora>, usize)],
    ) -> Option<Self> {
        let mut rank = 0;
        let mut placed = Vec::new();
        for &(lora, column) in projections {
            if let Some(lora) = lora {
                placed.push((lora, column, rank));
                rank += lora.a.rows;
            }
        }
        if placed.is_empty() {
            return None;
        }
        let matrix = |columns, depth, read: &(dyn Fn(usize, &mut [f32]) + Sync)| {
            Matrix::pack(pool, None, columns, depth, Precision::Float, |scratch, index, mut panel| {
                panel.fill(kernels, scratch, |place, into| read(index * NR + place, &mut into[..depth]));
            })
        };
        let a = matrix(rank, shape.depth, &|column, into| {
            let of = placed.iter().rev().find(|(_, _, first)| *first <= column);
            if let Some((lora, _, first)) = of.filter(|(lora, _, first)| column - first < lora.a.rows) {
                lora.a.read(column - first, 0, into);
            }
        });
        let b = matrix(shape.columns, rank, &|column, into| {
            for (lora, first_column, first) in &placed {
                let Some(row) = column.checked_sub(*first_column).filter(|&row| row < lora.b.rows) else { continue };
                let into = &mut into[*first..first + lora.a.rows];
                lora.b.read(row, 0, into);
                for x in into {
                    *x *= lora.scale;
                }
            }
        });
        Some(Self { a, b })
    }

    /// Computes `A x` of every row; `read` gives a row of x. Returns whether it came to its end before `stop`.
    pub(crate) fn project(
        &self,
        kernels: &Kernels,
        pool: &Threads,
        stop: &(dyn Fn() -> bool + Sync),
        low: &mut LowRows,
        rows: usize,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> bool {
        let LowRows { inputs, sums, rows: packed } = low;
        let panel_size = rows.next_multiple_of(MR) * NR;
        let sums = sums.reserve(self.a.panels() * panel_size);
        inputs.pack(kernels, pool, stop, &self.a, rows, read)
            && pool.for_each(sums.chunks_exact_mut(panel_size).enumerate(), stop, |_, (panel, out)| {
                self.a.multiply(kernels, inputs, 0..rows, panel..panel + 1, out);
            })
            && packed.pack(kernels, pool, stop, &self.b, rows, |row, into| {
                for (into, panel) in into.chunks_exact_mut(NR).zip(sums.chunks_exact(panel_size)) {
                    into.copy_from_slice(&panel[row * NR..][..NR]);
                }
            })
    }
}
