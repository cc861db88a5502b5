//! What of the host a peer may be shown: what it could reach by itself, beneath what root has configured.
//!
//! The peer has opened each source with its own rights and sent the descriptor; no name of its is resolved here. Of
//! each, three things are checked: that it lies beneath a configured root, by walking up from it; that the peer may
//! read it, or write it, by asking the kernel in a process that has taken the peer's ids; and that what is to be
//! written is the peer's own. A source that belongs to somebody else is shown as anyone sees it: its owner's rights
//! are given to the payload only where the owner is the peer. A scratch writes nothing back, so it asks for what reading
//! asks for.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, stat};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::ForkResult;
use tack_sandbox_protocol::{Access, Mount, Refusal, SourceProblem};

use crate::launch::id_map::Owner;
use crate::launch::plan::Source;
use crate::serve::peer::Peer;
use crate::sys::mount::{Reach, open_tree};
use crate::sys::process::{exit_now, fork};
use crate::sys::socket::{become_user, may_access};

/// Deepest that a source may lie: as many parts as a path of `PATH_MAX` bytes can have.
const DEPTH_MAX: usize = 2_048;

/// The sources that may be shown, each with the owner whose rights the payload gets.
///
/// # Errors
/// [`Refusal::Source`], with the first mount that is not to be shown.
pub(crate) fn granted(
    mounts: &[Mount<'_>],
    sources: Vec<OwnedFd>,
    peer: &Peer,
    roots: &[PathBuf],
) -> Result<Vec<Source>, Refusal> {
    let mut granted = Vec::with_capacity(sources.len());
    for (index, source) in sources.into_iter().enumerate() {
        let refused = |problem| Refusal::Source { mount: u8::try_from(index).unwrap_or(u8::MAX), problem };
        // A count that does not fit is refused by the plan, which says so.
        let access = mounts.get(index).map_or(Access::ReadOnly, |it| it.access);
        granted.push(grant(source, access, peer, roots).map_err(refused)?);
    }
    Ok(granted)
}

fn grant(source: OwnedFd, access: Access, peer: &Peer, roots: &[PathBuf]) -> Result<Source, SourceProblem> {
    let status = fstat(&source).map_err(|_| SourceProblem::Unknown)?;
    let kind = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFDIR && kind != SFlag::S_IFREG {
        return Err(SourceProblem::Kind);
    }
    if !lies_beneath(&source, &status, roots).map_err(|_| SourceProblem::Unknown)? {
        return Err(SourceProblem::OutsideRoots);
    }
    // What the launch will do with it, tried where the answer can still be given in the peer's words.
    match open_tree(&source, c"", Reach::One) {
        Err(Errno::EINVAL) => return Err(SourceProblem::Elsewhere),
        copied => drop(copied.map_err(|_| SourceProblem::Unknown)?),
    }
    let search = if kind == SFlag::S_IFDIR { libc::X_OK } else { 0 };
    if !peer_may(&source, libc::R_OK | search, peer) {
        return Err(SourceProblem::NotReadable);
    }
    let own = status.st_uid == peer.uid;
    if access == Access::ReadWrite {
        if !own {
            return Err(SourceProblem::NotOwned);
        }
        if !peer_may(&source, libc::W_OK | search, peer) {
            return Err(SourceProblem::NotWritable);
        }
    }
    // A group of which the peer is no member lends nothing.
    let gid = if peer.is_in(status.st_gid) || peer.uid == 0 { status.st_gid } else { peer.gid };
    let owner = own.then_some(Owner { uid: status.st_uid, gid });
    Ok(Source { fd: source, owner })
}

/// Whether `source` is one of `roots` or lies beneath one: by its place in the tree, not by a name.
fn lies_beneath(source: &OwnedFd, status: &FileStat, roots: &[PathBuf]) -> nix::Result<bool> {
    let roots: Vec<(u64, u64)> = roots.iter().filter_map(|it| stat(it).ok()).map(|it| (it.st_dev, it.st_ino)).collect();
    let up = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let is_directory = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    let mut directory = if is_directory {
        openat(source, ".", up, Mode::empty())?
    } else {
        // A file has no parent of its own: the directory of its name must hold it under that name.
        let name = fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd())).map_err(|_| Errno::ENOENT)?;
        let (Some(parent), Some(last)) = (name.parent(), name.file_name()) else { return Ok(false) };
        // The kernel's name for it, which leads through no link unless somebody has put one there since.
        let how =
            OpenHow::new().flags(up).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let parent = openat2(AT_FDCWD, parent, how)?;
        let held = openat(&parent, last, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let held = fstat(&held)?;
        if (held.st_dev, held.st_ino) != (status.st_dev, status.st_ino) {
            return Ok(false);
        }
        parent
    };
    for _ in 0..DEPTH_MAX {
        let here = fstat(&directory)?;
        if roots.contains(&(here.st_dev, here.st_ino)) {
            return Ok(true);
        }
        let above = openat(&directory, "..", up, Mode::empty())?;
        let there = fstat(&above)?;
        // The top of the tree is its own parent.
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) {
            return Ok(false);
        }
        directory = above;
    }
    Ok(false)
}

/// Whether the peer may do `mode` with `source`, asked with the peer's ids in a process of its own.
fn peer_may(source: &OwnedFd, mode: i32, peer: &Peer) -> bool {
    match fork() {
        Ok(ForkResult::Child) => {
            let may = become_user(peer.uid, peer.gid, &peer.groups).and_then(|()| may_access(source, mode));
            exit_now(i32::from(may.is_err()))
        }
        Ok(ForkResult::Parent { child }) => loop {
            match waitpid(child, None) {
                Err(Errno::EINTR) => {}
                ended => break ended == Ok(WaitStatus::Exited(child, 0)),
            }
        },
        Err(_) => false,
    }
}
