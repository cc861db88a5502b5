//! Git diffs, read and applied exactly, and written.
//!
//! No fuzz, no offset, no three-way merge, no partial result: a hunk stands at the line that its header names, a
//! binary hunk on the object that it names, or the patch is refused. Text and binary hunks, new and deleted files,
//! renames, copies, modes, symbolic links and quoted names are applied as `git apply` does; submodules are refused by
//! name, and so is a symbolic link that would leave the repository. Lines are bytes: CRLF and a missing last newline
//! pass through.

mod apply;
mod binary;
mod parse;
mod write;

use crate::restore::path::{PathError, TreePath};
use crate::restore::tree::{Mode, ReadError};

pub use write::write;

/// Largest patch that is read: the largest real repair in the public sets is far below one MiB.
pub const PATCH_BYTES_MAX: usize = 16 << 20;
/// Largest file that a binary hunk may make: what it inflates to is not bounded by the patch's size.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// A patch, parsed: what it does to each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    parts: Vec<Part>,
}

/// What a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// The file afterwards; of a deletion, before.
    path: TreePath,
    change: Change,
    modes: Modes,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Create(Mode),
    Delete(Mode),
    Modify,
    Rename { from: TreePath },
    Copy { from: TreePath },
}

/// What a part says of the mode of a file that is there before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Modes {
    /// Nothing.
    Unsaid,
    /// It is this and stays.
    Kept(Mode),
    /// It changes.
    Changed(Mode, Mode),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Kept,
    Hunks(Vec<Hunk>),
    Binary(Binary),
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

/// A binary hunk: the objects that it goes from and to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    /// `None` where there is no file on that side.
    old: Option<ObjectId>,
    new: Option<ObjectId>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    /// The new content.
    Literal(Vec<u8>),
    /// Copies out of the old content, and insertions.
    Delta(Vec<u8>),
}

/// Git's name for a content: SHA-1 over `blob LENGTH NUL CONTENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectId([u8; 20]);

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
    /// A symbolic link would point out of the repository, or could.
    #[error("`{path}`: a symbolic link to `{target}` is refused: it may leave the repository")]
    Link {
        /// The link.
        path: TreePath,
        /// Where it would point to, escaped.
        target: String,
    },
    /// Two parts of the patch move one file away.
    #[error("`{path}` is renamed or deleted twice")]
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
    /// The patch changes, moves or deletes a file that is not there.
    #[error("`{path}`: expected a file to change; found none")]
    Missing {
        /// The file.
        path: TreePath,
    },
    /// The file is there and cannot be used.
    #[error(transparent)]
    Read(#[from] ReadError),
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
    /// The file is not the object that a binary hunk starts from, or does not become the one that it names.
    #[error("`{path}`: expected object {expected} {side} the binary hunk, found {found}")]
    Object {
        /// The file.
        path: TreePath,
        /// `before` or `after`.
        side: &'static str,
        /// The patch's, 40 hexadecimal digits.
        expected: String,
        /// The file's.
        found: String,
    },
    /// A binary delta does not fit the file.
    #[error("`{path}`: the binary delta {fault}")]
    Delta {
        /// The file.
        path: TreePath,
        /// What is wrong with it.
        fault: &'static str,
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
    /// The files that it touches, each once, in its own order: those that it makes, changes or takes away. The source
    /// of a copy is not touched.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        let all = self.parts.iter().enumerate().flat_map(|(index, part)| {
            let from = match &part.change {
                Change::Rename { from } => Some(from),
                _ => None,
            };
            from.into_iter().chain([&part.path]).map(move |path| (index, path))
        });
        all.filter(|(index, path)| !self.parts[..*index].iter().any(|it| it.touches(path))).map(|(_, path)| path)
    }
}

impl Part {
    fn touches(&self, path: &TreePath) -> bool {
        self.path == *path || matches!(&self.change, Change::Rename { from } if from == path)
    }
}

#[cfg(test)]
mod tests;
