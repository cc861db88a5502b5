//! The seams between the rooms: what the loop needs of a controller, what a budget needs of a tokeniser, and the
//! hook that a profiler hangs on.

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::rule::Choice;
use crate::state::DecisionState;
use crate::units::Tokens;

/// What the loop needs to know of a decision, whoever made it.
pub trait Decided {
    /// The action to carry out.
    fn action(&self) -> Action;

    /// Why this is a fallback and not the rule's choice; `None` for a choice.
    fn fallback(&self) -> Option<FallbackReason>;
}

impl Decided for Choice {
    fn action(&self) -> Action {
        self.action
    }

    fn fallback(&self) -> Option<FallbackReason> {
        None
    }
}

/// Why an action was taken without the rule having chosen it. Variants are only ever appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackReason {
    /// The deadline passed before there were estimates.
    DeadlineMissed,
    /// A head returned a number that is not finite.
    HeadOutput,
    /// The model could not be run.
    ModelUnavailable,
}

/// Decides what should happen next. The executor runs its loop over any of these and never links a model.
pub trait Decide {
    /// What comes back: the choice with its receipt.
    type Decision: Decided;
    /// Why there is none.
    type Error: core::error::Error;

    /// One decision on one state. Times its stages through `spans`.
    ///
    /// # Errors
    /// Whatever keeps the controller from deciding; never a late guess presented as a decision.
    fn decide(&mut self, state: &DecisionState<'_>, spans: &mut dyn Spans) -> Result<Self::Decision, Self::Error>;
}

/// Counts tokens where the model's provider did not say.
pub trait CountTokens {
    /// How many tokens `text` is. The figure is an estimate of the provider's own and is marked so.
    fn count_tokens(&self, text: &[u8]) -> Tokens;
}

/// A stage that a person may want to profile. Variants are only ever appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stage {
    /// Reading the recording into a state.
    Read = 0,
    /// Cutting each field to its share.
    Cut = 1,
    /// Text to tokens.
    Tokenize = 2,
    /// Tokens to the last hidden state.
    Forward = 3,
    /// Hidden state to ten outputs, and those to estimates.
    Heads = 4,
    /// Mask, score, pick.
    Select = 5,
    /// Loading and checking the model bundle.
    Load = 6,
}

impl Stage {
    /// Every stage, in discriminant order.
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Cut, Self::Tokenize, Self::Forward, Self::Heads, Self::Select, Self::Load];

    /// The name in files, tables and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Cut => "cut",
            Self::Tokenize => "tokenize",
            Self::Forward => "forward",
            Self::Heads => "heads",
            Self::Select => "select",
            Self::Load => "load",
        }
    }
}

/// Hears when a stage starts and ends. The listener owns the clock: this crate has none.
pub trait Spans {
    /// `stage` starts now.
    fn enter(&mut self, stage: Stage);
    /// `stage` ends now.
    fn exit(&mut self, stage: Stage);
}

/// Off: both calls compile to nothing.
impl Spans for () {
    fn enter(&mut self, _: Stage) {}
    fn exit(&mut self, _: Stage) {}
}
