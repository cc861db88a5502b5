//! What a client of the daemon sends and gets beside a run and its receipt: who asks, and what makes an answer lasting.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::egress::EgressLog;
use crate::layer::named;
use crate::receipt::Receipt;
use crate::request::{RunLimits, RunRequest};
use crate::text::{from_hex, hex};

/// A run as it is asked of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission<'a> {
    /// What root has handed out to those who may ask; zeros where the daemon asks for none.
    pub token: Token,
    /// The client's own name for this request: the same key gets the same answer, and nothing is run a second time.
    pub key: Option<Key>,
    /// The run.
    #[serde(borrow)]
    pub run: RunRequest<'a>,
}

/// A shared secret of 32 bytes. Its debug form does not show it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(pub [u8; 32]);

impl Token {
    /// What stands in a token's file: 64 hexadecimal digits, with ASCII white space around them; `None` for anything
    /// else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        from_hex(text.trim_ascii()).map(Self)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// An idempotency key, unique among one peer's requests: 16 random bytes will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key(pub [u8; 16]);

/// A receipt with the daemon's word on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// What was done.
    pub statement: Statement,
    /// Ed25519 over [`Statement::CONTEXT`] and the statement's bytes: `R`, then `S` (RFC 8032).
    pub signature: [[u8; 32]; 2],
}

/// What the daemon signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Who asked: the uid at the other end of the socket, as the kernel tells it.
    pub peer_uid: u32,
    /// SHA-256 of the run as it was asked for: of the body of a [`RunRequest`] of its own.
    #[serde(with = "hex")]
    pub request_digest: [u8; 32],
    /// What came of it.
    pub receipt: Receipt,
}

impl Statement {
    /// What a signature of this kind begins with, so that none of another kind can be taken for it.
    pub const CONTEXT: &'static [u8] = b"tack sandbox receipt 2\0";

    /// Most bytes of what is signed: 2 KiB without the log of the network, which is the payload's to fill.
    pub const MAX_BYTES: usize = 2_048 + EgressLog::MAX_BYTES;

    /// Puts what is signed into `buffer`: the context, and the statement as it travels.
    #[must_use]
    pub fn to_be_signed<'b>(&self, buffer: &'b mut [u8; Self::MAX_BYTES]) -> Option<&'b [u8]> {
        let (context, body) = buffer.split_at_mut_checked(Self::CONTEXT.len())?;
        context.copy_from_slice(Self::CONTEXT);
        let length = postcard::to_slice(self, body).ok()?.len();
        buffer.get(..Self::CONTEXT.len() + length)
    }
}

named! {
    /// One of [`RunLimits`]'s fields, by its name.
    Limit {
        /// [`RunLimits::wall_us`].
        Wall = "wall_us",
        /// [`RunLimits::cpu_us`].
        Cpu = "cpu_us",
        /// [`RunLimits::memory_bytes`].
        Memory = "memory_bytes",
        /// [`RunLimits::processes`].
        Processes = "processes",
        /// [`RunLimits::file_bytes`].
        File = "file_bytes",
        /// [`RunLimits::open_files`].
        OpenFiles = "open_files",
        /// [`RunLimits::output_bytes`].
        Output = "output_bytes",
        /// [`RunLimits::kept_bytes`].
        Kept = "kept_bytes",
        /// [`RunLimits::tmp_bytes`].
        Tmp = "tmp_bytes",
    }
}

impl Limit {
    /// What `limits` say of this one.
    #[must_use]
    pub fn of(self, limits: &RunLimits) -> u64 {
        match self {
            Self::Wall => limits.wall_us,
            Self::Cpu => limits.cpu_us,
            Self::Memory => limits.memory_bytes,
            Self::Processes => limits.processes.into(),
            Self::File => limits.file_bytes,
            Self::OpenFiles => limits.open_files.into(),
            Self::Output => limits.output_bytes,
            Self::Kept => limits.kept_bytes.into(),
            Self::Tmp => limits.tmp_bytes,
        }
    }
}

named! {
    /// Why the daemon does not show a directory to anyone's sandbox, or not to this peer's.
    SourceProblem {
        /// It lies beneath none of the directories that root has configured.
        OutsideRoots = "it is beneath none of the configured roots",
        /// It is neither a directory nor a regular file.
        Kind = "it is neither a directory nor a regular file",
        /// The peer may not read it.
        NotReadable = "you may not read it",
        /// The peer may not write it.
        NotWritable = "you may not write it",
        /// It is to be written, and is not the peer's own.
        NotOwned = "only a directory of your own can be given to write",
        /// The kernel did not say where it lies.
        Unknown = "the kernel did not say what or where it is",
        /// It was opened in another mount namespace than the daemon's: the kernel copies no mount across.
        Elsewhere = "it was opened in another mount namespace than the daemon's",
    }
}
