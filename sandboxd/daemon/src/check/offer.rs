//! The features of the kernel and of the host, one by one.

use std::fs;
use std::path::Path;

use nix::sys::utsname::uname;
use nix::unistd::{Pid, geteuid};

use crate::group::Hierarchies;
use crate::launch::landlock;
use crate::sys::mount::{Reach, open_tree};
use crate::sys::process::{landlock_abi, pidfd_open};

/// One feature, whether it is there, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The feature.
    pub name: &'static str,
    /// What there is of it, or what is missing.
    pub found: Result<String, String>,
    /// Whether there is no sandbox without it.
    pub required: bool,
    /// What it is for, or what its absence means.
    pub meaning: &'static str,
}

/// Looks at each feature. Nothing is changed by looking.
#[must_use]
pub fn offers() -> Vec<Offer> {
    let mut offers = vec![
        required("kernel", kernel(), "the release that the rest is about"),
        required("root", root(), "namespaces and mounts are made by root; the payload is nobody"),
        required("user_namespaces", user_namespaces(), "host uid 0 does not exist inside"),
    ];
    for (name, file, meaning) in NAMESPACES {
        offers.push(required(name, present(file), meaning));
    }
    offers.extend([
        required("mount_api", mount_api(), "mounts are made read-only and given an owner before they have a place"),
        required("pidfd", pidfd(), "a process is killed by what it is, not by a number that may be another's by then"),
        required("seccomp", present("/proc/sys/kernel/seccomp/actions_avail"), "system calls by an allow-list"),
        required("landlock", landlock_offer(), "a second wall over files, behind the mounts"),
        optional("landlock_scopes", scopes(), "without: signals and abstract sockets are kept in by namespaces alone"),
    ]);
    offers.extend(controllers());
    offers
}

const NAMESPACES: [(&str, &str, &str); 6] = [
    ("mount_namespace", "/proc/self/ns/mnt", "an own mount table"),
    ("pid_namespace", "/proc/self/ns/pid", "own processes alone are seen, and all die together"),
    ("network_namespace", "/proc/self/ns/net", "loopback and nothing else"),
    ("ipc_namespace", "/proc/self/ns/ipc", "no shared memory with the host"),
    ("uts_namespace", "/proc/self/ns/uts", "the host's name is hidden"),
    ("cgroup_namespace", "/proc/self/ns/cgroup", "the host's groups are hidden"),
];

fn required(name: &'static str, found: Result<String, String>, meaning: &'static str) -> Offer {
    Offer { name, found, required: true, meaning }
}

fn optional(name: &'static str, found: Result<String, String>, meaning: &'static str) -> Offer {
    Offer { name, found, required: false, meaning }
}

fn present(file: &str) -> Result<String, String> {
    if Path::new(file).exists() { Ok(file.into()) } else { Err(format!("`{file}` is not there")) }
}

fn kernel() -> Result<String, String> {
    let name = uname().map_err(|errno| errno.to_string())?;
    Ok(format!("{} {}", name.sysname().display(), name.release().display()))
}

fn root() -> Result<String, String> {
    let uid = geteuid();
    if uid.is_root() { Ok("uid 0".into()) } else { Err(format!("uid {uid}: run as root, or through sudo")) }
}

fn user_namespaces() -> Result<String, String> {
    present("/proc/self/ns/user")?;
    let file = "/proc/sys/user/max_user_namespaces";
    let most = fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"))?;
    match most.trim() {
        "0" => Err(format!("`{file}` is 0: the host forbids them")),
        most => Ok(format!("at most {most}")),
    }
}

fn mount_api() -> Result<String, String> {
    open_tree(nix::fcntl::AT_FDCWD, c"/", Reach::One)
        .map(|_| "open_tree".into())
        .map_err(|errno| format!("open_tree: {errno}"))
}

fn pidfd() -> Result<String, String> {
    pidfd_open(Pid::this()).map(|_| "pidfd_open".into()).map_err(|errno| format!("pidfd_open: {errno}"))
}

fn landlock_offer() -> Result<String, String> {
    match (landlock_abi(), landlock::abi()) {
        (Ok(kernel), Some(enforced)) => {
            Ok(format!("ABI {kernel}, of which {} is enforced", landlock::number(enforced)))
        }
        (Ok(kernel), None) => Err(format!("ABI {kernel}; at least 3 is needed (Linux 6.2)")),
        (Err(errno), _) => Err(format!("{errno}: not built in, or not among the security modules of the boot line")),
    }
}

fn scopes() -> Result<String, String> {
    match landlock::abi() {
        Some(abi) if landlock::has_scopes(abi) => Ok("signals and abstract sockets".into()),
        _ => Err("they come with ABI 6 (Linux 6.12)".into()),
    }
}

/// Where each controller is. A missing one means a limit that is listed as inactive in every receipt.
fn controllers() -> Vec<Offer> {
    let found = Hierarchies::find().map_err(|errno| errno.to_string());
    let place = |name: &'static str| match &found {
        Err(error) => Err(error.clone()),
        Ok(hierarchies) => hierarchies.describe(name).ok_or_else(|| "no hierarchy of control groups has it".to_owned()),
    };
    vec![
        optional("memory_controller", place("memory"), "without: no limit on memory, and no peak in receipts"),
        optional("pids_controller", place("pids"), "without: RLIMIT_NPROC alone limits processes"),
        optional("cpu_accounting", place("cpuacct"), "without: CPU time is limited for each process alone"),
    ]
}
