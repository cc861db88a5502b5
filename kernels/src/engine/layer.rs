//! The weights of a network as the passes want them: packed, fused, and with the adapter in them.

use crate::bundle::{Config, Layer, Projection, Tensor};
use crate::engine::Threads;
use crate::engine::apart::ApartLayer;
use crate::engine::isa::{Kernels, NR};
use crate::engine::kv::HeadLayout;
use crate::engine::matrix::{Matrix, Precision};

/// Columns of the feed-forward block in one panel of `gate_up`: half gate, half up, so that the epilogue of a tile has
/// both.
pub(crate) const GATES: usize = NR / 2;

/// One layer, packed.
pub(crate) struct PackedLayer {
    pub(crate) input_layernorm: Vec<f32>,
    /// Queries, keys and values: units of whole heads (see [`HeadLayout`]), three sections.
    pub(crate) qkv: Matrix,
    /// Already multiplied with `1 / sqrt(E)`, the scale of the scores.
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
    pub(crate) o_proj: Matrix,
    pub(crate) post_attention_layernorm: Vec<f32>,
    /// Panels of [`GATES`] gate columns and the same of up.
    pub(crate) gate_up: Matrix,
    pub(crate) down_proj: Matrix,
    /// What is not folded into them.
    pub(crate) apart: ApartLayer,
}

/// One of the four matrices of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Queries, keys and values.
    Qkv,
    /// The output projection of attention.
    OProj,
    /// Gate and up.
    GateUp,
    /// Down.
    DownProj,
}

impl Role {
    /// All four, in the order in which a pass meets them.
    pub const ALL: [Self; 4] = [Self::Qkv, Self::OProj, Self::GateUp, Self::DownProj];
}

/// The precision of each matrix of a layer, by [`Role`].
pub type LayerPrecision = [Precision; Role::ALL.len()];

impl PackedLayer {
    /// One of its matrices.
    pub(crate) fn matrix(&self, role: Role) -> &Matrix {
        match role {
            Role::Qkv => &self.qkv,
            Role::OProj => &self.o_proj,
            Role::GateUp => &self.gate_up,
            Role::DownProj => &self.down_proj,
        }
    }

    /// The same, to be replaced.
    pub(crate) fn matrix_mut(&mut self, role: Role) -> &mut Matrix {
        match role {
            Role::Qkv => &mut self.qkv,
            Role::OProj => &mut self.o_proj,
            Role::GateUp => &mut self.gate_up,
            Role::DownProj => &mut self.down_proj,
        }
    }

    /// The precision of each matrix.
    pub(crate) fn precision(&self) -> LayerPrecision {
        Role::ALL.map(|role| self.matrix(role).precision())
    }

    /// Packs a layer, with whatever adapter hangs on it.
    pub(crate) fn pack(
        kernels: &Kernels,
        pool: &Threads,
        config: &Config,
        layer: &Layer,
        precision: LayerPrecision,
    ) -> Self {
        let (qkv, o_proj) = pack_attention(kernels, pool, config, layer, precision, [None, None]);
        let [_, _, gate_up_shape, down_shape] = shapes(config);
        let intermediate = config.intermediate_size;
        let gate_up = pack(kernels, pool, None, gate_up_shape, precision[Role::GateUp as usize], |column, into| {
            let (panel, place) = (column / NR, column % NR);
            let row = panel * GATES + place % GATES;
            let tensor = if place < GATES { &layer.gate_proj } else { &layer.up_proj };
            if row < intermediate {
                tensor.read(row, 0, into);
            }
        });
        let down_proj = pack(kernels, pool, None, down_shape, precision[Role::DownProj as usize], |column, into| {
            if column < layer.down_proj.rows {
                layer.down_proj.read(column, 0, into);
            }
        });
        Self::assemble(layer, [qkv, o_proj, gate_up, down_proj])
    }

    /// A layer from matrices that were packed before, in the order of [`Role::ALL`].
    pub(crate) fn assemble(layer: &Layer, [qkv, o_proj, gate_up, down_proj]: [Matrix; 4]) -> Self {
        let scale = 1.0 / (layer.q_norm.columns as f32).sqrt();
        Self {
            input_layernorm: layer.input_layernorm.to_vec(),
            qkv,
            q_norm: layer.q_norm.to_vec().into_iter().map(|x| x * scale).collect(),
            k_norm: layer.k_norm.to_vec(),
            o_proj,
            post_attention_layernorm: layer.post_attention_layernorm.to_vec(),
            gate_up,
            down_proj,
            apart: ApartLayer::default(),
        }
    }
}

/// Columns and depth of a packed matrix, before they are rounded up to whole panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixShape {
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

/// The shape of each matrix, by [`Role`].
pub(crate) fn shapes(config: &Config) -> [MatrixShape; Role::ALL.len()] {
    let layout = HeadLayout::new(config);
    let section = |heads| layout.units(heads) * layout.unit_columns();
    let qkv = section(config.num_attention_heads) + 2 * section(config.num_key_value_heads);
    let (width, intermediate) = (config.hidden_size, config.intermediate_size);
    [
        MatrixShape { columns: qkv, depth: width },
        MatrixShape { columns: width, depth: config.query_size() },
        MatrixShape { columns: intermediate.div_ceil(GATES) * NR, depth: width },
        MatrixShape { columns: width, depth: intermediate },
    ]
}

/// Packs the four projections that an adapter may change: all that a change of adapter must redo. `old` is what they
/// replace, for its memory.
pub(crate) fn pack_attention(
    kernels: &Kernels,
    pool: &Threads,
    config: &Config,
    layer: &Layer,
    precision: LayerPrecision,
    old: [Option<Matrix>; 2],
) -> (Matrix, Matrix) {
    let [old_qkv, old_o] = old;
    let layout = HeadLayout::new(config);
    let unit = layout.unit_columns();
    let query_columns = layout.units(config.num_attention_heads) * unit;
    let key_columns = layout.units(config.num_key_value_heads) * unit;
    let [q, k, v, o] = [&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj].map(FoldedRows::new);
    let [qkv_shape, o_shape, ..] = shapes(config);
    let qkv = pack(kernels, pool, old_qkv, qkv_shape, precision[Role::Qkv as usize], |column, into| {
        let (rows, row) = match column.checked_sub(query_columns) {
            None => (&q, column),
            Some(column) => match column.checked_sub(key_columns) {
                None => (&k, column),
                Some(column) => (&v, column),
            },
        };
        rows.read(kernels, row, into);
    });
    let o_proj = pack(kernels, pool, old_o, o_shape, precision[Role::OProj as usize], |column, into| {
        o.read(kernels, column, into);
    });
    (qkv, o_proj)
}

/// Packs a matrix on all threads; `read` gets a column and zeros for its K elements, some of which may be padding.
fn pack(
    kernels: &Kernels,
    pool: &Threads,
    old: Option<Matrix>,
    MatrixShape { columns, depth }: MatrixShape,
    precision: Precision,
    read: impl Fn(usize, &mut [f32]) + Sync,
) -> Matrix {
    Matrix::pack(pool, old, columns, depth, precision, |scratch, index, mut panel| {
        panel.fill(kernels, scratch, |place, into| read(index * NR + place, &mut into[..depth]));
    })
}

/// The rows of a projection with its adapter added: `W + scale B A`, in `f32`, rounded to `f32` as it is summed up and to
/// the matrix's precision once.
struct FoldedRows<'a> {
    weight: &'a Tensor,
    /// A `[R, in]`, B, and the scale.
    lora: Option<(Vec<f32>, &'a Tensor, f32)>,
}

impl<'a> FoldedRows<'a> {
    fn new(projection: &'a Projection) -> Self {
        let lora = projection.lora.as_ref().map(|lora| (lora.a.to_vec(), &lora.b, lora.scale));
        Self { weight: &projection.weight, lora }
    }

    /// Reads a row; leaves `into` alone if there is none.
    fn read(&self, kernels: &Kernels, row: usize, into: &mut [f32]) {
        if row >= self.weight.rows {
            return;
        }
        self.weight.read(row, 0, into);
        if let Some((a, b, scale)) = &self.lora {
            for (rank, a) in a.chunks_exact(self.weight.columns).enumerate() {
                let mut element = [0.0];
                b.read(row, rank, &mut element);
                (kernels.add_scaled)(into, scale * element[0], a);
            }
        }
    }
}
