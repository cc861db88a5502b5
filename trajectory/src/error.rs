//! Why a file was refused: which file, which place, what was expected, what was found.

use tack_core::MenuError;

use crate::format::Format;
use crate::shown::{Listed, Shown};

/// A file was refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`", Shown(file))]
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
    /// No JSON from its first byte on: what else it is, and what to do about it.
    #[error("this is {what}, and no recording in JSON. {mend}; known are {}", Format::names())]
    NotARecording {
        /// What it looks like.
        what: &'static str,
        /// What to do with it.
        mend: &'static str,
    },
    /// JSON with a fault in it, or JSON that we refuse: nested over 128 deep, or an object that has a key twice.
    #[error("line {line}, column {column} is not readable JSON: {reason}")]
    NotJson {
        /// From 1, in the whole file.
        line: usize,
        /// From 1, in bytes.
        column: usize,
        /// What was expected there, and what was found.
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
    /// Several states of our own form.
    #[error("more than one state stands in the file; give one state a file")]
    SeveralStates,
    /// A field that the format always has is not there.
    #[error("`{path}` is missing; expected {expected}")]
    Missing {
        /// Where it should be.
        path: String,
        /// What the format has there.
        expected: &'static str,
    },
    /// None of the formats that this crate reads.
    #[error("not a format that can be read ({}); known are {}", Shown(found), Format::names())]
    UnknownFormat {
        /// What the file looks like.
        found: String,
    },
    /// A known format in a version that nobody here has read.
    #[error("{format} says version `{}`; known are {known}", Shown(found))]
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
    #[error("no row for the instance `{}`; the file has {}", Shown(asked), Listed(ids))]
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
    /// What stands in the file was chosen when the run was over, so nothing in it is as it stood earlier.
    #[error(
        "the run has several attempts, and which of them stands in the file was decided after the last one: that may \
         not be used at step {step}. Leave `--at` out, or give a file of one attempt"
    )]
    ChosenAfterwards {
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
    #[error("`{path}` should be {expected}; found `{}`", Shown(found))]
    OutOfRange {
        /// Where it stands.
        path: String,
        /// What the field can hold.
        expected: &'static str,
        /// What was found.
        found: String,
    },
}
