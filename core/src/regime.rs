//! For whom `q` and `c` hold: one repair policy, one scaffold, one budget.

use serde::{Deserialize, Serialize};

use crate::closed_enum::{closed_enum, closed_set};
use crate::digest::Digest;
use crate::limits::Limits;
use crate::text::Name;

/// One of the three, by name and by the digest of what the name stood for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The name, for people.
    pub name: Name,
    /// The digest of its definition (code, prompts, settings), for everybody else.
    pub digest: Digest,
}

/// The regime under which outcomes were collected (paper, "Action outcomes": fixed `pi`, scaffold and `B`).
///
/// Estimates mean nothing under another one, so the bundle and every decision receipt name the three.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regime {
    /// The repair policy: the model with its prompts and sampling.
    pub repair_policy: Named,
    /// The scaffold that executes it: tools, history handling, sandbox.
    pub scaffold: Named,
    /// The budget's name.
    pub budget: Name,
    /// The budget.
    pub limits: Limits,
}

closed_enum! {
    /// The three parts of a regime.
    pub enum RegimePart {
        /// The repair policy.
        RepairPolicy = "repair_policy",
        /// The scaffold.
        Scaffold = "scaffold",
        /// The budget.
        Budget = "budget",
    }
}

closed_set! {
    /// Some of the three.
    pub struct RegimeParts(u8) of RegimePart
}

impl Regime {
    /// The parts in which `self` and `other` differ. What counts is the definition: a new name for the same digest or
    /// the same limits is no difference.
    #[must_use]
    pub fn difference(&self, other: &Self) -> RegimeParts {
        let same = |part| match part {
            RegimePart::RepairPolicy => self.repair_policy.digest == other.repair_policy.digest,
            RegimePart::Scaffold => self.scaffold.digest == other.scaffold.digest,
            RegimePart::Budget => self.limits == other.limits,
        };
        RegimePart::ALL.into_iter().filter(|&part| !same(part)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;
    use std::string::ToString;

    #[test]
    fn a_regime_differs_by_definition_and_not_by_name() {
        let named = |name, byte| Named { name: Name::new(name).unwrap(), digest: Digest([byte; 32]) };
        let trained = Regime {
            repair_policy: named("policy", 1),
            scaffold: named("scaffold", 2),
            budget: Name::new("paper").unwrap(),
            limits: Limits::PAPER,
        };
        let smaller = Limits { output_tokens: Tokens(1), ..Limits::PAPER };
        #[rustfmt::skip]
        let cases = [ // other                                                             differs in
            (trained.clone(),                                                              ""),
            (Regime { repair_policy: named("renamed", 1), ..trained.clone() },             ""),
            (Regime { repair_policy: named("policy", 9), ..trained.clone() },              "repair_policy"),
            (Regime { scaffold: named("scaffold", 9), limits: smaller, ..trained.clone() }, "scaffold, budget"),
        ];
        for (other, differs) in cases {
            assert_eq!(trained.difference(&other).to_string(), differs);
        }
    }
}
