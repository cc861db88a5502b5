//! OpenHands `output.jsonl`, as its V0 evaluation writes it: one row an instance.
//!
//! | | |
//! | --- | --- |
//! | instance | `instance_id` |
//! | issue | `instance.problem_statement`, else `instruction` between its tags |
//! | base | `instance.base_commit` |
//! | patch | `test_result.git_patch`; at earlier steps the output of `git add -A && git diff --cached` |
//! | observations | events with `observation`, joined to their action by `cause` |
//! | exit status | `extras.metadata.exit_code`; -1 is the recorder's word for unknown |
//! | budget | `metadata.max_iterations` less the actions and the failed replies so far: each is one iteration |
//! | tokens | `tool_call_metadata.model_response.usage`, once a reply; a reply that failed to parse is lost |
//! | money | lost for a reply; `metrics.accumulated_cost` of the whole run |
//! | time | `timestamp` |
//!
//! A step is an action of the agent, or a reply that failed to parse (an `error` without `cause`). The last step
//! submits if it is `finish`. The data set's row carries the hidden tests and hints; they never enter the tree.

use std::collections::HashMap;

use tack_core::ContextReason;

use crate::Options;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::issue;
use crate::json::{At, Node};
use crate::reason;
use crate::recording::{Recording, Seen, Step, is_patch};
use crate::rows::pick;
use crate::time::micros;
use crate::usage::{Reply, RunTotals};

/// Actions that are the harness's own and no turn of the agent.
const NOT_A_TURN: &[&str] = &[
    "change_agent_state",
    "condensation",
    "condensation_request",
    "null",
    "pause",
    "recall",
    "resume",
    "start",
    "stop",
    "system",
];
/// Arguments that the recorder adds, or that repeat the agent's words; the rest is what the agent asked for.
const NOT_ASKED: &[&str] = &[
    "blocking",
    "confirmation_state",
    "cwd",
    "hidden",
    "impl_source",
    "is_input",
    "is_static",
    "security_risk",
    "thought",
];
/// Where the recorder cut an output.
const CUT_MARK: &str = "[... Observation truncated";

/// Reads the row that `options` ask for.
pub(crate) fn read(rows: &[Node<'_>], options: &Options<'_>) -> Result<Recording, Problem> {
    let rows: Vec<_> = rows.iter().enumerate().map(|(index, row)| At::row(row, index)).collect();
    let ids = rows
        .iter()
        .map(|row| row.required("instance_id", "the id of the instance")?.text())
        .collect::<Result<Vec<_>, _>>()?;
    let picked = pick(&ids, options.instance)?;
    let row = rows[picked.rows.picked];
    let mut recording = Recording::new(Format::OpenHandsOutput, picked.rows);
    recording.instance = Some(ids[picked.rows.picked].to_owned());
    recording.gaps.extend(picked.gap);

    let mut events = Events::new(&mut recording);
    for event in row.items_at("history")? {
        events.read(event)?;
    }
    if !events.is_v0 {
        return unknown_version("(none: no event tells it)");
    }
    recording.submission = row.bytes_at(&["test_result", "git_patch"])?;
    recording.call_limit = row.count_at(&["metadata", "max_iterations"])?;
    find_issue(&mut recording, row)?;
    match row.field("instance")? {
        Some(instance) if matches!(instance.node, Node::Object(_)) => {
            recording.set_base(instance.text_at(&["base_commit"])?);
        }
        _ => recording.set_base(None),
    }
    recording.totals = RunTotals {
        model_calls: None,
        input_tokens: row.count_at(&["metrics", "accumulated_token_usage", "prompt_tokens"])?,
        output_tokens: row.count_at(&["metrics", "accumulated_token_usage", "completion_tokens"])?,
        cost_usd: row.number_at(&["metrics", "accumulated_cost"])?,
    }
    .without_empty_figures();
    recording.gap(About::Cost, Cause::Format, "money is recorded for the whole run, not for a reply");
    Ok(recording)
}

fn find_issue(recording: &mut Recording, row: At<'_, '_>) -> Result<(), Problem> {
    let of_row = match row.field("instance")? {
        Some(instance) if matches!(instance.node, Node::Object(_)) => instance.bytes_at(&["problem_statement"])?,
        _ => None,
    };
    if of_row.is_some() {
        recording.issue = of_row;
    } else if let Some(instruction) = row.text_at(&["instruction"])? {
        recording.issue = Some(match issue::of_prompt(instruction, None) {
            Ok(issue) => issue.as_bytes().to_vec(),
            Err(whole) => {
                let note = "the whole instruction: nothing in it tells the issue from the rest";
                recording.gap(About::Issue, Cause::Recording, note);
                whole.as_bytes().to_vec()
            }
        });
    }
    Ok(())
}

struct Events<'r, 'n> {
    recording: &'r mut Recording,
    /// The step and the call of each action, by its id.
    calls: HashMap<u64, (usize, Call<'n>)>,
    last_reply_id: Option<&'n str>,
    may_move_head: bool,
    /// Whether an event was there that only V0 writes.
    is_v0: bool,
}

#[derive(Clone, Copy)]
struct Call<'n> {
    action: &'n str,
    args: Option<At<'n, 'n>>,
}

impl<'r, 'n> Events<'r, 'n> {
    fn new(recording: &'r mut Recording) -> Self {
        Self { recording, calls: HashMap::new(), last_reply_id: None, may_move_head: false, is_v0: false }
    }

    fn read(&mut self, event: At<'n, 'n>) -> Result<(), Problem> {
        if event.node.has("kind") {
            return unknown_version("events of V1 (they have a `kind`)");
        }
        let time_us = event.text_at(&["timestamp"])?.and_then(micros);
        self.recording.started_us = self.recording.started_us.or(time_us);
        let (action, observation) = (event.text_at(&["action"])?, event.text_at(&["observation"])?);
        self.is_v0 |= action.is_some() || observation.is_some();
        match (action, observation) {
            (Some(action), _) => self.action(event, action, time_us),
            (None, Some(observation)) => self.observation(event, observation, time_us),
            // An event of neither kind is one of the recorder's own.
            (None, None) => Ok(()),
        }
    }

    fn action(&mut self, event: At<'n, 'n>, action: &'n str, time_us: Option<u64>) -> Result<(), Problem> {
        if action == "system" {
            return check_version(event);
        }
        let source = event.text_at(&["source"])?;
        if source == Some("user") && action == "message" && !self.recording.steps.is_empty() {
            // The harness speaks in the user's name: "please continue".
            let content = event.walk(&["args", "content"])?;
            let content = content.map(|place| place.kept()).transpose()?.unwrap_or_default();
            self.seen(Seen::new(self.recording.steps.len() - 1, b"", content, None, ContextReason::Harness));
        }
        if source != Some("agent") || NOT_A_TURN.contains(&action) {
            return Ok(());
        }
        let args = event.field("args")?;
        let is_submission = matches!(action, "finish" | "reject");
        self.recording.handed_in = action == "finish";
        self.recording.last_step_submits = is_submission;
        let is_tool = !matches!(action, "message" | "finish" | "reject" | "think");
        let reply = self.reply(event, Call { action, args })?;
        self.recording.steps.push(Step { tool_calls: u32::from(is_tool), reply, time_us, ..Step::default() });
        if let Some(id) = event.count_at(&["id"])? {
            self.calls.insert(id, (self.recording.steps.len() - 1, Call { action, args }));
        }
        Ok(())
    }

    /// What the reply used; `None` where this action came in the same reply as the one before it.
    fn reply(&mut self, event: At<'n, 'n>, call: Call<'n>) -> Result<Option<Reply>, Problem> {
        let response = event.walk(&["tool_call_metadata", "model_response"])?;
        let id = response.map(|response| response.text_at(&["id"])).transpose()?.flatten();
        if id.is_some() && id == self.last_reply_id {
            return Ok(None);
        }
        self.last_reply_id = id;
        let usage = response.map(|response| response.field("usage")).transpose()?.flatten();
        let count = |keys: &[&'n str]| usage.map(|usage| usage.count_at(keys)).transpose().map(Option::flatten);
        let words = event.text_at(&["args", "thought"])?.or(event.text_at(&["message"])?).unwrap_or_default();
        Ok(Some(Reply {
            input_tokens: count(&["prompt_tokens"])?,
            cached_input_tokens: count(&["prompt_tokens_details", "cached_tokens"])?,
            output_tokens: count(&["completion_tokens"])?,
            cost_usd: None,
            text: Some(format!("{words}\n{}", String::from_utf8_lossy(&call.shown()?)).into_bytes()),
        }))
    }

    fn observation(&mut self, event: At<'n, 'n>, kind: &str, time_us: Option<u64>) -> Result<(), Problem> {
        let cause = event.count_at(&["cause"])?;
        let content = event.field("content")?;
        let output = content.map(|place| place.kept()).transpose()?.unwrap_or_default();
        let known = cause.and_then(|cause| self.calls.get(&cause).copied());
        let Some((at, call)) = known else {
            if kind == "error" && cause.is_none() {
                // The reply did not parse: it was charged, and only the complaint about it was kept.
                self.recording.handed_in = false;
                self.recording.last_step_submits = false;
                self.recording.steps.push(Step { reply: Some(Reply::default()), time_us, ..Step::default() });
                self.last_reply_id = None;
                self.seen(Seen::new(self.recording.steps.len() - 1, b"", output, None, ContextReason::Harness));
            }
            return Ok(());
        };
        let status = match event.walk(&["extras", "metadata", "exit_code"])? {
            Some(place) => Some(place),
            None => event.walk(&["extras", "exit_code"])?,
        };
        // -1 is how the recorder writes that it does not know.
        let status = status.map(|place| place.exit_status()).transpose()?.flatten().filter(|&status| status != -1);
        let hidden = event.walk(&["extras", "hidden"])?.is_some_and(|flag| *flag.node == Node::Bool(true));
        let shown = call.shown()?;
        let command = String::from_utf8_lossy(&shown);
        if call.action == "run" {
            self.may_move_head |= reason::may_move_head(&command);
            let is_whole = status == Some(0) && reason::prints_whole_patch(&command) && !self.may_move_head;
            let whole = content.filter(|_| is_whole).map(|place| place.text()).transpose()?;
            if let Some(whole) = whole.filter(|text| is_patch(text) && !text.contains(CUT_MARK)) {
                self.recording.steps[at].patch = Some(whole.as_bytes().to_vec());
            }
        }
        self.recording.steps[at].time_us = time_us.or(self.recording.steps[at].time_us);
        let seen = Seen::new(at, &shown, output, status, call.reason()?);
        self.seen(Seen { is_visible: !hidden, ..seen });
        Ok(())
    }

    fn seen(&mut self, seen: Seen) {
        if let Some(last) = self.recording.steps.get_mut(seen.observation.step as usize) {
            last.seen.push(seen);
        }
    }
}

impl Call<'_> {
    /// A command as it is; any other action with what the agent asked for.
    fn shown(&self) -> Result<Vec<u8>, Problem> {
        let Some(args) = self.args else {
            return Ok(self.action.as_bytes().to_vec());
        };
        if self.action == "run" {
            return Ok(args.text_at(&["command"])?.unwrap_or_default().as_bytes().to_vec());
        }
        let asked: Vec<_> = match args.node {
            Node::Object(members) => {
                let is_asked = |(key, value): &&(_, Node<'_>)| {
                    let key: &std::borrow::Cow<'_, str> = key;
                    !NOT_ASKED.contains(&key.as_ref()) && *value != Node::Null
                };
                members.iter().filter(is_asked).cloned().collect()
            }
            _ => return Err(args.wrong("an object")),
        };
        Ok(format!("{} {}", self.action, Node::Object(asked)).into_bytes())
    }

    fn reason(&self) -> Result<ContextReason, Problem> {
        let command = self.args.map(|args| args.text_at(&["command"])).transpose()?.flatten();
        Ok(reason::of_tool(self.action, command))
    }
}

fn unknown_version<T>(found: &str) -> Result<T, Problem> {
    let known = "V0 (events with `action` or `observation`)";
    Err(Problem::UnknownVersion { format: "OpenHands output.jsonl", found: found.to_owned(), known })
}

fn check_version(event: At<'_, '_>) -> Result<(), Problem> {
    match event.text_at(&["args", "openhands_version"])? {
        Some(version) if !version.starts_with("0.") => {
            Err(Problem::UnknownVersion { format: "OpenHands output.jsonl", found: version.to_owned(), known: "0.x" })
        }
        _ => Ok(()),
    }
}
