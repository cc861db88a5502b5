//! One request on one socket, and then the end: how a sandbox is had without a daemon.

use std::error::Error;
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, setsid};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES};
use tack_sandbox_protocol::request::MAX_MOUNTS;
use tack_sandbox_protocol::{Cause, FrameError, Need, Part, Refusal, Reply, Request, RunRequest, Stream};

use crate::launch::landlock;
use crate::run::{Finished, run};
use crate::sys::mount::{Reach, open_tree};
use crate::sys::process::{Closing, above_streams, adopt, close_range, dup_to, heed_children};

/// How long the client may take to send a request that it has spawned us for, or to read what it gets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the conversation broke off.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// Standard input is no socket that could be taken over.
    #[error("standard input is not a socket to a client")]
    Socket(#[source] io::Error),
    /// The client went away before it had asked for something.
    #[error("cannot read the client's request")]
    Receive(#[source] io::Error),
    /// The client went away before it had its answer.
    #[error("cannot send the client its answer")]
    Send(#[source] io::Error),
    /// An answer does not fit a frame.
    #[error("cannot put the answer into a frame")]
    Frame(#[source] FrameError),
}

/// Serves one request on the socket that is standard input: the whole life of a helper process.
///
/// It closes every descriptor but the standard streams, so it must be called first thing in `main`, in a process that
/// has one thread and has opened nothing.
#[must_use]
pub fn on_stdin() -> ExitCode {
    match take_stdin().and_then(|client| serve(&client)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be left to tell. Standard error is the client's, if it has one.
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            writeln!(io::stderr(), "tack-sandboxd: {error}{cause}").ok();
            ExitCode::FAILURE
        }
    }
}

/// Moves the socket off descriptor 0, and closes what was inherited and not asked for.
fn take_stdin() -> Result<UnixStream, OnceError> {
    let socket = || -> io::Result<UnixStream> {
        let socket = above_streams(io::stdin().as_fd().try_clone_to_owned()?)?;
        let number = socket.as_raw_fd().cast_unsigned();
        close_range(3, number - 1, Closing::Now)?;
        close_range(number + 1, u32::MAX, Closing::Now)?;
        let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        dup_to(&null, 0)?;
        let socket = UnixStream::from(socket);
        socket.peer_addr()?;
        Ok(socket)
    };
    socket().map_err(OnceError::Socket)
}

/// Reads one request from `client` and answers it.
fn serve(client: &UnixStream) -> Result<(), OnceError> {
    // Keys typed at the client's terminal are the client's: when it goes, the socket says so. It fails for a process
    // that leads its group already, which no terminal signals on the client's behalf.
    setsid().ok();
    // A client that ignores its children's ends has handed that on, and ours could not be waited for.
    heed_children().map_err(|errno| OnceError::Socket(errno.into()))?;
    client.set_read_timeout(Some(PATIENCE)).map_err(OnceError::Socket)?;
    client.set_write_timeout(Some(PATIENCE)).map_err(OnceError::Socket)?;
    let mut buffer = Vec::new();
    let answer = match receive(client, &mut buffer)? {
        Ok((request, sources)) => match refuse() {
            None => Ok(run(&request, sources, client)),
            Some(refusal) => Err(refusal),
        },
        Err(_) => Err(Refusal::Malformed),
    };
    let mut sender = Sender { client, frame: vec![0; HEADER_BYTES + Reply::OUTPUT_CHUNK_BYTES + FRAME_SLACK_BYTES] };
    match answer {
        Err(refusal) => sender.send(&Reply::Refused(refusal)),
        Ok(finished) => {
            let sent = match finished.receipt.cause {
                // Nobody listens.
                Cause::Cancelled => Ok(()),
                _ => sender.send_finished(&finished),
            };
            // Removing groups takes the kernel milliseconds: not before the client has its answer.
            drop(finished.groups);
            sent
        }
    }
}

/// What an output's frame takes beside its bytes: two enums and a length; a receipt takes about 800 bytes.
const FRAME_SLACK_BYTES: usize = 64;

/// Reads one frame into `buffer`, and the descriptors that come with it. The inner error is the client's: it is
/// answered.
fn receive<'b>(
    mut client: &UnixStream,
    buffer: &'b mut Vec<u8>,
) -> Result<Result<(RunRequest<'b>, Vec<OwnedFd>), FrameError>, OnceError> {
    let mut header = [0; HEADER_BYTES];
    let (read, sources) = receive_first(client, &mut header).map_err(OnceError::Receive)?;
    client.read_exact(header.get_mut(read..).unwrap_or_default()).map_err(OnceError::Receive)?;
    // More descriptors than any request has: what came of them goes with this process.
    let Some(sources) = sources else { return Ok(Err(FrameError::Body)) };
    let body_bytes = match frame::body_bytes(&header) {
        Ok(body_bytes) => body_bytes,
        Err(error) => return Ok(Err(error)),
    };
    buffer.resize(body_bytes, 0);
    client.read_exact(buffer).map_err(OnceError::Receive)?;
    Ok(frame::decode_body(buffer).map(|Request::Run(request)| (request, sources)))
}

/// The first bytes, with whatever descriptors came with them: they close by themselves when a program is executed, and
/// none has the number of a payload's stream. `None` if more came than a request can use.
fn receive_first(client: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<Vec<OwnedFd>>)> {
    let mut room = nix::cmsg_space!([std::os::fd::RawFd; MAX_MOUNTS]);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(client.as_raw_fd(), &mut parts, Some(&mut room), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    if message.flags.contains(MsgFlags::MSG_CTRUNC) {
        return Ok((message.bytes, None));
    }
    let mut numbers = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            numbers.extend(received);
        }
    }
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let read = message.bytes;
    let received = numbers.into_iter().map(|number| above_streams(adopt(number))).collect::<Result<_, _>>()?;
    Ok((read, Some(received)))
}

/// Why this process, on this kernel, makes no sandbox; `None` if it does.
fn refuse() -> Option<Refusal> {
    let uid = geteuid();
    if !uid.is_root() {
        return Some(Refusal::NotRoot { uid: uid.as_raw() });
    }
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return Some(Refusal::Threads { count: u32::try_from(threads).unwrap_or(u32::MAX) });
    }
    let has = |need: Need| match need {
        Need::Landlock => landlock::abi().is_some(),
        Need::Seccomp => Path::new("/proc/sys/kernel/seccomp").exists(),
        Need::MountApi => !matches!(open_tree(AT_FDCWD, c"/", Reach::One), Err(Errno::ENOSYS)),
        Need::UserNamespaces => Path::new("/proc/self/ns/user").exists(),
    };
    Need::ALL.iter().copied().find(|need| !has(*need)).map(Refusal::Kernel)
}

struct Sender<'a> {
    client: &'a UnixStream,
    frame: Vec<u8>,
}

impl Sender<'_> {
    fn send(&mut self, reply: &Reply<'_>) -> Result<(), OnceError> {
        let frame = frame::encode(reply, &mut self.frame).map_err(OnceError::Frame)?;
        self.client.write_all(frame).map_err(OnceError::Send)
    }

    fn send_finished(&mut self, finished: &Finished) -> Result<(), OnceError> {
        for (stream, (head, tail)) in Stream::ALL.iter().zip(&finished.kept) {
            for (part, bytes) in [(Part::Head, head), (Part::Tail, tail)] {
                for bytes in bytes.chunks(Reply::OUTPUT_CHUNK_BYTES) {
                    self.send(&Reply::Output { stream: *stream, part, bytes })?;
                }
            }
        }
        self.send(&Reply::Done(finished.receipt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused_since_a_fork_of_it_would_be_torn() {
        // Tests run in threads of their own.
        match refuse() {
            Some(Refusal::Threads { count }) => assert!(count > 1, "{count}"),
            Some(Refusal::NotRoot { uid }) => assert_eq!(uid, geteuid().as_raw()),
            other => panic!("{other:?}"),
        }
    }
}
