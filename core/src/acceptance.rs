//! The acceptance layers: five questions that a candidate must answer, in order.

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::digest::Digest;
use crate::status::ObservationStatus;

closed_enum! {
    /// One layer of acceptance (article, "Executable repository repair lab").
    pub enum AcceptanceLayer {
        /// Every changed path is one that may be changed.
        Scope = "scope",
        /// The tree compiles.
        Compile = "compile",
        /// The tests that the candidate could see pass.
        Visible = "visible",
        /// The tests that it could not see pass.
        Hidden = "hidden",
        /// Each known defect, put back, is caught by the suite that must catch it.
        Mutation = "mutation",
    }
}

/// What one layer said. A layer that was not reached did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerResult {
    /// It was not reached, or there is nothing to run.
    NotRun,
    /// It was run.
    Ran {
        /// What it said.
        status: ObservationStatus,
        /// Digest of the effect receipt that shows it; `None` where nothing had to be executed (the scope).
        receipt: Option<Digest>,
    },
}

impl LayerResult {
    /// Whether the layer was run and passed.
    #[must_use]
    pub const fn passed(self) -> bool {
        matches!(self, Self::Ran { status: ObservationStatus::Passed, .. })
    }
}

/// What the five layers said, in the order of [`AcceptanceLayer::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Acceptance(pub [LayerResult; AcceptanceLayer::COUNT]);

impl Acceptance {
    /// Nothing was run yet.
    pub const NOT_RUN: Self = Self([LayerResult::NotRun; AcceptanceLayer::COUNT]);

    /// One layer's result.
    #[must_use]
    pub const fn of(&self, layer: AcceptanceLayer) -> LayerResult {
        self.0[layer.index()]
    }

    /// These results with one layer's set.
    #[must_use]
    pub const fn with(mut self, layer: AcceptanceLayer, result: LayerResult) -> Self {
        self.0[layer.index()] = result;
        self
    }

    /// Accepted if and only if every layer was run and passed.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.0.into_iter().all(LayerResult::passed)
    }

    /// The first layer that did not pass, with what it said: why a candidate is not accepted.
    #[must_use]
    pub fn first_not_passed(&self) -> Option<(AcceptanceLayer, LayerResult)> {
        AcceptanceLayer::ALL.into_iter().zip(self.0).find(|(_, result)| !result.passed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_means_every_layer_ran_and_passed() {
        use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed};
        let ran = |status| LayerResult::Ran { status, receipt: None };
        let not_run = LayerResult::NotRun;
        #[rustfmt::skip]
        let cases = [ // name            scope                  compile      visible      hidden                      mutation     accepted  first
            ("local_only",               [ran(Passed),          ran(Passed), ran(Passed), ran(CandidateFailed),       not_run],     false, Some(AcceptanceLayer::Hidden)),
            ("repository_fix",           [ran(Passed),          ran(Passed), ran(Passed), ran(Passed),                ran(Passed)], true,  None),
            ("scope_escape",             [ran(CandidateFailed), ran(Passed), ran(Passed), ran(Passed),                ran(Passed)], false, Some(AcceptanceLayer::Scope)),
            ("the environment is sick",  [ran(Passed),          ran(Passed), ran(Passed), ran(InfrastructureUnknown), not_run],     false, Some(AcceptanceLayer::Hidden)),
            ("mutants were not tried",   [ran(Passed),          ran(Passed), ran(Passed), ran(Passed),                not_run],     false, Some(AcceptanceLayer::Mutation)),
        ];
        for (name, layers, accepted, first) in cases {
            let acceptance = Acceptance(layers);
            assert_eq!(acceptance.accepted(), accepted, "{name}");
            assert_eq!(acceptance.first_not_passed().map(|(layer, _)| layer), first, "{name}");
            let rebuilt = AcceptanceLayer::ALL
                .into_iter()
                .fold(Acceptance::NOT_RUN, |built, layer| built.with(layer, acceptance.of(layer)));
            assert_eq!(rebuilt, acceptance, "{name}");
        }
    }
}
