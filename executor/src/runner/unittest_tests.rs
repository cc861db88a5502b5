use tack_core::ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
use tack_sandbox_client::protocol::{SetUpFailure, Stage};

use super::*;
use crate::runner::report::{Defect, TestResult, Unloadable};

fn exited(status: u8) -> Ending {
    Ending { cause: Cause::Exited, exit_status: Some(status), report_whole: true }
}

fn ended_by(cause: Cause) -> Ending {
    Ending { cause, exit_status: None, report_whole: true }
}

fn report(tests: &[(&str, Outcome)]) -> Report {
    let result = |(id, outcome): &(&str, Outcome)| TestResult {
        id: (*id).to_owned(),
        outcome: *outcome,
        detail: String::new(),
        os_errors: Vec::new(),
    };
    Report {
        python: Some("3.11.2".to_owned()),
        tests: tests.iter().map(result).collect(),
        ended: true,
        ..Report::default()
    }
}

fn expected() -> Vec<String> {
    vec!["t.A.a".to_owned(), "t.A.b".to_owned()]
}

const BOTH: [(&str, Outcome); 2] = [("t.A.a", Outcome::Passed), ("t.A.b", Outcome::Passed)];

#[test]
fn a_pass_needs_every_expected_test_the_end_and_an_agreeing_status() {
    use Outcome::{Errored, ExpectedFailure, Failed, Passed as Pass, Skipped, UnexpectedSuccess};
    let b = |outcome| report(&[("t.A.a", Pass), ("t.A.b", outcome)]);
    let own = |outcome| report(&[BOTH[0], BOTH[1], ("t.A.own", outcome)]);
    #[rustfmt::skip]
    let cases = [
        ("all passed",                exited(0), report(&BOTH),                               Passed,          "2 of 2 passed"),
        ("one failed",                exited(1), b(Failed),                                   CandidateFailed, "`t.A.b` failed"),
        ("one failed, status 0",      exited(0), b(Failed),                                   CandidateFailed, "`t.A.b` failed"),
        ("one errored",               exited(1), b(Errored),                                  CandidateFailed, "`t.A.b` errored"),
        ("an expected one skipped",   exited(0), b(Skipped),                                  CandidateFailed, "`t.A.b` skipped"),
        ("an expected one excused",   exited(0), b(ExpectedFailure),                          CandidateFailed, "`t.A.b` expected_failure"),
        ("an own one skipped",        exited(0), own(Skipped),                                Passed,          "2 of 2 passed"),
        ("an own one failed",         exited(1), own(Failed),                                 CandidateFailed, "`t.A.own` failed"),
        ("an own one should not pass", exited(1), own(UnexpectedSuccess),                     CandidateFailed, "`t.A.own` unexpected_success"),
        ("one missing",               exited(0), report(&BOTH[..1]),                          CandidateFailed, "1 of 2 expected tests missing, first `t.A.b`"),
        ("none at all",               exited(0), report(&[]),                                 CandidateFailed, "2 of 2 expected tests missing, first `t.A.a`"),
        ("a module that fails to import", exited(1), report(&[("t", Errored)]),               CandidateFailed, "`t` errored"),
        ("no end",                    exited(0), Report { ended: false, ..report(&BOTH) },    CandidateFailed, "the test run did not come to its end"),
        ("all passed, status 1",      exited(1), report(&BOTH),                               CandidateFailed, "every test is reported passed, and the exit status is 1"),
        ("a forged line",             exited(0), Report { defect: Some(Defect::Forged { line: 2 }), ..report(&BOTH) },
                                                                                              CandidateFailed, "line 2 of the report was not written by the test harness"),
        ("a report that was cut",     Ending { report_whole: false, ..exited(0) }, report(&BOTH), CandidateFailed, "more than 524288 bytes on report"),
        ("the wall",                  ended_by(Cause::Wall), report(&BOTH),                   CandidateFailed, "the wall limit passed"),
        ("the processor",             ended_by(Cause::Cpu), report(&BOTH),                    CandidateFailed, "the processor limit passed"),
        ("the memory",                ended_by(Cause::OutOfMemory), report(&BOTH),            CandidateFailed, "the memory limit was reached"),
        ("the output",                ended_by(Cause::OutputLimit(Stream::Stdout)), report(&BOTH), CandidateFailed, "more than 16777216 bytes on stdout"),
        ("a signal",                  ended_by(Cause::Signalled), report(&BOTH),              CandidateFailed, "a signal ended the run"),
    ];
    for (name, ending, report, status, reason) in cases {
        let verdict = judge(ending, &report, &expected(), Owner::Candidate, b"");
        assert_eq!((verdict.status, verdict.reason.as_str()), (status, reason), "{name}");
    }
}

#[test]
fn what_the_environment_did_is_not_the_candidate_s_failure() {
    let silent = Report::default();
    let set_up = Cause::SetUp(SetUpFailure { stage: Stage::Mounts, errno: 2, mount: Some(1) });
    #[rustfmt::skip]
    let cases = [
        (ended_by(set_up),                                      "the run never started: set_up: step `mounts` failed with errno 2 at mount 1 of the request"),
        (ended_by(Cause::CommandNotFound),                      "the run never started: command_not_found"),
        (ended_by(Cause::CommandNotExecutable { errno: 13 }),   "the run never started: command_not_executable (errno 13)"),
        (ended_by(Cause::Cancelled),                            "the run never started: cancelled"),
        (ended_by(Cause::Killed),                               "the run was killed from outside the sandbox"),
        (exited(1),                                             "the test harness never started (exited): No module named 'json'"),
        (ended_by(Cause::OutOfMemory),                          "the test harness never started (oom): No module named 'json'"),
        (ended_by(Cause::Wall),                                 "the test harness never started (wall): No module named 'json'"),
    ];
    for (ending, reason) in cases {
        for owner in [Owner::Candidate, Owner::Verifier] {
            let verdict = judge(ending, &silent, &expected(), owner, b"Traceback\nNo module named 'json'\n\n");
            assert_eq!((verdict.status, verdict.reason.as_str()), (InfrastructureUnknown, reason));
            let verdict = judge_mutant(ending, &silent, &expected(), &expected(), owner, b"No module named 'json'");
            assert_eq!(
                (verdict.status, verdict.reason.as_str()),
                (InfrastructureUnknown, reason),
                "a mutant is not killed so"
            );
        }
    }
}

#[test]
fn a_suite_that_does_not_compile_is_its_owner_s_fault() {
    let file = Unloadable { file: "test_a.py".to_owned(), detail: "SyntaxError: x".to_owned() };
    let broken = Report { unloadable: vec![file], ..report(&[]) };
    for (owner, status) in [(Owner::Candidate, CandidateFailed), (Owner::Verifier, VerifierInvalid)] {
        let verdict = judge(exited(1), &broken, &expected(), owner, b"");
        assert_eq!((verdict.status, verdict.reason.as_str()), (status, "`test_a.py` does not compile: SyntaxError: x"));
        assert_eq!(judge_mutant(exited(1), &broken, &expected(), &expected(), owner, b"").status, status);
    }
}

#[test]
fn a_mutant_is_killed_by_the_named_assertions_and_by_nothing_else() {
    use Outcome::{Errored, Failed, Passed as Pass};
    let both = |a, b| report(&[("t.A.a", a), ("t.A.b", b)]);
    #[rustfmt::skip]
    let cases = [
        ("the named test fails",         exited(1), both(Failed, Pass),              Passed,          "killed by 1 of 1"),
        ("another fails as well",        exited(1), both(Failed, Errored),           Passed,          "killed by 1 of 1"),
        ("all pass",                     exited(0), both(Pass, Pass),                CandidateFailed, "it survived: every test passed with the defect put back"),
        ("all pass, status 1",           exited(1), both(Pass, Pass),                CandidateFailed, "it survived: every test passed with the defect put back"),
        ("another fails instead",        exited(1), both(Pass, Failed),              CandidateFailed, "it was not killed by `t.A.a`: expected failed, found passed"),
        ("the named test errs",          exited(1), both(Errored, Pass),             CandidateFailed, "it was not killed by `t.A.a`: expected failed, found errored"),
        ("it cannot be imported",        exited(1), report(&[("t", Errored)]),       CandidateFailed, "it was not killed by an assertion: `t.A.a` was not run (`t` errored)"),
        ("it ends early",                exited(1), report(&[("t.A.a", Failed)]),    CandidateFailed, "it was not killed by an assertion: `t.A.b` was not run"),
        ("the status disagrees",         exited(0), both(Failed, Pass),              CandidateFailed, "it was not killed: report and exit status do not agree"),
        ("there is no end",              exited(1), Report { ended: false, ..both(Failed, Pass) }, CandidateFailed, "it was not killed: report and exit status do not agree"),
        ("it hangs",                     ended_by(Cause::Wall), both(Failed, Pass),  CandidateFailed, "the wall limit passed"),
        ("it is a forgery",              exited(1), Report { defect: Some(Defect::Forged { line: 9 }), ..both(Failed, Pass) },
                                                                                     CandidateFailed, "line 9 of the report was not written by the test harness"),
    ];
    for (name, ending, report, status, reason) in cases {
        let verdict = judge_mutant(ending, &report, &expected(), &expected()[..1], Owner::Verifier, b"");
        assert_eq!((verdict.status, verdict.reason.as_str()), (status, reason), "{name}");
    }
}

/// The flags that keep a workspace from choosing what the interpreter loads, and mounts that no run can write.
#[test]
fn a_run_is_isolated_and_its_repository_is_read_only() {
    let interpreter = Interpreter::find().unwrap();
    let place =
        Place { interpreter: &interpreter, harness: Path::new("/h"), workspace: Path::new("/w"), limits: limits(10) };
    for (run, hidden) in
        [(place.compile(), false), (place.suite("tests"), false), (place.hidden_suite(Path::new("/x")), true)]
    {
        assert_eq!(run.argv[1..5], ["-I", "-S", "-B", "/harness/unittest_harness.py"]);
        assert!(run.report);
        assert_eq!((run.limits.wall_us, run.limits.processes), (10_000_000, 64));
        assert!(run.mounts.iter().all(|it| it.access == Access::ReadOnly), "{:?}", run.mounts);
        let named = |target: &str| run.mounts.iter().filter(|it| it.target == Path::new(target)).count();
        assert_eq!((named(WORKSPACE), named("/harness"), named(HIDDEN)), (1, 1, usize::from(hidden)));
    }
}

#[test]
fn a_reason_holds_nothing_that_a_terminal_obeys() {
    let hostile = TestResult {
        id: "t.A.\u{1b}[2Ja".to_owned(),
        outcome: Outcome::Failed,
        detail: format!("x\r\u{7}{}", "y".repeat(2_000)),
        os_errors: Vec::new(),
    };
    let verdict = judge(exited(1), &Report { tests: vec![hostile], ..report(&[]) }, &expected(), Owner::Candidate, b"");
    assert!(!verdict.reason.contains(char::is_control), "{:?}", verdict.reason);
    assert_eq!(verdict.reason.chars().count(), 401);
    assert_eq!(plain("ü\n"), "ü\u{fffd}");
    assert_eq!(plain("a\u{202e}b\u{2028}c"), "a\u{fffd}b\u{fffd}c");
}
