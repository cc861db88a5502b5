//! A repository's files, held in memory, and their digest.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tack_core::Digest;

/// Longest path of a file in a tree, in bytes: Linux's `PATH_MAX` of 4,096, less room for the directory around it.
pub const PATH_BYTES_MAX: usize = 3_072;
/// Longest name in a path, in bytes: Linux's `NAME_MAX`.
pub const NAME_BYTES_MAX: usize = 255;

/// A path inside a repository: relative, `/`-separated, and unable to leave it or to reach its git directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TreePath(String);

/// Why a text is no path inside a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no name at all, or none between two slashes.
    #[error("it has an empty part")]
    Empty,
    /// It starts at the root of the file system.
    #[error("it is absolute")]
    Absolute,
    /// A part is `.` or `..`.
    #[error("it has a `.` or `..` part")]
    Dots,
    /// A part is `.git`, in any case: hooks, configuration and attributes live there.
    #[error("it reaches into a `.git` directory")]
    Git,
    /// It holds a control character, which a terminal would obey, or a backslash, which another system would read as
    /// a separator.
    #[error("it holds a control character or a backslash")]
    Character,
    /// It is longer than [`PATH_BYTES_MAX`], or a name in it than [`NAME_BYTES_MAX`].
    #[error("it is longer than {PATH_BYTES_MAX} bytes, or a name in it than {NAME_BYTES_MAX}")]
    Long,
}

impl TreePath {
    /// A path, if the text is one.
    ///
    /// # Errors
    /// [`PathError`] names the first rule that the text breaks.
    pub fn new(text: &str) -> Result<Self, PathError> {
        if text.starts_with('/') {
            return Err(PathError::Absolute);
        }
        if text.len() > PATH_BYTES_MAX {
            return Err(PathError::Long);
        }
        if text.contains(|it: char| it.is_control() || it == '\\') {
            return Err(PathError::Character);
        }
        for part in text.split('/') {
            match part {
                "" => return Err(PathError::Empty),
                "." | ".." => return Err(PathError::Dots),
                it if it.eq_ignore_ascii_case(".git") => return Err(PathError::Git),
                it if it.len() > NAME_BYTES_MAX => return Err(PathError::Long),
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directories above the file, nearest first.
    fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.rmatch_indices('/').map(|(at, _)| &self.0[..at])
    }
}

/// Both order by bytes, so a map of paths can be asked with a text.
impl Borrow<str> for TreePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TreePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TreePath {
    type Error = PathError;
    fn try_from(text: String) -> Result<Self, PathError> {
        Self::new(&text)
    }
}

impl From<TreePath> for String {
    fn from(path: TreePath) -> Self {
        path.0
    }
}

/// The two kinds of file that git keeps for regular files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `100644`.
    Regular,
    /// `100755`.
    Executable,
}

impl Mode {
    /// As git writes it: six octal digits.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "100644",
            Self::Executable => "100755",
        }
    }

    const fn permissions(self) -> u32 {
        match self {
            Self::Regular => 0o644,
            Self::Executable => 0o755,
        }
    }
}

/// One file: its mode and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Regular or executable.
    pub mode: Mode,
    /// The content, byte for byte.
    pub bytes: Vec<u8>,
}

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

    /// A path of the tree that another path uses as a directory, with that other path.
    #[must_use]
    pub fn collision(&self) -> Option<(&str, &TreePath)> {
        self.0.keys().find_map(|path| path.parents().find(|it| self.0.contains_key(*it)).map(|it| (it, path)))
    }

    /// SHA-256 over one line a file, `MODE SHA256-OF-CONTENT PATH NUL`, in byte order of the paths.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut tree = Sha256::new();
        for (path, file) in &self.0 {
            tree.update(format!("{} {} {path}\0", file.mode.as_str(), sha256(&file.bytes)));
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
            let mut parents: Vec<_> = path.parents().map(|it| root.join(it)).collect();
            parents.reverse();
            for directory in parents {
                if !directory.is_dir() {
                    fs::create_dir(&directory).map_err(failed(&directory))?;
                    permit(&directory, 0o755).map_err(failed(&directory))?;
                }
            }
            let at = root.join(path.as_str());
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
            let at = root.join(path.as_str());
            let name = || path.to_string();
            let linked = |it: &str| fs::symlink_metadata(root.join(it)).is_ok_and(|it| it.is_symlink());
            if path.parents().any(linked) {
                return Some(Difference::Changed(name()));
            }
            match fs::symlink_metadata(&at) {
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Some(Difference::Deleted(name()));
                }
                Err(_) => return Some(Difference::Unreadable(name())),
                // The length first: a file that was grown to a terabyte is not read.
                Ok(it) if !it.is_file() || it.len() != file.bytes.len() as u64 => {
                    return Some(Difference::Changed(name()));
                }
                Ok(it) if it.permissions().mode() & 0o7777 != file.mode.permissions() => {
                    return Some(Difference::Changed(name()));
                }
                Ok(_) => match fs::read(&at) {
                    Err(_) => return Some(Difference::Unreadable(name())),
                    Ok(bytes) if bytes != file.bytes => return Some(Difference::Changed(name())),
                    Ok(_) => {}
                },
            }
        }
        self.addition(root, "")
    }

    /// The first entry under `directory` (relative to `root`) that the tree does not have.
    fn addition(&self, root: &Path, directory: &str) -> Option<Difference> {
        let Ok(entries) = fs::read_dir(root.join(directory)) else {
            return Some(Difference::Unreadable(directory.to_owned()));
        };
        for entry in entries {
            let Ok(entry) = entry else { return Some(Difference::Unreadable(directory.to_owned())) };
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if self.0.contains_key(path.as_str()) {
                continue;
            }
            let inside = format!("{path}/");
            let mut under = self.0.range::<str, _>((Bound::Included(inside.as_str()), Bound::Unbounded));
            // A link to a directory is not followed: its place in the tree is a directory of its own.
            let real = entry.file_type().is_ok_and(|it| it.is_dir());
            if !real || !under.next().is_some_and(|(it, _)| it.as_str().starts_with(&inside)) {
                return Some(Difference::Added(path));
            }
            if let Some(found) = self.addition(root, &path) {
                return Some(found);
            }
        }
        None
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

    #[test]
    fn a_path_stays_inside_the_tree_and_out_of_its_git_directory() {
        let name = "a".repeat(NAME_BYTES_MAX);
        let (long_name, long) = (format!("{name}a"), format!("{name}/").repeat(12) + &name);
        #[rustfmt::skip]
        let cases = [
            ("retrykit/config.py", Ok(())),
            (".gitignore",         Ok(())),
            ("a b/ü.py",           Ok(())),
            ("...",                Ok(())),
            ("",                   Err(PathError::Empty)),
            ("a//b",               Err(PathError::Empty)),
            ("a/",                 Err(PathError::Empty)),
            ("/etc/passwd",        Err(PathError::Absolute)),
            ("../up",              Err(PathError::Dots)),
            ("a/../../up",         Err(PathError::Dots)),
            ("./a",                Err(PathError::Dots)),
            (".git/hooks/x",       Err(PathError::Git)),
            ("sub/.GIT/config",    Err(PathError::Git)),
            ("a\0b",               Err(PathError::Character)),
            ("a\\..\\b",           Err(PathError::Character)),
            ("a\u{1b}[2Jb",        Err(PathError::Character)),
            (&name,                Ok(())),
            (&long_name,           Err(PathError::Long)),
            (&long,                Err(PathError::Long)),
        ];
        for (text, expected) in cases {
            assert_eq!(TreePath::new(text).map(|_| ()), expected, "{text:?}");
        }
    }

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
        let written = tree(&[("a", Mode::Regular, "x"), ("d/e/f", Mode::Executable, "y")]);
        let expected = |it: fn(String) -> Difference, path: &str| Some(it(path.to_owned()));
        #[rustfmt::skip]
        let cases: [(&str, Deed, Option<Difference>); 11] = [
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
            ("a dangling link",    |it| symlink("/nowhere", it.join("g")),            expected(Difference::Added, "g")),
        ];
        for (name, deed, difference) in cases {
            let root = tempfile::tempdir().unwrap();
            written.write(root.path()).unwrap();
            deed(root.path()).unwrap();
            assert_eq!(written.difference(root.path()), difference, "{name}");
        }
    }

    #[test]
    fn a_file_that_another_needs_as_a_directory_is_a_collision() {
        assert_eq!(tree(&[("a", Mode::Regular, ""), ("ab/c", Mode::Regular, "")]).collision(), None);
        let clash = tree(&[("a/b", Mode::Regular, ""), ("a/b/c/d", Mode::Regular, "")]);
        assert_eq!(clash.collision().map(|(file, under)| (file, under.as_str())), Some(("a/b", "a/b/c/d")));
    }
}
