//! Tells a file's format from its shape, and hands it to the reader.

use crate::document::{self, Document, without_mark};
use crate::error::{Problem, ReadError};
use crate::format::Format;
use crate::gap::{About, Cause, Gap};
use crate::json::{At, Node};
use crate::parse::{Replaced, Unreadable, parse};
use crate::recording::Recording;
use crate::{Options, OwnedState, Point, Read, Rows, Saved, Usage, issue, state_json};
use crate::{atif, mini, mini2, openhands_output, openhands_sdk, predictions, swe_agent, trae};

/// What stands in a file.
enum Found {
    /// A state of our own form, with what it does not say.
    State(OwnedState, Vec<Gap>),
    /// A recording of an agent.
    Recording(Recording),
}

pub(crate) fn read(bytes: &[u8], file: &str, options: &Options<'_>) -> Result<Read, ReadError> {
    let of_file = |problem| ReadError { file: file.to_owned(), problem };
    let issue_of = |instance: Option<&str>| -> Result<Option<Vec<u8>>, ReadError> {
        let Some(file) = &options.issue else { return Ok(None) };
        let of_issue = |problem| ReadError { file: file.name.to_owned(), problem };
        issue::of_file(file, instance).map(Some).map_err(of_issue)
    };
    // The tree is gone before the state is put together.
    match find(bytes, file, options).map_err(of_file)? {
        Found::State(state, gaps) => Ok(own_state(state, gaps, options, issue_of(None)?)),
        Found::Recording(recording) => {
            let issue = issue_of(recording.instance.as_deref())?;
            recording.at_point(options, issue).map_err(of_file)
        }
    }
}

fn find(bytes: &[u8], file: &str, options: &Options<'_>) -> Result<Found, Problem> {
    let (document, replaced) = document::open(bytes)?;
    if let Document::One(node) = &document
        && state_json::stated_format(node) == Some(state_json::STATE_FORMAT)
    {
        if let Some(asked) = options.at {
            let points = "one state, which is its own decision point".to_owned();
            return Err(Problem::UnknownStep { asked, points });
        }
        if let Some(asked) = options.instance {
            return Err(Problem::UnknownInstance { asked: asked.to_owned(), ids: Vec::new() });
        }
        if replaced != Replaced::default() {
            // Our own form is exact: this names the place.
            parse(without_mark(bytes), Unreadable::Refuse)?;
        }
        let (state, gap) = state_json::bounded_state(At::root(node))?;
        return Ok(Found::State(state, gap.into_iter().collect()));
    }
    let mut recording = dispatch(&document, file, options)?;
    note_replaced(replaced, &mut recording.gaps);
    Ok(Found::Recording(recording))
}

fn own_state(mut state: OwnedState, mut gaps: Vec<Gap>, options: &Options<'_>, issue: Option<Vec<u8>>) -> Read {
    if let Some(patch) = options.patch {
        state.patch = Some(patch.to_vec());
    }
    if issue.is_some() {
        state.issue = issue;
    }
    if let Some(menu) = &options.menu {
        state.menu = Some(menu.clone());
    }
    for (is_unknown, about) in [(state.issue.is_none(), About::Issue), (state.patch.is_none(), About::Patch)] {
        if is_unknown {
            gaps.push(Gap::new(about, Cause::Recording, "the state says that it is unknown"));
        }
    }
    Read {
        saved: Saved::default(),
        state,
        format: Format::State,
        instance: None,
        rows: Rows::SINGLE,
        point: Point { step: None, is_default: true, points: 0, steps: 0 },
        usage: Usage::default(),
        totals: crate::RunTotals::default(),
        gaps,
    }
}

fn dispatch(document: &Document<'_>, file: &str, options: &Options<'_>) -> Result<Recording, Problem> {
    let stem = stem(file);
    let recording = match document {
        Document::One(node) => {
            if let Some(problem) = without_state(node) {
                return Err(problem);
            }
            one(node, stem, options)?
        }
        Document::Lines(rows) => {
            if let Some(problem) = rows.first().and_then(without_state) {
                return Err(problem);
            }
            lines(rows, options)?
        }
    };
    // A file of one run has one instance: asking for another is a mistake to hear about.
    if let Some(asked) = options.instance
        && recording.rows == Rows::SINGLE
        && !matches!(recording.format, Format::Predictions | Format::Trae | Format::OpenHandsOutput)
        && recording.instance.as_deref() != Some(asked)
    {
        return Err(Problem::UnknownInstance {
            asked: asked.to_owned(),
            ids: recording.instance.into_iter().collect(),
        });
    }
    Ok(recording)
}

fn one(node: &Node<'_>, stem: &str, options: &Options<'_>) -> Result<Recording, Problem> {
    let root = At::root(node);
    match node {
        Node::Object(members) => {
            if node.has("schema_version") && node.has("steps") {
                atif::read(root, stem)
            } else if node.has("trajectory_format") || (node.has("messages") && node.has("info")) {
                mini_version(root, stem)
            } else if node.has("trajectory") {
                swe_agent::read(root, stem)
            } else if members.iter().any(|(_, row)| row.has("model_patch")) {
                predictions::by_id(root, options)
            } else {
                // A file of one line.
                lines(std::slice::from_ref(node), options)
            }
        }
        Node::List(items) if items.iter().any(|row| row.has("model_patch")) => predictions::list(root, options),
        Node::List(items) if items.iter().any(openhands_sdk::is_event) => {
            openhands_sdk::read(&root.items()?.collect::<Vec<_>>())
        }
        Node::List(items) if items.iter().any(|row| row.has("role") && row.has("content")) => {
            mini::read_bare(root, stem)
        }
        other => Err(Problem::UnknownFormat { found: shape(other) }),
    }
}

fn lines(rows: &[Node<'_>], options: &Options<'_>) -> Result<Recording, Problem> {
    if rows.iter().any(|row| row.has("model_patch")) {
        predictions::lines(rows, options)
    } else if rows.iter().any(|row| row.has("patches") && row.has("issue")) {
        trae::read(rows, options)
    } else if rows.iter().any(|row| row.has("history") && (row.has("test_result") || row.has("instruction"))) {
        openhands_output::read(rows, options)
    } else if rows.iter().any(openhands_sdk::is_event) {
        let events: Vec<_> = rows.iter().enumerate().map(|(index, row)| At::row(row, index)).collect();
        openhands_sdk::read(&events)
    } else {
        let first = rows.first().map_or_else(String::new, shape);
        Err(Problem::UnknownFormat { found: first })
    }
}

fn mini_version(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    match root.text_at(&["trajectory_format"])? {
        Some("mini-swe-agent-1") => mini::read(root, stem),
        Some("mini-swe-agent-1.1") => mini2::read(root, stem),
        stated => Err(Problem::UnknownVersion {
            format: "mini-swe-agent",
            found: stated.unwrap_or("(none)").to_owned(),
            known: "mini-swe-agent-1, mini-swe-agent-1.1",
        }),
    }
}

/// A well-known file that holds no state: what it is, and where a state is to be had.
fn without_state(node: &Node<'_>) -> Option<Problem> {
    const ASK_FOR_RUN: &str = "Give the agent's trajectory or the predictions file that was graded";
    let is_report = |node: &Node<'_>| node.has("patch_is_None") || node.has("patch_successfully_applied");
    let (what, mend) = if is_report(node) {
        ("a SWE-bench harness report of one instance", ASK_FOR_RUN)
    } else if matches!(node, Node::Object(members) if !members.is_empty() && members.iter().all(|(_, it)| is_report(it)))
    {
        ("a SWE-bench harness report of one instance under its id", ASK_FOR_RUN)
    } else if node.has("total_instances") && (node.has("resolved_instances") || node.has("resolved_ids")) {
        ("a SWE-bench harness report of a run", ASK_FOR_RUN)
    } else if node.has("verifier_result") || (node.has("trial_name") && node.has("task_name")) {
        ("Harbor's result of a trial", "Give the trial's trajectory.json")
    } else if state_json::stated_format(node) == Some(state_json::MENU_FORMAT) {
        ("a menu of public tests", "Give it with `--menu`, beside a state or a trajectory")
    } else if node.has("problem_statement")
        && node.has("instance_id")
        && !node.has("model_patch")
        && !node.has("history")
    {
        ("a list of repair tasks", "Give it with `--issue`, beside a predictions file")
    } else {
        return None;
    };
    Some(Problem::NoState { what, mend })
}

/// What a file looks like, in a few words.
fn shape(node: &Node<'_>) -> String {
    match node {
        Node::Object(members) => {
            let keys: Vec<_> =
                members.iter().take(6).map(|(key, _)| key.chars().take(40).collect::<String>()).collect();
            format!("an object with the keys {}", if keys.is_empty() { "(none)".to_owned() } else { keys.join(", ") })
        }
        Node::List(items) => format!("an array of {}", items.len()),
        _ => "a lone JSON value".to_owned(),
    }
}

/// The file's name without its folder and its endings: where agents that write one file an instance keep the id.
fn stem(file: &str) -> &str {
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    [".traj.json", ".traj", ".jsonl", ".json"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

fn note_replaced(replaced: Replaced, gaps: &mut Vec<Gap>) {
    for (count, what) in
        [(replaced.not_utf8, "bytes that are not UTF-8"), (replaced.half_pairs, "half surrogate pairs")]
    {
        if count > 0 {
            let note = format!("{what}, each replaced by U+FFFD: {count}");
            gaps.push(Gap::new(About::Observations, Cause::Altered, note));
        }
    }
}
