//! Runs of `unittest`, one suite a sandbox, and what they say about the candidate.
//!
//! A pass needs every expected test on the report, each passed, the report's end, and an agreeing exit status;
//! expected tests come from the task, never from the run. Standard output is counted and never read.
//! Code in the test process that knows the harness can still lie: what catches that is the mutation layer.

use std::path::Path;

use tack_core::ObservationStatus;
use tack_sandbox_client::protocol::{Cause, Stream};
use tack_sandbox_client::{Access, Mount, Receipt, Run, RunLimits};

use crate::runner::python::Interpreter;
use crate::runner::report::{Outcome, Report};

/// The harness, as it is mounted in the sandbox.
pub const HARNESS: &str = include_str!("unittest_harness.py");
/// The harness' file name.
pub const HARNESS_FILE: &str = "unittest_harness.py";

/// Where the repository is seen inside. Read-only.
pub const WORKSPACE: &str = "/workspace";
/// Where the harness is seen inside. Read-only.
const HARNESS_DIRECTORY: &str = "/harness";
/// Where a hidden suite is seen inside, in the runs that need it and in no other. Read-only.
///
/// A copy that may be written would put what a candidate writes on the host's disk, without a bound. So an attempt to
/// change the suite changes nothing, and the harness has read it before product code runs; the attempt is seen by the
/// harness's audit hook, and has an end of its own. One that evades the hook achieves no more than the others.
pub const HIDDEN: &str = "/hidden";

/// Bytes of one stream before the run is ended: far above any honest suite, far below a disk.
const OUTPUT_BYTES: u64 = 16 << 20;
/// Bytes of one stream that come back. A report is read whole or not at all; a thousand tests report 150 kB.
const KEPT_BYTES: u32 = 1 << 19;

/// The limits of a run of a suite that may take `seconds`.
#[must_use]
pub fn limits(seconds: u32) -> RunLimits {
    const PROCESSES: u32 = 64;
    let wall_us = u64::from(seconds) * 1_000_000;
    RunLimits {
        wall_us,
        // As much as every process together can use in that time: the wall is the limit that a task states, and on
        // no number of cores may another come first.
        cpu_us: wall_us * u64::from(PROCESSES),
        memory_bytes: 512 << 20,
        processes: PROCESSES,
        file_bytes: 64 << 20,
        open_files: 256,
        output_bytes: OUTPUT_BYTES,
        kept_bytes: KEPT_BYTES,
        tmp_bytes: 64 << 20,
        idle_us: None,
    }
}

/// What the host provides for a run.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Who runs the harness.
    pub interpreter: &'a Interpreter,
    /// The directory that holds the harness.
    pub harness: &'a Path,
    /// The directory that holds the repository.
    pub workspace: &'a Path,
    /// What the run may use.
    pub limits: RunLimits,
}

impl Place<'_> {
    /// A run that compiles every Python file of the workspace, and executes none.
    #[must_use]
    pub fn compile(&self) -> Run {
        self.run(&["compile", WORKSPACE])
    }

    /// A run of a suite that is part of the workspace.
    #[must_use]
    pub fn suite(&self, directory: &str) -> Run {
        self.run(&["suite", WORKSPACE, &format!("{WORKSPACE}/{directory}")])
    }

    /// A run of the hidden suite that `directory` holds.
    #[must_use]
    pub fn hidden_suite(&self, directory: &Path) -> Run {
        let mut run = self.run(&["suite", WORKSPACE, HIDDEN]);
        run.mounts.push(Mount { source: directory.into(), target: HIDDEN.into(), access: Access::ReadOnly });
        run
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let harness = format!("{HARNESS_DIRECTORY}/{HARNESS_FILE}");
        // `-I`: neither environment nor the working directory choose what is imported. `-S`: no `sitecustomize`, no
        // `.pth` file. `-B`: nothing is written beside the sources.
        let fixed = ["-I", "-S", "-B", &harness];
        let program = [self.interpreter.program.as_os_str()];
        let arguments = fixed.iter().copied().chain(arguments.iter().copied()).map(AsRef::as_ref);
        let mut run = Run::new(program.into_iter().chain(arguments), WORKSPACE);
        // For the children of the product, which do not inherit the flags.
        run.environment.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
        let read_only = |source: &Path, target: &str| Mount {
            source: source.into(),
            target: target.into(),
            access: Access::ReadOnly,
        };
        run.mounts = self.interpreter.mounts();
        run.mounts.push(read_only(self.harness, HARNESS_DIRECTORY));
        run.mounts.push(read_only(self.workspace, WORKSPACE));
        run.limits = self.limits;
        run.report = true;
        run
    }
}

/// How a run ended, in what the verdict needs of its receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why it ended.
    pub cause: Cause,
    /// The exit status, if it exited.
    pub exit_status: Option<u8>,
    /// Whether all of the report came back.
    pub report_whole: bool,
}

impl Ending {
    /// What `receipt` says, beside how much of the report was dropped.
    #[must_use]
    pub const fn of(receipt: &Receipt, report_bytes_dropped: u64) -> Self {
        let (cause, exit_status) = (receipt.cause, receipt.exit_status());
        Self { cause, exit_status, report_whole: report_bytes_dropped == 0 }
    }
}

/// Who answers for the files of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The candidate could have changed them.
    Candidate,
    /// The verifier: the candidate never had them.
    Verifier,
}

/// What a run says about the candidate, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The status.
    pub status: ObservationStatus,
    /// One sentence; says of a pass how much passed.
    pub reason: String,
}

impl Verdict {
    /// A verdict whose reason may quote what a candidate chose: in one line, cut, and without what a terminal obeys.
    #[must_use]
    pub fn new(status: ObservationStatus, reason: &str) -> Self {
        Self { status, reason: plain(reason) }
    }

    fn failed(reason: impl AsRef<str>) -> Self {
        Self::new(ObservationStatus::CandidateFailed, reason.as_ref())
    }

    fn passed(reason: impl AsRef<str>) -> Self {
        Self::new(ObservationStatus::Passed, reason.as_ref())
    }
}

/// What a run of a suite, or of the compiler, says about the candidate.
///
/// `stderr` is for the message where the harness never started, and for nothing else.
#[must_use]
pub fn judge(ending: Ending, report: &Report, expected: &[String], owner: Owner, stderr: &[u8]) -> Verdict {
    if let Some(verdict) = without_verdict(ending, report, owner, stderr) {
        return verdict;
    }
    let missing: Vec<_> = expected.iter().filter(|it| report.test(it).is_none()).collect();
    // A module that could not be imported names the cause of what is missing, so it goes first.
    let broken = report.tests.iter().find(|it| match it.outcome {
        Outcome::Passed => false,
        Outcome::Failed | Outcome::Errored | Outcome::UnexpectedSuccess => true,
        // A test of the candidate's own may be skipped; an expected one has to pass.
        Outcome::Skipped | Outcome::ExpectedFailure => expected.contains(&it.id),
    });
    match (broken, missing.first()) {
        (Some(test), _) => Verdict::failed(test_sentence(test)),
        (None, Some(first)) => {
            let count = missing.len();
            Verdict::failed(format!("{count} of {} expected tests missing, first `{first}`", expected.len()))
        }
        (None, None) if !report.ended => Verdict::failed("the test run did not come to its end"),
        (None, None) if ending.exit_status != Some(0) => Verdict::failed(format!(
            "every test is reported passed, and the exit status is {}",
            ending.exit_status.map_or_else(|| "missing".to_owned(), |it| it.to_string())
        )),
        (None, None) => Verdict::passed(format!("{} of {} passed", expected.len(), expected.len())),
    }
}

/// Whether a mutant was killed: [`ObservationStatus::Passed`] if so.
///
/// It is killed by assertions alone: the run came to its end, every expected test was run, and each of `killed_by`
/// failed. A mutant that cannot be imported proves nothing about the suite, and a candidate could see to that.
#[must_use]
pub fn judge_mutant(
    ending: Ending,
    report: &Report,
    expected: &[String],
    killed_by: &[String],
    owner: Owner,
    stderr: &[u8],
) -> Verdict {
    if let Some(verdict) = without_verdict(ending, report, owner, stderr) {
        return verdict;
    }
    let outcome = |id: &String| report.test(id).map(|it| it.outcome);
    if expected.iter().all(|it| outcome(it) == Some(Outcome::Passed)) {
        return Verdict::failed("it survived: every test passed with the defect put back");
    }
    if let Some(missing) = expected.iter().find(|it| outcome(it).is_none()) {
        let why = report.tests.iter().find(|it| it.outcome == Outcome::Errored);
        let why = why.map_or_else(String::new, |it| format!(" ({})", test_sentence(it)));
        return Verdict::failed(format!("it was not killed by an assertion: `{missing}` was not run{why}"));
    }
    if let Some(test) = killed_by.iter().find(|it| outcome(it) != Some(Outcome::Failed)) {
        let found = outcome(test).map_or("missing", Outcome::name);
        return Verdict::failed(format!("it was not killed by `{test}`: expected failed, found {found}"));
    }
    if !report.ended || ending.exit_status != Some(1) {
        return Verdict::failed("it was not killed: report and exit status do not agree");
    }
    Verdict::passed(format!("killed by {} of {}", killed_by.len(), killed_by.len()))
}

/// What ends the question before any test is looked at.
fn without_verdict(ending: Ending, report: &Report, owner: Owner, stderr: &[u8]) -> Option<Verdict> {
    let unknown = |reason: String| Some(Verdict::new(ObservationStatus::InfrastructureUnknown, &reason));
    let failed = |reason: String| Some(Verdict::failed(reason));
    match ending.cause {
        Cause::SetUp(_) | Cause::CommandNotFound | Cause::CommandNotExecutable { .. } | Cause::Cancelled => {
            return unknown(format!("the run never started: {}", ending.cause));
        }
        Cause::Killed => return unknown("the run was killed from outside the sandbox".into()),
        _ if report.python.is_none() => {
            // Until the harness has said so, nothing of the candidate was read.
            let said = crate::runner::python::last_line(stderr);
            return unknown(format!("the test harness never started ({}): {said}", ending.cause));
        }
        Cause::Wall => return failed("the wall limit passed".into()),
        Cause::Cpu => return failed("the processor limit passed".into()),
        Cause::OutOfMemory => return failed("the memory limit was reached".into()),
        Cause::OutputLimit(stream) => return failed(format!("more than {OUTPUT_BYTES} bytes on {}", stream.name())),
        Cause::Signalled => return failed("a signal ended the run".into()),
        Cause::SeccompKill => return failed("a system call of a foreign kind ended the run".into()),
        Cause::Idle => return failed("the run wrote nothing for too long".into()),
        Cause::Exited => {}
    }
    if !ending.report_whole {
        return failed(format!("more than {KEPT_BYTES} bytes on {}", Stream::Report.name()));
    }
    if let Some(defect) = &report.defect {
        return failed(defect.to_string());
    }
    report.unloadable.first().map(|it| {
        let status = match owner {
            Owner::Candidate => ObservationStatus::CandidateFailed,
            Owner::Verifier => ObservationStatus::VerifierInvalid,
        };
        Verdict::new(status, &format!("`{}` does not compile: {}", it.file, it.detail))
    })
}

/// One line for people: what a terminal would obey or reorder is replaced, and the end cut where it runs on.
#[must_use]
pub fn plain(text: &str) -> String {
    /// Past this, a reason explains no more.
    const CHARS: usize = 400;
    // Unicode's own line ends, and what would reorder what is read, are no better than control characters.
    let acts =
        |it| matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |it: char| if it.is_control() || acts(it) { '\u{fffd}' } else { it };
    let mut line: String = text.chars().take(CHARS).map(shown).collect();
    if line.len() < text.len() && text.chars().nth(CHARS).is_some() {
        line.push('…');
    }
    line
}

fn test_sentence(test: &crate::runner::report::TestResult) -> String {
    let detail = test.detail.lines().next().unwrap_or_default();
    let colon = if detail.is_empty() { "" } else { ": " };
    format!("`{}` {}{colon}{detail}", test.id, test.outcome.name())
}

#[cfg(test)]
#[path = "unittest_tests.rs"]
mod tests;
