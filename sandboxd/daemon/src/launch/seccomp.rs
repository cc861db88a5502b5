//! The seccomp programs of step 10, `Confined -> Sealed`.
//!
//! Compiled by the helper before anything is forked, so that a fault in the policy starts no process; installed last,
//! since the steps before need calls that the programs refuse.

use std::collections::BTreeMap;

use nix::errno::Errno;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use crate::policy::seccomp::{
    ALLOWED, ALLOWED_HERE, Calls, DENIED, DENIED_HERE, FAMILIES_REFUSED, REFUSED, REFUSED_HERE, Refused, When,
};
use crate::sys::process::errno_of;

/// The compiled programs, in the order in which they are installed.
///
/// The kernel runs all of them at each call and takes the strictest answer; of two error numbers it takes the one of
/// the program installed last. So the allow-list comes first, and what it does not know is `ENOSYS` unless a later
/// program knows it.
#[derive(Debug)]
pub(crate) struct Programs(Vec<BpfProgram>);

impl Programs {
    /// Compiles the policy for this machine.
    pub(crate) fn compile() -> Result<Self, seccompiler::BackendError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let errno = |errno: Errno| SeccompAction::Errno((errno as i32).cast_unsigned());

        let mut allowed = BTreeMap::new();
        for call in numbers(&[ALLOWED, ALLOWED_HERE]) {
            allowed.insert(call, Vec::new());
        }
        let allow_list = SeccompFilter::new(allowed, errno(Errno::ENOSYS), SeccompAction::Allow, arch)?;

        let mut denied = BTreeMap::new();
        for call in numbers(&[DENIED, DENIED_HERE]) {
            denied.insert(call, Vec::new());
        }
        refuse(&mut denied, &[REFUSED, REFUSED_HERE])?;
        let denials = SeccompFilter::new(denied, SeccompAction::Allow, errno(Errno::EPERM), arch)?;

        let mut families = BTreeMap::new();
        refuse(&mut families, &[FAMILIES_REFUSED])?;
        let families = SeccompFilter::new(families, SeccompAction::Allow, errno(Errno::EAFNOSUPPORT), arch)?;

        let mut allow_list = BpfProgram::try_from(allow_list)?;
        if arch == TargetArch::x86_64 {
            allow_list.splice(0..0, kill_x32());
        }
        Ok(Self(vec![allow_list, denials.try_into()?, families.try_into()?]))
    }

    /// Installs all of them, for good.
    pub(crate) fn install(&self) -> Result<(), Errno> {
        for program in &self.0 {
            seccompiler::apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => errno_of(&source),
                _ => Errno::EINVAL,
            })?;
        }
        Ok(())
    }

    /// Feeds every instruction to `digest`.
    pub(crate) fn each_instruction(&self, mut digest: impl FnMut(&[u8])) {
        for instruction in self.0.iter().flatten() {
            digest(&instruction.code.to_le_bytes());
            digest(&[instruction.jt, instruction.jf]);
            digest(&instruction.k.to_le_bytes());
        }
    }
}

fn numbers<'a>(lists: &'a [&'a [Calls]]) -> impl Iterator<Item = i64> + 'a {
    lists.iter().copied().flatten().flat_map(|calls| calls.calls).map(|(_, number)| *number)
}

/// Adds the conditional refusals: rules of one call are alternatives, conditions of one rule must all hold.
fn refuse(rules: &mut BTreeMap<i64, Vec<SeccompRule>>, lists: &[&[Refused]]) -> Result<(), seccompiler::BackendError> {
    for refused in lists.iter().copied().flatten() {
        let mut alternatives = vec![Vec::new()];
        for when in refused.when {
            // "Any of these bits" is one alternative a bit: the compiler's masks only know "all of these bits".
            let tests: Vec<_> = match *when {
                When::Is(index, value) => vec![(index, Dword, SeccompCmpOp::Eq, value)],
                When::IsNot(index, value) => vec![(index, Dword, SeccompCmpOp::Ne, value)],
                When::Given(index) => vec![(index, Qword, SeccompCmpOp::Ne, 0)],
                When::Has(index, bits) => (0..u32::BITS)
                    .map(|bit| 1 << bit)
                    .filter(|bit| bits & bit != 0)
                    .map(|bit| (index, Dword, SeccompCmpOp::MaskedEq(u64::from(bit)), bit))
                    .collect(),
            };
            let mut longer = Vec::with_capacity(alternatives.len() * tests.len());
            for conditions in &alternatives {
                for (index, length, operator, value) in &tests {
                    let mut conditions = Vec::clone(conditions);
                    let (operator, value) = (operator.clone(), u64::from(*value));
                    conditions.push(SeccompCondition::new(*index, length.clone(), operator, value)?);
                    longer.push(conditions);
                }
            }
            alternatives = longer;
        }
        for (_, number) in refused.calls {
            let chain = rules.entry(*number).or_default();
            for conditions in &alternatives {
                chain.push(SeccompRule::new(conditions.clone())?);
            }
        }
    }
    Ok(())
}

/// Kills a process that makes a call of the x32 ABI, which has the architecture of x86-64 and numbers of its own from
/// bit 30 on. The compiler only knows equal numbers, so these four instructions stand before its own.
fn kill_x32() -> [sock_filter; 4] {
    // `linux/bpf_common.h`: load a word of the call's record; jump if not less; jump if equal; return.
    const LOAD: u16 = 0x20;
    const JUMP_IF_NOT_LESS: u16 = 0x35;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const X32_BIT: u32 = 0x4000_0000;
    // `linux/seccomp.h`
    const KILL_PROCESS: u32 = 0x8000_0000;
    [
        sock_filter { code: LOAD, jt: 0, jf: 0, k: 0 }, // offset 0: the call's number
        sock_filter { code: JUMP_IF_NOT_LESS, jt: 0, jf: 2, k: X32_BIT },
        sock_filter { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: u32::MAX }, // a debugger's "make no call"
        sock_filter { code: RETURN, jt: 0, jf: 0, k: KILL_PROCESS },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_policy_compiles_and_no_call_is_listed_twice() {
        let programs = Programs::compile().unwrap();
        assert!(programs.0.iter().all(|program| program.len() < 4_096), "the kernel's bound on a program");
        let mut seen = BTreeSet::new();
        for number in numbers(&[ALLOWED, ALLOWED_HERE, DENIED, DENIED_HERE]) {
            assert!(seen.insert(number), "system call {number} is on two lists");
        }
        for refused in [REFUSED, REFUSED_HERE, FAMILIES_REFUSED].into_iter().flatten() {
            assert!(refused.calls.iter().all(|(_, number)| seen.contains(number)), "{}", refused.reason);
        }
        assert!(!seen.contains(&libc::SYS_clone3), "its flags are behind a pointer: ENOSYS makes libc use clone");
        assert!(!seen.contains(&libc::SYS_openat2), "its mode is behind a pointer");
    }
}
