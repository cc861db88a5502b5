//! The repair lab from end to end: real sandboxes, the article's candidates, and the hostile ones.
//!
//! This program is its own sandbox helper, as the command is: with one hidden argument it is the daemon's one-shot
//! entry. So it has a `main` of its own, and runs its tests one after the other; arguments are filters by name.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test asserts by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use std::{env, fs};

use tack_core::{AcceptanceLayer, LayerResult, ObservationStatus};
use tack_executor::evidence::desk::PREFIX;
use tack_executor::evidence::execution::{Execution, Purpose};
use tack_executor::evidence::layers::{Evaluation, GradeError, Grader, PathRule};
use tack_executor::lab::{self, Candidate, LabError, LabReport, Options, Progress};
use tack_executor::restore::path::TreePath;
use tack_executor::restore::tree::{Tree, sha256};
use tack_executor::runner::python::Interpreter;
use tack_executor::runner::unittest::limits;
use tack_executor::task::{Grading, Suite, SuiteName, Task};
use tack_sandbox_client::{Client, Helper};
use tack_sandboxd::mirror::MirrorProgram;

const HELPER: &str = "--sandbox-helper";
/// With it and a candidate's name, this program is a lab of that candidate.
const LAB: &str = "--lab";
/// Enough for an honest run (0.2 s) on a busy machine; hostile runs that are ended by the wall wait it out.
const SHORT_LIMIT_S: u32 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|it| it == HELPER) {
        return tack_sandboxd::once::on_stdin(MirrorProgram::Installed, std::iter::empty());
    }
    if let [first, name] = arguments.as_slice()
        && first == LAB
    {
        let report = run(vec![lab::candidate(name).unwrap()], PathRule::Enforced, None);
        return if report.status() == ObservationStatus::Passed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    #[rustfmt::skip]
    let tests: &[(&str, fn())] = &[
        ("the_table_is_the_article_s", the_table_is_the_article_s),
        ("receipts_bind_and_tell_not_run_from_failed", receipts_bind_and_tell_not_run_from_failed),
        ("a_wrong_repair_is_rejected_whatever_else_it_gets_right", a_wrong_repair_is_rejected),
        ("every_hostile_candidate_has_its_exact_end", every_hostile_candidate_has_its_exact_end),
        ("hostile_candidates_end_the_same_with_the_path_rule_off_or_are_caught_deeper", hostile_candidates_with_the_path_rule_off),
        ("an_attempt_on_the_hidden_suite_has_its_own_end", an_attempt_on_the_hidden_suite_has_its_own_end),
        ("a_denied_write_names_its_errno_in_the_test_that_it_ends", a_denied_write_names_its_errno),
        ("the_base_fails_the_one_test_that_the_issue_is_about", the_base_fails_one_test),
        ("hidden_tests_are_in_no_other_run", hidden_tests_are_in_no_other_run),
        ("a_patch_that_does_not_fit_is_bad_input", a_patch_that_does_not_fit_is_bad_input),
        ("without_a_sandbox_there_is_no_answer", without_a_sandbox_there_is_no_answer),
        ("an_interpreter_that_does_not_run_inside_is_the_environment_s_failure", an_interpreter_that_does_not_run_inside),
        ("nothing_is_left_behind", nothing_is_left_behind),
        ("what_a_killed_lab_leaves_is_gone_after_the_next", a_killed_lab_leaves_nothing_for_long),
    ];
    if arguments.iter().any(|it| it == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|it| !it.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in
        tests.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|it| name.contains(*it)))
    {
        if !root() {
            println!("test {name} ... SKIPPED: needs root, to make sandboxes");
            continue;
        }
        let started = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {} ({:.1} s)", if passed { "ok" } else { "FAILED" }, started.elapsed().as_secs_f64());
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

fn client() -> Client {
    Client::with(Helper::Own { program: env::current_exe().unwrap(), argument: HELPER.into() })
}

fn run_with(candidates: Vec<Candidate>, path_rule: PathRule, test_limit_s: Option<u32>) -> Result<LabReport, LabError> {
    lab::run(&client(), &Options { candidates, path_rule, test_limit_s }, &mut |_| {})
}

fn run(candidates: Vec<Candidate>, path_rule: PathRule, test_limit_s: Option<u32>) -> LabReport {
    run_with(candidates, path_rule, test_limit_s).unwrap_or_else(|error| panic!("{error:?}"))
}

/// A candidate that is not the example's own.
fn custom(name: &str, patch: &str) -> Candidate {
    Candidate { name: name.to_owned(), patch: patch.as_bytes().to_vec(), expected: None }
}

fn execution(evaluation: &Evaluation, purpose: &Purpose) -> Execution {
    let all = evaluation.layers.iter().flat_map(|it| &it.executions);
    all.clone().find(|it| it.purpose == *purpose).unwrap_or_else(|| panic!("no {purpose}: {evaluation:#?}")).clone()
}

const VISIBLE: Purpose = Purpose::Suite(SuiteName::Visible);
const HIDDEN: Purpose = Purpose::Suite(SuiteName::Hidden);

fn the_table_is_the_article_s() {
    const TABLE: &str = "\
candidate       scope     compile   visible   hidden    mutation  accepted
local_only      pass      pass      pass      fail      fail      no
repository_fix  pass      pass      pass      pass      pass      yes
scope_escape    fail      pass      pass      pass      pass      no
";
    let (mut heard, started) = (Vec::new(), Instant::now());
    let options = Options { candidates: lab::candidates().unwrap(), ..Options::default() };
    let report = lab::run(&client(), &options, &mut |progress| {
        heard.push(match progress {
            Progress::Candidate { name, index, count } => format!("{name} {index}/{count}"),
            Progress::Executed(execution) => format!("{}: {}", execution.purpose, execution.status),
            Progress::Graded(evaluation) => format!("accepted: {}", evaluation.accepted),
        });
    })
    .unwrap();
    let text = report.to_string();
    assert!(text.starts_with(TABLE), "{text}");
    assert_eq!(report.status(), ObservationStatus::Passed, "{text}");
    assert!(text.contains("local_only: hidden candidate_failed: `test_contract."), "{text}");
    assert!(text.contains("(not run: mutation)"), "{text}");
    #[rustfmt::skip]
    assert_eq!(heard[..5], ["local_only 0/3", "compile: passed", "visible tests: passed", "hidden tests: candidate_failed", "accepted: false"]);
    assert_eq!(heard.len(), 5 + 7 + 7);
    let seconds = started.elapsed().as_secs_f64();
    println!("three candidates in {seconds:.2} s, {} executions", heard.len() - 6);
}

fn receipts_bind_and_tell_not_run_from_failed() {
    let candidates = lab::candidates().unwrap();
    let patches: Vec<_> = candidates.iter().map(|it| sha256(&it.patch).to_string()).collect();
    let first = run(candidates.clone(), PathRule::Enforced, None);
    let json = serde_json::to_value(&first).unwrap();
    for ((receipt, patch), name) in json["candidates"].as_array().unwrap().iter().zip(&patches).zip([
        "local_only",
        "repository_fix",
        "scope_escape",
    ]) {
        assert_eq!(receipt["candidate"], name);
        assert_eq!(receipt["binding"]["patch"], patch.as_str());
        for part in ["intent", "tree", "environment", "verifier"] {
            assert_eq!(receipt["binding"][part].as_str().unwrap().len(), 64, "{part}");
        }
        assert_eq!(receipt["as_expected"], true);
    }
    let results = |index: usize| -> Vec<String> {
        let layers = json["candidates"][index]["layers"].as_array().unwrap();
        layers
            .iter()
            .map(|it| format!("{} {}", it["layer"].as_str().unwrap(), it["result"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(
        results(0),
        ["scope passed", "compile passed", "visible passed", "hidden candidate_failed", "mutation not_run"]
    );
    assert_eq!(
        results(2),
        ["scope candidate_failed", "compile passed", "visible passed", "hidden passed", "mutation passed"]
    );
    let not_run = &json["candidates"][0]["layers"][4];
    assert_eq!((not_run["receipt"].is_null(), not_run["reason"].as_str()), (true, Some("hidden did not pass")));
    assert_eq!(json["candidates"][0]["changed_files"], serde_json::json!(["retrykit/config.py"]));
    assert_eq!(json["candidates"][0]["status"], "candidate_failed");

    // The digest of an execution can be checked from the JSON alone, and every layer of isolation held.
    let hidden = first.candidates[1].evaluation.layer(AcceptanceLayer::Hidden).unwrap();
    let record = serde_json::to_vec(&hidden.executions[0]).unwrap();
    assert_eq!(hidden.result, LayerResult::Ran { status: ObservationStatus::Passed, receipt: Some(sha256(&record)) });
    // Bindings do not depend on the run; the three differ in patch and tree, and in nothing else.
    let second = run(candidates, PathRule::Enforced, None);
    let bindings = |report: &LabReport| report.candidates.iter().map(|it| it.evaluation.binding).collect::<Vec<_>>();
    assert_eq!(bindings(&first), bindings(&second));
    let [local, fix, escape] = bindings(&first)[..] else { panic!("three candidates") };
    for other in [fix, escape] {
        assert_eq!(
            (other.intent, other.environment, other.verifier),
            (local.intent, local.environment, local.verifier)
        );
        assert!(other.tree != local.tree && other.patch != local.patch);
    }
    let off = run(vec![lab::candidate("local_only").unwrap()], PathRule::Off, None);
    assert_ne!(off.candidates[0].evaluation.binding.verifier, local.verifier, "the path rule is part of the verifier");
}

/// Repairs of the worker that attack nothing, get the issue's own case right, and lose another.
fn a_wrong_repair_is_rejected() {
    let fix = String::from_utf8(lab::candidate("repository_fix").unwrap().patch).unwrap();
    let right = "+    return normalize_attempts(job.get(\"attempts\"))\n";
    assert!(fix.contains(right));
    #[rustfmt::skip]
    let cases = [
        ("right",      "normalize_attempts(job.get(\"attempts\"))",             "3 of 3 passed"),
        ("zero alone", "0 if job.get(\"attempts\") == 0 else 3",                "`test_contract.WorkerContract.test_a_positive_setting_is_kept` failed: AssertionError: 3 != 1"),
        ("capped",     "min(normalize_attempts(job.get(\"attempts\")), 50)",    "`test_contract.WorkerContract.test_a_positive_setting_is_kept` failed: AssertionError: 50 != 51"),
        ("never",      "0",                                                     "`test_contract.WorkerContract.test_a_job_that_says_nothing_gets_the_default` failed: AssertionError: 0 != 3"),
        ("no default", "normalize_attempts(job[\"attempts\"])",                 "`test_contract.WorkerContract.test_a_job_that_says_nothing_gets_the_default` errored: KeyError: 'attempts'"),
    ];
    let patched =
        |(name, value, _): &(&str, &str, &str)| custom(name, &fix.replace(right, &format!("+    return {value}\n")));
    let report = run(cases.iter().map(patched).collect(), PathRule::Enforced, None);
    for (it, (name, _, reason)) in report.candidates.iter().zip(cases) {
        let hidden = it.evaluation.layer(AcceptanceLayer::Hidden).unwrap();
        assert_eq!((it.evaluation.accepted, hidden.reason.as_str()), (name == "right", reason), "{name}\n{report}");
    }
}

fn every_hostile_candidate_has_its_exact_end() {
    let hostile = lab::hostile().unwrap();
    assert!(hostile.iter().all(|it| it.expected.is_some()), "each states its end");
    let report = run(hostile, PathRule::Enforced, Some(SHORT_LIMIT_S));
    let text = report.to_string();
    println!("{text}");
    for it in &report.candidates {
        assert_eq!(it.as_expected, Some(true), "{}: {:#?}\n{text}", it.candidate, it.evaluation);
        assert!(!it.evaluation.accepted, "{}", it.candidate);
    }
    let evaluation = |name: &str| &report.candidates.iter().find(|it| it.candidate == name).unwrap().evaluation;
    let deleted = evaluation("deletes_hidden_tests");
    assert_eq!(deleted.status, ObservationStatus::VerifierInvalid);
    assert!(deleted.layer(AcceptanceLayer::Scope).unwrap().result.passed(), "the deletion has its own end");

    let forks = execution(evaluation("forks_without_end"), &VISIBLE);
    assert_eq!(forks.cause, "wall");
    // Where the host counts processes, the count says that the limit was reached, and held, before the wall was.
    assert!(forks.processes_peak.is_none_or(|peak| peak == 64), "{forks:?}");
    assert!(forks.forks_refused.is_none_or(|refused| refused > 0), "{forks:?}");
    let counted = forks.processes_peak.is_some();
    assert_eq!(forks.reason.ends_with("at the limit of 64 processes"), counted, "{}", forks.reason);
    let hang = execution(evaluation("hangs"), &VISIBLE);
    let limit_us = u64::from(SHORT_LIMIT_S) * 1_000_000;
    assert!((limit_us..limit_us + 2_000_000).contains(&hang.wall_us), "{} us", hang.wall_us);
    let print = execution(evaluation("prints_a_gigabyte"), &VISIBLE);
    assert_eq!(print.cause, "output_limit");
    assert!((16 << 20..64 << 20).contains(&print.stdout_bytes), "counted and ended: {}", print.stdout_bytes);
    let written = &execution(evaluation("writes_outside_scope"), &VISIBLE).writes[0];
    assert_eq!((written.path.as_str(), written.errno.as_deref()), ("/workspace/ci/pipeline.yml", Some("EROFS")));
    let exits = execution(evaluation("exits_during_import"), &VISIBLE);
    assert_eq!((exits.cause, exits.exit_status), ("exited", Some(0)));
}

fn an_attempt_on_the_hidden_suite_has_its_own_end() {
    let deletes = String::from_utf8(lab::candidate("deletes_hidden_tests").unwrap().patch).unwrap();
    let deed = "+for _suite in pathlib.Path(\"/hidden\").glob(\"test_*.py\"):\n+    _suite.unlink()\n";
    assert!(deletes.contains(deed));
    #[rustfmt::skip]
    let cases = [
        ("from a descriptor", "+import shutil\n+shutil.rmtree(\"/hidden\", True)\n",                          "`/hidden/test_contract.py` (os.remove): EROFS"),
        ("grown, swallowed",  "+try: open(\"/hidden/test_contract.py\", \"a\")\n+except OSError: pass\n",      "`/hidden/test_contract.py` (open): EROFS"),
        ("filled",            "+try: pathlib.Path(\"/hidden/x\").mkdir()\n+except OSError: pass\n",            "`/hidden/x` (os.mkdir): EROFS"),
    ];
    let candidates = cases.iter().map(|(name, other, _)| custom(name, &deletes.replace(deed, other))).collect();
    let report = run(candidates, PathRule::Enforced, None);
    for (it, (name, _, reason)) in report.candidates.iter().zip(cases) {
        let hidden = it.evaluation.layer(AcceptanceLayer::Hidden).unwrap();
        let reason = format!("the run tried to change the hidden suite: {reason}");
        assert_eq!((hidden.result_name(), hidden.reason.as_str()), ("verifier_invalid", reason.as_str()), "{name}");
    }
}

fn hostile_candidates_with_the_path_rule_off() {
    let wait = ["hangs", "forks_without_end"];
    let hostile: Vec<_> = lab::hostile().unwrap().into_iter().filter(|it| !wait.contains(&it.name.as_str())).collect();
    let report = run(hostile, PathRule::Off, None);
    for it in &report.candidates {
        assert_eq!(it.as_expected, Some(true), "{}: {:#?}\n{report}", it.candidate, it.evaluation);
        assert!(!it.evaluation.accepted, "{}", it.candidate);
    }
    // Off, it does not judge paths; the control that the rule is what rejected this one.
    let escape = run(vec![lab::candidate("scope_escape").unwrap()], PathRule::Off, None);
    assert!(escape.candidates[0].evaluation.accepted, "{escape}");
}

fn a_denied_write_names_its_errno() {
    let patch = "\
diff --git a/retrykit/config.py b/retrykit/config.py
--- a/retrykit/config.py
+++ b/retrykit/config.py
@@ -5,4 +5,5 @@
 
 def normalize_attempts(attempts):
     \"\"\"Number of attempts for a setting: unset (None) is the default, 0 turns retries off.\"\"\"
+    open(\"/workspace/state\", \"w\").close()
     return attempts or DEFAULT_ATTEMPTS
";
    let report = run(vec![custom("writes_state", patch)], PathRule::Enforced, None);
    let evaluation = &report.candidates[0].evaluation;
    let visible = execution(evaluation, &VISIBLE);
    let test = visible.tests.iter().find(|it| it.id.ends_with("test_zero_turns_retries_off")).unwrap();
    assert_eq!(test.os_errors, [("EROFS".to_owned(), "/workspace/state".to_owned())], "{test:?}");
    let scope = evaluation.layer(AcceptanceLayer::Scope).unwrap();
    assert_eq!(scope.reason, "`/workspace/state` at test time (open): EROFS");
    assert!(!scope.result.passed());
}

fn the_base_fails_one_test() {
    let report = run(vec![custom("nothing", "")], PathRule::Enforced, None);
    let visible = execution(&report.candidates[0].evaluation, &VISIBLE);
    let failed: Vec<_> =
        visible.tests.iter().filter(|it| it.outcome.name() != "passed").map(|it| it.id.as_str()).collect();
    assert_eq!(failed, ["test_config.AttemptsSetting.test_zero_turns_retries_off"]);
    assert_eq!(visible.tests.len(), 3);
    assert_eq!(report.candidates[0].as_expected, None);
}

/// Its worker says which of three places it can list: the hidden suite only where that is what runs.
fn hidden_tests_are_in_no_other_run() {
    let mut repaired = lab::candidate("repository_fix").unwrap();
    let patch = String::from_utf8(repaired.patch).unwrap();
    let spy = "-    attempts = job.get(\"attempts\")\n-    return attempts or DEFAULT_ATTEMPTS\n+    import os\n+    for place in (\"/hidden\", \"/harness\", \"/workspace\"):\n+        print(place, os.path.isdir(place), os.access(place, os.W_OK), flush=True)\n";
    let plain = "-    attempts = job.get(\"attempts\")\n-    return attempts or DEFAULT_ATTEMPTS\n";
    assert!(patch.contains(plain));
    repaired.patch = patch.replace(plain, spy).replace("@@ -1,9 +1,8 @@", "@@ -1,9 +1,11 @@").into_bytes();
    repaired.expected = None;
    let report = run(vec![repaired], PathRule::Enforced, None);
    let evaluation = &report.candidates[0].evaluation;
    assert!(evaluation.accepted, "{report}");
    // Three lines a call, 20 to 24 bytes each: the visible suite never calls the worker; the hidden one does, thrice and
    // once for each of a hundred settings.
    assert_eq!(execution(evaluation, &VISIBLE).stdout_bytes, 0);
    let hidden = execution(evaluation, &HIDDEN);
    let line = "/hidden True False\n/harness True False\n/workspace True False\n".len() as u64;
    assert_eq!(hidden.stdout_bytes, 103 * line, "the hidden suite is there, and none may be written");
}

fn a_patch_that_does_not_fit_is_bad_input() {
    let wrong = String::from_utf8(lab::candidate("local_only").unwrap().patch)
        .unwrap()
        .replace("-    return attempts or", "-    return tries or");
    let up = "diff --git a/../up b/../up\nnew file mode 100644\n";
    #[rustfmt::skip]
    let cases = [
        (wrong.as_str(), "`retrykit/config.py`, hunk 1: line 8 should be \"    return tries or DEFAULT_ATTEMPTS\\n\"; found \"    return attempts or DEFAULT_ATTEMPTS\\n\""),
        (up,             "line 1 of the patch: the path `../up` is refused"),
    ];
    for (patch, message) in cases {
        let error = run_with(vec![custom("x", patch)], PathRule::Enforced, None).unwrap_err();
        assert!(error.is_bad_input());
        let LabError::Candidate { name, source: GradeError::Patch(source) } = error else { panic!("{error}") };
        assert_eq!((name.as_str(), source.to_string().as_str()), ("x", message));
    }
    let unknown = lab::candidate("nobody").unwrap_err();
    assert!(unknown.is_bad_input() && unknown.to_string().contains("local_only"), "{unknown}");
}

fn without_a_sandbox_there_is_no_answer() {
    let options = Options { candidates: lab::candidates().unwrap(), ..Options::default() };
    let none = Client::with(Helper::Installed("/nowhere/tack-sandboxd".into()));
    let error = lab::run(&none, &options, &mut |_| {}).unwrap_err();
    assert!(!error.is_bad_input(), "{error}");
}

/// It answers outside, and inside there is no such file: the host's `/tmp` is not the sandbox's.
fn an_interpreter_that_does_not_run_inside() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("python3");
    let answer = format!(r#"{{"program": "{}", "version": [3, 11, 2], "build": "x", "parts": []}}"#, program.display());
    fs::write(&program, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let interpreter = Interpreter::ask(&program).unwrap();

    let (base, hidden) = (Tree::default(), Tree::default());
    let suite = |test: &str| Suite { directory: TreePath::new("tests").unwrap(), tests: vec![test.to_owned()] };
    let task = Task {
        name: "t".to_owned(),
        issue: String::new(),
        acceptance: Vec::new(),
        exclusions: Vec::new(),
        allowed_paths: Vec::new(),
        test_limit_s: 10,
        visible: suite("t.A.a"),
    };
    let grading = Grading { hidden: suite("h.A.a"), mutants: Vec::new() };
    let client = client();
    let grader = Grader {
        client: &client,
        interpreter: &interpreter,
        task: &task,
        grading: &grading,
        base: &base,
        hidden: &hidden,
        path_rule: PathRule::Enforced,
        limits: limits(task.test_limit_s),
    };
    let evaluation = grader.grade(b"", &mut |_| {}).unwrap();
    assert_eq!(evaluation.status, ObservationStatus::InfrastructureUnknown);
    let compile = evaluation.layer(AcceptanceLayer::Compile).unwrap();
    assert_eq!(compile.reason, "the run never started: command_not_found");
    assert_eq!(evaluation.layer(AcceptanceLayer::Visible).unwrap().result, LayerResult::NotRun);
}

/// A lab of its own process, whose temporary directory is `place`.
fn lab_in(place: &Path, candidate: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([LAB, candidate]).env("TMPDIR", place).stdout(Stdio::null());
    command
}

fn nothing_is_left_behind() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let place = tempfile::tempdir().unwrap();
    for name in ["deletes_hidden_tests", "repository_fix", "exits_during_import"] {
        assert!(lab_in(place.path(), name).status().unwrap().success(), "{name}");
    }
    assert_eq!((mounts(), fs::read_dir(place.path()).unwrap().count()), (before, 0));
    assert!(!Path::new("/workspace").exists() && !Path::new("/harness").exists() && !Path::new("/hidden").exists());
}

fn a_killed_lab_leaves_nothing_for_long() {
    let place = tempfile::tempdir().unwrap();
    let names = || fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name()).collect::<Vec<_>>();
    let mut lab = lab_in(place.path(), "hangs").spawn().unwrap();
    let started = Instant::now();
    while names().is_empty() {
        assert!(started.elapsed().as_secs() < 60 && lab.try_wait().unwrap().is_none(), "it makes its directory");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    lab.kill().unwrap();
    lab.wait().unwrap();
    let left = names();
    assert!(left.len() == 1 && left[0].to_string_lossy().starts_with(PREFIX), "{left:?}");
    assert!(lab_in(place.path(), "repository_fix").status().unwrap().success());
    assert_eq!(names(), Vec::<std::ffi::OsString>::new());
}
