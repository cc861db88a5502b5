//! OpenHands software-agent-sdk events (V1): one object a line, or a list of them.
//!
//! | | |
//! | --- | --- |
//! | instance | lost (a conversation id at best, in the folder's name) |
//! | issue | the first `MessageEvent` of the user |
//! | base | lost |
//! | patch | lost, but where a step is `git add -A && git diff --cached` |
//! | observations | `ObservationEvent`, joined to its `ActionEvent` by `action_id`; `AgentErrorEvent` by `tool_call_id` |
//! | exit status | `observation.exit_code`, else `observation.metadata.exit_code`; -1 is the recorder's word for unknown |
//! | budget | lost: the limit counts replies, and a reply may hold several calls |
//! | tokens, money | running sums in `ConversationStateUpdateEvent` (`stats`, `full_state`) |
//! | time | `timestamp` |
//!
//! A step is a reply: the `ActionEvent`s of one `llm_response_id`, or a `MessageEvent` of the agent. The last one
//! submits if it is such a message, or calls `finish`. Statistics that come before an action are of its reply.

use std::collections::HashMap;

use tack_core::ContextReason;

use crate::Rows;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::json::{At, Node};
use crate::kept::Kept;
use crate::message::{content_kept, content_text, shown_call};
use crate::reason;
use crate::recording::{Recording, Seen, Step, is_patch};
use crate::time::micros;
use crate::usage::{Reply, known_cost, sum};

/// Kinds that carry something of a state.
const SPEAKING: &[&str] = &[
    "ActionEvent",
    "AgentErrorEvent",
    "ConversationErrorEvent",
    "ConversationStateUpdateEvent",
    "MessageEvent",
    "ObservationEvent",
    "UserRejectObservation",
];
/// Kinds that carry nothing of a state.
const SILENT: &[&str] = &[
    "Condensation",
    "CondensationRequest",
    "CondensationSummaryEvent",
    "HookExecutionEvent",
    "InterruptEvent",
    "LLMCompletionLogEvent",
    "PauseEvent",
    "StreamingDeltaEvent",
    "SystemPromptEvent",
    "TokenEvent",
];

/// Whether a row is an event of the SDK: of a kind that it has, and with the `source` that it always writes. The
/// format states no version, and other systems write events with a `kind` too.
pub(crate) fn is_event(row: &Node<'_>) -> bool {
    let is_known = |kind: &str| SPEAKING.contains(&kind) || SILENT.contains(&kind);
    row.has("source") && matches!(row.member("kind"), Some(Node::Text(kind)) if is_known(kind.as_str()))
}

/// Reads the events of one conversation.
pub(crate) fn read(events: &[At<'_, '_>]) -> Result<Recording, Problem> {
    let mut recording = Recording::new(Format::OpenHandsSdk, Rows::SINGLE);
    let mut conversation = Conversation::new(&mut recording);
    for event in events {
        conversation.read(*event)?;
    }
    let (orphans, unknown) = (conversation.orphans, conversation.unknown);
    if orphans > 0 {
        let note = format!("answers without a recorded call, each a step of its own: {orphans}");
        recording.gap(About::Observations, Cause::Recording, note);
    }
    if unknown > 0 {
        recording.gap(About::Observations, Cause::Recording, format!("events of unknown kinds, left out: {unknown}"));
    }
    recording.gap(About::Base, Cause::Format, "the format has no base commit");
    recording.gap(About::Budget, Cause::Format, "its limit counts replies, and a reply may hold several calls");
    Ok(recording)
}

struct Conversation<'r, 'n> {
    recording: &'r mut Recording,
    /// The step and the call of each action, by its event id and by its tool call id.
    calls: HashMap<&'n str, Known>,
    last_reply_id: Option<&'n str>,
    /// Running sums that came since the last step.
    sums: Option<Reply>,
    orphans: u32,
    unknown: u32,
    may_move_head: bool,
}

/// A recorded call.
#[derive(Clone)]
struct Known {
    step: usize,
    call: Vec<u8>,
    reason: ContextReason,
}

impl<'r, 'n> Conversation<'r, 'n> {
    fn new(recording: &'r mut Recording) -> Self {
        let calls = HashMap::new();
        Self { recording, calls, last_reply_id: None, sums: None, orphans: 0, unknown: 0, may_move_head: false }
    }

    fn read(&mut self, event: At<'n, '_>) -> Result<(), Problem> {
        let time_us = event.text_at(&["timestamp"])?.and_then(micros);
        self.recording.started_us = self.recording.started_us.or(time_us);
        match event.required("kind", "the kind of the event")?.text()? {
            "MessageEvent" => self.message(event, time_us),
            "ActionEvent" => self.action(event, time_us),
            "ObservationEvent" => self.observation(event, time_us),
            "AgentErrorEvent" | "ConversationErrorEvent" | "UserRejectObservation" => self.complaint(event, time_us),
            "ConversationStateUpdateEvent" => self.statistics(event),
            silent if SILENT.contains(&silent) => Ok(()),
            _ => {
                self.unknown += 1;
                Ok(())
            }
        }
    }

    fn message(&mut self, event: At<'n, '_>, time_us: Option<u64>) -> Result<(), Problem> {
        let message = event.required("llm_message", "the message")?;
        if event.text_at(&["source"])? == Some("agent") {
            let text = content_text(message, "content")?.into_bytes();
            self.start_step(event.text_at(&["llm_response_id"])?, text, time_us);
            self.recording.handed_in = true;
            self.recording.last_step_submits = true;
        } else if self.recording.steps.is_empty() {
            if self.recording.issue.is_none() {
                self.recording.issue = Some(content_text(message, "content")?.into_bytes());
            }
        } else {
            let at = self.recording.steps.len() - 1;
            self.seen(at, b"", content_kept(message, "content")?, None, ContextReason::Harness);
        }
        Ok(())
    }

    fn action(&mut self, event: At<'n, '_>, time_us: Option<u64>) -> Result<(), Problem> {
        let tool = event.text_at(&["tool_name"])?.unwrap_or_default();
        // What the model wrote, where it is kept; else what the SDK made of it.
        let written = event.text_at(&["tool_call", "arguments"])?;
        let arguments = event.field("action")?;
        let call = match arguments {
            Some(arguments) if reason::is_shell(tool) => shown_call(tool, Some(arguments))?,
            _ => match written {
                Some(written) => format!("{tool} {written}").into_bytes(),
                None => shown_call(tool, arguments)?,
            },
        };
        let words = content_text(event, "thought")?;
        let text = format!("{words}\n{tool} {}", written.unwrap_or_default()).into_bytes();
        let reply_id = event.text_at(&["llm_response_id"])?;
        if reply_id.is_none() || reply_id != self.last_reply_id || self.recording.steps.is_empty() {
            self.start_step(reply_id, text, time_us);
        }
        let at = self.recording.steps.len() - 1;
        let hands_in = tool == "finish";
        let is_alone = self.recording.steps[at].tool_calls == 0;
        self.recording.handed_in = hands_in;
        self.recording.last_step_submits = hands_in && is_alone;
        self.recording.steps[at].tool_calls += u32::from(!hands_in && tool != "think");
        let command = match arguments {
            Some(arguments) if matches!(arguments.node, Node::Object(_)) => arguments.field("command")?,
            _ => None,
        };
        let reason = reason::of_tool(tool, command.and_then(|command| command.text().ok()));
        for id in [event.text_at(&["id"])?, event.text_at(&["tool_call_id"])?].into_iter().flatten() {
            self.calls.insert(id, Known { step: at, call: call.clone(), reason });
        }
        Ok(())
    }

    fn start_step(&mut self, reply_id: Option<&'n str>, text: Vec<u8>, time_us: Option<u64>) {
        self.last_reply_id = reply_id;
        self.recording.steps.push(Step {
            reply: Some(Reply { text: Some(text), ..Reply::default() }),
            sums: self.sums.take(),
            time_us,
            ..Step::default()
        });
    }

    fn observation(&mut self, event: At<'n, '_>, time_us: Option<u64>) -> Result<(), Problem> {
        let answer = event.required("observation", "what the tool answered")?;
        let tool = event.text_at(&["tool_name"])?.unwrap_or_default();
        let command = answer.text_at(&["command"])?;
        let Known { step: at, call, reason } = if let Some(known) = self.known_call(event)? {
            known
        } else {
            self.orphans += 1;
            self.start_step(None, Vec::new(), time_us);
            let at = self.recording.steps.len() - 1;
            // The reply is not recorded: it was charged, and nobody can tell how much.
            self.recording.steps[at].reply = Some(Reply::default());
            self.recording.steps[at].tool_calls = 1;
            self.recording.handed_in = false;
            self.recording.last_step_submits = false;
            let call = command.unwrap_or(tool).as_bytes().to_vec();
            Known { step: at, call, reason: reason::of_tool(tool, command) }
        };
        let (key, output) = match content_kept(answer, "content")? {
            none if none.bytes.is_empty() => ("output", content_kept(answer, "output")?),
            output => ("content", output),
        };
        let status = match answer.field("exit_code")? {
            Some(place) => Some(place),
            None => answer.walk(&["metadata", "exit_code"])?,
        };
        // -1 is how the recorder writes that it does not know.
        let status = status.map(|place| place.exit_status()).transpose()?.flatten().filter(|&status| status != -1);
        if reason::is_shell(tool) {
            let command = String::from_utf8_lossy(&call);
            self.may_move_head |= reason::may_move_head(&command);
            let is_whole = status == Some(0) && reason::prints_whole_patch(&command) && !self.may_move_head;
            if is_whole {
                let whole = content_text(answer, key)?;
                let is_patch = is_patch(&whole) && !whole.contains("truncated");
                self.recording.steps[at].patch = is_patch.then(|| whole.into_bytes());
            }
        }
        self.recording.steps[at].time_us = time_us.or(self.recording.steps[at].time_us);
        self.seen(at, &call, output, status, reason);
        Ok(())
    }

    fn complaint(&mut self, event: At<'n, '_>, time_us: Option<u64>) -> Result<(), Problem> {
        let text = ["error", "rejection_reason", "detail", "code"]
            .iter()
            .find_map(|key| event.field(key).transpose())
            .transpose()?
            .map(|place| place.kept())
            .transpose()?
            .unwrap_or_default();
        let (at, call) = match self.known_call(event)? {
            Some(known) => (known.step, known.call),
            None if self.recording.steps.is_empty() => return Ok(()),
            None => (self.recording.steps.len() - 1, Vec::new()),
        };
        self.recording.steps[at].time_us = time_us.or(self.recording.steps[at].time_us);
        self.seen(at, &call, text, None, ContextReason::Harness);
        Ok(())
    }

    fn known_call(&self, event: At<'n, '_>) -> Result<Option<Known>, Problem> {
        let ids = [event.text_at(&["action_id"])?, event.text_at(&["tool_call_id"])?];
        Ok(ids.into_iter().flatten().find_map(|id| self.calls.get(id).cloned()))
    }

    /// Running sums over all of the conversation's models.
    fn statistics(&mut self, event: At<'n, '_>) -> Result<(), Problem> {
        let by_model = match event.text_at(&["key"])? {
            Some("stats") => event.walk(&["value", "usage_to_metrics"])?,
            Some("full_state") => event.walk(&["value", "stats", "usage_to_metrics"])?,
            _ => None,
        };
        let Some(by_model) = by_model else { return Ok(()) };
        let mut sums = Reply {
            input_tokens: Some(0),
            cached_input_tokens: Some(0),
            output_tokens: Some(0),
            cost_usd: Some(0.0),
            ..Reply::default()
        };
        for (_, model) in by_model.members()? {
            let usage = |key| model.count_at(&["accumulated_token_usage", key]);
            let (input, output) = (usage("prompt_tokens")?, usage("completion_tokens")?);
            sums.input_tokens = sum(sums.input_tokens, input);
            sums.cached_input_tokens = sum(sums.cached_input_tokens, usage("cache_read_tokens")?);
            sums.output_tokens = sum(sums.output_tokens, output);
            let cost = known_cost(model.number_at(&["accumulated_cost"])?, [input, output]);
            sums.cost_usd = sums.cost_usd.zip(cost).map(|(sum, more)| sum + more);
        }
        self.sums = Some(sums);
        Ok(())
    }

    fn seen(&mut self, at: usize, call: &[u8], output: Kept, exit_status: Option<i32>, reason: ContextReason) {
        self.recording.steps[at].seen.push(Seen::new(at, call, output, exit_status, reason));
    }
}
