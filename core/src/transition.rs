//! The comparator's second half: from "does the current patch pass?" to the success of each action.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, PerAction};
use crate::estimate::{Estimate, Estimates, HeadOutputError, HeadOutputs};
use crate::outcome::{HalfOutcomes, StateOutcomes, Verdict};
use crate::units::Probability;

/// Judged seeds of one action, over the training states whose patch as it stood had one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "RawSeeds")]
pub struct Seeds {
    solved: u32,
    judged: u32,
}

impl Seeds {
    /// How many of them ended solved.
    #[must_use]
    pub const fn solved(self) -> u32 {
        self.solved
    }

    /// How many there are.
    #[must_use]
    pub const fn judged(self) -> u32 {
        self.judged
    }

    /// Posterior mean under a beta prior with pseudocounts (0.5, 0.5): `(solved + 0.5) / (judged + 1)`.
    fn posterior_mean(self) -> f64 {
        (f64::from(self.solved) + 0.5) / (f64::from(self.judged) + 1.0)
    }
}

#[derive(Deserialize)]
struct RawSeeds {
    solved: u32,
    judged: u32,
}

/// Counts came of which more ended solved than were judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoreSolvedThanJudged {
    /// Seeds that ended solved.
    pub solved: u32,
    /// Seeds that were judged.
    pub judged: u32,
}

impl fmt::Display for MoreSolvedThanJudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} seeds can have ended solved; found {}", self.judged, self.solved)
    }
}

impl core::error::Error for MoreSolvedThanJudged {}

impl TryFrom<RawSeeds> for Seeds {
    type Error = MoreSolvedThanJudged;
    fn try_from(RawSeeds { solved, judged }: RawSeeds) -> Result<Self, MoreSolvedThanJudged> {
        if solved <= judged { Ok(Self { solved, judged }) } else { Err(MoreSolvedThanJudged { solved, judged }) }
    }
}

/// The transition kernel `K_a(y) = Pr(Y_a = 1 | Y_submit = y)`, from training states only.
///
/// Paper, "Correctness-based comparator". It keeps the counts and not the quotients, so that a reader can see how
/// little stands behind an entry. `submit` is fixed: `K(0) = 0`, `K(1) = 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TransitionKernel {
    /// Where the patch as it stood did not solve the task. The entry of `submit` is not used.
    not_solved: PerAction<Seeds>,
    /// Where it did.
    solved: PerAction<Seeds>,
}

impl TransitionKernel {
    /// Counts the training states. One without a verdict on its patch teaches nothing; a masked target is skipped.
    #[must_use]
    pub fn from_training_states<'s>(states: impl IntoIterator<Item = &'s StateOutcomes>) -> Self {
        let mut kernel = Self::default();
        for state in states {
            let Some(submitted) = state.submitted() else { continue };
            for action in Action::ALL.into_iter().filter(|action| !action.is_terminal()) {
                if let Some(halves) = state.of(action) {
                    kernel.count(submitted, action, halves);
                }
            }
        }
        kernel
    }

    /// Both seeds of one state. Saturates at 2^32 seeds, which no collection reaches, without solved passing judged.
    fn count(&mut self, submitted: Verdict, action: Action, halves: HalfOutcomes) {
        let seeds = match submitted {
            Verdict::NotSolved => &mut self.not_solved[action],
            Verdict::Solved => &mut self.solved[action],
        };
        if let Some(judged) = seeds.judged.checked_add(u32::from(HalfOutcomes::PER_STATE)) {
            *seeds = Seeds { solved: seeds.solved + u32::from(halves.get()), judged };
        }
    }

    /// The counts behind one entry; none for `submit`, whose entries are fixed.
    #[must_use]
    pub fn seeds(&self, action: Action, submitted: Verdict) -> Seeds {
        match (action.is_terminal(), submitted) {
            (true, _) => Seeds::default(),
            (false, Verdict::NotSolved) => self.not_solved[action],
            (false, Verdict::Solved) => self.solved[action],
        }
    }

    /// `K_a(y)`, before rounding.
    fn entry(&self, action: Action, submitted: Verdict) -> f64 {
        match (action.is_terminal(), submitted) {
            (true, Verdict::NotSolved) => 0.0,
            (true, Verdict::Solved) => 1.0,
            (false, _) => self.seeds(action, submitted).posterior_mean(),
        }
    }

    /// `K_a(y)`, rounded to the nearest `f32`.
    #[must_use]
    pub fn probability(&self, action: Action, submitted: Verdict) -> Probability {
        nearest(self.entry(action, submitted))
    }

    /// The ten estimates of the comparator, by the same activations as the action-outcome model's.
    ///
    /// # Errors
    /// [`HeadOutputError`] for a NaN or infinite output. The one logit is named as that of `submit`, whose success is
    /// what it estimates.
    pub fn estimates(&self, outputs: &ComparatorOutputs) -> Result<Estimates, HeadOutputError> {
        let ComparatorOutputs { success_logit, cost_preactivations } = *outputs;
        let mut success_logits = PerAction([0.0; Action::COUNT]);
        success_logits[Action::Submit] = success_logit;
        let direct = Estimates::from_heads(&HeadOutputs { success_logits, cost_preactivations })?;
        let success = self.success(direct[Action::Submit].success);
        Ok(PerAction::from_fn(|action| Estimate { success: success[action], cost: direct[action].cost }))
    }

    /// The comparator's `q_a = (1 - p) K_a(0) + p K_a(1)`, where `passes` is its `p` = P(current patch passes).
    #[must_use]
    pub fn success(&self, passes: Probability) -> PerAction<Probability> {
        let p = f64::from(passes.get());
        PerAction::from_fn(|action| {
            nearest((1.0 - p) * self.entry(action, Verdict::NotSolved) + p * self.entry(action, Verdict::Solved))
        })
    }
}

/// What the comparator's heads return: one success row, its own five cost rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparatorOutputs {
    /// The logit of `p`, that the patch as it stands passes.
    pub success_logit: f32,
    /// `v . h + b`, one an action.
    pub cost_preactivations: PerAction<f32>,
}

fn nearest(probability: f64) -> Probability {
    #[expect(clippy::cast_possible_truncation, reason = "the rounding to `f32` is the intent")]
    Probability::saturating(probability as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn state(halves: [Option<u8>; 5]) -> StateOutcomes {
        StateOutcomes::new(PerAction(halves.map(|it| it.map(|halves| halves.try_into().unwrap())))).unwrap()
    }

    #[test]
    fn counts_prior_and_fixed_submit() {
        let kernel = TransitionKernel::from_training_states(&[
            state([Some(0), Some(1), Some(2), None, None]),
            state([Some(0), Some(2), Some(0), None, None]),
            state([Some(2), Some(2), None, Some(1), None]),
            state([None, Some(2), Some(2), Some(2), Some(2)]),
        ]);
        #[rustfmt::skip]
        let table = [ // action        K(0)       K(1)
            (Action::Submit,           0.0,       1.0),       // fixed, whatever was counted
            (Action::Continue,         3.5 / 5.0, 2.5 / 3.0),
            (Action::Retry,            2.5 / 5.0, 0.5),       // no evidence: the prior's mean
            (Action::TestTargeted,     0.5,       1.5 / 3.0),
            (Action::TestRegression,   0.5,       0.5),
        ];
        for (action, zero, one) in table {
            let found = [Verdict::NotSolved, Verdict::Solved].map(|y| kernel.probability(action, y).get());
            for (found, expected) in found.into_iter().zip([zero, one]) {
                assert!((f64::from(found) - expected).abs() <= 3e-8, "{action}: {found} for {expected}");
            }
        }
        assert_eq!(kernel.seeds(Action::Continue, Verdict::NotSolved), Seeds { solved: 3, judged: 4 });
        let half = kernel.success(Probability::new(0.5).unwrap());
        let even = Probability::new(0.5).unwrap();
        assert_eq!((half[Action::Submit], half[Action::TestTargeted]), (even, even));
    }

    #[test]
    fn the_comparator_has_its_own_costs_and_the_kernels_success() {
        let kernel = TransitionKernel::from_training_states(&[state([Some(0), Some(2), Some(0), Some(2), None])]);
        let outputs =
            ComparatorOutputs { success_logit: -1e4, cost_preactivations: PerAction([0.0, 1.0, 2.0, 3.0, 4.0]) };
        let found = kernel.estimates(&outputs).unwrap();
        let heads =
            HeadOutputs { success_logits: PerAction([0.0; 5]), cost_preactivations: outputs.cost_preactivations };
        let costs = Estimates::from_heads(&heads).unwrap();
        for action in Action::ALL {
            assert_eq!(found[action].cost, costs[action].cost, "{action}");
            assert_eq!(found[action].success, kernel.probability(action, Verdict::NotSolved), "{action}: p is 0");
        }
        let broken = ComparatorOutputs { success_logit: f32::NAN, ..outputs };
        assert_eq!(kernel.estimates(&broken).unwrap_err().action, Action::Submit);
    }

    #[test]
    fn the_wire_builds_no_impossible_count() {
        assert!(postcard::from_bytes::<Seeds>(&[1, 2]).is_ok());
        assert!(postcard::from_bytes::<Seeds>(&[3, 2]).is_err());
    }

    /// The slow, obvious twin: lists every seed of every state, filters, divides.
    fn naive(states: &[[Option<u8>; 5]], p: f64, action: usize) -> f64 {
        if action == 0 {
            return p;
        }
        let k = |y: u8| {
            let mut seeds = Vec::new();
            for state in states {
                if let (Some(submit), Some(halves)) = (state[0], state[action])
                    && submit / 2 == y
                {
                    seeds.push(u32::from(halves >= 1));
                    seeds.push(u32::from(halves == 2));
                }
            }
            (f64::from(seeds.iter().sum::<u32>()) + 0.5) / (seeds.len() as f64 + 0.5 + 0.5)
        };
        (1.0 - p) * k(0) + p * k(1)
    }

    fn any_state() -> impl Strategy<Value = [Option<u8>; 5]> {
        let other = || proptest::option::of(0u8..=2);
        let submit = proptest::option::of(prop_oneof![Just(0u8), Just(2)]);
        (submit, other(), other(), other(), other()).prop_map(|(a, b, c, d, e)| [a, b, c, d, e])
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(states in proptest::collection::vec(any_state(), 0..40), p in 0.0f32..=1.0) {
            let outcomes: Vec<_> = states.iter().copied().map(state).collect();
            let kernel = TransitionKernel::from_training_states(&outcomes);
            let success = kernel.success(Probability::new(p).unwrap());
            for (action, found) in success.iter() {
                let expected = naive(&states, f64::from(p), action.index());
                prop_assert!((f64::from(found.get()) - expected).abs() <= 6e-8, "{action}: {found:?} for {expected}");
            }
        }
    }
}
