//! The mirror's process: how a sandbox gets its one way out, and what is heard of it afterwards.
//!
//! ```text
//! helper                      pid 1 of the sandbox                 mirror
//! ------                      --------------------                 ------
//! fork --------------------------------------------------------->  waits for the listener
//! fork ---------------------> own network, loopback up
//!                             listens on it --- the listener --->  a user of its own, no capability, Landlock
//! ready? <-------------------------------------------------------  executes the mirror's program; listens
//! go -----------------------> ... the payload runs ...             lets through what is configured
//! "it is over" ------------------------------------------------->  sends its log, and ends
//! ```
//!
//! The mirror stays in the host's network; all that it has of the sandbox is the listener. It is another program, with
//! an address space of its own, so that nobody who takes it over finds anything of root's in its memory.

use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use caps::CapSet;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::prctl::{set_no_new_privs, set_pdeathsig};
use nix::sys::resource::setrlimit;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, Gid, Pid, Uid, chdir, execveat, setgroups, setresgid, setresuid, setsid};
use tack_sandbox_protocol::egress::{MIRROR_PORT, MIRROR_READY};
use tack_sandbox_protocol::{
    Destination, DestinationError, EgressLog, EgressRecord, Reason, SetUpFailure, Stage, frame,
};

use crate::launch::landlock;
use crate::launch::progress::{At, failure};
use crate::policy::mirror::{FIRST_ID, IDS, LIMITS};
use crate::sys::process::{
    Closing, above_streams, adopt, close_range, drop_bounding_set, dup_to, errno_of, exit_now, fork,
    join_new_session_keyring, lock_securebits, pidfd_kill, pidfd_open, reset_personality, reset_signals, wait4,
};

/// The name of the installed mirror, beside the installed helper.
const PROGRAM: &str = "tack-sandbox-mirror";

/// Which program is the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorProgram {
    /// `tack-sandbox-mirror`, in the directory of the running program.
    Installed,
    /// The running program itself, with this as its first argument.
    Own(OsString),
}

/// What root configured for sandboxes with a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// The program.
    program: MirrorProgram,
    /// What it lets through, as it reads it.
    destinations: Vec<CString>,
    /// The ports of those.
    ports: Vec<u16>,
}

/// More destinations than this are a mistake: a mirror is a few hosts.
pub const MAX_DESTINATIONS: usize = 64;

/// Why a mirror's configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum MirrorsError {
    /// One is no destination.
    #[error("`{text}` is no destination of a mirror")]
    Destination {
        /// As it was written.
        text: String,
        /// What is wrong with it.
        source: DestinationError,
    },
    /// There are more than [`MAX_DESTINATIONS`].
    #[error("a mirror takes at most {MAX_DESTINATIONS} destinations")]
    TooMany,
}

impl Mirrors {
    /// No destination, so no mirror.
    #[must_use]
    pub const fn none() -> Self {
        Self { program: MirrorProgram::Installed, destinations: Vec::new(), ports: Vec::new() }
    }

    /// Adds one.
    ///
    /// # Errors
    /// A [`MirrorsError`].
    pub(crate) fn add(&mut self, text: &str) -> Result<(), MirrorsError> {
        let refused = |source| MirrorsError::Destination { text: text.escape_debug().to_string(), source };
        let destination = Destination::parse(text).map_err(refused)?;
        if self.destinations.len() == MAX_DESTINATIONS {
            return Err(MirrorsError::TooMany);
        }
        // A destination has no NUL.
        self.destinations.push(CString::new(text).map_err(|_| refused(DestinationError::Host))?);
        self.ports.push(destination.port);
        Ok(())
    }

    /// Sandboxes of this host may have a mirror to `destinations`: none, if there are none.
    ///
    /// # Errors
    /// A [`MirrorsError`] that names the one that is wrong.
    pub fn new<S: AsRef<str>>(
        program: MirrorProgram,
        destinations: impl IntoIterator<Item = S>,
    ) -> Result<Self, MirrorsError> {
        let mut mirrors = Self { program, ..Self::none() };
        for text in destinations {
            mirrors.add(text.as_ref())?;
        }
        Ok(mirrors)
    }

    /// Feeds what a sandbox's policy consists of to `digest`.
    pub(crate) fn each_destination(&self, mut digest: impl FnMut(&[u8])) {
        self.destinations.iter().for_each(|it| digest(it.as_bytes_with_nul()));
    }
}

/// How long a mirror may take to be ready, or to send its log: it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is said in place of [`MIRROR_READY`], before the error number of the step that failed.
const FAILED: u8 = b'f';

/// A mirror that runs. Dropped, it is killed and waited for.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Taken where it is not ours to end.
    process: Option<Pid>,
    pidfd: Option<OwnedFd>,
    control: UnixStream,
}

impl Mirror {
    /// Forks the mirror's process. It goes on when it gets the listener, from whoever [`listen`]s with what is returned
    /// beside it; called before the helper's children are born into the sandbox's pid namespace, since this one is not.
    ///
    /// # Errors
    /// A failure of [`Stage::Egress`]: `EDESTADDRREQ` where root configured no destination.
    pub(crate) fn start(mirrors: &Mirrors) -> Result<(Self, UnixStream), SetUpFailure> {
        if mirrors.destinations.is_empty() {
            return Err(failure(Stage::Egress, Errno::EDESTADDRREQ));
        }
        let (program, arguments) = command(mirrors).map_err(|error| failure(Stage::Egress, errno_of(&error)))?;
        let (control, theirs) = socket_pair().at(Stage::Egress)?;
        let (give, take) = socket_pair().at(Stage::Egress)?;
        match fork().at(Stage::Egress)? {
            ForkResult::Child => {
                drop((control, give));
                let Err(errno) = become_mirror(&program, &arguments, &mirrors.ports, &take, &theirs);
                let mut word = [FAILED, 0, 0, 0, 0];
                word[1..].copy_from_slice(&(errno as i32).to_le_bytes());
                (&theirs).write_all(&word).ok();
                exit_now(1)
            }
            ForkResult::Parent { child } => {
                let mut mirror = Self { process: Some(child), pidfd: None, control };
                mirror.pidfd = Some(pidfd_open(child).at(Stage::Egress)?);
                Ok((mirror, give))
            }
        }
    }

    /// Waits until it listens.
    ///
    /// # Errors
    /// A failure of [`Stage::Egress`] with the mirror's own error number; `EPROTO` if it ended without a word.
    pub(crate) fn await_ready(&self) -> Result<(), SetUpFailure> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => failure(Stage::Egress, Errno::EPROTO),
            io::ErrorKind::WouldBlock => failure(Stage::Egress, Errno::ETIMEDOUT),
            _ => failure(Stage::Egress, errno_of(&error)),
        };
        let mut control = &self.control;
        control.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let (mut word, mut errno) = ([0], [0; 4]);
        control.read_exact(&mut word).map_err(failed)?;
        match word {
            [MIRROR_READY] => Ok(()),
            [FAILED] => {
                control.read_exact(&mut errno).map_err(failed)?;
                Err(SetUpFailure { stage: Stage::Egress, errno: i32::from_le_bytes(errno), mount: None })
            }
            _ => Err(failure(Stage::Egress, Errno::EPROTO)),
        }
    }

    /// For a fork of the helper, whose it is not: closes this process' descriptors of it.
    pub(crate) fn leave(mut self) {
        self.process = None;
    }

    /// Ends it, and says what it has seen.
    pub(crate) fn finish(self) -> EgressRecord {
        match self.take_log() {
            Ok(log) => EgressRecord::Mirror(log),
            Err(errno) => EgressRecord::Unavailable(Reason::Unreadable { errno: errno as i32 }),
        }
    }

    fn take_log(&self) -> Result<EgressLog, Errno> {
        let errno = |error: io::Error| errno_of(&error);
        self.control.shutdown(std::net::Shutdown::Write).map_err(errno)?;
        self.control.set_read_timeout(Some(PATIENCE)).map_err(errno)?;
        let mut bytes = Vec::new();
        // Whoever took the mirror over may send anything: it is bounded, and read as a log or not at all.
        (&self.control)
            .take((frame::HEADER_BYTES + EgressLog::MAX_BYTES) as u64)
            .read_to_end(&mut bytes)
            .map_err(errno)?;
        frame::decode(&bytes).map_err(|_| Errno::EPROTO)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let Some(process) = self.process else { return };
        // It has ended, or has nothing left to do. Without its descriptor it still ends with the socket.
        if let Some(pidfd) = &self.pidfd {
            pidfd_kill(pidfd).ok();
        }
        self.control.shutdown(std::net::Shutdown::Both).ok();
        wait4(Some(process)).ok();
    }
}

/// Listens on the loopback of this process' network, and hands the listener to the mirror.
///
/// # Errors
/// The kernel's error number.
pub(crate) fn listen(give: &UnixStream) -> nix::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, MIRROR_PORT)).map_err(|error| errno_of(&error))?;
    let descriptors = [listener.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(give.as_raw_fd(), &[IoSlice::new(&[0])], &message, MsgFlags::MSG_NOSIGNAL, None).map(drop)
}

/// Waits for the listener. Its giver is gone without giving it where the launch failed before.
fn receive(take: &UnixStream) -> nix::Result<OwnedFd> {
    let mut room = nix::cmsg_space!(RawFd);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message = loop {
        match recvmsg::<()>(take.as_raw_fd(), &mut parts, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part
            && let [number] = numbers[..]
        {
            return above_streams(adopt(number));
        }
    }
    Err(Errno::EPIPE)
}

/// The program, open, and its arguments.
fn command(mirrors: &Mirrors) -> io::Result<(OwnedFd, Vec<CString>)> {
    let (path, own) = match &mirrors.program {
        MirrorProgram::Own(argument) => (PathBuf::from("/proc/self/exe"), Some(argument)),
        MirrorProgram::Installed => (env::current_exe()?.with_file_name(PROGRAM), None),
    };
    let program = above_streams(open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)?;
    let mut arguments = vec![CString::new(PROGRAM)?];
    if let Some(argument) = own {
        arguments.push(CString::new(argument.as_bytes())?);
    }
    arguments.extend(mirrors.destinations.iter().cloned());
    Ok((program, arguments))
}

fn socket_pair() -> nix::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair().map_err(|error| errno_of(&error))?;
    Ok((above_streams(one.into())?.into(), above_streams(other.into())?.into()))
}

/// Before: a fork of the helper, root of the host.
/// After: the mirror's program runs as a user that owns nothing and that nobody else is, without capabilities or a way
/// to some, with the listener, the socket to the helper and nothing else open; it reads what a resolver needs, writes
/// no file, connects to the configured ports alone, and dies with the helper.
fn become_mirror(
    program: &OwnedFd,
    arguments: &[CString],
    ports: &[u16],
    take: &UnixStream,
    control: &UnixStream,
) -> nix::Result<std::convert::Infallible> {
    set_pdeathsig(Signal::SIGKILL)?;
    reset_signals()?;
    reset_personality()?;
    join_new_session_keyring()?;
    umask(Mode::from_bits_truncate(0o077));
    setsid()?;
    chdir("/")?;
    fs::write("/proc/self/oom_score_adj", "1000").map_err(|error| errno_of(&error))?;
    let listener = receive(take)?;
    for (resource, limit, _) in LIMITS {
        setrlimit(resource, limit, limit)?;
    }
    // While it may: the bounding set takes a capability to empty, and the bits one to lock.
    drop_bounding_set()?;
    lock_securebits()?;
    setgroups(&[])?;
    let id = FIRST_ID + Pid::this().as_raw().cast_unsigned() % IDS;
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(|_| Errno::last())?;
    }
    set_no_new_privs()?;
    // A change of ids resets it. A helper that died before has closed its end of the socket, which ends the mirror too.
    set_pdeathsig(Signal::SIGKILL)?;
    let null = above_streams(open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?)?;
    landlock::confine_mirror(program.try_clone().map_err(|error| errno_of(&error))?, ports)?;
    dup_to(&listener, 0)?;
    dup_to(control, 1)?;
    dup_to(&null, 2)?;
    close_range(3, u32::MAX, Closing::OnExec)?;
    // Two heaps for all its threads: each reserves 64 MiB of addresses, which are limited.
    execveat(program.as_fd(), c"", arguments, &[c"MALLOC_ARENA_MAX=2"], AtFlags::AT_EMPTY_PATH)
}
