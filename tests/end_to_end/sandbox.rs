//! `tack sandbox` and `tack lab` as a person runs them. They make real sandboxes, so they need root.

#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, its helpers too")]

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};
use std::{env, fs};

use serde_json::Value;

fn tack(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tack")).args(arguments).current_dir("/").output().unwrap()
}

/// Whether this process is root; says so where it is not, so that nothing is skipped in silence.
fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
    if !root {
        eprintln!("SKIPPED: {test} needs root, to make sandboxes");
        assert!(env::var_os("CI").is_none(), "CI skips nothing");
    }
    root
}

#[test]
fn the_lab_prints_the_article_s_table() {
    if !is_root("the_lab_prints_the_article_s_table") {
        return;
    }
    let output = tack(&["lab"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Vec<&str>> = text.lines().take(4).map(|line| line.split_whitespace().collect()).collect();
    #[rustfmt::skip]
    assert_eq!(rows, [
        ["candidate",      "scope", "compile", "visible", "hidden", "mutation", "accepted"],
        ["local_only",     "pass",  "pass",    "pass",    "fail",   "fail",     "no"],
        ["repository_fix", "pass",  "pass",    "pass",    "pass",   "pass",     "yes"],
        ["scope_escape",   "fail",  "pass",    "pass",    "pass",   "pass",     "no"],
    ]);
    let receipts: Value = serde_json::from_slice(&tack(&["lab", "--json"]).stdout).unwrap();
    let local_only = &receipts["candidates"][0];
    assert_eq!(local_only["candidate"], "local_only");
    assert!(local_only.to_string().contains("not_run"), "a layer that was not reached did not fail: {local_only}");
    assert!(local_only["binding"]["patch"].as_str().is_some_and(|it| it.len() == 64), "{local_only}");
    let output = tack(&["lab", "--candidate", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_run_passes_output_and_status_through() {
    if !is_root("a_run_passes_output_and_status_through") {
        return;
    }
    #[rustfmt::skip]
    let cases: [(&[&str], i32, &str, &str); 9] = [ // after `sandbox run`         status  stdout       stderr contains
        (&["--", "sh", "-c", "echo out; echo err >&2; exit 7"],                    7,     "out\n",     "err\n"),
        (&["--", "sh", "-c", "kill -9 $$"],                                        137,   "",          ""),
        (&["--", "no-such-command"],                                               127,   "",          "no such command"),
        (&["--", "/etc/passwd"],                                                   126,   "",          "cannot be executed"),
        (&["--time", "0.2", "--", "sleep", "60"],                                  137,   "",          "the wall limit passed"),
        (&["--rw", "/nowhere/at/all", "--", "true"],                               125,   "",          "cannot show `/nowhere/at/all`"),
        (&["--ro", "/etc", "--", "true"],                                          125,   "",          "`/etc` cannot be shown to it"),
        (&["--ro", "/etc/hosts", "--", "true"],                                    125,   "",          "the command did not run"),
        (&["--time", "0", "--", "true"],                                           125,   "",          "is not a number of seconds"),
    ];
    for (arguments, status, stdout, stderr) in cases {
        let output = tack(&[&["sandbox", "run"], arguments].concat());
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*out), (Some(status), stdout), "{arguments:?}: {err}");
        assert!(err.contains(stderr), "{arguments:?}: {err}");
    }
}

#[test]
fn a_caller_that_ignores_its_children_gets_the_same_answers() {
    if !is_root("a_caller_that_ignores_its_children_gets_the_same_answers") {
        return;
    }
    for arguments in ["sandbox run -- sh -c 'exit 7'", "lab --candidate repository_fix"] {
        let of = |trap: &str| {
            let script = format!("{trap} exec {} {arguments}", env!("CARGO_BIN_EXE_tack"));
            Command::new("sh").args(["-c", &script]).output().unwrap()
        };
        let (plain, ignoring) = (of(""), of("trap '' CHLD;"));
        assert_eq!((ignoring.status, ignoring.stdout), (plain.status, plain.stdout), "{arguments}");
    }
}

#[test]
fn what_is_given_to_write_is_written_and_nothing_else() {
    if !is_root("what_is_given_to_write_is_written_and_nothing_else") {
        return;
    }
    let (open, closed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (open, closed) = (open.path().to_str().unwrap(), closed.path().to_str().unwrap());
    let script = "echo a > made; pwd; cat there; echo b > /tmp/x && echo b > \"$1/made\"";
    fs::write(format!("{open}/there"), "was there\n").unwrap();
    let output = tack(&["sandbox", "run", "--rw", open, "--ro", closed, "--", "sh", "-c", script, "sh", closed]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{open}\nwas there\n"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Read-only file system"), "the errno of the denied write");
    assert_eq!(fs::read_to_string(format!("{open}/made")).unwrap(), "a\n");
    assert_eq!(fs::metadata(format!("{open}/made")).unwrap().uid(), 0, "what it made belongs to the folder's owner");
    assert!(fs::read_dir(closed).unwrap().next().is_none());
}

#[test]
fn a_scratch_is_as_it_was_when_the_command_has_changed_all_of_it() {
    if !is_root("a_scratch_is_as_it_was_when_the_command_has_changed_all_of_it") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "mine").unwrap();
    let path = directory.path().to_str().unwrap();
    let output =
        tack(&["sandbox", "run", "--scratch", path, "--", "sh", "-c", "echo theirs >file; cat file; rm -r ./*; ls"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"theirs\n"[..]), "{output:?}");
    assert_eq!(fs::read_to_string(file).unwrap(), "mine");
}

#[test]
fn check_says_what_the_host_offers_and_every_door_holds() {
    if !is_root("check_says_what_the_host_offers_and_every_door_holds") {
        return;
    }
    let output = tack(&["sandbox", "check", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["holds"]), (Some(0), &true.into()), "{report:#}");
    let lines = report["probe"].as_array().unwrap();
    assert!(lines.len() >= 30, "only {} doors were tried", lines.len());
    let proven = lines.iter().filter(|line| line["has_control"] == true).count();
    assert!(proven * 2 > lines.len(), "{proven} of {} lines have a control that succeeds", lines.len());
    let text = String::from_utf8(tack(&["sandbox", "check", "--policy"]).stdout).unwrap();
    assert!(text.contains("lines hold") && text.contains("allowed call"), "{text}");
}
