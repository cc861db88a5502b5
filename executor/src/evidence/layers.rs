//! The five layers of acceptance, from a patch to its receipt.
//!
//! ```text
//! patch -> tree -> scope      every changed path may be changed, and nothing else was written at test time
//!                  compile    every Python file compiles
//!                   `- visible    the suite that the candidate could see
//!                       `- hidden     the suite that it could not
//!                           `- mutation   each known defect, put back, is noticed by the suite that must
//! ```
//! Scope stands alone: a patch that breaks it is still run, so that correctness and authority are told apart. Each
//! other layer is run only if the one above it passed; a layer that was not reached did not fail.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tack_core::{Acceptance, AcceptanceLayer, Binding, Digest, LayerResult, ObservationStatus};
use tack_sandbox_client::{Client, ClientError, RunLimits};

use crate::evidence::desk::{self, Desk};
use crate::evidence::execution::{Execution, Purpose, Witness};
use crate::restore::patch::{Patch, PatchError};
use crate::restore::path::TreePath;
use crate::restore::tree::{File, Mode, Tree, WriteError, sha256};
use crate::runner::python::Interpreter;
use crate::runner::unittest::{self, HARNESS, HARNESS_FILE, HIDDEN, Owner, Place, plain};
use crate::task::{Grading, Mutant, SuiteName, Task, digest};

/// Whether the changed paths are held against the allowed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathRule {
    /// They are.
    #[default]
    Enforced,
    /// They are not: for asking what the other layers would have said. Writes at test time still break the scope.
    Off,
}

/// Everything that grades a candidate, but the candidate.
#[derive(Clone, Copy, Debug)]
pub struct Grader<'a> {
    /// Asks for sandboxes.
    pub client: &'a Client,
    /// Runs the tests.
    pub interpreter: &'a Interpreter,
    /// What is to be done.
    pub task: &'a Task,
    /// What grades it.
    pub grading: &'a Grading,
    /// The repository before any patch.
    pub base: &'a Tree,
    /// The files of the hidden suite.
    pub hidden: &'a Tree,
    /// Whether the path rule holds.
    pub path_rule: PathRule,
    /// The limits of one execution.
    pub limits: RunLimits,
}

/// A candidate could not be graded. Nothing of this is its failure, but for [`GradeError::Patch`].
#[derive(Debug, thiserror::Error)]
pub enum GradeError {
    /// The patch is no patch, or does not fit the base exactly.
    #[error("the patch does not apply")]
    Patch(#[source] PatchError),
    /// No directory to work in.
    #[error("cannot make a temporary directory")]
    Directory(#[source] io::Error),
    /// It cannot be removed: what is left of it holds files of this candidate.
    #[error("cannot remove a temporary directory")]
    Remove(#[source] io::Error),
    /// The tree cannot be written to it.
    #[error("cannot write the tree")]
    Write(#[source] WriteError),
    /// There is no sandbox to be had.
    #[error("no sandbox for the {purpose}")]
    Sandbox {
        /// What was to be run.
        purpose: Purpose,
        /// Why not.
        source: ClientError,
    },
}

/// What the layers said about one patch: the receipt.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// What this is about; any of the five moves, and it says nothing any more.
    pub binding: Binding,
    /// The paths that the patch changes.
    pub changed_files: Vec<TreePath>,
    /// The five layers, in order.
    pub layers: Vec<LayerRecord>,
    /// Whether every layer passed.
    pub accepted: bool,
    /// The whole in one word: the environment's doubt outranks the verifier's, and that the candidate's failure.
    pub status: ObservationStatus,
}

/// What one layer said.
#[derive(Clone, Debug, Serialize)]
pub struct LayerRecord {
    /// Which.
    pub layer: AcceptanceLayer,
    /// What it said, with the digest of what shows it: of its execution, or of the list of its executions' digests.
    #[serde(flatten, serialize_with = "flat_result")]
    pub result: LayerResult,
    /// Why, in one sentence.
    pub reason: String,
    /// What was run for it.
    pub executions: Vec<Execution>,
}

impl Evaluation {
    /// The results as the vocabulary has them.
    #[must_use]
    pub fn acceptance(&self) -> Acceptance {
        self.layers.iter().fold(Acceptance::NOT_RUN, |built, it| built.with(it.layer, it.result))
    }

    /// One layer's record.
    #[must_use]
    pub fn layer(&self, layer: AcceptanceLayer) -> Option<&LayerRecord> {
        self.layers.iter().find(|it| it.layer == layer)
    }
}

/// What is on disk while one candidate is graded; no run can write any of it.
struct Files {
    desk: Desk,
    harness: Tree,
}

impl Files {
    fn new() -> Result<Self, GradeError> {
        let desk = Desk::new(&std::env::temp_dir()).map_err(GradeError::Directory)?;
        let mut harness = Tree::default();
        #[expect(clippy::expect_used, reason = "the constant is one plain name")]
        let name = TreePath::new(HARNESS_FILE).expect("a file name");
        harness.insert(name, File { mode: Mode::Regular, bytes: HARNESS.as_bytes().to_vec() });
        let files = Self { desk, harness };
        files.put("harness", &files.harness)?;
        Ok(files)
    }

    /// A directory of this name with this tree in it.
    fn put(&self, name: &str, tree: &Tree) -> Result<PathBuf, GradeError> {
        let directory = self.desk.directory(name).map_err(GradeError::Directory)?;
        tree.write(&directory).map_err(GradeError::Write)?;
        Ok(directory)
    }
}

impl Grader<'_> {
    /// Puts a patch through the five layers; `done` hears of each execution as it ends.
    ///
    /// # Errors
    /// [`GradeError`] where the patch does not fit, or the host provides no sandbox.
    pub fn grade(&self, patch: &[u8], done: &mut dyn FnMut(&Execution)) -> Result<Evaluation, GradeError> {
        let parsed = Patch::parse(patch).map_err(GradeError::Patch)?;
        let tree = self.base.with(&parsed.apply(self.base).map_err(GradeError::Patch)?);
        let changed_files: Vec<TreePath> = parsed.paths().cloned().collect();
        let files = Files::new()?;
        files.put("candidate", &tree)?;
        files.put("hidden", self.hidden)?;

        let sources: Vec<String> =
            tree.files().map(|(path, _)| path.to_string()).filter(|it| python_file(it)).collect();
        let compiled = vec![self.compile(&files, &tree, &sources)?];
        done(&compiled[0]);
        let environment = self.environment_digest(compiled[0].sandbox_policy);
        let mut layers = vec![LayerRecord::of(AcceptanceLayer::Compile, compiled)];
        for layer in [AcceptanceLayer::Visible, AcceptanceLayer::Hidden, AcceptanceLayer::Mutation] {
            let above = layers.last().filter(|it| !it.result.passed());
            if let Some(above) = above {
                let record = LayerRecord::not_run(layer, above);
                layers.push(record);
                continue;
            }
            let runs: Vec<(SuiteName, Option<&Mutant>)> = match layer {
                AcceptanceLayer::Visible => vec![(SuiteName::Visible, None)],
                AcceptanceLayer::Hidden => vec![(SuiteName::Hidden, None)],
                _ => self.grading.mutants.iter().map(|it| (it.suite, Some(it))).collect(),
            };
            let mut executions = Vec::with_capacity(runs.len());
            for (suite, mutant) in runs {
                let execution = self.suite(&files, &tree, suite, mutant)?;
                done(&execution);
                executions.push(execution);
            }
            layers.push(LayerRecord::of(layer, executions));
        }
        files.desk.clear().map_err(GradeError::Remove)?;
        // Last, since what is written at test time is part of the answer; first, since that is its place.
        layers.insert(0, self.scope(&changed_files, &layers));

        let binding = Binding {
            intent: self.task.intent_digest(),
            tree: tree.digest(),
            patch: sha256(patch),
            environment,
            verifier: self.verifier_digest(),
        };
        let acceptance = layers.iter().fold(Acceptance::NOT_RUN, |built, it| built.with(it.layer, it.result));
        Ok(Evaluation { binding, changed_files, accepted: acceptance.accepted(), status: overall(&acceptance), layers })
    }

    fn compile(&self, files: &Files, tree: &Tree, sources: &[String]) -> Result<Execution, GradeError> {
        let (harness, workspace) = (files.desk.path().join("harness"), files.desk.path().join("candidate"));
        let run = self.place(&harness, &workspace).compile();
        let witnesses = Self::read_only(files, tree, &harness, &workspace);
        Execution::of(self.client, Purpose::Compile, &run, &witnesses, |ending, report, stderr| {
            unittest::judge(ending, report, sources, Owner::Candidate, stderr)
        })
        .map_err(|source| GradeError::Sandbox { purpose: Purpose::Compile, source })
    }

    /// One run of a suite, on the candidate or on a mutant of it, with whatever the run needs made for it alone.
    fn suite(
        &self,
        files: &Files,
        tree: &Tree,
        name: SuiteName,
        mutant: Option<&Mutant>,
    ) -> Result<Execution, GradeError> {
        let (harness, hidden) = (files.desk.path().join("harness"), files.desk.path().join("hidden"));
        let mutated = mutant.map(|it| {
            let mut mutated = tree.clone();
            if let Some(file) = self.base.file(&it.reverts) {
                mutated.insert(it.reverts.clone(), file.clone());
            }
            mutated
        });
        let (tree, workspace) = match &mutated {
            None => (tree, files.desk.path().join("candidate")),
            Some(mutated) => (mutated, files.put("mutant", mutated)?),
        };
        let place = self.place(&harness, &workspace);
        let mut witnesses = Self::read_only(files, tree, &harness, &workspace).to_vec();
        let (run, owner) = match name {
            SuiteName::Visible => (place.suite(&self.task.visible.directory.to_string()), Owner::Candidate),
            SuiteName::Hidden => {
                let changed = ObservationStatus::InfrastructureUnknown;
                let name = "the read-only hidden suite";
                witnesses.push(Witness { tree: self.hidden, directory: &hidden, changed, name });
                (place.hidden_suite(&hidden), Owner::Verifier)
            }
        };
        let purpose = match mutant {
            None => Purpose::Suite(name),
            Some(it) => Purpose::Mutant { reverts: it.reverts.clone(), suite: name },
        };
        let expected = &self.grading.suite(self.task, name).tests;
        let execution =
            Execution::of(self.client, purpose.clone(), &run, &witnesses, |ending, report, stderr| match mutant {
                None => unittest::judge(ending, report, expected, owner, stderr),
                Some(it) => unittest::judge_mutant(ending, report, expected, &it.killed_by, owner, stderr),
            })
            .map_err(|source| GradeError::Sandbox { purpose, source })?;
        if mutated.is_some() {
            desk::remove(&workspace).map_err(GradeError::Remove)?;
        }
        Ok(execution)
    }

    fn place<'a>(&'a self, harness: &'a Path, workspace: &'a Path) -> Place<'a> {
        Place { interpreter: self.interpreter, harness, workspace, limits: self.limits }
    }

    /// The directories that no run can write. That one of them changed means that the sandbox did not hold, or that
    /// somebody outside interfered: either way the environment cannot answer.
    fn read_only<'a>(files: &'a Files, tree: &'a Tree, harness: &'a Path, workspace: &'a Path) -> [Witness<'a>; 2] {
        let changed = ObservationStatus::InfrastructureUnknown;
        [
            Witness { tree: &files.harness, directory: harness, changed, name: "the test harness" },
            Witness { tree, directory: workspace, changed, name: "the read-only workspace" },
        ]
    }

    /// The path rule, and what was written at test time.
    fn scope(&self, changed: &[TreePath], layers: &[LayerRecord]) -> LayerRecord {
        let outside: Vec<String> =
            changed.iter().filter(|it| !self.task.allowed_paths.contains(it)).map(TreePath::to_string).collect();
        // An attempt on the hidden suite has its own end.
        let written = layers.iter().flat_map(|it| &it.executions).flat_map(|execution| {
            let tripped = execution.status == ObservationStatus::VerifierInvalid;
            execution.writes.iter().filter(move |it| !(tripped && Path::new(&it.path).starts_with(HIDDEN)))
        });
        let mut reasons = Vec::new();
        if self.path_rule == PathRule::Enforced && !outside.is_empty() {
            reasons.push(format!("the patch changes `{}`, outside the allowed paths", outside.join("`, `")));
        }
        let mut seen: Vec<&str> = Vec::new();
        for write in written {
            if !seen.contains(&write.path.as_str()) {
                seen.push(&write.path);
                let end = write.errno.as_deref().unwrap_or("allowed");
                reasons.push(plain(&format!("`{}` at test time ({}): {end}", write.path, write.operation)));
            }
        }
        let (status, reason) = match (reasons.is_empty(), self.path_rule) {
            (false, _) => (ObservationStatus::CandidateFailed, reasons.join("; ")),
            (true, PathRule::Enforced) => {
                let count = changed.len();
                (ObservationStatus::Passed, format!("changed paths, all allowed: {count}"))
            }
            (true, PathRule::Off) => (ObservationStatus::Passed, "the path rule is off".to_owned()),
        };
        let result = LayerResult::Ran { status, receipt: None };
        LayerRecord { layer: AcceptanceLayer::Scope, result, reason, executions: Vec::new() }
    }

    /// Interpreter, base tree, runner and sandbox policy. No installed distribution is in reach of a run (`-S`).
    ///
    /// The sandbox policy is that of the first execution; those of the others follow from it and from the task.
    fn environment_digest(&self, sandbox_policy: Digest) -> Digest {
        digest(&(self.interpreter, self.base.digest(), sha256(HARNESS.as_bytes()), sandbox_policy))
    }

    /// Tests, runner, mutants and path rule.
    fn verifier_digest(&self) -> Digest {
        let runner = sha256(HARNESS.as_bytes());
        digest(&(&self.task.visible, self.grading, self.hidden.digest(), runner, self.path_rule))
    }
}

impl LayerRecord {
    /// A layer that was run: it passed if all of its executions did, else it ended as the first that did not.
    fn of(layer: AcceptanceLayer, executions: Vec<Execution>) -> Self {
        let first = executions.iter().find(|it| it.status != ObservationStatus::Passed);
        let status = first.map_or(ObservationStatus::Passed, |it| it.status);
        let sentence = |it: &Execution| match it.purpose {
            Purpose::Mutant { .. } => format!("{}: {}", it.purpose, it.reason),
            _ => it.reason.clone(),
        };
        let reason = match first {
            Some(it) => sentence(it),
            None => executions.iter().map(sentence).collect::<Vec<_>>().join("; "),
        };
        let digests: Vec<Digest> = executions.iter().map(Execution::digest).collect();
        let receipt = match digests.as_slice() {
            [] => None,
            [one] => Some(*one),
            more => Some(digest(&more)),
        };
        Self { layer, result: LayerResult::Ran { status, receipt }, reason, executions }
    }

    fn not_run(layer: AcceptanceLayer, above: &Self) -> Self {
        let reason = match above.result {
            LayerResult::NotRun => above.reason.clone(),
            LayerResult::Ran { .. } => format!("{} did not pass", above.layer),
        };
        Self { layer, result: LayerResult::NotRun, reason, executions: Vec::new() }
    }

    /// The result in one word.
    #[must_use]
    pub const fn result_name(&self) -> &'static str {
        match self.result {
            LayerResult::NotRun => "not_run",
            LayerResult::Ran { status, .. } => status.name(),
        }
    }
}

/// `"result": "passed"`, and `"receipt"` where there is one: the form that a reader of the JSON expects.
fn flat_result<S: serde::Serializer>(result: &LayerResult, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Flat {
        result: &'static str,
        receipt: Option<Digest>,
    }
    match result {
        LayerResult::NotRun => Flat { result: "not_run", receipt: None },
        LayerResult::Ran { status, receipt } => Flat { result: status.name(), receipt: *receipt },
    }
    .serialize(serializer)
}

/// The whole in one word.
fn overall(acceptance: &Acceptance) -> ObservationStatus {
    use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
    let some =
        |status| acceptance.0.iter().any(|it| matches!(it, LayerResult::Ran { status: it, .. } if *it == status));
    [InfrastructureUnknown, VerifierInvalid, CandidateFailed].into_iter().find(|it| some(*it)).unwrap_or(Passed)
}

fn python_file(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == "py")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_about_the_environment_outranks_the_verifier_s_and_that_the_candidate_s_failure() {
        use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
        let ran = |status| LayerResult::Ran { status, receipt: None };
        let no = LayerResult::NotRun;
        #[rustfmt::skip]
        let cases = [
            ([ran(Passed); 5],                                                                         Passed),
            ([ran(Passed), ran(Passed), ran(CandidateFailed), no, no],                                 CandidateFailed),
            ([ran(CandidateFailed), ran(Passed), ran(Passed), ran(VerifierInvalid), no],               VerifierInvalid),
            ([ran(CandidateFailed), ran(InfrastructureUnknown), no, no, no],                           InfrastructureUnknown),
        ];
        for (layers, status) in cases {
            assert_eq!(overall(&Acceptance(layers)), status, "{layers:?}");
        }
    }
}
