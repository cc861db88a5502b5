//! Who is at the other end of a Unix socket, and what they may do.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use nix::errno::Errno;

/// The supplementary groups of the process that connected (`SO_PEERGROUPS`), as the kernel kept them then.
pub(crate) fn peer_groups(socket: impl AsFd) -> nix::Result<Vec<libc::gid_t>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let room = groups.len() * size_of::<libc::gid_t>();
        let mut length = libc::socklen_t::try_from(room).map_err(|_| Errno::EOVERFLOW)?;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
        // SAFETY: the buffer has `length` bytes, of integers for which every value is one; the kernel writes no more.
        let result = unsafe { libc::getsockopt(fd, level, name, groups.as_mut_ptr().cast(), &raw mut length) };
        let needed = length as usize / size_of::<libc::gid_t>();
        match Errno::result(result) {
            Ok(_) => {
                groups.truncate(needed);
                return Ok(groups);
            }
            Err(Errno::ERANGE) if needed > groups.len() => groups.resize(needed, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether this process, with its effective ids, may do `mode` (`R_OK`, `W_OK`, `X_OK`) with what `fd` is open on.
pub(crate) fn may_access(fd: impl AsFd, mode: c_int) -> nix::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path is an empty C string; the call writes to no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_fd().as_raw_fd(), c"".as_ptr(), mode, flags) };
    Errno::result(result).map(drop)
}

/// Takes another user's ids for good: no capability is left where the user is not root.
pub(crate) fn become_user(uid: libc::uid_t, gid: libc::gid_t, groups: &[libc::gid_t]) -> nix::Result<()> {
    let list = if groups.is_empty() { ptr::null() } else { groups.as_ptr() };
    // SAFETY: the list has as many ids as are said; the kernel only reads it.
    Errno::result(unsafe { libc::setgroups(groups.len(), list) })?;
    // SAFETY: the arguments are numbers.
    Errno::result(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: the arguments are numbers.
    Errno::result(unsafe { libc::setresuid(uid, uid, uid) }).map(drop)
}
