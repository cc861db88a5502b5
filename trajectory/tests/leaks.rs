//! No byte that was recorded after the decision point, and no outcome, reaches the state.
//!
//! Each case says, apart from the reader, which places of its file may be seen at a point. Everything else is
//! changed: strings, numbers, flags. The state must stay byte for byte the same. A place that the list allows and the
//! reader uses must, when changed, change the state: so the list cannot pass by allowing everything, nor the test by
//! changing nothing.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::fs;
use std::path::Path;

use serde_json::Value;
use tack_trajectory::{Options, Problem, read};

/// Words by which a format tells one kind of entry from another. Changed, the file would be another file.
const STRUCTURE: &[&str] = &[
    "role",
    "openhands_version",
    "source",
    "kind",
    "schema_version",
    "trajectory_format",
    "id",
    "cause",
    "interrupt_type",
];

struct Case {
    sample: &'static str,
    /// Where the list of entries is; empty for a file that is the list.
    list: &'static [&'static str],
    /// Whether entry `at` of the list starts a step.
    starts_step: fn(&Value) -> bool,
    /// Places outside the list that were recorded before the first step: prefixes of dotted paths.
    known_before: &'static [&'static str],
    /// What the default point may see beyond: the submission, and what tells that the last step submits.
    submission: &'static [&'static str],
    /// Keys that are structure in this format alone.
    structure: &'static [&'static str],
    instance: Option<&'static str>,
    /// Decision points besides the default one.
    points: &'static [u32],
}

fn is_agent_message(entry: &Value) -> bool {
    entry["role"] == "assistant" || entry["extra"]["interrupt_type"] == "FormatError"
}

fn is_open_hands_turn(entry: &Value) -> bool {
    let acts = entry["source"] == "agent" && entry["action"].is_string() && entry["action"] != "system";
    acts || (entry["observation"] == "error" && entry["cause"].is_null())
}

const CASES: &[Case] = &[
    Case {
        sample: "swe-agent/swe-agent__test-repo-i1.traj",
        list: &["trajectory"],
        starts_step: |_| true,
        known_before: &["history[0]", "history[1]", "history[2]"],
        submission: &["info.submission", "trajectory[4].action"],
        structure: &[],
        instance: None,
        points: &[0, 1, 2],
    },
    Case {
        sample: "swe-agent/pydicom__pydicom-1458.traj",
        list: &["trajectory"],
        starts_step: |_| true,
        known_before: &["history[0]", "history[1]", "history[2]"],
        submission: &["info.submission", "trajectory[11].action"],
        structure: &[],
        instance: None,
        points: &[0, 5, 9],
    },
    Case {
        sample: "swe-agent/marshmallow-1867.function_calling.traj",
        list: &["trajectory"],
        starts_step: |_| true,
        known_before: &["replay_config"],
        submission: &["info.submission", "trajectory[10].action"],
        structure: &[],
        instance: None,
        points: &[0, 3, 8],
    },
    Case {
        sample: "mini-swe-agent/github_issue.v1-messages.traj.json",
        list: &[],
        starts_step: is_agent_message,
        known_before: &[],
        submission: &["[20].content", "[21].content"],
        structure: &[],
        instance: None,
        points: &[0, 4, 7],
    },
    Case {
        sample: "mini-swe-agent/pallets__flask-5014.traj.json",
        list: &["messages"],
        starts_step: is_agent_message,
        known_before: &["info.config", "instance_id"],
        submission: &["info.submission", "messages[40].content"],
        structure: &[],
        instance: None,
        points: &[0, 6, 17],
    },
    Case {
        sample: "mini-swe-agent/pydata__xarray-6938.traj.json",
        list: &["messages"],
        starts_step: is_agent_message,
        known_before: &["info.config", "instance_id"],
        submission: &["info.submission", "messages[68].content"],
        structure: &[],
        instance: None,
        points: &[0, 15, 31],
    },
    Case {
        sample: "mini-swe-agent/synthetic.v2.traj.json",
        list: &["messages"],
        starts_step: is_agent_message,
        known_before: &["info.config", "instance_id"],
        submission: &["info.submission", "messages[12].extra.actions"],
        structure: &[],
        instance: None,
        points: &[0, 1, 3],
    },
    Case {
        sample: "openhands/multi_swe_bench.output.jsonl",
        list: &["[0]", "history"],
        starts_step: is_open_hands_turn,
        known_before: &[
            "[0].instance_id",
            "[1].instance_id",
            "[0].instance.problem_statement",
            "[0].instance.base_commit",
            "[0].metadata.max_iterations",
        ],
        submission: &["[0].test_result.git_patch"],
        structure: &["action", "observation"],
        instance: None,
        points: &[0, 9, 20],
    },
    Case {
        sample: "openhands/multi_swe_bench.output.jsonl",
        list: &["[1]", "history"],
        starts_step: is_open_hands_turn,
        known_before: &[
            "[0].instance_id",
            "[1].instance_id",
            "[1].instance.problem_statement",
            "[1].instance.base_commit",
            "[1].metadata.max_iterations",
        ],
        submission: &["[1].test_result.git_patch"],
        structure: &["action", "observation"],
        instance: Some("ponylang__ponyc-4588"),
        points: &[0, 25, 48],
    },
    Case {
        sample: "openhands/sdk_events.jsonl",
        list: &[],
        // The second answer's own action is not in the fixture, so the answer starts its step.
        starts_step: |entry| {
            entry["kind"] == "ActionEvent" || entry["tool_call_id"] == "chatcmpl-tool-9051d3d10f914188"
        },
        known_before: &[],
        submission: &[],
        structure: &[],
        instance: None,
        points: &[0, 1],
    },
    Case {
        sample: "harbor-atif/trajectory_fail.json",
        list: &["steps"],
        starts_step: |entry| entry["source"] == "agent",
        known_before: &[],
        submission: &[],
        structure: &[],
        instance: None,
        points: &[0, 20, 36],
    },
    Case {
        sample: "trae-agent/patch_selection_example.jsonl",
        list: &["[0]", "no list"],
        starts_step: |_| false,
        known_before: &["[0].instance_id", "[0].issue"],
        submission: &["[0].patches[2]"],
        structure: &[],
        instance: Some("astropy__astropy-14369#2"),
        points: &[],
    },
    Case {
        sample: "swe-bench-harness/example_model_output.preds.json",
        list: &["no list"],
        starts_step: |_| false,
        known_before: &["[0].instance_id", "[1].instance_id", "[2].instance_id"],
        submission: &["[1].model_patch"],
        structure: &[],
        instance: Some("django__django-15202"),
        points: &[],
    },
];

fn load(sample: &str) -> Value {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(sample)).unwrap();
    if is_lines(sample) {
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
    } else {
        serde_json::from_str(&text).unwrap()
    }
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n") + "\n"
}

fn is_lines(sample: &str) -> bool {
    Path::new(sample).extension().is_some_and(|it| it == "jsonl")
}

fn save(sample: &str, value: &Value) -> String {
    match value {
        Value::Array(rows) if is_lines(sample) => lines(rows),
        _ => value.to_string(),
    }
}

/// Calls `change` on every scalar, with its dotted path and its own key.
fn walk(value: &mut Value, path: &str, key: &str, change: &mut impl FnMut(&str, &str, &mut Value)) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, &format!("{path}[{index}]"), key, change);
            }
        }
        Value::Object(members) => {
            for (key, item) in members.iter_mut() {
                let dot = if path.is_empty() { "" } else { "." };
                walk(item, &format!("{path}{dot}{key}"), key, change);
            }
        }
        scalar => change(path, key, scalar),
    }
}

/// Another value of the same type.
fn mutate(value: &mut Value) {
    *value = match &*value {
        Value::String(text) => Value::String(format!("CHANGED {text}")),
        Value::Number(number) => match number.as_i64() {
            Some(count) => (count.abs() + 7).into(),
            None => (number.as_f64().unwrap() + 7.5).into(),
        },
        Value::Bool(flag) => Value::Bool(!flag),
        other => other.clone(),
    };
}

impl Case {
    fn prefix(&self) -> String {
        self.list.iter().fold(String::new(), |path, part| {
            if path.is_empty() || part.starts_with('[') { format!("{path}{part}") } else { format!("{path}.{part}") }
        })
    }

    fn entries<'v>(&self, root: &'v Value) -> &'v [Value] {
        let list = self.list.iter().try_fold(root, |value, part| match part.strip_prefix('[') {
            Some(index) => value.get(index.trim_end_matches(']').parse::<usize>().unwrap()),
            None => value.get(*part),
        });
        list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The index of the first entry that was recorded after step `step`.
    fn end(&self, root: &Value, step: u32) -> usize {
        let entries = self.entries(root);
        let starts = (0..entries.len()).filter(|&index| (self.starts_step)(&entries[index]));
        starts.clone().nth(step as usize + 1).unwrap_or(entries.len())
    }

    fn may_see(&self, path: &str, end: usize, is_default: bool) -> bool {
        let of = |prefix: &&str| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let index = path
            .strip_prefix(&self.prefix())
            .and_then(|rest| rest.strip_prefix('['))
            .and_then(|rest| rest.split_once(']').and_then(|(index, _)| index.parse::<usize>().ok()));
        index.is_some_and(|index| index < end)
            || self.known_before.iter().any(of)
            || (is_default && self.submission.iter().any(of))
    }

    fn is_structure(&self, key: &str) -> bool {
        STRUCTURE.contains(&key) || self.structure.contains(&key)
    }

    /// The state and the saved history, as text; the issue of a file without one is given.
    #[expect(clippy::panic, reason = "a test asserts by panicking, in its helpers too")]
    fn state(&self, root: &Value, at: Option<u32>) -> String {
        let patch = at.is_some().then_some(&b"given"[..]);
        let options = Options { at, patch, instance: self.instance, ..Options::default() };
        match read(save(self.sample, root).as_bytes(), self.sample, &options) {
            Ok(read) => format!("{}{:?}", read.state.to_json(), read.saved),
            Err(error) => panic!("{} at {at:?}: {}", self.sample, error.problem),
        }
    }
}

#[test]
fn later_bytes_and_outcomes_leave_the_state_alone() {
    let mut changed = 0_usize;
    for case in CASES {
        let original = load(case.sample);
        let last = {
            let options = Options { instance: case.instance, ..Options::default() };
            read(save(case.sample, &original).as_bytes(), case.sample, &options).unwrap().point.step
        };
        let points = case.points.iter().map(|&step| Some(step)).chain([None]);
        for at in points {
            let is_default = at.is_none();
            let end = at.or(last).map_or(0, |step| case.end(&original, step));
            let expected = case.state(&original, at);

            // Everything that may not be seen, all at once.
            let mut mutated = original.clone();
            walk(&mut mutated, "", "", &mut |path, key, value| {
                if !case.is_structure(key) && !case.may_see(path, end, is_default) {
                    mutate(value);
                    changed += 1;
                }
            });
            // A bare list has nothing beside its entries, so at its end nothing is left to change.
            let sees_all = is_default && case.list.is_empty();
            assert_eq!(mutated == original, sees_all, "{} at {at:?}: nothing to change", case.sample);
            assert_eq!(case.state(&mutated, at), expected, "{} at {at:?}", case.sample);

            // All of the later entries gone: as the file stood at that moment.
            if !is_default {
                let mut cut = original.clone();
                let mut list = &mut cut;
                for part in case.list {
                    list = match part.strip_prefix('[') {
                        Some(index) => &mut list[index.trim_end_matches(']').parse::<usize>().unwrap()],
                        None => &mut list[*part],
                    };
                }
                list.as_array_mut().unwrap().truncate(end);
                assert_eq!(case.state(&cut, at), expected, "{} at {at:?}, cut", case.sample);
            }

            // The other way round: what may be seen does change the state, so the comparison can fail.
            let mut seen = original.clone();
            walk(&mut seen, "", "", &mut |path, key, value| {
                let is_number = value.is_number();
                if !case.is_structure(key) && !is_number && case.may_see(path, end, is_default) && key != "instance_id"
                {
                    mutate(value);
                }
            });
            assert_ne!(case.state(&seen, at), expected, "{} at {at:?}: the control", case.sample);
        }
    }
    assert!(changed > 10_000, "only {changed} places were changed");
}

#[test]
fn each_outcome_field_alone_leaves_the_state_alone() {
    // Added where they are not, in the place where a data set or a recorder puts them.
    let outcomes = [
        "FAIL_TO_PASS",
        "PASS_TO_PASS",
        "resolved",
        "tests_status",
        "test_patch",
        "gold_patch",
        "hints_text",
        "success_id",
        "regressions",
        "exit_status",
        "test_result_extra",
        "report",
        "score",
        "reward",
        "success",
        "error",
    ];
    for case in CASES {
        let original = load(case.sample);
        let expected = case.state(&original, None);
        for outcome in outcomes {
            for secret in [Value::from("secret"), serde_json::json!({"secret": ["x"]})] {
                let mut with = original.clone();
                let places: Vec<&mut Value> = match &mut with {
                    Value::Array(rows) => rows.iter_mut().collect(),
                    object => vec![object],
                };
                for place in places {
                    for inner in ["instance", "info", "metadata"] {
                        if let Some(Value::Object(members)) = place.get_mut(inner) {
                            members.insert(outcome.to_owned(), secret.clone());
                        }
                    }
                    if let Value::Object(members) = place
                        && outcome != "error"
                    {
                        members.insert(outcome.to_owned(), secret.clone());
                    }
                }
                assert_eq!(case.state(&with, None), expected, "{}: {outcome} = {secret}", case.sample);
            }
        }
    }
}

#[test]
fn an_early_point_without_a_patch_is_an_error() {
    for case in CASES {
        let text = save(case.sample, &load(case.sample));
        for &step in case.points {
            let options = Options { at: Some(step), instance: case.instance, ..Options::default() };
            let problem = read(text.as_bytes(), case.sample, &options).unwrap_err().problem;
            assert!(
                matches!(problem, Problem::PatchNotRecorded { step: of } if of == step),
                "{}: {problem}",
                case.sample
            );
        }
        let beyond = Options { at: Some(1_000), instance: case.instance, ..Options::default() };
        let problem = read(text.as_bytes(), case.sample, &beyond).unwrap_err().problem;
        assert!(matches!(problem, Problem::UnknownStep { asked: 1_000, .. }), "{}: {problem}", case.sample);
    }
}

#[test]
fn what_was_chosen_when_all_was_over_is_seen_at_the_end_alone() {
    let sample = "swe-agent/marshmallow-1867.function_calling.traj";
    let mut root = load(sample);
    let before = read(root.to_string().as_bytes(), sample, &Options::default()).unwrap();
    // The recorder puts the attempt on top that its last reviewer preferred.
    root["attempts"] = serde_json::json!([{"trajectory": root["trajectory"], "info": {}}, {"trajectory": []}]);
    let text = root.to_string();
    let read_at = |at, patch| read(text.as_bytes(), sample, &Options { at, patch, ..Options::default() });
    assert_eq!(read_at(None, None).unwrap().state, before.state);
    for step in 0..before.point.points {
        let problem = read_at(Some(step), Some(&b"given"[..])).unwrap_err().problem;
        assert!(matches!(problem, Problem::ChosenAfterwards { step: of } if of == step), "{problem}");
        assert!(problem.to_string().contains("decided after the last one"), "{problem}");
    }
}

#[test]
fn what_the_agent_asked_of_a_tool_is_shown_whatever_it_named_it() {
    let sample = "harbor-atif/trajectory_fail.json";
    let mut root = load(sample);
    let steps = root["steps"].as_array_mut().unwrap();
    let step = steps.iter_mut().find(|step| step["tool_calls"][0].is_object()).unwrap();
    step["tool_calls"] = serde_json::json!([{"tool_call_id": "x", "function_name": "close",
        "arguments": {"resolved": true, "reward": {"test_patch": "asked"}}}]);
    step["observation"] = serde_json::json!({"results": [{"source_call_id": "x", "content": "ok"}]});
    // The same keys where a grader writes them.
    step["extra"] = serde_json::json!({"reward": "secret"});
    root["reward"] = "secret".into();
    let state = read(root.to_string().as_bytes(), sample, &Options::default()).unwrap().state;
    let calls: Vec<_> = state.observations.iter().map(|seen| String::from_utf8_lossy(&seen.call)).collect();
    let shown = r#"close {"resolved": true, "reward": {"test_patch": "asked"}}"#;
    assert!(calls.iter().any(|call| call == shown), "{calls:?}");
    assert!(!state.to_json().contains("secret"));
}

#[test]
fn a_patch_that_a_step_recorded_is_used_at_that_step_alone() {
    let sample = "mini-swe-agent/synthetic.v2.traj.json";
    let mut root = load(sample);
    let recorded = root["messages"][8]["extra"]["raw_output"].as_str().unwrap().to_owned();
    // The end says otherwise, and must not matter.
    root["info"]["submission"] = "diff --git a/later b/later\n".into();
    let text = root.to_string();
    let at = |step| read(text.as_bytes(), sample, &Options { at: Some(step), ..Options::default() });
    assert_eq!(at(2).unwrap().state.patch.as_deref(), Some(recorded.as_bytes()));
    for step in [0, 1, 3] {
        assert!(matches!(at(step).unwrap_err().problem, Problem::PatchNotRecorded { .. }), "{step}");
    }

    // SWE-agent's tool that records the diff with the state.
    let sample = "swe-agent/marshmallow-1867.function_calling.traj";
    let mut root = load(sample);
    root["trajectory"][7]["state"]["diff"] = recorded.as_str().into();
    let text = root.to_string();
    let at = |step| read(text.as_bytes(), sample, &Options { at: Some(step), ..Options::default() });
    assert_eq!(at(7).unwrap().state.patch.as_deref(), Some(recorded.as_bytes()));
    assert!(matches!(at(8).unwrap_err().problem, Problem::PatchNotRecorded { step: 8 }));
}
