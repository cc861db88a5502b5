//! One request on one socket, and then the end: how a sandbox is had without a daemon.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, setsid};
use tack_sandbox_protocol::{Cause, Need, Refusal, Reply, Request};

use crate::conversation::{ConversationError, PATIENCE, Sender, receive};
use crate::launch::landlock;
use crate::launch::plan::Source;
use crate::mirror::{MirrorProgram, Mirrors, MirrorsError};
use crate::run::run;
use crate::sys::mount::{Reach, open_tree};
use crate::sys::process::{Closing, above_streams, close_range, dup_to, heed_children};

/// Stands before each destination.
const MIRROR_ARGUMENT: &str = "--mirror";

/// Why the conversation broke off.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// An argument that a helper does not know, or without its destination.
    #[error("`{}` is no argument of a helper with what it needs; expected {MIRROR_ARGUMENT} DESTINATION", argument.display())]
    Argument {
        /// The argument.
        argument: OsString,
    },
    /// A destination that is none.
    #[error("what a mirror may reach was not understood")]
    Mirrors(#[source] MirrorsError),
    /// Standard input is no socket that could be taken over.
    #[error("standard input is not a socket to a client")]
    Socket(#[source] io::Error),
    /// The conversation broke off.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
}

/// Serves one request on the socket that is standard input: the whole life of a helper process.
///
/// `arguments` are any number of `--mirror DESTINATION`: root, who spawns the helper, says so what a run with a mirror
/// may reach.
///
/// It closes every descriptor but the standard streams, so it must be called first thing in `main`, in a process that
/// has one thread and has opened nothing.
#[must_use]
pub fn on_stdin(mirror: MirrorProgram, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let served = mirrors(mirror, arguments).and_then(|mirrors| serve(&take_stdin()?, &mirrors));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be left to tell. Standard error is the client's, if it has one.
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            writeln!(io::stderr(), "tack-sandboxd: {error}{cause}").ok();
            ExitCode::FAILURE
        }
    }
}

/// What root says of mirrors.
fn mirrors(program: MirrorProgram, mut arguments: impl Iterator<Item = OsString>) -> Result<Mirrors, OnceError> {
    let mut destinations = Vec::new();
    while let Some(argument) = arguments.next() {
        match (argument.to_str(), arguments.next().and_then(|it| it.into_string().ok())) {
            (Some(MIRROR_ARGUMENT), Some(destination)) => destinations.push(destination),
            _ => return Err(OnceError::Argument { argument }),
        }
    }
    Mirrors::new(program, destinations).map_err(OnceError::Mirrors)
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
fn serve(client: &UnixStream, mirrors: &Mirrors) -> Result<(), OnceError> {
    // Keys typed at the client's terminal are the client's: when it goes, the socket says so. It fails for a process
    // that leads its group already, which no terminal signals on the client's behalf.
    setsid().ok();
    // A client that ignores its children's ends has handed that on, and ours could not be waited for.
    heed_children().map_err(|errno| OnceError::Socket(errno.into()))?;
    client.set_read_timeout(Some(PATIENCE)).map_err(OnceError::Socket)?;
    let mut buffer = Vec::new();
    let answer = match receive(client, &mut buffer)? {
        Ok((Request::Run(request), sources)) => match refuse() {
            None => Ok(run(&request, sources.into_iter().map(Source::as_it_is).collect(), mirrors, client)),
            Some(refusal) => Err(refusal),
        },
        Ok((Request::Submit(_), _)) | Err(_) => Err(Refusal::Malformed),
    };
    // It may read as slowly as it likes: this process is its own, and goes when it does.
    let mut sender = Sender::new(client);
    match answer {
        Err(refusal) => Ok(sender.send(&Reply::Refused(refusal))?),
        Ok(finished) => {
            let sent = match finished.receipt.cause {
                // Nobody listens.
                Cause::Cancelled => Ok(()),
                _ => sender
                    .send_untaken(&finished)
                    .and_then(|()| sender.send_output(&finished))
                    .and_then(|()| sender.send(&Reply::Done(finished.receipt))),
            };
            // Removing groups takes the kernel milliseconds: not before the client has its answer.
            drop(finished.groups);
            Ok(sent?)
        }
    }
}

/// Why this process, on this kernel, makes no sandbox; `None` if it does.
pub(crate) fn refuse() -> Option<Refusal> {
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
