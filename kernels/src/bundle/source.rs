//! Where a bundle's files come from: a directory, or bytes that the program carries.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::bundle::error::BundleError;
use crate::sys::map;

/// A model bundle: some named files. Nothing is opened until something asks for it.
#[derive(Clone, Debug)]
pub struct BundleSource {
    place: Place,
}

#[derive(Clone)]
enum Place {
    Directory(PathBuf),
    Memory(Vec<(String, FileBytes)>),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Memory(files) => {
                f.debug_list().entries(files.iter().map(|(name, bytes)| (name, bytes.len()))).finish()
            }
        }
    }
}

impl BundleSource {
    /// The files directly in `path`, which are mapped when they are opened.
    ///
    /// A file must not change while a network of it lives: shortening it ends the process with `SIGBUS`, rewriting it
    /// changes weights that were checked. To replace a bundle, rename a new directory over it.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self { place: Place::Directory(path.into()) }
    }

    /// Files that the program carries, by name: what `include_bytes!` returns, or bytes built at run time.
    pub fn memory<N: Into<String>, B: Into<Cow<'static, [u8]>>>(files: impl IntoIterator<Item = (N, B)>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name.into(), FileBytes::from(bytes.into())));
        Self { place: Place::Memory(files.collect()) }
    }

    /// How a message names `file` of this bundle: its path, or `embedded:file`.
    #[must_use]
    pub fn display(&self, file: &str) -> String {
        match &self.place {
            Place::Directory(directory) => directory.join(file).display().to_string(),
            Place::Memory(_) => format!("embedded:{file}"),
        }
    }

    /// The directory, if the bundle is one.
    pub(crate) fn as_directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Directory(directory) => Some(directory),
            Place::Memory(_) => None,
        }
    }

    /// Whether the bundle has a file of that name.
    #[must_use]
    pub fn contains(&self, file: &str) -> bool {
        match &self.place {
            Place::Directory(directory) => is_plain_name(file) && directory.join(file).is_file(),
            Place::Memory(files) => files.iter().any(|(name, _)| name == file),
        }
    }

    /// The bytes of one file.
    ///
    /// # Errors
    /// [`BundleError::Missing`] if the bundle has no such file, [`BundleError::Open`] if it may not be opened or
    /// mapped, [`BundleError::NotAFile`] if the name leads out of the bundle or to something other than a file.
    pub fn open(&self, file: &str) -> Result<FileBytes, BundleError> {
        let shown = || self.display(file);
        let directory = match &self.place {
            Place::Memory(files) => {
                let found = files.iter().find(|(name, _)| name == file);
                return found.map(|(_, bytes)| bytes.clone()).ok_or_else(|| BundleError::Missing { file: shown() });
            }
            Place::Directory(directory) => directory,
        };
        if !is_plain_name(file) {
            return Err(BundleError::NotAFile { file: shown() });
        }
        let path = directory.join(file);
        // Asked before opening: opening a pipe would wait for its writer.
        match path.metadata() {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(BundleError::NotAFile { file: shown() }),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(BundleError::Missing { file: shown() });
            }
            Err(source) => return Err(BundleError::Open { file: shown(), source }),
        }
        let open = || map::map(&File::open(&path)?);
        let mapped = open().map_err(|source| BundleError::Open { file: shown(), source })?;
        Ok(FileBytes(Held::Mapped(Arc::new(mapped))))
    }
}

/// A name in `model.safetensors.index.json` comes from outside: it may name a sibling, and nothing else.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// The bytes of one file: mapped, part of the program, or on the heap. A clone shares them.
#[derive(Clone)]
pub struct FileBytes(Held);

#[derive(Clone)]
enum Held {
    Mapped(Arc<Mmap>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
}

impl FileBytes {
    /// SHA-256 of these bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(&**self).into())
    }
}

impl FileBytes {
    /// The whole of an open file, mapped.
    pub(crate) fn map(file: &File) -> std::io::Result<Self> {
        map::map(file).map(|mapped| Self(Held::Mapped(Arc::new(mapped))))
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Held::Owned(bytes.into()))
    }
}

impl From<Cow<'static, [u8]>> for FileBytes {
    fn from(bytes: Cow<'static, [u8]>) -> Self {
        Self(match bytes {
            Cow::Borrowed(bytes) => Held::Static(bytes),
            Cow::Owned(bytes) => Held::Owned(bytes.into()),
        })
    }
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Mapped(map) => map,
            Held::Static(bytes) => bytes,
            Held::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// One digest over several files: SHA-256 of the lines `<sha256 in hexadecimal>  <name>`, sorted by name.
///
/// So `sha256sum FILES | sha256sum`, with the files named in order, gives the same.
#[must_use]
pub fn digest_files<'a>(files: impl IntoIterator<Item = (&'a str, Digest)>) -> Digest {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable();
    let mut hasher = Sha256::new();
    for (name, digest) in files {
        hasher.update(format!("{digest}  {name}\n"));
    }
    Digest(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_and_the_same_bytes_in_memory_are_one_bundle() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"alpha").unwrap();
        std::fs::write(directory.path().join("empty"), b"").unwrap();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        let on_disk = BundleSource::directory(directory.path());
        let held = BundleSource::memory([("a", &b"alpha"[..]), ("empty", b"")]);
        for source in [&on_disk, &held] {
            assert_eq!(&*source.open("a").unwrap(), b"alpha");
            assert_eq!(&*source.open("empty").unwrap(), b"");
            assert!(source.contains("a") && !source.contains("b") && !source.contains("sub"));
            assert!(matches!(source.open("b"), Err(BundleError::Missing { .. })));
            assert_eq!(source.open("a").unwrap().digest(), held.open("a").unwrap().digest());
        }
        for outside in ["..", "../a", "/etc/hostname", "sub", "", "."] {
            assert!(matches!(on_disk.open(outside), Err(BundleError::NotAFile { .. })), "{outside}");
        }
    }

    #[test]
    fn the_digest_is_what_sha256sum_prints() {
        let a = FileBytes::from(Cow::Borrowed(&b"alpha"[..])).digest();
        let b = FileBytes::from(Cow::Borrowed(&b"beta"[..])).digest();
        assert_eq!(a.to_string(), "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8");
        // printf '%s  a\n%s  b\n' $(printf alpha | sha256sum) ... | sha256sum
        let line = format!("{a}  a\n{b}  b\n");
        let expected = FileBytes::from(Cow::Owned(line.into_bytes())).digest();
        assert_eq!(digest_files([("b", b), ("a", a)]), expected);
    }
}
