//! Answers that outlive their connection: what was asked with a key is done once.
//!
//! An answer is a file, written whole, synced and named before the client gets its first byte. Its room is there before
//! anything is run, and goes with the process that holds it, however that ends; so does the lock of the key. A request
//! that was cut off has no answer: the same key runs it again.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, posix_fallocate};
use nix::unistd::linkat;
use tack_sandbox_protocol::{Key, Refusal};

use crate::sys::process::errno_of;

/// Most answers of one peer at a time. Each is at most what root lets a run keep of its output, thrice.
const PEER_MAX: usize = 1_024;

/// How long an answer is kept: a client that has not come back in a day will not.
const KEPT: Duration = Duration::from_hours(24);

/// Where answers are kept.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    directory: PathBuf,
}

/// What is known of a key.
#[derive(Debug)]
pub(crate) enum Known {
    /// The answer, as it was sent.
    Answered(Vec<u8>),
    /// Nothing; the key is held by this process until the place is dropped.
    New(Place),
}

/// Where the answer of one key will be.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    request_digest: [u8; 32],
    /// Without a name until the answer is whole.
    file: File,
    /// Held, never read.
    _lock: Flock<File>,
}

impl Answers {
    /// The answers in `state`; what is older than [`KEPT`] is removed.
    ///
    /// # Errors
    /// Where there can be none.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let directory = state.join("answers");
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let answers = Self { directory };
        answers.sweep()?;
        Ok(answers)
    }

    /// Removes what is older than [`KEPT`] and in nobody's hands.
    fn sweep(&self) -> io::Result<()> {
        let now = SystemTime::now();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let modified = entry.metadata().and_then(|it| it.modified());
            let old = modified.is_ok_and(|it| now.duration_since(it).is_ok_and(|it| it > KEPT));
            // A lock that is held belongs to a run that lasts; whoever waits for one that goes looks again.
            let free = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
            if let Some(_held) = old.then(|| File::open(entry.path()).ok().and_then(free)).flatten() {
                // Another process may sweep at the same time.
                fs::remove_file(entry.path()).ok();
            }
        }
        Ok(())
    }

    /// Whether `uid` has as many answers as one peer may, each with its lock.
    fn full(&self, uid: u32) -> io::Result<bool> {
        let prefix = format!("{uid}-");
        let count = || {
            let names = fs::read_dir(&self.directory)?.flatten().map(|it| it.file_name());
            Ok(names.filter(|it| it.to_str().is_some_and(|it| it.starts_with(&prefix))).count())
        };
        if count()? < 2 * PEER_MAX {
            return Ok(false);
        }
        self.sweep()?;
        count().map(|it| it >= 2 * PEER_MAX)
    }

    /// Takes the lock of a key; no other process has it until it is dropped.
    fn lock(path: &Path) -> Result<Flock<File>, Refusal> {
        let failed = |error: io::Error| Refusal::NoStore { errno: errno_of(&error) as i32 };
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
            let lock = Flock::lock(file.map_err(failed)?, FlockArg::LockExclusiveNonblock);
            let lock = lock.map_err(|(_, errno)| match errno {
                Errno::EWOULDBLOCK => Refusal::InFlight,
                errno => Refusal::NoStore { errno: errno as i32 },
            })?;
            let locked = lock.metadata().map_err(failed)?;
            match fs::metadata(path) {
                Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => return Ok(lock),
                // Between the two it was removed for its age: what is locked is nobody's any more.
                _ => {}
            }
        }
    }

    /// What is known of `key`, which `uid` has used for the request of this digest: its answer, or a place with room
    /// for one of `bytes`.
    pub(crate) fn look(&self, uid: u32, key: Key, request_digest: [u8; 32], bytes: u64) -> Result<Known, Refusal> {
        let failed = |error: io::Error| Refusal::NoStore { errno: errno_of(&error) as i32 };
        let mut name = format!("{uid}-");
        for byte in key.0 {
            // Writing to a string does not fail.
            write!(name, "{byte:02x}").ok();
        }
        let path = self.directory.join(&name);
        let lock = self.directory.join(name + ".lock");
        // Before anything is made.
        if !path.exists() && self.full(uid).map_err(failed)? {
            return Err(Refusal::NoStore { errno: Errno::EDQUOT as i32 });
        }
        let lock = Self::lock(&lock)?;
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = room(&self.directory, digest_and(bytes)).map_err(failed)?;
                Ok(Known::New(Place { path, request_digest, file, _lock: lock }))
            }
            Err(error) => Err(failed(error)),
            Ok(mut file) => {
                let (mut digest, mut frames) = ([0; 32], Vec::new());
                file.read_exact(&mut digest).and_then(|()| file.read_to_end(&mut frames)).map_err(failed)?;
                if digest == request_digest { Ok(Known::Answered(frames)) } else { Err(Refusal::KeyReused) }
            }
        }
    }
}

/// An answer's file begins with the digest of its request.
const fn digest_and(bytes: u64) -> u64 {
    bytes.saturating_add(32)
}

/// A file without a name in `directory`, with room for `bytes`.
fn room(directory: &Path, bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(directory)?;
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    posix_fallocate(&file, 0, bytes)?;
    Ok(file)
}

impl Place {
    /// Keeps the answer, for good when this returns well. The key stays locked until it does.
    pub(crate) fn keep(mut self, frames: &[u8]) -> Result<(), Refusal> {
        let mut write = || {
            self.file.write_all(&self.request_digest)?;
            self.file.write_all(frames)?;
            self.file.set_len(digest_and(frames.len() as u64))?;
            self.file.sync_all()?;
            let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(AT_FDCWD, &*unnamed, AT_FDCWD, &self.path, AtFlags::AT_SYMLINK_FOLLOW)?;
            // The name is there for good only when the directory is.
            self.path.parent().map_or(Ok(()), |it| File::open(it)?.sync_all())
        };
        write().map_err(|error: io::Error| Refusal::NoStore { errno: errno_of(&error) as i32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_answer_and_one_request() {
        let state = std::env::temp_dir().join(format!("tack-answers-{}", std::process::id()));
        fs::create_dir(&state).unwrap();
        let answers = Answers::open(&state).unwrap();
        let (key, other) = (Key([1; 16]), Key([2; 16]));
        {
            let Known::New(place) = answers.look(7, key, [3; 32], 9).unwrap() else { panic!("answered") };
            assert_eq!(answers.look(7, key, [3; 32], 9).unwrap_err(), Refusal::InFlight);
            assert!(matches!(answers.look(7, other, [3; 32], 9), Ok(Known::New(_))), "another key");
            assert!(matches!(answers.look(8, key, [3; 32], 9), Ok(Known::New(_))), "another peer");
            place.keep(b"frames").unwrap();
        }
        // Another daemon, later.
        let answers = Answers::open(&state).unwrap();
        assert!(matches!(answers.look(7, key, [3; 32], 9), Ok(Known::Answered(frames)) if frames == b"frames"));
        assert_eq!(answers.look(7, key, [4; 32], 9).unwrap_err(), Refusal::KeyReused);
        // More than one peer may have at a time.
        for number in 0..2 * PEER_MAX {
            fs::write(state.join(format!("answers/9-{number:032x}")), "").unwrap();
        }
        assert_eq!(answers.look(9, Key([0xff; 16]), [3; 32], 9).unwrap_err(), Refusal::NoStore { errno: libc::EDQUOT });
        assert!(!state.join(format!("answers/9-{}.lock", "ff".repeat(16))).exists(), "nothing is left of the refusal");
        assert!(matches!(answers.look(8, other, [3; 32], 9), Ok(Known::New(_))), "another peer still may");
        // What is a day old is removed, but for a lock that is held.
        let Known::New(_place) = answers.look(7, Key([5; 16]), [3; 32], 9).unwrap() else { panic!("answered") };
        let held = state.join(format!("answers/7-{}.lock", "05".repeat(16)));
        let long_ago = SystemTime::now() - KEPT * 2;
        for path in [&held, &state.join(format!("answers/7-{}", "01".repeat(16)))] {
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let answers = Answers::open(&state).unwrap();
        assert!(held.exists());
        assert!(matches!(answers.look(7, key, [4; 32], 9), Ok(Known::New(_))), "forgotten");
        // There is no room for an answer of any size; a refusal and a place that nobody fills leave their locks alone.
        let huge = answers.look(7, Key([6; 16]), [3; 32], u64::MAX).unwrap_err();
        assert!(matches!(huge, Refusal::NoStore { errno: libc::EFBIG | libc::ENOSPC | libc::EIO }), "{huge}");
        drop(answers.look(7, Key([6; 16]), [3; 32], 9).unwrap());
        let left = fs::read_dir(state.join("answers")).unwrap().flatten().map(|it| it.file_name());
        let left = left.filter(|it| it.to_string_lossy().starts_with("7-0606")).collect::<Vec<_>>();
        assert_eq!(left, [format!("7-{}.lock", "06".repeat(16)).as_str()]);
        fs::remove_dir_all(&state).unwrap();
        assert!(matches!(answers.look(7, key, [3; 32], 9), Err(Refusal::NoStore { errno: libc::ENOENT })));
    }
}
