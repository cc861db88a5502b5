//! What the two sides send: one request one way; output and then one last word the other way.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::layer::named;
use crate::receipt::Receipt;
use crate::request::RunRequest;
use crate::submission::{Limit, SignedReceipt, SourceProblem, Submission};

/// What a client sends.
// One is decoded at a time, into a stack slot: a box would need a heap.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Run this: asked of a helper that serves one request.
    Run(#[serde(borrow)] RunRequest<'a>),
    /// Run this: asked of the daemon.
    Submit(#[serde(borrow)] Submission<'a>),
}

/// What a client gets: any number of [`Reply::Output`], then one of the others.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// Bytes that were kept of a stream, in order within their part.
    Output {
        /// Of which stream.
        stream: Stream,
        /// Of its head or of its tail.
        part: Part,
        /// At most [`OUTPUT_CHUNK_BYTES`](Self::OUTPUT_CHUNK_BYTES) of them.
        bytes: &'a [u8],
    },
    /// The run is over. The last frame.
    Done(Receipt),
    /// There was no run. The last frame.
    Refused(Refusal),
    /// The run is over, and the daemon says so. The last frame.
    Signed(SignedReceipt),
    /// Bytes of a stream as they come, where the request asked for it. What was kept of it comes all the same.
    Live {
        /// Of which stream.
        stream: Stream,
        /// Bytes that were left out before these, since the client did not take what it had.
        skipped: u64,
        /// At most [`OUTPUT_CHUNK_BYTES`](Self::OUTPUT_CHUNK_BYTES) of them.
        bytes: &'a [u8],
    },
}

impl Reply<'_> {
    /// The most bytes in one [`Reply::Output`]: what a pipe holds, so one read, one frame.
    pub const OUTPUT_CHUNK_BYTES: usize = 1 << 16;
}

named! {
    /// One of the payload's output streams.
    Stream {
        /// Descriptor 1.
        Stdout = "stdout",
        /// Descriptor 2.
        Stderr = "stderr",
        /// Descriptor 3, where the request asked for it.
        Report = "report",
    }
}

/// Which end of a stream was kept. A stream that was kept whole is all head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// The first bytes.
    Head,
    /// The last bytes; what lies between was counted, hashed and dropped.
    Tail,
}

/// Why there was no run at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The request was not a frame of this version, or not a request.
    Malformed,
    /// The helper does not run as root, and has no unprivileged mode.
    NotRoot {
        /// Its effective uid.
        uid: u32,
    },
    /// The helper's process has more than one thread, so that a fork of it would be a torn copy.
    Threads {
        /// How many.
        count: u32,
    },
    /// The kernel lacks something without which there is no sandbox.
    Kernel(Need),
    /// Root has not allowed this peer to ask.
    Peer {
        /// Its uid.
        uid: u32,
    },
    /// The token is not the one that root has handed out.
    Token,
    /// As many runs as root allows are under way, and as many wait.
    Busy {
        /// How many are under way.
        running: u32,
    },
    /// A limit is above what root allows.
    Ceiling {
        /// Which.
        limit: Limit,
        /// The most that may be asked for.
        most: u64,
    },
    /// One of the mounts is not to be shown.
    Source {
        /// Which of the request's mounts, counted from 0.
        mount: u8,
        /// Why not.
        problem: SourceProblem,
    },
    /// The request of this key is being answered on another connection.
    InFlight,
    /// This key was used before, for another request.
    KeyReused,
    /// The daemon cannot keep the answer, so that the key would promise what does not hold.
    NoStore {
        /// The kernel's error number.
        errno: i32,
    },
}

/// No space left on device.
const ENOSPC: i32 = 28;
/// Quota exceeded.
const EDQUOT: i32 = 122;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the request was not understood"),
            Self::NotRoot { uid } => write!(
                f,
                "the sandbox helper runs as uid {uid}; it must start as root to make namespaces and mounts (run the \
                 command as root, or through sudo)"
            ),
            Self::Threads { count } => write!(f, "the sandbox helper must have one thread; it has {count}"),
            Self::Kernel(need) => write!(f, "the kernel lacks what a sandbox needs: {need}"),
            Self::Peer { uid } => {
                write!(f, "uid {uid} may not ask this daemon; root adds `peer uid {uid}` to its configuration")
            }
            Self::Token => f.write_str("the token is not the one that root has handed out"),
            Self::Busy { running } => {
                write!(f, "{running} runs are under way and as many wait as may; ask again later")
            }
            Self::Ceiling { limit, most } => write!(f, "`{limit}` is at most {most} here"),
            Self::Source { mount, problem } => write!(f, "mount {mount} of the request cannot be shown: {problem}"),
            Self::InFlight => f.write_str("the request of this key is being answered on another connection"),
            Self::KeyReused => f.write_str("this key was used before, for another request"),
            Self::NoStore { errno: ENOSPC } => f.write_str("the daemon's disk has no room for the answer to this key"),
            Self::NoStore { errno: EDQUOT } => {
                f.write_str("the daemon keeps as many answers for this uid as it may; each is kept for a day")
            }
            Self::NoStore { errno } => write!(f, "the daemon cannot keep an answer for this key (errno {errno})"),
        }
    }
}

impl core::error::Error for Refusal {}

named! {
    /// Something of the kernel without which there is no sandbox.
    Need {
        /// Landlock at ABI 3 or later, enabled at boot.
        Landlock = "Landlock ABI 3 (Linux 6.2, with `landlock` among the active security modules)",
        /// Seccomp filters.
        Seccomp = "seccomp filters (CONFIG_SECCOMP_FILTER)",
        /// The mount interface of file descriptors.
        MountApi = "open_tree, move_mount and mount_setattr (Linux 5.12)",
        /// User namespaces.
        UserNamespaces = "user namespaces (CONFIG_USER_NS, user.max_user_namespaces above 0)",
    }
}
