//! System calls that no honest program of ours makes: each is tried inside a sandbox, to see it refused.

use std::ffi::{c_long, c_uint};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::unistd::Pid;

/// `clone` with these flags and nothing else; a child that comes of it ends at once.
pub(crate) fn clone(flags: c_uint) -> nix::Result<()> {
    // SAFETY: without `CLONE_VM` and with a null stack this is a fork: the child has a copy of everything, and this
    // process has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, c_long::from(flags) | c_long::from(libc::SIGCHLD), 0, 0, 0, 0) };
    child_or_errno(pid)
}

/// `clone3` that asks for a plain fork.
pub(crate) fn clone3() -> nix::Result<()> {
    /// `struct clone_args` of `linux/sched.h`: flags, six words that stay 0 but for the exit signal, stack, size, tls.
    const WORDS: usize = 8;
    let mut arguments = [0_u64; WORDS];
    arguments[4] = libc::SIGCHLD.cast_unsigned().into();
    let (pointer, size) = (arguments.as_ptr(), size_of_val(&arguments));
    // SAFETY: the arguments are those of a fork, and the pointer is to as many bytes as are said; one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, pointer, size) };
    child_or_errno(pid)
}

fn child_or_errno(pid: c_long) -> nix::Result<()> {
    match Errno::result(pid)? {
        0 => super::process::exit_now(0),
        pid => super::process::wait4(i32::try_from(pid).ok().map(Pid::from_raw)).map(drop),
    }
}

/// Makes an `io_uring` of one entry.
pub(crate) fn io_uring_setup() -> nix::Result<()> {
    // `struct io_uring_params` has 120 bytes.
    let mut parameters = [0_u64; 15];
    // SAFETY: the pointer is to writable memory of that size, for which zero is a value.
    closed(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

pub(crate) fn userfaultfd() -> nix::Result<()> {
    // SAFETY: the argument is a number.
    closed(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })
}

/// Makes a map of one element inside the kernel.
pub(crate) fn bpf() -> nix::Result<()> {
    const MAP_CREATE: c_uint = 0;
    // `union bpf_attr` begins with map type (2: array), key, value and element sizes.
    let attributes: [u32; 18] = std::array::from_fn(|index| [2, 4, 4, 1].get(index).copied().unwrap_or(0));
    let (pointer, size) = (attributes.as_ptr(), size_of_val(&attributes));
    // SAFETY: the pointer is to as many bytes as are said.
    closed(unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, pointer, size) })
}

/// Counts this process' own task clock.
pub(crate) fn perf_event_open() -> nix::Result<()> {
    // `struct perf_event_attr`, first version: type (1: software) and size in the first word, event (1: task clock).
    let mut attributes = [0_u64; 8];
    attributes[0] = 1 | 64 << 32;
    attributes[1] = 1;
    let pointer = attributes.as_ptr();
    // SAFETY: the pointer is to the 64 bytes that the structure says it has.
    closed(unsafe { libc::syscall(libc::SYS_perf_event_open, pointer, 0, -1, -1, 0) })
}

/// Adds a key to the keyring that ends with this process.
pub(crate) fn add_key() -> nix::Result<()> {
    const PROCESS_KEYRING: c_long = -2;
    let (kind, name) = (c"user".as_ptr(), c"tack".as_ptr());
    // SAFETY: kind and name are C strings; the payload is the name's first byte.
    let result = unsafe { libc::syscall(libc::SYS_add_key, kind, name, name, 1, PROCESS_KEYRING) };
    Errno::result(result).map(drop)
}

/// Asks to hear of every file that is opened.
pub(crate) fn fanotify_init() -> nix::Result<()> {
    // SAFETY: the arguments are numbers.
    closed(unsafe { libc::syscall(libc::SYS_fanotify_init, libc::FAN_CLOEXEC, libc::O_RDONLY) })
}

/// Takes a copy of a process' first descriptor.
pub(crate) fn pidfd_getfd(process: Pid) -> nix::Result<()> {
    let pidfd = super::process::pidfd_open(process)?;
    // SAFETY: the arguments are numbers.
    closed(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), 0, 0) })
}

/// Asks whether a process shares this one's memory.
pub(crate) fn kcmp(process: Pid) -> nix::Result<()> {
    const VM: c_long = 1;
    // SAFETY: the arguments are numbers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, Pid::this().as_raw(), process.as_raw(), VM, 0, 0) };
    Errno::result(result).map(drop)
}

/// Asks for more of the processor than others get.
pub(crate) fn raise_priority() -> nix::Result<()> {
    // SAFETY: the arguments are numbers.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -5) }).map(drop)
}

/// Asks for all of the machine's ports.
#[cfg(target_arch = "x86_64")]
pub(crate) fn iopl() -> nix::Result<()> {
    // SAFETY: the argument is a number; no port is touched.
    Errno::result(unsafe { libc::iopl(3) }).map(drop)
}

/// Asks for one of the machine's ports, of which nothing comes.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ioperm() -> nix::Result<()> {
    // SAFETY: the arguments are numbers; no port is touched.
    Errno::result(unsafe { libc::ioperm(0x80, 1, 1) }).map(drop)
}

/// Asks how large the kernel's log is.
pub(crate) fn syslog() -> nix::Result<()> {
    const SIZE_BUFFER: c_uint = 10;
    let none = std::ptr::null::<u8>();
    // SAFETY: this command takes no buffer.
    Errno::result(unsafe { libc::syscall(libc::SYS_syslog, SIZE_BUFFER, none, 0) }).map(drop)
}

/// Opens the root directory by a handle of it, which goes past the mount table.
pub(crate) fn open_by_handle_at() -> nix::Result<()> {
    /// `struct file_handle` of `linux/fcntl.h`, with room for any handle.
    #[repr(C)]
    struct Handle {
        bytes: c_uint,
        kind: i32,
        data: [u8; 128],
    }
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount = 0_i32;
    let (path, pointer) = (c"/".as_ptr(), &raw mut handle);
    // SAFETY: the path is a C string; the handle has as many bytes as it says; the mount id is writable.
    let named = unsafe { libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path, pointer, &raw mut mount, 0) };
    Errno::result(named)?;
    // SAFETY: the handle is the one that the kernel has just filled in.
    closed(unsafe { libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, pointer, libc::O_RDONLY) })
}

/// Pushes one key into a terminal, with bits above the number's own 32 set or not.
pub(crate) fn push_key(terminal: impl AsFd, high_bits: bool) -> nix::Result<()> {
    let request = libc::TIOCSTI.cast_signed() | if high_bits { 1 << 32 } else { 0 };
    let (fd, key) = (terminal.as_fd().as_raw_fd(), b"x".as_ptr());
    // SAFETY: the request reads one byte from the pointer.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, key) }).map(drop)
}

/// Asks for memory in which everything readable can be executed.
pub(crate) fn read_implies_exec() -> nix::Result<()> {
    // SAFETY: the argument is a number; it concerns this process alone, which ends soon.
    Errno::result(unsafe { libc::personality(libc::READ_IMPLIES_EXEC as libc::c_ulong) }).map(drop)
}

/// Makes a call of the 32-bit architecture: `getpid` by its number there.
#[cfg(target_arch = "x86_64")]
pub(crate) fn int_0x80() -> i64 {
    let result: i64;
    // SAFETY: call 20 of the 32-bit table is `getpid`: it takes nothing and writes no memory.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    result
}

/// Makes a call with the x32 bit set: `getpid` by its number there.
#[cfg(target_arch = "x86_64")]
pub(crate) fn x32() -> nix::Result<()> {
    // SAFETY: the call takes nothing and writes no memory.
    Errno::result(unsafe { libc::syscall(0x4000_0000 | libc::SYS_getpid) }).map(drop)
}

/// A call with a number that no kernel has yet.
pub(crate) fn unknown_call() -> nix::Result<()> {
    // SAFETY: all arguments are 0, so there is no memory that a call could touch.
    Errno::result(unsafe { libc::syscall(1_000, 0, 0, 0, 0, 0, 0) }).map(drop)
}

/// Begins to trace a process, which ends when this one does. The traced is not stopped.
pub(crate) fn trace(pid: Pid) -> nix::Result<()> {
    // SAFETY: seizing takes no address and no data.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.as_raw(), 0, 0) }).map(drop)
}

/// Reads this program's memory through the kernel, as a debugger would another's.
pub(crate) fn process_vm_readv(pid: Pid) -> nix::Result<()> {
    let mut byte = 0_u8;
    let (local, remote) = (
        libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 },
        libc::iovec { iov_base: (&raw const WORD).cast_mut().cast(), iov_len: 1 },
    );
    // SAFETY: one byte is written to `byte`; what is read is in the other process.
    let result = unsafe { libc::process_vm_readv(pid.as_raw(), &raw const local, 1, &raw const remote, 1, 0) };
    Errno::result(result).map(drop)
}

static WORD: u8 = 1;

/// Closes the descriptor that a call returned.
fn closed(result: c_long) -> nix::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let fd = i32::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just opened `fd` for this call, so nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
