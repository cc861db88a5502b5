//! Steps 4 to 7, `Rooted -> Limited -> Nobody -> Unprivileged`: limits, a user who owns nothing, no capability; and
//! the fork of the payload's process.

use std::fs;
use std::os::fd::AsFd;

use caps::CapSet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_dumpable, set_no_new_privs, set_pdeathsig};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Gid, Pid, Uid, setgroups, setresgid, setresuid};
use tack_sandbox_protocol::{SetUpFailure, Stage};

use crate::launch::progress::{At, Record, failure};
use crate::launch::root::Rooted;
use crate::launch::{Launch, await_go};
use crate::policy::root::PAYLOAD_ID;
use crate::sys::process::{drop_bounding_set, errno_of, fork, lock_securebits, own_usage};

/// The resource limits hold, for this process and all its children.
pub(crate) struct Limited<'a> {
    pub(super) launch: &'a mut Launch,
}

/// A user namespace in which one id is mapped, and it is not the host's root.
pub(crate) struct Nobody<'a> {
    pub(super) launch: &'a mut Launch,
}

/// No capability in any set, no way to one, and no privileges by execution.
pub(crate) struct Unprivileged<'a> {
    pub(super) launch: &'a mut Launch,
}

/// What keeps a crash from leaving a core dump, or from starting the host's program for them.
///
/// At 0 the kernel writes no file, but where the core pattern is a pipe it still starts that program, as root and
/// outside. 1 is below the least size of a file too, and is what keeps the program from being started
/// (`fs/coredump.c`); the seccomp policy keeps it from being lowered. It is asked for only where there is a pipe, since
/// a client whose own hard limit is 0 may lack the right to raise it.
fn no_core_bytes() -> Result<u64, SetUpFailure> {
    let pattern = fs::read("/proc/sys/kernel/core_pattern").map_err(|error| errno_of(&error));
    Ok(u64::from(pattern.at(Stage::ResourceLimits)?.starts_with(b"|")))
}

/// The kernel's default of a soft limit for the stack; programs may raise theirs to the hard one.
const STACK_BYTES: u64 = 8 << 20;
const STACK_MAX_BYTES: u64 = 64 << 20;
/// Kernel defaults: what may be locked into memory, what may lie in message queues, how many signals may wait.
const LOCKED_BYTES: u64 = 8 << 20;
const QUEUE_BYTES: u64 = 819_200;
const PENDING_SIGNALS: u64 = 4_096;

impl<'a> Rooted<'a> {
    /// Before: root of the host, so that limits can also rise above the client's.
    /// After: soft and hard limits are the request's; those that a request says nothing of are ours, or the client's
    /// where those are lower and may not be raised.
    /// Why here: after it, they can only sink. The old root, where the core pattern was, is gone, but not `/proc`.
    pub(super) fn limit(self) -> Result<Limited<'a>, SetUpFailure> {
        let limits = &self.launch.plan.limits;
        let no_core = no_core_bytes()?;
        // Pid 1 is a process of the same user; and one more, so that the group's limit, which counts refusals, comes
        // first where there is a group.
        let processes = u64::from(limits.processes) + 2;
        // A backstop for each process alone, behind the limit of all together: whole seconds, rounded up, and one more.
        let cpu_s = limits.cpu_us.div_ceil(1_000_000) + 1;
        #[rustfmt::skip]
        let asked_for = [
            (Resource::RLIMIT_CORE,       no_core,                     no_core),
            (Resource::RLIMIT_CPU,        cpu_s,                       cpu_s),
            (Resource::RLIMIT_FSIZE,      limits.file_bytes,           limits.file_bytes),
            (Resource::RLIMIT_NOFILE,     limits.open_files.into(),    limits.open_files.into()),
            (Resource::RLIMIT_NPROC,      processes,                   processes),
        ];
        for (resource, soft, hard) in asked_for {
            setrlimit(resource, soft, hard).at(Stage::ResourceLimits)?;
        }
        #[rustfmt::skip]
        let ours = [
            (Resource::RLIMIT_AS,         RLIM_INFINITY,               RLIM_INFINITY),
            (Resource::RLIMIT_DATA,       RLIM_INFINITY,               RLIM_INFINITY),
            (Resource::RLIMIT_MEMLOCK,    LOCKED_BYTES,                LOCKED_BYTES),
            (Resource::RLIMIT_MSGQUEUE,   QUEUE_BYTES,                 QUEUE_BYTES),
            (Resource::RLIMIT_NICE,       0,                           0),
            (Resource::RLIMIT_RTPRIO,     0,                           0),
            (Resource::RLIMIT_SIGPENDING, PENDING_SIGNALS,             PENDING_SIGNALS),
            (Resource::RLIMIT_STACK,      STACK_BYTES,                 STACK_MAX_BYTES),
        ];
        for (resource, soft, hard) in ours {
            let set = match setrlimit(resource, soft, hard) {
                Err(Errno::EPERM) => {
                    let (_, most) = getrlimit(resource).at(Stage::ResourceLimits)?;
                    setrlimit(resource, soft.min(most), hard.min(most))
                }
                set => set,
            };
            set.at(Stage::ResourceLimits)?;
        }
        self.launch.progress.took(Stage::ResourceLimits);
        Ok(Limited { launch: self.launch })
    }
}

impl<'a> Limited<'a> {
    /// Before: root of the host, in the initial user namespace; all mounts made.
    /// After: a member of the control groups; own user namespace, in which the helper has mapped the payload's id and
    /// no other; own cgroup namespace, whose root are those groups.
    /// Why last of the namespaces: mounts made before belong to the initial user namespace and cannot be undone from
    /// this one; and the helper makes the groups while the mounts are made here.
    pub(super) fn leave_user_namespace(self) -> Result<Nobody<'a>, SetUpFailure> {
        await_go(&self.launch.ends.go).at(Stage::Groups)?;
        let taken = self.launch.seats.take();
        self.launch.progress.note(Record::Joined(taken));
        unshare(CloneFlags::CLONE_NEWUSER).at(Stage::UserNamespace)?;
        self.launch.progress.send(Record::AwaitingMaps).at(Stage::UserNamespace)?;
        await_go(&self.launch.ends.go).at(Stage::UserNamespace)?;
        unshare(CloneFlags::CLONE_NEWCGROUP).at(Stage::UserNamespace)?;
        self.launch.progress.took(Stage::UserNamespace);
        Ok(Nobody { launch: self.launch })
    }
}

impl<'a> Nobody<'a> {
    /// Before: all capabilities, but over the new user namespace alone.
    /// After: the payload's uid and gid, no other group; no capability in the bounding, ambient, inheritable,
    /// permitted or effective set; security bits locked; `no_new_privs`; death with the helper.
    /// Why here: changing ids takes capabilities of the new namespace, and they are wanted for nothing else.
    pub(super) fn drop_privileges(self) -> Result<Unprivileged<'a>, SetUpFailure> {
        let (uid, gid) = (Uid::from_raw(PAYLOAD_ID), Gid::from_raw(PAYLOAD_ID));
        setgroups(&[]).at(Stage::Credentials)?;
        setresgid(gid, gid, gid).at(Stage::Credentials)?;
        setresuid(uid, uid, uid).at(Stage::Credentials)?;
        self.launch.progress.took(Stage::Credentials);

        drop_bounding_set().at(Stage::Capabilities)?;
        caps::clear(None, CapSet::Ambient).map_err(|_| Errno::last()).at(Stage::Capabilities)?;
        lock_securebits().at(Stage::Capabilities)?;
        // The inheritable set first: emptying the others gives up the right to change it.
        for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
            caps::clear(None, set).map_err(|_| Errno::last()).at(Stage::Capabilities)?;
        }
        set_no_new_privs().at(Stage::Capabilities)?;

        // A change of ids resets both.
        set_dumpable(false).at(Stage::Capabilities)?;
        set_pdeathsig(Signal::SIGKILL).at(Stage::Capabilities)?;
        // Had the helper died before that, no signal would come. Its end of `go` is open as long as it lives.
        let mut helper = [PollFd::new(self.launch.ends.go.as_fd(), PollFlags::POLLIN)];
        if poll(&mut helper, PollTimeout::ZERO).at(Stage::Capabilities)? != 0 {
            return Err(failure(Stage::Capabilities, Errno::EPIPE));
        }
        self.launch.progress.took(Stage::Capabilities);
        Ok(Unprivileged { launch: self.launch })
    }
}

/// Who is on which side of the fork.
pub(crate) enum Forked<'a> {
    /// The sandbox's first process, which stays behind to reap.
    Pid1 { payload: Pid },
    /// The process that becomes the payload.
    Payload(Unprivileged<'a>),
}

impl<'a> Unprivileged<'a> {
    /// Before: pid 1, confined but for Landlock and seccomp. After: pid 1, and the payload's process.
    /// Why here: Landlock's domain is the payload's alone, so that pid 1 is outside it and out of its reach.
    pub(super) fn fork(self) -> Result<Forked<'a>, SetUpFailure> {
        let used = own_usage().at(Stage::Payload)?;
        let forking = Record::Forking { user_us: used.user_us, system_us: used.system_us };
        self.launch.progress.send(forking).at(Stage::Payload)?;
        match fork().at(Stage::Payload)? {
            ForkResult::Parent { child } => Ok(Forked::Pid1 { payload: child }),
            ForkResult::Child => {
                self.launch.progress.took(Stage::Payload);
                Ok(Forked::Payload(self))
            }
        }
    }
}
