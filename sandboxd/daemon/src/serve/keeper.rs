//! One client's conversation, in a process of its own: it keeps the sandbox, and dies with the daemon.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::{Pid, alarm, getppid, setsid};
use sha2::{Digest, Sha256};
use tack_sandbox_protocol::{Cause, Limit, Refusal, Reply, Request, RunRequest, SignedReceipt, Statement, Submission};

use crate::conversation::{ConversationError, Sender, most_bytes, receive};
use crate::once::refuse;
use crate::run::{Finished, run};
use crate::serve::answers::{Answers, Known};
use crate::serve::config::Config;
use crate::serve::grant::granted;
use crate::serve::peer::{Peer, check_token};
use crate::sys::process::{Closing, close_range, heed_alarm, heed_children};

/// How long a client may take to ask, in seconds: it holds one of the places that root allows. The kernel ends a keeper
/// whose time is up, whatever it waits for: a request that comes byte by byte, a process of the peer's that was stopped.
const ASKING_S: u32 = 15;

/// How long a client may take to take its answer, in seconds.
const TAKING_S: u32 = 120;

/// Most bytes of a statement or of its signature on the way to the daemon and back.
pub(crate) const MESSAGE_BYTES: usize = Statement::MAX_BYTES + 128;

/// What a keeper works with.
pub(crate) struct Keeper<'a> {
    pub(crate) client: UnixStream,
    /// To the daemon, which alone can sign.
    pub(crate) daemon: OwnedFd,
    pub(crate) daemon_pid: Pid,
    pub(crate) peer: &'a Peer,
    pub(crate) config: &'a Config,
    pub(crate) answers: &'a Answers,
}

impl Keeper<'_> {
    /// The keeper's whole life, in a process that was forked for it. Returns its exit status, which says nothing to
    /// the client.
    pub(crate) fn live(self) -> i32 {
        i32::from(self.prepare().is_err() || self.converse().is_err())
    }

    /// Leaves the daemon's other descriptors, and dies when it does.
    fn prepare(&self) -> nix::Result<()> {
        set_pdeathsig(Signal::SIGKILL)?;
        // It may have died before the line above.
        if getppid() != self.daemon_pid {
            return Err(nix::errno::Errno::ESRCH);
        }
        let mut kept = [self.client.as_raw_fd().cast_unsigned(), self.daemon.as_raw_fd().cast_unsigned()];
        kept.sort_unstable();
        let mut from = 3;
        for number in kept {
            if from < number {
                close_range(from, number - 1, Closing::Now)?;
            }
            from = number + 1;
        }
        close_range(from, u32::MAX, Closing::Now)?;
        heed_children()?;
        heed_alarm()?;
        alarm::set(ASKING_S);
        setsid().map(drop)
    }

    fn converse(&self) -> Result<(), ConversationError> {
        let mut buffer = Vec::new();
        let mut sender = Sender::new(&self.client);
        match receive(&self.client, &mut buffer)? {
            Ok((Request::Submit(submission), sources)) => match self.answer(&submission, sources) {
                Ok(()) => Ok(()),
                Err(Ended::Refused(refusal)) => sender.send(&Reply::Refused(refusal)),
                Err(Ended::Broken(error)) => Err(error),
            },
            Ok((Request::Run(_), _)) | Err(_) => sender.send(&Reply::Refused(Refusal::Malformed)),
        }
    }

    fn answer(&self, submission: &Submission<'_>, sources: Vec<OwnedFd>) -> Result<(), Ended> {
        let Submission { token, key, run: request } = submission;
        check_token(token, self.config)?;
        check_ceilings(request, self.config)?;
        let request_digest = digest(request);
        let look = |key| self.answers.look(self.peer.uid, key, request_digest, most_bytes(&request.limits));
        let place = match key.map(look).transpose()? {
            Some(Known::Answered(frames)) => {
                return Ok((&self.client).write_all(&frames).map_err(ConversationError::Send)?);
            }
            Some(Known::New(place)) => Some(place),
            None => None,
        };
        if let Some(refusal) = refuse() {
            return Err(refusal.into());
        }
        let sources = granted(request.mounts.as_slice(), sources, self.peer, &self.config.roots)?;
        // The run has limits of its own.
        alarm::cancel();
        let finished = run(request, sources, &self.config.mirrors, &self.client);
        alarm::set(TAKING_S);
        let statement = Statement { peer_uid: self.peer.uid, request_digest, receipt: finished.receipt };
        // A daemon that is gone signs nothing; then the client sees the end of the conversation, as it should.
        let Some(signed) = self.sign(&statement) else { return Ok(()) };
        let sent = match place {
            // Nobody listens, and a request that was cut off is run again.
            _ if finished.receipt.cause == Cause::Cancelled => Ok(()),
            None => {
                let mut sender = Sender::new(&self.client);
                sender.send_untaken(&finished)?;
                send_all(sender, &finished, &signed).map(drop)
            }
            Some(place) => {
                let frames = send_all(Sender::new(Vec::new()), &finished, &signed)?;
                // The key is free before the client can ask again.
                place.keep(&frames)?;
                // Live output is not part of the answer that a later client would get: what was kept is.
                Sender::new(&self.client).send_untaken(&finished)?;
                (&self.client).write_all(&frames).map_err(ConversationError::Send)
            }
        };
        // Removing groups takes the kernel milliseconds: not before the client has its answer.
        drop(finished.groups);
        Ok(sent?)
    }

    /// Asks the daemon for its word on a statement.
    fn sign(&self, statement: &Statement) -> Option<SignedReceipt> {
        let mut buffer = [0; MESSAGE_BYTES];
        let bytes = postcard::to_slice(statement, &mut buffer).ok()?;
        send(self.daemon.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).ok()?;
        let length = recv(self.daemon.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok()?;
        postcard::from_bytes(buffer.get(..length)?).ok()
    }
}

/// Why there is no run, or no answer.
enum Ended {
    Refused(Refusal),
    Broken(ConversationError),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ConversationError> for Ended {
    fn from(error: ConversationError) -> Self {
        Self::Broken(error)
    }
}

fn send_all<W: Write>(
    mut sender: Sender<W>,
    finished: &Finished,
    signed: &SignedReceipt,
) -> Result<W, ConversationError> {
    sender.send_output(finished)?;
    sender.send(&Reply::Signed(*signed))?;
    Ok(sender.into_inner())
}

/// Refuses what root does not allow anyone to use.
fn check_ceilings(request: &RunRequest<'_>, config: &Config) -> Result<(), Refusal> {
    for (limit, most) in Limit::ALL.iter().zip(config.ceilings) {
        if limit.of(&request.limits) > most {
            return Err(Refusal::Ceiling { limit: *limit, most });
        }
    }
    Ok(())
}

/// SHA-256 of a request as it travels, whatever came around it.
fn digest(request: &RunRequest<'_>) -> [u8; 32] {
    let mut body = vec![0; tack_sandbox_protocol::frame::MAX_BODY_BYTES];
    // It came in a frame, so it fits one.
    let body = postcard::to_slice(request, &mut body).map(|it| &*it).unwrap_or_default();
    Sha256::digest(body).into()
}
