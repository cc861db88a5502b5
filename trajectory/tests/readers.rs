//! What each format means, on the smallest file that shows it: runs written for this test, in the shapes that the
//! readers' own tables describe.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use serde_json::{Value, json};
use tack_core::ContextReason::{Harness, Inspection, ToolCall};
use tack_core::{ContextReason, CountTokens, Micros, Tokens};
use tack_trajectory::{About, Cause, Options, OutputTokens, Read, read};

const PATCH: &str = "diff --git a/a b/a\n";
const WHOLE: &str = "git add -A && git diff --cached";
const HANDS_IN: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached";

struct Bytes;
impl CountTokens for Bytes {
    fn count_tokens(&self, text: &[u8]) -> Tokens {
        Tokens(u32::try_from(text.len()).unwrap())
    }
}

fn at(root: &Value, at: Option<u32>) -> Read {
    let text = match root {
        Value::Array(rows) if rows.iter().all(|row| row.get("role").is_none()) => {
            rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n") + "\n"
        }
        other => other.to_string(),
    };
    read(text.as_bytes(), "folder/run-1.traj.json", &Options { at, ..Options::default() }).unwrap()
}

fn end(root: &Value) -> Read {
    at(root, None)
}

/// Step, call, output, exit status, reason.
type Row<'r> = (u32, &'r str, &'r str, Option<i32>, ContextReason);

fn rows(read: &Read) -> Vec<Row<'_>> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    let row = |seen: &'_ tack_trajectory::OwnedObservation| (seen.step, seen.exit_status, seen.reason);
    read.state
        .observations
        .iter()
        .map(|seen| {
            let (step, status, reason) = row(seen);
            (step, text(&seen.call), text(&seen.output), status, reason)
        })
        .collect()
}

fn issue(read: &Read) -> Option<&str> {
    read.state.issue.as_deref().map(|issue| std::str::from_utf8(issue).unwrap())
}

fn patch(read: &Read) -> Option<&str> {
    read.state.patch.as_deref().map(|patch| std::str::from_utf8(patch).unwrap())
}

fn notes(read: &Read, about: About) -> Vec<&str> {
    read.gaps
        .iter()
        .filter(|gap| gap.about == about && gap.cause != Cause::Format)
        .map(|gap| gap.note.as_ref())
        .collect()
}

#[test]
fn swe_agent_keeps_its_issue_in_three_places() {
    let prompt = "We solve an issue.\nISSUE:\nit breaks\n\nINSTRUCTIONS:\nFix it.";
    let run = |config: Value, prompt: &str| {
        json!({
            "trajectory": [{"action": "ls", "observation": "a", "response": "look", "state": {}}],
            "history": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "ISSUE:\nof a demonstration\n\nINSTRUCTIONS:\n", "is_demo": true},
                {"role": "user", "content": [{"type": "text", "text": prompt}]},
            ],
            "info": {"submission": PATCH},
            "replay_config": config,
        })
    };
    let stated = json!({"problem_statement": {"text": "stated", "id": "x__y-1"}});
    let template = json!({"agent": {"templates": {"instance_template": "We solve an issue.\nISSUE:\n{{problem_statement}}\n\nINS"}}});
    #[rustfmt::skip]
    let cases = [ // configuration, prompt, instance, issue, notes
        (stated.clone(),                   prompt,     "x__y-1", "stated",    0),
        (json!(stated.to_string()),        prompt,     "x__y-1", "stated",    0),
        (template,                         prompt,     "run-1",  "it breaks", 0),
        (json!(null),                      prompt,     "run-1",  "it breaks", 0),
        (json!(null),                      "fix this", "run-1",  "fix this",  1),
    ];
    for (config, prompt, instance, expected, count) in cases {
        let read = end(&run(config.clone(), prompt));
        assert_eq!(issue(&read), Some(expected), "{config}");
        assert_eq!(read.instance.as_deref(), Some(instance), "{config}");
        assert_eq!(notes(&read, About::Issue).len(), count, "{config}");
    }
}

#[test]
fn swe_agent_ends_by_the_agent_or_by_the_harness() {
    let run = |last: &str, submission: Value| {
        json!({"trajectory": [
            {"action": "ls", "observation": "a", "state": "{}"},
            {"action": last, "observation": "b", "state": "{}"},
        ], "info": {"submission": submission}})
    };
    #[rustfmt::skip]
    let cases = [ // last action, submission, decision points, patch
        ("submit\n",   json!(PATCH), 1, Some(PATCH)),
        ("submit -f",  json!(""),    1, Some("")),
        ("exit_cost",  json!(PATCH), 1, Some(PATCH)),
        ("exit_cost",  json!(""),    1, None),
        ("exit_cost",  json!(null),  1, None),
        ("python x",   json!(PATCH), 2, Some(PATCH)),
        ("python x",   json!(""),    2, None),
    ];
    for (last, submission, points, expected) in cases {
        let read = end(&run(last, submission.clone()));
        assert_eq!((read.point.points, read.point.steps), (points, 2), "{last}");
        assert_eq!(patch(&read), expected, "{last} and {submission}");
    }
    let usage = end(&run("submit", json!(PATCH))).usage;
    assert_eq!(usage.output_tokens(&Bytes), OutputTokens::Estimated { tokens: 2, replies_counted_here: 1 });
}

#[test]
fn mini_1_answers_errors_and_limits() {
    let say = |text: &str| json!({"role": "assistant", "content": text});
    let block = |command: &str| json!({"role": "assistant", "content": format!("so\n\n```bash\n{command}\n```")});
    let user = |text: &str| json!({"role": "user", "content": text});
    let ok = |output: &str| user(&format!("<returncode>0</returncode>\n<output>\n{output}</output>"));
    let run = |messages: Value, limit: u64| {
        json!({"trajectory_format": "mini-swe-agent-1", "messages": messages, "info": {
            "submission": PATCH,
            "config": {"agent": {"step_limit": limit, "instance_template": "Task: {{task}}. Go."}},
        }})
    };
    let messages = json!([
        {"role": "system", "content": "s"}, user("Task: fix it. now. Go."),
        block("ls"), ok("a\n"),
        say("no block"), user("Please always provide EXACTLY ONE action in triple backticks."),
        block("yes"), user("The last command <command>yes</command> timed out and has been killed."),
        block(WHOLE), ok(PATCH),
        block(&format!("sed -i s/a/b/ a && {HANDS_IN}")), user(PATCH), user(""),
    ]);
    let read = end(&run(messages.clone(), 10));
    assert_eq!(issue(&read), Some("fix it. now"));
    let impure = format!("sed -i s/a/b/ a && {HANDS_IN}");
    #[rustfmt::skip]
    assert_eq!(rows(&read), [
        (0, "ls",    "a\n",                                                                      Some(0), Inspection),
        (1, "",      "Please always provide EXACTLY ONE action in triple backticks.",            None,    Harness),
        (2, "yes",   "The last command <command>yes</command> timed out and has been killed.",   None,    Harness),
        (3, WHOLE,   PATCH,                                                                      Some(0), ToolCall),
        // It edits on the way, so it is a step like others, and the default point stands behind it.
        (4, &impure, PATCH,                                                                      None,    ContextReason::Edit),
    ]);
    assert_eq!((read.point.points, read.point.steps, patch(&read)), (5, 5, Some(PATCH)));
    assert_eq!((read.usage.replies, read.usage.tool_calls, read.state.budget.tool_calls), (5, 4, Some(5)));
    assert_eq!(at(&run(messages.clone(), 10), Some(3)).state.patch.as_deref(), Some(PATCH.as_bytes()));
    assert_eq!(end(&run(messages.clone(), 0)).state.budget.tool_calls, None, "0 is no limit");
    let most = u64::from(u32::MAX) + 5;
    for (limit, left) in [(most, Some(u32::MAX)), (most + 1, None), (u64::MAX, None)] {
        let read = end(&run(messages.clone(), limit));
        assert_eq!(read.state.budget.tool_calls, left, "{limit}");
        assert_eq!(notes(&read, About::Budget).len(), usize::from(left.is_none()), "{limit}");
    }
}

#[test]
fn mini_2_speaks_three_dialects() {
    let run = |messages: Value, class: &str| {
        json!({"trajectory_format": "mini-swe-agent-1.1", "messages": messages, "info": {
            "submission": PATCH, "config": {"agent": {"step_limit": 9}, "model_type": class},
        }})
    };
    let failed =
        json!({"role": "user", "content": "bad", "extra": {"interrupt_type": "FormatError", "model_response": "abc"}});
    let text = json!([
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "ab", "extra": {"actions": [{"command": "ls"}], "timestamp": 10.0}},
        {"role": "user", "content": "cut", "extra": {"raw_output": "long", "returncode": 3, "timestamp": 12.5}},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": HANDS_IN}]}},
        {"role": "exit", "content": PATCH, "extra": {"exit_status": "Submitted", "submission": PATCH}},
    ]);
    let read = end(&run(text.clone(), "minisweagent.models.litellm_textbased_model.LitellmTextbasedModel"));
    assert_eq!(rows(&read), [(0, "ls", "long", Some(3), Inspection)]);
    assert_eq!((read.state.budget.tool_calls, read.usage.wall), (Some(8), Some(Micros(2_500_000))));
    assert_eq!((read.point.points, patch(&read)), (1, Some(PATCH)));
    assert_eq!(end(&run(text.clone(), "LitellmModel")).state.budget.tool_calls, None, "a reply may hold several calls");

    // A failed reply, the first one: whether it was counted nobody knows.
    let mut with_failure = text.clone();
    with_failure.as_array_mut().unwrap().insert(1, failed);
    let read = end(&run(with_failure, "textbased"));
    assert_eq!(rows(&read), [(0, "", "bad", None, Harness), (1, "ls", "long", Some(3), Inspection)]);
    assert_eq!((issue(&read), read.state.budget.tool_calls), (Some("task"), None));
    assert_eq!(read.usage.output_tokens(&Bytes), OutputTokens::Estimated { tokens: 5, replies_counted_here: 2 });

    // Response objects, two calls in one reply, and a handing in beside another command.
    let responses = json!([
        {"role": "user", "content": "task"},
        {"object": "response", "output": [{"type": "function_call"}], "extra": {"actions": [{"command": "ls"}, {"command": "cat a"}]}},
        {"type": "function_call_output", "call_id": "1", "output": "x", "extra": {"raw_output": "x", "returncode": 0}},
        {"type": "function_call_output", "call_id": "2", "output": "y", "extra": {"raw_output": "y", "returncode": 1}},
        {"object": "response", "extra": {"actions": [{"command": "rm a"}, {"command": HANDS_IN}]}},
        {"role": "exit", "content": ""},
    ]);
    let read = end(&run(responses, "m"));
    assert_eq!(rows(&read), [(0, "ls", "x", Some(0), Inspection), (0, "cat a", "y", Some(1), Inspection)]);
    assert_eq!(
        (read.point.points, read.point.steps, read.usage.tool_calls),
        (2, 2, 4),
        "the last step may have edited"
    );
}

/// A row of OpenHands' output with this history.
fn open_hands(history: &Value) -> Value {
    json!([{
        "instance_id": "a__b-1", "instruction": "<issue_description>\nit breaks\n</issue_description>",
        "metadata": {"max_iterations": 10}, "test_result": {"git_patch": PATCH}, "history": history,
        "instance": {"FAIL_TO_PASS": ["t"]},
    }])
}

fn ran(id: u32, command: &str, reply: &str, tokens: u32) -> Value {
    json!({"id": id, "source": "agent", "action": "run", "args": {"command": command, "thought": "so"},
        "tool_call_metadata": {"model_response": {"id": reply, "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}}})
}

fn told(cause: u32, content: &str, exit_code: i32, hidden: bool) -> Value {
    json!({"source": "agent", "observation": "run", "cause": cause, "content": content,
        "extras": {"hidden": hidden, "metadata": {"exit_code": exit_code}}})
}

#[test]
fn open_hands_counts_iterations_and_hides_what_was_hidden() {
    let history = json!([
        {"id": 0, "source": "user", "action": "message", "args": {"content": "do"}},
        ran(1, "ls", "r1", 5), told(1, "a", 0, false),
        ran(2, "pwd", "r1", 5), told(2, "b", -1, true),
        {"id": 3, "source": "agent", "observation": "error", "content": "bad call"},
        {"id": 4, "source": "agent", "action": "message", "args": {"content": "which?"}},
        {"id": 5, "source": "user", "action": "message", "args": {"content": "go on"}},
        ran(6, WHOLE, "r2", 8), told(6, PATCH, 0, false),
        {"id": 7, "source": "agent", "action": "finish", "args": {}},
    ]);
    let read = end(&open_hands(&history));
    assert_eq!((issue(&read), patch(&read), &read.saved.base), (Some("it breaks"), Some(PATCH), &None));
    #[rustfmt::skip]
    assert_eq!(rows(&read), [
        (0, "ls",  "a",        Some(0), Inspection),
        (2, "",    "bad call", None,    Harness),
        (3, "",    "go on",    None,    Harness),
        (4, WHOLE, PATCH,      Some(0), ToolCall),
    ]);
    let hidden: Vec<_> = read.saved.hidden.iter().map(|it| (it.after, it.observation.output.as_slice())).collect();
    assert_eq!(hidden, [(1, &b"b"[..])]);
    assert_eq!(read.state.lend_with(&read.saved).candidate().complete_history.len(), 5);
    assert_eq!((read.point.points, read.state.budget.tool_calls), (5, Some(5)));
    // One reply made both of the first actions, and the one that failed to parse left no count.
    assert_eq!((read.usage.replies, read.usage.recorded_output_tokens, read.usage.lost_replies), (4, 13, 1));
    assert_eq!(patch(&at(&open_hands(&history), Some(4))), Some(PATCH), "the default point");

    // Mid-run, the whole diff that a step printed is the patch at that step, unless the commit below it moved.
    let mut longer = history.as_array().unwrap().clone();
    longer.insert(10, ran(8, "ls", "r3", 1));
    let with = |first: &str| {
        let mut longer = longer.clone();
        longer[1] = ran(1, first, "r1", 5);
        open_hands(&Value::Array(longer))
    };
    let early = |root: &Value| {
        let text = format!("{}\n", root[0]);
        read_at(&text, 4)
    };
    assert_eq!(early(&with("ls")).as_deref(), Some(PATCH.as_bytes()));
    assert_eq!(early(&with("git commit -am x")), None);
}

fn read_at(text: &str, step: u32) -> Option<Vec<u8>> {
    read(text.as_bytes(), "f", &Options { at: Some(step), ..Options::default() }).ok()?.state.patch
}

#[test]
fn the_sdk_groups_calls_by_reply() {
    let call = |id: &str, reply: &str, tool: &str, action: Value| {
        json!({"kind": "ActionEvent", "id": id, "source": "agent", "llm_response_id": reply, "tool_name": tool,
            "tool_call_id": format!("c{id}"), "action": action, "thought": [{"type": "text", "text": "so"}]})
    };
    let answer = |of: &str, tool: &str, text: &str, code: Value| {
        json!({"kind": "ObservationEvent", "source": "environment", "tool_name": tool, "action_id": of,
            "observation": {"content": [{"type": "text", "text": text}], "exit_code": code}})
    };
    let stats = |output: u32, cost: f64, condensing: Value| {
        json!({"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "stats", "value": {"usage_to_metrics": {
            "agent": {"accumulated_cost": cost, "accumulated_token_usage": {"prompt_tokens": 50, "completion_tokens": output, "cache_read_tokens": 9}},
            "condenser": {"accumulated_cost": condensing, "accumulated_token_usage": {"prompt_tokens": 1, "completion_tokens": 1, "cache_read_tokens": 0}},
        }}})
    };
    let events = |last: Value, condensing: Value| {
        json!([
            {"kind": "SystemPromptEvent", "source": "agent"},
            {"kind": "MessageEvent", "source": "user", "llm_message": {"content": [{"type": "text", "text": "it breaks"}]}},
            stats(10, 0.5, json!(0.125)),
            call("1", "r1", "terminal", json!({"command": "ls"})),
            call("2", "r1", "file_editor", json!({"command": "view", "path": "a"})),
            answer("1", "terminal", "x", json!(0)), answer("2", "file_editor", "y", json!(null)),
            stats(20, 0.75, condensing),
            call("3", "r2", "terminal", json!({"command": WHOLE})),
            answer("3", "terminal", PATCH, json!(0)),
            {"kind": "AgentErrorEvent", "source": "agent", "tool_call_id": "c3", "error": "oops"},
            {"kind": "NewKindEvent", "source": "agent"},
            stats(99, 9.0, json!(1.0)),
            last,
        ])
    };
    let finish = call("4", "r3", "finish", json!({"message": "done"}));
    let message = json!({"kind": "MessageEvent", "source": "agent", "llm_message": {"content": "done"}});
    for last in [finish, message] {
        let read = end(&events(last.clone(), json!(0.25)));
        assert_eq!((issue(&read), patch(&read)), (Some("it breaks"), Some(PATCH)));
        #[rustfmt::skip]
        assert_eq!(rows(&read), [
            (0, "ls",                                             "x",    Some(0), Inspection),
            (0, r#"file_editor {"command": "view", "path": "a"}"#, "y",    None,    Inspection),
            (1, WHOLE,                                            PATCH,  Some(0), ToolCall),
            (1, WHOLE,                                            "oops", None,    Harness),
        ]);
        assert_eq!((read.point.points, read.point.steps, read.usage.tool_calls), (2, 3, 3));
        // The last statistics are of the reply that hands in.
        assert_eq!((read.usage.recorded_output_tokens, read.usage.cost_usd), (21, Some(1.0)));
        // A model that was used and whose price nobody knew makes the sum unknown.
        for unknown in [json!(0.0), json!(null)] {
            assert_eq!(end(&events(last.clone(), unknown)).usage.cost_usd, None);
        }
        assert_eq!(notes(&read, About::Observations), ["events of unknown kinds, left out: 1"]);
    }
    let cut = end(&events(stats(1, 1.0, json!(1.0)), json!(1.0)));
    assert_eq!((cut.point.points, cut.point.steps), (2, 2));
}

#[test]
fn atif_leaves_copied_context_out() {
    let run = |extra: Value| {
        let mut root = json!({
            "schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"},
            "steps": [
                {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "it "}, {"type": "image"}, {"type": "text", "text": "breaks"}], "is_copied_context": true},
                {"step_id": 2, "source": "agent", "message": "old", "is_copied_context": true,
                 "tool_calls": [{"tool_call_id": "0", "function_name": "Bash", "arguments": {"command": "ls"}}],
                 "observation": {"results": [{"source_call_id": "0", "content": "old"}]}, "metrics": {"completion_tokens": 1000}},
                {"step_id": 3, "source": "agent", "message": "new", "metrics": {"prompt_tokens": 4, "completion_tokens": 5, "cost_usd": 0.25},
                 "tool_calls": [{"tool_call_id": "1", "function_name": "Bash", "arguments": {"command": "ls"}},
                                {"tool_call_id": "2", "function_name": "Edit", "arguments": {"path": "a"}}],
                 "observation": {"results": [{"source_call_id": "2", "content": "second"}, {"source_call_id": "1", "content": null}, {"content": "of none [trimmed]"}]}},
                {"step_id": 4, "source": "system", "message": "wait"},
                {"step_id": 5, "source": "agent", "message": "tool only", "llm_call_count": 0,
                 "tool_calls": [{"function_name": "Bash", "arguments": {"command": "pwd"}}], "observation": {"results": [{"content": "/"}]}},
                {"step_id": 6, "source": "agent", "message": "done"},
            ],
        });
        for (key, value) in extra.as_object().unwrap() {
            root[key] = value.clone();
        }
        root
    };
    let read = end(&run(json!({})));
    assert_eq!((issue(&read), patch(&read), read.point.points), (Some("it breaks"), None, 2));
    #[rustfmt::skip]
    assert_eq!(rows(&read), [
        (0, r#"Edit {"path": "a"}"#, "second",             None, ContextReason::Edit),
        (0, "ls",                    "",                   None, Inspection),
        (0, "",                      "of none [trimmed]",  None, Harness),
        (0, "",                      "wait",               None, Harness),
        (1, "pwd",                   "/",                  None, Inspection),
    ]);
    assert_eq!((read.usage.replies, read.usage.recorded_output_tokens, read.usage.cost_usd), (1, 5, Some(0.25)));
    assert_eq!(notes(&read, About::Observations), ["answers that the file's producer cut: 1"]);
    let goes_on = end(&run(json!({"continued_trajectory_ref": "trajectory.cont-1.json"})));
    assert!(notes(&goes_on, About::Observations)[1].starts_with("the run goes on in another file"));
    // A file without a word of the user has one note on its issue, not two.
    let nobody = end(&run(json!({"steps": [{"source": "agent", "message": "hello"}]})));
    let of_issue: Vec<_> = nobody.gaps.iter().filter(|gap| gap.about == About::Issue).collect();
    assert_eq!((nobody.state.issue, of_issue.len()), (None, 1), "{of_issue:?}");
    assert!(of_issue[0].note.starts_with("not in the file"), "{of_issue:?}");
    for version in 0..=8 {
        end(&run(json!({"schema_version": format!("ATIF-v1.{version}")})));
    }
}

#[test]
fn a_menu_of_the_caller_is_the_states() {
    let menu = tack_trajectory::read_menu(
        br#"{"format": "tack-menu", "version": 1, "targeted": ["t.py::a"], "broader": []}"#,
        "menu.json",
    );
    let options = Options { menu: Some(menu.unwrap()), ..Options::default() };
    let read = read(br#"{"instance_id": "a", "model_patch": null}"#, "preds.jsonl", &options).unwrap();
    let lent = read.state.lend();
    assert_eq!(lent.state().menu.targeted(), ["t.py::a"]);
    assert!(!lent.state().menu.available().contains(tack_core::Action::TestRegression));
}
