//! Reads what other agents recorded: decision states and candidates out of their files.
#![forbid(unsafe_code)]

pub mod error;
pub mod format;
pub mod gap;
pub mod state;
pub mod state_json;
pub mod usage;

mod base64;
mod issue;
mod json;
mod mend;
mod recognize;
mod recording;
mod rows;

mod message;
mod reason;
mod shell;
mod time;

mod atif;
mod mini;
mod mini2;
mod openhands_output;
mod openhands_sdk;
mod predictions;
mod swe_agent;
mod trae;

pub use error::{Problem, ReadError};
pub use format::Format;
pub use gap::{About, Cause, Gap};
pub use issue::IssueFile;
pub use state::{Hidden, Lent, OwnedMenu, OwnedObservation, OwnedState, Saved};
pub use usage::{OutputTokens, RunTotals, Usage};

/// What the caller asks of a file, and what it knows beside it.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Which row of a file that has several; the first one where `None`. An id that several rows or candidates
    /// share takes `ID#1`, `ID#2`, ... for the later ones.
    pub instance: Option<&'a str>,
    /// The decision point stands after this step, from 0; the default point where `None`.
    pub at: Option<u32>,
    /// The patch as it stood at the decision point, in place of what the file says.
    pub patch: Option<&'a [u8]>,
    /// The issue, in place of what the file says.
    pub issue: Option<IssueFile<'a>>,
    /// The public-test menu, which no recording has.
    pub menu: Option<OwnedMenu>,
}

/// A state out of a file, and everything that a person should hear about where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The state at the decision point.
    pub state: OwnedState,
    /// What its candidate is restored from: see [`OwnedState::lend_with`].
    pub saved: Saved,
    /// Which reader read the file.
    pub format: Format,
    /// The instance, where the file or its name says.
    pub instance: Option<String>,
    /// How many rows the file has, and which one this is.
    pub rows: Rows,
    /// Which decision point this is.
    pub point: Point,
    /// What the run had used by then.
    pub usage: Usage,
    /// What the recorder wrote about the whole run.
    pub totals: RunTotals,
    /// What the recording does not say.
    pub gaps: Vec<Gap>,
}

/// The rows of a file: one, unless the format holds several runs or candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How many there are.
    pub count: usize,
    /// Which one was read, from 0.
    pub picked: usize,
}

impl Rows {
    /// A file of one run.
    pub const SINGLE: Self = Self { count: 1, picked: 0 };
}

/// A decision point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The last step that the state sees, from 0; `None` where it sees none.
    pub step: Option<u32>,
    /// Whether this is the default point: the end of the recording, less the submission itself.
    pub is_default: bool,
    /// How many decision points the recording has: after step 0, 1, ..., `points - 1`.
    pub points: u32,
    /// How many steps it has, the submission included.
    pub steps: u32,
}

impl Point {
    /// How many steps the state sees.
    pub(crate) const fn seen(&self) -> usize {
        match self.step {
            Some(step) => step as usize + 1,
            None => 0,
        }
    }
}

/// Reads the state that `options` ask for out of `bytes`; `file` is their name, for errors and for formats that keep
/// the instance id in it.
///
/// # Errors
/// [`ReadError`] with the file's name and the [`Problem`]: not readable, no known format or version, no state in
/// it, no such row or step, or no patch at an early step.
pub fn read(bytes: &[u8], file: &str, options: &Options<'_>) -> Result<Read, ReadError> {
    recognize::read(bytes, file, options).map_err(|problem| ReadError { file: file.to_owned(), problem })
}

/// Reads a menu file: `{"format": "tack-menu", "version": 1, "targeted": [...], "broader": [...]}`.
///
/// # Errors
/// [`ReadError`] if it is anything else, or over the bounds of [`tack_core::Menu`].
pub fn read_menu(bytes: &[u8], file: &str) -> Result<OwnedMenu, ReadError> {
    state_json::menu_file(bytes).map_err(|problem| ReadError { file: file.to_owned(), problem })
}
