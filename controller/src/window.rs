//! The observations: the newest ones, in a window that moves in steps.
//!
//! Each observation is written as a block that depends on nothing but itself: its step, the reason why it is in the
//! context, its call and its output, each cut to its own bound. So an appended observation changes no block before it.
//!
//! The window opens at a *step border* where it can. Borders are fixed by the observations before them: the recording
//! is laid on a grid of 2,048 bytes, each observation as wide as its bytes up to its bound, and the first block that
//! begins in a new cell is a border. The window opens at the first border from which everything to the newest block
//! fits. So while the agent works, the tokens before the newest block stay as they were, and a cached prefix survives;
//! then the window moves by a whole step at once, and the prefix starts anew. Without steps, a full window would move
//! with every observation, and nothing after its start would ever survive.
//!
//! A step of 2,048 bytes is about 600 tokens of code or log, two fifths of the share. Where text is so dense that no
//! border lies within the window (a token a byte), the window moves block by block.

use serde::Serialize;
use tack_core::{ContextReason, Observation, Tokens};

use crate::encode::FieldReport;
use crate::fit::{Fitter, HeadQuarters, TextReport};
use crate::template::{Unit, tokens};

/// Most tokens of a call.
const CALL_MOST: usize = 64;
/// Most tokens of an output.
const OUTPUT_MOST: usize = 224;
/// A command's beginning says what it does.
const CALL_HEAD: HeadQuarters = HeadQuarters(3);
/// A log's end says how it went.
const OUTPUT_HEAD: HeadQuarters = HeadQuarters(1);

/// Most tokens of a block: its two texts, three structural tokens, `4294967295 agent_test\n`, `exit -2147483648\n`.
const BLOCK_MOST: usize = CALL_MOST + OUTPUT_MOST + 3 + 22 + 17;

/// Bytes of a grid cell.
const STEP_BYTES: u64 = 2_048;
/// What counts of a call or an output on the grid: about what its bound in tokens lets through.
const CALL_BYTES: u64 = 4 * CALL_MOST as u64;
const OUTPUT_BYTES: u64 = 4 * OUTPUT_MOST as u64;
/// The rest of a block.
const FRAME_BYTES: u64 = 24;

/// One observation in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObservationReport {
    /// Which step of the recording it stands at.
    pub step: u32,
    /// Why it is in the context.
    pub reason: ContextReason,
    /// Tokens of its block.
    pub tokens: Tokens,
    /// What became of the call.
    pub call: TextReport,
    /// What became of the output.
    pub output: TextReport,
}

/// Writes the field, within `most` tokens.
pub(crate) fn write(
    fitter: &mut Fitter<'_>,
    observations: &[Observation<'_>],
    most: usize,
    report: &mut FieldReport,
    ids: &mut Vec<u32>,
) -> Vec<ObservationReport> {
    let count = observations.len();
    let room = most.saturating_sub(fitter.template.mark_max(count as u64, Unit::Observations));

    // From the newest back, as long as all blocks fit: each is at least three tokens, so this is bounded.
    let mut blocks: Vec<(Vec<u32>, ObservationReport)> = Vec::new();
    let mut used = 0;
    for observation in observations.iter().rev() {
        let block = write_block(fitter, observation);
        used += block.0.len();
        if used > room {
            break;
        }
        blocks.push(block);
    }
    blocks.reverse();
    let earliest = count - blocks.len();
    let first = if earliest == 0 { 0 } else { first_border(observations, earliest).unwrap_or(earliest) };

    if first > 0 {
        fitter.template.mark(fitter.tokenizer, first as u64, Unit::Observations, ids);
    }
    let shown = blocks.split_off(first - earliest);
    for (block, _) in &shown {
        ids.extend_from_slice(block);
    }
    let reports: Vec<ObservationReport> = shown.into_iter().map(|(_, entry)| entry).collect();

    report.entries_in = count;
    report.entries_cut = first;
    report.bytes_in.0 = observations.iter().map(|it| (it.call.len() + it.output.len()) as u64).sum();
    report.head.0 =
        reports.iter().map(|it| it.call.head.0 + it.call.tail.0 + it.output.head.0 + it.output.tail.0).sum();
    report.bytes_cut.0 = report.bytes_in.0 - report.head.0;
    report.replaced = reports.iter().map(|it| it.call.replaced + it.output.replaced).sum();
    reports
}

fn write_block(fitter: &mut Fitter<'_>, observation: &Observation<'_>) -> (Vec<u32>, ObservationReport) {
    let Observation { step, call, output, exit_status, reason } = *observation;
    let structure = fitter.template.structure;
    let mut ids = Vec::with_capacity(BLOCK_MOST);
    ids.push(structure.call);
    fitter.words(&format!("{step} {}\n", reason.name()), &mut ids);
    let call = fitter.text(call, CALL_MOST, CALL_HEAD, &mut ids);
    ids.push(structure.response);
    if let Some(status) = exit_status {
        fitter.words(&format!("exit {status}\n"), &mut ids);
    }
    let output = fitter.text(output, OUTPUT_MOST, OUTPUT_HEAD, &mut ids);
    ids.push(structure.end_response);
    let report = ObservationReport { step, reason, tokens: tokens(ids.len()), call, output };
    (ids, report)
}

/// The first step border at or after `earliest`.
fn first_border(observations: &[Observation<'_>], earliest: usize) -> Option<usize> {
    let mut start = 0;
    let mut cell_before = None;
    for (index, observation) in observations.iter().enumerate() {
        let cell = start / STEP_BYTES;
        if index >= earliest && cell_before != Some(cell) {
            return Some(index);
        }
        cell_before = Some(cell);
        start += (observation.call.len() as u64).min(CALL_BYTES)
            + (observation.output.len() as u64).min(OUTPUT_BYTES)
            + FRAME_BYTES;
    }
    None
}
