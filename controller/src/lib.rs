//! From a decision state to a decision: what a production agent links.
//!
//! [`Controller::open`] reads a model bundle; its [`Decide::decide`](tack_core::Decide::decide) walks a state through
//! [`encode`] (five fields into at most 4,096 tokens), the value network of `tack-kernels`, the estimates and the
//! rule of `tack-core`, and returns a [`Decision`]: the choice with its receipt, or a fallback that says so. Without a
//! model, or without the time to open one, [`fall_back`] says what to do.
//!
//! What this crate does not do: it reads no trajectories, runs no repository code, and trains nothing. It opens files
//! only while it opens a bundle. Its one clock ([`StageClock`]) times stages and holds the deadline; no estimate depends
//! on it.
//!
//! Invariants:
//! - no text is ever a special token: repository text cannot forge the template ([`tokenizer`]);
//! - no field exceeds its share, whatever the bytes, and no field's tokens depend on a later field's ([`encode`]);
//! - the tokens, the estimates and the choice are a function of state, bundle and settings alone;
//! - an action that is not available is never returned, not even as a fallback ([`availability`]);
//! - what was computed too late is never presented as a decision ([`controller`]).

#![forbid(unsafe_code)]

pub mod availability;
pub mod clock;
pub mod controller;
pub mod digests;
pub mod encode;
pub mod fallback;
pub mod fit;
pub mod load;
pub mod record;
pub mod report;
pub mod template;
pub mod tokenizer;
pub mod window;

mod bpe;
mod kept;
mod lossy;
#[cfg(test)]
mod mini;
mod tokenizer_json;

pub use clock::StageClock;
pub use controller::{Controller, DecideError, OpenError, Settings};
pub use encode::{Encoded, Encoder};
pub use fallback::{Undecided, fall_back};
pub use report::{Decision, DecisionReport};

/// What a caller says to the network that a bundle is run on.
pub mod engine {
    pub use tack_kernels::engine::{LoadPhase, PACKS_KEPT, PackFile, PackPlace, PackSource};
    pub use tack_kernels::{BundleSource, EngineOptions, Isa, IsaError, Precision, PrecisionPolicy};
}
pub use tokenizer::Tokenizer;
