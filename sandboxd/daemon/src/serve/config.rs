//! Root's word on who may ask the daemon, for what, and for how much.
//!
//! One setting a line, `name value`; `#` begins a comment. Nothing is expanded, included or taken from elsewhere.
//!
//! ```text
//! peer uid 1000               # who may ask: by uid, or
//! peer gid 985                # by a group of theirs, primary or not
//! token-file /etc/tack/token  # what they must show too: 64 hexadecimal digits in a file of root's, mode 0640
//! root /home                  # beneath what the directories lie that may be shown; may be given again
//! limit memory_bytes 8589934592
//! mirror pypi.example:443     # where sandboxes that ask for a mirror may go; may be given again
//! runs 8                      # at one time
//! queue 64                    # that wait for one of those
//! ```
//!
//! One peer holds at most half of the runs and the queue together. Root itself may always ask. Without a `root`, nothing of the host can be shown beside the system directories.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str;

use sha2::{Digest, Sha256};
use tack_sandbox_protocol::{Limit, RunLimits, Token};

use crate::mirror::Mirrors;

/// Largest configuration that is read: thousands of peers.
const BYTES_MAX: u64 = 64 << 10;

/// Most runs at one time that can be configured: each has a process, pipes and groups of its own.
const RUNS_MAX: u32 = 1_024;

/// What root has configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) uids: Vec<u32>,
    pub(crate) gids: Vec<u32>,
    /// SHA-256 of the token; `None` if none is asked for.
    pub(crate) token_digest: Option<[u8; 32]>,
    pub(crate) roots: Vec<PathBuf>,
    /// The most that a request may ask for, by [`Limit`]'s order.
    pub(crate) ceilings: [u64; Limit::COUNT],
    /// What runs with a mirror may reach.
    pub(crate) mirrors: Mirrors,
    pub(crate) runs: u32,
    pub(crate) queue: u32,
}

/// The configuration cannot be used: nothing is served by half of it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody beside root may change it, or everybody may read a token.
    #[error("`{}`: expected a regular file of root's that nobody else may write (nor, with a token, everybody read); found mode {mode:o}, uid {uid}", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner.
        uid: u32,
    },
    /// It is larger than any configuration.
    #[error("`{}` is larger than {BYTES_MAX} bytes", path.display())]
    Size {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a setting.
    #[error("`{}`, line {line}: expected {expected}, found {found:?}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        line: usize,
        /// What may stand there.
        expected: &'static str,
        /// What does.
        found: String,
    },
}

impl Default for Config {
    /// Nobody but root, nothing of the host, and four times the limits that a run has by itself.
    fn default() -> Self {
        let usual = RunLimits::default();
        let mut ceilings = [0; Limit::COUNT];
        for (ceiling, limit) in ceilings.iter_mut().zip(Limit::ALL) {
            *ceiling = limit.of(&usual).saturating_mul(4);
        }
        Self {
            uids: Vec::new(),
            gids: Vec::new(),
            token_digest: None,
            roots: Vec::new(),
            ceilings,
            mirrors: Mirrors::none(),
            runs: 8,
            queue: 64,
        }
    }
}

impl Config {
    /// Reads the file, and the token's where it names one.
    ///
    /// # Errors
    /// [`ConfigError`], with the file, the line, what was expected and what was found.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read_roots_file(path)?, path)
    }

    /// Reads the text of `path`.
    fn parse(text: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (index, bytes) in text.split(|byte| *byte == b'\n').enumerate() {
            let wrong = |expected| ConfigError::Line {
                path: path.to_owned(),
                line: index + 1,
                expected,
                found: String::from_utf8_lossy(bytes).chars().take(120).collect(),
            };
            let line = str::from_utf8(bytes).map_err(|_| wrong("UTF-8"))?;
            let line = line.split_once('#').map_or(line, |(setting, _)| setting);
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                [] => {}
                ["peer", kind @ ("uid" | "gid"), id] => {
                    let id = decimal(id).and_then(|it| u32::try_from(it).ok()).filter(|it| *it != u32::MAX);
                    let id = id.ok_or_else(|| wrong("a number after `peer uid` or `peer gid`"))?;
                    if *kind == "uid" { config.uids.push(id) } else { config.gids.push(id) }
                }
                ["token-file", file] if config.token_digest.is_none() => {
                    let file = absolute(file).ok_or_else(|| wrong("an absolute path after `token-file`"))?;
                    let token = Token::parse(&read_secret(&file)?);
                    let token = token.ok_or_else(|| wrong("a token file of 64 hexadecimal digits"))?;
                    config.token_digest = Some(Sha256::digest(token.0).into());
                }
                ["root", directory] => {
                    config.roots.push(absolute(directory).ok_or_else(|| wrong("an absolute path after `root`"))?);
                }
                ["limit", name, most] => {
                    let limit = Limit::ALL.iter().find(|it| it.name() == *name);
                    let limit =
                        limit.ok_or_else(|| wrong("the name of a limit after `limit`, such as `memory_bytes`"))?;
                    let most = decimal(most).filter(|it| *it > 0);
                    config.ceilings[*limit as usize] = most.ok_or_else(|| wrong("a number above 0"))?;
                }
                ["mirror", destination] => {
                    let added = config.mirrors.add(destination);
                    added.map_err(|_| {
                        wrong("HOST:PORT, HOST:PORT=private or HOST:PORT=ADDRESS after `mirror`, at most 64")
                    })?;
                }
                ["runs", count] => {
                    let count = decimal(count).and_then(|it| u32::try_from(it).ok());
                    let count = count.filter(|it| (1..=RUNS_MAX).contains(it));
                    config.runs = count.ok_or_else(|| wrong("1 to 1024 after `runs`"))?;
                }
                ["queue", count] => {
                    let count = decimal(count).and_then(|it| u32::try_from(it).ok()).filter(|it| *it <= RUNS_MAX);
                    config.queue = count.ok_or_else(|| wrong("0 to 1024 after `queue`"))?;
                }
                _ => {
                    return Err(wrong(
                        "one of: peer uid, peer gid, token-file (once), root, limit, mirror, runs, queue",
                    ));
                }
            }
        }
        Ok(config)
    }
}

/// The content of a file that root alone can change.
fn read_roots_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    read_file(path, 0o022)
}

/// The content of a file that root alone can change, and that not everybody can read: a group may, for its members.
fn read_secret(path: &Path) -> Result<Vec<u8>, ConfigError> {
    read_file(path, 0o027)
}

/// The content of a file of root's whose mode has none of these bits.
fn read_file(path: &Path, forbidden: u32) -> Result<Vec<u8>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    // Looked at before it is opened: opening a FIFO would wait for a writer. Then at what was opened.
    let owned = |it: std::fs::Metadata| {
        let good = it.is_file() && it.uid() == 0 && it.mode() & forbidden == 0;
        if good { Ok(()) } else { Err(ConfigError::Owner { path: path.to_owned(), mode: it.mode(), uid: it.uid() }) }
    };
    owned(path.symlink_metadata().map_err(failed)?)?;
    let file = File::open(path).map_err(failed)?;
    owned(file.metadata().map_err(failed)?)?;
    let mut text = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX { Err(ConfigError::Size { path: path.to_owned() }) } else { Ok(text) }
}

fn decimal(text: &str) -> Option<u64> {
    // `parse` alone would take a plus sign.
    text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn absolute(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    (path.is_absolute() && path.components().all(|it| it != std::path::Component::ParentDir)).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text.as_bytes(), Path::new("f")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_configuration_is_read_line_by_line() {
        let text = "# who\npeer uid 1000 # alice\npeer gid 985\n\nroot /home\nroot /srv/ci\n limit\tmemory_bytes 8589934592\nruns 3\nqueue 0";
        let config = parse(text).unwrap();
        assert_eq!((config.uids, config.gids), (vec![1_000], vec![985]));
        assert_eq!(config.roots, [Path::new("/home"), Path::new("/srv/ci")]);
        assert_eq!((config.ceilings[Limit::Memory as usize], config.runs, config.queue), (8 << 30, 3, 0));
        assert_eq!(parse("").unwrap(), Config::default());
        assert_eq!(Config::default().ceilings[Limit::Processes as usize], 1_024);
    }

    #[test]
    fn what_is_no_setting_is_said_with_its_line() {
        #[rustfmt::skip]
        let cases = [
            ("peers uid 1",            "`f`, line 1: expected one of: peer uid, peer gid, token-file (once), root, limit, mirror, runs, queue, found \"peers uid 1\""),
            ("\npeer uid +1",          "`f`, line 2: expected a number after `peer uid` or `peer gid`, found \"peer uid +1\""),
            ("peer uid 4294967295",    "`f`, line 1: expected a number after `peer uid` or `peer gid`, found \"peer uid 4294967295\""),
            ("peer uid",               "`f`, line 1: expected one of: peer uid, peer gid, token-file (once), root, limit, mirror, runs, queue, found \"peer uid\""),
            ("root home",              "`f`, line 1: expected an absolute path after `root`, found \"root home\""),
            ("root /home/../etc",      "`f`, line 1: expected an absolute path after `root`, found \"root /home/../etc\""),
            ("limit memory 1",         "`f`, line 1: expected the name of a limit after `limit`, such as `memory_bytes`, found \"limit memory 1\""),
            ("limit memory_bytes 0",   "`f`, line 1: expected a number above 0, found \"limit memory_bytes 0\""),
            ("limit memory_bytes -1",  "`f`, line 1: expected a number above 0, found \"limit memory_bytes -1\""),
            ("mirror http://a/",       "`f`, line 1: expected HOST:PORT, HOST:PORT=private or HOST:PORT=ADDRESS after `mirror`, at most 64, found \"mirror http://a/\""),
            ("runs 0",                 "`f`, line 1: expected 1 to 1024 after `runs`, found \"runs 0\""),
            ("queue 99999999999999",   "`f`, line 1: expected 0 to 1024 after `queue`, found \"queue 99999999999999\""),
            ("token-file /nowhere",    "cannot read `/nowhere`"),
            ("token-file token",       "`f`, line 1: expected an absolute path after `token-file`, found \"token-file token\""),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).unwrap_err(), message, "{text:?}");
        }
        let error = Config::parse(b"root /\xff", Path::new("f")).unwrap_err().to_string();
        assert_eq!(error, "`f`, line 1: expected UTF-8, found \"root /\u{fffd}\"");
    }

    /// Bytes near a configuration, from a fixed generator: a value or an error, and never anything else.
    #[test]
    fn no_bytes_panic() {
        let pieces: [&[u8]; 12] = [
            b"peer ",
            b"uid ",
            b"gid ",
            b"1",
            b"limit ",
            b"memory_bytes ",
            b"\n",
            b"#",
            b"root /",
            b"runs ",
            b"\xff",
            b"\0",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let mut text = Vec::new();
            for _ in 0..12 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let index = usize::try_from(state % pieces.len() as u64).unwrap();
                text.extend_from_slice(pieces[index]);
            }
            drop(Config::parse(&text, Path::new("f")));
        }
    }
}
