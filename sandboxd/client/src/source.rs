//! The host's side of a mount: a name that is opened once, or what was opened already.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, open, readlink};
use nix::sys::stat::Mode;

/// What is shown of the host. A name is resolved once, by this process and with its rights, when the run is asked for;
/// from there on only the descriptor travels, so that nobody can redirect it between two looks.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file or directory by name; symbolic links in it are followed.
    Path(PathBuf),
    /// A file or directory that is open already, with `O_PATH` or for reading.
    Open(Arc<OwnedFd>),
}

/// The host's side of a mount cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot show `{path}` in a sandbox")]
pub struct SourceError {
    /// Its name.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl Source {
    /// Opens `path`, following symbolic links.
    ///
    /// # Errors
    /// [`SourceError`] where it is not there, or may not be reached.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        Ok(Self::Open(opened(path)?))
    }

    /// Where an open source is, as the kernel names it now. It is for a person to read and says nothing lasting: the
    /// thing can be moved.
    ///
    /// # Errors
    /// Where `/proc` is not there.
    pub fn name(&self) -> io::Result<PathBuf> {
        match self {
            Self::Path(path) => Ok(path.clone()),
            Self::Open(fd) => {
                let link: OsString = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())?;
                Ok(link.into())
            }
        }
    }

    pub(crate) fn descriptor(&self) -> Result<Arc<OwnedFd>, SourceError> {
        match self {
            Self::Path(path) => opened(path),
            Self::Open(fd) => Ok(Arc::clone(fd)),
        }
    }
}

fn opened(path: &Path) -> Result<Arc<OwnedFd>, SourceError> {
    match open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Arc::new(fd)),
        Err(errno) => Err(SourceError { path: path.to_owned(), source: errno.into() }),
    }
}

impl<T: Into<PathBuf>> From<T> for Source {
    fn from(path: T) -> Self {
        Self::Path(path.into())
    }
}
