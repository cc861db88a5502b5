//! Steps 7 and 10, `Unprivileged -> Settled` and `Sealed -> ` the program: what the payload inherits is a list.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, execve, setsid};
use tack_sandbox_protocol::{SetUpFailure, Stage, Stream};

use crate::launch::landlock::Sealed;
use crate::launch::plan::Plan;
use crate::launch::privileges::Unprivileged;
use crate::launch::progress::{At, Progress, failure};
use crate::sys::process::{Closing, close_range, dup_to};

/// Session, standard streams, umask and working directory are the payload's.
pub(crate) struct Settled {
    pub(crate) _private: (),
}

impl Unprivileged {
    /// Before: the payload's process, forked from pid 1, with pid 1's descriptors.
    /// After: a session of its own without a terminal; empty standard input; the streams' pipes at 1, 2 and, if asked
    /// for, 3; everything else closes on execution; umask 022; the request's working directory.
    /// Why here: as the payload's own user, so that it gets no directory that it may not enter.
    pub(crate) fn settle(
        self,
        plan: &Plan,
        streams: &[Option<OwnedFd>; Stream::COUNT],
        progress: &mut Progress,
    ) -> Result<Settled, SetUpFailure> {
        setsid().at(Stage::Process)?;
        umask(Mode::from_bits_truncate(0o022));
        let null = open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).at(Stage::Process)?;
        dup_to(&null, 0).at(Stage::Process)?;
        let mut next = 1;
        for stream in streams.iter().flatten() {
            dup_to(stream, next).at(Stage::Process)?;
            next += 1;
        }
        close_range(next.cast_unsigned(), u32::MAX, Closing::OnExec).at(Stage::Process)?;
        progress.took(Stage::Process);
        chdir(plan.directory.as_c_str()).at(Stage::Directory)?;
        progress.took(Stage::Directory);
        Ok(Settled { _private: () })
    }
}

impl Sealed {
    /// Executes the program: it returns only to say why it could not.
    ///
    /// Of several places, the first that there is counts; a place that may not be searched or executed is remembered,
    /// as shells do, and reported if no later one will do.
    pub(crate) fn execute(self, plan: &Plan, progress: &mut Progress) -> SetUpFailure {
        // The last step's time cannot include itself: the write that reports it comes before.
        if let Err(errno) = progress.flush() {
            return failure(Stage::Exec, errno);
        }
        let mut worst = Errno::ENOENT;
        for program in &plan.programs {
            let Err(errno) = execve(program, &plan.argv, &plan.environment);
            match errno {
                Errno::ENOENT | Errno::ENOTDIR => {}
                Errno::EACCES => worst = errno,
                _ => return failure(Stage::Exec, errno),
            }
        }
        failure(Stage::Exec, worst)
    }
}
