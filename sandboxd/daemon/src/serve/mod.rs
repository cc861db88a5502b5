//! The daemon: who may ask, how many at one time, and the key. Everything else is done by a keeper, one a request.
//!
//! ```text
//! daemon (root, one thread)                keeper (root, one thread, dies with the daemon)
//! -------------------------                -----------------------------------------------
//! configuration, key, self-test
//! accept; SO_PEERCRED; allow list
//! queue; fork --------------------------->  forget the key; read the request; token, ceilings
//!   |                                       idempotency key: stored answer, or lock it
//!   |                                       sources: beneath the roots, by the peer's own rights
//!   |                                       `run`: the sandbox, as in one-shot mode
//!   |<-- statement -------------------------
//!   |--- signature ----------------------->  store the answer; send it
//! reap; start the next of the queue
//! ```
//!
//! The daemon has no threads and no caches, so a fork of it is small, and whole. It decodes nothing that a peer sent:
//! it knows a peer by the kernel's word, and a keeper by the process that it forked.

mod answers;
mod config;
mod grant;
mod keeper;
mod key;
mod peer;
mod self_test;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid};
use tack_sandbox_protocol::{Refusal, Reply, Statement, place};

use crate::check::Report;
use crate::conversation::Sender;
use crate::serve::answers::Answers;
use crate::serve::config::Config;
use crate::serve::keeper::{Keeper, MESSAGE_BYTES};
use crate::serve::key::SigningKey;
use crate::serve::peer::Peer;
use crate::sys::process::{above_streams, exit_now, fork, heed_children, pidfd_open};

pub use crate::serve::config::ConfigError;
pub use crate::serve::key::KeyError;

/// Where the daemon finds and leaves things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Root's configuration.
    pub config: PathBuf,
    /// The socket, the public key and the lock, gone with the next boot.
    pub runtime: PathBuf,
    /// The secret key and the answers, which stay.
    pub state: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            config: "/etc/tack/sandboxd.conf".into(),
            runtime: place::DIRECTORY.into(),
            state: "/var/lib/tack".into(),
        }
    }
}

/// Why the daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An argument is none.
    #[error("expected `--config FILE`, `--runtime DIR` or `--state DIR`, found {0:?}")]
    Argument(OsString),
    /// It needs root.
    #[error("the daemon makes sandboxes for others and must run as root")]
    NotRoot,
    /// A file or directory of its own cannot be used.
    #[error("cannot use `{}`", path.display())]
    Place {
        /// It.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory of its own is not root's alone to change.
    #[error("`{}`: expected a directory of root's that nobody else may write", path.display())]
    Owner {
        /// It.
        path: PathBuf,
    },
    /// Another daemon serves there.
    #[error("another daemon serves in `{}`", path.display())]
    Running {
        /// The runtime directory.
        path: PathBuf,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The self-test found something open, or could not look.
    #[error("the self-test failed: {0}")]
    SelfTest(String),
    /// The system refused what every daemon needs.
    #[error("cannot wait for clients")]
    Wait(#[source] io::Error),
}

/// `tack-sandboxd serve`: serves until it is killed. Its sandboxes go with it.
#[must_use]
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let served = places(arguments).and_then(|places| Daemon::open(places)?.serve());
    let Err(error) = served;
    let mut text = format!("tack-sandboxd: {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    // There may be nobody to read it.
    writeln!(io::stderr(), "{text}").ok();
    ExitCode::FAILURE
}

fn places(mut arguments: impl Iterator<Item = OsString>) -> Result<Places, ServeError> {
    let mut places = Places::default();
    while let Some(argument) = arguments.next() {
        let place = match argument.to_str() {
            Some("--config") => &mut places.config,
            Some("--runtime") => &mut places.runtime,
            Some("--state") => &mut places.state,
            _ => return Err(ServeError::Argument(argument)),
        };
        *place = arguments.next().ok_or(ServeError::Argument(argument))?.into();
    }
    Ok(places)
}

/// How long the daemon rests when it cannot take a client.
const REST: Duration = Duration::from_millis(50);

/// A keeper that is at work.
struct Running {
    pid: Pid,
    /// Ready to read when it has ended.
    pidfd: OwnedFd,
    /// Statements come, signatures go; `None` when the keeper has closed it.
    channel: Option<OwnedFd>,
    peer_uid: u32,
}

struct Daemon {
    places: Places,
    config: Config,
    /// The configuration's file as it was read.
    config_seen: Option<Seen>,
    key: SigningKey,
    answers: Answers,
    listener: UnixListener,
    running: Vec<Running>,
    waiting: VecDeque<(UnixStream, Peer)>,
    /// Held as long as the daemon lives.
    _lock: Flock<File>,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Seen {
    fn of(path: &Path) -> Option<Self> {
        let it: Metadata = fs::symlink_metadata(path).ok()?;
        Some(Self { inode: it.ino(), bytes: it.len(), modified: (it.mtime(), it.mtime_nsec()) })
    }
}

impl Daemon {
    /// Everything that can fail, before anyone is served.
    fn open(places: Places) -> Result<Self, ServeError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ServeError::NotRoot);
        }
        heed_children().map_err(|errno| ServeError::Wait(errno.into()))?;
        let config_seen = Seen::of(&places.config);
        let config = Config::read(&places.config)?;
        own_directory(&places.runtime, 0o755)?;
        own_directory(&places.state, 0o700)?;
        let lock = lock(&places.runtime)?;
        let key = SigningKey::open(&places.state, &places.runtime.join(place::PUBLIC_KEY))?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ServeError::Place { path, source }
        };
        let answers = Answers::open(&places.state).map_err(failed(&places.state))?;
        let report = self_test::report();
        if !report.holds() {
            return Err(ServeError::SelfTest(what_is_open(&report)));
        }
        let socket = places.runtime.join(place::SOCKET);
        // The lock is ours, so whoever made it is gone.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&socket)(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(failed(&socket))?;
        // Everyone may connect; who is served is told by the kernel's word on who connected.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).map_err(failed(&socket))?;
        listener.set_nonblocking(true).map_err(failed(&socket))?;
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Ok(Self { places, config, config_seen, key, answers, listener, running, waiting, _lock: lock })
    }

    fn serve(mut self) -> Result<std::convert::Infallible, ServeError> {
        let socket = self.places.runtime.join(place::SOCKET);
        writeln!(io::stderr(), "tack-sandboxd: serving on `{}`", socket.display()).ok();
        loop {
            let ready = self.wait().map_err(|errno| ServeError::Wait(errno.into()))?;
            // From the last on, so that indexes stay what they were.
            for (index, what) in ready.keepers.into_iter().rev() {
                if what.statement {
                    self.sign(index);
                }
                if what.ended {
                    self.reap(index);
                }
            }
            if ready.client {
                self.accept();
            }
            self.start_waiting();
        }
    }

    fn wait(&self) -> nix::Result<Ready> {
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        for keeper in &self.running {
            // A channel that is closed is not waited for: the listener stands in its place, and asks for nothing.
            let channel = keeper.channel.as_ref().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN));
            fds.push(channel.unwrap_or_else(|| PollFd::new(self.listener.as_fd(), PollFlags::empty())));
            fds.push(PollFd::new(keeper.pidfd.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(Ready::default()),
            polled => polled?,
        };
        let readable =
            |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::revents).is_some_and(|it| it.contains(PollFlags::POLLIN));
        let mut ready = Ready { client: readable(fds.first()), keepers: Vec::new() };
        for (index, pair) in fds.get(1..).unwrap_or_default().chunks(2).enumerate() {
            let what = What { statement: readable(pair.first()), ended: readable(pair.get(1)) };
            if what.statement || what.ended {
                ready.keepers.push((index, what));
            }
        }
        Ok(ready)
    }

    /// Gives the daemon's word on a statement of a keeper's, if it is one about the keeper's own peer.
    fn sign(&mut self, index: usize) {
        let Some(keeper) = self.running.get_mut(index) else { return };
        let Some(channel) = keeper.channel.as_ref().map(AsRawFd::as_raw_fd) else { return };
        let mut buffer = [0; MESSAGE_BYTES];
        let length = recv(channel, &mut buffer, MsgFlags::MSG_DONTWAIT).unwrap_or(0);
        if length == 0 {
            keeper.channel = None;
            return;
        }
        let Ok(statement) = postcard::from_bytes::<Statement>(buffer.get(..length).unwrap_or_default()) else { return };
        if statement.peer_uid != keeper.peer_uid {
            return;
        }
        let Some(signed) = self.key.sign(&statement) else { return };
        if let Ok(bytes) = postcard::to_slice(&signed, &mut buffer) {
            // A keeper that is gone needs no answer.
            send(channel, bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT).ok();
        }
    }

    fn reap(&mut self, index: usize) {
        if index < self.running.len() {
            let keeper = self.running.swap_remove(index);
            waitpid(keeper.pid, None).ok();
        }
    }

    /// Takes clients that wait to connect; not all of a flood at one go, since keepers wait for signatures meanwhile.
    fn accept(&mut self) {
        const AT_ONE_GO: usize = 64;
        for _ in 0..AT_ONE_GO {
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, most likely: the client stays where it is, and asking again at once would
                    // only turn in a circle.
                    writeln!(io::stderr(), "tack-sandboxd: cannot accept a client: {error}").ok();
                    std::thread::sleep(REST);
                    return;
                }
            };
            self.reread_config();
            match self.admit(&client) {
                Ok(peer) => self.waiting.push_back((client, peer)),
                Err(refusal) => refuse(&client, refusal),
            }
        }
    }

    fn admit(&self, client: &UnixStream) -> Result<Peer, Refusal> {
        // A peer that the kernel does not name is nobody.
        let peer = Peer::of(client).map_err(|_| Refusal::Peer { uid: u32::MAX })?;
        peer.check(&self.config)?;
        // One peer beside root gets no more than half of the places: the others are not shut out by it.
        let places = (self.config.runs + self.config.queue) as usize;
        let running = self.running.iter().filter(|it| it.peer_uid == peer.uid).count();
        let held = running + self.waiting.iter().filter(|(_, it)| it.uid == peer.uid).count();
        if peer.uid != 0 && held >= places.div_ceil(2) {
            return Err(Refusal::Busy { running: self.config.runs });
        }
        let free = (self.config.runs as usize).saturating_sub(self.running.len());
        if self.waiting.len() >= free + self.config.queue as usize {
            return Err(Refusal::Busy { running: self.config.runs });
        }
        Ok(peer)
    }

    /// A configuration that was changed holds for requests from here on; one that cannot be used changes nothing.
    fn reread_config(&mut self) {
        let seen = Seen::of(&self.places.config);
        if seen == self.config_seen {
            return;
        }
        self.config_seen = seen;
        match Config::read(&self.places.config) {
            Ok(config) => self.config = config,
            Err(error) => drop(writeln!(io::stderr(), "tack-sandboxd: {error}; the configuration stays as it was")),
        }
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.config.runs as usize {
            let Some((client, peer)) = self.waiting.pop_front() else { return };
            if let Err(errno) = self.start(&client, &peer) {
                writeln!(io::stderr(), "tack-sandboxd: cannot start a keeper: {errno}").ok();
                refuse(&client, Refusal::Busy { running: self.config.runs });
            }
        }
    }

    /// Forks a keeper for one client.
    fn start(&mut self, client: &UnixStream, peer: &Peer) -> nix::Result<()> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let (ours, theirs) = (above_streams(ours)?, above_streams(theirs)?);
        let daemon_pid = Pid::this();
        let client = above_streams(client.try_clone().map_err(|_| Errno::EMFILE)?.into())?;
        match fork()? {
            ForkResult::Child => {
                self.key.forget();
                let client = UnixStream::from(client);
                let (config, answers) = (&self.config, &self.answers);
                let keeper = Keeper { client, daemon: theirs, daemon_pid, peer, config, answers };
                exit_now(keeper.live())
            }
            ForkResult::Parent { child } => match pidfd_open(child) {
                Ok(pidfd) => {
                    self.running.push(Running { pid: child, pidfd, channel: Some(ours), peer_uid: peer.uid });
                    Ok(())
                }
                Err(errno) => {
                    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).ok();
                    waitpid(child, None).ok();
                    Err(errno)
                }
            },
        }
    }
}

/// What a poll found.
#[derive(Default)]
struct Ready {
    client: bool,
    keepers: Vec<(usize, What)>,
}

#[derive(Clone, Copy)]
struct What {
    statement: bool,
    ended: bool,
}

/// A last word to a client that gets no keeper. It is short and fits the socket's buffer, so it never waits.
fn refuse(client: &UnixStream, refusal: Refusal) {
    if client.set_nonblocking(true).is_ok() {
        Sender::new(client).send(&Reply::Refused(refusal)).ok();
    }
}

/// A directory of root's, made if it is not there.
fn own_directory(path: &Path, mode: u32) -> Result<(), ServeError> {
    let failed = |source| ServeError::Place { path: path.to_owned(), source };
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(ServeError::Owner { path: path.to_owned() })
    }
}

/// The lock that one daemon at a time holds.
fn lock(runtime: &Path) -> Result<Flock<File>, ServeError> {
    let path = runtime.join("sandboxd.lock");
    let file = File::create(&path).map_err(|source| ServeError::Place { path: path.clone(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| ServeError::Running { path: runtime.to_owned() })
}

/// The self-test's findings in one sentence.
fn what_is_open(report: &Report) -> String {
    let missing = report.offers.iter().filter(|it| it.required);
    let missing = missing.filter_map(|it| it.found.as_ref().err().map(|why| format!("{} is missing ({why})", it.name)));
    let open = match &report.probe {
        Ok(lines) => lines
            .iter()
            .filter(|it| !it.holds())
            .map(|it| format!("`{}` is open (expected {}, found {})", it.name, it.expected, it.inside))
            .collect(),
        Err(error) => vec![error.clone()],
    };
    missing.chain(open).collect::<Vec<_>>().join("; ")
}
