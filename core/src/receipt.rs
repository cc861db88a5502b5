//! The decision receipt: what the controller chose, on what, and why.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, ActionSet};
use crate::closed_enum::closed_enum;
use crate::decide::{Decided, FallbackReason, Stage};
use crate::digest::Digest;
use crate::estimate::Estimates;
use crate::list::List;
use crate::near_tie::is_near_tie;
use crate::regime::RegimeParts;
use crate::rule::{Choice, select};
use crate::units::{Lambda, Micros};
use crate::wire::Version;

closed_enum! {
    /// Which code ran the forward pass. Variants are only ever appended.
    pub enum Backend {
        /// The processor.
        Cpu = "cpu",
        /// A GPU of NVIDIA's.
        Cuda = "cuda",
    }
}

closed_enum! {
    /// What the forward pass computed in. Variants are only ever appended.
    pub enum Precision {
        /// IEEE single precision.
        F32 = "f32",
        /// IEEE half precision, sums in single.
        F16 = "f16",
        /// Brain float, sums in single.
        Bf16 = "bf16",
        /// Integers of 12 bits, and wider or singles in matrices whose measured error asks for it; sums are exact, then in
        /// single.
        Int12 = "int12",
    }
}

closed_enum! {
    /// What stands behind the weights.
    pub enum Training {
        /// Trained on action outcomes.
        Trained = "trained",
        /// Random weights: the estimates carry no information.
        Untrained = "untrained",
    }
}

/// Whether the estimates hold for the regime that the decision is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegimeMatch {
    /// The same repair policy, scaffold and budget.
    Same,
    /// Another regime.
    Differs(RegimeParts),
    /// Nobody said which regime the decision is for.
    Unknown,
}

/// What the decision was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionDigests {
    /// Of the state: its five fields.
    pub state: Digest,
    /// Of the intent: issue and acceptance text.
    pub intent: Digest,
    /// Of the model bundle.
    pub model: Digest,
    /// Of the regime that the model was trained under.
    pub regime: Digest,
    /// Of the sandbox policy that will confine the action; `None` where the decision is only asked for.
    pub sandbox_policy: Option<Digest>,
    /// Of the field shares.
    pub shares: Digest,
}

/// What the rule ruled: it can be recomputed from what it holds, and is, whenever it comes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawRuling", into = "RawRuling")]
pub struct Ruling {
    available: ActionSet,
    lambda: Lambda,
    precision: Precision,
    end: RulingEnd,
}

/// Either a choice by the rule, or a fallback that says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RulingEnd {
    /// The rule chose.
    Chosen {
        /// The ten estimates.
        estimates: Estimates,
        /// The winner.
        choice: Choice,
        /// Whether the precision alone could have turned the choice.
        near_tie: bool,
    },
    /// There was nothing to choose by.
    Fallback {
        /// The action that is taken instead.
        action: Action,
        /// Why.
        reason: FallbackReason,
    },
}

#[derive(Serialize, Deserialize)]
struct RawRuling {
    available: ActionSet,
    lambda: Lambda,
    precision: Precision,
    end: RawEnd,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawEnd {
    Chosen { estimates: Estimates, action: Action, near_tie: bool },
    Fallback { action: Action, reason: FallbackReason },
}

/// A ruling is not what follows from its own figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulingError {
    /// No action is available, so none can be ruled.
    NoneAvailable,
    /// The rule picks another action from these estimates.
    NotTheChoice {
        /// What the rule picks.
        expected: Action,
        /// What the record says.
        found: Action,
    },
    /// The near-tie flag is not what follows from estimates, lambda and precision.
    NotTheFlag {
        /// What the record says.
        found: bool,
    },
    /// The fallback is an action that is not available.
    FallbackUnavailable {
        /// The action.
        found: Action,
    },
}

impl fmt::Display for RulingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoneAvailable => f.write_str("no action is available"),
            Self::NotTheChoice { expected, found } => {
                write!(f, "the rule picks `{expected}` from these estimates; found `{found}`")
            }
            Self::NotTheFlag { found } => write!(f, "the near-tie flag contradicts the estimates; found {found}"),
            Self::FallbackUnavailable { found } => write!(f, "the fallback `{found}` is not available"),
        }
    }
}

impl core::error::Error for RulingError {}

impl Ruling {
    /// Applies the rule.
    ///
    /// # Errors
    /// [`RulingError::NoneAvailable`] if `available` is empty.
    pub fn choose(
        estimates: Estimates,
        available: ActionSet,
        lambda: Lambda,
        precision: Precision,
    ) -> Result<Self, RulingError> {
        let choice = select(&estimates, available, lambda).ok_or(RulingError::NoneAvailable)?;
        let near_tie = is_near_tie(&estimates, available, lambda, precision);
        Ok(Self { available, lambda, precision, end: RulingEnd::Chosen { estimates, choice, near_tie } })
    }

    /// Records an action that is taken without estimates.
    ///
    /// # Errors
    /// [`RulingError::FallbackUnavailable`] if `action` is not among `available`.
    pub fn fall_back(
        action: Action,
        reason: FallbackReason,
        available: ActionSet,
        lambda: Lambda,
        precision: Precision,
    ) -> Result<Self, RulingError> {
        if available.contains(action) {
            Ok(Self { available, lambda, precision, end: RulingEnd::Fallback { action, reason } })
        } else {
            Err(RulingError::FallbackUnavailable { found: action })
        }
    }

    /// The actions that could be chosen.
    #[must_use]
    pub const fn available(&self) -> ActionSet {
        self.available
    }

    /// The price of cost.
    #[must_use]
    pub const fn lambda(&self) -> Lambda {
        self.lambda
    }

    /// What the forward pass computed in.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// What was ruled.
    #[must_use]
    pub const fn end(&self) -> &RulingEnd {
        &self.end
    }
}

impl Decided for Ruling {
    fn action(&self) -> Action {
        match self.end {
            RulingEnd::Chosen { choice, .. } => choice.action,
            RulingEnd::Fallback { action, .. } => action,
        }
    }

    fn fallback(&self) -> Option<FallbackReason> {
        match self.end {
            RulingEnd::Chosen { .. } => None,
            RulingEnd::Fallback { reason, .. } => Some(reason),
        }
    }
}

impl TryFrom<RawRuling> for Ruling {
    type Error = RulingError;
    fn try_from(raw: RawRuling) -> Result<Self, RulingError> {
        let RawRuling { available, lambda, precision, end } = raw;
        match end {
            RawEnd::Fallback { action, reason } => Self::fall_back(action, reason, available, lambda, precision),
            RawEnd::Chosen { estimates, action: found, near_tie } => {
                let ruling = Self::choose(estimates, available, lambda, precision)?;
                match ruling.end {
                    RulingEnd::Chosen { choice, .. } if choice.action != found => {
                        Err(RulingError::NotTheChoice { expected: choice.action, found })
                    }
                    RulingEnd::Chosen { near_tie: expected, .. } if expected != near_tie => {
                        Err(RulingError::NotTheFlag { found: near_tie })
                    }
                    _ => Ok(ruling),
                }
            }
        }
    }
}

impl From<Ruling> for RawRuling {
    fn from(Ruling { available, lambda, precision, end }: Ruling) -> Self {
        let end = match end {
            RulingEnd::Chosen { estimates, choice, near_tie } => {
                RawEnd::Chosen { estimates, action: choice.action, near_tie }
            }
            RulingEnd::Fallback { action, reason } => RawEnd::Fallback { action, reason },
        };
        Self { available, lambda, precision, end }
    }
}

/// How long one stage took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// The stage.
    pub stage: Stage,
    /// Its wall time.
    pub wall: Micros,
}

/// The times of a decision's stages, in the order in which they ended. Twice the stages that there are fit.
pub type StageTimes = List<StageTime, 16>;

/// The record of one decision: enough to recompute the choice, and to name everything that it was made on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionReceipt {
    /// Version of this record.
    pub version: Version<1>,
    /// What it was made on.
    pub digests: DecisionDigests,
    /// Whether the estimates hold for the regime at hand.
    pub regime: RegimeMatch,
    /// What stands behind the weights.
    pub training: Training,
    /// Which code ran the forward pass.
    pub backend: Backend,
    /// What was ruled: estimates, lambda, availability, precision, near-tie flag.
    pub ruling: Ruling,
    /// What took how long.
    pub stage_times: StageTimes,
}

impl Decided for DecisionReceipt {
    fn action(&self) -> Action {
        self.ruling.action()
    }

    fn fallback(&self) -> Option<FallbackReason> {
        self.ruling.fallback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::PerAction;
    use crate::estimate::Estimate;
    use crate::units::{NormalizedCost, Probability};
    use crate::wire::{decode_owned, encode};
    use proptest::prelude::*;

    fn estimates(cells: [(f32, f32); 5]) -> Estimates {
        PerAction(
            cells.map(|(q, c)| Estimate {
                success: Probability::new(q).unwrap(),
                cost: NormalizedCost::new(c).unwrap(),
            }),
        )
    }

    const CELLS: [(f32, f32); 5] = [(0.5, 0.0), (0.501, 0.0), (0.25, 0.0), (0.0, 0.0), (0.0, 0.0)];

    #[test]
    fn the_near_tie_flag_follows_the_precision() {
        let rows = [(Precision::F32, false), (Precision::Bf16, true), (Precision::F16, true), (Precision::Int12, true)];
        for (precision, near_tie) in rows {
            let ruling = Ruling::choose(estimates(CELLS), ActionSet::ALL, Lambda::ZERO, precision).unwrap();
            assert!(matches!(ruling.end(), RulingEnd::Chosen { near_tie: found, .. } if *found == near_tie));
        }
    }

    #[test]
    fn a_ruling_that_does_not_follow_is_refused_on_the_wire() {
        let chosen = |action, near_tie| RawRuling {
            available: ActionSet::ALL.without(Action::TestTargeted),
            lambda: Lambda::ZERO,
            precision: Precision::F32,
            end: RawEnd::Chosen { estimates: estimates(CELLS), action, near_tie },
        };
        let fallback = |action| RawRuling {
            end: RawEnd::Fallback { action, reason: FallbackReason::DeadlineMissed },
            ..chosen(action, false)
        };
        let none = RawRuling { available: ActionSet::EMPTY, ..chosen(Action::Submit, false) };
        #[rustfmt::skip]
        let cases = [ // raw                            answer
            (chosen(Action::Continue, false),           Ok(Action::Continue)),
            (chosen(Action::Submit, false),             Err(RulingError::NotTheChoice { expected: Action::Continue, found: Action::Submit })),
            (chosen(Action::Continue, true),            Err(RulingError::NotTheFlag { found: true })),
            (none,                                      Err(RulingError::NoneAvailable)),
            (fallback(Action::Continue),                Ok(Action::Continue)),
            (fallback(Action::TestTargeted),            Err(RulingError::FallbackUnavailable { found: Action::TestTargeted })),
        ];
        for (raw, answer) in cases {
            let mut buffer = [0; 256];
            let wire = encode(&raw, &mut buffer).unwrap();
            assert_eq!(decode_owned::<Ruling>(wire).map(|it| it.action()).is_ok(), answer.is_ok(), "{answer:?}");
            assert_eq!(Ruling::try_from(raw).map(|it| it.action()), answer);
        }
    }

    proptest! {
        #[test]
        fn a_ruling_survives_the_wire(
            cells in proptest::array::uniform5((0.0f32..=1.0, 0.0f32..10.0)), bits in 1u8..32, lambda in 0.0f32..1.0,
        ) {
            let available = ActionSet::from_bits(bits).unwrap();
            let lambda = Lambda::new(lambda).unwrap();
            let ruling = Ruling::choose(estimates(cells), available, lambda, Precision::Bf16).unwrap();
            let mut buffer = [0; 256];
            let wire = encode(&ruling, &mut buffer).unwrap();
            prop_assert_eq!(decode_owned::<Ruling>(wire), Ok(ruling));
            let text = serde_json::to_string(&ruling).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ruling>(&text).unwrap(), ruling);
        }
    }
}
