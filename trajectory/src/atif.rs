//! ATIF, Harbor's agent trajectory interchange format, `ATIF-v1.0` to `ATIF-v1.8`.
//!
//! | | |
//! | --- | --- |
//! | instance | lost (Harbor keeps it in the trial's `result.json`); the file's name |
//! | issue | the message of the first `user` step, with whatever prompt the task wraps around it |
//! | base | lost |
//! | patch | lost, but where a step is `git add -A && git diff --cached` |
//! | observations | `observation.results[]`, joined to `tool_calls[]` by `source_call_id` |
//! | exit status | lost (in the text) |
//! | budget | lost: the format has no limits |
//! | tokens, money | `metrics` of each step; `final_metrics` of the whole run |
//! | time | `timestamp` |
//!
//! A step of ours is a step of theirs whose `source` is `agent`, counted from 0. Steps with `is_copied_context` repeat
//! what an earlier file recorded: they are left out, but for the issue. The last step submits if it calls no tool.
//! Subagents' trajectories and images are left out.

use std::collections::HashMap;

use tack_core::ContextReason;

use crate::Rows;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::json::{At, Node};
use crate::message::{content_kept, content_text, shown_call};
use crate::reason;
use crate::recording::{Recording, Seen, Step};
use crate::time::micros;
use crate::usage::{Reply, RunTotals};

const KNOWN: [&str; 9] = [
    "ATIF-v1.0",
    "ATIF-v1.1",
    "ATIF-v1.2",
    "ATIF-v1.3",
    "ATIF-v1.4",
    "ATIF-v1.5",
    "ATIF-v1.6",
    "ATIF-v1.7",
    "ATIF-v1.8",
];

/// How a producer marks a text that it cut.
const CUT_MARK: &[u8] = b"[trimmed]";

/// Reads one trajectory.
pub(crate) fn read(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    let version = root.required("schema_version", "the version of the format")?.text()?;
    if !KNOWN.contains(&version) {
        let found = version.to_owned();
        return Err(Problem::UnknownVersion { format: "ATIF", found, known: "ATIF-v1.0 to ATIF-v1.8" });
    }
    let mut recording = Recording::new(Format::Atif, Rows::SINGLE);
    recording.instance = (!stem.is_empty()).then(|| stem.to_owned());
    let mut may_move_head = false;
    for step in root.required("steps", "an array of steps")?.items()? {
        read_step(&mut recording, step, &mut may_move_head)?;
    }
    recording.totals = RunTotals {
        model_calls: None,
        input_tokens: root.count_at(&["final_metrics", "total_prompt_tokens"])?,
        output_tokens: root.count_at(&["final_metrics", "total_completion_tokens"])?,
        cost_usd: root.number_at(&["final_metrics", "total_cost_usd"])?,
    }
    .without_empty_figures();
    let cut =
        recording.steps.iter().flat_map(|step| &step.seen).filter(|seen| seen.observation.output.ends_with(CUT_MARK));
    let cut = cut.count();
    if cut > 0 {
        recording.gap(About::Observations, Cause::Recording, format!("answers that the file's producer cut: {cut}"));
    }
    if root.field("continued_trajectory_ref")?.is_some() {
        recording.handed_in = false;
        let note = "the run goes on in another file, so the end of this one is not the end";
        recording.gap(About::Observations, Cause::Recording, note);
    }
    if root.field("subagent_trajectories")?.is_some() {
        recording.gap(About::Observations, Cause::Recording, "what subagents saw is left out");
    }
    if recording.issue.is_some() {
        let note = "the first user message, with the prompt that the task wraps around it";
        recording.gap(About::Issue, Cause::Format, note);
    }
    recording.gap(About::Base, Cause::Format, "the format has no base commit");
    recording.gap(About::ExitStatus, Cause::Format, "the format has no exit status of a command");
    recording.gap(About::Budget, Cause::Format, "the format has no limits");
    Ok(recording)
}

fn read_step(recording: &mut Recording, step: At<'_, '_>, may_move_head: &mut bool) -> Result<(), Problem> {
    let source = step.required("source", "system, user or agent")?;
    let is_copied = step.field("is_copied_context")?.is_some_and(|flag| *flag.node == Node::Bool(true));
    let time_us = step.text_at(&["timestamp"])?.and_then(micros);
    recording.started_us = recording.started_us.or(time_us);
    match source.text()? {
        "user" if recording.issue.is_none() && recording.steps.is_empty() => {
            recording.issue = Some(content_text(step, "message")?.into_bytes());
        }
        _ if is_copied => {}
        "agent" => agent_step(recording, step, time_us, may_move_head)?,
        "user" | "system" => {
            let Some(last) = recording.steps.len().checked_sub(1) else {
                return Ok(());
            };
            let mut all = vec![content_kept(step, "message")?];
            for result in results(step)? {
                all.push(content_kept(result, "content")?);
            }
            for output in all.into_iter().filter(|output| !output.bytes.is_empty()) {
                recording.steps[last].seen.push(Seen::new(last, b"", output, None, ContextReason::Harness));
            }
        }
        _ => return Err(source.out_of_range("system, user or agent")),
    }
    Ok(())
}

fn agent_step(
    recording: &mut Recording,
    step: At<'_, '_>,
    time_us: Option<u64>,
    may_move_head: &mut bool,
) -> Result<(), Problem> {
    let at = recording.steps.len();
    let mut text = content_text(step, "reasoning_content")? + &content_text(step, "message")?;
    let mut calls = Vec::new();
    let mut by_id = HashMap::new();
    for call in step.items_at("tool_calls")? {
        let tool = call.required("function_name", "the name of the tool")?.text()?;
        let arguments = call.field("arguments")?;
        let shown = shown_call(tool, arguments)?;
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(&shown));
        if let Some(id) = call.text_at(&["tool_call_id"])? {
            by_id.insert(id, calls.len());
        }
        let command = match arguments {
            Some(arguments) if matches!(arguments.node, Node::Object(_)) => arguments.field("command")?,
            _ => None,
        };
        let command = command.and_then(|command| command.text().ok());
        *may_move_head |= reason::is_shell(tool) && command.is_some_and(reason::may_move_head);
        calls.push((shown, reason::of_tool(tool, command), command.filter(|_| reason::is_shell(tool))));
    }
    let mut new = Step {
        tool_calls: u32::try_from(calls.len()).unwrap_or(u32::MAX),
        reply: reply(step, text)?,
        time_us,
        ..Step::default()
    };
    for result in results(step)? {
        let of_id = result.text_at(&["source_call_id"])?.and_then(|id| by_id.get(id).copied());
        // Without an id, one call alone is what was answered.
        let call = of_id.or((calls.len() == 1).then_some(0)).map(|index| &calls[index]);
        if let Some((_, _, Some(command))) = call
            && calls.len() == 1
            && reason::prints_whole_patch(command)
            && !*may_move_head
        {
            let output = content_text(result, "content")?;
            let is_patch = output.starts_with("diff --git ") && !output.as_bytes().ends_with(CUT_MARK);
            new.patch = is_patch.then(|| output.into_bytes());
        }
        let (shown, reason) =
            call.map_or((&b""[..], ContextReason::Harness), |(shown, reason, _)| (shown.as_slice(), *reason));
        new.seen.push(Seen::new(at, shown, content_kept(result, "content")?, None, reason));
    }
    recording.last_step_submits = calls.is_empty() && new.seen.is_empty();
    recording.handed_in = recording.last_step_submits;
    recording.steps.push(new);
    Ok(())
}

fn results<'n, 'a>(step: At<'n, 'a>) -> Result<Vec<At<'n, 'a>>, Problem> {
    step.field("observation")?.map_or(Ok(Vec::new()), |observation| observation.items_at("results"))
}

/// What the model used for a step; `None` where no model was called for it.
fn reply(step: At<'_, '_>, text: String) -> Result<Option<Reply>, Problem> {
    if step.count_at(&["llm_call_count"])? == Some(0) {
        return Ok(None);
    }
    Ok(Some(Reply {
        input_tokens: step.count_at(&["metrics", "prompt_tokens"])?,
        cached_input_tokens: step.count_at(&["metrics", "cached_tokens"])?,
        output_tokens: step.count_at(&["metrics", "completion_tokens"])?,
        cost_usd: step.number_at(&["metrics", "cost_usd"])?,
        text: Some(text.into_bytes()),
    }))
}
