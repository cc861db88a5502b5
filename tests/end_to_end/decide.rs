//! `tack decide` as a person runs it: every sample, every way to ask wrongly, and the promise about deadlines.

#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trajectory/samples")
}

/// Runs it from a folder that is nowhere near the checkout.
fn decide<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tack")).arg("decide").args(arguments).current_dir("/").output().unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn every_sample_is_decided_on_or_refused_for_what_it_is() {
    #[rustfmt::skip]
    let expected = [ // file                                             patch known  warned of
        ("harbor-atif/trajectory_fail.json",                             Some(false), "unknown, which is not empty"),
        ("mini-swe-agent/github_issue.v1-messages.traj.json",            Some(true),  ""),
        ("mini-swe-agent/pallets__flask-5014.traj.json",                 Some(true),  ""),
        ("mini-swe-agent/pydata__xarray-6938.traj.json",                 Some(true),  ""),
        ("mini-swe-agent/synthetic.v2.traj.json",                        Some(true),  ""),
        ("openhands/multi_swe_bench.output.jsonl",                       Some(true),  "`--instance ID` picks another"),
        ("openhands/sdk_events.jsonl",                                   Some(false), "unknown, which is not empty"),
        ("swe-agent/all_preds.jsonl",                                    Some(true),  "no observation is known"),
        ("swe-agent/marshmallow-1867.function_calling.traj",             Some(true),  ""),
        ("swe-agent/pydicom__pydicom-1458.traj",                         Some(true),  ""),
        ("swe-agent/swe-agent__test-repo-i1.traj",                       Some(true),  ""),
        ("swe-bench-harness/django__django-16642.report.json",           None,        "a SWE-bench harness report"),
        ("swe-bench-harness/example_model_output.preds.json",            Some(true),  "`--instance ID` picks another"),
        ("swe-bench-harness/sympy__sympy-23950.report.json",             None,        "a SWE-bench harness report"),
        ("trae-agent/patch_selection_example.jsonl",                     Some(true),  "candidates; this is"),
    ];
    let mut found: Vec<String> = Vec::new();
    for folder in fs::read_dir(samples()).unwrap().map(Result::unwrap).filter(|it| it.path().is_dir()) {
        for file in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            found.push(format!("{}/{}", folder.file_name().display(), file.file_name().display()));
        }
    }
    found.sort();
    assert_eq!(found, expected.map(|row| row.0), "each sample has its row here");

    for (file, patch_known, warning) in expected {
        let path = samples().join(file);
        let output = decide([path.as_os_str(), "--json".as_ref()]);
        assert!(stderr(&output).contains(warning), "{file}: {}", stderr(&output));
        let Some(patch_known) = patch_known else {
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{file}");
            continue;
        };
        let decision = json(&output);
        for key in ["action", "estimates", "available", "lambda", "tokens", "latency", "model", "source", "digests"] {
            assert!(!decision[key].is_null(), "{file}: `{key}`");
        }
        assert_eq!(decision["source"]["patch_bytes"].is_u64(), patch_known, "{file}");
        let available = decision["available"].as_array().unwrap();
        assert!(available.contains(&decision["action"]), "{file}");
        assert_eq!(available, &["submit", "continue", "retry"].map(Value::from), "{file}: there is no menu");
        assert!(decision["tokens"]["total"].as_u64().unwrap() <= 4_096, "{file}");
        assert_eq!(decision["model"]["trained"], false, "{file}");
        let notes = decision["notes"].to_string();
        assert!(notes.contains("estimates carry no information"), "{file}: {notes}");

        // The same decision for people, and the same again: nothing but the times may differ.
        let again = json(&decide([path.as_os_str(), "--json".as_ref()]));
        for key in ["action", "estimates", "tokens", "digests"] {
            assert_eq!(again[key], decision[key], "{file}: `{key}`");
        }
        let people = decide([path.as_os_str()]);
        let text = String::from_utf8(people.stdout).unwrap();
        assert!(text.contains(&format!("\n* {}", decision["action"].as_str().unwrap())), "{file}:\n{text}");
        assert!(text.contains("estimates carry no information"), "{file}:\n{text}");
    }
}

#[test]
fn a_wrong_question_ends_with_2_and_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj").to_str().unwrap().to_owned();
    let preds = samples().join("swe-bench-harness/example_model_output.preds.json").to_str().unwrap().to_owned();
    let (empty, noise) = (write("empty", b""), write("noise.json", b"\x00\xff{]"));
    let large = write("large.json", &vec![b' '; (1 << 20) + 1]);
    let spoof = write("spoof.json", b"{\"\\u001b]0;owned\\u0007\": 1}");
    let patch = write("a.diff", b"diff --git a/a b/a\n");
    let tasks = write(
        "tasks.jsonl",
        b"{\"instance_id\": \"a\", \"problem_statement\": \"b\"}\n{\"instance_id\": \"c\", \"problem_statement\": \"d\"}\n",
    );
    let cut = write("cut.traj", &fs::read(&traj).unwrap()[..10_000]);
    let menu = write(
        "menu.json",
        br#"{"format": "tack-menu", "version": 1, "targeted": ["a","b","c","d","e","f"], "broader": []}"#,
    );
    let (missing, here) = ("/nowhere/at/all.traj".to_owned(), folder.path().to_str().unwrap().to_owned());
    #[rustfmt::skip]
    let cases: [(&[&str], &str); 22] = [
        (&[&missing],                              "cannot open `/nowhere/at/all.traj`"),
        (&[&here],                                 "is not a regular file"),
        (&["/dev/zero"],                           "is not a regular file"),
        (&[&traj, "--patch", "/dev/zero"],         "is not a regular file"),
        (&[&traj, "--menu", &large],               "is larger than a menu may be: 1048576 bytes"),
        (&[&spoof],                                "\\u{1b}]0;owned\\u{7}"),
        (&[&empty],                                "the file is empty"),
        (&[&noise],                                "this is a binary file, and no recording in JSON"),
        (&[&patch],                                "this is a patch, and no recording in JSON. Give it with `--patch`"),
        (&[&cut],                                  "is not readable JSON"),
        (&[&traj, "--at", "99"],                   "there is no decision point after step 99"),
        (&[&traj, "--at", "2"],                    "may not be used before the end"),
        (&[&traj, "--lambda", "nan"],              "lambda must be finite and not negative"),
        (&[&traj, "--lambda=-1"],                  "lambda must be finite and not negative"),
        (&[&traj, "--model", &here],               "cannot"),
        (&[&traj, "--menu", &menu],                "at most 5 test functions; found 6"),
        (&[&preds, "--instance", "nobody"],        "no row for the instance `nobody`"),
        (&[&preds, "--issue", &tasks],             "tasks.jsonl`\n  because: no row for the instance `"),
        (&[&traj, "--cpu-isa", "mmx"],             "expected one of scalar, neon, avx2, avx-vnni, avx512, avx512-vnni"),
        (&[&traj, "--cpu-isa", OTHER_ISA],         "this processor does not have"),
        (&[&traj, "--precision", "int4"],          "expected auto, exact or integer"),
        (&[],                                      "required"),
    ];
    for (arguments, sentence) in cases {
        let output = decide(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(sentence), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.contains(&0x1b), "{arguments:?}: a file speaks to the terminal");
    }
}

/// Instructions of the other architecture.
const OTHER_ISA: &str = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };

#[test]
fn instructions_change_nothing_and_precision_says_what_it_is() {
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    let traj = traj.to_str().unwrap();
    let standard = json(&decide([traj, "--json"]));
    assert_eq!((&standard["model"]["precision"], &standard["tokens"]["cached"]), (&"f32".into(), &0.into()));
    let phases = standard["model"]["load_phases"].as_array().unwrap();
    assert!(phases.iter().any(|it| it["phase"] == "pack" && it["wall"].is_u64()), "{phases:?}");

    for precision in ["exact", "integer"] {
        let outputs = [
            decide([traj, "--json", "--precision", precision]),
            decide([traj, "--json", "--precision", precision, "--cpu-isa", "scalar"]),
            Command::new(env!("CARGO_BIN_EXE_tack"))
                .args(["decide", traj, "--json", "--precision", precision, "--no-pack"])
                .env("TACK_CPU_ISA", "scalar")
                .output()
                .unwrap(),
        ];
        let outputs = outputs.map(|output| json(&output));
        assert_eq!([&outputs[1], &outputs[2]].map(|it| &it["model"]["isa"]), ["scalar"; 2]);
        for output in &outputs {
            assert_eq!(output["model"]["precision"], if precision == "exact" { "f32" } else { "int12" });
            assert_eq!(output["estimates"], outputs[0]["estimates"]);
            assert_eq!(output["estimates"] == standard["estimates"], precision == "exact", "rounding shows");
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_tack")).args(["decide", traj]).env("TACK_CPU_ISA", "mmx").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("the variable `TACK_CPU_ISA` is of no use\n  because: `mmx`"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_recording_is_read_from_standard_input_too() {
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    let piped = Command::new(env!("CARGO_BIN_EXE_tack"))
        .args(["decide", "-", "--json"])
        .stdin(fs::File::open(&traj).unwrap())
        .output()
        .unwrap();
    let (piped, named) = (json(&piped), json(&decide([traj.to_str().unwrap(), "--json"])));
    assert_eq!(piped["digests"], named["digests"]);
}

#[test]
fn a_menu_opens_the_test_actions_and_a_patch_an_earlier_step() {
    let folder = tempfile::tempdir().unwrap();
    let (menu, patch) = (folder.path().join("menu.json"), folder.path().join("a.patch"));
    fs::write(&menu, r#"{"format": "tack-menu", "version": 1, "targeted": ["tests/a.py::t"], "broader": []}"#).unwrap();
    fs::write(&patch, "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n").unwrap();
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    let traj = traj.to_str().unwrap();
    let decision = json(&decide([traj, "--json", "--menu", menu.to_str().unwrap()]));
    assert_eq!(decision["available"], serde_json::json!(["submit", "continue", "retry", "test_targeted"]));
    assert_eq!(decision["estimates"][4]["reason"], "menu_empty");
    let decision = json(&decide([traj, "--json", "--at", "2", "--patch", patch.to_str().unwrap()]));
    assert_eq!((&decision["source"]["step"], &decision["source"]["at_default_point"]), (&2.into(), &false.into()));
}

#[test]
fn a_missed_deadline_is_a_fallback_that_says_so_and_a_generous_one_changes_nothing() {
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    let traj = traj.to_str().unwrap();
    let late = json(&decide([traj, "--json", "--deadline", "0"]));
    assert_eq!(late["fallback"]["reason"], "deadline_missed");
    assert_eq!(late["action"], "submit", "a known patch that is not empty is handed in");
    assert!(late["estimates"].as_array().unwrap().iter().all(|it| it["success"].is_null()), "no late guess");
    let early = json(&decide([traj, "--json", "--deadline", "600000"]));
    assert!(early["fallback"].is_null());
    assert_eq!(early["estimates"], json(&decide([traj, "--json"]))["estimates"]);
}

#[test]
fn lambda_moves_the_choice_as_the_rule_says() {
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    for lambda in ["0", "0.02", "0.5", "1000"] {
        let decision = json(&decide([traj.to_str().unwrap(), "--json", "--lambda", lambda]));
        let lambda: f64 = lambda.parse().unwrap();
        let utility = |it: &Value| it["success"].as_f64().unwrap() - lambda * it["cost"].as_f64().unwrap();
        let rows = decision["estimates"].as_array().unwrap();
        let best = rows.iter().filter(|it| it["available"] == true).max_by(|a, b| utility(a).total_cmp(&utility(b)));
        assert_eq!(best.unwrap()["action"], decision["action"], "lambda {lambda}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let traj = samples().join("swe-agent/pydicom__pydicom-1458.traj");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tack"))
        .args(["decide", traj.to_str().unwrap(), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}
