//! The directory on the host in which one candidate is graded: held by a lock, removed at the end, swept when the
//! end never came.
//!
//! A process that is killed removes nothing, and no handler can change that for `SIGKILL`; so none is installed for
//! the other signals either. What it leaves is unlocked from that moment, and the next desk removes it. A process id
//! in the name would not do: it means another process in another namespace.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What the name of every desk starts with.
pub const PREFIX: &str = "tack-grade-";

/// A directory of this process alone.
#[derive(Debug)]
pub(crate) struct Desk {
    /// Absolute, without symbolic links; `None` once it was removed.
    root: Option<PathBuf>,
    /// The directory, open and locked for as long as the desk stands.
    lock: File,
}

impl Desk {
    /// A new desk in `place`, after whatever killed processes of the same user left there has been removed.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        let place = place.canonicalize()?;
        loop {
            let root = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&place)?.keep();
            let lock = File::open(&root)?;
            // Between its making and its locking, the sweep of another process may have had it: then once more.
            let held = lock.try_lock().is_ok();
            if held && same_file(&root, &lock) {
                let desk = Self { root: Some(root), lock };
                desk.sweep(&place);
                return Ok(desk);
            }
            if same_file(&root, &lock) {
                // A file system without locks has no sweep either; a sweeper removes what it holds.
                if let Err(TryLockError::Error(error)) = lock.try_lock() {
                    remove(&root)?;
                    return Err(error);
                }
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new(""))
    }

    /// A new directory on it, of this name.
    pub(crate) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Removes it, and says if that failed.
    pub(crate) fn clear(mut self) -> io::Result<()> {
        self.root.take().map_or(Ok(()), |it| remove(&it))
    }

    /// Removes every unlocked desk of the same user in `place`. One that cannot be removed is left for the next.
    fn sweep(&self, place: &Path) {
        let (Ok(own), Ok(entries)) = (self.lock.metadata(), fs::read_dir(place)) else { return };
        for entry in entries.flatten().filter(|it| it.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
            let path = entry.path();
            // Asked of the name before anything is opened: the place is everybody's, and a pipe would block.
            if !fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == own.uid()) {
                continue;
            }
            let Ok(lock) = File::open(&path) else { continue };
            if lock.try_lock().is_ok() && same_file(&path, &lock) {
                // A failure is no reason not to grade: this desk is another one, and stands.
                drop(remove(&path));
            }
        }
    }
}

impl Drop for Desk {
    /// Where an error ended the grading: that error is what is reported, and the next sweep tries again.
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            drop(remove(&root));
        }
    }
}

/// Whether `path` still names the directory that is open as `file`.
fn same_file(path: &Path, file: &File) -> bool {
    let (Ok(named), Ok(open)) = (fs::symlink_metadata(path), file.metadata()) else { return false };
    named.is_dir() && (named.dev(), named.ino(), named.uid()) == (open.dev(), open.ino(), open.uid())
}

/// Removes `root` and everything under it, however deep: with a bounded number of descriptors and of bytes in a path.
///
/// A directory inside a directory is first moved up to a private place beside the tree's top, and emptied there: a
/// walk down would hold one descriptor a level, and a path may be longer than the kernel takes. Links are removed and
/// never followed.
pub(crate) fn remove(root: &Path) -> io::Result<()> {
    private(root)?;
    let hall = root.join(hall_name(root)?);
    fs::DirBuilder::new().mode(0o700).create(&hall)?;
    let mut halls = Hall { path: hall, moved: 0 };
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path != halls.path {
            halls.take(&path)?;
        }
    }
    while let Some(directory) = halls.next()? {
        loop {
            let mut found = false;
            // What a directory lists while it changes is not defined, so it is read again until it lists nothing.
            for entry in fs::read_dir(&directory)? {
                found = true;
                halls.take(&entry?.path())?;
            }
            if !found {
                break;
            }
        }
        fs::remove_dir(&directory)?;
    }
    fs::remove_dir(&halls.path)?;
    fs::remove_dir(root)
}

/// Where directories wait to be emptied, all at one level.
struct Hall {
    path: PathBuf,
    moved: u64,
}

impl Hall {
    /// A file is removed; a directory comes here.
    fn take(&mut self, path: &Path) -> io::Result<()> {
        if !fs::symlink_metadata(path)?.is_dir() {
            return fs::remove_file(path);
        }
        // Moving a directory writes its `..`, and so needs leave to write it.
        private(path)?;
        let waiting = self.path.join(self.moved.to_string());
        self.moved += 1;
        fs::rename(path, waiting)
    }

    /// One of those that wait.
    fn next(&self) -> io::Result<Option<PathBuf>> {
        fs::read_dir(&self.path)?.next().transpose().map(|it| it.map(|it| it.path()))
    }
}

fn private(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
}

/// A name that nothing in `root` has; an earlier removal that was killed may have left its own.
fn hall_name(root: &Path) -> io::Result<String> {
    let free = |name: &String| match fs::symlink_metadata(root.join(name)) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(_) => false,
    };
    let names = (0..1_000).map(|it| format!(".removal-{it}"));
    names.into_iter().find(free).ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn desks(place: &Path) -> Vec<PathBuf> {
        let mut found: Vec<_> = fs::read_dir(place).unwrap().map(|it| it.unwrap().path()).collect();
        found.sort();
        found
    }

    /// A tree of one directory inside the other, whose path is too long for the kernel.
    fn deep(root: &Path, levels: usize) {
        let name = "d".repeat(20);
        for _ in 0..levels {
            // Built from the bottom: what is there is moved into a new directory.
            let outer = root.join("outer");
            fs::create_dir(&outer).unwrap();
            if root.join(&name).exists() {
                fs::rename(root.join(&name), outer.join(&name)).unwrap();
            }
            fs::write(outer.join("file"), "x").unwrap();
            fs::rename(&outer, root.join(&name)).unwrap();
        }
    }

    #[test]
    fn a_tree_deeper_than_the_limit_on_open_files_and_on_paths_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        deep(&root, 3_000);
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(place.path().join("kept"), "").unwrap();
        fs::create_dir(place.path().join("other")).unwrap();
        fs::write(place.path().join("other/kept"), "").unwrap();
        std::os::unix::fs::symlink(place.path().join("other"), root.join("a/link")).unwrap();
        fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        remove(&root).unwrap();
        assert!(descriptors() <= before + 16);
        assert!(!root.exists() && place.path().join("other/kept").exists(), "a link is not followed");
    }

    #[test]
    fn a_removal_that_fails_says_so() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(remove(&place.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let desk = Desk::new(place.path()).unwrap();
        fs::remove_dir(desk.path()).unwrap();
        assert_eq!(desk.clear().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_held_stands() {
        let place = tempfile::tempdir().unwrap();
        let held = Desk::new(place.path()).unwrap();
        fs::write(held.path().join("x"), "").unwrap();
        let left = place.path().join(format!("{PREFIX}left"));
        fs::create_dir_all(left.join("candidate/deep")).unwrap();
        // Names that only look alike: a file, a link, and another's prefix.
        fs::write(place.path().join(format!("{PREFIX}file")), "").unwrap();
        std::os::unix::fs::symlink(held.path(), place.path().join(format!("{PREFIX}link"))).unwrap();
        fs::create_dir(place.path().join("tack-other")).unwrap();

        let second = Desk::new(place.path()).unwrap();
        assert!(!left.exists() && held.path().join("x").exists() && second.path().exists());
        second.clear().unwrap();
        assert!(held.path().join("x").exists());
        held.clear().unwrap();
        let names = [format!("{PREFIX}file"), format!("{PREFIX}link"), "tack-other".to_owned()];
        let mut names: Vec<_> = names.into_iter().map(|it| place.path().join(it)).collect();
        names.sort();
        assert_eq!(desks(place.path()), names);
    }

    /// The lock is another process's, and that process is killed: with `SIGKILL`, which nothing can handle.
    #[test]
    fn a_desk_is_swept_once_its_process_was_killed_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let left = place.path().join(format!("{PREFIX}left"));
        fs::create_dir(&left).unwrap();
        let script = format!(
            "import fcntl, os, time; fcntl.flock(os.open('{}', os.O_RDONLY), fcntl.LOCK_EX); print(flush=True); time.sleep(60)",
            left.display()
        );
        let mut holder = Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Desk::new(place.path()).unwrap().clear().unwrap();
        assert!(left.exists(), "it is held");
        holder.kill().unwrap();
        holder.wait().unwrap();
        Desk::new(place.path()).unwrap().clear().unwrap();
        assert_eq!(desks(place.path()), Vec::<PathBuf>::new());
    }
}
