//! One execution in a sandbox of its own, and its record.

use std::path::Path;

use serde::Serialize;
use tack_core::{Digest, ObservationStatus};
use tack_sandbox_client::protocol::{Figure, Stream};
use tack_sandbox_client::{Client, ClientError, Finished, Run};

use crate::restore::path::TreePath;
use crate::restore::tree::{Difference, Tree};
use crate::runner::report::{Report, TestResult, WriteAttempt};
use crate::runner::unittest::{Ending, HIDDEN, Verdict};
use crate::task::{SuiteName, digest};

/// What an execution is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Compile every Python file.
    Compile,
    /// Run a suite on the candidate.
    Suite(SuiteName),
    /// Run a suite on the candidate with one known defect put back.
    Mutant {
        /// The file that is as the base has it.
        reverts: TreePath,
        /// The suite that must notice.
        suite: SuiteName,
    },
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compile => f.write_str("compile"),
            Self::Suite(SuiteName::Visible) => f.write_str("visible tests"),
            Self::Suite(SuiteName::Hidden) => f.write_str("hidden tests"),
            Self::Mutant { reverts, .. } => write!(f, "mutant of {reverts}"),
        }
    }
}

/// The record of one execution. Its digest is SHA-256 over its compact JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Execution {
    /// What it was for.
    pub purpose: Purpose,
    /// What it says about the candidate.
    pub status: ObservationStatus,
    /// Why, in one sentence.
    pub reason: String,
    /// Why the run ended, in the sandbox's words.
    pub cause: &'static str,
    /// The exit status, if it exited.
    pub exit_status: Option<u8>,
    /// From the payload's execution to its end, in microseconds.
    pub wall_us: u64,
    /// Making the sandbox, in microseconds.
    pub set_up_us: u64,
    /// User and system time of the whole tree, in microseconds; `None` where the host cannot say.
    pub cpu_us: Option<u64>,
    /// Most memory at one time, in bytes; `None` where the host cannot say.
    pub memory_peak_bytes: Option<u64>,
    /// Most processes and threads at one time; `None` where the host cannot say.
    pub processes_peak: Option<u64>,
    /// How often `fork` was refused at the limit; `None` where the host cannot say.
    pub forks_refused: Option<u64>,
    /// Bytes on standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes on standard error, kept or not.
    pub stderr_bytes: u64,
    /// Bytes on the report, kept or not.
    pub report_bytes: u64,
    /// Digest of the sandbox policy that it ran under.
    pub sandbox_policy: Digest,
    /// Layers of isolation that did not hold, each with its reason.
    pub inactive_layers: Vec<String>,
    /// Each test that was reported.
    pub tests: Vec<TestResult>,
    /// Attempts to write outside the private directories.
    pub writes: Vec<WriteAttempt>,
}

/// A directory that is seen in a sandbox, and the tree that must still be there afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Witness<'a> {
    /// What was written there.
    pub tree: &'a Tree,
    /// Where.
    pub directory: &'a Path,
    /// What it means if it changed.
    pub changed: ObservationStatus,
    /// Its name in messages.
    pub name: &'static str,
}

impl Execution {
    /// Runs `run` in a fresh sandbox, looks after each witness, and asks `judge` for the verdict.
    ///
    /// A witness that changed outranks whatever the run says of itself: it was looked at from outside. Next comes an
    /// attempt on the hidden suite: the verifier is what it was aimed at.
    ///
    /// # Errors
    /// [`ClientError`] where there is no receipt at all.
    pub fn of(
        client: &Client,
        purpose: Purpose,
        run: &Run,
        witnesses: &[Witness<'_>],
        judge: impl FnOnce(Ending, &Report, &[u8]) -> Verdict,
    ) -> Result<Self, ClientError> {
        let finished = client.run(run)?;
        let report = Report::parse(&finished.report.head);
        let writes = attempts(&report);
        let seen = run.mounts.iter().any(|it| it.target == Path::new(HIDDEN));
        let ending = Ending::of(&finished.receipt, finished.report.bytes_dropped());
        let stderr = if finished.stderr.tail.is_empty() { &finished.stderr.head } else { &finished.stderr.tail };
        let verdict = witnesses
            .iter()
            .find_map(|it| it.tree.difference(it.directory).map(|found| it.verdict(&found)))
            .or_else(|| writes.iter().find_map(on_the_hidden_suite).filter(|_| seen))
            .unwrap_or_else(|| judge(ending, &report, stderr));
        let mut execution = Self::record(purpose, verdict, &finished, report.tests, writes);
        // Every fork past the limit was refused: that, and not the waiting, is what such a run was about.
        if execution.processes_peak.is_some_and(|peak| peak >= u64::from(run.limits.processes)) {
            execution.reason = format!("{}, at the limit of {} processes", execution.reason, run.limits.processes);
        }
        Ok(execution)
    }

    fn record(
        purpose: Purpose,
        verdict: Verdict,
        finished: &Finished,
        tests: Vec<TestResult>,
        writes: Vec<WriteAttempt>,
    ) -> Self {
        let receipt = &finished.receipt;
        let bytes = |stream| receipt.stream(stream).bytes_total;
        Self {
            purpose,
            status: verdict.status,
            reason: verdict.reason,
            cause: receipt.cause.name(),
            exit_status: receipt.exit_status(),
            wall_us: receipt.usage.wall_us,
            set_up_us: receipt.times.set_up_us,
            cpu_us: Figure::value(receipt.usage.cpu_us),
            memory_peak_bytes: receipt.usage.memory_peak_bytes.value(),
            processes_peak: receipt.usage.processes_peak.value(),
            forks_refused: receipt.usage.forks_refused.value(),
            stdout_bytes: bytes(Stream::Stdout),
            stderr_bytes: bytes(Stream::Stderr),
            report_bytes: bytes(Stream::Report),
            sandbox_policy: Digest(receipt.policy_digest),
            inactive_layers: receipt.layers.inactive().map(|(layer, reason)| format!("{layer}: {reason}")).collect(),
            tests,
            writes,
        }
    }

    /// The digest of this record.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest(self)
    }
}

/// Attempts to write outside the private directories.
///
/// An error that the product swallows is seen by the audit hook alone; one that it lets through, by both.
fn attempts(report: &Report) -> Vec<WriteAttempt> {
    let mut writes = report.writes.clone();
    for test in &report.tests {
        for (errno, path) in test.os_errors.iter().filter(|(errno, _)| errno == "EROFS") {
            if !writes.iter().any(|it| it.path == *path) {
                let operation = test.id.clone();
                writes.push(WriteAttempt { operation, path: path.clone(), errno: Some(errno.clone()) });
            }
        }
    }
    writes
}

fn on_the_hidden_suite(attempt: &WriteAttempt) -> Option<Verdict> {
    Path::new(&attempt.path).starts_with(HIDDEN).then(|| {
        let end = attempt.errno.as_deref().unwrap_or("allowed");
        let reason =
            format!("the run tried to change the hidden suite: `{}` ({}): {end}", attempt.path, attempt.operation);
        Verdict::new(ObservationStatus::VerifierInvalid, &reason)
    })
}

impl Witness<'_> {
    fn verdict(&self, found: &Difference) -> Verdict {
        Verdict::new(self.changed, &format!("{} changed during the run: {found}", self.name))
    }
}
