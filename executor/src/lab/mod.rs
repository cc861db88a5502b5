//! The repair lab: the article's RetryKit benchmark, each execution in a sandbox of its own.
//!
//! Its point is logical: a green visible test is neither a correct repository nor permission to change every file.
//! The example's files are part of the program; `examples/retrykit` is where a person reads them.

mod embedded;
mod report;

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tack_core::{AcceptanceLayer, ObservationStatus};
use tack_sandbox_client::Client;

use crate::evidence::execution::Execution;
use crate::evidence::layers::{Evaluation, GradeError, Grader, PathRule};
use crate::runner::python::{Interpreter, InterpreterError};
use crate::runner::unittest;
use crate::task::{Grading, Task, TaskError};

pub use report::{CandidateReport, LabReport};

/// One candidate: a patch with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// A unified git diff against the example's repository.
    pub patch: Vec<u8>,
    /// How it must end; `None` for one that is not the example's own.
    pub expected: Option<Expected>,
}

/// How a candidate of the example must end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// What it tries, in one sentence.
    pub about: String,
    /// Under the path rule.
    pub end: End,
    /// With the path rule off, where that differs.
    pub without_path_rule: Option<End>,
}

/// One exact end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The five layers, in order: a status, or `not_run`.
    pub layers: [String; AcceptanceLayer::COUNT],
    /// What the reason of the first layer that did not pass contains; empty for an accepted one.
    pub because: String,
}

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The candidates, in this order.
    pub candidates: Vec<Candidate>,
    /// Whether the changed paths are held against the allowed ones.
    pub path_rule: PathRule,
    /// Wall time of one execution in seconds, where it is not to be the task's own.
    pub test_limit_s: Option<u32>,
}

/// What happens while the lab runs: for a terminal.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A candidate is next.
    Candidate {
        /// Its name.
        name: &'a str,
        /// Which one, from 0.
        index: usize,
        /// Of how many.
        count: usize,
    },
    /// One execution of it has ended.
    Executed(&'a Execution),
    /// The candidate has been graded.
    Graded(&'a Evaluation),
}

/// The lab could not answer.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no Python to run the tests with.
    #[error("the lab needs a Python interpreter")]
    Interpreter(#[source] InterpreterError),
    /// The example's own files do not agree.
    #[error("the example is not consistent")]
    Example(#[source] TaskError),
    /// One candidate could not be graded.
    #[error("candidate `{name}` could not be graded")]
    Candidate {
        /// Its name.
        name: String,
        /// Why not.
        source: GradeError,
    },
    /// No such candidate.
    #[error("there is no candidate `{name}`; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

impl LabError {
    /// Whether the input is to blame; otherwise the environment could not answer.
    #[must_use]
    pub const fn is_bad_input(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Candidate { source: GradeError::Patch(_), .. } => true,
            Self::Interpreter(_) | Self::Example(_) | Self::Candidate { .. } => false,
        }
    }
}

/// The article's three candidates.
///
/// # Errors
/// [`LabError::Example`] if the example's own files do not agree.
pub fn candidates() -> Result<Vec<Candidate>, LabError> {
    own(embedded::CANDIDATES)
}

/// The candidates that attack the lab, each with its exact end.
///
/// # Errors
/// As [`candidates`].
pub fn hostile() -> Result<Vec<Candidate>, LabError> {
    own(embedded::HOSTILE)
}

/// The candidate of that name, of either kind.
///
/// # Errors
/// [`LabError::Unknown`] names all there are.
pub fn candidate(name: &str) -> Result<Candidate, LabError> {
    let mut all = candidates()?;
    all.extend(hostile()?);
    let known = all.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|it| it.name == name).ok_or_else(|| LabError::Unknown { name: name.to_owned(), known })
}

fn own(files: embedded::Files) -> Result<Vec<Candidate>, LabError> {
    let example = |source| LabError::Example(source);
    let mut expected: std::collections::BTreeMap<String, Expected> = serde_json::from_str(embedded::EXPECTED)
        .map_err(|source| example(TaskError::Json { file: "expected.json".to_owned(), source }))?;
    let candidate = |(file, patch): &(&str, &str)| {
        let name = file.trim_end_matches(".patch").to_owned();
        Candidate { expected: expected.remove(&name), patch: patch.as_bytes().to_vec(), name }
    };
    Ok(files.iter().map(candidate).collect())
}

/// Grades each candidate, and reports.
///
/// # Errors
/// [`LabError`] where a patch does not fit, or the environment cannot answer at all. A candidate that fails, hangs or
/// attacks is an answer.
pub fn run(client: &Client, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<LabReport, LabError> {
    let started = Instant::now();
    let task = Task::parse("task.json", embedded::TASK.as_bytes()).map_err(LabError::Example)?;
    let (base, hidden) = (embedded::repository(), embedded::hidden());
    let grading =
        Grading::parse("grading.json", embedded::GRADING.as_bytes(), &task, &base).map_err(LabError::Example)?;
    let interpreter = Interpreter::find().map_err(LabError::Interpreter)?;
    let grader = Grader {
        client,
        interpreter: &interpreter,
        task: &task,
        grading: &grading,
        base: &base,
        hidden: &hidden,
        path_rule: options.path_rule,
        limits: unittest::limits(options.test_limit_s.unwrap_or(task.test_limit_s)),
    };
    let mut graded = Vec::with_capacity(options.candidates.len());
    let count = options.candidates.len();
    for (index, candidate) in options.candidates.iter().enumerate() {
        progress(Progress::Candidate { name: &candidate.name, index, count });
        let evaluation = grader
            .grade(&candidate.patch, &mut |execution| progress(Progress::Executed(execution)))
            .map_err(|source| LabError::Candidate { name: candidate.name.clone(), source })?;
        progress(Progress::Graded(&evaluation));
        graded.push(CandidateReport::new(candidate, evaluation, options.path_rule));
    }
    let wall_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(LabReport { task: task.name.clone(), path_rule: options.path_rule, interpreter, candidates: graded, wall_us })
}

impl LabReport {
    /// What the whole lab says: passed if every candidate of the example ended as it must.
    #[must_use]
    pub fn status(&self) -> ObservationStatus {
        let unknown = ObservationStatus::InfrastructureUnknown;
        if self.candidates.iter().any(|it| it.evaluation.status == unknown) {
            unknown
        } else if self.candidates.iter().any(|it| it.as_expected == Some(false)) {
            ObservationStatus::CandidateFailed
        } else {
            ObservationStatus::Passed
        }
    }
}
