//! Control groups: what limits and counts all processes of a run together.
//!
//! A host has its controllers in hierarchies of the first version, in the unified one, or some in each. Every run
//! gets a leaf of its own under a directory `tack` in each hierarchy that it needs, named after the helper that made
//! it and locked by it; the leaf goes with the run, and one whose helper was killed, which nobody holds the lock of,
//! goes at the next helper's start.
//!
//! What a host lacks is not an error: the limit is reported inactive, the figure unavailable, with the reason.

mod hierarchy;
mod leaf;
mod seat;

pub(crate) use hierarchy::Hierarchies;
pub(crate) use leaf::{CpuTime, Groups};
pub(crate) use seat::{Reserved, Seats, Taken};
