//! Answers that outlive their connection: what was asked with a key is done once.
//!
//! An answer is a file, written whole, synced and renamed before the client gets its first byte. While a request is
//! being answered its key is locked; the lock goes with the process that holds it, however that ends. A request that
//! was cut off has no answer: the same key runs it again.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
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
        answers.count("")?;
        Ok(answers)
    }

    /// How many files there are whose name begins so; what is older than [`KEPT`] and in nobody's hands is removed on
    /// the way.
    fn count(&self, prefix: &str) -> io::Result<usize> {
        let (now, mut count) = (SystemTime::now(), 0);
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let modified = entry.metadata().and_then(|it| it.modified());
            let old = modified.is_ok_and(|it| now.duration_since(it).is_ok_and(|it| it > KEPT));
            // A lock that is held belongs to a run that lasts; whoever waits for one that goes looks again.
            let free = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
            match old.then(|| File::open(entry.path()).ok().and_then(free)).flatten() {
                Some(_held) => fs::remove_file(entry.path())?,
                None => count += usize::from(entry.file_name().to_str().is_some_and(|it| it.starts_with(prefix))),
            }
        }
        Ok(count)
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

    /// What is known of `key`, which `uid` has used for the request of this digest.
    pub(crate) fn look(&self, uid: u32, key: Key, request_digest: [u8; 32]) -> Result<Known, Refusal> {
        let failed = |error: io::Error| Refusal::NoStore { errno: errno_of(&error) as i32 };
        let mut name = format!("{uid}-");
        for byte in key.0 {
            // Writing to a string does not fail.
            write!(name, "{byte:02x}").ok();
        }
        let path = self.directory.join(&name);
        let lock = self.directory.join(name + ".lock");
        // Before anything is made: each key has a lock and an answer.
        let full = || self.count(&format!("{uid}-")).map(|it| it >= 2 * PEER_MAX).map_err(failed);
        if !path.exists() && full()? {
            return Err(Refusal::NoStore { errno: Errno::EDQUOT as i32 });
        }
        let lock = Self::lock(&lock)?;
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Known::New(Place { path, request_digest, _lock: lock }))
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

impl Place {
    /// Keeps the answer, for good when this returns well.
    pub(crate) fn keep(&self, frames: &[u8]) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(&self.request_digest)?;
        file.write_all(frames)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        self.path.parent().map_or(Ok(()), |it| File::open(it)?.sync_all())
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
            let Known::New(place) = answers.look(7, key, [3; 32]).unwrap() else { panic!("answered") };
            assert_eq!(answers.look(7, key, [3; 32]).unwrap_err(), Refusal::InFlight);
            assert!(matches!(answers.look(7, other, [3; 32]), Ok(Known::New(_))), "another key");
            assert!(matches!(answers.look(8, key, [3; 32]), Ok(Known::New(_))), "another peer");
            place.keep(b"frames").unwrap();
        }
        // Another daemon, later.
        let answers = Answers::open(&state).unwrap();
        assert!(matches!(answers.look(7, key, [3; 32]), Ok(Known::Answered(frames)) if frames == b"frames"));
        assert_eq!(answers.look(7, key, [4; 32]).unwrap_err(), Refusal::KeyReused);
        // More than one peer may have at a time.
        for number in 0..2 * PEER_MAX {
            fs::write(state.join(format!("answers/9-{number:032x}")), "").unwrap();
        }
        assert_eq!(answers.look(9, Key([0xff; 16]), [3; 32]).unwrap_err(), Refusal::NoStore { errno: libc::EDQUOT });
        assert!(!state.join(format!("answers/9-{}.lock", "ff".repeat(16))).exists(), "nothing is left of the refusal");
        assert!(matches!(answers.look(8, other, [3; 32]), Ok(Known::New(_))), "another peer still may");
        // What is a day old is removed, but for a lock that is held.
        let Known::New(_place) = answers.look(7, Key([5; 16]), [3; 32]).unwrap() else { panic!("answered") };
        let held = state.join(format!("answers/7-{}.lock", "05".repeat(16)));
        let long_ago = SystemTime::now() - KEPT * 2;
        for path in [&held, &state.join(format!("answers/7-{}", "01".repeat(16)))] {
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let answers = Answers::open(&state).unwrap();
        assert!(held.exists());
        assert!(matches!(answers.look(7, key, [4; 32]), Ok(Known::New(_))), "forgotten");
        fs::remove_dir_all(&state).unwrap();
        assert!(matches!(answers.look(7, key, [3; 32]), Err(Refusal::NoStore { errno: libc::ENOENT })));
    }
}
