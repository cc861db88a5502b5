//! SWE-agent's `.traj`.
//!
//! | | 0.x | 1.x |
//! | --- | --- | --- |
//! | told by | `trajectory[].state` is a JSON string | `replay_config`, or `state` is an object; else `info.swe_agent_version` |
//! | instance | the file's name | `replay_config.problem_statement.id`, else the file's name |
//! | issue | first user message of `history` that is no demonstration, between `ISSUE:` and `INSTRUCTIONS:` | `replay_config.problem_statement.text`, else as 0.x by `templates.instance_template` |
//! | base | lost | `replay_config.env.repo.base_commit`, where it is a commit |
//! | patch | `info.submission` | the same; at earlier steps `trajectory[].state.diff`, where that tool was on |
//! | observations | `trajectory[].{action,observation}` | the same |
//! | budget | lost: limits are in money | lost: a call limit exists, but requeries are charged and not recorded |
//! | tokens, money | of the whole run alone, `info.model_stats` | the same |
//! | exit status, time | lost (in the text) | lost; `execution_time` is the tools' alone |
//!
//! A step is an entry of `trajectory`. The last one submits if its action is `submit` or one of the harness's own
//! (`exit_cost`, `exit_context`, ...). Of several `attempts` the one that the recorder put on top is read, at its end
//! alone: which one that is was decided after the last of them.

use crate::Rows;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::issue;
use crate::json::{At, Node};
use crate::message::content_text;
use crate::parse::{Unreadable, parse};
use crate::reason;
use crate::recording::{Recording, Seen, Step};
use crate::usage::{Reply, RunTotals};

/// Reads one trajectory; `stem` is the file's name without its endings.
pub(crate) fn read(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    // In some 1.x versions the configuration is JSON inside a string.
    let inner;
    let config = match root.field("replay_config")? {
        Some(place) if matches!(place.node, Node::Text(_)) => {
            let expected = "an object, or an object as JSON in a text";
            inner = parse(place.text()?.as_bytes(), Unreadable::Replace).map_err(|_| place.wrong(expected))?;
            Some(place.holding(&inner))
        }
        other => other,
    };
    let entries = root.required("trajectory", "an array of steps")?;
    let format = version(root, config, entries)?;
    let mut recording = Recording::new(format, Rows::SINGLE);
    recording.steps =
        entries.items()?.enumerate().map(|(index, entry)| step(entry, index)).collect::<Result<_, _>>()?;

    let last_action = entries.items()?.last().map(|entry| entry.text_at(&["action"])).transpose()?.flatten();
    let last_action = last_action.and_then(|action| action.split_whitespace().next()).unwrap_or_default();
    recording.handed_in = last_action == "submit";
    recording.last_step_submits = recording.handed_in || last_action.starts_with("exit_");
    recording.submission = root.bytes_at(&["info", "submission"])?;

    recording.instance = match config {
        Some(config) => config.text_at(&["problem_statement", "id"])?,
        None => None,
    }
    .or((!stem.is_empty()).then_some(stem))
    .map(str::to_owned);
    find_issue(&mut recording, root, config)?;
    match config {
        Some(config) => recording.set_base(config.text_at(&["env", "repo", "base_commit"])?),
        None => recording.gap(About::Base, Cause::Format, "the format has no base commit"),
    }
    recording.totals = RunTotals {
        model_calls: root.count_at(&["info", "model_stats", "api_calls"])?,
        input_tokens: root.count_at(&["info", "model_stats", "tokens_sent"])?,
        output_tokens: root.count_at(&["info", "model_stats", "tokens_received"])?,
        cost_usd: root.number_at(&["info", "model_stats", "instance_cost"])?,
    }
    .without_empty_figures();
    recording.chosen_afterwards = root.field("attempts")?.is_some();
    state_losses(&mut recording);
    Ok(recording)
}

/// The version that the file's shape shows, which must be the one that it states, where it states one.
fn version(root: At<'_, '_>, config: Option<At<'_, '_>>, entries: At<'_, '_>) -> Result<Format, Problem> {
    const KNOWN: &str = "0.x (`state` is a text), 1.x (`state` is an object, or `replay_config` stands)";
    let unknown =
        |found: &str| Err(Problem::UnknownVersion { format: "SWE-agent", found: found.to_owned(), known: KNOWN });
    let mut shown = config.map(|_| Format::SweAgent1);
    for entry in entries.items()? {
        let Some(state) = entry.field("state")? else { continue };
        let of_state = match state.node {
            Node::Text(_) => Format::SweAgent0,
            Node::Object(_) => Format::SweAgent1,
            _ => return Err(state.wrong("a JSON string (0.x) or an object (1.x)")),
        };
        match shown {
            None => shown = Some(of_state),
            Some(Format::SweAgent0) if of_state == Format::SweAgent1 => return Err(state.wrong("a JSON string (0.x)")),
            Some(Format::SweAgent1) if of_state == Format::SweAgent0 => return Err(state.wrong("an object (1.x)")),
            Some(_) => {}
        }
    }
    let stated = root.text_at(&["info", "swe_agent_version"])?;
    let of_stated = match stated {
        Some(version) if version.starts_with("0.") => Some(Format::SweAgent0),
        Some(version) if version.starts_with("1.") => Some(Format::SweAgent1),
        Some(version) => return unknown(version),
        None => None,
    };
    match (shown, of_stated) {
        (Some(shown), Some(of_stated)) if shown != of_stated => {
            unknown(&format!("{}, in the shape of {shown}", stated.unwrap_or_default()))
        }
        (Some(format), _) | (None, Some(format)) => Ok(format),
        (None, None) => unknown("(none)"),
    }
}

fn step(entry: At<'_, '_>, index: usize) -> Result<Step, Problem> {
    let action = entry.required("action", "what the agent typed")?.text()?;
    let output = entry.field("observation")?.map(|place| place.kept()).transpose()?.unwrap_or_default();
    let reply = match entry.text_at(&["response"])? {
        // A model that calls functions writes the action beside its words, and both are output.
        Some(response) if response.contains(action.trim()) => response.to_owned(),
        Some(response) => format!("{response}\n{action}"),
        None => action.to_owned(),
    };
    let patch = match entry.field("state")? {
        Some(state) if matches!(state.node, Node::Object(_)) => state.bytes_at(&["diff"])?,
        _ => None,
    };
    Ok(Step {
        tool_calls: u32::from(!action.trim().is_empty()),
        seen: vec![Seen::new(index, action.as_bytes(), output, None, reason::of_typed(action))],
        reply: Some(Reply { text: Some(reply.into_bytes()), ..Reply::default() }),
        patch,
        ..Step::default()
    })
}

fn find_issue(recording: &mut Recording, root: At<'_, '_>, config: Option<At<'_, '_>>) -> Result<(), Problem> {
    if let Some(config) = config
        && let Some(text) = config.bytes_at(&["problem_statement", "text"])?
    {
        recording.issue = Some(text);
        return Ok(());
    }
    let template = match config {
        Some(config) => config.text_at(&["agent", "templates", "instance_template"])?,
        None => None,
    };
    for message in root.items_at("history")? {
        let is_demonstration = message.field("is_demo")?.is_some_and(|flag| *flag.node == Node::Bool(true));
        if message.text_at(&["role"])? != Some("user") || is_demonstration {
            continue;
        }
        let prompt = content_text(message, "content")?;
        recording.issue = Some(match issue::of_prompt(&prompt, template) {
            Ok(issue) => issue.as_bytes().to_vec(),
            Err(whole) => {
                let note = "the whole first message: nothing in it tells the issue from the instructions";
                recording.gap(About::Issue, Cause::Recording, note);
                whole.as_bytes().to_vec()
            }
        });
        return Ok(());
    }
    Ok(())
}

fn state_losses(recording: &mut Recording) {
    recording.gap(About::ExitStatus, Cause::Format, "the format has no exit status of a command");
    recording.gap(About::Budget, Cause::Format, "limits are in money, or in calls that are not all recorded");
    recording.gap(About::Tokens, Cause::Format, "tokens are recorded for the whole run, not for a reply");
    recording.gap(About::Cost, Cause::Format, "money is recorded for the whole run, not for a reply");
    recording.gap(
        About::Time,
        Cause::Format,
        "the format has no time of day; the tools' own times leave the model out",
    );
    if recording.chosen_afterwards {
        recording.gap(
            About::Selection,
            Cause::Chosen,
            "the run has several attempts; this is the one its recorder chose",
        );
    }
}
