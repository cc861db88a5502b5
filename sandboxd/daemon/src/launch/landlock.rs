//! Steps 9 and 10, `Settled -> Confined -> Sealed`: the Landlock ruleset, then the seccomp programs.

use std::error::Error;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::errno::Errno;
use tack_sandbox_protocol::{Access, SetUpFailure, Stage};

use crate::launch::Launch;
use crate::launch::plan::Plan;
use crate::launch::process::Settled;
use crate::launch::progress::At;
use crate::launch::root::open_for_rule;
use crate::policy::landlock::{Beneath, RULES, TMP};
use crate::policy::mirror;
use crate::sys::process::{errno_of, landlock_abi};

/// The payload opens what the ruleset lists, and reaches no process outside its domain.
pub(crate) struct Confined<'a> {
    pub(super) launch: &'a mut Launch,
}

/// System calls on the allow-list alone.
pub(crate) struct Sealed<'a> {
    pub(super) launch: &'a mut Launch,
}

/// The oldest ABI that a sandbox is made with. From the third on, every way of changing a file is a right (the first
/// two leave `truncate` out), so the wall over files has no hole. Scopes come with the sixth; where they are missing,
/// the pid and network namespaces stand alone, and the receipt says so.
const MIN_ABI: ABI = ABI::V3;

/// The newest ABI that the rules have been tested with. A kernel with a later one enforces this one: rights that
/// nobody has tried are not handled by chance.
const MAX_ABI: ABI = ABI::V7;

/// The Landlock ABI that is enforced on this kernel; `None` below the least.
pub(crate) fn abi() -> Option<ABI> {
    let abi = ABI::from(landlock_abi().unwrap_or(0)).min(MAX_ABI);
    (abi >= MIN_ABI).then_some(abi)
}

/// Whether `abi` keeps signals and abstract sockets within the domain.
pub(crate) fn has_scopes(abi: ABI) -> bool {
    !Scope::from_all(abi).is_empty()
}

impl<'a> Settled<'a> {
    /// Before: the payload's process, unprivileged, in the finished root; everything under it can be opened.
    /// After: this process and its children open only what the rules list, at the kernel's full ABI. For good.
    /// Why here: the ruleset opens its paths, so it needs the new root; the seccomp programs would deny nothing of it,
    /// but come last so that they see every call of the payload and none of ours. Pid 1 stays outside the domain, so
    /// the payload can neither signal nor trace it.
    pub(super) fn confine(self) -> Result<Confined<'a>, SetUpFailure> {
        let abi = abi().ok_or(Errno::EOPNOTSUPP).at(Stage::Landlock)?;
        enforce(abi, &self.launch.plan).at(Stage::Landlock)?;
        self.launch.progress.took(Stage::Landlock);
        Ok(Confined { launch: self.launch })
    }
}

impl<'a> Confined<'a> {
    /// Before: everything done but the execution.
    /// After: the allow-list and the refusals hold, for good.
    pub(super) fn seal(self) -> Result<Sealed<'a>, SetUpFailure> {
        self.launch.plan.seccomp.install().at(Stage::Seccomp)?;
        self.launch.progress.took(Stage::Seccomp);
        Ok(Sealed { launch: self.launch })
    }
}

/// Confines the mirror's process, which is about to execute `program`: it reads what a resolver needs, and connects to
/// `ports` and to name servers alone, where the kernel can tell ports apart.
///
/// # Errors
/// The kernel's error number; `EOPNOTSUPP` where it would enforce only a part.
pub(crate) fn confine_mirror(program: OwnedFd, ports: &[u16]) -> nix::Result<()> {
    let abi = abi().ok_or(Errno::EOPNOTSUPP)?;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|error| errno_in(&error))?;
    // Ports come with the fourth ABI.
    let ports = if abi >= ABI::V4 { ports } else { &[] };
    if !ports.is_empty() {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(|error| errno_in(&error))?;
    }
    if has_scopes(abi) {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(|error| errno_in(&error))?;
    }
    let mut ruleset = ruleset.create().map_err(|error| errno_in(&error))?;
    let execute = AccessFs::ReadFile | AccessFs::Execute;
    ruleset = ruleset.add_rule(PathBeneath::new(program, execute)).map_err(|error| errno_in(&error))?;
    for (path, beneath, _) in mirror::RULES {
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        match open_for_rule(&path) {
            Ok(Some(path)) => {
                let rule = PathBeneath::new(path, rights(beneath, abi));
                ruleset = ruleset.add_rule(rule).map_err(|error| errno_in(&error))?;
            }
            // What it may not even look at needs no rule.
            Ok(None) | Err(Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    let resolver = (!ports.is_empty()).then_some(mirror::DNS_PORT);
    for port in ports.iter().copied().chain(resolver) {
        let rule = NetPort::new(port, AccessNet::ConnectTcp);
        ruleset = ruleset.add_rule(rule).map_err(|error| errno_in(&error))?;
    }
    fully(&ruleset.restrict_self().map_err(|error| errno_in(&error))?.ruleset)
}

/// Refused, never degraded.
fn fully(status: &RulesetStatus) -> nix::Result<()> {
    match status {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => Err(Errno::EOPNOTSUPP),
    }
}

fn enforce(abi: ABI, plan: &Plan) -> nix::Result<()> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|error| errno_in(&error))?;
    if has_scopes(abi) {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(|error| errno_in(&error))?;
    }
    let mut ruleset = ruleset.create().map_err(|error| errno_in(&error))?;
    let mut rule = |path: OwnedFd, beneath: Beneath, is_directory: bool| {
        let mut access = rights(beneath, abi);
        if !is_directory {
            access &= AccessFs::from_file(abi);
        }
        // Not `path_beneath_rules`: it silently skips a path that it cannot open.
        (&mut ruleset).add_rule(PathBeneath::new(path, access)).map(drop).map_err(|error| errno_in(&error))
    };
    let listed = RULES.iter().map(|(path, beneath, _)| (*path, *beneath)).chain([TMP]);
    for (path, beneath) in listed {
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        if let Some(path) = open_for_rule(&path)? {
            rule(path, beneath, true)?;
        }
    }
    for mount in &plan.mounts {
        let beneath = match mount.access {
            Access::ReadOnly => Beneath::Execute,
            Access::ReadWrite | Access::Scratch => Beneath::Own,
        };
        let mut path = Vec::new();
        for component in &mount.target {
            path.push(b'/');
            path.extend_from_slice(component.to_bytes());
        }
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        // A mount beneath another may be out of the payload's sight: then there is nothing to allow.
        match open_for_rule(&path) {
            Ok(Some(path)) => rule(path, beneath, mount.is_directory)?,
            Ok(None) => return Err(Errno::ENOENT),
            Err(Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    fully(&ruleset.restrict_self().map_err(|error| errno_in(&error))?.ruleset)
}

fn rights(beneath: Beneath, abi: ABI) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    match beneath {
        Beneath::List => AccessFs::ReadDir.into(),
        Beneath::Read => read,
        Beneath::Execute => read | AccessFs::Execute,
        Beneath::Update => read | AccessFs::WriteFile | AccessFs::Truncate,
        Beneath::Devices => {
            let update = read | AccessFs::WriteFile | AccessFs::Truncate;
            // The right to control devices comes with the fifth ABI.
            update | (AccessFs::from_all(abi) & AccessFs::IoctlDev)
        }
        Beneath::Own => AccessFs::from_all(abi),
    }
}

/// The error number behind one of the crate's errors, which say in words what the kernel said in a number.
fn errno_in(error: &(dyn Error + 'static)) -> Errno {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return errno_of(error);
        }
        next = error.source();
    }
    Errno::EINVAL
}

/// An ABI's number, as the kernel counts.
pub(crate) fn number(abi: ABI) -> u8 {
    u8::try_from(abi as i32).unwrap_or(u8::MAX)
}
