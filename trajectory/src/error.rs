//! Why a file was refused: which file, which place, what was expected, what was found.

use tack_core::MenuError;

use crate::format::Format;

/// A file was refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{file}`")]
pub struct ReadError {
    /// The name that the caller gave for the file.
    pub file: String,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a file, or with what was asked of it. One variant a failed step.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file has no byte but white space.
    #[error("the file is empty")]
    Empty,
    /// Not JSON, or JSON that we refuse: nested over 128 deep, or an object that has a key twice.
    #[error("line {line}, column {column} is not readable JSON: {reason}")]
    NotJson {
        /// From 1, in the whole file.
        line: usize,
        /// From 1, in bytes.
        column: usize,
        /// The parser's words.
        reason: String,
    },
    /// A value of the wrong kind.
    #[error("`{path}` should be {expected}; found {found}")]
    WrongType {
        /// Where, as `messages[3].content`; rows of a file of JSON lines are `[0]`, `[1]`, and so on.
        path: String,
        /// What the format has there.
        expected: &'static str,
        /// What kind of value stands there.
        found: String,
    },
    /// A field that the format always has is not there.
    #[error("`{path}` is missing; expected {expected}")]
    Missing {
        /// Where it should be.
        path: String,
        /// What the format has there.
        expected: &'static str,
    },
    /// None of the formats that this crate reads.
    #[error("not a format that can be read ({found}); known are {}", Format::names())]
    UnknownFormat {
        /// What the file looks like.
        found: String,
    },
    /// A known format in a version that nobody here has read.
    #[error("{format} says version `{found}`; known are {known}")]
    UnknownVersion {
        /// The format's name.
        format: &'static str,
        /// The version that the file states.
        found: String,
        /// The versions that have a reader.
        known: &'static str,
    },
    /// A well-known file that holds no decision state.
    #[error("this is {what}: it holds no decision state. {mend}")]
    NoState {
        /// What it is.
        what: &'static str,
        /// Where a state is to be had.
        mend: &'static str,
    },
    /// No row has the instance that was asked for.
    #[error("no row for the instance `{asked}`; the file has {}", list_of(ids))]
    UnknownInstance {
        /// The id that was asked for.
        asked: String,
        /// The ids of the file, in order.
        ids: Vec<String>,
    },
    /// The step is past the last decision point.
    #[error("there is no decision point after step {asked}; the file has {points}")]
    UnknownStep {
        /// The step that was asked for.
        asked: u32,
        /// Which there are, in words.
        points: String,
    },
    /// The final submission is known, but using it at an earlier step would be a look into the future.
    #[error(
        "no patch was recorded at step {step}, and what was submitted at the end may not be used before the end. \
         Give the patch as it stood then (`--patch FILE`), or leave `--at` out"
    )]
    PatchNotRecorded {
        /// The step that was asked for.
        step: u32,
    },
    /// A menu over its bounds.
    #[error("the menu is over its bounds")]
    Menu(#[source] MenuError),
    /// Bytes in base64 that are not base64.
    #[error("`{path}` should be standard base64 with padding")]
    Base64 {
        /// Where it stands.
        path: String,
    },
    /// A field that the format does not have; our own forms refuse it.
    #[error("`{path}` is not a field of {format}, which has {known}")]
    UnknownField {
        /// Where it stands.
        path: String,
        /// The format's name and version.
        format: &'static str,
        /// The fields that may stand there.
        known: String,
    },
    /// A number or a name outside of what the field can hold.
    #[error("`{path}` should be {expected}; found `{found}`")]
    OutOfRange {
        /// Where it stands.
        path: String,
        /// What the field can hold.
        expected: &'static str,
        /// What was found.
        found: String,
    },
}

fn list_of(ids: &[String]) -> String {
    if ids.is_empty() { "no instance id".to_owned() } else { ids.join(", ") }
}
