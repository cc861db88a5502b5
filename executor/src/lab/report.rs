//! The lab's report: the article's table for people, receipts for programs.

use std::fmt;

use serde::Serialize;
use tack_core::{AcceptanceLayer, LayerResult, ObservationStatus};

use crate::evidence::layers::{Evaluation, LayerRecord, PathRule};
use crate::lab::{Candidate, End};
use crate::runner::python::Interpreter;

/// What the lab found.
#[derive(Clone, Debug, Serialize)]
pub struct LabReport {
    /// The task's name.
    pub task: String,
    /// Whether the path rule held.
    pub path_rule: PathRule,
    /// What ran the tests.
    pub interpreter: Interpreter,
    /// One receipt a candidate.
    pub candidates: Vec<CandidateReport>,
    /// Everything, in microseconds.
    pub wall_us: u64,
}

/// One candidate and its receipt.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateReport {
    /// Its name.
    pub candidate: String,
    /// Its receipt.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Whether it ended as it must; `None` for a candidate that is not the example's own, and where the environment
    /// could not answer.
    pub as_expected: Option<bool>,
}

impl CandidateReport {
    pub(crate) fn new(candidate: &Candidate, evaluation: Evaluation, path_rule: PathRule) -> Self {
        let end = candidate.expected.as_ref().map(|it| match path_rule {
            PathRule::Enforced => &it.end,
            PathRule::Off => it.without_path_rule.as_ref().unwrap_or(&it.end),
        });
        let answered = evaluation.status != ObservationStatus::InfrastructureUnknown;
        let as_expected = end.filter(|_| answered).map(|it| it.is_of(&evaluation));
        Self { candidate: candidate.name.clone(), evaluation, as_expected }
    }
}

impl End {
    /// Whether an evaluation ended exactly so.
    #[must_use]
    pub fn is_of(&self, evaluation: &Evaluation) -> bool {
        let layers = evaluation.layers.iter().map(LayerRecord::result_name).eq(self.layers.iter().map(String::as_str));
        let because = first_not_passed(evaluation).map_or("", |it| it.reason.as_str());
        layers && because.contains(&self.because) && because.is_empty() == self.because.is_empty()
    }
}

fn first_not_passed(evaluation: &Evaluation) -> Option<&LayerRecord> {
    evaluation.layers.iter().find(|it| !it.result.passed())
}

/// As the article prints it, where a layer that was not reached is a fail like any other; the receipts keep the two
/// apart. Below the table, why each rejected candidate was rejected.
impl fmt::Display for LabReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |it: &CandidateReport| it.candidate.chars().count();
        let width = self.candidates.iter().map(name).max().unwrap_or(0).max("candidate".len());
        write!(f, "{:width$}", "candidate")?;
        for layer in AcceptanceLayer::ALL {
            write!(f, "  {:8}", layer.name())?;
        }
        writeln!(f, "  accepted")?;
        for it in &self.candidates {
            write!(f, "{:width$}", it.candidate)?;
            for layer in &it.evaluation.layers {
                write!(f, "  {:8}", if layer.result.passed() { "pass" } else { "fail" })?;
            }
            writeln!(f, "  {}", if it.evaluation.accepted { "yes" } else { "no" })?;
        }
        let rejected = self.candidates.iter().filter(|it| !it.evaluation.accepted);
        for (index, it) in rejected.enumerate() {
            if index == 0 {
                writeln!(f)?;
            }
            let mut not_run = it.evaluation.layers.iter().filter(|it| it.result == LayerResult::NotRun).peekable();
            let because = first_not_passed(&it.evaluation)
                .map_or_else(String::new, |it| format!("{} {}: {}", it.layer, it.result_name(), it.reason));
            write!(f, "{}: {because}", it.candidate)?;
            if not_run.peek().is_some() {
                let names: Vec<_> = not_run.map(|it| it.layer.name()).collect();
                write!(f, " (not run: {})", names.join(", "))?;
            }
            writeln!(f)?;
        }
        for it in self.candidates.iter().filter(|it| it.as_expected == Some(false)) {
            writeln!(f, "{}: NOT the end that examples/retrykit/expected.json states", it.candidate)?;
        }
        Ok(())
    }
}
