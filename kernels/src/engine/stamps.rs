//! Remembers the digests of a bundle's files, so that the next start need not read a gigabyte to know what it has.
//!
//! A file whose length, times, inode and device are those of before is the file of before: whatever changes its bytes sets
//! its change time, which no program can set at will. The memo is a cache: if it is missing, unreadable or about other
//! files, the files are hashed again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::bundle::FileBytes;

/// How the memo's name begins and ends; in a bundle nothing stands between, elsewhere what tells bundles apart.
const PREFIX: &str = "tack-engine";
const SUFFIX: &str = ".stamps";

/// Bytes of a memo, at most: some hundred files of some hundred bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What the system says about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    name: String,
    length: u64,
    /// Seconds and nanoseconds of the last change of its bytes, then of anything about it.
    times: [i64; 4],
    inode: u64,
    device: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    stamp: Stamp,
    digest: Digest,
}

impl Stamp {
    #[cfg(unix)]
    fn of(directory: &Path, name: &str) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let it = fs::metadata(directory.join(name))?;
        Ok(Self {
            name: name.to_owned(),
            length: it.len(),
            times: [it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec()],
            inode: it.ino(),
            device: it.dev(),
        })
    }

    #[cfg(not(unix))]
    fn of(_: &Path, _: &str) -> io::Result<Self> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// The digests of `files`, in their order, from the memo; those that it does not know are computed and remembered.
///
/// Returns also whether any had to be computed.
pub(crate) fn digests(directory: &Path, places: &[&Path], files: &[(String, FileBytes)]) -> (Vec<Digest>, bool) {
    let memos: Vec<PathBuf> = places.iter().filter_map(|place| memo(directory, place)).collect();
    let stamps = || files.iter().map(|(name, _)| Stamp::of(directory, name).ok()).collect::<Vec<_>>();
    let before = stamps();
    let known: Vec<Line> = memos.iter().filter_map(|path| read(path)).flatten().collect();
    let recall =
        |stamp: &Option<Stamp>| known.iter().find(|line| Some(&line.stamp) == stamp.as_ref()).map(|it| it.digest);
    let recalled: Vec<_> = before.iter().map(recall).collect();
    if recalled.iter().all(Option::is_some) {
        return (recalled.into_iter().flatten().collect(), false);
    }
    let digests: Vec<Digest> =
        recalled.iter().zip(files).map(|(known, (_, bytes))| known.unwrap_or_else(|| bytes.digest())).collect();
    // A file that changed while it was read has no digest to remember.
    if before == stamps() {
        let lines = before.into_iter().flatten().zip(&digests).map(|(stamp, &digest)| Line { stamp, digest });
        let lines: Vec<Line> = lines.collect();
        if lines.len() == files.len() {
            // What cannot be remembered is computed again.
            let _written = memos.iter().any(|path| write(path, &lines).is_ok());
        }
    }
    (digests, true)
}

/// Where the memo about `bundle` lies in `place`.
fn memo(bundle: &Path, place: &Path) -> Option<PathBuf> {
    if bundle == place {
        return Some(place.join(format!("{PREFIX}{SUFFIX}")));
    }
    let path = fs::canonicalize(bundle).ok()?;
    let digest = Digest(Sha256::digest(path.as_os_str().as_encoded_bytes()).into()).to_string();
    Some(place.join(format!("{PREFIX}.{}{SUFFIX}", &digest[..16])))
}

fn read(path: &Path) -> Option<Vec<Line>> {
    if fs::metadata(path).ok()?.len() > BYTES_MAX {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write(path: &Path, lines: &[Line]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, serde_json::to_vec(lines)?)?;
    fs::rename(&partial, path).inspect_err(|_| drop(fs::remove_file(&partial)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &Path) -> Vec<(String, FileBytes)> {
        ["a", "b"]
            .map(|name| (name.to_owned(), fs::read(directory.join(name)).unwrap()))
            .map(|(name, bytes)| (name, bytes.into()))
            .into()
    }

    #[cfg(unix)]
    #[test]
    fn remembers_until_a_file_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("a"), b"alpha").unwrap();
        fs::write(path.join("b"), b"beta").unwrap();
        let expected: Vec<_> = open(path).iter().map(|(_, bytes)| bytes.digest()).collect();
        assert_eq!(digests(path, &[path], &open(path)), (expected.clone(), true));
        assert_eq!(digests(path, &[path], &open(path)), (expected.clone(), false));
        // Elsewhere, where the bundle takes no file; a folder that is not there is made.
        let (nowhere, other) = (Path::new("/dev/null/none"), path.join("cache/of/tack"));
        for computed in [true, false] {
            assert_eq!(digests(path, &[nowhere, &other], &open(path)), (expected.clone(), computed));
        }

        // The same length, and the times of before.
        let times = fs::metadata(path.join("a")).unwrap().modified().unwrap();
        fs::write(path.join("a"), b"ALPHA").unwrap();
        fs::File::options().write(true).open(path.join("a")).unwrap().set_modified(times).unwrap();
        let (changed, computed) = digests(path, &[path], &open(path));
        assert!(computed && changed[0] != expected[0] && changed[1] == expected[1]);

        for damage in [&b""[..], b"[", b"[{}]", b"\xff\xff"] {
            fs::write(path.join("tack-engine.stamps"), damage).unwrap();
            assert_eq!(digests(path, &[path], &open(path)), (changed.clone(), true));
        }
    }
}
