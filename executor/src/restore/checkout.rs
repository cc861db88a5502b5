//! A base tree on disk: what is where, by digest, and its files read one at a time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File as Handle};
use std::io::{self, Read};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::sys::stat::Mode as Permissions;
use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::restore::patch::FILE_BYTES_MAX;
use crate::restore::path::{PathError, TreePath, text};
use crate::restore::tree::{Base, Changes, File, Mode, ReadError, sha256};

/// Most files in one tree: ten times what the largest repository of the public sets has.
pub const FILES_MAX: usize = 500_000;

/// One file of a [`Listing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What kind of file.
    pub mode: Mode,
    /// SHA-256 of its content.
    pub sha256: Digest,
    /// Length of its content, in bytes.
    pub bytes: u64,
}

/// What is where in a tree, without the contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(BTreeMap<TreePath, Entry>);

/// A directory that holds a base tree, and its listing as of when it was read.
#[derive(Debug)]
pub struct Checkout {
    root: PathBuf,
    directory: OwnedFd,
    listing: Listing,
}

/// A directory is no tree that a patch could start from.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// Something in it cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something in it has a name that a tree cannot hold.
    #[error("`{path}` cannot be in a tree")]
    Path {
        /// Its name in the tree, escaped.
        path: String,
        /// The rule that it breaks.
        source: PathError,
    },
    /// Something in it is neither a file, a directory nor a symbolic link.
    #[error("`{path}`: expected a file, a directory or a symbolic link, found a {found}")]
    Kind {
        /// The thing.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// A file is larger than what is read into memory.
    #[error("`{path}` has {found} bytes; a file of a tree has at most {FILE_BYTES_MAX}")]
    Large {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
    },
    /// It has more than [`FILES_MAX`] files.
    #[error("`{path}` has more than {FILES_MAX} files")]
    Many {
        /// The directory.
        path: PathBuf,
    },
    /// It is not the tree that was read there before.
    #[error("`{path}` has changed: expected tree {expected}, found {found}")]
    Moved {
        /// The directory.
        path: PathBuf,
        /// The digest of then.
        expected: Digest,
        /// The digest of now.
        found: Digest,
    },
}

impl Listing {
    /// The files, in byte order of their paths.
    pub fn entries(&self) -> impl Iterator<Item = (&TreePath, &Entry)> {
        self.0.iter()
    }

    /// The file at `path`.
    #[must_use]
    pub fn entry(&self, path: &[u8]) -> Option<&Entry> {
        self.0.get(path)
    }

    /// The first path at or after `from`, in byte order.
    #[must_use]
    pub fn first_from(&self, from: &[u8]) -> Option<&TreePath> {
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        self.0.range::<[u8], _>(bounds).next().map(|(path, _)| path)
    }

    /// The digest of the tree: the same as [`Tree::digest`](crate::restore::tree::Tree::digest) of the same files.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest_with(&Changes::new())
    }

    /// The digest of the tree with `changes` made to it: only changed contents are hashed.
    #[must_use]
    pub fn digest_with(&self, changes: &Changes) -> Digest {
        let mut tree = Sha256::new();
        let mut line = String::new();
        let mut put = |path: &TreePath, mode: Mode, sha256: Digest| {
            line.clear();
            // Writing to a string does not fail.
            write!(line, "{} {sha256} ", mode.as_str()).ok();
            tree.update(&line);
            tree.update(path.as_bytes());
            tree.update([0]);
        };
        let mut changed = changes.iter().peekable();
        for (path, entry) in &self.0 {
            while let Some((before, file)) = changed.next_if(|(it, _)| *it < path) {
                if let Some(file) = file {
                    put(before, file.mode, sha256(&file.bytes));
                }
            }
            match changed.next_if(|(it, _)| *it == path) {
                Some((_, Some(file))) => put(path, file.mode, sha256(&file.bytes)),
                Some((_, None)) => {}
                None => put(path, entry.mode, entry.sha256),
            }
        }
        for (path, file) in changed {
            if let Some(file) = file {
                put(path, file.mode, sha256(&file.bytes));
            }
        }
        Digest(tree.finalize().into())
    }
}

impl Checkout {
    /// Reads the tree in `root`. A `.git` at its top is not part of it, and nothing is followed out of it.
    ///
    /// # Errors
    /// [`CheckoutError`], with the path.
    pub fn read(root: &Path) -> Result<Self, CheckoutError> {
        let failed = |source: Errno| CheckoutError::Read { path: root.to_owned(), source: source.into() };
        let directory =
            open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Permissions::empty()).map_err(failed)?;
        let mut listing = Listing::default();
        walk(root, b"", &mut listing)?;
        Ok(Self { root: root.to_owned(), directory, listing })
    }

    /// Reads the tree again: that it is what it was when it was first read is not a matter of trust.
    ///
    /// # Errors
    /// [`CheckoutError::Moved`] if it is not, any other if it cannot be read.
    pub fn verify(&self) -> Result<(), CheckoutError> {
        let now = Self::read(&self.root)?;
        if now.listing == self.listing {
            return Ok(());
        }
        let (expected, found) = (self.listing.digest(), now.listing.digest());
        Err(CheckoutError::Moved { path: self.root.clone(), expected, found })
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What is where in it.
    #[must_use]
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    fn content(&self, path: &TreePath, entry: &Entry) -> io::Result<Vec<u8>> {
        let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        if entry.mode == Mode::Symlink {
            let above = path.as_path().parent().filter(|it| *it != Path::new("")).unwrap_or(Path::new("."));
            let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(beneath);
            let above = openat2(&self.directory, above, how)?;
            let name = path.as_path().file_name().unwrap_or_default();
            return Ok(readlinkat(&above, name)?.into_vec());
        }
        // A file that has become a pipe is not waited for.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = openat2(&self.directory, path.as_path(), OpenHow::new().flags(flags).resolve(beneath))?;
        let mut bytes = Vec::new();
        Handle::from(file).take(entry.bytes + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Base for Checkout {
    fn read(&self, path: &TreePath) -> Result<Option<Cow<'_, File>>, ReadError> {
        let Some(entry) = self.listing.0.get(path) else { return Ok(None) };
        let failed = |reason: String| ReadError { path: path.clone(), reason };
        let bytes = self.content(path, entry).map_err(|error| failed(error.to_string()))?;
        let found = sha256(&bytes);
        if found != entry.sha256 {
            return Err(failed(format!("expected content {}, found {found}", entry.sha256)));
        }
        Ok(Some(Cow::Owned(File { mode: entry.mode, bytes })))
    }

    fn first_from(&self, from: &[u8]) -> Option<&TreePath> {
        self.listing.first_from(from)
    }

    fn has(&self, path: &[u8]) -> bool {
        self.listing.0.contains_key(path)
    }
}

/// Adds what is under `directory` (relative to `root`) to `listing`.
fn walk(root: &Path, directory: &[u8], listing: &mut Listing) -> Result<(), CheckoutError> {
    let at = root.join(OsStr::from_bytes(directory));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CheckoutError::Read { path, source }
    };
    for entry in fs::read_dir(&at).map_err(failed(&at))? {
        let entry = entry.map_err(failed(&at))?;
        let mut name = directory.to_vec();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(entry.file_name().as_bytes());
        if name == b".git" {
            continue;
        }
        let here = entry.path();
        let metadata = fs::symlink_metadata(&here).map_err(failed(&here))?;
        if metadata.is_dir() {
            walk(root, &name, listing)?;
            continue;
        }
        let (mode, bytes) = if metadata.is_symlink() {
            (Mode::Symlink, fs::read_link(&here).map_err(failed(&here))?.into_os_string().into_vec())
        } else if metadata.is_file() {
            if metadata.len() > FILE_BYTES_MAX as u64 {
                return Err(CheckoutError::Large { path: here, found: metadata.len() });
            }
            let executable = metadata.permissions().mode() & 0o100 != 0;
            let mode = if executable { Mode::Executable } else { Mode::Regular };
            (mode, fs::read(&here).map_err(failed(&here))?)
        } else {
            return Err(CheckoutError::Kind { path: here, found: kind(&metadata) });
        };
        let path = TreePath::new(&name).map_err(|source| CheckoutError::Path { path: text(&name), source })?;
        listing.0.insert(path, Entry { mode, sha256: sha256(&bytes), bytes: bytes.len() as u64 });
        if listing.0.len() > FILES_MAX {
            return Err(CheckoutError::Many { path: root.to_owned() });
        }
    }
    Ok(())
}

fn kind(metadata: &fs::Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    let it = metadata.file_type();
    match (it.is_fifo(), it.is_socket(), it.is_block_device()) {
        (true, ..) => "pipe",
        (_, true, _) => "socket",
        (_, _, true) => "block device",
        _ => "character device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::restore::patch::Patch;
    use crate::restore::tree::Tree;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        for (path, mode, text) in [
            ("a", Mode::Regular, "one\n"),
            ("b/c", Mode::Executable, "#!/bin/sh\n"),
            ("b/d/e", Mode::Regular, ""),
            ("b/l", Mode::Symlink, "../a"),
            ("z", Mode::Regular, "last\n"),
        ] {
            tree.insert(TreePath::new(path).unwrap(), File { mode, bytes: text.into() });
        }
        tree
    }

    fn written() -> (tempfile::TempDir, Checkout) {
        let root = tempfile::tempdir().unwrap();
        tree().write(root.path()).unwrap();
        fs::create_dir_all(root.path().join(".git/hooks")).unwrap();
        fs::create_dir(root.path().join("empty")).unwrap();
        let checkout = Checkout::read(root.path()).unwrap();
        (root, checkout)
    }

    #[test]
    fn a_tree_on_disk_and_in_memory_are_one() {
        let (_root, checkout) = written();
        assert_eq!(checkout.listing().digest(), tree().digest());
        for (path, file) in tree().files() {
            assert_eq!(checkout.read(path).unwrap().as_deref(), Some(file));
        }
        assert_eq!(checkout.read(&TreePath::new("b").unwrap()), Ok(None));
        assert_eq!(checkout.read(&TreePath::new("empty").unwrap()), Ok(None));
        let patch = "diff --git a/a b/b/new\nrename from a\nrename to b/new\n--- a/a\n+++ b/b/new\n@@ -1 +1 @@\n-one\n+two\n\
                     diff --git a/zz b/zz\nnew file mode 100644\n";
        let changes = Patch::parse(patch.as_bytes()).unwrap().apply(&checkout).unwrap();
        assert_eq!(changes, Patch::parse(patch.as_bytes()).unwrap().apply(&tree()).unwrap());
        assert_eq!(checkout.listing().digest_with(&changes), tree().with(&changes).digest());
    }

    #[test]
    fn a_base_that_moved_is_not_patched() {
        type Deed = fn(&Path) -> io::Result<()>;
        #[rustfmt::skip]
        let cases: [(&str, Deed, &str, bool); 8] = [ // deed, the file that is read, whether the reading alone sees it
            ("nothing",        |_| Ok(()),                                            "a",   false),
            ("other bytes",    |it| fs::write(it.join("a"), "two\n"),                 "a",   true),
            ("more bytes",     |it| fs::write(it.join("a"), "one\n\n"),               "a",   true),
            ("a link for it",  |it| { fs::rename(it.join("a"), it.join("b/a"))?; symlink("b/a", it.join("a")) }, "a", true),
            ("a link above",   |it| { fs::rename(it.join("b"), it.join("B"))?; symlink("B", it.join("b")) }, "b/c", true),
            ("a pipe",         |it| { fs::remove_file(it.join("a"))?; nix::unistd::mkfifo(&it.join("a"), Permissions::S_IRWXU)?; Ok(()) }, "a", true),
            ("a deletion",     |it| fs::remove_file(it.join("b/l")),                  "b/l", true),
            ("a file more",    |it| fs::write(it.join("b/new"), ""),                  "a",   false),
        ];
        for (name, deed, path, seen) in cases {
            let (root, checkout) = written();
            deed(root.path()).unwrap();
            assert_eq!(checkout.read(&TreePath::new(path).unwrap()).is_err(), seen, "{name}");
            assert_eq!(checkout.verify().is_err(), name != "nothing", "{name}");
        }
    }

    #[test]
    fn what_is_no_tree_is_refused_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sub/.git")).unwrap();
        fs::write(root.path().join("sub/.git/config"), "").unwrap();
        let message = |root: &Path| Checkout::read(root).unwrap_err().to_string();
        assert_eq!(message(root.path()), "`sub/.git/config` cannot be in a tree");
        fs::remove_dir_all(root.path().join("sub")).unwrap();
        nix::unistd::mkfifo(&root.path().join("p"), Permissions::S_IRWXU).unwrap();
        let pipe = root.path().join("p");
        let expected = format!("`{}`: expected a file, a directory or a symbolic link, found a pipe", pipe.display());
        assert_eq!(message(root.path()), expected);
        assert_eq!(message(Path::new("/nowhere/at/all")), "cannot read `/nowhere/at/all`");
    }
}
