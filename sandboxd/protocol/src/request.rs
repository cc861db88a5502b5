//! One run, as it is asked for.

use core::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::egress::Egress;
use crate::strings::Strings;

/// One command to be run in a sandbox of its own. Standard input is empty, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest<'a> {
    /// The program and its arguments. A program without a slash is looked up in the request's `PATH`.
    #[serde(borrow)]
    pub argv: Strings<'a>,
    /// The whole environment, each `NAME=value`. The payload gets these and no others.
    #[serde(borrow)]
    pub environment: Strings<'a>,
    /// Absolute path of the working directory, as seen inside; no NUL.
    pub directory: &'a [u8],
    /// What of the host is visible besides the system directories.
    #[serde(borrow)]
    pub mounts: Mounts<'a>,
    /// What the run may use up.
    pub limits: RunLimits,
    /// Whether the payload gets a third stream of output, open at descriptor 3.
    pub report: bool,
    /// Whether output is passed on while the run lasts.
    pub live: bool,
    /// What of the network it may reach.
    pub egress: Egress,
}

/// What may be done under a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Reading and executing. Writing is `EROFS`.
    ReadOnly,
    /// Everything; files the payload creates belong to the owner of the mounted directory outside.
    ReadWrite,
    /// Everything, of a directory, and nothing of it stays: what is written goes to memory of the run's own, at most
    /// [`RunLimits::tmp_bytes`] of it, and ends with the run. The directory outside is never changed.
    Scratch,
}

/// One file or directory of the host, made visible inside. Mounts beneath it do not come along.
///
/// Which one is no path: it is a descriptor that the client opened with its own rights, and that came with the frame
/// (`SCM_RIGHTS`), as many as there are mounts and in their order. So nobody resolves a name a second time, with other
/// rights or after it was redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount<'a> {
    /// Absolute path inside, without `.` and `..`.
    pub target: &'a [u8],
    /// What may be done under it.
    pub access: Access,
}

/// The greatest number of mounts in one request. A repair task takes about five; each costs the launch 0.1 ms.
pub const MAX_MOUNTS: usize = 32;

/// At most [`MAX_MOUNTS`] mounts, in the order of their descriptors. They are made outermost target first, whatever
/// that order is, so that a mount inside another is seen.
#[derive(Clone, Copy)]
pub struct Mounts<'a> {
    items: [Mount<'a>; MAX_MOUNTS],
    count: usize,
}

/// A request had more than [`MAX_MOUNTS`] mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyMounts;

impl fmt::Display for TooManyMounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sandbox takes at most {MAX_MOUNTS} mounts")
    }
}

impl core::error::Error for TooManyMounts {}

impl<'a> Mounts<'a> {
    const NONE: Mount<'static> = Mount { target: b"", access: Access::ReadOnly };

    /// No mount.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: [Self::NONE; MAX_MOUNTS], count: 0 }
    }

    /// Adds one mount after the others.
    ///
    /// # Errors
    /// [`TooManyMounts`] if there are [`MAX_MOUNTS`] already.
    pub fn push(&mut self, mount: Mount<'a>) -> Result<(), TooManyMounts> {
        *self.items.get_mut(self.count).ok_or(TooManyMounts)? = mount;
        self.count += 1;
        Ok(())
    }

    /// The mounts in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Mount<'a>] {
        &self.items[..self.count]
    }
}

impl Default for Mounts<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Mounts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl PartialEq for Mounts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Mounts<'_> {}

impl Serialize for Mounts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.as_slice())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Mounts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sequence;
        impl<'de> Visitor<'de> for Sequence {
            type Value = Mounts<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_MOUNTS} mounts")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Mounts<'de>, A::Error> {
                let mut mounts = Mounts::new();
                while let Some(mount) = sequence.next_element()? {
                    mounts.push(mount).map_err(de::Error::custom)?;
                }
                Ok(mounts)
            }
        }
        deserializer.deserialize_seq(Sequence)
    }
}

/// What one run may use up. Reaching `wall`, `cpu`, `memory`, `output` or `idle` ends the run with that cause; the others
/// make the payload's own system calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Elapsed time from the payload's start, in microseconds.
    pub wall_us: u64,
    /// User and system time of all processes together, in microseconds.
    pub cpu_us: u64,
    /// Memory of all processes together, page cache and `/tmp` included, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads alive at one time: `fork` fails with `EAGAIN` past it.
    pub processes: u32,
    /// Size of one file, in bytes: `SIGXFSZ` or `EFBIG` past it.
    pub file_bytes: u64,
    /// Descriptors open in one process: `EMFILE` past it.
    pub open_files: u32,
    /// Bytes of one output stream; all of them are counted and hashed, the run ends past it.
    pub output_bytes: u64,
    /// Bytes of one output stream that come back: half of them from its head, half from its tail.
    pub kept_bytes: u32,
    /// Size of `/tmp`, and again of `/dev/shm`, in bytes: `ENOSPC` past it.
    pub tmp_bytes: u64,
    /// How long the run may write nothing to any stream, in microseconds; `None` lets it be silent as long as it likes.
    pub idle_us: Option<u64>,
}

impl Default for RunLimits {
    /// What a test suite of a small repository needs, several times over.
    fn default() -> Self {
        Self {
            wall_us: 60_000_000,
            cpu_us: 120_000_000,
            memory_bytes: 1 << 30,
            processes: 256,
            file_bytes: 1 << 28,
            open_files: 1_024,
            output_bytes: 1 << 26,
            kept_bytes: 1 << 18,
            tmp_bytes: 1 << 26,
            idle_us: None,
        }
    }
}
