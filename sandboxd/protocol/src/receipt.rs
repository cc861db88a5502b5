//! What a run did: why it ended, what it used, what held.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::egress::EgressRecord;
use crate::layer::{Layers, Reason, named};
use crate::message::Stream;
use crate::text::hex;

/// The record of one run, written when the whole process tree is provably gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Why the run ended.
    pub cause: Cause,
    /// How the payload's own process ended; `None` if it never started.
    pub end: Option<End>,
    /// What the run used.
    pub usage: Usage,
    /// What came out of each stream, by [`Stream`]'s order.
    pub streams: [StreamSummary; 3],
    /// Where the time went.
    pub times: Times,
    /// Which layers of isolation held.
    pub layers: Layers,
    /// The Landlock ABI that was enforced; 0 if none was.
    pub landlock_abi: u8,
    /// SHA-256 of the sandbox policy: seccomp programs, Landlock rules, root, `/etc`, limits, and the targets and
    /// access of the mounts. Two runs with the same digest met the same rules.
    #[serde(with = "hex")]
    pub policy_digest: [u8; 32],
    /// What went out of the sandbox, and what wanted to.
    pub egress: EgressRecord,
}

impl Receipt {
    /// The summary of one stream.
    #[must_use]
    pub const fn stream(&self, stream: Stream) -> &StreamSummary {
        &self.streams[stream as usize]
    }

    /// The payload's exit status, if it ran to its own end by exiting.
    #[must_use]
    pub const fn exit_status(&self) -> Option<u8> {
        match (self.cause, self.end) {
            (Cause::Exited, Some(End::Exited { status })) => Some(status),
            _ => None,
        }
    }

    /// The status a shell would give this run: the payload's own; 128 plus the signal; 127 for a command that is not
    /// there and 126 for one that may not run; 137 for a run ended from outside. `None` where the sandbox failed.
    #[must_use]
    pub const fn shell_status(&self) -> Option<u8> {
        match (self.cause, self.end) {
            (Cause::SetUp(_), _) => None,
            (Cause::CommandNotFound, _) => Some(127),
            (Cause::CommandNotExecutable { .. }, _) => Some(126),
            (Cause::Killed, _) => Some(137),
            (Cause::Exited, Some(End::Exited { status })) => Some(status),
            (_, Some(End::Signalled { signal })) => Some(128 | signal),
            _ => Some(137),
        }
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The payload exited.
    Exited,
    /// A signal ended the payload, from inside.
    Signalled,
    /// The wall limit passed.
    Wall,
    /// The CPU limit of all processes together passed.
    Cpu,
    /// The memory limit was reached, and the kernel killed a process of the run.
    OutOfMemory,
    /// This stream carried more than its limit.
    OutputLimit(Stream),
    /// The client went away.
    Cancelled,
    /// The payload never started: a step of the launch failed. Never the payload's own failure.
    SetUp(SetUpFailure),
    /// The payload never started: no such program inside the sandbox.
    CommandNotFound,
    /// The payload never started: the program is there and may not, or cannot, be executed.
    CommandNotExecutable {
        /// The kernel's error number.
        errno: i32,
    },
    /// Somebody outside killed the sandbox's first process, or the kernel a process of the run, when the host itself
    /// was short of memory. Never the payload's own failure.
    Killed,
    /// The run wrote nothing for as long as the idle limit allows.
    Idle,
    /// The payload made a system call of a foreign kind, for which the kernel kills (or sent itself `SIGSYS`, which
    /// looks the same).
    SeccompKill,
}

impl Cause {
    /// The name in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signalled => "signalled",
            Self::Wall => "wall",
            Self::Cpu => "cpu",
            Self::OutOfMemory => "oom",
            Self::OutputLimit(_) => "output_limit",
            Self::Cancelled => "cancelled",
            Self::SetUp(_) => "set_up",
            Self::CommandNotFound => "command_not_found",
            Self::CommandNotExecutable { .. } => "command_not_executable",
            Self::Killed => "killed_from_outside",
            Self::Idle => "idle",
            Self::SeccompKill => "seccomp_kill",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutputLimit(stream) => write!(f, "output_limit on {}", stream.name()),
            Self::SetUp(failure) => write!(f, "set_up: {failure}"),
            Self::CommandNotExecutable { errno } => write!(f, "command_not_executable (errno {errno})"),
            other => f.write_str(other.name()),
        }
    }
}

/// A step of the launch that failed, and the kernel's word on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetUpFailure {
    /// The step.
    pub stage: Stage,
    /// The kernel's error number.
    pub errno: i32,
    /// Which of the request's mounts, counted from 0, where the step was about one.
    pub mount: Option<u8>,
}

impl fmt::Display for SetUpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step `{}` failed with errno {}", self.stage, self.errno)?;
        self.mount.map_or(Ok(()), |index| write!(f, " at mount {index} of the request"))
    }
}

named! {
    /// A step of the launch, in the order in which they are taken.
    Stage {
        /// The request is checked: program, directory, mounts, sizes.
        Request = "request",
        /// The pipes are made, the seccomp programs compiled, the sandbox policy hashed.
        Prepare = "prepare",
        /// A user namespace is made that says whom the mounts' files belong to inside.
        IdMap = "id_map",
        /// The first process of the sandbox is forked into a new pid namespace.
        Fork = "fork",
        /// The control groups are made, limited and joined.
        Groups = "groups",
        /// The mount, network, ipc and uts namespaces are left for new ones.
        Namespaces = "namespaces",
        /// The loopback interface is brought up.
        Loopback = "loopback",
        /// The new root is made, and the system directories are attached to it.
        Root = "root",
        /// `/etc` is written.
        Etc = "etc",
        /// `/tmp` is mounted.
        Tmp = "tmp",
        /// `/dev` is made.
        Dev = "dev",
        /// `/proc` is mounted and masked.
        Proc = "proc",
        /// The request's mounts are made.
        Mounts = "mounts",
        /// The root is changed and the host's is left.
        Pivot = "pivot",
        /// The resource limits are set.
        ResourceLimits = "resource_limits",
        /// The user and cgroup namespaces are left for new ones, and the ids are mapped.
        UserNamespace = "user_namespace",
        /// The payload's user and group are taken.
        Credentials = "credentials",
        /// Every capability is dropped, for good.
        Capabilities = "capabilities",
        /// The payload's process is forked.
        Payload = "payload",
        /// Session, standard streams, signals, umask.
        Process = "process",
        /// The working directory is entered.
        Directory = "directory",
        /// The Landlock ruleset is enforced.
        Landlock = "landlock",
        /// The seccomp programs are installed.
        Seccomp = "seccomp",
        /// The program is executed.
        Exec = "exec",
        /// The mirror is started on the sandbox's loopback, where the request asks for one.
        Egress = "egress",
    }
}

/// How a process ended, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By exiting.
    Exited {
        /// The exit status.
        status: u8,
    },
    /// By a signal.
    Signalled {
        /// The signal's number.
        signal: u8,
    },
}

/// A number that was measured, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Counted exactly by the kernel.
    Measured(u64),
    /// Sampled by the kernel's clock tick, or rounded to its pages: near, not exact.
    Sampled(u64),
    /// There is no number.
    Unavailable(Reason),
}

impl Figure {
    /// The number, if there is one.
    #[must_use]
    pub const fn value(self) -> Option<u64> {
        match self {
            Self::Measured(value) | Self::Sampled(value) => Some(value),
            Self::Unavailable(_) => None,
        }
    }
}

/// What the whole process tree used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Elapsed time from the payload's execution to its end, in microseconds.
    pub wall_us: u64,
    /// User and system time together, in microseconds, by the control group's own count. The last steps of the launch,
    /// after the ids were mapped and before the execution, are in it: about a millisecond.
    pub cpu_us: Figure,
    /// User time of `cpu_us`, in microseconds: the group's split, or `rusage` where there is no group.
    pub user_us: Figure,
    /// System time of `cpu_us`, in microseconds, as `user_us`.
    pub system_us: Figure,
    /// Most memory at one time, page cache and `/tmp` included, in bytes.
    pub memory_peak_bytes: Figure,
    /// The largest resident set of any one process, in bytes.
    pub max_rss_bytes: Figure,
    /// Most processes and threads at one time, the sandbox's own first process not counted.
    pub processes_peak: Figure,
    /// How often `fork` was refused at the process limit.
    pub forks_refused: Figure,
    /// How many processes the kernel killed at the memory limit.
    pub oom_kills: Figure,
}

/// What came out of one stream. The digest is over every byte, kept or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSummary {
    /// Bytes written by the payload.
    pub bytes_total: u64,
    /// SHA-256 of all of them.
    #[serde(with = "hex")]
    pub sha256: [u8; 32],
}

/// Where the time went, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Each step of the launch, by [`Stage`]'s order. Steps of two processes overlap, so the sum may pass `set_up_us`.
    #[serde(with = "stages")]
    pub stage_us: [u32; Stage::COUNT],
    /// From the request read to the payload executed.
    pub set_up_us: u64,
    /// From the payload's end, or the decision to end it, to the last process gone and all output read.
    pub tear_down_us: u64,
}

/// In text formats a map by the step's name.
mod stages {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Stage;
    use crate::text::by_key;

    pub(super) fn serialize<S: Serializer>(times: &[u32; Stage::COUNT], serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            by_key::serialize::<Stage, _, _>(times, serializer)
        } else {
            times.serialize(serializer)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u32; Stage::COUNT], D::Error> {
        if deserializer.is_human_readable() {
            by_key::deserialize::<Stage, _, _, { Stage::COUNT }>(deserializer)
        } else {
            <[u32; Stage::COUNT]>::deserialize(deserializer)
        }
    }
}
