//! mini-swe-agent 2.x: `.traj.json` with `trajectory_format` `mini-swe-agent-1.1`.
//!
//! | | |
//! | --- | --- |
//! | instance | `instance_id` (a batch runner writes it), else the file's name |
//! | issue | first user message, by `info.config.agent.instance_template` |
//! | base | lost (an image name) |
//! | patch | `info.submission`; at earlier steps `extra.raw_output` of `git add -A && git diff --cached` |
//! | observations | `extra.actions[].command` of a reply and, in order, the messages with `extra.returncode` after it |
//! | exit status | `extra.returncode` |
//! | budget | `info.config.agent.step_limit` less the replies, where a reply holds one action (text-based models); else lost, since the limit counts replies and a reply may hold several calls |
//! | tokens, money | `extra.response.usage`, `extra.cost` |
//! | time | `extra.timestamp`; the start of the run is lost |
//!
//! A reply that failed to parse is not recorded, only the complaint about it (`extra.interrupt_type` `FormatError`):
//! it is a step of its own, lost unless `extra.model_response` kept its text; whether the limit counted it differs by
//! version, so the rest of the budget is unknown from there on.
//!
//! A step is a reply: a message of role `assistant`, or a response object. The message of role `exit` is the
//! harness's: nothing of it is read. What a program printed is taken from `extra.raw_output`, before the agent's own
//! cut, where it is recorded.

use tack_core::ContextReason;

use crate::Rows;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::json::{At, Node};
use crate::message::{content_kept, content_text};
use crate::mini::{Printed, hands_in, reply, take_issue, take_submission, totals};
use crate::reason;
use crate::recording::{Recording, Seen, Step, is_patch};
use crate::usage::Reply;

/// Reads a trajectory of format `mini-swe-agent-1.1`.
pub(crate) fn read(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    let mut recording = Recording::new(Format::Mini2, Rows::SINGLE);
    recording.instance = root.text_at(&["instance_id"])?.or((!stem.is_empty()).then_some(stem)).map(str::to_owned);
    let template = root.text_at(&["info", "config", "agent", "instance_template"])?;
    let mut reader = Messages { recording: &mut recording, commands: Vec::new(), answered: 0, may_move_head: false };
    for message in root.required("messages", "an array of messages")?.items()? {
        reader.read(message, template)?;
    }
    let printed = reader.hands_in();
    take_submission(&mut recording, root.text_at(&["info", "submission"])?, printed);

    let one_action_a_reply = root
        .text_at(&["info", "config", "model_type"])?
        .is_some_and(|class| class.to_ascii_lowercase().contains("textbased"));
    if one_action_a_reply {
        // 0 is mini-swe-agent's way to write "no limit".
        recording.call_limit = root.count_at(&["info", "config", "agent", "step_limit"])?.filter(|&limit| limit > 0);
    } else {
        recording.gap(About::Budget, Cause::Format, "its limit counts replies, and a reply may hold several calls");
    }
    recording.totals = totals(root)?;
    recording.gap(About::Base, Cause::Format, "the format names an image, not a commit");
    Ok(recording)
}

struct Messages<'r, 'n> {
    recording: &'r mut Recording,
    /// The commands of the last reply.
    commands: Vec<&'n str>,
    /// How many of them have been answered.
    answered: usize,
    may_move_head: bool,
}

impl<'n> Messages<'_, 'n> {
    fn read(&mut self, message: At<'n, '_>, template: Option<&str>) -> Result<(), Problem> {
        self.recording.started_us = self.recording.started_us.or(timestamp(message)?);
        let role = message.text_at(&["role"])?;
        let is_response = message.text_at(&["object"])? == Some("response");
        let is_call_output = message.text_at(&["type"])? == Some("function_call_output");
        match role {
            Some("assistant") => self.reply(message),
            None if is_response => self.reply(message),
            None if is_call_output && !self.recording.steps.is_empty() => self.answer(message, "output"),
            Some("system" | "developer" | "exit") => Ok(()),
            Some("user") if message.text_at(&["extra", "interrupt_type"])? == Some("FormatError") => {
                self.failed_reply(message)
            }
            Some("user") if self.recording.steps.is_empty() => {
                if self.recording.issue.is_none() {
                    take_issue(self.recording, &content_text(message, "content")?, template);
                }
                Ok(())
            }
            Some("user" | "tool") if !self.recording.steps.is_empty() => self.answer(message, "content"),
            _ => {
                let place = message.required("role", "who speaks")?;
                Err(place.out_of_range("system, user, assistant, tool or exit, the first answer after a reply"))
            }
        }
    }

    fn reply(&mut self, message: At<'n, '_>) -> Result<(), Problem> {
        self.commands.clear();
        self.answered = 0;
        let mut text = match message.field("content")? {
            Some(_) => content_text(message, "content")?,
            None => String::new(),
        };
        if let Some(output) = message.field("output")? {
            text.push_str(&output.node.to_string());
        }
        if let Some(calls) = message.field("tool_calls")? {
            text.push_str(&calls.node.to_string());
        }
        if let Some(extra) = message.field("extra")? {
            for action in extra.items_at("actions")? {
                self.commands.push(action.required("command", "the command to run")?.text()?);
            }
        }
        self.recording.steps.push(Step {
            tool_calls: u32::try_from(self.commands.len()).unwrap_or(u32::MAX),
            reply: Some(reply(message, text)?),
            time_us: timestamp(message)?,
            ..Step::default()
        });
        Ok(())
    }

    fn failed_reply(&mut self, message: At<'n, '_>) -> Result<(), Problem> {
        self.commands.clear();
        self.answered = 0;
        let text = message.bytes_at(&["extra", "model_response"])?;
        let complaint = content_kept(message, "content")?;
        let at = self.recording.steps.len();
        self.recording.steps.push(Step {
            seen: vec![Seen::new(at, b"", complaint, None, ContextReason::Harness)],
            reply: Some(Reply { text, ..Reply::default() }),
            charge_unknown: true,
            ..Step::default()
        });
        Ok(())
    }

    /// An answer, of which the agent was shown what stands under `shown`.
    fn answer(&mut self, message: At<'n, '_>, shown: &'static str) -> Result<(), Problem> {
        let status = message.walk(&["extra", "returncode"])?.map(|place| place.exit_status()).transpose()?.flatten();
        let is_answer = message.walk(&["extra", "returncode"])?.is_some();
        let exception = message.text_at(&["extra", "exception_info"])?.filter(|text| !text.is_empty());
        let raw = message.walk(&["extra", "raw_output"])?;
        let call = if is_answer { self.commands.get(self.answered).copied().unwrap_or_default() } else { "" };
        self.answered += usize::from(is_answer);
        self.may_move_head |= reason::may_move_head(call);

        let at = self.recording.steps.len() - 1;
        let is_last_call = self.answered == self.commands.len();
        let step = &mut self.recording.steps[at];
        let is_whole = status == Some(0) && reason::prints_whole_patch(call) && !self.may_move_head && is_last_call;
        let whole = raw.filter(|_| is_whole).map(|raw| raw.text()).transpose()?;
        step.patch = whole.filter(|text| is_patch(text)).map(|text| text.as_bytes().to_vec());
        step.time_us = timestamp(message)?.or(step.time_us);
        let output = match (raw, exception) {
            (Some(raw), None) => raw.kept()?,
            _ => content_kept(message, shown)?,
        };
        // -1 is how the recorder writes that the command never ended by itself.
        let status = status.filter(|_| exception.is_none());
        let reason = if is_answer && exception.is_none() { reason::of_command(call) } else { ContextReason::Harness };
        step.seen.push(Seen::new(at, call.as_bytes(), output, status, reason));
        Ok(())
    }

    /// The last reply hands in if a command of it does that nobody answered: the environment ends the run there, and
    /// with it the answers to the commands before.
    fn hands_in(&mut self) -> Option<Printed> {
        let unanswered = self.commands.get(self.answered..).unwrap_or_default();
        let how = unanswered.iter().find_map(|command| hands_in(command))?;
        self.recording.last_step_submits = how.is_pure && self.commands.len() == 1;
        // What it printed stands in `info.submission` alone.
        Some(Printed { text: String::new(), is_output: how.prints })
    }
}

/// Seconds since 1970 in `extra.timestamp`, as a float.
fn timestamp(message: At<'_, '_>) -> Result<Option<u64>, Problem> {
    let Some(place) = message.walk(&["extra", "timestamp"])? else {
        return Ok(None);
    };
    if let Node::Text(text) = place.node {
        return Ok(crate::time::micros(text.as_str()));
    }
    let seconds = place.number()?;
    if !(0.0..1e12).contains(&seconds) {
        return Ok(None);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range by the check before it")]
    let micros = (seconds * 1e6) as u64;
    Ok(Some(micros))
}
