//! Whom the files of a mount belong to inside: id-mapped mounts, and the user namespaces that describe them.
//!
//! A mount's owner outside, often root, becomes the payload inside: it may read, write and create there as the owner
//! could, and what it creates belongs to the owner outside. Everyone else's files belong to ids that no process has.

use std::fs;
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, Pid, read};
use tack_sandbox_protocol::{SetUpFailure, Stage};

use crate::launch::progress::{At, pipe};
use crate::policy::root::PAYLOAD_ID;
use crate::sys::process::{errno_of, exit_now, fork_into_user_namespace};

/// Who owns the root of a mount, on its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Where the ids below 65,536 that are not the owner's go: a range that no process and no payload has.
pub(crate) const OTHERS_HOST_ID: u32 = 0x7fc0_0000;
const OTHERS: u32 = 1 << 16;

/// The user namespaces of the mounts' owners, one an owner.
#[derive(Debug)]
pub(crate) struct IdMaps {
    host_id: u32,
    made: Vec<(Owner, OwnedFd)>,
    children: Vec<Pid>,
}

impl IdMaps {
    pub(crate) const fn new(host_id: u32) -> Self {
        Self { host_id, made: Vec::new(), children: Vec::new() }
    }

    /// Whom the owners become: the payload, as the host sees it.
    pub(crate) const fn host_id(&self) -> u32 {
        self.host_id
    }

    /// The namespace in which `owner` is the payload.
    pub(crate) fn of(&mut self, owner: Owner) -> Result<&OwnedFd, SetUpFailure> {
        let index = if let Some(index) = self.made.iter().position(|(made, _)| *made == owner) {
            index
        } else {
            let (uids, gids) = (map(owner.uid, self.host_id), map(owner.gid, self.host_id));
            let (namespace, child) = user_namespace(&uids, &gids)?;
            self.children.push(child);
            self.made.push((owner, namespace));
            self.made.len() - 1
        };
        Ok(&self.made[index].1)
    }

    /// The processes that the namespaces began with. They end by themselves, and are to be waited for some time.
    pub(crate) fn into_children(self) -> Vec<Pid> {
        self.children
    }
}

/// Lines for `uid_map`: first id on the file system, first id on the host, count.
fn map(owner: u32, host_id: u32) -> String {
    let mut lines = format!("{owner} {host_id} 1\n");
    for others in [0..owner.min(OTHERS), owner.saturating_add(1)..OTHERS] {
        if !others.is_empty() {
            lines.extend([format!("{} {} {}\n", others.start, OTHERS_HOST_ID + others.start, others.len())]);
        }
    }
    lines
}

/// Gives the payload's user namespace, that of `process`, its only user and its only group.
pub(crate) fn map_payload(process: Pid, host_id: u32) -> Result<(), SetUpFailure> {
    let line = format!("{PAYLOAD_ID} {host_id} 1\n");
    write_maps(process, &line, &line).at(Stage::UserNamespace)
}

fn write_maps(process: Pid, uids: &str, gids: &str) -> nix::Result<()> {
    let put =
        |name: &str, lines: &str| fs::write(format!("/proc/{process}/{name}"), lines).map_err(|error| errno_of(&error));
    put("uid_map", uids)?;
    put("gid_map", gids)
}

/// A user namespace with these maps, held by its descriptor, and the process that it began with, which is ending.
///
/// The child is born into the namespace and waits to be let go; everything else is done from here.
fn user_namespace(uids: &str, gids: &str) -> Result<(OwnedFd, Pid), SetUpFailure> {
    let (done_read, done_write) = pipe().at(Stage::IdMap)?;
    match fork_into_user_namespace().at(Stage::IdMap)? {
        ForkResult::Child => {
            drop(done_write);
            // Until the parent has described the namespace, or is gone: either way the pipe ends.
            let waited = read(&done_read, &mut [0]);
            exit_now(i32::from(waited.is_err()));
        }
        ForkResult::Parent { child } => {
            let described = write_maps(child, uids, gids).and_then(|()| {
                let path = format!("/proc/{child}/ns/user");
                open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            });
            drop(done_write);
            Ok((described.at(Stage::IdMap)?, child))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_becomes_the_payload_and_everyone_else_nobody() {
        let cases = [
            (0, "0 7 1\n1 2143289345 65535\n"),
            (1_000, "1000 7 1\n0 2143289344 1000\n1001 2143290345 64535\n"),
            (65_535, "65535 7 1\n0 2143289344 65535\n"),
            (4_000_000, "4000000 7 1\n0 2143289344 65536\n"),
            (u32::MAX - 1, "4294967294 7 1\n0 2143289344 65536\n"),
        ];
        for (owner, lines) in cases {
            assert_eq!(map(owner, 7), lines, "{owner}");
        }
    }
}
