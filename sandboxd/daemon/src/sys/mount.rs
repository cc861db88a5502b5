//! The mount interface of file descriptors: a mount is made, changed and given an owner before it has a place.

use std::ffi::{CStr, c_int, c_long, c_uint};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::errno::Errno;

// `linux/mount.h`. `libc` lacks some of them.
const OPEN_TREE_CLONE: c_uint = 1;
const OPEN_TREE_CLOEXEC: c_uint = libc::O_CLOEXEC as c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 0x0000_0004;
const MOVE_MOUNT_T_EMPTY_PATH: c_uint = 0x0000_0040;
const FSOPEN_CLOEXEC: c_uint = 1;
const FSMOUNT_CLOEXEC: c_uint = 1;
const FSCONFIG_SET_FLAG: c_uint = 0;
const FSCONFIG_SET_STRING: c_uint = 1;
const FSCONFIG_CMD_CREATE: c_uint = 6;
const EMPTY: &CStr = c"";

/// Attributes of a mount, `MOUNT_ATTR_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes(u64);

impl Attributes {
    pub(crate) const RDONLY: Self = Self(0x1);
    pub(crate) const NOSUID: Self = Self(0x2);
    pub(crate) const NODEV: Self = Self(0x4);
    pub(crate) const NOEXEC: Self = Self(0x8);
    const IDMAP: Self = Self(0x0010_0000);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a call is about one mount, or about all mounts beneath it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    One,
    Tree,
}

impl Reach {
    const fn flag(self) -> c_uint {
        match self {
            Self::One => 0,
            Self::Tree => libc::AT_RECURSIVE as c_uint,
        }
    }
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A detached copy of the mount at `path` beneath `directory` (`open_tree` with `OPEN_TREE_CLONE`). A last component
/// that is a symbolic link is not followed. The empty path is `directory` itself, which may be a file.
pub(crate) fn open_tree(directory: impl AsFd, path: &CStr, reach: Reach) -> nix::Result<OwnedFd> {
    let empty = if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let flags =
        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | reach.flag() | (empty | libc::AT_SYMLINK_NOFOLLOW).cast_unsigned();
    // SAFETY: `path` is a C string that outlives the call; the call writes to no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, directory.as_fd().as_raw_fd(), path.as_ptr(), flags) };
    owned(fd)
}

/// Gives the detached `mount` its place: over `path` beneath `directory`, or over `directory` itself if it is empty.
pub(crate) fn move_mount(mount: impl AsFd, directory: impl AsFd, path: &CStr) -> nix::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | if path.is_empty() { MOVE_MOUNT_T_EMPTY_PATH } else { 0 };
    let (from, to) = (mount.as_fd().as_raw_fd(), directory.as_fd().as_raw_fd());
    // SAFETY: both paths are C strings that outlive the call; the call writes to no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_move_mount, from, EMPTY.as_ptr(), to, path.as_ptr(), flags) };
    Errno::result(result).map(drop)
}

/// Sets attributes of `mount`, and makes it private.
pub(crate) fn set_attributes(mount: impl AsFd, attributes: Attributes, reach: Reach) -> nix::Result<()> {
    let attr = MountAttr { attr_set: attributes.0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    mount_setattr(mount, &attr, reach)
}

/// Sets attributes of the detached `mount`, and maps the owners of its files through `user_namespace`.
pub(crate) fn set_id_map(mount: impl AsFd, attributes: Attributes, user_namespace: impl AsFd) -> nix::Result<()> {
    let attr = MountAttr {
        attr_set: attributes.and(Attributes::IDMAP).0,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::from(user_namespace.as_fd().as_raw_fd().cast_unsigned()),
    };
    mount_setattr(mount, &attr, Reach::One)
}

fn mount_setattr(mount: impl AsFd, attr: &MountAttr, reach: Reach) -> nix::Result<()> {
    let flags = reach.flag() | libc::AT_EMPTY_PATH.cast_unsigned();
    let (fd, size) = (mount.as_fd().as_raw_fd(), size_of::<MountAttr>());
    // SAFETY: the path is a C string and `attr` a `struct mount_attr` of `size` bytes; the kernel only reads both.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, fd, EMPTY.as_ptr(), flags, ptr::from_ref(attr), size) };
    Errno::result(result).map(drop)
}

/// A new, detached file system of a type, with options; an option without a value is a flag.
pub(crate) fn new_filesystem(
    filesystem: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attributes: Attributes,
) -> nix::Result<OwnedFd> {
    // SAFETY: the name is a C string that outlives the call.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, filesystem.as_ptr(), FSOPEN_CLOEXEC) };
    let context = owned(context)?;
    for (name, value) in options {
        let (command, value) = match value {
            Some(value) => (FSCONFIG_SET_STRING, value.as_ptr()),
            None => (FSCONFIG_SET_FLAG, ptr::null()),
        };
        let (fd, name) = (context.as_raw_fd(), name.as_ptr());
        // SAFETY: name and value are C strings that outlive the call; a flag takes no value.
        let result = unsafe { libc::syscall(libc::SYS_fsconfig, fd, command, name, value, 0) };
        Errno::result(result)?;
    }
    let (fd, none) = (context.as_raw_fd(), ptr::null::<u8>());
    // SAFETY: this command takes neither name nor value.
    let result = unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0) };
    Errno::result(result)?;
    // SAFETY: the arguments are a descriptor and two numbers.
    let mount = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes.0) };
    owned(mount)
}

/// Takes over the descriptor that a system call returned.
fn owned(result: c_long) -> nix::Result<OwnedFd> {
    let fd = Errno::result(result)?;
    let fd = c_int::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just opened `fd` for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
