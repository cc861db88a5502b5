//! What evidence is bound to, and whether it still holds.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_enum::{closed_enum, closed_set};
use crate::digest::Digest;

closed_enum! {
    /// The five things that evidence is bound to (article: `V(final state, intent, patch, environment)`, and `V`).
    pub enum BindingPart {
        /// The issue and the acceptance text.
        Intent = "intent",
        /// The tree after the patch was applied.
        Tree = "tree",
        /// The patch, byte for byte.
        Patch = "patch",
        /// Dependencies, toolchain, services, fixtures.
        Environment = "environment",
        /// Tests, runner and mutants.
        Verifier = "verifier",
    }
}

closed_set! {
    /// Some of the five.
    pub struct BindingParts(u8) of BindingPart
}

/// The five digests that a piece of evidence is about. Any of them moves, the evidence is expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Binding {
    /// Of the issue and the acceptance text.
    pub intent: Digest,
    /// Of the tree after the patch was applied.
    pub tree: Digest,
    /// Of the patch.
    pub patch: Digest,
    /// Of the environment.
    pub environment: Digest,
    /// Of tests, runner and mutants.
    pub verifier: Digest,
}

impl Binding {
    /// One of the five.
    #[must_use]
    pub const fn of(&self, part: BindingPart) -> Digest {
        match part {
            BindingPart::Intent => self.intent,
            BindingPart::Tree => self.tree,
            BindingPart::Patch => self.patch,
            BindingPart::Environment => self.environment,
            BindingPart::Verifier => self.verifier,
        }
    }
}

/// The five digests as they are here and now; `None` for one that cannot be computed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Present {
    /// Of the issue and the acceptance text.
    pub intent: Option<Digest>,
    /// Of the tree with the patch applied.
    pub tree: Option<Digest>,
    /// Of the patch.
    pub patch: Option<Digest>,
    /// Of the environment.
    pub environment: Option<Digest>,
    /// Of tests, runner and mutants.
    pub verifier: Option<Digest>,
}

impl Present {
    /// One of the five.
    #[must_use]
    pub const fn of(&self, part: BindingPart) -> Option<Digest> {
        match part {
            BindingPart::Intent => self.intent,
            BindingPart::Tree => self.tree,
            BindingPart::Patch => self.patch,
            BindingPart::Environment => self.environment,
            BindingPart::Verifier => self.verifier,
        }
    }
}

impl From<Binding> for Present {
    fn from(binding: Binding) -> Self {
        Self {
            intent: Some(binding.intent),
            tree: Some(binding.tree),
            patch: Some(binding.patch),
            environment: Some(binding.environment),
            verifier: Some(binding.verifier),
        }
    }
}

/// Whether evidence still holds here. Whoever relies on it relies on [`Standing::Holds`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// All five digests are what they were.
    Holds,
    /// At least one is another. That is certain, whatever cannot be told about the rest.
    Expired {
        /// What moved.
        moved: BindingParts,
        /// What could not be compared.
        unknown: BindingParts,
    },
    /// None is seen to have moved, but not all could be compared. Not a proof of anything.
    CannotTell {
        /// What could not be compared.
        unknown: BindingParts,
    },
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.write_str("holds"),
            Self::Expired { moved, unknown } if unknown.is_empty() => write!(f, "expired: {moved} moved"),
            Self::Expired { moved, unknown } => write!(f, "expired: {moved} moved; cannot tell: {unknown}"),
            Self::CannotTell { unknown } => write!(f, "cannot tell: {unknown}"),
        }
    }
}

impl Binding {
    /// Compares what the evidence is about with what is here.
    #[must_use]
    pub fn standing(&self, present: &Present) -> Standing {
        let mut moved = BindingParts::EMPTY;
        let mut unknown = BindingParts::EMPTY;
        for part in BindingPart::ALL {
            match present.of(part) {
                None => unknown = unknown.with(part),
                Some(found) if found != self.of(part) => moved = moved.with(part),
                Some(_) => {}
            }
        }
        match (moved.is_empty(), unknown.is_empty()) {
            (true, true) => Standing::Holds,
            (true, false) => Standing::CannotTell { unknown },
            (false, _) => Standing::Expired { moved, unknown },
        }
    }
}

/// An explicit rule by which evidence survives a change that does not touch what it is about.
///
/// Article, "Evidence also has a state boundary": unaffected evidence may remain valid only under an explicit reuse
/// rule. The rule's author vouches with an impact set, the record of which is digested here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReuseRule {
    /// Digest of the rule's text.
    pub rule: Digest,
    /// Digest of the computed impact set: what the change can reach.
    pub impact_set: Digest,
    /// What may have moved without touching this evidence. Never the intent or the verifier: see
    /// [`ReuseRule::excuses`].
    pub unaffected: BindingParts,
}

impl ReuseRule {
    /// The parts that this rule excuses.
    ///
    /// Another intent asks another question, and another verifier gives another answer: no impact set reaches those.
    #[must_use]
    pub const fn excuses(&self) -> BindingParts {
        self.unaffected.difference(BindingParts::EMPTY.with(BindingPart::Intent).with(BindingPart::Verifier))
    }
}

impl Standing {
    /// The standing after a reuse rule has excused what moved. What cannot be told stays so: a rule excuses a known
    /// change, not ignorance.
    #[must_use]
    pub const fn under(self, rule: &ReuseRule) -> Self {
        match self {
            Self::Expired { moved, unknown } => {
                let moved = moved.difference(rule.excuses());
                match (moved.is_empty(), unknown.is_empty()) {
                    (true, true) => Self::Holds,
                    (true, false) => Self::CannotTell { unknown },
                    (false, _) => Self::Expired { moved, unknown },
                }
            }
            Self::Holds | Self::CannotTell { .. } => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec::Vec;

    const WAS: Binding = Binding {
        intent: Digest([1; 32]),
        tree: Digest([2; 32]),
        patch: Digest([3; 32]),
        environment: Digest([4; 32]),
        verifier: Digest([5; 32]),
    };
    const OTHER: Digest = Digest([9; 32]);

    fn parts(members: &[BindingPart]) -> BindingParts {
        members.iter().copied().collect()
    }

    #[test]
    fn holds_expired_and_cannot_tell() {
        use BindingPart::{Environment, Intent, Tree};
        let here = Present::from(WAS);
        #[rustfmt::skip]
        let cases = [ // here                                                       standing
            (here,                                                                  "holds"),
            (Present { tree: Some(OTHER), ..here },                                 "expired: tree moved"),
            (Present { intent: Some(OTHER), environment: Some(OTHER), ..here },     "expired: intent, environment moved"),
            (Present { tree: None, ..here },                                        "cannot tell: tree"),
            (Present { tree: None, intent: Some(OTHER), ..here },                   "expired: intent moved; cannot tell: tree"),
            (Present::default(),                                                    "cannot tell: intent, tree, patch, environment, verifier"),
        ];
        for (present, standing) in cases {
            assert_eq!(WAS.standing(&present).to_string(), standing);
        }
        let rule =
            |unaffected: &[BindingPart]| ReuseRule { rule: OTHER, impact_set: OTHER, unaffected: parts(unaffected) };
        let rebased = WAS.standing(&Present { tree: Some(OTHER), environment: Some(OTHER), ..here });
        assert_eq!(rebased.under(&rule(&[Tree, Environment])), Standing::Holds);
        assert_eq!(rebased.under(&rule(&[Tree])).to_string(), "expired: environment moved");
        let reworded = WAS.standing(&Present { intent: Some(OTHER), ..here });
        assert_eq!(reworded.under(&rule(&[Intent])), reworded, "no rule excuses another intent");
        let blind = WAS.standing(&Present { tree: None, ..here });
        assert_eq!(blind.under(&rule(&[Tree])), blind, "no rule excuses ignorance");
    }

    /// The slow, obvious twin: lists of names.
    fn naive(states: [Option<bool>; 5]) -> (Vec<usize>, Vec<usize>) {
        let moved = (0..5).filter(|&part| states[part] == Some(false)).collect();
        let unknown = (0..5).filter(|&part| states[part].is_none()).collect();
        (moved, unknown)
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(states in proptest::array::uniform5(proptest::option::of(any::<bool>()))) {
            let digest = |part: BindingPart| states[part.index()].map(|same| if same { WAS.of(part) } else { OTHER });
            let present = Present {
                intent: digest(BindingPart::Intent),
                tree: digest(BindingPart::Tree),
                patch: digest(BindingPart::Patch),
                environment: digest(BindingPart::Environment),
                verifier: digest(BindingPart::Verifier),
            };
            let indices = |parts: BindingParts| parts.iter().map(BindingPart::index).collect::<Vec<_>>();
            let found = match WAS.standing(&present) {
                Standing::Holds => (Vec::new(), Vec::new()),
                Standing::Expired { moved, unknown } => (indices(moved), indices(unknown)),
                Standing::CannotTell { unknown } => (Vec::new(), indices(unknown)),
            };
            prop_assert_eq!(found, naive(states));
        }
    }
}
