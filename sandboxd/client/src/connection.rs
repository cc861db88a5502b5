//! One conversation: spawn the helper, send the request, collect output and receipt.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use ed25519_compact::{PublicKey, Signature};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES};
use tack_sandbox_protocol::{FrameError, Part, Refusal, Reply, SignedReceipt, Statement, Stream, place};

use crate::helper::{Client, Helper, Way};
use crate::run::{self, Captured, Encoded, Finished, Piece, RequestError, Run};

/// How long a helper may be silent beyond the run's own wall limit: its set-up bound (10 s) and its tear-down, three
/// times over. One that is silent longer is killed, and its process tree with it.
const SILENCE: Duration = Duration::from_secs(30);

/// Why there is no receipt.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither an installed helper nor an own one.
    #[error("there is no sandbox helper: `tack-sandboxd` is not on PATH")]
    NoHelper,
    /// The run cannot be asked for.
    #[error("the run cannot be asked for")]
    Request(#[from] RequestError),
    /// The daemon's socket is there, and nobody answers at it.
    #[error("cannot connect to the sandbox daemon at `{}`", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The token that the environment names a file for is not there.
    #[error("cannot take the sandbox daemon's token from `{}`, which {} names", path.display(), Client::TOKEN_FILE)]
    Token {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The daemon ended before it had answered. The run ended with it, and what it had done by then is not known.
    #[error("the sandbox daemon was lost before it had answered; what the run had done by then is not known")]
    DaemonLost,
    /// The daemon's public key is not where it should be.
    #[error("cannot read the sandbox daemon's public key, `{}`", path.display())]
    PublicKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The receipt is not what the daemon has signed, or not about this run.
    #[error("the receipt's signature does not hold: {0}")]
    Signature(&'static str),
    /// No socket pair.
    #[error("cannot make a socket pair for the sandbox helper")]
    SocketPair(#[source] io::Error),
    /// The helper does not start.
    #[error("cannot start the sandbox helper `{program}`")]
    Spawn {
        /// The helper's program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The request could not be sent.
    #[error("cannot send the request to the sandbox helper")]
    Send(#[source] io::Error),
    /// The answer could not be read, or did not come in time.
    #[error("cannot read the sandbox helper's answer")]
    Receive(#[source] io::Error),
    /// The answer is not of this protocol.
    #[error("the sandbox helper's answer was not understood")]
    Frame(#[source] FrameError),
    /// More output came back than was asked for.
    #[error("the sandbox helper sent more of {stream} than was asked for")]
    TooMuchOutput {
        /// The stream.
        stream: Stream,
    },
    /// The helper answered that there is no sandbox to be had.
    #[error("the sandbox helper refused")]
    Refused(#[source] Refusal),
    /// The daemon's mirror reaches what root configured, and no request says otherwise.
    #[error(
        "the sandbox daemon's mirror reaches what its configuration lists (`mirror` lines): no destination can be \
         named beside it"
    )]
    Destinations,
    /// The helper ended without a last word. Its process tree is gone with it.
    #[error("the sandbox helper ended without an answer ({})", ending(*.status))]
    HelperDied {
        /// How it ended; `None` where this process ignores `SIGCHLD`, so that the kernel keeps no status for it.
        status: Option<ExitStatus>,
    },
}

/// Who gets output while a run lasts.
type Sink<'a> = &'a mut dyn FnMut(Piece<'_>);

/// Holds a receipt against the daemon's public key.
fn verify(signed: &SignedReceipt, path: &Path) -> Result<(), ClientError> {
    let key = fs::read(path).map_err(|source| ClientError::PublicKey { path: path.to_owned(), source })?;
    let key = PublicKey::from_slice(&key).map_err(|_| ClientError::Signature("the public key is none"))?;
    let mut buffer = [0; Statement::MAX_BYTES];
    let text = signed.statement.to_be_signed(&mut buffer).ok_or(ClientError::Signature("the statement is too long"))?;
    let signature = Signature::from_slice(signed.signature.as_flattened());
    let signature = signature.map_err(|_| ClientError::Signature("the signature is none"))?;
    key.verify(text, &signature).map_err(|_| ClientError::Signature("the daemon did not sign this"))
}

fn ending(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "its status is lost: SIGCHLD is ignored here".to_owned(), |it| it.to_string())
}

impl Client {
    /// Runs one command, and returns when nothing of it is left.
    ///
    /// # Errors
    /// A [`ClientError`] where there is no receipt. A payload that fails, or a launch step that fails, is not an
    /// error here: both are causes in the receipt.
    pub fn run(&self, run: &Run) -> Result<Finished, ClientError> {
        self.run_by(run, None)
    }

    /// The same, and `sink` gets standard output and standard error while the run lasts. What is kept comes back all
    /// the same; a run that asks for nothing to be kept costs no memory for it.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_live(&self, run: &Run, sink: &mut dyn FnMut(Piece<'_>)) -> Result<Finished, ClientError> {
        self.run_by(run, Some(sink))
    }

    fn run_by(&self, run: &Run, sink: Option<Sink<'_>>) -> Result<Finished, ClientError> {
        match self.way().ok_or(ClientError::NoHelper)? {
            // Root has told the daemon; whoever asks cannot.
            Way::Daemon(_) if !self.mirror().is_empty() => Err(ClientError::Destinations),
            Way::Daemon(socket) => self.run_by_daemon(run, socket, sink),
            Way::OneShot(helper) => self.run_once(run, helper, sink),
        }
    }

    fn run_by_daemon(&self, run: &Run, socket: &Path, sink: Option<Sink<'_>>) -> Result<Finished, ClientError> {
        let request = run::encode(run, Some(self.token()?), sink.is_some())?;
        let failed = |source| ClientError::Connect { socket: socket.to_owned(), source };
        let ours = UnixStream::connect(socket).map_err(failed)?;
        // It may wait for others to end first: the daemon's going away is what ends the wait.
        let mut conversation = Conversation { socket: ours, child: None, over: true };
        let finished = match conversation.hold(&request, u64::from(run.limits.kept_bytes), sink) {
            Err(ClientError::Receive(error))
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                return Err(ClientError::DaemonLost);
            }
            finished => finished?,
        };
        let signed = finished.signed.as_ref().ok_or(ClientError::Signature("there is none"))?;
        if Some(signed.statement.request_digest) != request.request_digest {
            return Err(ClientError::Signature("it is about another request"));
        }
        verify(signed, &socket.with_file_name(place::PUBLIC_KEY))?;
        Ok(finished)
    }

    fn run_once(&self, run: &Run, helper: &Helper, sink: Option<Sink<'_>>) -> Result<Finished, ClientError> {
        let request = run::encode(run, None, sink.is_some())?;
        let (ours, theirs) = UnixStream::pair().map_err(ClientError::SocketPair)?;
        ours.set_read_timeout(Some(Duration::from_micros(run.limits.wall_us).saturating_add(SILENCE)))
            .map_err(ClientError::SocketPair)?;
        let mut command = helper.command(self.mirror());
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child =
            command.spawn().map_err(|source| ClientError::Spawn { program: helper.program().to_owned(), source })?;
        // The command keeps the helper's end of the pair open: it must go, or the helper's death is not seen.
        drop(command);
        let mut conversation = Conversation { socket: ours, child: Some(child), over: false };
        let finished = conversation.hold(&request, u64::from(run.limits.kept_bytes), sink);
        match finished {
            // A socket whose other end closed with the request unread is reset instead of ended.
            Err(ClientError::Receive(error))
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                Err(ClientError::HelperDied { status: conversation.end()? })
            }
            Ok(finished) => conversation.end().map(|_| finished),
            error => error,
        }
    }
}

/// The socket to whoever makes the sandbox. Dropped before its end, it kills the helper that is ours.
struct Conversation {
    socket: UnixStream,
    /// The helper, where it is one of ours.
    child: Option<Child>,
    over: bool,
}

impl Conversation {
    fn hold(
        &mut self,
        request: &Encoded,
        kept_bytes: u64,
        mut sink: Option<Sink<'_>>,
    ) -> Result<Finished, ClientError> {
        match self.send(request) {
            // A helper that refuses may close before it has read all: its word is what counts.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(ClientError::Send(error)),
            _ => {}
        }
        let mut kept: [Captured; Stream::COUNT] = Default::default();
        let mut body = Vec::new();
        loop {
            let mut header = [0; HEADER_BYTES];
            self.socket.read_exact(&mut header).map_err(ClientError::Receive)?;
            body.resize(frame::body_bytes(&header).map_err(ClientError::Frame)?, 0);
            self.socket.read_exact(&mut body).map_err(ClientError::Receive)?;
            let reply = frame::decode_body(&body).map_err(ClientError::Frame)?;
            match reply {
                Reply::Output { stream, part, bytes } => {
                    let captured = &mut kept[stream as usize];
                    if (captured.head.len() + captured.tail.len() + bytes.len()) as u64 > kept_bytes {
                        return Err(ClientError::TooMuchOutput { stream });
                    }
                    match part {
                        Part::Head => captured.head.extend_from_slice(bytes),
                        Part::Tail => captured.tail.extend_from_slice(bytes),
                    }
                }
                Reply::Live { stream, skipped, bytes } => {
                    if let Some(sink) = &mut sink {
                        sink(Piece { stream, skipped, bytes });
                    }
                }
                Reply::Refused(refusal) => return Err(ClientError::Refused(refusal)),
                Reply::Signed(_) | Reply::Done(_) if self.child.is_some() == matches!(reply, Reply::Signed(_)) => {
                    return Err(ClientError::Signature("a helper does not sign, and the daemon always does"));
                }
                Reply::Signed(SignedReceipt { statement: Statement { receipt, .. }, .. }) | Reply::Done(receipt) => {
                    for (captured, summary) in kept.iter_mut().zip(receipt.streams) {
                        captured.bytes_total = summary.bytes_total;
                        captured.sha256 = summary.sha256;
                    }
                    let [stdout, stderr, report] = kept;
                    let signed = if let Reply::Signed(signed) = reply { Some(signed) } else { None };
                    return Ok(Finished { receipt, stdout, stderr, report, signed });
                }
            }
        }
    }

    /// The frame, and the descriptors with its first byte.
    fn send(&mut self, request: &Encoded) -> io::Result<()> {
        let sources: Vec<RawFd> = request.sources.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&sources)];
        let rights = if sources.is_empty() { [].as_slice() } else { rights.as_slice() };
        let sent = loop {
            let bytes = [IoSlice::new(&request.frame)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &bytes, rights, MsgFlags::MSG_NOSIGNAL, None) {
                Err(Errno::EINTR) => {}
                sent => break sent?,
            }
        };
        self.socket.write_all(request.frame.get(sent..).unwrap_or_default())
    }

    /// Waits for the helper, which has said its last word: its control groups are gone when it is.
    fn end(mut self) -> Result<Option<ExitStatus>, ClientError> {
        self.over = true;
        match self.child.as_mut().map(Child::wait).transpose() {
            Ok(status) => Ok(status),
            // It is gone and was waited for: by the kernel, since this process ignores its children's ends.
            Err(error) if error.raw_os_error() == Some(Errno::ECHILD as i32) => Ok(None),
            Err(error) => Err(ClientError::Receive(error)),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut().filter(|_| !self.over) {
            // The helper's death takes its process tree along. Both calls fail only where it is already gone.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
