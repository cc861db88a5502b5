//! The vocabulary of tack, and its one rule.
//!
//! Every other crate speaks in these types: what a decision may see ([`DecisionState`]), what may be done
//! ([`Action`]), what a decision is worth ([`Estimates`]), which action wins ([`select`]), what it cost, and the
//! records that bind evidence to what it was gathered on.
//!
//! What this crate does not do: no I/O, no clock, no heap, no hashing, no floating-point tuning. It is `no_std`
//! without `alloc`, so it links into a kernel module, a microcontroller or a browser alike; the world arrives as
//! arguments.
//!
//! Invariants, each held by a type rather than by care:
//! - a decision sees five fields and nothing else: [`DecisionState`] has no place for a future observation, a
//!   reference patch or an official outcome;
//! - actions have one order everywhere ([`Action::ALL`]): head rows, bits, tables;
//! - no NaN passes the border: [`Estimates::from_heads`] refuses it and names the action;
//! - an unknown patch is not an empty one ([`Patch`]), an unknown menu not an empty one ([`Menu`]).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod action;
pub mod decide;
pub mod digest;
pub mod estimate;
pub mod limits;
pub mod rule;
pub mod shares;
pub mod state;
pub mod units;

pub use action::{Action, ActionSet, PerAction};
pub use decide::{CountTokens, Decide, Decided, FallbackReason, Spans, Stage};
pub use digest::Digest;
pub use estimate::{Estimate, Estimates, HeadOutputError, HeadOutputs};
pub use limits::{Limits, Remaining};
pub use rule::{Choice, Utility, lead, select, utilities};
pub use shares::{Field, FieldShares};
pub use state::{Candidate, ContextReason, DecisionState, Menu, MenuError, Observation, Patch};
pub use units::{Bytes, Lambda, Micros, NormalizedCost, Probability, Tokens};
