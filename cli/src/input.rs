//! Reading what the command line names: regular files and standard input, each up to a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// What is read, and how much of it at most: far above anything real, far below what would exhaust a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    name: &'static str,
    most_bytes: u64,
}

/// The largest public recordings are some tens of megabytes; a single observation may be 100 MB.
pub(crate) const RECORDING: Kind = Kind { name: "a recording", most_bytes: 512 << 20 };
/// A patch of this size changes more than a million lines.
pub(crate) const PATCH: Kind = Kind { name: "a patch", most_bytes: 64 << 20 };
/// A list of tasks with their issues: the largest public one is a few megabytes.
pub(crate) const ISSUE: Kind = Kind { name: "an issue or a list of tasks", most_bytes: 64 << 20 };
/// At most 25 test names.
pub(crate) const MENU: Kind = Kind { name: "a menu", most_bytes: 1 << 20 };

/// Why a file could not be read into memory.
#[derive(Debug, thiserror::Error)]
enum InputError {
    #[error("cannot open `{}`", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("`{}` is not a regular file; to read from a pipe, give `-` for standard input", path.display())]
    NotAFile { path: PathBuf },
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is larger than {name} may be: {most_bytes} bytes", path.display())]
    TooLarge { path: PathBuf, name: &'static str, most_bytes: u64 },
}

/// Reads a regular file, or standard input where `path` is `-`.
pub(crate) fn read(path: &Path, kind: Kind) -> Result<Vec<u8>, Failure> {
    if path == Path::new("-") {
        return bounded(io::stdin().lock(), 0, path, kind).map_err(Failure::bad_input);
    }
    let open = || -> Result<Vec<u8>, InputError> {
        let failed = |source| InputError::Open { path: path.to_owned(), source };
        // Looked at before it is opened: opening a FIFO waits for a writer, and a device may act on being opened.
        if !path.metadata().map_err(failed)?.is_file() {
            return Err(InputError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        bounded(file, metadata.len(), path, kind)
    };
    open().map_err(Failure::bad_input)
}

fn bounded(from: impl Read, expected_bytes: u64, path: &Path, kind: Kind) -> Result<Vec<u8>, InputError> {
    let too_large = || InputError::TooLarge { path: path.to_owned(), name: kind.name, most_bytes: kind.most_bytes };
    if expected_bytes > kind.most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // Room for what the file says it has; a file that cannot have it is read without the reserve.
    drop(bytes.try_reserve_exact(usize::try_from(expected_bytes).unwrap_or(0)));
    // A file may have grown, or say 0 as those under /proc do: the bound counts, not the size.
    let read = from.take(kind.most_bytes + 1).read_to_end(&mut bytes);
    read.map_err(|source| InputError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > kind.most_bytes { Err(too_large()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_whatever_the_size_says() {
        let kind = Kind { name: "a test", most_bytes: 4 };
        let path = Path::new("x");
        #[rustfmt::skip]
        let cases: [(&[u8], u64, bool); 5] = [ // content, size as stated, read
            (b"",      0, true),
            (b"1234",  4, true),
            (b"1234",  0, true),
            (b"12345", 0, false),
            (b"1",     5, false),
        ];
        for (content, stated, fits) in cases {
            let found = bounded(content, stated, path, kind);
            assert_eq!(found.is_ok(), fits, "{content:?}, stated {stated}");
            if let Err(error) = found {
                assert_eq!(error.to_string(), "`x` is larger than a test may be: 4 bytes");
            }
        }
    }
}
