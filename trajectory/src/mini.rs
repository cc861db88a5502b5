//! mini-swe-agent 1.x: `.traj.json` with `trajectory_format` `mini-swe-agent-1`, and the bare list of messages before.
//!
//! | | `mini-swe-agent-1` | bare list |
//! | --- | --- | --- |
//! | instance | `instance_id`, else the file's name | the file's name |
//! | issue | second message, by `info.config.agent.instance_template` | second message, by the frames of known prompts |
//! | base | lost (an image name) | lost |
//! | patch | `info.submission`; at earlier steps the output of `git add -A && git diff --cached` | the last message after a handing-in command that prints a diff |
//! | observations | the one fenced block of an assistant message, and the user messages after it | the same |
//! | exit status | `<returncode>` | the same |
//! | budget | `info.config.agent.step_limit` less the replies so far | lost |
//! | tokens, money | `extra.response.usage`, `extra.cost` | lost: replies are counted later |
//! | time | lost | lost |
//!
//! A step is an assistant message. The last one submits if its command says the handing-in line and does no more than
//! add, diff and print.

use tack_core::ContextReason;

use crate::Rows;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::issue;
use crate::json::At;
use crate::kept::Kept;
use crate::message::{content_kept, content_text};
use crate::reason;
use crate::recording::{Recording, Seen, Step, is_patch};
use crate::shell::simple_commands;
use crate::usage::{Reply, RunTotals};

/// The first line of an output by which the agent hands in; the second is the older one.
const HANDING_IN: [&str; 2] = ["COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT"];

/// What a command says about handing in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandsIn {
    /// It changes nothing on the way: it says the line, adds, diffs and prints.
    pub(crate) is_pure: bool,
    /// It prints something after the line, which is then the submission.
    pub(crate) prints: bool,
}

/// Whether and how `command` hands in.
pub(crate) fn hands_in(command: &str) -> Option<HandsIn> {
    let parts = simple_commands(command);
    let says_line = |part: &crate::shell::Simple| {
        part.program() == "echo" && HANDING_IN.iter().any(|line| part.words[1..].join(" ").trim() == *line)
    };
    parts.iter().any(says_line).then(|| {
        let rest = || parts.iter().filter(|part| !says_line(part));
        let is_git =
            |part: &crate::shell::Simple, command| part.program() == "git" && part.words.iter().any(|it| it == command);
        HandsIn {
            is_pure: rest().all(|part| {
                let quiet = matches!(part.program(), "cd" | "cat") || is_git(part, "add") || is_git(part, "diff");
                quiet && !part.writes_file
            }),
            prints: rest().any(|part| part.program() == "cat" || is_git(part, "diff")),
        }
    })
}

/// Reads a trajectory of format `mini-swe-agent-1`.
pub(crate) fn read(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    let mut recording = Recording::new(Format::Mini1, Rows::SINGLE);
    recording.instance = root.text_at(&["instance_id"])?.or((!stem.is_empty()).then_some(stem)).map(str::to_owned);
    let messages: Vec<_> = root.required("messages", "an array of messages")?.items()?.collect();
    let template = root.text_at(&["info", "config", "agent", "instance_template"])?;
    let fence = match root.walk(&["info", "config", "agent", "action_regex"])? {
        Some(regex) => fence_in(regex.text()?)
            .ok_or_else(|| regex.out_of_range("a pattern for a block of ```bash or of ```mswea_bash_command"))?,
        None => fence_of(&messages)?,
    };
    let last_output = read_messages(&mut recording, &messages, template, fence)?;
    take_submission(&mut recording, root.text_at(&["info", "submission"])?, last_output);
    // 0 is mini-swe-agent's way to write "no limit".
    recording.call_limit = root.count_at(&["info", "config", "agent", "step_limit"])?.filter(|&limit| limit > 0);
    recording.totals = totals(root)?;
    recording.gap(About::Base, Cause::Format, "the format names an image, not a commit");
    recording.gap(
        About::Budget,
        Cause::Format,
        "of the limits only that on replies has a place in a state; money has none",
    );
    recording.gap(About::Time, Cause::Format, "the format has no times");
    Ok(recording)
}

/// Reads a bare list of messages. It states no format, and every chat is such a list, so it is told by its prompt:
/// the agent ends at an output that begins with the handing-in line, so each of its prompts says it.
pub(crate) fn read_bare(root: At<'_, '_>, stem: &str) -> Result<Recording, Problem> {
    let mut recording = Recording::new(Format::MiniMessages, Rows::SINGLE);
    recording.instance = (!stem.is_empty()).then(|| stem.to_owned());
    let messages: Vec<_> = root.items()?.collect();
    if !says_how_to_hand_in(&messages)? {
        let found = "messages of a chat, in whose prompt mini-swe-agent's line for handing in is missing".to_owned();
        return Err(Problem::UnknownFormat { found });
    }
    let last_output = read_messages(&mut recording, &messages, None, fence_of(&messages)?)?;
    take_submission(&mut recording, None, last_output);
    recording.gap(About::Base, Cause::Format, "the format has no base commit");
    recording.gap(About::Budget, Cause::Format, "the format has no limits");
    recording.gap(About::Tokens, Cause::Format, "the format has no token counts");
    recording.gap(About::Cost, Cause::Format, "the format has no cost");
    recording.gap(About::Time, Cause::Format, "the format has no times");
    Ok(recording)
}

/// Whether a message before the first reply says the line by which the agent hands in.
fn says_how_to_hand_in(messages: &[At<'_, '_>]) -> Result<bool, Problem> {
    for message in messages {
        if message.text_at(&["role"])? == Some("assistant") {
            return Ok(false);
        }
        let prompt = content_text(*message, "content")?;
        if HANDING_IN.iter().any(|line| prompt.contains(line)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the recorder wrote about the whole run.
pub(crate) fn totals(root: At<'_, '_>) -> Result<RunTotals, Problem> {
    Ok(RunTotals {
        model_calls: root.count_at(&["info", "model_stats", "api_calls"])?,
        cost_usd: root.number_at(&["info", "model_stats", "instance_cost"])?,
        ..RunTotals::default()
    }
    .without_empty_figures())
}

/// Takes the issue out of the prompt, and says so where the two cannot be told apart.
pub(crate) fn take_issue(recording: &mut Recording, prompt: &str, template: Option<&str>) {
    recording.issue = Some(match issue::of_prompt(prompt, template) {
        Ok(issue) => issue.as_bytes().to_vec(),
        Err(whole) => {
            let note = "the whole first message: nothing in it tells the issue from the instructions";
            recording.gap(About::Issue, Cause::Recording, note);
            whole.as_bytes().to_vec()
        }
    });
}

/// What was handed in: `stated` in the file, else printed by the last command. Prose is no patch.
pub(crate) fn take_submission(recording: &mut Recording, stated: Option<&str>, printed: Option<Printed>) {
    let handed_in = printed.is_some();
    let text = match printed {
        // A command that hands in and prints nothing has no patch to hand in.
        Some(Printed { text, is_output: true }) => Some(stated.map_or(text, str::to_owned)),
        Some(Printed { is_output: false, .. }) => stated.filter(|text| !text.trim().is_empty()).map(str::to_owned),
        None => stated.map(str::to_owned),
    };
    recording.handed_in = handed_in;
    match text {
        Some(text) if is_patch(&text) => recording.submission = Some(text.into_bytes()),
        Some(_) => recording.gap(About::Patch, Cause::Recording, "what was handed in is text and no diff"),
        None => {}
    }
}

/// What the handing-in command printed, and whether it prints anything but its line.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) text: String,
    pub(crate) is_output: bool,
}

/// Steps and issue out of the messages; what the last command printed if it handed in.
fn read_messages(
    recording: &mut Recording,
    messages: &[At<'_, '_>],
    template: Option<&str>,
    fence: &str,
) -> Result<Option<Printed>, Problem> {
    let mut is_prompt = true;
    let mut may_move_head = false;
    let mut handing_in = None;
    for message in messages {
        match message.required("role", "who speaks")?.text()? {
            "system" => {}
            "assistant" => {
                is_prompt = false;
                handing_in = None;
                recording.steps.push(step(*message, content_text(*message, "content")?, fence)?);
            }
            "user" if is_prompt => {
                if recording.issue.is_none() {
                    take_issue(recording, &content_text(*message, "content")?, template);
                }
            }
            "user" => {
                let kept = content_kept(*message, "content")?;
                let content = String::from_utf8_lossy(&kept.bytes);
                let at = recording.steps.len() - 1;
                let step = &mut recording.steps[at];
                let call = fenced_block(step, fence).unwrap_or_default();
                if content.is_empty() && !step.seen.is_empty() {
                    // The harness's word that a limit was reached: it ends the run and says nothing.
                    continue;
                }
                let is_answer = step.seen.is_empty() && step.tool_calls == 1;
                let hands_in = if is_answer { hands_in(&call) } else { None };
                let new = observation(at, &call, &content, kept.dropped, is_answer);
                let status = new.observation.exit_status;
                may_move_head |= reason::may_move_head(&call);
                let is_whole = status == Some(0) && reason::prints_whole_patch(&call) && !may_move_head;
                if is_whole && !content.contains("<output_head>") {
                    let whole = content_text(*message, "content")?;
                    let printed = returned(&whole).map_or("", |(_, output)| output);
                    step.patch = is_patch(printed).then(|| printed.as_bytes().to_vec());
                }
                handing_in = match hands_in.filter(|_| status.is_none()) {
                    Some(how) => Some((how, content_text(*message, "content")?)),
                    None => None,
                };
                step.seen.push(new);
            }
            _ => {
                let role = message.required("role", "who speaks")?;
                return Err(role.out_of_range("system, user or assistant"));
            }
        }
    }
    recording.last_step_submits = handing_in.as_ref().is_some_and(|(how, _)| how.is_pure);
    Ok(handing_in.map(|(how, text)| Printed { text, is_output: how.prints }))
}

/// A step of a reply whose answers are still to come.
fn step(message: At<'_, '_>, content: String, fence: &str) -> Result<Step, Problem> {
    let mut step = Step { tool_calls: 0, reply: Some(reply(message, content)?), ..Step::default() };
    step.tool_calls = u32::from(fenced_block(&step, fence).is_some());
    Ok(step)
}

/// Tokens, money and text of a reply.
pub(crate) fn reply(message: At<'_, '_>, content: String) -> Result<Reply, Problem> {
    let usage = message.walk(&["extra", "response", "usage"])?;
    let count = |keys: &[&'static str]| usage.map(|usage| usage.count_at(keys)).transpose().map(Option::flatten);
    let cost = match message.number_at(&["extra", "cost"])? {
        Some(cost) => Some(cost),
        None => usage.map(|usage| usage.number_at(&["cost"])).transpose()?.flatten(),
    };
    Ok(Reply {
        input_tokens: count(&["prompt_tokens"])?.or(count(&["input_tokens"])?),
        cached_input_tokens: count(&["prompt_tokens_details", "cached_tokens"])?,
        output_tokens: count(&["completion_tokens"])?.or(count(&["output_tokens"])?),
        cost_usd: cost,
        text: Some(content.into_bytes()),
    })
}

/// The fences of the agent's two patterns.
const FENCES: [&str; 2] = ["```mswea_bash_command", "```bash"];

/// The fence that a pattern or a prompt asks for.
fn fence_in(text: &str) -> Option<&'static str> {
    FENCES.into_iter().find(|fence| text.contains(fence))
}

/// The fence that the prompt asks for, where no pattern is recorded. The plain one was the agent's only one until the
/// pattern could be configured, and was then recorded.
fn fence_of(messages: &[At<'_, '_>]) -> Result<&'static str, Problem> {
    let mut prompt = String::new();
    for message in messages.iter().take(2) {
        prompt.push_str(&content_text(*message, "content")?);
    }
    Ok(fence_in(&prompt).unwrap_or(FENCES[1]))
}

/// The one fenced block of a reply: its action. With none or several the agent answers with a format error.
fn fenced_block(step: &Step, fence: &str) -> Option<String> {
    let reply = String::from_utf8_lossy(step.reply.as_ref()?.text.as_deref()?);
    let mut blocks = blocks(&reply, fence);
    let block = blocks.next()?;
    blocks.next().is_none().then(|| block.to_owned())
}

/// The texts that "```bash\s*\n(.*?)\n```" matches, as the agent's own pattern does.
fn blocks<'t>(text: &'t str, fence: &str) -> impl Iterator<Item = &'t str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, after) = rest.split_once(fence)?;
            let blank = after.len() - after.trim_start().len();
            let Some(newline) = after[..blank].rfind('\n') else {
                rest = after;
                continue;
            };
            let body = &after[newline + 1..];
            // A blank block: the pattern gives back the newline that ends it.
            let blank_block = body.strip_prefix("```").filter(|_| after[..newline].contains('\n'));
            let (block, after) = blank_block.map_or_else(|| body.split_once("\n```"), |after| Some(("", after)))?;
            rest = after;
            return Some(block.trim());
        }
    })
}

/// A user message after a reply: the answer to its action, or a word of the harness.
fn observation(at: usize, call: &str, content: &str, dropped: u64, is_answer: bool) -> Seen {
    let timed_out = content.starts_with("The last command <command>");
    let (exit_status, output) = match returned(content) {
        Some((status, output)) if is_answer => (Some(status), output),
        _ => (None, content),
    };
    let reason = if is_answer && !timed_out { reason::of_command(call) } else { ContextReason::Harness };
    let output = Kept { bytes: output.as_bytes().to_vec(), dropped };
    Seen::new(at, call.as_bytes(), output, exit_status, reason)
}

/// Status and output of `<returncode>N</returncode>\n<output>\n...</output>`; an output that was cut keeps its marks.
fn returned(content: &str) -> Option<(i32, &str)> {
    let rest = content.trim_start().strip_prefix("<returncode>")?;
    let (status, rest) = rest.split_once("</returncode>")?;
    let rest = rest.trim_start_matches('\n');
    let whole = rest.strip_prefix("<output>\n").and_then(|output| output.trim_end().strip_suffix("</output>"));
    Some((status.trim().parse().ok()?, whole.unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_is_the_one_fenced_block() {
        #[rustfmt::skip]
        let cases: [(&str, &[&str]); 9] = [
            ("no block",                                        &[]),
            ("a\n```bash\nls -F\n```",                          &["ls -F"]),
            ("a\n```mswea_bash_command\nls\n```\nb",            &[]),
            ("```bash  \n\n  ls\n\n```",                        &["ls"]),
            ("```bash\na\n```\n```python\nb\n```",              &["a"]),
            ("```bash\na\n```\n```bash\nb\n```",                &["a", "b"]),
            ("```bash\ncat <<'E'\n``` in\nE\n```",              &["cat <<'E'"]),
            ("```bash\n\n```",                                  &[""]),
            ("```bash\nnever closed",                           &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(blocks(text, "```bash").collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn the_fence_is_the_prompts() {
        assert_eq!(fence_in(r"```mswea_bash_command\s*\n(.*?)\n```"), Some(FENCES[0]));
        assert_eq!(fence_in(r"```bash\s*\n(.*?)\n```"), Some(FENCES[1]));
        assert_eq!(fence_in("no fence"), None);
    }

    #[test]
    fn an_answer_is_taken_out_of_its_tags() {
        #[rustfmt::skip]
        let cases = [
            ("<returncode>0</returncode>\n<output>\na\nb\n</output>",   Some((0, "a\nb\n"))),
            ("<returncode>-9</returncode>\n<output>\n</output>",        Some((-9, ""))),
            ("<returncode>1</returncode>\n<warning>\nlong\n</warning>", Some((1, "<warning>\nlong\n</warning>"))),
            ("<returncode>x</returncode>\n<output>\n</output>",         None),
            ("anything else",                                           None),
        ];
        for (content, expected) in cases {
            assert_eq!(returned(content), expected, "{content}");
        }
    }

    #[test]
    fn handing_in_is_pure_or_it_is_a_step_like_others() {
        let line = HANDING_IN[0];
        #[rustfmt::skip]
        let cases = [ // command, hands in: pure, prints
            (format!("echo {line} && git add -A && git diff --cached"),          Some((true,  true))),
            (format!("echo {line}"),                                             Some((true,  false))),
            (format!("echo {line} && cat patch.txt"),                            Some((true,  true))),
            (format!("cd /x; echo '{line}'; git diff"),                          Some((true,  true))),
            (format!("sed -i s/a/b/ x && echo {line} && git diff"),              Some((false, true))),
            (format!("echo {line} && git diff > p"),                             Some((false, true))),
            ("echo done".into(),                                                 None),
            (format!("grep {line} x"),                                           None),
        ];
        for (command, expected) in cases {
            let found = hands_in(&command).map(|how| (how.is_pure, how.prints));
            assert_eq!(found, expected, "{command}");
        }
    }
}
