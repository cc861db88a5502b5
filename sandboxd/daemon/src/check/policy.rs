//! The sandbox policy in words: what is allowed, denied or hidden, each with its reason.

use crate::policy::{landlock, root, seccomp};

/// One entry of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyLine {
    /// Which part of the policy, in words.
    pub part: &'static str,
    /// What it is about: system calls or paths.
    pub subjects: Vec<&'static str>,
    /// Why.
    pub reason: &'static str,
}

/// The whole policy, in the order in which its parts stand in the source.
#[must_use]
pub fn policy() -> Vec<PolicyLine> {
    let names = |calls: &[seccomp::Call]| calls.iter().map(|(name, _)| name.trim_start_matches("SYS_")).collect();
    let mut lines = Vec::new();
    for (part, lists) in [
        ("allowed call", [seccomp::ALLOWED, seccomp::ALLOWED_HERE]),
        ("denied call", [seccomp::DENIED, seccomp::DENIED_HERE]),
    ] {
        for calls in lists.into_iter().flatten() {
            lines.push(PolicyLine { part, subjects: names(calls.calls), reason: calls.reason });
        }
    }
    for refused in [seccomp::REFUSED, seccomp::REFUSED_HERE, seccomp::FAMILIES_REFUSED].into_iter().flatten() {
        lines.push(PolicyLine { part: "refused argument", subjects: names(refused.calls), reason: refused.reason });
    }
    for (path, _, reason) in landlock::RULES {
        lines.push(PolicyLine { part: "file access", subjects: vec![path], reason });
    }
    for (name, reason) in root::ETC_FROM_HOST {
        lines.push(PolicyLine { part: "file of /etc from the host", subjects: vec![name], reason });
    }
    for (name, reason) in root::PROC_MASKED {
        lines.push(PolicyLine { part: "masked under /proc", subjects: vec![name], reason });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_subject_and_a_reason() {
        let lines = policy();
        assert!(lines.iter().all(|line| !line.subjects.is_empty() && !line.reason.is_empty()));
        let calls: usize =
            lines.iter().filter(|line| line.part == "allowed call").map(|line| line.subjects.len()).sum();
        assert!((200..350).contains(&calls), "{calls} calls are allowed");
    }
}
