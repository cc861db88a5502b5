//! The fast path on a processor.

mod aligned;
mod isa;
mod pool;

pub use isa::{Isa, IsaError};
