//! Reads what other agents recorded: decision states and candidates out of their files.
//!
//! [`read`] tells a file's format from its shape, picks a row and a decision point, and gives a [`Read`]: the
//! [`OwnedState`] at that point, what its candidate is restored from, what the run had used by then, and every
//! [`Gap`]: what the recording does not say. The state's own JSON form is in [`state_json`] and in `STATE.md`.
//!
//! What this crate does not do: it opens no file, runs nothing, applies no patch, counts no tokens and knows no model.
//! It does not reconstruct a patch from edits, nor an issue, a limit or a price from anything but what was recorded.
//!
//! # Steps and decision points
//!
//! A *step* is one reply of the model and everything that was recorded until the next one; steps are counted from 0,
//! in every format. The decision point after step `n` sees the steps `0..=n`. The *default* point stands after the
//! last step that is not the mere handing in: no edit follows it, so the submission is the patch as it stood there.
//! An earlier point ([`Options::at`]) may not see the submission. It needs a patch that the step itself recorded as
//! a whole (SWE-agent's `state.diff`; the output of `git add -A && git diff --cached` where nothing moved the commit
//! below), or one from the caller ([`Options::patch`]); else it is [`Problem::PatchNotRecorded`].
//!
//! # Readers against files
//!
//! | file | told by | rows | issue | base | patch | observations | exit status | budget | output tokens | money | time |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | SWE-agent 0.x `.traj` | `trajectory`, `state` a string | 1 | first user message of `history` | – | `info.submission` | `action`, `observation` | – | – | counted later | – | – |
//! | SWE-agent 1.x `.traj` | `trajectory`, `replay_config` or `state` an object | 1 | `problem_statement.text`, else as 0.x | `env.repo.base_commit` | `info.submission`, `state.diff` | the same | – | – | counted later | – | – |
//! | mini-swe-agent, bare list | a list with `role`, `content`, and a prompt that says how to hand in | 1 | second message | – | last message | fenced block, user message | `<returncode>` | – | counted later | – | – |
//! | mini-swe-agent-1 | `trajectory_format` | 1 | second message, by its template | – | `info.submission`, whole diffs | the same | `<returncode>` | `step_limit` | `usage` | `usage.cost`, `extra.cost` | – |
//! | mini-swe-agent-1.1 | `trajectory_format` | 1 | first user message, by its template | – | `info.submission`, whole diffs | `actions`, `raw_output` | `returncode` | `step_limit`, text-based models | `usage` | `extra.cost` | `timestamp` |
//! | OpenHands `output.jsonl` (V0) | rows with `history`, events with `action` or `observation` | many | `instance.problem_statement`, else `instruction` | `instance.base_commit` | `test_result.git_patch`, whole diffs | events by `cause` | `exit_code` | `max_iterations` | `usage` of each reply | – | `timestamp` |
//! | OpenHands SDK events (V1) | rows with `source` and a known `kind` | 1 | first user message | – | whole diffs alone | events by `action_id` | `exit_code` | – | running sums | running sums | `timestamp` |
//! | ATIF 1.0 to 1.8 | `schema_version`, `steps` | 1 | first user step | – | whole diffs alone | results by `source_call_id` | – | – | `metrics` | `metrics` | `timestamp` |
//! | Trae patch selection | `patches`, `issue` | many | `issue` | – | `patches[n]` | – | – | – | – | – | – |
//! | SWE-bench predictions | `model_patch` | many | from the caller | – | `model_patch` | – | – | – | – | – | – |
//! | tack-state 1 | `format` | 1 | `issue` | – | `patch` | `observations` | `exit_status` | `budget` | – | – | – |
//!
//! A dash is a stated loss: the [`Gap`]s of a [`Read`] name it. Each reader's module has the whole table of its format.
//! A harness report, a list of tasks, a menu and Harbor's result of a trial hold no state: [`Problem::NoState`].
//! A format in a version without a reader, or in none that the file shows, is [`Problem::UnknownVersion`]: no version
//! is guessed.
//!
//! # Budget
//!
//! `budget.tool_calls` is the recorded limit less what was charged up to the point, where each step charges exactly
//! one call: mini-swe-agent 1.x, 2.x with a text-based model, OpenHands V0. Where a limit counts replies and a reply
//! may hold several calls, where not every charged reply is recorded, or where the limit is in money, it is unknown.
//! No format has a limit on output tokens or on the wall time of repair, so these two are unknown.
//!
//! # Why an answer is in the context
//!
//! | recorded call | reason |
//! | --- | --- |
//! | a shell command, one part of which runs tests: `pytest`, `tox`, `python -m unittest`, `runtests.py`, `manage.py test`, `bin/test`, `make test`, `go test`, `cargo test`, ... | agent test |
//! | else one part of which changes files: `>` into a file, `sed -i`, `patch`, `rm`, `mv`, `git apply`, `git checkout`, ... | edit |
//! | else all parts of which only look: `ls`, `cat`, `grep`, `find`, `git diff`, `git log`, ... | inspection |
//! | any other shell command: `python reproduce.py`, `make`, `pip install`, ... | tool call |
//! | a tool named for reading or searching (`read`, `view`, `open`, `search_dir`, `Grep`, ...), an editor's `view` | inspection |
//! | a tool named for writing (`edit`, `create`, `str_replace`, `Write`, ...), an editor's other commands | edit |
//! | any other tool | tool call |
//! | no call at all: a format error, a limit, a time-out, a word of the user or the harness | harness |
//!
//! `pretest` never comes from a foreign recording: only tack runs prescribed tests.
//!
//! # Invariants
//!
//! - No outcome enters: values under the keys that graders and data sets use (hidden tests, gold and test patches,
//!   hints, verdicts, rewards) are dropped by the parser, so no reader can reach them, wherever they stand but among
//!   the arguments of a tool call, which the agent wrote itself; and nothing of what a recorder writes about the end
//!   of its run (exit status, totals), the submission excepted, is part of a state.
//! - Nothing later than the point enters; `tests/leaks.rs` changes every such place in every format.
//! - Unknown is `None` with a [`Gap`]: never zero, never empty. A patch that is empty because the run was cut off is
//!   unknown; a price of zero beside real tokens is unknown.
//! - Any bytes give a state or a [`ReadError`] that names file, place, expected and found. What it quotes of the file
//!   is bounded, and holds nothing that a terminal would act on.
//!
//! # Memory
//!
//! Texts stay in the file until a reader wants them. Of a call and of an answer a state keeps at most [`KEPT_MAX`]
//! bytes (1 MiB): the rest of one that is longer is left out of the middle, a mark shows where, and a gap counts the
//! bytes. An answer is read in pieces, so one of any size takes 5 MiB beside the file (`tests/large.rs`); a file that
//! is no recording takes nothing. Issue, patch and the model's own words are kept whole: once, and once more where
//! they carry escapes. Bytes that are not UTF-8 and half surrogate pairs are read as U+FFFD and counted in a gap.
//! Nesting over 128 and a key twice in one object are errors.
#![forbid(unsafe_code)]

pub mod error;
pub mod format;
pub mod gap;
pub mod state;
pub mod state_json;
pub mod usage;

mod document;
mod json;
mod kept;
mod parse;
mod shown;
mod text;

mod base64;
mod issue;
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
pub use kept::KEPT_MAX;
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
    recognize::read(bytes, file, options)
}

/// Reads a menu file: `{"format": "tack-menu", "version": 1, "targeted": [...], "broader": [...]}`.
///
/// # Errors
/// [`ReadError`] if it is anything else, or over the bounds of [`tack_core::Menu`].
pub fn read_menu(bytes: &[u8], file: &str) -> Result<OwnedMenu, ReadError> {
    state_json::menu_file(bytes).map_err(|problem| ReadError { file: file.to_owned(), problem })
}
