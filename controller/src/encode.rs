//! A decision state as at most 4,096 tokens: five fields, each within its own constant share.
//!
//! | field | keeps | when it is too long |
//! | --- | --- | --- |
//! | issue | head and tail, 3 to 1 | what is wrong stands first; the last lines often hold the traceback's end |
//! | menu | whole test names from the front, targeted first | five targeted ones always fit, each to its own bound |
//! | patch | head and tail, 1 to 1 | first and last files |
//! | observations | the newest ones, each with head and tail of call and output | see [`window`] |
//! | budget | all of it | three numbers fit, or there is no encoder |
//!
//! Every cut shows as a mark with a count. Nothing depends on another field's content: a short field gives nothing
//! away, so a change in one field leaves the tokens of the fields before it as they are. Text is bounded in bytes
//! before it is tokenized, so a state of any size needs a few megabytes beside itself.

use serde::Serialize;
use tack_core::{
    Bytes, DecisionState, Digest, Field, FieldShares, Issue, Menu, Patch, Remaining, Spans, Stage, Tokens,
};

use crate::digests::ids_digest;
use crate::fit::{Fitter, HeadQuarters};
use crate::kept::Kept;
use crate::template::{Template, TemplateError, Unit, tokens};
use crate::tokenizer::Tokenizer;
use crate::window::{self, ObservationReport};

const ISSUE_HEAD: HeadQuarters = HeadQuarters(3);
const PATCH_HEAD: HeadQuarters = HeadQuarters(2);
/// A test's name is most particular at its end.
const TEST_HEAD: HeadQuarters = HeadQuarters(1);

/// Most tokens of one test's name, so that the targeted ones always fit: a pytest id of a nested class is about 30.
const TEST_MOST: usize = 40;

/// Two section names of at most 8 tokens each with their structural token, and the mark for tests left out.
const MENU_FRAME_MOST: usize = 2 * 9 + 14;

const _: () = assert!(
    MENU_FRAME_MOST + Menu::TARGETED_MAX * (1 + TEST_MOST) <= FieldShares::V1.of(Field::Menu).0 as usize,
    "every targeted test must fit"
);

/// Turns states into tokens.
#[derive(Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    template: Template,
    shares: FieldShares,
    kept: Kept,
}

/// A state in tokens, with the account of what was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The tokens, unpadded, at most [`FieldShares::TOTAL`].
    pub ids: Vec<u32>,
    /// What became of each field.
    pub report: EncodeReport,
}

/// What became of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EncodeReport {
    /// All tokens together.
    pub total: Tokens,
    /// SHA-256 of the token numbers, each as four bytes, little-endian: equal if and only if the network saw the same.
    pub digest: Digest,
    /// The version of the shares.
    pub shares_version: u16,
    /// One entry a field, in layout order; the template's own words last.
    pub fields: [FieldReport; Field::ALL.len()],
    /// The observations that are shown, oldest first, each with the reason why it is there.
    pub observations: Vec<ObservationReport>,
}

/// What became of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FieldReport {
    /// The field.
    pub field: Field,
    /// Whether there was a value: an issue, a menu or a patch may be unknown.
    pub known: bool,
    /// Tokens used.
    pub tokens: Tokens,
    /// Tokens it may use.
    pub share: Tokens,
    /// Where its first token stands.
    pub start: Tokens,
    /// Bytes that came.
    pub bytes_in: Bytes,
    /// Bytes of them that are not shown.
    pub bytes_cut: Bytes,
    /// Bytes shown before the cut; all that are shown, in a field of several entries.
    pub head: Bytes,
    /// Bytes shown after the cut.
    pub tail: Bytes,
    /// Invalid UTF-8 sequences among the bytes shown; each shows as U+FFFD.
    pub replaced: u64,
    /// Tests or observations that came.
    pub entries_in: usize,
    /// Tests or observations that are not shown at all.
    pub entries_cut: usize,
}

impl FieldReport {
    fn new(field: Field, known: bool, shares: &FieldShares) -> Self {
        Self {
            field,
            known,
            tokens: Tokens(0),
            share: shares.of(field),
            start: Tokens(0),
            bytes_in: Bytes(0),
            bytes_cut: Bytes(0),
            head: Bytes(0),
            tail: Bytes(0),
            replaced: 0,
            entries_in: 0,
            entries_cut: 0,
        }
    }
}

impl Encoder {
    /// An encoder over version 1 of the shares; `file` is what errors call the tokenizer.
    ///
    /// # Errors
    /// [`TemplateError`] if the tokenizer cannot write the template, or every budget, within its share.
    pub fn new(tokenizer: Tokenizer, file: &str) -> Result<Self, TemplateError> {
        let shares = FieldShares::V1;
        let template = Template::new(&tokenizer, &shares, file)?;
        let (found, share) = (tokens(budget_most(&tokenizer)).0, shares.of(Field::Budget).0);
        if found > share {
            return Err(TemplateError::Budget { found, share });
        }
        Ok(Self { tokenizer, template, shares, kept: Kept::default() })
    }

    /// The tokenizer.
    #[must_use]
    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The shares.
    #[must_use]
    pub const fn shares(&self) -> FieldShares {
        self.shares
    }

    /// Encodes a state. Equal states give equal tokens, whatever was encoded before; texts that were are not tokenized
    /// again. `spans` hears [`Stage::Cut`] and [`Stage::Tokenize`] in turns.
    pub fn encode(&self, state: &DecisionState<'_>, spans: &mut dyn Spans) -> Encoded {
        spans.enter(Stage::Cut);
        let mut fitter = Fitter { tokenizer: &self.tokenizer, template: &self.template, kept: &self.kept, spans };
        let encoded = self.lay_out(state, &mut fitter);
        spans.exit(Stage::Cut);
        encoded
    }

    fn lay_out(&self, state: &DecisionState<'_>, fitter: &mut Fitter<'_>) -> Encoded {
        let mut ids = Vec::with_capacity(FieldShares::TOTAL.0 as usize);
        let mut observations = Vec::new();
        let mut fields = Field::ALL.map(|field| FieldReport::new(field, true, &self.shares));
        let mut template_tokens = 0;

        for report in &mut fields[..Field::Template as usize] {
            let field = report.field;
            report.known = match field {
                Field::Issue => state.issue != Issue::Unknown,
                Field::Menu => state.menu != Menu::Unknown,
                Field::Patch => state.patch != Patch::Unknown,
                _ => true,
            };
            let before = ids.len();
            self.template.open(field, report.known, &mut ids);
            let start = ids.len();
            report.start = tokens(start);
            let most = report.share.0 as usize;
            match field {
                Field::Issue => {
                    let issue = match state.issue {
                        Issue::Unknown => b"",
                        Issue::Known(issue) => issue,
                    };
                    write_text(fitter, issue, ISSUE_HEAD, report, &mut ids);
                }
                Field::Menu => write_menu(fitter, &state.menu, most, report, &mut ids),
                Field::Patch => {
                    let patch = match state.patch {
                        Patch::Unknown => b"",
                        Patch::Known(patch) => patch,
                    };
                    write_text(fitter, patch, PATCH_HEAD, report, &mut ids);
                }
                Field::Observations => {
                    observations = window::write(fitter, state.observations, most, report, &mut ids);
                }
                Field::Budget => {
                    write_text(fitter, budget_text(&state.budget).as_bytes(), HeadQuarters(4), report, &mut ids);
                }
                Field::Template => {}
            }
            let end = ids.len();
            report.tokens = tokens(end - start);
            self.template.close(&mut ids);
            template_tokens += start - before + ids.len() - end;
        }
        ids.push(self.template.structure.end);
        fields[Field::Template as usize].tokens = tokens(template_tokens + 1);

        let report = EncodeReport {
            total: tokens(ids.len()),
            digest: ids_digest(&ids),
            shares_version: self.shares.version,
            fields,
            observations,
        };
        Encoded { ids, report }
    }
}

/// A field that is one text.
fn write_text(fitter: &mut Fitter<'_>, text: &[u8], keep: HeadQuarters, report: &mut FieldReport, ids: &mut Vec<u32>) {
    let fitted = fitter.text(text, report.share.0 as usize, keep, ids);
    report.bytes_in = fitted.bytes_in;
    report.bytes_cut = fitted.cut;
    report.head = fitted.head;
    report.tail = fitted.tail;
    report.replaced = fitted.replaced;
}

/// Both sections, also where they are empty: an empty menu is not an unknown one.
fn write_menu(fitter: &mut Fitter<'_>, menu: &Menu<'_>, most: usize, report: &mut FieldReport, ids: &mut Vec<u32>) {
    let Menu::Known(_) = menu else { return };
    let template = fitter.template;
    let structure = template.structure;
    let (start, all) = (ids.len(), menu.targeted().len() + menu.broader().len());
    let mark_most = template.mark_max(all as u64, Unit::Tests);
    report.entries_in = all;

    for (name, tests) in [(&template.targeted, menu.targeted()), (&template.broader, menu.broader())] {
        ids.push(structure.section);
        ids.extend_from_slice(name);
        for test in tests {
            report.bytes_in.0 += test.len() as u64;
            if report.entries_cut > 0 {
                report.entries_cut += 1;
                report.bytes_cut.0 += test.len() as u64;
                continue;
            }
            let before = ids.len();
            ids.push(structure.entry);
            let fitted = fitter.text(test.as_bytes(), TEST_MOST, TEST_HEAD, ids);
            if ids.len() - start + mark_most > most {
                ids.truncate(before);
                report.entries_cut = 1;
                report.bytes_cut.0 += test.len() as u64;
            } else {
                report.bytes_cut.0 += fitted.cut.0;
                report.head.0 += fitted.head.0 + fitted.tail.0;
            }
        }
    }
    if report.entries_cut > 0 {
        template.mark(fitter.tokenizer, report.entries_cut as u64, Unit::Tests, ids);
    }
}

/// The figures of a budget with the greatest number of each; of the last in whole seconds.
const FIGURES: [(&str, u64); 3] =
    [("output_tokens", u32::MAX as u64), ("tool_calls", u32::MAX as u64), ("repair_s", u64::MAX / MICROS_PER_SECOND)];

const MICROS_PER_SECOND: u64 = 1_000_000;

/// What is left, one figure a line; whole seconds, rounded down.
fn budget_text(budget: &Remaining) -> String {
    let figures = [
        budget.output_tokens.map(|tokens| u64::from(tokens.0)),
        budget.tool_calls.map(u64::from),
        budget.repair.map(|left| left.0 / MICROS_PER_SECOND),
    ];
    FIGURES.iter().zip(figures).map(|((name, _), figure)| budget_line(name, figure)).collect()
}

/// Unknown is not zero.
fn budget_line(name: &str, figure: Option<u64>) -> String {
    match figure {
        Some(figure) => format!("{name} {figure}\n"),
        None => format!("{name} unknown\n"),
    }
}

/// Most tokens of a budget: no token spans two lines, and each digit is one of its own, so of all numbers the longest
/// takes the most.
fn budget_most(tokenizer: &Tokenizer) -> usize {
    let most = |(name, greatest)| {
        [Some(greatest), None].map(|figure| tokenizer.ids(&budget_line(name, figure)).len()).into_iter().max()
    };
    FIGURES.into_iter().filter_map(most).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini;
    use proptest::prelude::*;
    use serde_json::Value;
    use tack_core::Micros;

    /// The mini tokenizer with only those of its merges that are within `word`: everything else takes a token a byte.
    fn with_merges_of(word: &str) -> Tokenizer {
        let mut file: Value = serde_json::from_slice(mini::file("tokenizer.json")).unwrap();
        let is_kept = |token: &str| word.contains(token);
        let merges = file["model"]["merges"].as_array_mut().unwrap();
        merges.retain(|merge| is_kept(&[merge[0].as_str().unwrap(), merge[1].as_str().unwrap()].concat()));
        let vocab = file["model"]["vocab"].as_object_mut().unwrap();
        vocab.retain(|token, _| token.chars().count() == 1 || is_kept(token));
        let count = vocab.len();
        for (number, id) in vocab.values_mut().enumerate() {
            *id = number.into();
        }
        for (number, token) in file["added_tokens"].as_array_mut().unwrap().iter_mut().enumerate() {
            token["id"] = (count + number).into();
        }
        Tokenizer::from_bytes(file.to_string().as_bytes(), "t.json").unwrap()
    }

    #[test]
    fn a_tokenizer_that_could_cut_template_or_budget_makes_no_encoder() {
        let error = Encoder::new(with_merges_of(""), "t.json").unwrap_err();
        assert_eq!(error.to_string(), "the template takes 77 tokens; its share is 64");
        let tokenizer = with_merges_of("\u{120}unknown"); // as the file writes ` unknown`: enough for the template
        let greatest = Remaining {
            output_tokens: Some(Tokens(u32::MAX)),
            tool_calls: Some(u32::MAX),
            repair: Some(Micros(u64::MAX)),
        };
        let text = budget_text(&greatest);
        assert_eq!(text, "output_tokens 4294967295\ntool_calls 4294967295\nrepair_s 18446744073709\n");
        assert_eq!((tokenizer.ids(&text).len(), budget_most(&tokenizer)), (text.len(), text.len()), "a token a byte");
        let error = Encoder::new(tokenizer, "t.json").unwrap_err();
        assert_eq!(error.to_string(), "the greatest budget takes 71 tokens; its share is 64");
    }

    proptest! {
        #[test]
        fn no_budget_takes_more_than_the_greatest(
            output_tokens: Option<u32>, tool_calls: Option<u32>, repair: Option<u64>,
        ) {
            let budget =
                Remaining { output_tokens: output_tokens.map(Tokens), tool_calls, repair: repair.map(Micros) };
            let found = mini::tokenizer().ids(&budget_text(&budget)).len();
            let most = budget_most(mini::tokenizer());
            prop_assert!(found <= most && most <= FieldShares::V1.of(Field::Budget).0 as usize, "{found} of {most}");
        }
    }
}
