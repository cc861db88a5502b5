//! What the sandbox's two sides say to each other: one run asked for ([`RunRequest`]), its output, its [`Receipt`].
//!
//! Both sides link this crate and nothing else of each other's: the unprivileged client asks, the privileged
//! daemon answers. It is `no_std` without a heap, so that the privileged side decodes hostile bytes into borrowed
//! views of the one buffer it read them into, and so that a decoder can be linked anywhere.
//!
//! What this crate does not do: no I/O, no clock, no system call, no hashing. It knows nothing of decisions,
//! actions or repositories.
//!
//! Invariants:
//! - one byte bound, [`frame::MAX_BODY_BYTES`], holds for every frame in both directions, and is checked before a
//!   body is read;
//! - any byte string decodes to a value or to a [`FrameError`]; nothing panics, nothing allocates, trailing bytes and
//!   unknown versions are refused;
//! - what a host could not enforce or measure is *inactive* or *unavailable* with its [`Reason`], never a zero;
//! - enums on the wire only grow at their end, since postcard writes a variant's index.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod destination;
pub mod egress;
pub mod frame;
pub mod layer;
pub mod message;
pub mod place;
pub mod receipt;
pub mod request;
pub mod strings;
pub mod submission;
mod text;

pub use destination::{Destination, DestinationError};
pub use egress::{Egress, EgressLog, EgressRecord};
pub use frame::FrameError;
pub use layer::{Layer, LayerState, Layers, Reason};
pub use message::{Need, Part, Refusal, Reply, Request, Stream};
pub use receipt::{Cause, End, Figure, Receipt, SetUpFailure, Stage, StreamSummary, Times, Usage};
pub use request::{Access, Mount, Mounts, RunLimits, RunRequest, TooManyMounts};
pub use strings::{NotTerminated, Strings};
pub use submission::{Key, Limit, SignedReceipt, SourceProblem, Statement, Submission, Token};
