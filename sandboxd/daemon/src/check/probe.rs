//! A probe: one attempt of each denied kind and of each kind that must work, tried inside a sandbox and beside it.
//!
//! A denial proves something only if the same attempt succeeds where nothing is in its way. So the probe runs twice:
//! inside, as the payload, and outside, as whoever asked, usually root, in namespaces of its own so that nothing it
//! does stays.

use std::ffi::OsString;
use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{ForkResult, Pid, Uid, chroot, sethostname, setuid};

use crate::sys::mount::{Attributes, Reach, new_filesystem, open_tree};
use crate::sys::probe as raw;
use crate::sys::process::{errno_of, exit_now, fork, wait4};

/// Where the probe's program is inside.
pub const PROBE_TARGET: &str = "/probe";

/// First argument of [`main`] for the run in a sandbox.
pub const INSIDE: &str = "inside";

/// First argument of [`main`] for the run beside it.
pub const OUTSIDE: &str = "outside";

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Worked,
    /// It failed with this error number.
    Failed(Errno),
    /// It was killed by this signal.
    Killed(i32),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worked => f.write_str("works"),
            Self::Failed(errno) => write!(f, "{errno:?}"),
            Self::Killed(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// One attempt, inside and outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeLine {
    /// What was attempted.
    pub name: &'static str,
    /// What must come of it inside.
    pub expected: Outcome,
    /// What came of it inside.
    pub inside: Outcome,
    /// What came of it outside.
    pub outside: Outcome,
}

impl ProbeLine {
    /// Whether the sandbox did what it must.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.inside == self.expected
    }

    /// Whether the attempt would have succeeded without the sandbox, so that its denial proves something.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.outside == Outcome::Worked
    }
}

/// Everything an attempt needs to know.
struct Setting {
    /// A process of the host.
    host_pid: Pid,
    /// A process in sight that is not ours: pid 1 inside, one of the host's outside.
    neighbor: Pid,
    /// A directory to write in.
    directory: PathBuf,
}

struct Attempt {
    name: &'static str,
    expected: Outcome,
    run: fn(&Setting) -> nix::Result<()>,
}

const fn denied(name: &'static str, errno: Errno, run: fn(&Setting) -> nix::Result<()>) -> Attempt {
    Attempt { name, expected: Outcome::Failed(errno), run }
}

const fn works(name: &'static str, run: fn(&Setting) -> nix::Result<()>) -> Attempt {
    Attempt { name, expected: Outcome::Worked, run }
}

#[cfg(target_arch = "x86_64")]
const fn kills(name: &'static str, run: fn(&Setting) -> nix::Result<()>) -> Attempt {
    Attempt { name, expected: Outcome::Killed(libc::SIGSYS), run }
}

/// Of `linux/sched.h`; `nix` does not name it.
const CLONE_NEWTIME: i32 = 0x80;

/// Address of a host that never answers (RFC 5737). A datagram socket is connected to it without a packet being sent.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    // Files and mounts.
    denied("write under /usr",                  Errno::EROFS,        |_| reach("/usr", OFlag::O_TMPFILE | OFlag::O_WRONLY)),
    denied("write under /",                     Errno::EROFS,        |_| reach("/", OFlag::O_TMPFILE | OFlag::O_WRONLY)),
    denied("write under /etc",                  Errno::EROFS,        |_| reach("/etc", OFlag::O_TMPFILE | OFlag::O_WRONLY)),
    denied("read /etc/shadow",                  Errno::ENOENT,       |_| reach("/etc/shadow", OFlag::O_RDONLY)),
    denied("list /sys/kernel",                  Errno::ENOENT,       |_| reach("/sys/kernel", OFlag::O_RDONLY)),
    denied("mount a tmpfs",                     Errno::EPERM,        |it| mount(None::<&str>, &it.directory, Some("tmpfs"), MsFlags::empty(), None::<&str>)),
    denied("remount / writable",                Errno::EPERM,        |_| mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, None::<&str>)),
    denied("chroot",                            Errno::EPERM,        |it| chroot(&it.directory)),
    denied("make a block device",               Errno::EPERM,        |it| mknod(&it.directory.join("disk"), SFlag::S_IFBLK, owner_only(), makedev(7, 200))),
    denied("make a set-user-ID file",           Errno::EPERM,        set_user_id),
    denied("open a file by handle",             Errno::EPERM,        |_| raw::open_by_handle_at()),
    denied("open /dev/kmsg",                    Errno::ENOENT,       |_| reach("/dev/kmsg", OFlag::O_RDONLY)),
    denied("open /dev/mem",                     Errno::ENOENT,       |_| reach("/dev/mem", OFlag::O_RDONLY)),
    denied("open /dev/fuse",                    Errno::ENOENT,       |_| reach("/dev/fuse", OFlag::O_RDWR)),
    denied("open /dev/loop-control",            Errno::ENOENT,       |_| reach("/dev/loop-control", OFlag::O_RDWR)),
    denied("copy a mount",                      Errno::EPERM,        |_| open_tree(AT_FDCWD, c"/tmp", Reach::One).map(drop)),
    denied("make a file system",                Errno::EPERM,        |_| new_filesystem(c"tmpfs", &[], Attributes::NOSUID).map(drop)),
    denied("watch all files",                   Errno::EPERM,        |_| raw::fanotify_init()),
    // The kernel's files.
    denied("write core_pattern",                Errno::EACCES,       |_| reach("/proc/sys/kernel/core_pattern", OFlag::O_WRONLY)),
    denied("write overcommit_memory",           Errno::EACCES,       |_| reach("/proc/sys/vm/overcommit_memory", OFlag::O_WRONLY)),
    denied("protect a neighbor from the OOM killer", Errno::EACCES,  |it| reach(&format!("/proc/{}/oom_score_adj", it.neighbor), OFlag::O_WRONLY)),
    denied("read a neighbor's environment",     Errno::EACCES,       |it| reach(&format!("/proc/{}/environ", it.neighbor), OFlag::O_RDONLY)),
    denied("look into a neighbor's root",       Errno::EACCES,       |it| reach(&format!("/proc/{}/root", it.neighbor), OFlag::O_RDONLY)),
    denied("take a neighbor's descriptor",      Errno::EPERM,        |it| raw::pidfd_getfd(it.neighbor)),
    denied("compare a neighbor's memory",       Errno::EPERM,        |it| raw::kcmp(it.neighbor)),
    denied("read a neighbor's memory",           Errno::EACCES,       |it| reach(&format!("/proc/{}/mem", it.neighbor), OFlag::O_RDONLY)),
    denied("trace a neighbor",                  Errno::EPERM,        |it| raw::trace(it.neighbor)),
    denied("read the kernel's log",             Errno::EPERM,        |_| raw::syslog()),
    // Processes and namespaces.
    denied("signal a process of the host",      Errno::ESRCH,        |it| kill(it.host_pid, None)),
    denied("signal a neighbor",                 Errno::EPERM,        |it| kill(it.neighbor, None)),
    denied("unshare a user namespace",          Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWUSER)),
    denied("unshare a mount namespace",         Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWNS)),
    denied("unshare a network namespace",       Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWNET)),
    denied("unshare a host name",               Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWUTS)),
    denied("unshare an ipc namespace",          Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWIPC)),
    denied("unshare a control group namespace", Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWCGROUP)),
    denied("unshare a pid namespace",           Errno::EPERM,        |_| unshare(CloneFlags::CLONE_NEWPID)),
    denied("unshare a time namespace",          Errno::EPERM,        |_| unshare(CloneFlags::from_bits_retain(CLONE_NEWTIME))),
    denied("join a namespace",                  Errno::EPERM,        |_| setns(open("/proc/self/ns/uts", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?, CloneFlags::CLONE_NEWUTS)),
    denied("come before others",                Errno::EACCES,       |_| raw::raise_priority()),
    denied("clone into a user namespace",       Errno::EPERM,        |_| raw::clone(libc::CLONE_NEWUSER.cast_unsigned())),
    denied("clone into a pid namespace",        Errno::EPERM,        |_| raw::clone(libc::CLONE_NEWPID.cast_unsigned())),
    denied("clone3",                            Errno::ENOSYS,       |_| raw::clone3()),
    denied("become uid 0",                      Errno::EINVAL,       |_| setuid(Uid::from_raw(0))),
    denied("set the host name",                 Errno::EPERM,        |_| sethostname("probe")),
    // Calls that are doors.
    denied("io_uring",                          Errno::EPERM,        |_| raw::io_uring_setup()),
    denied("userfaultfd",                       Errno::EPERM,        |_| raw::userfaultfd()),
    denied("bpf",                               Errno::EPERM,        |_| raw::bpf()),
    denied("perf_event_open",                   Errno::EPERM,        |_| raw::perf_event_open()),
    denied("add a key",                         Errno::EPERM,        |_| raw::add_key()),
    denied("READ_IMPLIES_EXEC",                 Errno::EPERM,        |_| raw::read_implies_exec()),
    denied("push a key into a terminal",        Errno::EPERM,        |_| push_key(false)),
    denied("push a key, high bits set",         Errno::EPERM,        |_| push_key(true)),
    denied("a call that no kernel has",         Errno::ENOSYS,       |_| raw::unknown_call()),
    #[cfg(target_arch = "x86_64")]
    denied("use the machine's ports",           Errno::EPERM,        |_| raw::iopl()),
    #[cfg(target_arch = "x86_64")]
    denied("use one of the machine's ports",    Errno::EPERM,        |_| raw::ioperm()),
    #[cfg(target_arch = "x86_64")]
    kills("a call of the 32-bit architecture",                       |_| if raw::int_0x80() > 0 { Ok(()) } else { Err(Errno::ENOSYS) }),
    #[cfg(target_arch = "x86_64")]
    kills("a call of the x32 architecture",                          |_| raw::x32()),
    // The network.
    denied("connect to another host",           Errno::ENETUNREACH,  |_| UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| socket.connect(ELSEWHERE)).map_err(|error| errno_of(&error))),
    denied("a socket to the hypervisor",        Errno::EAFNOSUPPORT, |_| family(AddressFamily::Vsock, SockType::Stream)),
    denied("a packet socket",                   Errno::EAFNOSUPPORT, |_| family(AddressFamily::Packet, SockType::Raw)),
    denied("a socket to the kernel's ciphers",  Errno::EAFNOSUPPORT, |_| family(AddressFamily::Alg, SockType::SeqPacket)),
    denied("a socket to the audit log",         Errno::EAFNOSUPPORT, |_| netlink(SockProtocol::NetlinkAudit)),
    denied("a socket to device events",         Errno::EAFNOSUPPORT, |_| netlink(SockProtocol::NetlinkKObjectUEvent)),
    denied("a raw socket",                      Errno::EPERM,        |_| socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp).map(drop)),
    // What honest programs do.
    works("write in the temporary directory",                        |it| std::fs::write(it.directory.join("file"), "x").map_err(|error| errno_of(&error))),
    works("share memory by name",                                    |_| reach("/dev/shm", OFlag::O_TMPFILE | OFlag::O_RDWR)),
    works("serve and connect on loopback",                           |_| loopback().map_err(|error| errno_of(&error))),
    works("bind a socket in a directory",                            |it| UnixListener::bind(it.directory.join("socket")).map(drop).map_err(|error| errno_of(&error))),
    works("start a thread",                                          |_| std::thread::spawn(|| ()).join().map_err(|_| Errno::EAGAIN)),
    works("fork",                                                    |_| raw::clone(0)),
    works("open a pseudo-terminal",                                  |_| terminal().map(drop)),
    works("read one's own memory as a debugger",                     |_| raw::process_vm_readv(Pid::this())),
];

/// Runs every attempt in a process of its own and prints what became of each: the whole life of a probe process.
///
/// Arguments: [`INSIDE`] or [`OUTSIDE`], and the process id of a process outside. Without them, exit status 2.
#[must_use]
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments.filter_map(|argument| argument.into_string().ok()).collect();
    let [place, host_pid] = arguments.as_slice() else { return ExitCode::from(2) };
    let Ok(host_pid) = host_pid.parse() else { return ExitCode::from(2) };
    let mut directory = std::env::temp_dir();
    if place == OUTSIDE {
        directory = match isolate_control() {
            Ok(directory) => directory,
            Err(_) => return ExitCode::FAILURE,
        };
    }
    let host_pid = Pid::from_raw(host_pid);
    let neighbor = if place == INSIDE { Pid::from_raw(1) } else { host_pid };
    let setting = Setting { host_pid, neighbor, directory };
    let mut out = std::io::stdout().lock();
    for attempt in ATTEMPTS {
        let line = match try_apart(attempt, &setting) {
            Ok(Outcome::Worked) => format!("{}\tworked\t0\n", attempt.name),
            Ok(Outcome::Failed(errno)) => format!("{}\tfailed\t{}\n", attempt.name, errno as i32),
            Ok(Outcome::Killed(signal)) => format!("{}\tkilled\t{signal}\n", attempt.name),
            Err(_) => return ExitCode::FAILURE,
        };
        if out.write_all(line.as_bytes()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The control changes things too, where it may: in namespaces and on a file system that end with it.
fn isolate_control() -> nix::Result<PathBuf> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let directory = std::env::temp_dir();
    mount(none, &directory, Some("tmpfs"), MsFlags::empty(), none)?;
    Ok(directory)
}

fn try_apart(attempt: &Attempt, setting: &Setting) -> nix::Result<Outcome> {
    match fork()? {
        ForkResult::Child => exit_now(match (attempt.run)(setting) {
            Ok(()) => 0,
            // Error numbers of Linux end at 133.
            Err(errno) => errno as i32,
        }),
        ForkResult::Parent { child } => {
            let status = wait4(Some(child))?.status;
            Ok(match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
                (true, 0) => Outcome::Worked,
                (true, errno) => Outcome::Failed(Errno::from_raw(errno)),
                (false, _) => Outcome::Killed(libc::WTERMSIG(status)),
            })
        }
    }
}

/// Puts the two outputs of [`main`] side by side.
///
/// # Errors
/// A sentence, if an attempt is missing from one of them.
pub fn compare(inside: &str, outside: &str) -> Result<Vec<ProbeLine>, String> {
    ATTEMPTS
        .iter()
        .map(|attempt| {
            let find = |output: &str, place: &str| {
                let line = output.lines().find_map(|line| line.strip_prefix(attempt.name)?.strip_prefix('\t'));
                line.and_then(parse).ok_or_else(|| format!("the probe {place} did not get to `{}`", attempt.name))
            };
            Ok(ProbeLine {
                name: attempt.name,
                expected: attempt.expected,
                inside: find(inside, "inside")?,
                outside: find(outside, "outside")?,
            })
        })
        .collect()
}

fn parse(line: &str) -> Option<Outcome> {
    let (what, number) = line.split_once('\t')?;
    let number = number.parse().ok()?;
    match what {
        "worked" => Some(Outcome::Worked),
        "failed" => Some(Outcome::Failed(Errno::from_raw(number))),
        "killed" => Some(Outcome::Killed(number)),
        _ => None,
    }
}

const fn owner_only() -> Mode {
    Mode::from_bits_truncate(0o600)
}

fn reach(path: &str, flags: OFlag) -> nix::Result<()> {
    open(path, flags | OFlag::O_CLOEXEC, owner_only()).map(drop)
}

fn family(family: AddressFamily, kind: SockType) -> nix::Result<()> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None).map(drop)
}

fn netlink(protocol: SockProtocol) -> nix::Result<()> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).map(drop)
}

fn set_user_id(setting: &Setting) -> nix::Result<()> {
    let path: &Path = &setting.directory.join("set-user-id");
    let file = open(path, OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC, owner_only())?;
    nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(0o4755))
}

/// The two ends of a new pseudo-terminal.
fn terminal() -> nix::Result<nix::pty::OpenptyResult> {
    nix::pty::openpty(None, None)
}

fn push_key(high_bits: bool) -> nix::Result<()> {
    let terminal = terminal()?;
    raw::push_key(&terminal.slave, high_bits)
}

fn loopback() -> std::io::Result<()> {
    let server = TcpListener::bind(("127.0.0.1", 0))?;
    let mut client = TcpStream::connect(server.local_addr()?)?;
    client.write_all(b"x")?;
    server.accept()?.0.read_exact(&mut [0])
}
