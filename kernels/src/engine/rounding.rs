//! Whether an adapter survives being folded into weights that are then rounded.
//!
//! A change of a weight that is small beside the step of its row is mostly rounded off or up by chance, and survives in
//! the mean; where weights lie on few values, as in a checkpoint that was quantized before, all of them round back, or
//! away, together, and another adapter is there. So a part of the rows is read back: the change that is left, measured along the one
//! that was asked for, must be that one.

use std::sync::{Mutex, PoisonError};

use crate::bundle::{Config, Layer, Projection};
use crate::engine::Threads;
use crate::engine::isa::Kernels;
use crate::engine::kv::HeadLayout;
use crate::engine::layer::{PackedLayer, Role};
use crate::engine::matrix::{Matrix, Precision};

/// One row in so many is looked at: some 300 rows of each layer of the full shape, 40 ms for all.
const SAMPLE: usize = 16;

/// How much of a change may be lost, or added along it, beyond what chance explains.
const LOST_MOST: f64 = 0.1;

/// Standard deviations that chance explains: once in some ten thousand checks.
const CHANCE: f64 = 4.0;

/// Relative rounding of weights with their adapter, at most: the distance between folded and apart that is refused.
const ROUNDING_MOST: f64 = 1e-2;

/// A projection whose adapter does not survive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterLost {
    /// Which layer, from 0.
    pub layer: usize,
    /// Which of its projections.
    pub projection: &'static str,
    /// How much of the change is there, along itself: 1 is all, 0 is nothing, and more than 1 is as wrong.
    pub kept: f64,
    /// Relative L2 error of the weights.
    pub rounding: f64,
    pub(crate) role: Role,
}

/// Looks at every layer with an adapter; the first projection of each layer whose adapter is lost.
pub(crate) fn lost(
    kernels: &Kernels,
    pool: &Threads,
    config: &Config,
    layers: &[Layer],
    packed: &[&PackedLayer],
) -> Vec<AdapterLost> {
    let found = Mutex::new(Vec::new());
    pool.for_each(layers.iter().zip(packed).enumerate(), &|| false, |_, (index, (layer, packed))| {
        let lost = of_layer(kernels, config, index, layer, packed);
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(lost);
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|lost| lost.layer);
    found
}

fn of_layer(
    kernels: &Kernels,
    config: &Config,
    index: usize,
    layer: &Layer,
    packed: &PackedLayer,
) -> Option<AdapterLost> {
    let layout = HeadLayout::new(config);
    let section = |heads| layout.units(heads) * layout.unit_columns();
    let (queries, keys) = (section(config.num_attention_heads), section(config.num_key_value_heads));
    let projections = [
        ("q_proj", &layer.q_proj, Role::Qkv, 0),
        ("k_proj", &layer.k_proj, Role::Qkv, queries),
        ("v_proj", &layer.v_proj, Role::Qkv, queries + keys),
        ("o_proj", &layer.o_proj, Role::OProj, 0),
    ];
    projections.into_iter().find_map(|(name, projection, role, first_column)| {
        let [kept, chance, rounding] = measure(kernels, projection, packed.matrix(role), first_column)?;
        // NaN is lost too.
        let survives = (kept - 1.0).abs() <= LOST_MOST + CHANCE * chance && rounding <= ROUNDING_MOST;
        (!survives).then_some(AdapterLost { layer: index, projection: name, kept, rounding, role })
    })
}

/// What is left of the change, the deviation of that by chance, and the relative rounding; `None` without an adapter, in
/// floats, and where the adapter changes nothing.
fn measure(kernels: &Kernels, projection: &Projection, matrix: &Matrix, first_column: usize) -> Option<[f64; 3]> {
    let lora = projection.lora.as_ref().filter(|_| matrix.precision() != Precision::Float)?;
    let columns = projection.weight.columns;
    let a = lora.a.to_vec();
    let (mut weight, mut change, mut found) = (vec![0.0; columns], vec![0.0; columns], vec![0.0; matrix.depth]);
    let (mut along, mut chance, mut asked, mut error, mut size) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for row in (0..projection.weight.rows).step_by(SAMPLE) {
        projection.weight.read(row, 0, &mut weight);
        change.fill(0.0);
        for (rank, a) in a.chunks_exact(columns).enumerate() {
            let mut element = [0.0];
            lora.b.read(row, rank, &mut element);
            (kernels.add_scaled)(&mut change, lora.scale * element[0], a);
        }
        matrix.read_column(first_column + row, &mut found);
        for ((&weight, &change), &found) in weight.iter().zip(&change).zip(&found) {
            let [weight, change, found] = [weight, change, found].map(f64::from);
            let off = found - (weight + change);
            along += (found - weight) * change;
            chance += (off * change) * (off * change);
            asked += change * change;
            error += off * off;
            size += (weight + change) * (weight + change);
        }
    }
    (asked > 0.0).then(|| [along / asked, chance.sqrt() / asked, (error / size).sqrt()])
}
