//! The network on the processor, in 32-bit floats.
//!
//! Weights stay as and where they are stored, also in a mapped file; each matrix product widens one block of its
//! weights at a time. So a loaded network holds next to no memory of its own, but for the projections that an adapter
//! was folded into, and a pass holds a few activations of `[T, F]`.

mod attention;
mod forward;
mod gemm;
mod pool;
mod rms_norm;
mod rope;

#[cfg(test)]
mod naive;

pub use forward::{Adapter, CpuNetwork, Options};
