//! Processes, their descriptors and their signals.

use std::ffi::{c_int, c_long, c_uint};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{ForkResult, Pid};

/// `fork`. The caller makes sure that the process has one thread, so that the child's memory is whole: it may then
/// allocate and take locks like any program.
pub(crate) fn fork() -> nix::Result<ForkResult> {
    // SAFETY: with one thread (checked when the helper starts, and no thread is ever made), no lock can be held by
    // a thread that the child lacks.
    unsafe { nix::unistd::fork() }
}

/// `clone` into a new user namespace: like [`fork`], but the namespace is there when the parent goes on, so that it
/// can be described without waiting for the child.
pub(crate) fn fork_into_user_namespace() -> nix::Result<ForkResult> {
    let flags = c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    // SAFETY: without `CLONE_VM` and with a null stack this is a fork; as there, the process has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    Ok(match Errno::result(pid)? {
        0 => ForkResult::Child,
        pid => ForkResult::Parent { child: Pid::from_raw(i32::try_from(pid).map_err(|_| Errno::ESRCH)?) },
    })
}

/// A descriptor of the process `pid`: ready to read when it has ended.
pub(crate) fn pidfd_open(pid: Pid) -> nix::Result<OwnedFd> {
    // SAFETY: the arguments are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = c_int::try_from(Errno::result(fd)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just opened `fd` for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends `SIGKILL` to the process behind a descriptor: never to another that took over its number.
pub(crate) fn pidfd_kill(pidfd: impl AsFd) -> nix::Result<()> {
    let (fd, none) = (pidfd.as_fd().as_raw_fd(), std::ptr::null::<u8>());
    // SAFETY: no signal information is passed; the other arguments are numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0) };
    Errno::result(result).map(drop)
}

/// How a process ended, and what it and all its waited-for descendants used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    /// The process.
    pub(crate) pid: c_int,
    /// As in `wait4`: a status word for `WIFEXITED` and its like.
    pub(crate) status: c_int,
    pub(crate) usage: CpuUsage,
    /// The largest resident set of any one of them, in bytes.
    pub(crate) max_rss_bytes: u64,
}

/// User and system time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuUsage {
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
}

impl CpuUsage {
    fn of(usage: &libc::rusage) -> Self {
        let us = |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
        Self { user_us: us(usage.ru_utime), system_us: us(usage.ru_stime) }
    }
}

/// Waits for a child (`None`: for any) to end, and reaps it.
pub(crate) fn wait4(pid: Option<Pid>) -> nix::Result<Waited> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let which = pid.map_or(-1, Pid::as_raw);
    let pid = loop {
        // SAFETY: both pointers are to writable memory of the type that the call fills in.
        let result = unsafe { libc::wait4(which, &raw mut status, libc::__WALL, usage.as_mut_ptr()) };
        match Errno::result(result) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    // SAFETY: zeroed memory is a valid `rusage`, and the call has filled it in.
    let usage = unsafe { usage.assume_init() };
    let max_rss_bytes = usage.ru_maxrss.cast_unsigned() * 1_024;
    Ok(Waited { pid, status, usage: CpuUsage::of(&usage), max_rss_bytes })
}

/// What this process alone has used.
pub(crate) fn own_usage() -> nix::Result<CpuUsage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to writable memory of the type that the call fills in.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: zeroed memory is a valid `rusage`, and the call has filled it in.
    let usage = unsafe { usage.assume_init() };
    Ok(CpuUsage::of(&usage))
}

/// Makes descriptor `number` another name of `fd`, open across execution.
pub(crate) fn dup_to(fd: impl AsFd, number: RawFd) -> nix::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: both are numbers. What `number` named before is closed: callers pass the numbers of standard streams,
    // which no owned descriptor has, since every descriptor of ours is above them.
    let result = unsafe { libc::dup2(fd, number) };
    Errno::result(result).map(drop)
}

/// The same file under a number that is none of a payload's standard streams.
pub(crate) fn above_streams(fd: OwnedFd) -> nix::Result<OwnedFd> {
    /// Past 3, the last of the streams, with room for numbers that are easy to tell in a trace.
    const FIRST: RawFd = 10;
    if fd.as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    let number = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(FIRST))?;
    // SAFETY: the kernel has just opened `number` for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// What happens to the descriptors of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// They are closed.
    Now,
    /// They close when a program is executed.
    OnExec,
}

/// Closes every descriptor from `first` to `last`.
pub(crate) fn close_range(first: c_uint, last: c_uint, closing: Closing) -> nix::Result<()> {
    const CLOSE_RANGE_CLOEXEC: c_uint = 4;
    let flags = match closing {
        Closing::Now => 0,
        Closing::OnExec => CLOSE_RANGE_CLOEXEC,
    };
    // SAFETY: the arguments are numbers. Callers hold no owned descriptor in a range that is closed now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    Errno::result(result).map(drop)
}

/// Takes over a descriptor that the kernel has just handed to this process (`SCM_RIGHTS`).
pub(crate) fn adopt(number: RawFd) -> OwnedFd {
    // SAFETY: callers pass each number once, as `recvmsg` gave it: the kernel opened it for that call, so nothing else
    // owns it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Gives `SIGCHLD` its default action: where it is ignored, the kernel keeps no status of a child for its parent.
pub(crate) fn heed_children() -> nix::Result<()> {
    default_action(libc::SIGCHLD)
}

/// Gives `SIGALRM` its default action, which ends the process, and lets it through.
pub(crate) fn heed_alarm() -> nix::Result<()> {
    default_action(libc::SIGALRM)?;
    let mut alarm = nix::sys::signal::SigSet::empty();
    alarm.add(nix::sys::signal::Signal::SIGALRM);
    alarm.thread_unblock()
}

/// The kernel's own call, by number: the C library keeps two signals for itself, and leaves them ignored in what it
/// spawns.
fn default_action(signal: c_int) -> nix::Result<()> {
    /// The kernel's `struct sigaction` on every 64-bit architecture: four words, of which zero means the default.
    const DEFAULT: [u64; 4] = [0; 4];
    let (new, old) = (DEFAULT.as_ptr(), std::ptr::null_mut::<u64>());
    // SAFETY: `new` is a signal action without a handler, the old one is not asked for, and a set has 8 bytes.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, 8) };
    Errno::result(result).map(drop)
}

/// Gives every signal its default action and blocks none.
pub(crate) fn reset_signals() -> nix::Result<()> {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        default_action(signal)?;
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Takes back what a client may have changed of how memory is laid out.
pub(crate) fn reset_personality() -> nix::Result<()> {
    // SAFETY: the argument is a number, `PER_LINUX`; it concerns this process and its children.
    Errno::result(unsafe { libc::personality(0) }).map(drop)
}

/// Leaves the client's session keyring for a new, empty one. A kernel without keyrings has none to leave.
pub(crate) fn join_new_session_keyring() -> nix::Result<()> {
    const JOIN_SESSION_KEYRING: c_long = 1;
    let anonymous = std::ptr::null::<u8>();
    // SAFETY: a null name asks for a keyring without one.
    match Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) }) {
        Err(Errno::ENOSYS) => Ok(()),
        joined => joined.map(drop),
    }
}

/// Empties the bounding set: no program that is executed from here on gains a capability.
///
/// Each is dropped without asking whether it is there: an answer that fails would be taken for a no.
pub(crate) fn drop_bounding_set() -> nix::Result<()> {
    /// The kernel keeps 64 bits of them.
    const CAPABILITIES: c_long = 64;
    /// `CAP_CHECKPOINT_RESTORE`: every kernel that has the mount interface this crate needs has it too.
    const KNOWN: c_long = 40;
    for capability in 0..CAPABILITIES {
        // SAFETY: the arguments are numbers.
        match Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            // This kernel has no more.
            Err(Errno::EINVAL) if capability > KNOWN => return Ok(()),
            dropped => drop(dropped?),
        }
    }
    Ok(())
}

/// Locks the security bits of capabilities: uid 0 means nothing, changes of uid mean nothing, and so for ever.
pub(crate) fn lock_securebits() -> nix::Result<()> {
    // `linux/securebits.h`: NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock, and the lock of
    // KEEP_CAPS, which stays off.
    const BITS: c_long = 0b01 | 0b10 | 0b0100 | 0b1000 | 0b10_0000 | 0b0100_0000 | 0b1000_0000;
    // SAFETY: the arguments are numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, BITS, 0, 0, 0) };
    Errno::result(result).map(drop)
}

/// The kernel's Landlock ABI.
///
/// # Errors
/// `ENOSYS` or `EOPNOTSUPP` where Landlock is not built in or not enabled.
pub(crate) fn landlock_abi() -> nix::Result<i32> {
    const VERSION: c_uint = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: asking for the version takes no attributes.
    let result = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    Errno::result(result).map(|abi| i32::try_from(abi).unwrap_or(i32::MAX))
}

/// Brings the loopback interface of the current network namespace up.
pub(crate) fn loopback_up() -> nix::Result<()> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: an `ifreq` is a name and a union of plain numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the request wants a pointer to an `ifreq` with name and flags, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(result).map(drop)
}

/// The number of this process' pid namespace; `None` without a `/proc` that shows this process.
pub(crate) fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// The error number of an [`io::Error`] that came from the kernel; `EIO` for one that did not.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Ends this process at once: no destructor, no exit handler, no buffer flushed. For children that were forked.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(status) }
}
