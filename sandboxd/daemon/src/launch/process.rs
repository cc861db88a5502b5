//! Step 8, `Unprivileged -> Settled`, and the last, from `Sealed` to the program: what the payload inherits is a list.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, execve, setsid};
use tack_sandbox_protocol::{SetUpFailure, Stage};

use crate::launch::Launch;
use crate::launch::landlock::Sealed;
use crate::launch::privileges::Unprivileged;
use crate::launch::progress::{At, Record, elapsed_us, failure};
use crate::sys::process::{Closing, above_streams, close_range, dup_to};

/// Session, standard streams, umask and working directory are the payload's.
pub(crate) struct Settled<'a> {
    pub(super) launch: &'a mut Launch,
}

impl<'a> Unprivileged<'a> {
    /// Before: the payload's process, forked from pid 1, with pid 1's descriptors.
    /// After: a session of its own without a terminal; empty standard input; the streams' pipes at 1, 2 and, if asked
    /// for, 3; everything else closes on execution; umask 022; the request's working directory.
    /// Why here: as the payload's own user, so that it gets no directory that it may not enter.
    pub(super) fn settle(self) -> Result<Settled<'a>, SetUpFailure> {
        let Launch { plan, progress, ends, .. } = &mut *self.launch;
        setsid().at(Stage::Process)?;
        umask(Mode::from_bits_truncate(0o022));
        let null = open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).at(Stage::Process)?;
        // Or it could be the very number that the report is about to get.
        let null = above_streams(null).at(Stage::Process)?;
        dup_to(&null, 0).at(Stage::Process)?;
        // It may have got a stream's number, and must not close that stream later.
        drop(null);
        let mut next = 1;
        for stream in ends.streams.iter().flatten() {
            dup_to(stream, next).at(Stage::Process)?;
            next += 1;
        }
        close_range(next.cast_unsigned(), u32::MAX, Closing::OnExec).at(Stage::Process)?;
        progress.took(Stage::Process);
        chdir(plan.directory.as_c_str()).at(Stage::Directory)?;
        progress.took(Stage::Directory);
        Ok(Settled { launch: self.launch })
    }
}

impl Sealed<'_> {
    /// Executes the program: it returns only to say why it could not.
    ///
    /// Of several places, the first that there is counts; a place that may not be searched or executed is remembered,
    /// as shells do, and reported if no later one will do.
    pub(super) fn execute(self) -> SetUpFailure {
        let Launch { plan, progress, .. } = self.launch;
        let executing = Record::Executing { at_us: elapsed_us(progress.began()) };
        if let Err(errno) = progress.send(executing) {
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
