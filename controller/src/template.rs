//! The fixed words around the fields, and the structural tokens that no field text can forge.
//!
//! ```text
//! <|im_start|>issue
//! TEXT<|im_end|>
//! <|im_start|>menu
//! <|repo_name|>targeted<|file_sep|>TEST...<|repo_name|>broader<|file_sep|>TEST...<|im_end|>
//! <|im_start|>patch
//! TEXT<|im_end|>
//! <|im_start|>observations
//! <tool_call>STEP REASON
//! CALL<tool_response>exit STATUS
//! OUTPUT</tool_response>...<|im_end|>
//! <|im_start|>budget
//! output_tokens N
//! tool_calls N
//! repair_s N
//! <|im_end|>
//! <|endoftext|>
//! ```
//!
//! An issue, a menu or a patch that is not known has `unknown` in its opening line (`<|im_start|>patch unknown`), where
//! field text never stands. A cut shows as `<|fim_suffix|>123 bytes cut<|fim_suffix|>`. The network reads its last token,
//! `<|endoftext|>`. Each text is encoded by itself, so no merge crosses a border.

use tack_core::{Field, FieldShares, Tokens};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// The structural tokens, by their use here. All are added tokens of Qwen3's published tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) open: u32,
    pub(crate) close: u32,
    pub(crate) end: u32,
    pub(crate) hole: u32,
    pub(crate) section: u32,
    pub(crate) entry: u32,
    pub(crate) call: u32,
    pub(crate) response: u32,
    pub(crate) end_response: u32,
}

/// What a cut counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Tests,
    Observations,
}

/// The template in tokens, made once for a tokenizer.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) structure: Structure,
    /// Opening lines without and with `unknown`, by field.
    openings: [[Vec<u32>; 2]; FIELDS.len()],
    closing: Vec<u32>,
    /// ` bytes cut` and the like, by unit.
    units: [Vec<u32>; 3],
    pub(crate) targeted: Vec<u32>,
    pub(crate) broader: Vec<u32>,
}

/// The fields in layout order.
pub(crate) const FIELDS: [Field; 5] = [Field::Issue, Field::Menu, Field::Patch, Field::Observations, Field::Budget];

/// Why there is no template for a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A structural token is missing, or the encoder failed.
    #[error("the tokenizer cannot write the template")]
    Tokenizer(#[source] TokenizerError),
    /// The tokenizer writes the fixed words in more tokens than their share.
    #[error("the template takes {found} tokens; its share is {share}")]
    TooLong {
        /// Tokens of the template where issue, menu and patch are unknown.
        found: u32,
        /// The share.
        share: u32,
    },
    /// The tokenizer writes the greatest budget in more tokens than its share. It is never cut: a number without its
    /// end is another number.
    #[error("the greatest budget takes {found} tokens; its share is {share}")]
    Budget {
        /// Tokens of the greatest budget.
        found: u32,
        /// The share.
        share: u32,
    },
}

impl Template {
    pub(crate) fn new(tokenizer: &Tokenizer, shares: &FieldShares, file: &str) -> Result<Self, TemplateError> {
        let added = |token| tokenizer.added(token, file).map_err(TemplateError::Tokenizer);
        let text = |words: &str| tokenizer.ids(words);
        let structure = Structure {
            open: added("<|im_start|>")?,
            close: added("<|im_end|>")?,
            end: added("<|endoftext|>")?,
            hole: added("<|fim_suffix|>")?,
            section: added("<|repo_name|>")?,
            entry: added("<|file_sep|>")?,
            call: added("<tool_call>")?,
            response: added("<tool_response>")?,
            end_response: added("</tool_response>")?,
        };
        let mut openings = [const { [Vec::new(), Vec::new()] }; FIELDS.len()];
        for (opening, field) in openings.iter_mut().zip(FIELDS) {
            *opening = [text(&format!("{}\n", field.name())), text(&format!("{} unknown\n", field.name()))];
        }
        let units = [text(" bytes cut"), text(" tests cut"), text(" observations cut")];
        let (targeted, broader) = (text("targeted"), text("broader"));
        let template = Self { structure, openings, closing: text("\n"), units, targeted, broader };

        let found = template.longest();
        let share = shares.of(Field::Template).0;
        if found > share { Err(TemplateError::TooLong { found, share }) } else { Ok(template) }
    }

    /// Tokens of the template where issue, menu and patch are unknown; a known one takes fewer.
    fn longest(&self) -> u32 {
        let fields: usize = FIELDS
            .into_iter()
            .zip(&self.openings)
            .map(|(field, [known, unknown])| {
                let opening = if can_be_unknown(field) { unknown.len().max(known.len()) } else { known.len() };
                2 + opening + self.closing.len()
            })
            .sum();
        u32::try_from(fields + 1).unwrap_or(u32::MAX)
    }

    /// Writes what stands before a field's text.
    pub(crate) fn open(&self, field: Field, known: bool, ids: &mut Vec<u32>) {
        ids.push(self.structure.open);
        // `Template` itself is not laid out: it has no opening.
        if let Some([plain, unknown]) = self.openings.get(field as usize) {
            ids.extend_from_slice(if known { plain } else { unknown });
        }
    }

    /// Writes what stands after a field's text.
    pub(crate) fn close(&self, ids: &mut Vec<u32>) {
        ids.push(self.structure.close);
        ids.extend_from_slice(&self.closing);
    }

    /// Most tokens of a mark that counts at most `count`: a byte-level tokenizer writes no digit in two tokens.
    pub(crate) fn mark_max(&self, count: u64, unit: Unit) -> usize {
        let digits = count.checked_ilog10().unwrap_or(0) as usize + 1;
        2 + digits + self.units[unit as usize].len()
    }

    /// Writes a visible cut mark.
    pub(crate) fn mark(&self, tokenizer: &Tokenizer, count: u64, unit: Unit, ids: &mut Vec<u32>) {
        ids.push(self.structure.hole);
        ids.extend(tokenizer.ids(&count.to_string()));
        ids.extend_from_slice(&self.units[unit as usize]);
        ids.push(self.structure.hole);
    }
}

const fn can_be_unknown(field: Field) -> bool {
    matches!(field, Field::Issue | Field::Menu | Field::Patch)
}

/// The tokens of a length; lengths here are bounded by [`FieldShares::TOTAL`].
pub(crate) fn tokens(count: usize) -> Tokens {
    Tokens(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini::tokenizer;

    #[test]
    fn the_template_fits_its_share() {
        let template = Template::new(tokenizer(), &FieldShares::V1, "t.json").unwrap();
        assert!(template.longest() <= 64, "{}", template.longest());
        for field in [Field::Issue, Field::Menu, Field::Patch, Field::Observations, Field::Budget] {
            let mut ids = Vec::new();
            template.open(field, true, &mut ids);
            assert_eq!(tokenizer().decode(&ids), format!("<|im_start|>{}\n", field.name()));
        }
    }

    #[test]
    fn a_mark_never_takes_more_than_it_reserved() {
        let template = Template::new(tokenizer(), &FieldShares::V1, "t.json").unwrap();
        for count in [0, 9, 10, 12_345, u64::MAX] {
            for unit in [Unit::Bytes, Unit::Tests, Unit::Observations] {
                let mut ids = Vec::new();
                template.mark(tokenizer(), count, unit, &mut ids);
                assert!(ids.len() <= template.mark_max(count, unit), "{count} {unit:?}");
            }
        }
        let mut ids = Vec::new();
        template.mark(tokenizer(), 12_345, Unit::Bytes, &mut ids);
        assert_eq!(tokenizer().decode(&ids), "<|fim_suffix|>12345 bytes cut<|fim_suffix|>");
    }
}
