//! How an executed action ended, officially: judged, or unavailable for a reason. Missing is not failed.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, PerAction};
use crate::closed_enum::closed_enum;

/// The official outcome of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The grader answered.
    Judged(Verdict),
    /// There is no answer. Nothing may be concluded about the candidate.
    Unavailable(OutcomeUnavailable),
}

closed_enum! {
    /// What the grader said of the final patch: the paper's `Y`.
    pub enum Verdict {
        /// The task is not solved, `Y = 0`.
        NotSolved = "not_solved",
        /// The task is solved, `Y = 1`.
        Solved = "solved",
    }
}

closed_enum! {
    /// Why there is no outcome. Variants are only ever appended.
    pub enum OutcomeUnavailable {
        /// The model's provider, or the way to it, failed.
        Transport = "transport",
        /// The environment could not be readied.
        SetUp = "set_up",
        /// The base commit or the patch could not be restored exactly.
        Restore = "restore",
        /// The prescribed pretest could not be run at all, so the action was not the prescribed one.
        PretestNotRun = "pretest_not_run",
        /// The grader ran out of time.
        GraderTimeOut = "grader_time_out",
        /// The grader itself broke.
        Grading = "grading",
        /// The verifier was tampered with, or rejects what it must accept.
        VerifierInvalid = "verifier_invalid",
        /// The run was cut off, and no receipt says how it ended.
        Interrupted = "interrupted",
    }
}

/// How many of a state's two prescribed seeds ended solved: 0, 1 or 2 halves.
///
/// `submit` has one outcome, which weighs as two seeds: 0 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct HalfOutcomes(u8);

impl HalfOutcomes {
    /// Outcomes of one state and action, in halves.
    pub const PER_STATE: u8 = 2;

    /// The one outcome of `submit`; `None` where it is unavailable.
    #[must_use]
    pub const fn of_submit(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Judged(Verdict::Solved) => Some(Self(2)),
            Outcome::Judged(Verdict::NotSolved) => Some(Self(0)),
            Outcome::Unavailable(_) => None,
        }
    }

    /// Both prescribed seeds of another action; `None`, which masks the target, unless both are judged.
    #[must_use]
    pub const fn of_pair(seeds: [Outcome; 2]) -> Option<Self> {
        match seeds {
            [Outcome::Judged(first), Outcome::Judged(second)] => Some(Self(first as u8 + second as u8)),
            _ => None,
        }
    }

    /// 0, 1 or 2.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number of half outcomes came that is not 0, 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHalfOutcomes(pub u8);

impl fmt::Display for NotHalfOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "half outcomes must be 0, 1 or 2; found {}", self.0)
    }
}

impl core::error::Error for NotHalfOutcomes {}

impl TryFrom<u8> for HalfOutcomes {
    type Error = NotHalfOutcomes;
    fn try_from(halves: u8) -> Result<Self, NotHalfOutcomes> {
        if halves <= Self::PER_STATE { Ok(Self(halves)) } else { Err(NotHalfOutcomes(halves)) }
    }
}

impl From<HalfOutcomes> for u8 {
    fn from(halves: HalfOutcomes) -> Self {
        halves.0
    }
}

/// What is known of every action's success on one state: half outcomes, or `None` where the target is masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PerAction<Option<HalfOutcomes>>", into = "PerAction<Option<HalfOutcomes>>")]
pub struct StateOutcomes(PerAction<Option<HalfOutcomes>>);

/// One outcome cannot be half a success: `submit` came with a single half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitSubmit;

impl fmt::Display for SplitSubmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`submit` has one outcome: 0 or 2 half outcomes were expected; found 1")
    }
}

impl core::error::Error for SplitSubmit {}

impl StateOutcomes {
    /// # Errors
    /// [`SplitSubmit`] if `submit` comes with a single half.
    pub fn new(halves: PerAction<Option<HalfOutcomes>>) -> Result<Self, SplitSubmit> {
        if halves[Action::Submit] == Some(HalfOutcomes(1)) { Err(SplitSubmit) } else { Ok(Self(halves)) }
    }

    /// The half outcomes of one action.
    #[must_use]
    pub fn of(&self, action: Action) -> Option<HalfOutcomes> {
        self.0[action]
    }

    /// The verdict on the patch as it stands.
    #[must_use]
    pub fn submitted(&self) -> Option<Verdict> {
        self.0[Action::Submit].map(|halves| if halves.0 == 0 { Verdict::NotSolved } else { Verdict::Solved })
    }
}

impl TryFrom<PerAction<Option<HalfOutcomes>>> for StateOutcomes {
    type Error = SplitSubmit;
    fn try_from(halves: PerAction<Option<HalfOutcomes>>) -> Result<Self, SplitSubmit> {
        Self::new(halves)
    }
}

impl From<StateOutcomes> for PerAction<Option<HalfOutcomes>> {
    fn from(outcomes: StateOutcomes) -> Self {
        outcomes.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Outcome = Outcome::Judged(Verdict::Solved);
    const NO: Outcome = Outcome::Judged(Verdict::NotSolved);
    const LOST: Outcome = Outcome::Unavailable(OutcomeUnavailable::Grading);

    #[test]
    fn a_pair_counts_only_whole() {
        #[rustfmt::skip]
        let cases = [ // seeds   halves
            ([NO, NO],           Some(0)),
            ([YES, NO],          Some(1)),
            ([NO, YES],          Some(1)),
            ([YES, YES],         Some(2)),
            ([YES, LOST],        None),
            ([LOST, NO],         None),
            ([LOST, LOST],       None),
        ];
        for (seeds, halves) in cases {
            assert_eq!(HalfOutcomes::of_pair(seeds).map(HalfOutcomes::get), halves, "{seeds:?}");
        }
        for (outcome, halves) in [(YES, Some(2)), (NO, Some(0)), (LOST, None)] {
            assert_eq!(HalfOutcomes::of_submit(outcome).map(HalfOutcomes::get), halves);
        }
    }

    #[test]
    fn the_wire_builds_no_third_half_and_no_half_submission() {
        for halves in 0..=u8::MAX {
            assert_eq!(postcard::from_bytes::<HalfOutcomes>(&[halves]).is_ok(), halves <= 2, "{halves}");
            let wire = [1, halves, 0, 0, 0, 0];
            let legal = halves == 0 || halves == 2;
            assert_eq!(postcard::from_bytes::<StateOutcomes>(&wire).is_ok(), legal, "{halves}");
        }
    }
}
