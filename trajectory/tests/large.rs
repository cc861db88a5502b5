//! Files that are larger than what may be held beside them: read, or refused, within the memory that the crate's
//! documentation states. The figure is what was allocated at most at one time while it was read.

use std::time::{Duration, Instant};

use allocation_counter::measure;
use tack_trajectory::{Cause, KEPT_MAX, Options, read};

const MIB: usize = 1024 * 1024;

/// What may be held beside a file of one output of 100 MB. What is kept of it and the pieces around it are a few
/// megabytes, whatever its size: so smaller files show the same.
const EXTRA_MAX: u64 = 8 * MIB as u64;

/// `before`, then about `mib` of `unit`, then `after`.
fn file(before: &str, unit: &[u8], mib: usize, after: &str) -> Vec<u8> {
    let count = mib * MIB / unit.len();
    let mut file = Vec::with_capacity(before.len() + count * unit.len() + after.len());
    file.extend_from_slice(before.as_bytes());
    file.append(&mut unit.repeat(count));
    file.extend_from_slice(after.as_bytes());
    file
}

/// A line of a log, as it stands in JSON.
const LINE: &[u8] = br"tests/test_module.py::test_case PASSED [ 42%]\n";

/// Name; the file's beginning, its unit, how many MiB of it, the end; the output's bytes for each unit.
type Case<'a> = (&'a str, &'a str, &'a [u8], usize, &'a str, usize);

#[test]
fn a_file_of_100_mb_takes_a_few_megabytes_beside_it() {
    let mini2 = r#"{"trajectory_format": "mini-swe-agent-1.1", "info": {"submission": "diff --git a/a b/a\n"}, "messages": [
        {"role": "user", "content": "the task"},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "yes"}]}},
        {"role": "user", "content": "cut", "extra": {"returncode": 0, "raw_output": ""#;
    let mini1 = r#"{"trajectory_format": "mini-swe-agent-1", "info": {}, "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "the task"},
        {"role": "assistant", "content": "```bash\nyes\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>\n"#;
    let swe = r#"{"replay_config": {}, "trajectory": [{"action": "yes", "state": {}, "observation": ""#;
    let atif = r#"{"schema_version": "ATIF-v1.7", "steps": [{"source": "agent", "message": "", "tool_calls":
        [{"function_name": "Bash", "arguments": {"command": "yes"}}], "observation": {"results": [{"content": ""#;
    let v0 =
        r#"{"instance_id": "a", "instruction": "b", "history": [{"id": 1, "source": "agent", "action": "run", "args":
        {"command": "yes"}}, {"observation": "run", "cause": 1, "content": ""#
            .replace('\n', " ");
    let sdk = r#"[{"kind": "ActionEvent", "id": "1", "source": "agent", "tool_name": "terminal", "action": {"command": "yes"}},
        {"kind": "ObservationEvent", "source": "environment", "tool_name": "terminal", "action_id": "1", "observation": {"content": ""#;
    let state = r#"{"format": "tack-state", "version": 1, "observations": [
        {"step": 0, "call": "yes", "reason": "tool_call", "output": ""#;
    let base64 = format!("{state}x").replace("\"x", "{\"base64\": \"");
    #[rustfmt::skip]
    let cases: [Case<'_>; 12] = [ // name, file: before, unit, MiB, after; bytes a unit
        ("lines",                mini2,   LINE,        100, r#""}}]}"#,          LINE.len() - 1),
        ("escapes",              mini2,   br"yes\n",   12,  r#""}}]}"#,          4),
        ("not UTF-8",            mini2,   b"y\xff",    12,  r#""}}]}"#,          4),
        ("no escape",            mini2,   b"y",        12,  r#""}}]}"#,          1),
        ("half pairs",           mini2,   br"\udc80",  12,  r#""}}]}"#,          3),
        ("mini-swe-agent-1",     mini1,   br"yes\n",   12,  r#"</output>"}]}"#,  4),
        ("SWE-agent",            swe,     br"yes\n",   12,  r#""}]}"#,           4),
        ("ATIF",                 atif,    br"yes\n",   12,  r#""}]}}]}"#,        4),
        ("OpenHands",            &v0,     br"yes\n",   12,  r#""}]}"#,           4),
        ("OpenHands SDK",        sdk,     br"yes\n",   12,  r#""}}]"#,           4),
        ("a state",              state,   br"yes\n",   12,  r#""}]}"#,           4),
        ("a state, not UTF-8",   &base64, b"/w8P",     12,  r#""}}]}"#,          3),
    ];
    for (name, before, unit, mib, after, bytes_a_unit) in cases {
        let output_bytes = mib * MIB / unit.len() * bytes_a_unit;
        let file = file(before, unit, mib, after);
        let mut found = None;
        let extra = measure(|| found = Some(read(&file, "large", &Options::default()))).bytes_max;
        println!("{name}: {} kB beside a file of {mib} MiB", extra / 1024);
        assert!(extra <= EXTRA_MAX, "{name}: {extra} bytes beside a file of {mib} MiB");
        let read = found.unwrap().unwrap();
        assert_eq!(read.state.observations.len(), 1, "{name}");
        let output = &read.state.observations[0].output;
        assert!((KEPT_MAX - 200..=KEPT_MAX).contains(&output.len()), "{name}: {}", output.len());
        let notes: Vec<_> = read.gaps.iter().filter(|it| it.note.starts_with("calls and answers over")).collect();
        assert_eq!((notes.len(), notes[0].cause), (1, Cause::Altered), "{name}");
        // Every byte is accounted for, but for the few by which the file is longer than its output.
        let dropped: usize = notes[0].note.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
        let mark = format!("\n[... {dropped} bytes left out ...]\n");
        assert!(output.windows(mark.len()).any(|window| window == mark.as_bytes()), "{name}: {}", notes[0]);
        assert!((dropped + output.len() - mark.len()).abs_diff(output_bytes) <= 64, "{name}: {}", notes[0]);
    }
    #[rustfmt::skip]
    let refused: [(&str, &str, &[u8], usize, &str); 5] = [ // name, file: before, unit, MiB; what is said
        ("a text",               "a long story",  b"so it goes ",   200, "this is text, and no recording"),
        ("noise",                "",              b"\x00\xff\x80",  200, "this is a binary file, and no recording"),
        ("noise in JSON",        "{\"a\": [",     b"\xff\x80",      200, "line 1, column 8 is not readable JSON"),
        ("a string without end", "{\"a\": \"",    b"so it goes\\n",  32,  "line 1, column "),
        ("nothing but blanks",   "",              b" \n",           32,  "the file is empty"),
    ];
    for (name, before, unit, mib, expected) in refused {
        let file = file(before, unit, mib, "");
        let (mut found, started) = (None, Instant::now());
        let extra = measure(|| found = Some(read(&file, "large", &Options::default()))).bytes_max;
        let (problem, took) = (found.unwrap().unwrap_err().problem, started.elapsed());
        println!("{name}: {extra} bytes and {took:?} for a file of {mib} MiB");
        assert!(problem.to_string().starts_with(expected), "{name}: {problem}");
        assert!(extra <= 4_096, "{name}: {extra} bytes");
        // Unoptimized and on a busy machine: the bound is only there to notice work that nobody needs.
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    }
}
