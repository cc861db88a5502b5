//! What every reader makes of its file, and the one place that cuts it at a decision point.
//!
//! A recording is a list of *steps*. A step is one reply of the model and everything that was recorded until the
//! next one. The decision point after step `n` sees steps `0..=n` and nothing later. The last decision point, the
//! *default* one, stands after the last step that is not the submission itself: no edit follows it, so what was
//! submitted is the patch as it stood there. No other point may see the submission.

use tack_core::{ContextReason, Remaining};

use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause, Gap};
use crate::kept::{KEPT_MAX, Kept};
use crate::state::{Hidden, OwnedObservation, OwnedState, Saved};
use crate::usage::{Reply, RunTotals, add_up};
use crate::{Options, Point, Read, Rows};

/// A whole recording, as its reader understood it.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) format: Format,
    pub(crate) instance: Option<String>,
    pub(crate) rows: Rows,
    pub(crate) issue: Option<Vec<u8>>,
    pub(crate) base: Option<String>,
    pub(crate) steps: Vec<Step>,
    /// Whether the last step is nothing but the agent's handing in: it changes no file.
    pub(crate) last_step_submits: bool,
    /// Whether the agent handed in, and was not cut off: only then does an empty submission say "no change". A format
    /// that holds patches and no run has them as they were handed in.
    pub(crate) handed_in: bool,
    /// What was handed in at the end.
    pub(crate) submission: Option<Vec<u8>>,
    /// How many calls the whole run might charge; `None` where unlimited or unknown.
    pub(crate) call_limit: Option<u64>,
    /// When the run began, on the clock of [`Step::time_us`].
    pub(crate) started_us: Option<u64>,
    /// Whether the run was one of several, and this one was chosen when all were over.
    pub(crate) chosen_afterwards: bool,
    pub(crate) totals: RunTotals,
    pub(crate) gaps: Vec<Gap>,
}

/// One reply of the model and what was recorded until the next.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) seen: Vec<Seen>,
    pub(crate) reply: Option<Reply>,
    /// Tool calls that the reply made.
    pub(crate) tool_calls: u32,
    /// Whether nobody can tell if the run's limit counted this reply: versions of an agent differ on failed ones.
    pub(crate) charge_unknown: bool,
    /// The whole patch against the base as it stood after this step, where the step itself recorded it.
    pub(crate) patch: Option<Vec<u8>>,
    /// When the last thing of this step was recorded, in microseconds of the recorder's own clock.
    pub(crate) time_us: Option<u64>,
    /// What the whole run had used by this step, where the recorder keeps running sums instead of one a reply.
    pub(crate) sums: Option<Reply>,
}

/// An answer, and whether the agent was shown it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) observation: OwnedObservation,
    pub(crate) is_visible: bool,
    /// Bytes of the call and of the output that a state does not keep.
    pub(crate) dropped: u64,
}

impl Seen {
    /// What the agent was shown as the answer to `call`.
    pub(crate) fn new(step: usize, call: &[u8], output: Kept, exit_status: Option<i32>, reason: ContextReason) -> Self {
        let call = Kept::of(call);
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        Self {
            dropped: call.dropped + output.dropped,
            observation: OwnedObservation { step, call: call.bytes, output: output.bytes, exit_status, reason },
            is_visible: true,
        }
    }
}

impl Recording {
    /// A recording of `format` in which nothing is known yet.
    pub(crate) fn new(format: Format, rows: Rows) -> Self {
        Self {
            format,
            instance: None,
            rows,
            issue: None,
            base: None,
            steps: Vec::new(),
            last_step_submits: false,
            handed_in: false,
            submission: None,
            call_limit: None,
            started_us: None,
            chosen_afterwards: false,
            totals: RunTotals::default(),
            gaps: Vec::new(),
        }
    }

    /// A commit that the file names, if it is one.
    pub(crate) fn set_base(&mut self, commit: Option<&str>) {
        self.base = commit.filter(|commit| is_commit(commit)).map(str::to_owned);
        if self.base.is_none() {
            self.gap(About::Base, Cause::Recording, "the file names no base commit");
        }
    }

    pub(crate) fn gap(&mut self, about: About, cause: Cause, note: impl Into<std::borrow::Cow<'static, str>>) {
        self.gaps.push(Gap::new(about, cause, note));
    }

    /// The state at the decision point that `options` ask for, with the `given_issue` in place of the file's.
    pub(crate) fn at_point(mut self, options: &Options<'_>, given_issue: Option<Vec<u8>>) -> Result<Read, Problem> {
        if let Some(step) = options.at.filter(|_| self.chosen_afterwards) {
            return Err(Problem::ChosenAfterwards { step });
        }
        let point = self.point(options.at)?;
        let patch = match options.patch {
            Some(given) => Some(given.to_vec()),
            None => self.patch_at(&point)?,
        };
        let issue = given_issue.or_else(|| self.issue.take());
        if issue.is_none() {
            self.gap(About::Issue, Cause::Recording, "not in the file: unknown until one is given, which is not empty");
        }
        if patch.as_ref().is_some_and(|patch| !patch.is_empty() && !patch.ends_with(b"\n")) {
            self.gap(About::Patch, Cause::Recording, "its last newline is missing: kept byte for byte");
        }

        self.steps.truncate(point.seen());
        let replies = self.steps.iter().filter_map(|step| step.reply.as_ref());
        let sums = self.steps.iter().rev().find_map(|step| step.sums.as_ref());
        let mut usage = add_up(replies, sums);
        usage.tool_calls = self.steps.iter().map(|step| step.tool_calls).fold(0, u32::saturating_add);
        usage.wall = wall(self.started_us, &self.steps);
        let budget = Remaining { tool_calls: self.calls_left(), ..Remaining::default() };
        let mut observations = Vec::new();
        let mut hidden = Vec::new();
        let seen = self.steps.iter().flat_map(|step| &step.seen);
        self.gaps.extend(cut_gap(seen.map(|seen| seen.dropped)));
        for Seen { observation, is_visible, .. } in self.steps.into_iter().flat_map(|step| step.seen) {
            if is_visible {
                observations.push(observation);
            } else {
                hidden.push(Hidden { after: observations.len(), observation });
            }
        }
        Ok(Read {
            state: OwnedState { issue, menu: options.menu.clone(), patch, observations, budget },
            saved: Saved { base: self.base, hidden },
            format: self.format,
            instance: self.instance,
            rows: self.rows,
            point,
            usage,
            totals: self.totals,
            gaps: self.gaps,
        })
    }

    /// What the limit leaves after the steps that are still here: each charges one call.
    fn calls_left(&mut self) -> Option<u32> {
        let limit = self.call_limit?;
        if self.steps.iter().any(|step| step.charge_unknown) {
            self.gap(
                About::Budget,
                Cause::Recording,
                "whether failed replies count differs by version: the rest is unknown",
            );
            return None;
        }
        let charged = u64::try_from(self.steps.len()).unwrap_or(u64::MAX);
        let left = u32::try_from(limit.saturating_sub(charged)).ok();
        if left.is_none() {
            self.gap(About::Budget, Cause::Recording, "the limit leaves more than 2^32 calls: the rest is unknown");
        }
        left
    }

    fn point(&self, at: Option<u32>) -> Result<Point, Problem> {
        let steps = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        let points = steps - u32::from(self.last_step_submits && steps > 0);
        match at {
            None => Ok(Point { step: points.checked_sub(1), is_default: true, points, steps }),
            Some(step) if step < points => {
                Ok(Point { step: Some(step), is_default: step + 1 == points, points, steps })
            }
            Some(asked) => Err(Problem::UnknownStep {
                asked,
                points: match points {
                    0 => "no steps".to_owned(),
                    1 => "step 0 alone".to_owned(),
                    more => format!("steps 0 to {}", more - 1),
                },
            }),
        }
    }

    fn patch_at(&mut self, point: &Point) -> Result<Option<Vec<u8>>, Problem> {
        let of_step = point.seen().checked_sub(1).and_then(|last| self.steps.get_mut(last)?.patch.take());
        if !point.is_default {
            return match (of_step, point.step) {
                (Some(patch), _) => Ok(Some(patch)),
                (None, step) => Err(Problem::PatchNotRecorded { step: step.unwrap_or_default() }),
            };
        }
        // Empty because the run was cut off is not empty by choice: only an agent that handed in says "no change".
        let is_cut_off = !self.handed_in;
        let submission = self.submission.take();
        if is_cut_off && submission.as_ref().is_some_and(Vec::is_empty) && of_step.is_none() {
            self.gap(
                About::Patch,
                Cause::Recording,
                "the run ended without handing in, so its empty patch says nothing",
            );
            return Ok(None);
        }
        let patch = submission.filter(|patch| !(is_cut_off && patch.is_empty())).or(of_step);
        if patch.is_none() {
            self.gap(About::Patch, Cause::Recording, "not in the file: unknown, which is not empty");
        }
        Ok(patch)
    }
}

/// What was left out of observations that are over the bound.
pub(crate) fn cut_gap(dropped: impl Iterator<Item = u64>) -> Option<Gap> {
    let cut: Vec<u64> = dropped.filter(|&bytes| bytes > 0).collect();
    let (count, bytes) = (cut.len(), cut.iter().sum::<u64>());
    let note =
        format!("calls and answers over {KEPT_MAX} bytes, of which both ends are kept: {count}, less {bytes} bytes");
    (count > 0).then(|| Gap::new(About::Observations, Cause::Altered, note))
}

/// From the start, or else the first step, to the last.
fn wall(started_us: Option<u64>, steps: &[Step]) -> Option<tack_core::Micros> {
    let times = || started_us.into_iter().chain(steps.iter().filter_map(|step| step.time_us));
    // One time alone spans nothing.
    (times().count() > 1).then(|| tack_core::Micros(times().max().unwrap_or(0) - times().min().unwrap_or(0)))
}

/// Whether `text` can be a patch: nothing, or a unified diff.
pub(crate) fn is_patch(text: &str) -> bool {
    text.trim().is_empty() || text.trim_start().starts_with("diff --git ") || text.trim_start().starts_with("--- ")
}

/// Whether `text` names a commit, and not a branch or `HEAD`.
pub(crate) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
