//! The request, checked and made ready, before any process is made: what can be refused is refused here.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{self, FsType, fstatfs};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use tack_sandbox_protocol::{self as protocol, Access, Egress, Mounts, RunLimits, RunRequest, SetUpFailure, Stage};

use crate::launch::id_map::{IdMaps, Owner};
use crate::launch::progress::{At, failure};
use crate::launch::seccomp::Programs;
use crate::mirror::Mirrors;
use crate::policy;
use crate::sys::mount::{self, Attributes, Reach};
use crate::sys::process::pid_namespace;

/// More arguments, or more variables, than this are refused with `E2BIG`: no command line of ours comes near, and the
/// helper keeps a pointer for each.
const MAX_STRINGS: usize = 4_096;

/// `MAX_ARG_STRLEN` of the kernel, NUL included: a longer string would fail at execution with the same error.
const MAX_STRING_BYTES: usize = 128 << 10;

/// The helper keeps this much of each stream in its own memory, at most.
const MAX_KEPT_BYTES: u32 = 16 << 20;

/// The launch itself has about twenty descriptors open when the limit is set.
const MIN_OPEN_FILES: u32 = 32;

/// Where programs are looked for when the environment has no `PATH` (`_PATH_DEFPATH` of glibc).
const DEFAULT_PATH: &[u8] = b"/usr/bin:/bin";

/// Everything the sandbox's processes need, owned, as the calls want it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The program's possible places, in order.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    pub(crate) directory: CString,
    pub(crate) mounts: Vec<PlannedMount>,
    /// Read-only system directories, and files for `/etc`: detached mounts and their names under the root.
    pub(crate) system: Vec<SystemEntry>,
    pub(crate) limits: RunLimits,
    pub(crate) report: bool,
    pub(crate) seccomp: Programs,
    /// The payload's uid and gid as the host sees them: nobody else's.
    pub(crate) host_id: u32,
    /// Whether every mount belongs to the payload inside; if not, some file system has no id-mapped mounts.
    pub(crate) all_owned: bool,
    pub(crate) policy_digest: [u8; 32],
    /// The way out, if the request asks for one; taken when it is made.
    pub(crate) mirror: Option<Mirrors>,
    /// Children of the helper that are ending, to be waited for.
    pub(crate) children: Vec<Pid>,
}

/// What one of the request's mounts shows, as it was opened outside.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) fd: OwnedFd,
    /// Whose rights the payload gets in it; `None` gives it those of a stranger.
    pub(crate) owner: Option<Owner>,
}

impl Source {
    /// The payload gets the rights of the source's own owner: for whoever could take them anyway.
    pub(crate) fn as_it_is(fd: OwnedFd) -> Self {
        // What cannot be looked at is refused when it is planned.
        let owner = fstat(&fd).ok().map(|status| Owner { uid: status.st_uid, gid: status.st_gid });
        Self { fd, owner }
    }
}

/// One of the request's mounts, and where it goes.
#[derive(Debug)]
pub(crate) struct PlannedMount {
    /// Taken when it gets its place.
    pub(crate) detached: Option<OwnedFd>,
    /// The components of the target, none of them `..`.
    pub(crate) target: Vec<CString>,
    pub(crate) is_directory: bool,
    pub(crate) access: Access,
    /// Of a scratch: what its top is to look like.
    pub(crate) scratch: Option<Top>,
}

/// The top directory of a scratch, whose attributes are those of the directory that it shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Top {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

/// A name under the sandbox's root that stands for the host's own.
#[derive(Debug)]
pub(crate) enum SystemEntry {
    Mount { mount: OwnedFd, name: CString, is_directory: bool },
    Link { name: CString, target: CString },
}

/// Ids of the payloads, as the host sees them: above every range that distributions and systemd hand out (up to
/// `0x6fff_ffff`), below the kernel's sign bit.
const FIRST_HOST_ID: u32 = 0x7000_0000;

/// Process ids are below this (`PID_MAX_LIMIT`).
const PROCESS_IDS: u32 = 1 << 22;

/// How many blocks of [`PROCESS_IDS`] there are for pid namespaces. The next is for files of others (`id_map`).
const BLOCKS: u32 = 63;

/// `PROC_PID_INIT_INO` of the kernel: the initial pid namespace.
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The payload's id on the host: of the block of the helper's pid namespace, the helper's process id.
///
/// No two sandboxes of one pid namespace share an id, nor does one of the initial namespace with any. Two helpers in
/// two other namespaces may, where 62 divides the difference of the namespaces' numbers; their payloads would then
/// share what the kernel counts by user (pipe buffers, watches), and nothing else, since each is in a pid and a user
/// namespace of its own.
fn host_id(process: Pid, pid_namespace: Option<u64>) -> u32 {
    let others = u64::from(BLOCKS - 1);
    let block = match pid_namespace {
        None | Some(INITIAL_PID_NAMESPACE) => 0,
        Some(number) => 1 + u32::try_from(number % others).unwrap_or(0),
    };
    FIRST_HOST_ID + block * PROCESS_IDS + process.as_raw().cast_unsigned() % PROCESS_IDS
}

impl Plan {
    /// `sources` are those of the request's mounts, in their order.
    ///
    /// # Errors
    /// A failure of [`Stage::Request`], [`Stage::Prepare`], [`Stage::IdMap`] or [`Stage::Root`].
    pub(crate) fn new(request: &RunRequest<'_>, sources: &[Source], mirrors: &Mirrors) -> Result<Self, SetUpFailure> {
        check_limits(&request.limits)?;
        let argv = strings(&request.argv)?;
        let environment = strings(&request.environment)?;
        let program = argv.first().filter(|program| !program.is_empty()).ok_or(Errno::ENOENT).at(Stage::Request)?;
        let programs = places(program, &environment)?;
        let directory = Path::new(OsStr::from_bytes(request.directory));
        if !directory.is_absolute() {
            return Err(failure(Stage::Request, Errno::EINVAL));
        }
        let directory = c_string(request.directory)?;

        let seccomp = Programs::compile().map_err(|_| failure(Stage::Prepare, Errno::EINVAL))?;
        let policy_digest = digest(&seccomp, request, mirrors);
        let host_id = host_id(Pid::this(), pid_namespace());
        let mut id_maps = IdMaps::new(host_id);
        let mut mounts = Vec::with_capacity(request.mounts.as_slice().len());
        let mut all_owned = true;
        if sources.len() != request.mounts.as_slice().len() {
            return Err(failure(Stage::Request, Errno::EBADF));
        }
        for (index, (mount, source)) in request.mounts.as_slice().iter().zip(sources).enumerate() {
            let planned = plan_mount(mount, source, &mut id_maps).map_err(|mut failure| {
                failure.mount = u8::try_from(index).ok();
                failure
            })?;
            all_owned &= planned.1;
            mounts.push(planned.0);
        }
        let system = system_entries()?;
        Ok(Self {
            programs,
            argv,
            environment,
            directory,
            mounts,
            system,
            limits: request.limits,
            report: request.report,
            seccomp,
            host_id,
            all_owned,
            policy_digest,
            mirror: (request.egress == Egress::Mirror).then(|| mirrors.clone()),
            children: id_maps.into_children(),
        })
    }
}

fn check_limits(limits: &RunLimits) -> Result<(), SetUpFailure> {
    let positive = [limits.wall_us, limits.cpu_us, limits.memory_bytes, limits.output_bytes, limits.tmp_bytes];
    let sane = positive.iter().all(|limit| (1..=i64::MAX.cast_unsigned()).contains(limit))
        && limits.file_bytes <= i64::MAX.cast_unsigned()
        && limits.processes > 0
        && limits.open_files >= MIN_OPEN_FILES
        && limits.kept_bytes <= MAX_KEPT_BYTES;
    if sane { Ok(()) } else { Err(failure(Stage::Request, Errno::EINVAL)) }
}

fn strings(packed: &protocol::Strings<'_>) -> Result<Vec<CString>, SetUpFailure> {
    let mut strings = Vec::new();
    for string in packed {
        if strings.len() == MAX_STRINGS || string.to_bytes_with_nul().len() > MAX_STRING_BYTES {
            return Err(failure(Stage::Request, Errno::E2BIG));
        }
        strings.push(string.to_owned());
    }
    Ok(strings)
}

fn c_string(bytes: &[u8]) -> Result<CString, SetUpFailure> {
    CString::new(bytes).map_err(|_| Errno::EINVAL).at(Stage::Request)
}

/// Where the program may be: itself if it has a slash, else under each directory of the payload's `PATH`.
fn places(program: &CStr, environment: &[CString]) -> Result<Vec<CString>, SetUpFailure> {
    let program = program.to_bytes();
    if program.contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = environment.iter().find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="));
    path.unwrap_or(DEFAULT_PATH)
        .split(|byte| *byte == b':')
        .filter(|directory| directory.first() == Some(&b'/'))
        .map(|directory| c_string(&[directory, program].join(&b'/')))
        .collect()
}

/// The client has opened the source; no name is resolved here.
fn plan_mount(
    mount: &protocol::Mount<'_>,
    source: &Source,
    id_maps: &mut IdMaps,
) -> Result<(PlannedMount, bool), SetUpFailure> {
    let target = target(mount.target)?;
    let Source { fd: source, owner } = source;
    let status = fstat(source).at(Stage::Mounts)?;
    let is_directory = match kind(&status) {
        SFlag::S_IFDIR => true,
        SFlag::S_IFREG => false,
        _ => return Err(failure(Stage::Mounts, Errno::ENODEV)),
    };
    refuse_kernel_filesystems(source)?;
    refuse_whole_host(&status)?;
    let attributes = Attributes::NOSUID.and(Attributes::NODEV);
    let attributes = match mount.access {
        // Under a scratch the directory itself is not written.
        Access::ReadOnly | Access::Scratch => attributes.and(Attributes::RDONLY),
        Access::ReadWrite => attributes,
    };
    if mount.access == Access::Scratch && !is_directory {
        return Err(failure(Stage::Mounts, Errno::ENOTDIR));
    }
    let detached = mount::open_tree(source, c"", Reach::One).at(Stage::Mounts)?;
    let mapped = match owner {
        Some(owner) => mount::set_id_map(&detached, attributes, id_maps.of(*owner)?),
        // Nobody's rights are lent: the same as a file system that cannot lend them.
        None => Err(Errno::EPERM),
    };
    let owned = match mapped {
        Ok(()) => true,
        // The file system has no id-mapped mounts. Reading needs none where the files are readable by everyone, and
        // the receipt says so; writing would be a promise that cannot be kept.
        Err(Errno::EINVAL | Errno::EPERM) if mount.access == Access::ReadOnly => {
            mount::set_attributes(&detached, attributes, Reach::One).at(Stage::Mounts)?;
            false
        }
        Err(errno) => return Err(failure(Stage::Mounts, errno)),
    };
    let scratch = (mount.access == Access::Scratch).then(|| {
        let (uid, gid) = if owned { (id_maps.host_id(), id_maps.host_id()) } else { (status.st_uid, status.st_gid) };
        Top { uid, gid, mode: status.st_mode }
    });
    Ok((PlannedMount { detached: Some(detached), target, is_directory, access: mount.access, scratch }, owned))
}

/// The components of a mount's target.
fn target(bytes: &[u8]) -> Result<Vec<CString>, SetUpFailure> {
    let path = Path::new(OsStr::from_bytes(bytes));
    let reserved = policy::root::RESERVED_TARGETS.iter().any(|reserved| path.starts_with(reserved));
    if !path.is_absolute() || reserved {
        return Err(failure(Stage::Mounts, Errno::EINVAL));
    }
    let components: Vec<_> = path
        .components()
        .filter(|component| *component != Component::RootDir)
        .map(|component| match component {
            Component::Normal(name) => c_string(name.as_bytes()),
            _ => Err(failure(Stage::Mounts, Errno::EINVAL)),
        })
        .collect::<Result<_, _>>()?;
    if components.is_empty() { Err(failure(Stage::Mounts, Errno::EINVAL)) } else { Ok(components) }
}

fn kind(status: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT
}

/// File systems that are windows into the kernel have no place in a sandbox, whoever asks.
fn refuse_kernel_filesystems(source: &OwnedFd) -> Result<(), SetUpFailure> {
    // `linux/magic.h`, those that `nix` does not name.
    const DEBUGFS: FsType = FsType(0x6462_6720);
    const TRACEFS: FsType = FsType(0x7472_6163);
    const SECURITYFS: FsType = FsType(0x7363_6673);
    const SYSFS: FsType = FsType(0x6265_6572);
    const DEVPTS: FsType = FsType(0x1cd1);
    const BPF_FS: FsType = FsType(0xcafe_4a11);
    let refused = [
        statfs::PROC_SUPER_MAGIC,
        statfs::CGROUP_SUPER_MAGIC,
        statfs::CGROUP2_SUPER_MAGIC,
        DEBUGFS,
        TRACEFS,
        SECURITYFS,
        SYSFS,
        DEVPTS,
        BPF_FS,
    ];
    let found = fstatfs(source).at(Stage::Mounts)?.filesystem_type();
    if refused.contains(&found) { Err(failure(Stage::Mounts, Errno::EACCES)) } else { Ok(()) }
}

/// The host's own root is never a mount's source: a sandbox gets what it was granted, not everything.
fn refuse_whole_host(status: &FileStat) -> Result<(), SetUpFailure> {
    let root = nix::sys::stat::stat(c"/").at(Stage::Mounts)?;
    if (root.st_dev, root.st_ino) == (status.st_dev, status.st_ino) {
        return Err(failure(Stage::Mounts, Errno::EACCES));
    }
    Ok(())
}

/// Detached, read-only mounts of the system directories, and the links of a merged-/usr host.
fn system_entries() -> Result<Vec<SystemEntry>, SetUpFailure> {
    let directories = policy::root::SYSTEM_DIRECTORIES.iter().map(|name| (String::from(*name), format!("/{name}")));
    let files = policy::root::ETC_FROM_HOST.iter().map(|(name, _)| (format!("etc/{name}"), format!("/etc/{name}")));
    let mut entries = Vec::new();
    for (name, path) in directories.chain(files) {
        let (name, path) = (c_string(name.as_bytes())?, c_string(path.as_bytes())?);
        let status = match nix::sys::stat::lstat(path.as_c_str()) {
            Err(Errno::ENOENT) => continue,
            status => status.at(Stage::Root)?,
        };
        if kind(&status) == SFlag::S_IFLNK {
            let target = nix::fcntl::readlink(path.as_c_str()).at(Stage::Root)?;
            entries.push(SystemEntry::Link { name, target: c_string(target.as_bytes())? });
            continue;
        }
        let mount = mount::open_tree(AT_FDCWD, &path, Reach::Tree).at(Stage::Root)?;
        let attributes = Attributes::RDONLY.and(Attributes::NOSUID).and(Attributes::NODEV);
        mount::set_attributes(&mount, attributes, Reach::Tree).at(Stage::Root)?;
        entries.push(SystemEntry::Mount { mount, name, is_directory: kind(&status) == SFlag::S_IFDIR });
    }
    Ok(entries)
}

/// What [`Receipt::policy_digest`](protocol::Receipt::policy_digest) is over. Sources of mounts are left out: they
/// are where the host keeps things, and two runs of one policy keep them in two places.
fn digest(seccomp: &Programs, request: &RunRequest<'_>, mirrors: &Mirrors) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"tack sandbox policy 1\0");
    seccomp.each_instruction(|bytes| hash.update(bytes));
    let mut text = |bytes: &[u8]| {
        hash.update(bytes);
        hash.update([0]);
    };
    // The tables are constants without addresses or hashes in them, so their debug form is one text for one policy.
    for table in [
        format!("{:?}", policy::root::SYSTEM_DIRECTORIES),
        format!("{:?}", policy::root::ETC_FROM_HOST),
        format!("{:?}", policy::root::ETC),
        format!("{:?}", policy::root::LINKS),
        format!("{:?}", policy::root::DEVICES),
        format!("{:?}", policy::root::PROC_READ_ONLY),
        format!("{:?}", policy::root::PROC_MASKED),
        format!("{:?}", policy::landlock::RULES),
        format!("{:?}", request.limits),
    ] {
        text(table.as_bytes());
    }
    for mount in Mounts::as_slice(&request.mounts) {
        text(format!("{:?}", mount.access).as_bytes());
        text(mount.target);
    }
    if request.egress == Egress::Mirror {
        text(b"mirror");
        text(format!("{:?}", (policy::mirror::RULES, policy::mirror::LIMITS)).as_bytes());
        mirrors.each_destination(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_absolute_plain_and_not_the_sandbox_s_own() {
        let cases: [(&str, Option<&[&CStr]>); 12] = [
            ("/task", Some(&[c"task"])),
            ("/opt/.python//versions/", Some(&[c"opt", c".python", c"versions"])),
            ("/usrlocal", Some(&[c"usrlocal"])),
            ("/", None),
            ("", None),
            ("work", None),
            ("/task/../etc", None),
            ("/usr", None),
            ("/usr/local", None),
            ("/proc/1", None),
            ("/dev/shm", None),
            ("/task\0", None),
        ];
        for (path, expected) in cases {
            let found = target(path.as_bytes()).ok();
            let found = found.as_ref().map(|it| it.iter().map(CString::as_c_str).collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_payload_s_id_is_of_its_pid_namespace_and_never_in_another_range() {
        let most = Pid::from_raw((1 << 22) - 1);
        let mut seen = std::collections::BTreeSet::new();
        let numbers = (0xf000_0000..0xf000_0000 + 62).chain([INITIAL_PID_NAMESPACE]);
        for number in numbers {
            for process in [Pid::from_raw(1), most] {
                let id = host_id(process, Some(number));
                assert!(seen.insert(id), "{id:x}");
                assert!((FIRST_HOST_ID..crate::launch::id_map::OTHERS_HOST_ID).contains(&id), "{id:x}");
            }
        }
        assert_eq!(host_id(Pid::from_raw(7), Some(INITIAL_PID_NAMESPACE)), 0x7000_0007);
    }

    #[test]
    fn a_program_without_a_slash_is_looked_up_in_the_payload_s_path() {
        let cases: [(&CStr, Option<&CStr>, &[&CStr]); 5] = [
            (c"/bin/true", Some(c"PATH=/x"), &[c"/bin/true"]),
            (c"./true", Some(c"PATH=/x"), &[c"./true"]),
            (c"true", Some(c"PATH=/x:/y"), &[c"/x/true", c"/y/true"]),
            (c"true", Some(c"PATH=:.:y:/z"), &[c"/z/true"]),
            (c"true", None, &[c"/usr/bin/true", c"/bin/true"]),
        ];
        for (program, path, expected) in cases {
            let environment: Vec<CString> = path.into_iter().map(CStr::to_owned).collect();
            assert_eq!(places(program, &environment).unwrap(), expected.to_vec(), "{program:?} {path:?}");
        }
    }
}
