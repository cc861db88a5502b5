//! Restoring a candidate: the base tree, and a patch that fits it byte for byte.
//!
//! Everything here happens in memory, on validated paths. Nothing that a candidate wrote chooses a path on the
//! host's disk, and no program of the host (git, patch) ever reads it.

pub mod checkout;
pub mod patch;
pub mod path;
pub mod tree;
