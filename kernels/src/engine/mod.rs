//! The fast path on a processor: packed weights, fused passes, a cache of keys and values.
//!
//! ```text
//! bundle -> layer (packs) -> matrix <- isa (tiles)        once
//! tokens -> forward -> activations -> matrix, attention   a pass
//! ```

mod activations;
mod aligned;
mod apart;
mod attention;
mod calibrate;
mod forward;
mod isa;
mod kv;
mod layer;
mod matrix;
mod network;
mod pack_file;
mod peak;
mod pool;
mod prefix_cache;
mod rope;
mod rounding;
mod stamps;

pub use calibrate::PrecisionPolicy;
pub use isa::{Isa, IsaError};
pub use layer::{LayerPrecision, Role};
pub use matrix::Precision;
pub use network::{
    Engine, EngineError, EngineOptions, LoadPhase, PACK_LEAST, PackFile, PackPlace, PackSource, PassTokens,
};
pub use pack_file::{PACKS_KEPT, PackFileError};
pub use peak::Peak;
pub use rounding::AdapterLost;

/// The threads of an engine.
pub(crate) type Threads = pool::Pool<Scratch>;

/// What one thread computes in.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Rows on their way into a panel.
    pack: matrix::PackScratch,
    /// Sums of a block of rows and some panels.
    sums: aligned::Aligned<f32>,
    /// What an adapter that is apart adds to them.
    extra: aligned::Aligned<f32>,
    attention: attention::AttentionScratch,
}
