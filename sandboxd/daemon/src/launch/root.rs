//! Step 3, `Isolated -> Rooted`: a root made of listed parts.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat, makedev, mkdirat, mknodat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchdir, fchownat, pivot_root, symlinkat, unlinkat, write};
use tack_sandbox_protocol::{RunLimits, SetUpFailure, Stage};

use crate::launch::Launch;
use crate::launch::namespaces::Isolated;
use crate::launch::plan::{Plan, PlannedMount, SystemEntry};
use crate::launch::progress::At;
use crate::policy;
use crate::sys::mount::{Attributes, Reach, move_mount, new_filesystem, open_tree, set_attributes};

/// `/` is the sandbox's own, and nothing of the host's tree can be reached but what was attached to it.
pub(crate) struct Rooted<'a> {
    pub(super) launch: &'a mut Launch,
}

/// The root holds names, small files and mount points alone.
const ROOT_OPTIONS: [(&CStr, Option<&CStr>); 3] =
    [(c"mode", Some(c"0755")), (c"size", Some(c"1m")), (c"nr_inodes", Some(c"4096"))];

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn readable() -> Mode {
    Mode::from_bits_truncate(0o755)
}

impl<'a> Isolated<'a> {
    /// Before: own mount namespace, still a copy of the host's; the plan's mounts are detached and already read-only
    /// where they should be.
    /// After: `/` is a read-only tmpfs with the system directories, a made `/etc`, own `/tmp`, `/dev` and `/proc`,
    /// and the request's mounts; the host's root is detached; no descriptor of a mount is open.
    /// Why here: it takes root's capabilities in the initial user namespace, which the next steps give up.
    pub(super) fn root(self) -> Result<Rooted<'a>, SetUpFailure> {
        let Launch { plan, progress, .. } = &mut *self.launch;
        let root = new_filesystem(c"tmpfs", &ROOT_OPTIONS, Attributes::NOSUID).at(Stage::Root)?;
        // Attached over the old root, since no other directory is sure to be there. The old root goes by `pivot_root`.
        move_mount(&root, AT_FDCWD, c"/").at(Stage::Root)?;
        for name in [c"etc", c"var", c"tmp", c"dev", c"proc", c"run", c"root", c"home"] {
            mkdirat(&root, name, readable()).at(Stage::Root)?;
        }
        attach_system(&root, std::mem::take(&mut plan.system)).at(Stage::Root)?;
        progress.took(Stage::Root);

        make_etc(&root).at(Stage::Etc)?;
        progress.took(Stage::Etc);

        let tmp = bounded_tmpfs(&plan.limits).at(Stage::Tmp)?;
        move_mount(&tmp, &root, c"tmp").at(Stage::Tmp)?;
        progress.took(Stage::Tmp);

        make_dev(&root, plan).at(Stage::Dev)?;
        progress.took(Stage::Dev);

        make_proc(&root).at(Stage::Proc)?;
        progress.took(Stage::Proc);

        // Directories are made on the way to a target only in these two: never in what belongs to the host.
        let own = [fstat(&root).at(Stage::Mounts)?.st_dev, fstat(&tmp).at(Stage::Mounts)?.st_dev];
        // Outermost first, so that a mount inside another is not covered by it; among equals in the request's order.
        let mut order: Vec<usize> = (0..plan.mounts.len()).collect();
        order.sort_by_key(|index| plan.mounts.get(*index).map(|it| it.target.len()));
        for index in order {
            let Some(mount) = plan.mounts.get_mut(index) else { continue };
            overlay(&root, mount, &plan.limits).and_then(|()| attach(&root, mount, &own)).at(Stage::Mounts).map_err(
                |mut failure| {
                    failure.mount = u8::try_from(index).ok();
                    failure
                },
            )?;
        }
        progress.took(Stage::Mounts);

        set_attributes(&root, Attributes::RDONLY, Reach::One).at(Stage::Pivot)?;
        fchdir(&root).at(Stage::Pivot)?;
        // The old root lands on top of the new one, at the same place, and is taken off again.
        pivot_root(".", ".").at(Stage::Pivot)?;
        umount2(".", MntFlags::MNT_DETACH).at(Stage::Pivot)?;
        nix::unistd::chdir("/").at(Stage::Pivot)?;
        progress.took(Stage::Pivot);
        Ok(Rooted { launch: self.launch })
    }
}

fn attach_system(root: &OwnedFd, entries: Vec<SystemEntry>) -> nix::Result<()> {
    for entry in entries {
        match entry {
            SystemEntry::Link { name, target } => symlinkat(target.as_c_str(), root, name.as_c_str())?,
            SystemEntry::Mount { mount, name, is_directory } => {
                make_point(root, &name, is_directory)?;
                move_mount(mount, root, &name)?;
            }
        }
    }
    Ok(())
}

fn make_etc(root: &OwnedFd) -> nix::Result<()> {
    for (name, content) in policy::root::ETC {
        let path = format!("etc/{name}");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = openat(root, path.as_str(), flags, Mode::from_bits_truncate(0o644))?;
        // A small write to a fresh tmpfs file is whole or fails.
        write(&file, content.as_bytes())?;
    }
    for (path, target) in policy::root::LINKS.iter().filter(|(path, _)| !path.starts_with("dev/")) {
        symlinkat(*target, root, *path)?;
    }
    Ok(())
}

/// A tmpfs of the request's size, for everyone. Its pages are charged to the run's memory limit.
fn bounded_tmpfs(limits: &RunLimits) -> nix::Result<OwnedFd> {
    let bytes = limits.tmp_bytes;
    let size = CString::new(bytes.to_string()).map_err(|_| Errno::EINVAL)?;
    // One inode for each 4 KiB page, as the kernel gives by default; at least enough for an empty suite.
    let inodes = CString::new((bytes / 4_096).max(64).to_string()).map_err(|_| Errno::EINVAL)?;
    let options = [(c"mode", Some(c"1777")), (c"size", Some(&*size)), (c"nr_inodes", Some(&*inodes))];
    new_filesystem(c"tmpfs", &options, Attributes::NOSUID.and(Attributes::NODEV))
}

fn make_dev(root: &OwnedFd, plan: &Plan) -> nix::Result<()> {
    let options = [(c"mode", Some(c"0755")), (c"size", Some(c"64k")), (c"nr_inodes", Some(c"64"))];
    let dev = new_filesystem(c"tmpfs", &options, Attributes::NOSUID.and(Attributes::NOEXEC))?;
    move_mount(&dev, root, c"dev")?;
    for (name, major, minor) in policy::root::DEVICES {
        let mode = Mode::from_bits_truncate(0o666);
        mknodat(&dev, name, SFlag::S_IFCHR, mode, makedev(u64::from(major), u64::from(minor)))?;
    }
    for name in [c"pts", c"shm"] {
        mkdirat(&dev, name, readable())?;
    }
    let plain = Attributes::NOSUID.and(Attributes::NOEXEC);
    // The host has one number of pseudo-terminals for all instances (kernel.pty.max, 4,096 by default).
    let pts_options =
        [(c"newinstance", None), (c"ptmxmode", Some(c"0666")), (c"mode", Some(c"0620")), (c"max", Some(c"64"))];
    move_mount(new_filesystem(c"devpts", &pts_options, plain)?, &dev, c"pts")?;
    move_mount(bounded_tmpfs(&plan.limits)?, &dev, c"shm")?;
    for (path, target) in policy::root::LINKS {
        if let Some(name) = path.strip_prefix("dev/") {
            symlinkat(target, &dev, name)?;
        }
    }
    set_attributes(&dev, Attributes::RDONLY, Reach::One)
}

/// The run's own `/proc`: it lists the pid namespace that this process is the first of.
fn make_proc(root: &OwnedFd) -> nix::Result<()> {
    let plain = Attributes::NOSUID.and(Attributes::NODEV).and(Attributes::NOEXEC);
    let proc = new_filesystem(c"proc", &[], plain)?;
    move_mount(&proc, root, c"proc")?;
    for name in policy::root::PROC_READ_ONLY {
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let Some(tree) = present(open_tree(&proc, &name, Reach::One))? else { continue };
        set_attributes(&tree, plain.and(Attributes::RDONLY), Reach::One)?;
        move_mount(&tree, &proc, &name)?;
    }
    // The null device made a moment ago, by root, in a `/dev` that the payload has never seen (CVE-2025-31133).
    for (name, _) in policy::root::PROC_MASKED {
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        if present(openat(&proc, name.as_c_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()))?.is_some() {
            let null = open_tree(root, c"dev/null", Reach::One)?;
            set_attributes(&null, Attributes::RDONLY.and(Attributes::NOSUID).and(Attributes::NOEXEC), Reach::One)?;
            move_mount(&null, &proc, &name)?;
        }
    }
    Ok(())
}

fn present<T>(result: nix::Result<T>) -> nix::Result<Option<T>> {
    match result {
        Err(Errno::ENOENT) => Ok(None),
        result => result.map(Some),
    }
}

/// Where the parts of an overlay have a place while it is made: older kernels take none without.
const PARTS: [&CStr; 2] = [c".lower", c".upper"];

/// Puts an overlay in the place of a scratch's directory: that directory below, memory of the run's own above. It is
/// made by root in the initial user namespace, so that directories can be renamed in it and nobody inside can take it
/// apart.
fn overlay(root: &OwnedFd, mount: &mut PlannedMount, limits: &RunLimits) -> nix::Result<()> {
    let (Some(top), Some(lower)) = (mount.scratch, mount.detached.as_ref()) else { return Ok(()) };
    let upper = bounded_tmpfs(limits)?;
    // What is there at the top of the overlay has the attributes of the upper directory.
    let mode = Mode::from_bits_truncate(top.mode) & Mode::from_bits_truncate(0o7777);
    for (name, mode) in [(c"upper", mode), (c"work", Mode::S_IRWXU)] {
        mkdirat(&upper, name, Mode::S_IRWXU)?;
        fchmodat(&upper, name, mode, FchmodatFlags::FollowSymlink)?;
    }
    fchownat(&upper, c"upper", Some(Uid::from_raw(top.uid)), Some(Gid::from_raw(top.gid)), AtFlags::empty())?;
    // By the number of our own descriptor: no name of the host's is resolved.
    let path =
        |below: &str| CString::new(format!("/proc/self/fd/{}/{below}", root.as_raw_fd())).map_err(|_| Errno::EINVAL);
    for (name, part) in PARTS.iter().zip([lower, &upper]) {
        mkdirat(root, *name, readable())?;
        move_mount(part, root, name)?;
    }
    let (lower, upper, work) = (path(".lower")?, path(".upper/upper")?, path(".upper/work")?);
    let options = [
        (c"lowerdir", Some(&*lower)),
        (c"upperdir", Some(&*upper)),
        (c"workdir", Some(&*work)),
        // A directory of the lower one can be renamed; a copy is whole, since nothing above it is to be trusted.
        (c"redirect_dir", Some(c"on")),
        (c"metacopy", Some(c"off")),
        (c"xino", Some(c"auto")),
        (c"volatile", None),
    ];
    let made = new_filesystem(c"overlay", &options, Attributes::NOSUID.and(Attributes::NODEV))?;
    for name in PARTS {
        let name = name.to_str().map_err(|_| Errno::EINVAL)?;
        umount2(path(name)?.as_c_str(), MntFlags::MNT_DETACH)?;
        unlinkat(root, name, UnlinkatFlags::RemoveDir)?;
    }
    mount.detached = Some(made);
    Ok(())
}

/// Puts one of the request's mounts in its place. Missing parents are made where the parent is one of the sandbox's
/// `own` file systems, known by their device numbers; in anything that came from the host, a missing target is an error.
fn attach(root: &OwnedFd, mount: &mut PlannedMount, own: &[u64]) -> nix::Result<()> {
    let (Some((last, parents)), Some(detached)) = (mount.target.split_last(), mount.detached.take()) else {
        return Err(Errno::EINVAL);
    };
    let mut directory = open_directory(root, c".")?;
    for name in parents {
        if own.contains(&fstat(&directory)?.st_dev) {
            make_point(&directory, name, true)?;
        }
        directory = open_directory(&directory, name)?;
    }
    if own.contains(&fstat(&directory)?.st_dev) {
        make_point(&directory, last, mount.is_directory)?;
    }
    // The point itself, never what a symbolic link at its place would lead to.
    let kind = if mount.is_directory { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | kind;
    let point = openat(&directory, last.as_c_str(), flags, Mode::empty())?;
    move_mount(&detached, &point, c"")
}

fn open_directory(parent: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    openat(parent, name, DIRECTORY, Mode::empty())
}

/// Makes an empty directory or file for something to be mounted on, unless there is one.
fn make_point(parent: &OwnedFd, name: &CStr, is_directory: bool) -> nix::Result<()> {
    let made = if is_directory {
        mkdirat(parent, name, readable())
    } else {
        mknodat(parent, name, SFlag::S_IFREG, Mode::from_bits_truncate(0o444), 0)
    };
    match made {
        Err(Errno::EEXIST) => Ok(()),
        made => made,
    }
}

/// Opens a path of the finished root for a rule about it; `None` if there is no such path.
pub(crate) fn open_for_rule(path: &CStr) -> nix::Result<Option<OwnedFd>> {
    present(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()))
}
