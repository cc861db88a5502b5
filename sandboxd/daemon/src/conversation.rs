//! One request and its answer over a socket: frames, and the descriptors that come with the first byte.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES};
use tack_sandbox_protocol::request::MAX_MOUNTS;
use tack_sandbox_protocol::{FrameError, Part, Reply, Request, RunLimits, Statement, Stream};

use crate::run::Finished;
use crate::sys::process::{above_streams, adopt};

/// How long the other end may take to send a request, or to read what it gets.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Why a conversation broke off.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
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

/// What an output's frame takes beside its bytes: two enums and a length. A receipt fits in place of the bytes.
const FRAME_SLACK_BYTES: usize = 64;

/// Reads one frame into `buffer`, and the descriptors that come with it. The inner error is the client's: it is
/// answered.
pub(crate) fn receive<'b>(
    mut client: &UnixStream,
    buffer: &'b mut Vec<u8>,
) -> Result<Result<(Request<'b>, Vec<OwnedFd>), FrameError>, ConversationError> {
    let mut header = [0; HEADER_BYTES];
    let (read, sources) = receive_first(client, &mut header).map_err(ConversationError::Receive)?;
    client.read_exact(header.get_mut(read..).unwrap_or_default()).map_err(ConversationError::Receive)?;
    // More descriptors than any request has: what came of them goes with this process.
    let Some(sources) = sources else { return Ok(Err(FrameError::Body)) };
    let body_bytes = match frame::body_bytes(&header) {
        Ok(body_bytes) => body_bytes,
        Err(error) => return Ok(Err(error)),
    };
    buffer.resize(body_bytes, 0);
    client.read_exact(buffer).map_err(ConversationError::Receive)?;
    Ok(frame::decode_body(buffer).map(|request| (request, sources)))
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

/// Replies on their way out: to a client, or to where an answer is kept.
#[derive(Debug)]
pub(crate) struct Sender<W> {
    into: W,
    frame: Vec<u8>,
}

impl<W: Write> Sender<W> {
    pub(crate) fn new(into: W) -> Self {
        Self { into, frame: vec![0; HEADER_BYTES + Reply::OUTPUT_CHUNK_BYTES + FRAME_SLACK_BYTES] }
    }

    pub(crate) fn send(&mut self, reply: &Reply<'_>) -> Result<(), ConversationError> {
        let frame = frame::encode(reply, &mut self.frame).map_err(ConversationError::Frame)?;
        self.into.write_all(frame).map_err(ConversationError::Send)
    }

    /// Output that the client has not taken while the run lasted.
    pub(crate) fn send_untaken(&mut self, finished: &Finished) -> Result<(), ConversationError> {
        self.into.write_all(&finished.untaken).map_err(ConversationError::Send)
    }

    /// What was kept of each stream.
    pub(crate) fn send_output(&mut self, finished: &Finished) -> Result<(), ConversationError> {
        for (stream, (head, tail)) in Stream::ALL.iter().zip(&finished.kept) {
            for (part, bytes) in [(Part::Head, head), (Part::Tail, tail)] {
                for bytes in bytes.chunks(Reply::OUTPUT_CHUNK_BYTES) {
                    self.send(&Reply::Output { stream: *stream, part, bytes })?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn into_inner(self) -> W {
        self.into
    }
}

/// Most bytes of the answer to a run with these limits.
pub(crate) fn most_bytes(limits: &RunLimits) -> u64 {
    let kept = u64::from(limits.kept_bytes);
    // Head and tail each end in a chunk that is not full.
    let chunks = kept / Reply::OUTPUT_CHUNK_BYTES as u64 + 2;
    let stream = kept + chunks * (HEADER_BYTES + FRAME_SLACK_BYTES) as u64;
    stream * Stream::COUNT as u64 + (HEADER_BYTES + Statement::MAX_BYTES + FRAME_SLACK_BYTES) as u64
}
