//! The seams between the rooms: what the loop needs of a controller, what a budget needs of a tokeniser, and the
//! hook that a profiler hangs on.

use crate::action::Action;
use crate::closed_enum::closed_enum;
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

closed_enum! {
    /// Why an action was taken without the rule having chosen it. Variants are only ever appended.
    pub enum FallbackReason {
        /// The deadline passed before there were estimates.
        DeadlineMissed = "deadline_missed",
        /// A head returned a number that is not finite.
        HeadOutput = "head_output",
        /// The model could not be run.
        ModelUnavailable = "model_unavailable",
    }
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

closed_enum! {
    /// A stage that a person may want to profile. Variants are only ever appended.
    pub enum Stage {
        /// Reading the recording into a state.
        Read = "read",
        /// Cutting each field to its share.
        Cut = "cut",
        /// Text to tokens.
        Tokenize = "tokenize",
        /// Tokens to the last hidden state.
        Forward = "forward",
        /// Hidden state to ten outputs, and those to estimates.
        Heads = "heads",
        /// Mask, score, pick.
        Select = "select",
        /// Loading and checking the model bundle.
        Load = "load",
        /// Hashing what a decision is made on.
        Digest = "digest",
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
