//! The vocabulary of tack, and its one rule.
//!
//! Every other crate speaks in these types: what a decision may see ([`DecisionState`]), what may be done
//! ([`Action`]), what a decision is worth ([`Estimates`]), which action wins ([`select`]), what it cost, and the
//! records that bind evidence to what it was gathered on.
//!
//! ```
//! use tack_core::{Action, ActionSet, Estimates, HeadOutputs, Lambda, PerAction, select};
//!
//! let outputs = HeadOutputs {
//!     success_logits: PerAction([-1.0, 0.5, 0.25, 0.75, 0.0]),     // submit, continue, retry, the two tests
//!     cost_preactivations: PerAction([-9.0, -1.0, -0.5, 0.5, 1.0]),
//! };
//! let estimates = Estimates::from_heads(&outputs)?;
//! let free = select(&estimates, ActionSet::ALL, Lambda::ZERO);
//! let priced = select(&estimates, ActionSet::ALL, Lambda::new(0.2)?);
//! assert_eq!(free.map(|choice| choice.action), Some(Action::TestTargeted));
//! assert_eq!(priced.map(|choice| choice.action), Some(Action::Continue));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
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
//! - an unknown issue is not an empty one ([`Issue`]), nor is an unknown patch ([`Patch`]) or menu ([`Menu`]); an
//!   unknown figure is not a zero ([`Figure`]), an unavailable outcome not a failure ([`Outcome`]);
//! - costs are compared exactly: [`CostTicks`] is an integer, and a cost with an unavailable term does not exist;
//! - a record that follows from what it holds is recomputed when it is read: a ruling, a lambda gate, a readiness
//!   record that were changed are refused; and one record has one byte string ([`wire`]);
//! - evidence holds for five digests together or not at all ([`Binding`]).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod closed_enum;

// What a decision sees, and what may be done.
pub mod action;
pub mod digest;
pub mod limits;
pub mod state;
pub mod text;
pub mod units;

// What it is worth, and which action wins.
pub mod decide;
pub mod estimate;
pub mod near_tie;
pub mod regime;
pub mod rule;
pub mod shares;

// What it took, how it ended, and what is learned from that.
pub mod cost;
pub mod lambda_gate;
pub mod measurement;
pub mod outcome;
pub mod status;
pub mod success_rate;
pub mod transition;

// What is kept of it, and how long that holds.
pub mod acceptance;
pub mod admission;
pub mod effect;
pub mod evidence;
pub mod expiry;
pub mod receipt;

// What may be left to a machine at all.
pub mod boundary;
pub mod readiness;

// How it travels.
pub mod list;
pub mod wire;

pub use acceptance::{Acceptance, AcceptanceLayer, LayerResult};
pub use action::{Action, ActionSet, PerAction};
pub use admission::AdmissionRecord;
pub use boundary::{FailureBoundary, RunEnd};
pub use closed_enum::UnknownBit;
pub use cost::{CostError, CostTicks, MeasuredCost, PairCost};
pub use decide::{CountTokens, Decide, Decided, FallbackReason, Spans, Stage};
pub use digest::Digest;
pub use effect::{Effect, EffectReceipt};
pub use estimate::{Estimate, Estimates, HeadOutputError, HeadOutputs};
pub use evidence::EvidencePackage;
pub use expiry::{Binding, Present, Standing};
pub use lambda_gate::LambdaGate;
pub use limits::{Limits, Remaining};
pub use measurement::{EstimateMethod, Figure, FigureUnavailable, Measurement};
pub use outcome::{HalfOutcomes, Outcome, OutcomeUnavailable, StateOutcomes, Verdict};
pub use readiness::ReadinessRecord;
pub use receipt::{DecisionReceipt, Precision};
pub use regime::Regime;
pub use rule::{Choice, Utility, lead, select, utilities};
pub use shares::{Field, FieldShares};
pub use state::{Candidate, ContextReason, DecisionState, Issue, Menu, MenuError, Observation, Patch};
pub use status::{Ending, ObservationStatus};
pub use success_rate::SuccessRate;
pub use text::{Name, Text, TextError};
pub use transition::TransitionKernel;
pub use units::{Bytes, Lambda, Micros, NormalizedCost, Probability, Tokens, UnixSeconds};
