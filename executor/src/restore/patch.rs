//! Unified git diffs, applied exactly.
//!
//! No fuzz, no offset, no partial result: a hunk stands at the line that its header names, or the patch is refused.
//! Renames, copies, binary hunks, symbolic links and submodules are refused by name; text hunks, new and deleted
//! files and the executable bit are applied. Lines are bytes: CRLF and a missing last newline pass through.

use std::str;

use crate::restore::tree::{File, Mode, PathError, Tree, TreePath};

/// Largest patch that is read: the largest real repair in the public sets is far below one MiB.
pub const PATCH_BYTES_MAX: usize = 16 << 20;
/// How much of a line an error shows.
const SHOWN_CHARS: usize = 120;

/// A patch, parsed: what it does to each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    files: Vec<FilePatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FilePatch {
    path: TreePath,
    change: Change,
    hunks: Vec<Hunk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create(Mode),
    Delete(Mode),
    Modify { modes: Option<(Mode, Mode)> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hunk {
    /// 0-based index of its first line in the file as it was, and as it will be.
    old_start: usize,
    new_start: usize,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    kind: Kind,
    /// With its newline, if it has one.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Context,
    Removed,
    Added,
}

/// Why a patch was refused. Lines count from 1; `hunk` counts from 1 within its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It is larger than [`PATCH_BYTES_MAX`].
    #[error("the patch has {found} bytes; at most {PATCH_BYTES_MAX} are read")]
    Size {
        /// Its bytes.
        found: usize,
    },
    /// A line is not what a git diff has there.
    #[error("line {line} of the patch: expected {expected}, found {found}")]
    Syntax {
        /// Line of the patch.
        line: usize,
        /// What the format asks for.
        expected: &'static str,
        /// The line, or the end.
        found: String,
    },
    /// A kind of change that is refused, whatever it would do.
    #[error("line {line} of the patch: {what} is refused")]
    Refused {
        /// Line of the patch.
        line: usize,
        /// The kind of change.
        what: &'static str,
    },
    /// A path that leaves the repository or reaches its git directory.
    #[error("line {line} of the patch: the path `{path}` is refused")]
    Path {
        /// Line of the patch.
        line: usize,
        /// The path, as the patch has it, with control characters escaped.
        path: String,
        /// The rule that it breaks.
        source: PathError,
    },
    /// Two parts of the patch are about one file.
    #[error("`{path}` is patched twice")]
    Twice {
        /// The file.
        path: TreePath,
    },
    /// The patch creates a file that is there.
    #[error("`{path}`: expected no file, since the patch creates it; found one")]
    Exists {
        /// The file.
        path: TreePath,
    },
    /// The patch changes or deletes a file that is not there.
    #[error("`{path}`: expected a file to change; found none")]
    Missing {
        /// The file.
        path: TreePath,
    },
    /// The file's mode is not the one that the patch starts from.
    #[error("`{path}`: expected mode {expected}, found {found}")]
    Mode {
        /// The file.
        path: TreePath,
        /// The patch's.
        expected: &'static str,
        /// The tree's.
        found: &'static str,
    },
    /// A line of the file is not the one that the hunk names.
    #[error("`{path}`, hunk {hunk}: line {line} should be {expected}; found {found}")]
    Hunk {
        /// The file.
        path: TreePath,
        /// Which hunk.
        hunk: usize,
        /// Line of the file as it was.
        line: usize,
        /// The hunk's line, quoted.
        expected: String,
        /// The file's line, quoted, or its end.
        found: String,
    },
    /// A hunk starts before the one above it ends, or its new position does not follow from its old one.
    #[error("`{path}`, hunk {hunk}: expected to start at new line {expected}, found {found}")]
    Order {
        /// The file.
        path: TreePath,
        /// Which hunk.
        hunk: usize,
        /// Where it would have to start.
        expected: usize,
        /// Where it says that it starts.
        found: usize,
    },
    /// A deletion that leaves lines behind.
    #[error("`{path}`: expected the deletion to cover the file; {found} bytes are left")]
    Remainder {
        /// The file.
        path: TreePath,
        /// Bytes that the hunks do not remove.
        found: usize,
    },
    /// A file would also have to be a directory.
    #[error("`{file}` is a file, and `{under}` needs it as a directory")]
    Collision {
        /// The file.
        file: String,
        /// The path under it.
        under: TreePath,
    },
}

impl Patch {
    /// Reads a unified git diff; no bytes at all are the empty patch.
    ///
    /// # Errors
    /// [`PatchError`], with the line of the patch.
    pub fn parse(bytes: &[u8]) -> Result<Self, PatchError> {
        if bytes.len() > PATCH_BYTES_MAX {
            return Err(PatchError::Size { found: bytes.len() });
        }
        let mut lines = Lines { rest: bytes, number: 0 };
        let mut files: Vec<FilePatch> = Vec::new();
        while lines.peek().is_some() {
            let file = file_patch(&mut lines)?;
            if files.iter().any(|it| it.path == file.path) {
                return Err(PatchError::Twice { path: file.path });
            }
            files.push(file);
        }
        Ok(Self { files })
    }

    /// The files that it touches, in its own order.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.files.iter().map(|it| &it.path)
    }

    /// The tree after the patch; `base` is left as it is.
    ///
    /// # Errors
    /// [`PatchError`], with file, hunk, and what was expected and found.
    pub fn apply(&self, base: &Tree) -> Result<Tree, PatchError> {
        let mut tree = base.clone();
        for file in &self.files {
            file.apply(&mut tree)?;
        }
        match tree.collision() {
            Some((file, under)) => Err(PatchError::Collision { file: file.to_owned(), under: under.clone() }),
            None => Ok(tree),
        }
    }
}

impl FilePatch {
    fn apply(&self, tree: &mut Tree) -> Result<(), PatchError> {
        let path = || self.path.clone();
        let old = tree.remove(&self.path);
        let (old, mode) = match (self.change, old) {
            (Change::Create(_), Some(_)) => return Err(PatchError::Exists { path: path() }),
            (Change::Create(mode), None) => (Vec::new(), mode),
            (_, None) => return Err(PatchError::Missing { path: path() }),
            (Change::Delete(mode), Some(old)) => (old.bytes, self.expect_mode(mode, old.mode)?),
            (Change::Modify { modes: None }, Some(old)) => (old.bytes, old.mode),
            (Change::Modify { modes: Some((from, to)) }, Some(old)) => {
                self.expect_mode(from, old.mode)?;
                (old.bytes, to)
            }
        };
        let new = self.apply_hunks(&old)?;
        if !matches!(self.change, Change::Delete(_)) {
            tree.insert(path(), File { mode, bytes: new });
        } else if !new.is_empty() {
            return Err(PatchError::Remainder { path: path(), found: new.len() });
        }
        Ok(())
    }

    fn expect_mode(&self, expected: Mode, found: Mode) -> Result<Mode, PatchError> {
        if expected == found {
            return Ok(found);
        }
        Err(PatchError::Mode { path: self.path.clone(), expected: expected.as_str(), found: found.as_str() })
    }

    fn apply_hunks(&self, old: &[u8]) -> Result<Vec<u8>, PatchError> {
        let old: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
        let (mut new, mut at, mut new_lines) = (Vec::with_capacity(old.len()), 0, 0);
        for (index, hunk) in self.hunks.iter().enumerate() {
            let number = index + 1;
            // What stands between two hunks is kept; a hunk beyond the end meets no line below, and says so.
            let kept = old.get(at..hunk.old_start.min(old.len())).unwrap_or_default();
            new.extend(kept.iter().copied().flatten().copied());
            new_lines += kept.len();
            at += kept.len();
            if (at, new_lines) != (hunk.old_start, hunk.new_start) {
                let found = hunk.new_start + 1;
                return Err(PatchError::Order {
                    path: self.path.clone(),
                    hunk: number,
                    expected: new_lines + 1,
                    found,
                });
            }
            for line in &hunk.lines {
                if line.kind != Kind::Added {
                    let found = old.get(at).copied();
                    if found != Some(line.bytes.as_slice()) {
                        return Err(PatchError::Hunk {
                            path: self.path.clone(),
                            hunk: number,
                            line: at + 1,
                            expected: shown(Some(&line.bytes)),
                            found: shown(found),
                        });
                    }
                    at += 1;
                }
                if line.kind != Kind::Removed {
                    new.extend_from_slice(&line.bytes);
                    new_lines += 1;
                }
            }
        }
        new.extend(old.get(at..).unwrap_or_default().iter().copied().flatten().copied());
        Ok(new)
    }
}

/// The lines of a patch, with their numbers.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    /// The next line without its newline.
    fn peek(&self) -> Option<&'a [u8]> {
        (!self.rest.is_empty()).then(|| self.rest.split(|byte| *byte == b'\n').next().unwrap_or_default())
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.peek()?;
        self.rest = self.rest.get(line.len() + 1..).unwrap_or_default();
        self.number += 1;
        Some(line)
    }

    /// An error about the line that comes next.
    fn expected(&self, expected: &'static str) -> PatchError {
        PatchError::Syntax { line: self.number + 1, expected, found: shown(self.peek()) }
    }

    fn refused(&self, what: &'static str) -> PatchError {
        PatchError::Refused { line: self.number + 1, what }
    }

    /// Takes the next line if it starts so, and answers with the rest of it.
    fn take(&mut self, prefix: &str) -> Option<&'a [u8]> {
        let rest = self.peek()?.strip_prefix(prefix.as_bytes())?;
        self.next();
        Some(rest)
    }
}

/// A line for a message: quoted, cut, and with nothing that a terminal would obey.
fn shown(line: Option<&[u8]>) -> String {
    let Some(line) = line else { return "the end".to_owned() };
    let text = String::from_utf8_lossy(line);
    let mut cut: String = text.chars().take(SHOWN_CHARS).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// One file's part: the header, the modes, the two names, the hunks.
fn file_patch(lines: &mut Lines<'_>) -> Result<FilePatch, PatchError> {
    let path = header_path(lines)?;
    let change = extended_header(lines)?;
    let mut hunks = Vec::new();
    if lines.peek().is_some_and(|it| it.starts_with(b"--- ")) {
        expect_name(lines, "--- ", "a/", &path, matches!(change, Change::Create(_)))?;
        expect_name(lines, "+++ ", "b/", &path, matches!(change, Change::Delete(_)))?;
        while lines.peek().is_some_and(|it| it.starts_with(b"@@")) {
            hunks.push(hunk(lines)?);
        }
        if hunks.is_empty() {
            return Err(lines.expected("a hunk (`@@ -l,n +l,n @@`)"));
        }
    }
    if hunks.is_empty() && change == (Change::Modify { modes: None }) {
        return Err(lines.expected("a change of the file that the lines above name"));
    }
    Ok(FilePatch { path, change, hunks })
}

/// `diff --git a/PATH b/PATH`: one path twice, since renames are refused.
fn header_path(lines: &mut Lines<'_>) -> Result<TreePath, PatchError> {
    const EXPECTED: &str = "`diff --git a/PATH b/PATH`, twice the same path";
    let line = lines.number + 1;
    let Some(names) = lines.peek().and_then(|it| it.strip_prefix(b"diff --git ")) else {
        return Err(lines.expected(EXPECTED));
    };
    if names.starts_with(b"\"") {
        return Err(lines.refused("a quoted file name"));
    }
    // `a/` P ` b/` P: the halves have one length, so a path with spaces needs no guess.
    let half = names.len().saturating_sub(1) / 2;
    let (old, new) = names.split_at(half);
    let path = match (old.strip_prefix(b"a/"), new.strip_prefix(b" b/")) {
        (Some(old), Some(new)) if old == new => {
            str::from_utf8(old).map_err(|_| lines.refused("a name not in UTF-8"))?
        }
        _ if names.starts_with(b"a/") && names.windows(3).any(|it| it == b" b/") => {
            return Err(lines.refused("a rename, a copy, or two different names"));
        }
        _ => return Err(lines.expected(EXPECTED)),
    };
    lines.next();
    TreePath::new(path).map_err(|source| PatchError::Path { line, path: path.escape_debug().to_string(), source })
}

/// The lines between the header and the names: modes and object names.
fn extended_header(lines: &mut Lines<'_>) -> Result<Change, PatchError> {
    let mut change = Change::Modify { modes: None };
    let mut old_mode = None;
    while let Some(line) = lines.peek() {
        let fresh = change == (Change::Modify { modes: None }) && old_mode.is_none();
        if line.starts_with(b"new file mode ") && fresh {
            change = Change::Create(mode(lines, "new file mode ")?);
        } else if line.starts_with(b"deleted file mode ") && fresh {
            change = Change::Delete(mode(lines, "deleted file mode ")?);
        } else if line.starts_with(b"old mode ") && fresh {
            old_mode = Some(mode(lines, "old mode ")?);
            if !lines.peek().is_some_and(|it| it.starts_with(b"new mode ")) {
                return Err(lines.expected("`new mode`, after `old mode`"));
            }
        } else if line.starts_with(b"new mode ") && change == (Change::Modify { modes: None }) {
            let Some(from) = old_mode.take() else { return Err(lines.expected("`old mode` before `new mode`")) };
            change = Change::Modify { modes: Some((from, mode(lines, "new mode ")?)) };
        } else if let Some(objects) = line.strip_prefix(b"index ") {
            // The third word repeats the mode of a file whose mode stays: 120000 is a link, 160000 a submodule.
            if objects.ends_with(b" 120000") {
                return Err(lines.refused("a symbolic link"));
            } else if objects.ends_with(b" 160000") {
                return Err(lines.refused("a submodule"));
            }
            lines.next();
        } else if line.starts_with(b"GIT binary patch") || line.starts_with(b"Binary files ") {
            return Err(lines.refused("a binary change"));
        } else if [&b"rename "[..], b"copy ", b"similarity ", b"dissimilarity "].iter().any(|it| line.starts_with(it)) {
            return Err(lines.refused("a rename or a copy"));
        } else {
            break;
        }
    }
    Ok(change)
}

fn mode(lines: &mut Lines<'_>, prefix: &str) -> Result<Mode, PatchError> {
    let found = lines.peek().and_then(|it| it.strip_prefix(prefix.as_bytes()));
    let mode = match found {
        Some(b"100644") => Mode::Regular,
        Some(b"100755") => Mode::Executable,
        Some(b"120000") => return Err(lines.refused("a symbolic link")),
        Some(b"160000") => return Err(lines.refused("a submodule")),
        _ => return Err(lines.expected("a mode, 100644 or 100755")),
    };
    lines.next();
    Ok(mode)
}

/// `--- a/PATH` or `+++ b/PATH`, or `/dev/null` where there is no such side; git ends a name with spaces by a tab.
fn expect_name(
    lines: &mut Lines<'_>,
    marker: &'static str,
    side: &str,
    path: &TreePath,
    absent: bool,
) -> Result<(), PatchError> {
    let expected = if absent { "/dev/null".to_owned() } else { format!("{side}{path}") };
    let before = (lines.rest, lines.number);
    match lines.take(marker).map(|it| it.strip_suffix(b"\t").unwrap_or(it)) {
        Some(found) if found == expected.as_bytes() => Ok(()),
        _ => {
            (lines.rest, lines.number) = before;
            Err(lines.expected(match (marker, absent) {
                ("--- ", false) => "`--- a/PATH` with the path of the header",
                ("--- ", true) => "`--- /dev/null`, since the file is new",
                (_, false) => "`+++ b/PATH` with the path of the header",
                (_, true) => "`+++ /dev/null`, since the file is deleted",
            }))
        }
    }
}

/// One hunk: its header, then exactly as many lines as the header counts.
fn hunk(lines: &mut Lines<'_>) -> Result<Hunk, PatchError> {
    const HEADER: &str = "a hunk header (`@@ -l,n +l,n @@`)";
    let ((old_start, mut old_left), (new_start, mut new_left)) =
        lines.peek().and_then(hunk_ranges).ok_or_else(|| lines.expected(HEADER))?;
    lines.next();
    let mut body: Vec<Line> = Vec::new();
    while old_left > 0 || new_left > 0 {
        let line = lines.peek().ok_or_else(|| lines.expected("the rest of the hunk"))?;
        let (kind, old, new) = match line.first() {
            Some(b' ') => (Kind::Context, 1, 1),
            Some(b'-') => (Kind::Removed, 1, 0),
            Some(b'+') => (Kind::Added, 0, 1),
            _ => return Err(lines.expected("a line of the hunk, starting with ` `, `-` or `+`")),
        };
        let (Some(old), Some(new)) = (old_left.checked_sub(old), new_left.checked_sub(new)) else {
            return Err(lines.expected("as many lines as the hunk's header counts"));
        };
        (old_left, new_left) = (old, new);
        let mut bytes = line.get(1..).unwrap_or_default().to_vec();
        lines.next();
        if lines.take("\\ ").is_none() {
            bytes.push(b'\n');
        }
        body.push(Line { kind, bytes });
    }
    Ok(Hunk { old_start, new_start, lines: body })
}

/// `(start, count)` of both sides, starts 0-based. An empty side's header names the line before it.
fn hunk_ranges(line: &[u8]) -> Option<((usize, usize), (usize, usize))> {
    let text = str::from_utf8(line.strip_prefix(b"@@ -")?.split(|byte| *byte == b'@').next()?).ok()?;
    let (old, new) = text.strip_suffix(' ')?.split_once(" +")?;
    let range = |text: &str| {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        let number = |digits: &str| {
            // `parse` alone would take a plus sign.
            digits.bytes().all(|it| it.is_ascii_digit()).then(|| digits.parse::<u32>().ok()).flatten()
        };
        let (start, count) = (number(start)? as usize, number(count)? as usize);
        Some((if count == 0 { start } else { start.checked_sub(1)? }, count))
    };
    Some((range(old)?, range(new)?))
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
