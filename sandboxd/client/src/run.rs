//! One run: what is asked for, and what comes back, in owned types.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tack_sandbox_protocol::egress::MIRROR_PORT;
use tack_sandbox_protocol::{
    self as protocol, Access, Egress, FrameError, Key, Mounts, Receipt, RunLimits, SignedReceipt, Stream, Strings,
    Submission, Token,
};

use crate::source::{Source, SourceError};

/// A command to be run in a sandbox of its own. Its standard input is empty.
#[derive(Clone, Debug)]
pub struct Run {
    /// The program and its arguments. A program without a slash is looked up in the environment's `PATH`, inside.
    pub argv: Vec<OsString>,
    /// The payload's whole environment; nothing is inherited. [`Run::new`] fills in `PATH`, `HOME`, `TMPDIR`, `LANG`.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory as seen inside: absolute.
    pub directory: PathBuf,
    /// Files and directories of the host that are visible inside besides `/usr`, `/bin`, `/sbin` and `/lib*`.
    pub mounts: Vec<Mount>,
    /// What the run may use up.
    pub limits: RunLimits,
    /// Whether the payload has a third output stream at descriptor 3, captured in [`Finished::report`].
    pub report: bool,
    /// The name of this request: the daemon answers the same key with the same answer and runs nothing a second time.
    /// A helper that serves one request does not know it.
    pub key: Option<Key>,
    /// What of the network it may reach: nothing, or the destinations that root configured. Which they are is not
    /// asked for here: in one-shot mode by [`Client::with_mirror`](crate::Client::with_mirror), else by the daemon's
    /// configuration.
    pub egress: Egress,
}

impl Run {
    /// A run of `argv` in `directory`, with the least environment that programs expect, no mount, and the default
    /// limits.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>, directory: impl Into<PathBuf>) -> Self {
        let environment = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"),
            ("HOME", "/tmp"),
            ("TMPDIR", "/tmp"),
            ("LANG", "C.UTF-8"),
        ];
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            environment: environment.map(|(name, value)| (name.into(), value.into())).into(),
            directory: directory.into(),
            mounts: Vec::new(),
            limits: RunLimits::default(),
            report: false,
            key: None,
            egress: Egress::None,
        }
    }
}

/// One file or directory of the host, made visible inside.
#[derive(Clone, Debug)]
pub struct Mount {
    /// On the host.
    pub source: Source,
    /// Inside: absolute, not a system directory. Parents are made where they are missing, but never inside another
    /// mount.
    pub target: PathBuf,
    /// What may be done under it.
    pub access: Access,
}

/// A run that came to an end, whichever.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Why it ended, what it used, which layers held.
    pub receipt: Receipt,
    /// What came out of descriptor 1.
    pub stdout: Captured,
    /// What came out of descriptor 2.
    pub stderr: Captured,
    /// What came out of descriptor 3, where it was asked for.
    pub report: Captured,
    /// The daemon's word on the receipt, checked against its public key; `None` of a helper that serves one request.
    pub signed: Option<SignedReceipt>,
}

/// A piece of a stream, as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Of which stream.
    pub stream: Stream,
    /// Bytes that were left out before these: the run is not held up for a client that reads too slowly.
    pub skipped: u64,
    /// The bytes; none where only a gap is told.
    pub bytes: &'a [u8],
}

/// What came out of one stream: whole if `tail` is empty, else its two ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes, at most half of [`RunLimits::kept_bytes`] unless the whole stream fits in all of it.
    pub head: Vec<u8>,
    /// The last bytes; empty if `head` is the whole stream.
    pub tail: Vec<u8>,
    /// Bytes the payload wrote.
    pub bytes_total: u64,
    /// SHA-256 of all of them, also of those that were not kept.
    pub sha256: [u8; 32],
}

impl Captured {
    /// How many bytes between head and tail were counted and hashed, but not kept.
    #[must_use]
    pub fn bytes_dropped(&self) -> u64 {
        self.bytes_total.saturating_sub((self.head.len() + self.tail.len()) as u64)
    }
}

/// Why a run could not be put into words of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No program was named.
    #[error("a run needs a program to run: `argv` is empty")]
    NoProgram,
    /// A string that the kernel would cut short.
    #[error("{what} contains a NUL byte: {string:?}")]
    Nul {
        /// What was to be sent.
        what: &'static str,
        /// The string.
        string: OsString,
    },
    /// An environment variable's name is empty or holds `=`.
    #[error("an environment variable cannot be named {name:?}")]
    VariableName {
        /// The name.
        name: OsString,
    },
    /// The host's side of a mount cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// More mounts than a request takes.
    #[error(transparent)]
    Mounts(#[from] protocol::TooManyMounts),
    /// The whole request takes more than the frame's bound.
    #[error("the request (arguments, environment and paths) is too long for one frame")]
    Frame(#[source] FrameError),
}

/// A run as it travels: one frame, and the descriptor of each mount's source, which goes with the frame's first byte.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) frame: Vec<u8>,
    /// SHA-256 of the run alone, which a daemon signs; a helper does not.
    pub(crate) request_digest: Option<[u8; 32]>,
    pub(crate) sources: Vec<Arc<OwnedFd>>,
}

/// Opens what `run` names, and encodes it: for the daemon with a token and a key, for a helper without; with `live`,
/// output comes while the run lasts.
pub(crate) fn encode(run: &Run, token: Option<Token>, live: bool) -> Result<Encoded, RequestError> {
    if run.argv.is_empty() {
        return Err(RequestError::NoProgram);
    }
    let argv = pack(run.argv.iter().map(|argument| Ok(("an argument", argument.clone()))))?;
    let proxies = proxies(run);
    let environment = pack(run.environment.iter().chain(&proxies).map(|(name, value)| {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(RequestError::VariableName { name: name.clone() });
        }
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        Ok(("an environment variable", variable))
    }))?;
    let mut mounts = Mounts::new();
    for mount in &run.mounts {
        mounts.push(protocol::Mount { target: path("a mount's target", &mount.target)?, access: mount.access })?;
    }
    let sources = run.mounts.iter().map(|mount| mount.source.descriptor()).collect::<Result<_, _>>()?;
    let request = protocol::RunRequest {
        argv: strings(&argv),
        environment: strings(&environment),
        directory: path("the working directory", &run.directory)?,
        mounts,
        limits: run.limits,
        report: run.report,
        live,
        egress: run.egress,
    };
    let mut buffer = vec![0; protocol::frame::MAX_FRAME_BYTES];
    let too_long = FrameError::TooLong { bound_bytes: protocol::frame::MAX_BODY_BYTES };
    let (request, request_digest) = match token {
        Some(token) => {
            let body = postcard::to_slice(&request, &mut buffer).map_err(|_| RequestError::Frame(too_long))?;
            let digest = Sha256::digest(&*body).into();
            (protocol::Request::Submit(Submission { token, key: run.key, run: request }), Some(digest))
        }
        None => (protocol::Request::Run(request), None),
    };
    let frame_bytes = protocol::frame::encode(&request, &mut buffer).map_err(RequestError::Frame)?.len();
    buffer.truncate(frame_bytes);
    Ok(Encoded { frame: buffer, request_digest, sources })
}

/// How programs are told of the mirror, unless the run says otherwise. Of most names both cases are in use.
fn proxies(run: &Run) -> Vec<(OsString, OsString)> {
    let mirror = format!("http://127.0.0.1:{MIRROR_PORT}");
    let local = "localhost,127.0.0.1,::1";
    let all = [("http_proxy", &*mirror), ("https_proxy", &*mirror), ("no_proxy", local)];
    let both = all.into_iter().flat_map(|(name, value)| [(name.to_owned(), value), (name.to_ascii_uppercase(), value)]);
    let new = both.filter(|(name, _)| !run.environment.iter().any(|(it, _)| *it == **name));
    let new = new.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    if run.egress == Egress::Mirror { new.collect() } else { Vec::new() }
}

fn pack(items: impl Iterator<Item = Result<(&'static str, OsString), RequestError>>) -> Result<Vec<u8>, RequestError> {
    let mut packed = Vec::new();
    for item in items {
        let (what, string) = item?;
        packed.extend_from_slice(without_nul(what, &string)?);
        packed.push(0);
    }
    Ok(packed)
}

fn strings(packed: &[u8]) -> Strings<'_> {
    // `pack` ends every string in NUL, so this is never the empty list where there were strings.
    Strings::new(packed).unwrap_or_default()
}

fn path<'a>(what: &'static str, path: &'a Path) -> Result<&'a [u8], RequestError> {
    without_nul(what, path.as_os_str())
}

fn without_nul<'a>(what: &'static str, string: &'a OsStr) -> Result<&'a [u8], RequestError> {
    let bytes = string.as_bytes();
    if bytes.contains(&0) { Err(RequestError::Nul { what, string: string.to_owned() }) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_for_is_named() {
        type Change = fn(&mut Run);
        let with = |change: Change| {
            let mut run = Run::new(["true"], "/");
            change(&mut run);
            encode(&run, None, false).map(|_| ()).map_err(|error| error.to_string())
        };
        #[rustfmt::skip]
        let cases: [(Change, &str); 7] = [
            (|run| run.argv.clear(),                                        "a run needs a program to run: `argv` is empty"),
            (|run| run.argv.push("a\0b".into()),                            "an argument contains a NUL byte: \"a\\0b\""),
            (|run| run.environment.push(("A=B".into(), "".into())),         "an environment variable cannot be named \"A=B\""),
            (|run| run.environment.push(("".into(), "".into())),            "an environment variable cannot be named \"\""),
            (|run| run.directory = "/a\0".into(),                           "the working directory contains a NUL byte: \"/a\\0\""),
            (|run| run.mounts.push(Mount { source: "/nowhere/at/all".into(), target: "/w".into(), access: Access::ReadOnly }),
                                                                            "cannot show `/nowhere/at/all` in a sandbox"),
            (|run| run.argv.push("x".repeat(2 << 20).into()),               "the request (arguments, environment and paths) is too long for one frame"),
        ];
        for (change, expected) in cases {
            assert_eq!(with(change).unwrap_err(), expected);
        }
        assert_eq!(with(|_| ()), Ok(()), "the control");
    }
}
