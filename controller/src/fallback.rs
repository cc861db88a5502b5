//! What is done where there is no decision: a deadline passed, or there is no model that could make one.

use serde::Serialize;
use tack_core::{Action, ActionSet, Decided, DecisionState, FallbackReason, Micros, PerAction, Stage};

use crate::availability::{Unavailable, available, fallback_action, unavailable};
use crate::clock::{Latency, StageClock};

/// Why an answer is a fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The reason that the receipt keeps.
    pub reason: FallbackReason,
    /// The stage that was running, or had just ended, when the time was up; or after which there was no going on.
    pub stage: Stage,
    /// The time that there was, as it was asked for.
    #[serde(rename = "deadline_us")]
    pub deadline: Option<Micros>,
}

impl Fallback {
    pub(crate) fn new(reason: FallbackReason, clock: &StageClock<'_>) -> Self {
        Self { reason, stage: clock.stage(), deadline: clock.deadline() }
    }
}

/// Neither the menu nor the caller leaves an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no action is available: the caller allows {allowed:?}, of which the test menu leaves none")]
pub struct NoneAvailable {
    /// What the caller allows.
    pub allowed: ActionSet,
}

/// A fallback that no model stands behind: there was no time to load one, or it could not be run.
///
/// It has no receipt, since a receipt names the model that decided. [`Undecided::report`] prints it in the form of a
/// decision, with nulls where a model would have spoken.
#[derive(Clone, Debug, PartialEq)]
pub struct Undecided {
    /// The action that is taken instead.
    pub action: Action,
    /// Why.
    pub fallback: Fallback,
    /// Why each action that is not available is not.
    pub reasons: PerAction<Option<Unavailable>>,
    /// Where the time went.
    pub latency: Latency,
}

/// The [`fallback_action`], with its account.
///
/// For a caller that must act whatever happens: once `clock` is late before there is a controller (after reading, after
/// loading), with [`FallbackReason::DeadlineMissed`]; after an error of opening or deciding, with the reason that
/// [`DecideError::fallback_reason`](crate::DecideError::fallback_reason) gives, or [`FallbackReason::ModelUnavailable`].
///
/// # Errors
/// [`NoneAvailable`] if there is no action to fall back to.
pub fn fall_back(
    state: &DecisionState<'_>,
    allowed: ActionSet,
    reason: FallbackReason,
    clock: &StageClock<'_>,
) -> Result<Undecided, NoneAvailable> {
    let reasons = unavailable(&state.menu, allowed);
    let action = fallback_action(state, available(&reasons)).ok_or(NoneAvailable { allowed })?;
    Ok(Undecided { action, fallback: Fallback::new(reason, clock), reasons, latency: clock.latency() })
}

impl Decided for Undecided {
    fn action(&self) -> Action {
        self.action
    }

    fn fallback(&self) -> Option<FallbackReason> {
        Some(self.fallback.reason)
    }
}
