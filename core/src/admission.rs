//! The admission record: why the broker let a command run, or did not.

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::digest::Digest;
use crate::wire::Version;

closed_enum! {
    /// What the broker validates before anything runs (article, "The repository is also untrusted input").
    pub enum AdmissionCheck {
        /// Which program.
        Executable = "executable",
        /// Its arguments.
        Arguments = "arguments",
        /// Where it starts.
        WorkingDirectory = "working_directory",
        /// What it may connect to.
        Network = "network",
        /// How long it may run.
        Time = "time",
        /// How much it may print.
        OutputSize = "output_size",
        /// Where it may write.
        WriteScope = "write_scope",
    }
}

closed_enum! {
    /// Why a check refused. Variants are only ever appended.
    pub enum Refusal {
        /// It is not on the list.
        NotListed = "not_listed",
        /// It is on the list of what is never allowed.
        Protected = "protected",
        /// It cannot be understood, so it cannot be checked.
        Malformed = "malformed",
        /// It asks for more than the limit.
        OverLimit = "over_limit",
        /// It leads out of the tree.
        OutsideTree = "outside_tree",
        /// The check was not made.
        NotChecked = "not_checked",
    }
}

/// What one check said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    /// Allowed, by this rule of the sandbox policy, counted from 0.
    Allowed {
        /// The rule.
        rule: u16,
    },
    /// Refused.
    Refused(Refusal),
}

/// Why a command was let run, or not. It is written before anything runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionRecord {
    /// Version of this record.
    pub version: Version<1>,
    /// Digest of the request as the broker saw it.
    pub request: Digest,
    /// Digest of the sandbox policy that the rules are counted in.
    pub sandbox_policy: Digest,
    /// Digest of the decision receipt for which the command is run; `None` where a person asked for it.
    pub decision: Option<Digest>,
    /// What each check said, in the order of [`AdmissionCheck::ALL`].
    pub checks: [CheckResult; AdmissionCheck::COUNT],
}

impl AdmissionRecord {
    /// What a check says before it was made: refused.
    pub const UNCHECKED: [CheckResult; AdmissionCheck::COUNT] =
        [CheckResult::Refused(Refusal::NotChecked); AdmissionCheck::COUNT];

    /// What one check said.
    #[must_use]
    pub const fn check(&self, check: AdmissionCheck) -> CheckResult {
        self.checks[check.index()]
    }

    /// Admitted if and only if each of the seven checks allows it.
    #[must_use]
    pub fn admitted(&self) -> bool {
        self.refusals().next().is_none()
    }

    /// The checks that refused, with the reason of each.
    pub fn refusals(&self) -> impl Iterator<Item = (AdmissionCheck, Refusal)> {
        AdmissionCheck::ALL.into_iter().zip(self.checks).filter_map(|(check, result)| match result {
            CheckResult::Allowed { .. } => None,
            CheckResult::Refused(refusal) => Some((check, refusal)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refusal_is_enough_and_an_unmade_check_refuses() {
        let record = |checks| AdmissionRecord {
            version: Version,
            request: Digest([1; 32]),
            sandbox_policy: Digest([2; 32]),
            decision: None,
            checks,
        };
        assert!(!record(AdmissionRecord::UNCHECKED).admitted());
        let allowed = [CheckResult::Allowed { rule: 0 }; AdmissionCheck::COUNT];
        assert!(record(allowed).admitted());
        for check in AdmissionCheck::ALL {
            for refusal in Refusal::ALL {
                let mut checks = allowed;
                checks[check.index()] = CheckResult::Refused(refusal);
                let record = record(checks);
                assert!(!record.admitted(), "{check}");
                assert!(record.refusals().eq([(check, refusal)]), "{check}");
                assert_eq!(record.check(check), CheckResult::Refused(refusal));
            }
        }
    }
}
