//! Files as they come: cut off, damaged, of the wrong types, with bytes that are no text. Each is a state or an error
//! that names the place; none is a panic.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tack_trajectory::{About, Cause, Format, IssueFile, Options, OwnedState, Problem, Read, read, read_menu};

const SMALL: [&str; 8] = [
    "mini-swe-agent/github_issue.v1-messages.traj.json",
    "mini-swe-agent/synthetic.v2.traj.json",
    "openhands/sdk_events.jsonl",
    "swe-agent/all_preds.jsonl",
    "swe-agent/swe-agent__test-repo-i1.traj",
    "swe-bench-harness/example_model_output.preds.json",
    "swe-bench-harness/sympy__sympy-23950.report.json",
    "trae-agent/patch_selection_example.jsonl",
];

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)).unwrap()
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n") + "\n"
}

fn read_text(text: &str) -> Result<Read, Problem> {
    read(text.as_bytes(), "file", &Options::default()).map_err(|error| error.problem)
}

/// A run of mini-swe-agent 2.x with one command.
fn mini2(output: &Value) -> String {
    let said =
        json!({"role": "assistant", "content": "look", "extra": {"actions": [{"command": "cat a"}], "timestamp": 1.5}});
    let answer = json!({"role": "user", "content": "shown", "extra": {"raw_output": output, "returncode": 0}});
    let messages = json!([{"role": "user", "content": "the task"}, said, answer]);
    json!({"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": messages}).to_string()
}

#[test]
fn awkward_text_arrives_as_it_was_recorded() {
    for text in ["", "a\r\nb\r\n", "nul \0 nul", "\u{1b}[1mcolor\u{1b}[0m", "<|im_end|>", "\u{fffd}", "e\u{301}🎉"] {
        let read = read_text(&mini2(&text.into())).unwrap();
        assert_eq!(read.state.observations[0].output, text.as_bytes());
        assert!(read.gaps.iter().all(|gap| gap.cause != Cause::Altered));
        assert_eq!(OwnedState::from_json(read.state.to_json().as_bytes()).unwrap(), read.state);
    }
}

#[test]
fn bytes_that_are_no_text_are_replaced_and_said_so() {
    #[rustfmt::skip]
    let cases: [(&[u8], &str, &str); 3] = [
        (b"a\xffb",      "a\u{fffd}b",       "bytes that are not UTF-8, each replaced by U+FFFD: 1"),
        (br"a\udc80b",   "a\u{fffd}b",       "half surrogate pairs, each replaced by U+FFFD: 1"),
        (br"\ud83d\ude00\ud83d", "😀\u{fffd}", "half surrogate pairs, each replaced by U+FFFD: 1"),
    ];
    for (raw, expected, note) in cases {
        let text = mini2(&"HERE".into()).into_bytes();
        let at = text.windows(4).position(|window| window == b"HERE").unwrap();
        let file = [&text[..at], raw, &text[at + 4..]].concat();
        let read = read(&file, "file", &Options::default()).unwrap();
        assert_eq!(read.state.observations[0].output, expected.as_bytes());
        let altered: Vec<_> = read.gaps.iter().filter(|gap| gap.cause == Cause::Altered).collect();
        assert_eq!(altered.len(), 1);
        assert_eq!((altered[0].about, altered[0].note.as_ref()), (About::Observations, note));
    }
}

#[test]
fn files_end_lines_as_they_like() {
    let lines = String::from_utf8(sample("openhands/sdk_events.jsonl")).unwrap();
    let expected = read_text(&lines).unwrap();
    let variants = [
        lines.replace('\n', "\r\n"),
        lines.replace('\n', "\n\n"),
        lines.trim_end().to_owned(),
        format!("\u{feff}{lines}"),
        format!("[{}]", lines.trim_end().replace('\n', ",\n")),
    ];
    for variant in variants {
        assert_eq!(read_text(&variant).unwrap(), expected);
    }
}

#[test]
fn a_damaged_file_is_an_error_that_names_the_place() {
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let wrong = |pointer: &str, value: Value| {
        let mut root: Value = serde_json::from_str(&mini2(&"x".into())).unwrap();
        *root.pointer_mut(pointer).unwrap() = value;
        root.to_string()
    };
    let swe = |trajectory: Value| json!({"trajectory": trajectory, "info": {}, "history": []}).to_string();
    let row = |history: Value| {
        format!("{}\n", json!({"instance_id": "a", "instruction": "b", "test_result": {}, "history": history}))
    };
    #[rustfmt::skip]
    let cases = [
        (String::new(),                               "the file is empty"),
        (" \r\n".into(),                               "the file is empty"),
        ("{\"a\": [1,\n 2".into(),                     "line 2, column 3 is not readable JSON: expected `,` or `]` after an item; found the end"),
        ("not json".into(),                            "this is text, and no recording in JSON. Give what the agent recorded; known are tack-state 1, SWE-agent 0.x"),
        ("\n--- a\n+++ b\n".into(),                    "this is a patch, and no recording in JSON. Give it with `--patch`, beside a recording"),
        ("{\"id\": 1}\n{\"id\": ".into(),              "line 2, column 8 is not readable JSON: expected a value; found the end"),
        ("{\"a\": 1, \"a\": 2}".into(),                "line 1, column 10 is not readable JSON: the key `a` stands twice in one object"),
        (deep,                                         "line 1, column 129 is not readable JSON: nested more than 128 deep"),
        ("7".into(),                                   "not a format that can be read (a lone JSON value); known are"),
        ("{}".into(),                                  "not a format that can be read (an object with the keys (none)); known are"),
        ("[]".into(),                                  "not a format that can be read (an array of 0); known are"),
        ("{\"x\": 1, \"y\": 2}".into(),                "not a format that can be read (an object with the keys x, y); known are"),
        (wrong("/messages", json!(7)),                 "`messages` should be an array; found the number 7"),
        (wrong("/messages/1", json!("hello")),         "`messages[1]` should be an object; found the string \"hello\""),
        (wrong("/messages/1/role", json!("judge")),    "`messages[1].role` should be system, user, assistant, tool or exit"),
        (wrong("/messages/1/extra/actions", json!({})), "`messages[1].extra.actions` should be an array; found an object of 0"),
        (wrong("/messages/1/extra/actions/0/command", json!(null)), "`messages[1].extra.actions[0].command` is missing; expected the command to run"),
        (wrong("/messages/2/extra/returncode", json!("0")), "`messages[2].extra.returncode` should be a whole number; found the string \"0\""),
        (wrong("/trajectory_format", json!("mini-swe-agent-2")), "mini-swe-agent says version `mini-swe-agent-2`; known are mini-swe-agent-1, mini-swe-agent-1.1"),
        (json!({"schema_version": "ATIF-v2.0", "steps": []}).to_string(), "ATIF says version `ATIF-v2.0`; known are ATIF-v1.0 to ATIF-v1.8"),
        (json!({"schema_version": "ATIF-v1.7", "steps": [{"source": "judge"}]}).to_string(), "`steps[0].source` should be system, user or agent; found `\"judge\"`"),
        (swe(json!([{"action": "ls", "state": 7}])),   "`trajectory[0].state` should be a JSON string (0.x) or an object (1.x); found the number 7"),
        (swe(json!([{"observation": "x", "state": ""}])), "`trajectory[0].action` is missing; expected what the agent typed"),
        (row(json!([{"kind": "ActionEvent"}])),        "OpenHands output.jsonl says version `events of V1 (they have a `kind`)`; known are V0"),
        (row(json!([[{}, {}]])),                       "`[0].history[0]` should be an object; found an array of 2"),
        (row(json!([{"action": "system", "args": {"openhands_version": "1.2.0"}}])), "OpenHands output.jsonl says version `1.2.0`; known are 0.x"),
        (json!([{"instance_id": 7, "model_patch": ""}]).to_string(), "`[0].instance_id` should be a string; found the number 7"),
        (json!({"format": "tack-state", "version": 9, "observations": []}).to_string(), "tack-state says version `9`; known are 1"),
    ];
    for (text, expected) in cases {
        let problem = read_text(&text).unwrap_err().to_string();
        assert!(
            problem.starts_with(expected),
            "{}\n  expected: {expected}\n  found:    {problem}",
            &text[..text.len().min(200)]
        );
    }
}

#[test]
fn no_format_and_no_version_is_guessed() {
    let swe = |trajectory: Value, version: Value| json!({"trajectory": trajectory, "info": {"swe_agent_version": version}, "history": []});
    let with = |mut root: Value, key: &str, value: Value| {
        root[key] = value;
        root
    };
    let (text, object) = (json!({"action": "ls", "state": "{}"}), json!({"action": "ls", "state": {}}));
    let neither = json!({"action": "ls"});
    let none = || Err("SWE-agent says version `(none)`; known are 0.x");
    let chat = |prompt: &str| {
        json!([{"role": "system", "content": "s"}, {"role": "user", "content": prompt},
            {"role": "assistant", "content": "```bash\nls\n```"}])
    };
    let mini1 = |regex: Value| json!({"trajectory_format": "mini-swe-agent-1", "messages": [], "info": {"config": {"agent": {"action_regex": regex}}}});
    let v0 = |history: Value| json!({"instance_id": "a", "instruction": "b", "test_result": {}, "history": history});
    let not_v0 = || Err("OpenHands output.jsonl says version `(none: no event tells it)`; known are V0");
    #[rustfmt::skip]
    let cases: Vec<(Value, Result<Format, &str>)> = vec![
        (json!({"trajectory": []}),                                   none()),
        (json!({"trajectory": [{"action": "ls"}]}),                   none()),
        (swe(json!([neither]), json!(null)),                          none()),
        (swe(json!([]), json!("0.7.0")),                              Ok(Format::SweAgent0)),
        (swe(json!([neither]), json!("1.1.0")),                       Ok(Format::SweAgent1)),
        (swe(json!([neither, text]), json!(null)),                    Ok(Format::SweAgent0)),
        (swe(json!([text, text]), json!("0.7.0")),                    Ok(Format::SweAgent0)),
        (swe(json!([object, neither]), json!("1.0.1")),               Ok(Format::SweAgent1)),
        (with(swe(json!([]), json!(null)), "replay_config", json!({})), Ok(Format::SweAgent1)),
        (with(swe(json!([]), json!(null)), "replay_config", json!("{}")), Ok(Format::SweAgent1)),
        (with(swe(json!([]), json!(null)), "replay_config", json!("{")), Err("`replay_config` should be an object, or an object as JSON in a text; found the string")),
        (swe(json!([]), json!("2.0.0")),                              Err("SWE-agent says version `2.0.0`; known are 0.x")),
        (swe(json!([text]), json!("1.0.1")),                          Err("SWE-agent says version `1.0.1, in the shape of SWE-agent 0.x`")),
        (swe(json!([object]), json!("0.6.1")),                        Err("SWE-agent says version `0.6.1, in the shape of SWE-agent 1.x`")),
        (swe(json!([text, object]), json!(null)),                     Err("`trajectory[1].state` should be a JSON string (0.x); found an object of 0")),
        (swe(json!([object, text]), json!(null)),                     Err("`trajectory[1].state` should be an object (1.x); found the string \"{}\"")),
        (chat("Fix it, then say COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"), Ok(Format::MiniMessages)),
        (chat("Fix it, then say MINI_SWE_AGENT_FINAL_OUTPUT"),        Ok(Format::MiniMessages)),
        (chat("How do I list files?"),                                Err("not a format that can be read (messages of a chat, in whose prompt mini-swe-agent's line for handing in is missing)")),
        (mini1(json!(r"```bash\s*\n(.*?)\n```")),                     Ok(Format::Mini1)),
        (mini1(json!(null)),                                          Ok(Format::Mini1)),
        (mini1(json!("<bash>(.*?)</bash>")),                          Err("`info.config.agent.action_regex` should be a pattern for a block of ```bash or of ```mswea_bash_command; found")),
        (json!({"messages": [], "info": {}}),                         Err("mini-swe-agent says version `(none)`; known are mini-swe-agent-1")),
        (v0(json!([{"source": "user", "action": "message"}])),        Ok(Format::OpenHandsOutput)),
        (v0(json!([])),                                               not_v0()),
        (v0(json!([{"id": 1}])),                                      not_v0()),
        (json!({"kind": "PauseEvent", "source": "user"}),             Ok(Format::OpenHandsSdk)),
        (json!({"kind": "Event", "source": {"component": "kubelet"}, "metadata": {}}), Err("not a format that can be read (an object with the keys kind, metadata, source)")),
        (json!({"kind": "MessageEvent"}),                             Err("not a format that can be read (an object with the keys kind)")),
        (json!({"kind": "MessageEvent", "source": "user"}),           Err("`[0].llm_message` is missing; expected the message")),
        (json!({"schema_version": null, "steps": []}),                Err("`schema_version` is missing; expected the version of the format")),
        (json!({"format": "tack-state", "observations": []}),         Err("`version` is missing; expected the version of the format")),
    ];
    for (root, expected) in cases {
        let found = read_text(&root.to_string()).map(|read| read.format).map_err(|problem| problem.to_string());
        match (&found, expected) {
            (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{root}\n  {found}\n  {expected}"),
            (found, expected) => {
                assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|it| *it), "{root}");
            }
        }
    }
}

#[test]
fn an_error_names_the_file_that_is_at_fault_and_is_bounded() {
    let ids: Vec<_> = (0..5_000).map(|id| json!({"instance_id": format!("i{id}"), "model_patch": ""})).collect();
    let long = "x".repeat(1 << 20);
    let preds = lines(&ids);
    let of = |text: &str, options: &Options<'_>| read(text.as_bytes(), "pre\u{1b}[2Jds.json", options).unwrap_err();
    let issue = |bytes| Some(IssueFile { name: "tasks.jsonl", bytes });
    let tasks = lines(&[
        json!({"instance_id": "a", "problem_statement": "b"}),
        json!({"instance_id": "c", "problem_statement": "d"}),
    ]);
    let (nobody, at) =
        (Options { instance: Some(&long), ..Options::default() }, Options { at: Some(7), ..Options::default() });
    #[rustfmt::skip]
    let cases = [ // error, file, how the sentence begins
        (of(&preds, &nobody),                                                        "pre\\u{1b}[2Jds.json", "no row for the instance `xxxx"),
        (of(&preds, &Options { issue: issue(tasks.as_bytes()), ..Options::default() }), "tasks.jsonl", "no row for the instance `i0`; the file has a, c"),
        (of(&preds, &Options { issue: issue(b"{\"gold_patch\": "), ..Options::default() }), "tasks.jsonl", "line 1, column 16 is not readable JSON"),
        (of(&preds, &at),                                                            "pre\\u{1b}[2Jds.json", "there is no decision point after step 7"),
        (of(&json!({&long: 1, "\u{1b}]0;x\u{7}": 2}).to_string(), &Options::default()), "pre\\u{1b}[2Jds.json", "not a format that can be read (an object with the keys \\u{1b}]0;x\\u{7}, xxxx"),
        (of(&json!({"trajectory_format": &long, "messages": []}).to_string(), &Options::default()), "pre\\u{1b}[2Jds.json", "mini-swe-agent says version `xxxx"),
        (of(&json!({"format": "tack-state", "version": 1, "observations": [], &long: 1}).to_string(), &Options::default()), "pre\\u{1b}[2Jds.json", "`xxxx"),
        (of(&json!({"trajectory_format": "mini-swe-agent-1.1", "messages": [{"role": &long}]}).to_string(), &Options::default()), "pre\\u{1b}[2Jds.json", "`messages[0].role` should be system"),
        (of(&format!("{{\"{long}\": 1, \"{long}\": 2}}"), &Options::default()),         "pre\\u{1b}[2Jds.json", "line 1, column 1048585 is not readable JSON: the key `xxxx"),
        (of(&format!("{{\"trajectory\": {}}}", "1".repeat(1 << 20)), &Options::default()), "pre\\u{1b}[2Jds.json", "`trajectory` should be an array; found the number 1111"),
    ];
    for (error, file, expected) in cases {
        assert_eq!(error.to_string(), format!("cannot read `{file}`"));
        let sentence = error.problem.to_string();
        assert!(sentence.starts_with(expected), "{sentence}\n  {expected}");
        assert!(sentence.len() < 900 && !sentence.contains(char::is_control), "{} bytes: {sentence}", sentence.len());
    }
    let all = of(&preds, &nobody).problem.to_string();
    assert!(
        all.ends_with("(1048576 bytes)`; the file has i0, i1, i2, i3, i4, i5, i6, i7, i8, i9 and 4990 more"),
        "{all}"
    );
}

#[test]
fn several_states_in_one_file_are_named_as_such() {
    let state = OwnedState::default().to_json();
    for text in [state.repeat(2), lines(&[serde_json::from_str(&state).unwrap(), json!({"x": 1})])] {
        assert_eq!(
            read_text(&text).unwrap_err().to_string(),
            "more than one state stands in the file; give one state a file"
        );
    }
}

#[test]
fn predictions_come_in_three_shapes_and_null_is_not_empty() {
    let (null, empty, some) = (Value::Null, json!(""), json!("diff --git a/a b/a\n"));
    let row = |id: &str, patch: &Value| json!({"instance_id": id, "model_patch": patch, "model_name_or_path": "m"});
    let list = json!([row("a", &null), row("b", &empty), row("c", &some)]);
    let lines = lines(list.as_array().unwrap());
    let by_id = json!({"a": row("a", &null), "b": row("b", &empty), "c": {"model_patch": some}});
    for text in [list.to_string(), lines, by_id.to_string()] {
        for (id, expected) in [("a", None), ("b", Some(&b""[..])), ("c", Some(&b"diff --git a/a b/a\n"[..]))] {
            let options = Options { instance: Some(id), ..Options::default() };
            let read = read(text.as_bytes(), "preds.json", &options).unwrap();
            assert_eq!(read.format, Format::Predictions);
            assert_eq!(read.state.patch.as_deref(), expected, "{id}");
            assert_eq!(read.rows.count, 3);
            let warns = read.gaps.iter().any(|gap| gap.about == About::Patch && gap.is_warning());
            assert_eq!(warns, expected.is_none(), "{id}");
        }
        assert_eq!(read_text(&text).unwrap().instance.as_deref(), Some("a"));
    }
    let without = json!([row("a", &null), {"instance_id": "b"}]).to_string();
    let options = Options { instance: Some("b"), ..Options::default() };
    let problem = read(without.as_bytes(), "preds.json", &options).unwrap_err().problem.to_string();
    assert_eq!(problem, "`[1].model_patch` is missing; expected the patch, or null");
}

#[test]
fn a_run_that_was_cut_off_has_no_empty_patch() {
    let run = |submission: Value, last: &str| {
        let said = json!({"role": "assistant", "content": "", "extra": {"actions": [{"command": last}]}});
        let messages = json!([{"role": "user", "content": "the task"}, said]);
        json!({"trajectory_format": "mini-swe-agent-1.1", "info": {"submission": submission}, "messages": messages})
            .to_string()
    };
    let hands_in = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached";
    let says_so = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
    #[rustfmt::skip]
    let cases = [ // submission, last command, patch
        (json!(""),                       "ls",     None),
        (json!(null),                     "ls",     None),
        (json!(""),                       hands_in, Some("")),
        (json!(""),                       says_so,  None),
        (json!("I fixed it."),            hands_in, None),
        (json!("diff --git a/a b/a\n"),   hands_in, Some("diff --git a/a b/a\n")),
        (json!("diff --git a/a b/a\n"),   "ls",     Some("diff --git a/a b/a\n")),
    ];
    for (submission, last, patch) in cases {
        let read = read_text(&run(submission.clone(), last)).unwrap();
        assert_eq!(read.state.patch.as_deref(), patch.map(str::as_bytes), "{submission} after {last}");
    }
    // A run without a single step was cut off before all others.
    let mini = |format| json!({"trajectory_format": format, "info": {"submission": ""}, "messages": []});
    let swe = json!({"trajectory": [], "replay_config": {}, "info": {"submission": ""}});
    for root in [mini("mini-swe-agent-1"), mini("mini-swe-agent-1.1"), swe] {
        assert_eq!(read_text(&root.to_string()).unwrap().state.patch, None, "{root}");
    }
}

#[test]
fn our_own_form_is_read_as_it_stands() {
    let state = read(&sample("mini-swe-agent/pallets__flask-5014.traj.json"), "f", &Options::default()).unwrap().state;
    let again = read(state.to_json().as_bytes(), "state.json", &Options::default()).unwrap();
    assert_eq!((again.format, &again.state), (Format::State, &state));
    let marked = format!("\u{feff}{}", state.to_json());
    assert_eq!(read(marked.as_bytes(), "f", &Options::default()).unwrap().state, state, "with a byte order mark");
    let menu = "\u{feff}{\"format\": \"tack-menu\", \"version\": 1, \"targeted\": [], \"broader\": []}";
    read_menu(menu.as_bytes(), "menu.json").unwrap();
    let given = Options { patch: Some(b"other"), ..Options::default() };
    assert_eq!(read(state.to_json().as_bytes(), "f", &given).unwrap().state.patch.as_deref(), Some(&b"other"[..]));
    let at = Options { at: Some(0), ..Options::default() };
    assert!(matches!(read(state.to_json().as_bytes(), "f", &at).unwrap_err().problem, Problem::UnknownStep { .. }));
}

#[test]
fn the_examples_of_the_documentation_are_read() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("STATE.md")).unwrap();
    let blocks: Vec<_> = page.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let state = OwnedState::from_json(blocks[0].as_bytes()).unwrap();
    assert_eq!(OwnedState::from_json(state.to_json().as_bytes()).unwrap(), state);
    assert_eq!(state.observations[0].output, [0xff]);
    assert_eq!(read_menu(blocks[1].as_bytes(), "menu.json").unwrap().targeted().len(), 1);
}

#[test]
fn another_instance_than_the_files_is_an_error() {
    for (name, ids) in [
        ("mini-swe-agent/pallets__flask-5014.traj.json", "pallets__flask-5014"),
        ("openhands/multi_swe_bench.output.jsonl", "ponylang__ponyc-4595, ponylang__ponyc-4588"),
        ("openhands/sdk_events.jsonl", "no instance id"),
        ("trae-agent/patch_selection_example.jsonl", "astropy__astropy-14369"),
    ] {
        let options = Options { instance: Some("nobody__nothing-1"), ..Options::default() };
        let problem = read(&sample(name), name, &options).unwrap_err().problem.to_string();
        assert_eq!(problem, format!("no row for the instance `nobody__nothing-1`; the file has {ids}"));
    }
}

/// One change to a tree: the value at a place that `pick` chooses becomes `with`, or goes.
fn damage(value: &mut Value, pick: &mut u32, with: Option<&Value>) -> bool {
    if *pick == 0 {
        if let Some(with) = with {
            *value = with.clone();
        }
        return true;
    }
    *pick -= 1;
    match value {
        Value::Array(items) => {
            for index in 0..items.len() {
                if *pick == 0 && with.is_none() {
                    items.remove(index);
                    return true;
                }
                if damage(&mut items[index], pick, with) {
                    return true;
                }
            }
        }
        Value::Object(members) => {
            let keys: Vec<_> = members.keys().cloned().collect();
            for key in keys {
                if *pick == 0 && with.is_none() {
                    members.remove(&key);
                    return true;
                }
                if damage(&mut members[&key], pick, with) {
                    return true;
                }
            }
        }
        _ => {}
    }
    false
}

fn any_value() -> impl Strategy<Value = Option<Value>> {
    let texts =
        ["", "x", "diff --git a/a b/a\n", "submit", "-1", "2026-01-01T00:00:00Z", "finish", "agent", "FormatError"];
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        any::<bool>().prop_map(|it| Some(it.into())),
        any::<i64>().prop_map(|it| Some(it.into())),
        any::<u64>().prop_map(|it| Some(it.into())),
        any::<f64>().prop_map(|it| Some(json!(it))),
        (0..texts.len()).prop_map(move |it| Some(texts[it].into())),
        Just(Some(json!([]))),
        Just(Some(json!({}))),
        Just(Some(json!([[{"role": "user"}]]))),
        Just(Some(json!({"text": 7, "command": ["x"]}))),
    ]
}

fn check(bytes: &[u8], at: Option<u32>) {
    let options = Options { at, patch: at.map(|_| &b""[..]), ..Options::default() };
    match read(bytes, "fuzz", &options) {
        Ok(read) => {
            // What was read can be lent, written and read again.
            let lent = read.state.lend_with(&read.saved);
            assert_eq!(lent.state().observations.len(), read.state.observations.len());
            assert!(lent.candidate().complete_history.len() >= read.state.observations.len());
            assert_eq!(OwnedState::from_json(read.state.to_json().as_bytes()).unwrap(), read.state);
        }
        Err(error) => assert!(!error.problem.to_string().is_empty()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        check(&bytes, None);
    }

    #[test]
    fn a_sample_cut_or_with_changed_bytes(
        which in 0..SMALL.len(),
        cut in 0.0..1.0_f64,
        changes in proptest::collection::vec((0.0..1.0_f64, any::<u8>()), 0..4),
        is_cut: bool,
    ) {
        let mut bytes = sample(SMALL[which]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let place = |share: f64, len: usize| (share * len as f64) as usize;
        for (share, byte) in changes {
            let at = place(share, bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(place(cut, bytes.len()));
        }
        check(&bytes, None);
    }

    #[test]
    fn a_sample_with_changed_values(
        which in 0..SMALL.len(),
        changes in proptest::collection::vec((0_u32..400, any_value()), 1..4),
        at in proptest::option::of(0_u32..12),
    ) {
        let text = String::from_utf8(sample(SMALL[which])).unwrap();
        let is_lines = SMALL[which].ends_with('l');
        let mut root: Value = if is_lines {
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
        } else {
            serde_json::from_str(&text).unwrap()
        };
        for (mut pick, with) in changes {
            damage(&mut root, &mut pick, with.as_ref());
        }
        let text = match &root {
            Value::Array(rows) if is_lines => lines(rows),
            other => other.to_string(),
        };
        check(text.as_bytes(), at);
    }
}
