//! The launch: from a request to a confined payload, one state a step, so that a wrong order cannot compile.
//!
//! ```text
//! helper                        pid 1 of the sandbox                          payload
//! ------                        --------------------                          -------
//! Plan: check, open, map ids
//! fork into a new pid namespace
//!   |---------------------------> Started
//! make control groups             Isolated      mount, net, ipc, uts; loopback up
//!   |                             Rooted        new root, /proc, /dev, mounts; pivot
//!   |                             Limited       resource limits
//!   |--- groups made -----------> joins them; user and cgroup namespaces
//!   |<-- awaiting maps ----------
//! map ids, snapshot usage
//!   |--- go --------------------> Unprivileged  ids, capabilities, no_new_privs
//!   |                             fork ----------------------------------------> session, streams, directory
//!   |                             reaper                                         Confined  Landlock
//!   |<-- end of file on `set_up`: executed ------------------------------------- Sealed    seccomp; execve
//!   |<-- ended(status) ---------- reaps until the payload ends, then exits: the kernel kills what is left
//! wait for pid 1: the tree is gone
//! ```
//!
//! Why mounts come first and the user namespace last: everything of the root is made by root in the initial user
//! namespace, so nothing in it belongs to the namespace that the payload lives in, and host uid 0 is never mapped.
//!
//! The processes are forks of a helper with one thread, so they are whole copies and may allocate; none of them
//! executes anything but the payload.

pub(crate) mod id_map;
pub(crate) mod landlock;
pub(crate) mod namespaces;
pub(crate) mod pid1;
pub(crate) mod plan;
pub(crate) mod privileges;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod root;
pub(crate) mod seccomp;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fchown, read};
use tack_sandbox_protocol::{SetUpFailure, Stage, Stream};

use crate::group::Seats;
use crate::launch::plan::Plan;
use crate::launch::privileges::Forked;
use crate::launch::progress::{At, Progress, Record, failure, pipe};
use crate::mirror::Mirror;
use crate::sys::process::{Waited, exit_now, fork, pidfd_kill, pidfd_open, wait4};

/// A sandbox whose processes are on their way, as the helper holds it. Dropped, it is killed and waited for.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Process id of pid 1, as the helper sees it.
    pub(crate) pid1: Pid,
    /// Ready to read when pid 1 has ended.
    pub(crate) pidfd: OwnedFd,
    /// Carries [`Record`]s of the launch; ends when the program is executed.
    pub(crate) set_up: OwnedFd,
    /// Takes two bytes: the groups are made; the ids are mapped.
    pub(crate) go: OwnedFd,
    /// Carries [`Record::Ended`].
    pub(crate) end: OwnedFd,
    /// What the payload writes, by [`Stream`]'s order; no report where none was asked for.
    pub(crate) streams: [Option<OwnedFd>; Stream::COUNT],
    /// The way out, if there is one.
    pub(crate) mirror: Option<Mirror>,
    reaped: bool,
}

/// The ends of the pipes that the sandbox's processes hold.
#[derive(Debug)]
pub(crate) struct Ends {
    go: OwnedFd,
    pub(crate) end: OwnedFd,
    pub(crate) streams: [Option<OwnedFd>; Stream::COUNT],
    /// Takes the listener of the mirror, which waits for it.
    pub(crate) mirror: Option<UnixStream>,
}

impl Sandbox {
    /// Forks pid 1 of a new pid namespace, which launches `plan`. Times that come back are counted from `began`.
    ///
    /// # Errors
    /// A failure of [`Stage::Prepare`], [`Stage::Egress`] or [`Stage::Fork`]; later steps report on `set_up`.
    pub(crate) fn start(mut plan: Plan, seats: Seats, began: Instant) -> Result<Self, SetUpFailure> {
        let (set_up_read, set_up_write) = pipe().at(Stage::Prepare)?;
        let (go_read, go_write) = pipe().at(Stage::Prepare)?;
        let (end_read, end_write) = pipe().at(Stage::Prepare)?;
        let mut ours = [const { None }; Stream::COUNT];
        let mut theirs = [const { None }; Stream::COUNT];
        for stream in Stream::ALL.iter().filter(|stream| plan.report || **stream != Stream::Report) {
            let (read, write) = pipe().at(Stage::Prepare)?;
            if *stream != Stream::Report {
                // The payload's own, so that it may open `/dev/stdout`; then it may also read from it, and what it took
                // must not leave the helper waiting. The report stays root's: nobody inside opens it a second time.
                let id = plan.host_id;
                fchown(&write, Some(Uid::from_raw(id)), Some(Gid::from_raw(id))).at(Stage::Prepare)?;
                fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).at(Stage::Prepare)?;
            }
            ours[*stream as usize] = Some(read);
            theirs[*stream as usize] = Some(write);
        }
        // Before: it must not be born into the sandbox.
        let (mirror, give) = plan.mirror.take().map(|mirrors| Mirror::start(&mirrors)).transpose()?.unzip();
        // The helper stays outside; its next child is pid 1 inside.
        unshare(CloneFlags::CLONE_NEWPID).at(Stage::Fork)?;
        match fork().at(Stage::Fork)? {
            ForkResult::Child => {
                // The helper's ends must close here, or the helper's death would go unseen.
                drop((set_up_read, go_write, end_read, ours));
                if let Some(mirror) = mirror {
                    mirror.leave();
                }
                let ends = Ends { go: go_read, end: end_write, streams: theirs, mirror: give };
                exit_now(sandbox(plan, seats, Progress::new(set_up_write, began), ends))
            }
            ForkResult::Parent { child } => {
                drop((set_up_write, go_read, end_write, theirs, give));
                match pidfd_open(child) {
                    Ok(pidfd) => Ok(Self {
                        pid1: child,
                        pidfd,
                        set_up: set_up_read,
                        go: go_write,
                        end: end_read,
                        streams: ours,
                        mirror,
                        reaped: false,
                    }),
                    // Without `go` the child ends by itself.
                    Err(errno) => {
                        drop(go_write);
                        wait4(Some(child)).at(Stage::Fork)?;
                        Err(failure(Stage::Fork, errno))
                    }
                }
            }
        }
    }

    /// Kills pid 1, and with it every process of the sandbox.
    pub(crate) fn kill(&self) {
        // It fails only where pid 1 has ended already.
        pidfd_kill(&self.pidfd).ok();
    }

    /// Waits for pid 1 to end. When it has, no process of the sandbox is left: the kernel kills and reaps the whole
    /// pid namespace before pid 1 can be waited for.
    pub(crate) fn wait(&mut self) -> nix::Result<Waited> {
        let waited = wait4(Some(self.pid1))?;
        self.reaped = true;
        Ok(waited)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.wait().ok();
        }
    }
}

/// Pid 1's life, and the payload's until it is executed. Returns an exit status that nobody reads: what matters went
/// up the pipes.
fn sandbox(plan: Plan, seats: Seats, progress: Progress, ends: Ends) -> i32 {
    let mut launch = Launch { plan, seats, progress, ends };
    match launch.steps() {
        Ok(payload) => {
            let began = launch.progress.began();
            // The payload alone holds `set_up` and the streams from here on.
            drop((launch.plan, launch.progress, launch.ends.streams));
            pid1::reap(payload, &launch.ends.end, began)
        }
        // Of pid 1, or of the payload's process, which was not executed then.
        Err(failure) => {
            let told = launch.progress.send(Record::Failed(failure));
            i32::from(told.is_err())
        }
    }
}

/// What every step works on: the plan, the pipes, and the clock.
#[derive(Debug)]
pub(crate) struct Launch {
    plan: Plan,
    seats: Seats,
    progress: Progress,
    ends: Ends,
}

/// The first state: a fork of the helper, root of the host, in a pid namespace of its own, with nothing taken away.
pub(crate) struct Started<'a> {
    launch: &'a mut Launch,
}

impl Launch {
    /// The whole sequence. Each step says in its own file what holds before and after. Pid 1 alone returns from it
    /// well, with the payload's process id: the payload is executed, or has failed.
    fn steps(&mut self) -> Result<Pid, SetUpFailure> {
        let unprivileged = Started::begin(self)? // dies with the helper, no signal settings of the helper's
            .isolate()? // mount, network, ipc and uts namespaces
            .root()? // the new root, with everything in it
            .limit()? // resource limits
            .leave_user_namespace()? // user and cgroup namespaces
            .drop_privileges()?; // ids, capabilities, no_new_privs
        match unprivileged.fork()? {
            Forked::Pid1 { payload } => Ok(payload),
            Forked::Payload(unprivileged) => {
                let sealed = unprivileged
                    .settle()? // session, standard streams, working directory
                    .confine()? // Landlock
                    .seal()?; // seccomp
                Err(sealed.execute())
            }
        }
    }
}

/// Blocks until the helper says go.
///
/// # Errors
/// `EPIPE` if the helper is gone: nothing may run then.
pub(crate) fn await_go(go: &OwnedFd) -> nix::Result<()> {
    loop {
        match read(go, &mut [0]) {
            Err(Errno::EINTR) => {}
            Ok(1) => return Ok(()),
            Ok(_) => return Err(Errno::EPIPE),
            Err(errno) => return Err(errno),
        }
    }
}
