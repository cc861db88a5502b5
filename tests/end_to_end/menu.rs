//! `tack menu` as a person runs it.

#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn menu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tack")).arg("menu").args(arguments).output().unwrap()
}

fn example(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/retrykit").join(path).display().to_string()
}

#[test]
fn the_example_s_tests_are_chosen_by_the_names_of_the_changed_files() {
    let (repository, patch) = (example("repository"), example("candidates/local_only.patch"));
    let output = menu(&[&repository, "--patch", &patch]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("runner: pytest\ntest_targeted\n  tests/test_config.py::"), "{text}");

    // What it prints as JSON is what a decision takes: the two test actions become available.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), menu(&[&repository, "--patch", &patch, "--json"]).stdout).unwrap();
    let state =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../trajectory/samples/swe-agent/pydicom__pydicom-1458.traj");
    let decided = Command::new(env!("CARGO_BIN_EXE_tack"))
        .args(["decide", "--json", "--menu"])
        .args([file.path(), &state])
        .output()
        .unwrap();
    let decided = String::from_utf8(decided.stdout).unwrap();
    assert!(!decided.contains("the test menu is unknown"), "{decided}");
}

#[test]
fn what_is_no_repository_or_no_patch_is_said() {
    let cases: [(&[&str], &str); 3] = [
        (&["/nowhere/at/all", "--patch", &example("candidates/local_only.patch")], "cannot read `/nowhere/at/all`"),
        (
            &[&example("repository"), "--patch", &example("task.json")],
            "line 1 of the patch: expected `diff --git a/PATH b/PATH`",
        ),
        (&[&example("repository"), "--patch", "/nowhere.patch"], "cannot open `/nowhere.patch`"),
    ];
    for (arguments, message) in cases {
        let output = menu(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(message), "{text}");
    }
}
