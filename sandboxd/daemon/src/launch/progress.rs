//! What the sandbox's own processes tell the helper: fixed records on pipes that the payload never has.
//!
//! There are three pipes. `set_up` carries the launch's progress up; its end of file means that the program was
//! executed, since every copy of its write end closes on execution. `go` carries two bytes down: the control
//! groups are made; the ids are mapped. `end` carries the payload's wait status up, from pid 1.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd;
use tack_sandbox_protocol::{SetUpFailure, Stage};

use crate::group::Taken;
use crate::sys::process::above_streams;

/// Names the step that an error number belongs to.
pub(crate) trait At<T> {
    /// # Errors
    /// The failure of `stage` with this error number.
    fn at(self, stage: Stage) -> Result<T, SetUpFailure>;
}

impl<T> At<T> for nix::Result<T> {
    fn at(self, stage: Stage) -> Result<T, SetUpFailure> {
        self.map_err(|errno| failure(stage, errno))
    }
}

/// A step that failed with an error number.
pub(crate) const fn failure(stage: Stage, errno: Errno) -> SetUpFailure {
    SetUpFailure { stage, errno: errno as i32, mount: None }
}

/// Both ends of a pipe, closed on execution and clear of the standard streams.
pub(crate) fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = unistd::pipe2(OFlag::O_CLOEXEC)?;
    Ok((above_streams(read)?, above_streams(write)?))
}

/// One record on the `set_up` or the `end` pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A step was taken, in this many microseconds.
    Took { stage: Stage, us: u32 },
    /// The launch is over: a step failed.
    Failed(SetUpFailure),
    /// Pid 1 has moved into its control groups, or could not.
    Joined(Taken),
    /// The new user namespace waits for its maps.
    AwaitingMaps,
    /// The payload's process is about to be forked; its first process has used this much until now.
    Forking { user_us: u64, system_us: u64 },
    /// The program is about to be executed: so long after the helper's own [`Instant`], which forks share.
    Executing { at_us: u64 },
    /// The payload ended with this wait status.
    Ended { status: i32, at_us: u64 },
}

impl Record {
    /// Every record has this size: writes of up to `PIPE_BUF` bytes are never split.
    pub(crate) const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, stage, mount, small, first, second) = match self {
            Self::Took { stage, us } => (0, stage as u8, 0, 0, u64::from(us), 0),
            Self::Failed(SetUpFailure { stage, errno, mount }) => {
                (1, stage as u8, mount.map_or(0, |index| index + 1), errno, 0, 0)
            }
            Self::AwaitingMaps => (2, 0, 0, 0, 0, 0),
            Self::Forking { user_us, system_us } => (3, 0, 0, 0, user_us, system_us),
            Self::Executing { at_us } => (4, 0, 0, 0, at_us, 0),
            Self::Ended { status, at_us } => (5, 0, 0, status, at_us, 0),
            Self::Joined(taken) => {
                (6, 0, 0, 0, taken.iter().rev().fold(0, |word, errno| (word << 16) | u64::from(*errno)), 0)
            }
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(&[kind, stage, mount]);
        bytes[4..8].copy_from_slice(&small.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// The record in `bytes`; `None` if they are none. The writers are processes of ours, but of a sandbox.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (small, rest) = bytes[4..].split_first_chunk::<4>()?;
        let (first, second) = rest.split_first_chunk::<8>()?;
        let (small, first) = (i32::from_le_bytes(*small), u64::from_le_bytes(*first));
        let second = u64::from_le_bytes(*second.first_chunk::<8>()?);
        let stage = Stage::ALL.get(usize::from(bytes[1])).copied();
        Some(match bytes[0] {
            0 => Self::Took { stage: stage?, us: u32::try_from(first).ok()? },
            1 => Self::Failed(SetUpFailure { stage: stage?, errno: small, mount: bytes[2].checked_sub(1) }),
            2 => Self::AwaitingMaps,
            3 => Self::Forking { user_us: first, system_us: second },
            4 => Self::Executing { at_us: first },
            5 => Self::Ended { status: small, at_us: first },
            6 => {
                let (words, _) = bytes[8..16].as_chunks::<2>();
                let mut taken = Taken::default();
                taken.iter_mut().zip(words).for_each(|(errno, word)| *errno = u16::from_le_bytes(*word));
                Self::Joined(taken)
            }
            _ => return None,
        })
    }
}

/// Writes the launch's progress. Times are kept back and go along with the next record that matters, so that the
/// helper is not woken for each.
#[derive(Debug)]
pub(crate) struct Progress {
    pipe: OwnedFd,
    began: Instant,
    since: Instant,
    pending: Vec<u8>,
}

impl Progress {
    pub(crate) fn new(pipe: OwnedFd, began: Instant) -> Self {
        Self { pipe, began, since: Instant::now(), pending: Vec::with_capacity(Stage::COUNT * Record::BYTES) }
    }

    /// When the helper's clock began: times that cross a pipe are counted from there.
    pub(crate) const fn began(&self) -> Instant {
        self.began
    }

    /// The time since the last step, or since the start, was `stage`'s.
    pub(crate) fn took(&mut self, stage: Stage) {
        let now = Instant::now();
        let us = u32::try_from((now - self.since).as_micros()).unwrap_or(u32::MAX);
        self.since = now;
        self.pending.extend_from_slice(&Record::Took { stage, us }.to_bytes());
    }

    /// Keeps `record` back, for the next that is sent.
    pub(crate) fn note(&mut self, record: Record) {
        self.pending.extend_from_slice(&record.to_bytes());
    }

    /// Sends `record` behind the pending times.
    pub(crate) fn send(&mut self, record: Record) -> nix::Result<()> {
        self.note(record);
        self.flush()
    }

    fn flush(&mut self) -> nix::Result<()> {
        let sent = write_once(&self.pipe, &self.pending);
        self.pending.clear();
        sent
    }
}

/// Time since the helper's clock began, in microseconds.
pub(crate) fn elapsed_us(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Sends one record on a pipe of its own.
pub(crate) fn send(pipe: impl AsFd, record: Record) -> nix::Result<()> {
    write_once(pipe, &record.to_bytes())
}

/// A write of at most `PIPE_BUF` bytes to a pipe with room is whole or not at all.
fn write_once(pipe: impl AsFd, bytes: &[u8]) -> nix::Result<()> {
    loop {
        match unistd::write(&pipe, bytes) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_pipe() {
        let cases = [
            Record::Took { stage: Stage::Exec, us: u32::MAX },
            Record::Failed(SetUpFailure { stage: Stage::Mounts, errno: -1, mount: Some(31) }),
            Record::Failed(SetUpFailure { stage: Stage::Request, errno: 7, mount: None }),
            Record::AwaitingMaps,
            Record::Forking { user_us: 1, system_us: u64::MAX },
            Record::Executing { at_us: 1 << 40 },
            Record::Ended { status: 0x8b, at_us: 7 },
            Record::Joined([13, 0, u16::MAX]),
        ];
        for record in cases {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        for (index, byte) in [(0, 7), (0, 255), (1, 200)] {
            let mut bytes = Record::Took { stage: Stage::Exec, us: 1 }.to_bytes();
            bytes[index] = byte;
            assert_eq!(Record::from_bytes(&bytes), None, "byte {index} = {byte}");
        }
    }
}
