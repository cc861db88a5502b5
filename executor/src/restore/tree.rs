//! A repository's files, held in memory, and their digest.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::restore::path::{TreePath, text};

/// The kinds of file that a tree holds, as git has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `100644`.
    Regular,
    /// `100755`.
    Executable,
    /// `120000`: the content is where it points to.
    Symlink,
}

impl Mode {
    /// As git writes it: six octal digits.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "100644",
            Self::Executable => "100755",
            Self::Symlink => "120000",
        }
    }

    /// Permission bits of a file on disk; a symbolic link has none of its own.
    const fn permissions(self) -> u32 {
        match self {
            Self::Regular => 0o644,
            Self::Executable | Self::Symlink => 0o755,
        }
    }
}

/// One file: its mode and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What kind of file.
    pub mode: Mode,
    /// The content, byte for byte; of a symbolic link, its target.
    pub bytes: Vec<u8>,
}

/// What a patch starts from: files by path, wherever they are kept.
pub trait Base {
    /// The file at `path`.
    ///
    /// # Errors
    /// [`ReadError`] where there is one and it cannot be had.
    fn read(&self, path: &TreePath) -> Result<Option<Cow<'_, File>>, ReadError>;

    /// The first file at or after `from` in byte order of the paths, if there is one.
    fn first_from(&self, from: &[u8]) -> Option<&TreePath>;

    /// Whether there is a file at `path`, without reading it.
    fn has(&self, path: &[u8]) -> bool;
}

/// A file of the base cannot be read, or is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` of the base cannot be used: {reason}")]
pub struct ReadError {
    /// The file.
    pub path: TreePath,
    /// What the system said, or what differs.
    pub reason: String,
}

/// What makes another tree out of a base: each path that differs, with its new file, or `None` where it is gone.
pub type Changes = BTreeMap<TreePath, Option<File>>;

/// The files of a repository, by path. Directories exist where files need them, as in git.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<TreePath, File>);

/// A tree could not be written to disk.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{path}`")]
pub struct WriteError {
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// The first thing in which a directory is not the tree that was written there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// A file of the tree is gone.
    #[error("`{0}` was deleted")]
    Deleted(String),
    /// A file of the tree has other bytes, another mode, or is no file any more.
    #[error("`{0}` was changed")]
    Changed(String),
    /// Something is there that the tree does not have.
    #[error("`{0}` was added")]
    Added(String),
    /// It cannot be read any more.
    #[error("`{0}` cannot be read")]
    Unreadable(String),
}

impl Tree {
    /// The file at `path`.
    #[must_use]
    pub fn file(&self, path: &TreePath) -> Option<&File> {
        self.0.get(path)
    }

    /// Puts a file at `path`; answers with what was there.
    pub fn insert(&mut self, path: TreePath, file: File) -> Option<File> {
        self.0.insert(path, file)
    }

    /// Takes the file at `path` away; answers with what was there.
    pub fn remove(&mut self, path: &TreePath) -> Option<File> {
        self.0.remove(path)
    }

    /// The files, in byte order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&TreePath, &File)> {
        self.0.iter()
    }

    /// The tree with `changes` made to it.
    #[must_use]
    pub fn with(&self, changes: &Changes) -> Self {
        let mut tree = self.clone();
        for (path, file) in changes {
            match file {
                Some(file) => drop(tree.insert(path.clone(), file.clone())),
                None => drop(tree.remove(path)),
            }
        }
        tree
    }

    /// SHA-256 over one line a file, `MODE SHA256-OF-CONTENT PATH NUL`, in byte order of the paths.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut tree = Sha256::new();
        for (path, file) in &self.0 {
            tree.update(format!("{} {} ", file.mode.as_str(), sha256(&file.bytes)));
            tree.update(path.as_bytes());
            tree.update([0]);
        }
        Digest(tree.finalize().into())
    }

    /// Writes the tree under `root`, an empty directory; readable by everyone, since a sandbox runs as another user.
    ///
    /// # Errors
    /// [`WriteError`] names the file or directory that failed.
    pub fn write(&self, root: &Path) -> Result<(), WriteError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| WriteError { path, source }
        };
        let permit = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        permit(root, 0o755).map_err(failed(root))?;
        for (path, file) in &self.0 {
            let mut parents: Vec<_> = path.parents().map(|it| root.join(OsStr::from_bytes(it))).collect();
            parents.reverse();
            for directory in parents {
                if !directory.is_dir() {
                    fs::create_dir(&directory).map_err(failed(&directory))?;
                    permit(&directory, 0o755).map_err(failed(&directory))?;
                }
            }
            let at = root.join(path.as_path());
            if file.mode == Mode::Symlink {
                symlink(OsStr::from_bytes(&file.bytes), &at).map_err(failed(&at))?;
                continue;
            }
            fs::write(&at, &file.bytes).map_err(failed(&at))?;
            permit(&at, file.mode.permissions()).map_err(failed(&at))?;
        }
        Ok(())
    }

    /// What makes `root` differ from the tree that was written there; `None` where nothing does.
    ///
    /// Untrusted code may have had its way with `root`, so nothing is followed, nothing special is opened, and the
    /// walk ends at the first difference: it costs no more than the tree itself.
    #[must_use]
    pub fn difference(&self, root: &Path) -> Option<Difference> {
        for (path, file) in &self.0 {
            let at = root.join(path.as_path());
            let name = || path.to_string();
            let linked =
                |it: &[u8]| fs::symlink_metadata(root.join(OsStr::from_bytes(it))).is_ok_and(|it| it.is_symlink());
            if path.parents().any(linked) {
                return Some(Difference::Changed(name()));
            }
            let found = match fs::symlink_metadata(&at) {
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Some(Difference::Deleted(name()));
                }
                Err(_) => return Some(Difference::Unreadable(name())),
                Ok(found) => found,
            };
            let bytes = match file.mode {
                Mode::Symlink if found.is_symlink() => fs::read_link(&at).map(|it| it.into_os_string().into_vec()),
                // The length first: a file that was grown to a terabyte is not read.
                Mode::Regular | Mode::Executable
                    if found.is_file()
                        && found.len() == file.bytes.len() as u64
                        && found.permissions().mode() & 0o7777 == file.mode.permissions() =>
                {
                    fs::read(&at)
                }
                _ => return Some(Difference::Changed(name())),
            };
            match bytes {
                Err(_) => return Some(Difference::Unreadable(name())),
                Ok(bytes) if bytes != file.bytes => return Some(Difference::Changed(name())),
                Ok(_) => {}
            }
        }
        self.addition(root, b"")
    }

    /// The first entry under `directory` (relative to `root`) that the tree does not have.
    fn addition(&self, root: &Path, directory: &[u8]) -> Option<Difference> {
        let unreadable = || Some(Difference::Unreadable(text(directory)));
        let Ok(entries) = fs::read_dir(root.join(OsStr::from_bytes(directory))) else { return unreadable() };
        for entry in entries {
            let Ok(entry) = entry else { return unreadable() };
            let mut path = directory.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.file_name().as_bytes());
            if self.has(&path) {
                continue;
            }
            let inside = [path.as_slice(), b"/"].concat();
            // A link to a directory is not followed: its place in the tree is a directory of its own.
            let real = entry.file_type().is_ok_and(|it| it.is_dir());
            if !real || !self.first_from(&inside).is_some_and(|it| it.as_bytes().starts_with(&inside)) {
                return Some(Difference::Added(text(&path)));
            }
            if let Some(found) = self.addition(root, &path) {
                return Some(found);
            }
        }
        None
    }
}

impl Base for Tree {
    fn read(&self, path: &TreePath) -> Result<Option<Cow<'_, File>>, ReadError> {
        Ok(self.0.get(path).map(Cow::Borrowed))
    }

    fn first_from(&self, from: &[u8]) -> Option<&TreePath> {
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        self.0.range::<[u8], _>(bounds).next().map(|(path, _)| path)
    }

    fn has(&self, path: &[u8]) -> bool {
        self.0.contains_key(path)
    }
}

/// The SHA-256 of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree(files: &[(&str, Mode, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, mode, text) in files {
            tree.insert(TreePath::new(path).unwrap(), File { mode: *mode, bytes: text.as_bytes().to_vec() });
        }
        tree
    }

    #[test]
    fn the_digest_moves_with_every_part_of_every_file() {
        let base = tree(&[("a", Mode::Regular, "x"), ("b/c", Mode::Regular, "y")]);
        let others = [
            tree(&[("a", Mode::Regular, "x")]),
            tree(&[("a", Mode::Regular, "x"), ("b/c", Mode::Regular, "z")]),
            tree(&[("a", Mode::Regular, "x"), ("b/d", Mode::Regular, "y")]),
            tree(&[("a", Mode::Executable, "x"), ("b/c", Mode::Regular, "y")]),
            tree(&[("a", Mode::Symlink, "x"), ("b/c", Mode::Regular, "y")]),
            tree(&[("a", Mode::Regular, "xy"), ("b/c", Mode::Regular, "")]),
        ];
        assert_eq!(base.digest(), base.clone().digest());
        for other in others {
            assert_ne!(base.digest(), other.digest(), "{other:?}");
        }
        // The listing by hand: `printf` and `sha256sum` agree.
        let one = format!("100644 {} a\0", sha256(b"x"));
        assert_eq!(tree(&[("a", Mode::Regular, "x")]).digest(), sha256(one.as_bytes()));
    }

    #[test]
    fn whatever_was_done_to_a_written_tree_is_found() {
        type Deed = fn(&Path) -> io::Result<()>;
        let written =
            tree(&[("a", Mode::Regular, "x"), ("d/e/f", Mode::Executable, "y"), ("d/l", Mode::Symlink, "../a")]);
        let expected = |it: fn(String) -> Difference, path: &str| Some(it(path.to_owned()));
        #[rustfmt::skip]
        let cases: [(&str, Deed, Option<Difference>); 13] = [
            ("nothing",            |_| Ok(()),                                        None),
            ("a deletion",         |it| fs::remove_file(it.join("d/e/f")),            expected(Difference::Deleted, "d/e/f")),
            ("a whole directory",  |it| fs::remove_dir_all(it.join("d")),             expected(Difference::Deleted, "d/e/f")),
            ("other bytes",        |it| fs::write(it.join("a"), "z"),                 expected(Difference::Changed, "a")),
            ("more bytes",         |it| fs::write(it.join("a"), "xx"),                expected(Difference::Changed, "a")),
            ("a link to the same", |it| { fs::rename(it.join("a"), it.join("d/b"))?; symlink("d/b", it.join("a")) },
                                                                                      expected(Difference::Changed, "a")),
            ("a link above it",    |it| { fs::rename(it.join("d"), it.join("D"))?; symlink("D", it.join("d")) },
                                                                                      expected(Difference::Changed, "d/e/f")),
            ("a mode",             |it| fs::set_permissions(it.join("a"), fs::Permissions::from_mode(0o777)),
                                                                                      expected(Difference::Changed, "a")),
            ("a file more",        |it| fs::write(it.join("d/e/g"), ""),              expected(Difference::Added, "d/e/g")),
            ("a directory more",   |it| fs::create_dir(it.join("d/g")),               expected(Difference::Added, "d/g")),
            ("a link elsewhere",   |it| { fs::remove_file(it.join("d/l"))?; symlink("../b", it.join("d/l")) },
                                                                                      expected(Difference::Changed, "d/l")),
            ("a file for a link",  |it| { fs::remove_file(it.join("d/l"))?; fs::write(it.join("d/l"), "../a") },
                                                                                      expected(Difference::Changed, "d/l")),
            ("a dangling link",    |it| symlink("/nowhere", it.join("g")),            expected(Difference::Added, "g")),
        ];
        for (name, deed, difference) in cases {
            let root = tempfile::tempdir().unwrap();
            written.write(root.path()).unwrap();
            deed(root.path()).unwrap();
            assert_eq!(written.difference(root.path()), difference, "{name}");
        }
    }
}
