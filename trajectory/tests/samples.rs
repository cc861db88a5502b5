//! Every real sample through its reader: what is found is pinned in `golden/samples.txt`, whose diff is to be read.
//! `TACK_BLESS=1 cargo test -p tack-trajectory --test samples` writes it anew.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tack_trajectory::{IssueFile, Options, OwnedObservation, Read, ReadError, read};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
}

fn read_sample(name: &str, options: &Options<'_>) -> Result<Read, ReadError> {
    read(&fs::read(folder().join(name)).unwrap(), name, options)
}

/// FNV-1a, 64 bits: enough to notice any change of a text.
fn digest(bytes: &[u8]) -> String {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or("unknown".to_owned(), |bytes| {
        let head: String = String::from_utf8_lossy(bytes).chars().take(50).collect();
        format!("{} bytes, {}, {head:?}", bytes.len(), digest(bytes))
    })
}

fn observation(seen: &OwnedObservation) -> String {
    let call: String = String::from_utf8_lossy(&seen.call).chars().take(60).collect();
    let status = seen.exit_status.map_or("-".to_owned(), |status| status.to_string());
    let reason = format!("{:?}", seen.reason);
    let output = format!("{} bytes {}", seen.output.len(), &digest(&seen.output)[..8]);
    format!("  {:>3} {reason:<10} {status:>4}  {output:<20} {call:?}", seen.step)
}

fn summary(read: &Read) -> String {
    let Read { state, saved, format, instance, rows, point, usage, totals, gaps } = read;
    let mut out = String::new();
    writeln!(
        out,
        "format   {format}; row {} of {}; instance {}",
        rows.picked,
        rows.count,
        instance.as_deref().unwrap_or("-")
    )
    .unwrap();
    let is_default = if point.is_default { ", the default point" } else { "" };
    writeln!(out, "point    after step {:?} of {}, {} points{is_default}", point.step, point.steps, point.points)
        .unwrap();
    writeln!(out, "issue    {}", text(state.issue.as_deref())).unwrap();
    writeln!(out, "patch    {}", text(state.patch.as_deref())).unwrap();
    writeln!(out, "base     {}", saved.base.as_deref().unwrap_or("unknown")).unwrap();
    writeln!(out, "budget   {:?}", state.budget).unwrap();
    let (counted, uncounted, lost) = (usage.recorded_output_tokens, usage.uncounted_replies.len(), usage.lost_replies);
    writeln!(
        out,
        "usage    {} replies, {} calls, in {:?}, cached {:?}, out {counted} and {uncounted} uncounted and {lost} lost, \
         ${:?}, wall {:?}",
        usage.replies, usage.tool_calls, usage.input_tokens, usage.cached_input_tokens, usage.cost_usd, usage.wall
    )
    .unwrap();
    writeln!(out, "totals   {totals:?}").unwrap();
    for gap in gaps {
        writeln!(out, "{}      {gap}", if gap.is_warning() { "WARN" } else { "gap " }).unwrap();
    }
    writeln!(
        out,
        "observations: {} visible of {}",
        state.observations.len(),
        state.observations.len() + saved.hidden.len()
    )
    .unwrap();
    for seen in &state.observations {
        writeln!(out, "{}", observation(seen)).unwrap();
    }
    out
}

#[test]
fn every_sample_is_read_as_pinned() {
    let issue = || Some(IssueFile { name: "issue.txt", bytes: b"the issue" });
    let base = Options::default;
    #[rustfmt::skip]
    let cases: Vec<(&str, &str, Options<'_>)> = vec![
        ("swe-agent/swe-agent__test-repo-i1.traj",                 "", base()),
        ("swe-agent/pydicom__pydicom-1458.traj",                   "", base()),
        ("swe-agent/marshmallow-1867.function_calling.traj",       "", base()),
        ("swe-agent/all_preds.jsonl",                              "", Options { issue: issue(), ..base() }),
        ("mini-swe-agent/github_issue.v1-messages.traj.json",      "", base()),
        ("mini-swe-agent/pallets__flask-5014.traj.json",           "", base()),
        ("mini-swe-agent/pallets__flask-5014.traj.json",           "after step 7", Options { at: Some(7), patch: Some(b""), ..base() }),
        ("mini-swe-agent/pydata__xarray-6938.traj.json",           "", base()),
        ("mini-swe-agent/synthetic.v2.traj.json",                  "", base()),
        ("mini-swe-agent/synthetic.v2.traj.json",                  "after step 2", Options { at: Some(2), ..base() }),
        ("openhands/multi_swe_bench.output.jsonl",                 "", base()),
        ("openhands/multi_swe_bench.output.jsonl",                 "ponylang__ponyc-4588", Options { instance: Some("ponylang__ponyc-4588"), ..base() }),
        ("openhands/sdk_events.jsonl",                             "", base()),
        ("harbor-atif/trajectory_fail.json",                       "", base()),
        ("trae-agent/patch_selection_example.jsonl",               "", base()),
        ("trae-agent/patch_selection_example.jsonl",               "candidate 2", Options { instance: Some("astropy__astropy-14369#2"), ..base() }),
        ("swe-bench-harness/example_model_output.preds.json",      "", base()),
        ("swe-bench-harness/example_model_output.preds.json",      "django__django-14017", Options { instance: Some("django__django-14017"), issue: issue(), ..base() }),
    ];
    let mut found = String::new();
    for (name, how, options) in &cases {
        writeln!(found, "== {name} {how}").unwrap();
        match read_sample(name, options) {
            Ok(read) => writeln!(found, "{}", summary(&read)).unwrap(),
            Err(error) => panic!("{name} {how}: {error}: {}", error.problem),
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/samples.txt");
    if std::env::var_os("TACK_BLESS").is_some() {
        fs::create_dir_all(golden.parent().unwrap()).unwrap();
        fs::write(&golden, &found).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap();
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "golden/samples.txt, line {}", line + 1);
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn a_harness_report_says_what_it_is() {
    let report = fs::read_to_string(folder().join("swe-bench-harness/django__django-16642.report.json")).unwrap();
    let keyed = format!("{{\"django__django-16642\": {report}}}");
    let run = r#"{"schema_version": 2, "total_instances": 1, "submitted_instances": 1, "resolved_instances": 1,
                  "resolved_ids": ["a"], "unresolved_ids": []}"#;
    #[rustfmt::skip]
    let cases = [
        (report.as_str(), "this is a SWE-bench harness report of one instance: it holds no decision state. Give the agent's trajectory or the predictions file that was graded"),
        (keyed.as_str(),  "this is a SWE-bench harness report of one instance under its id: it holds no decision state. Give the agent's trajectory or the predictions file that was graded"),
        (run,             "this is a SWE-bench harness report of a run: it holds no decision state. Give the agent's trajectory or the predictions file that was graded"),
        (r#"{"instance_id": "a", "problem_statement": "b", "gold_patch": "c"}"#, "this is a list of repair tasks: it holds no decision state. Give it with `--issue`, beside a predictions file"),
        (r#"{"format": "tack-menu", "version": 1, "targeted": [], "broader": []}"#, "this is a menu of public tests: it holds no decision state. Give it with `--menu`, beside a state or a trajectory"),
        (r#"{"trial_name": "a", "task_name": "b", "verifier_result": {}}"#, "this is Harbor's result of a trial: it holds no decision state. Give the trial's trajectory.json"),
    ];
    for (text, expected) in cases {
        let error = read(text.as_bytes(), "report.json", &Options::default()).unwrap_err();
        assert_eq!(error.problem.to_string(), expected);
        assert_eq!(error.to_string(), "cannot read `report.json`");
    }
}
