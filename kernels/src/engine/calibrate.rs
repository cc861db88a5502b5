//! Chooses the precision of every matrix by the error that it makes, measured when the weights are packed.
//!
//! Random weights round well at 12 bits. Trained ones have a few channels that are a hundred times as large as the rest,
//! and a token's step is set by its largest channel: where that costs more than [`MATRIX_LIMIT`], the matrix climbs
//! [`Precision::LADDER`]. What is measured is the product itself, on inputs of an exact pass over a fixed text of
//! pseudo-random tokens; and at the end the hidden state, because a network can amplify what each matrix does alone.

use std::sync::{Mutex, PoisonError};

use crate::bundle::Layer;
use crate::engine::Threads;
use crate::engine::activations::Activations;
use crate::engine::forward::{Frame, Pass, Rows, Sequence, Workspace};
use crate::engine::isa::{Kernels, MR, NR};
use crate::engine::kv::{BLOCK, KvBlock, KvSequence};
use crate::engine::layer::{PackedLayer, Role};
use crate::engine::matrix::{Matrix, Precision};
use crate::network::Stop;

/// How the precision of weights and inputs is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrecisionPolicy {
    /// [`PrecisionPolicy::Measured`] from [`PACK_LEAST`](crate::engine::PACK_LEAST) weights on; floats below, where choosing
    /// takes longer than rounding saves.
    #[default]
    Worthwhile,
    /// For each matrix the fastest whose measured error is small enough.
    Measured,
    /// The same for all.
    Fixed(Precision),
}

impl std::fmt::Display for PrecisionPolicy {
    /// A name that a file may have: `measured`, or the bits of weights and inputs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Worthwhile => f.write_str("worthwhile"),
            Self::Measured => f.write_str("measured"),
            Self::Fixed(Precision::Float) => f.write_str("float"),
            Self::Fixed(Precision::Integer { weight_bits, activation_bits }) => {
                write!(f, "w{weight_bits}a{activation_bits}")
            }
        }
    }
}

/// Relative L2 error of one matrix product, at most: twice what normally distributed weights and inputs get at
/// [`Precision::STANDARD`].
const MATRIX_LIMIT: f64 = 1.2e-3;

/// Relative L2 error of any hidden state of the calibration text, at most. Other texts fare worse, by a factor up to 2.8 in
/// the golden checkpoints, and 6e-3 is what a decision may be off; the full shape with random weights has 2.1e-3.
const HIDDEN_LIMIT: f64 = 2.5e-3;

/// How often the limit of a matrix is halved because the hidden state is still off; after so many, all but matrices that
/// are exact in integers would be floats.
const ROUNDS: usize = 6;

/// Tokens of the calibration text, and multiplications that it may cost: the full 0.6B shape gets the fewest.
const TOKENS: std::ops::RangeInclusive<usize> = 64..=1024;
const WORK: usize = 1 << 33;

/// Sequences that the text is cut into: as many hidden states are compared, and a first token is unlike the others.
const SEQUENCES: usize = 8;

/// Packs all layers as `policy` says.
pub(crate) fn calibrate(
    kernels: &Kernels,
    pool: &Threads,
    frame: &Frame,
    layers: &[Layer],
    policy: PrecisionPolicy,
) -> Vec<PackedLayer> {
    let pack = |layer, precision| PackedLayer::pack(kernels, pool, &frame.config, layer, [precision; 4]);
    if let PrecisionPolicy::Fixed(precision) = policy {
        return layers.iter().map(|layer| pack(layer, precision)).collect();
    }

    let text = Text::new(frame, layers);
    let mut limit = MATRIX_LIMIT;
    let mut round = 0;
    loop {
        let mut workspace = Workspace::default();
        let observed = Mutex::new(Vec::new());
        let observe = |role: Role, inputs: &Activations| {
            let mut observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
            observed.push((role, inputs.clone()));
        };
        let mut pass = Pass { kernels, pool, stop: Stop::never(), frame, observe: Some(&observe) };
        let mut sequences = text.sequences(frame);
        let mut rows = pass.begin(&sequences, &mut workspace);
        let mut packed = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let mut exact = pack(layer, Precision::Float);
            step(&pass, index, &exact, &mut sequences, &mut rows, &mut workspace);
            for (role, inputs) in observed.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                if let Some(chosen) = choose(kernels, pool, exact.matrix(role), &inputs, limit) {
                    *exact.matrix_mut(role) = chosen;
                }
            }
            packed.push(exact);
        }
        let exact = pass.finish(sequences.len(), &workspace);

        // The packed network on the same text.
        pass.observe = None;
        let mut sequences = text.sequences(frame);
        let mut rows = pass.begin(&sequences, &mut workspace);
        for (index, layer) in packed.iter().enumerate() {
            step(&pass, index, layer, &mut sequences, &mut rows, &mut workspace);
        }
        let found = pass.finish(sequences.len(), &workspace);
        let errors =
            found.iter().zip(&exact).map(|(f, e)| relative_error(std::slice::from_ref(f), std::slice::from_ref(e)));
        let error = errors.fold(0.0, f64::max);
        round += 1;
        // NaN ends it too: a network that gives no number at any precision is not mended by more bits.
        if error.is_nan() || error <= HIDDEN_LIMIT || round == ROUNDS {
            return packed;
        }
        limit /= 2.0;
    }
}

fn step(
    pass: &Pass<'_>,
    index: usize,
    layer: &PackedLayer,
    sequences: &mut [Sequence<'_>],
    rows: &mut Rows,
    workspace: &mut Workspace,
) {
    let outcome = pass.layer(index, layer, sequences, rows, workspace);
    debug_assert!(outcome.is_ok(), "a pass that is never stopped comes to its end");
}

/// The fastest precision whose products are close enough to those of `exact`; `None` for floats.
fn choose(kernels: &Kernels, pool: &Threads, exact: &Matrix, inputs: &Activations, limit: f64) -> Option<Matrix> {
    let expected = product(kernels, pool, exact, inputs);
    Precision::LADDER.into_iter().filter(|&precision| precision != Precision::Float).find_map(|precision| {
        let candidate = exact.requantized(kernels, pool, precision);
        let mut rounded = Activations::default();
        let read = |row: usize, into: &mut [f32]| inputs.read(row, into);
        rounded.pack(kernels, pool, &|| false, &candidate, inputs.rows, read);
        let found = product(kernels, pool, &candidate, &rounded);
        (relative_error(&found, &expected) <= limit).then_some(candidate)
    })
}

/// The product, by rows.
fn product(kernels: &Kernels, pool: &Threads, matrix: &Matrix, inputs: &Activations) -> Vec<Vec<f32>> {
    let rows = inputs.rows.next_multiple_of(MR);
    let mut panels = vec![0.0; rows * matrix.columns];
    pool.for_each(panels.chunks_exact_mut(rows * NR).enumerate(), &|| false, |_, (panel, out)| {
        matrix.multiply(kernels, inputs, 0..inputs.rows, panel..panel + 1, out);
    });
    let row = |row: usize| panels.chunks_exact(rows * NR).flat_map(move |panel| &panel[row * NR..][..NR]).copied();
    (0..inputs.rows).map(|index| row(index).collect()).collect()
}

/// The root of the mean square over rows of the relative L2 error of a row. Each token counts the same: a few have sums
/// far above all others.
fn relative_error(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let square = |x: f64| x * x;
    let row = |(found, expected): (&Vec<f32>, &Vec<f32>)| {
        let difference: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
        let size: f64 = expected.iter().map(|&e| square(f64::from(e))).sum();
        if difference == 0.0 { 0.0 } else { difference / size }
    };
    (found.iter().zip(expected).map(row).sum::<f64>() / expected.len() as f64).sqrt()
}

/// The calibration text.
struct Text(Vec<Vec<u32>>);

impl Text {
    /// Pseudo-random tokens, always the same for a network.
    fn new(frame: &Frame, layers: &[Layer]) -> Self {
        let weights = |layer: &Layer| {
            let attention = [&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj];
            attention.map(|projection| projection.weight.len()).iter().sum::<usize>() + 3 * layer.gate_proj.len()
        };
        let work: usize = layers.iter().map(weights).sum();
        let tokens = (WORK / work.max(1)).clamp(*TOKENS.start(), *TOKENS.end());
        let vocabulary = u32::try_from(frame.config.vocab_size).unwrap_or(u32::MAX);
        let mut state = 1_u32;
        let mut next = || {
            // The constants of Numerical Recipes; its high bits are the good ones.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u32::try_from((u64::from(state) * u64::from(vocabulary)) >> 32).unwrap_or(0)
        };
        let length = (tokens / SEQUENCES).min(frame.config.max_position_embeddings);
        Self((0..SEQUENCES).map(|_| (0..length).map(|_| next()).collect()).collect())
    }

    fn sequences(&self, frame: &Frame) -> Vec<Sequence<'_>> {
        let sequence = |tokens: &'_ Vec<u32>| {
            let own = (0..tokens.len().div_ceil(BLOCK)).map(|_| KvBlock::zeroed(&frame.layout)).collect();
            KvSequence { shared: Vec::new(), own }
        };
        self.0.iter().map(|tokens| Sequence { tokens, start: 0, cache: sequence(tokens) }).collect()
    }
}
