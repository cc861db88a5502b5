//! Byte-level byte-pair encoding as Qwen3 does it, on the hot path of a decision.
//!
//! ```text
//! text -> normalize (NFC, only where it may change something) -> split (into pieces that merges cannot cross)
//!      -> vocabulary (the piece is one token: most are) or else merge (pairs, lowest rank first) -> ids
//! ```
//!
//! The result is exactly that of the `tokenizers` crate, 0.23; `tests/tokenizer_exactness.rs` holds the two together.
//! That crate matches a regular expression with look-ahead and carries an offset for every byte; here the expression is
//! a hand-written scanner over a class table, and offsets are counted. Nothing is remembered between calls, so a text
//! seen for the first time costs what every text costs.

mod classes;
mod merge;
mod normalize;
mod reach;
mod split;
mod unicode;
mod vocabulary;

use merge::{Merger, Merges, Part};
use normalize::Normalized;
use reach::Reach;
use split::Pieces;

use crate::tokenizer::Piece;

pub(crate) use merge::MOST;
pub(crate) use split::PATTERN;
pub(crate) use vocabulary::Vocabulary;

/// The two tables of the file's model, and whether its pipeline normalizes.
#[derive(Debug)]
pub(crate) struct Encoder {
    vocabulary: Vocabulary,
    merges: Merges,
    nfc: bool,
}

/// A merge that does not lead from two tokens to a third.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownMerge {
    pub(crate) index: usize,
}

/// What of a file decides the tokens, beside the vocabulary.
pub(crate) struct Rules {
    /// Normalize to NFC first.
    pub(crate) nfc: bool,
    /// A piece that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
}

impl Encoder {
    /// `merges` are pairs of token ids in the order of their rank, or `None` where a half is no token.
    pub(crate) fn new(
        vocabulary: Vocabulary,
        merges: impl ExactSizeIterator<Item = Option<(u32, u32)>>,
        rules: &Rules,
    ) -> Result<Self, UnknownMerge> {
        let mut vocabulary = vocabulary;
        let merges = Merges::new(merges, &vocabulary)?;
        if !rules.ignore_merges {
            let reach = Reach::new(&merges, &vocabulary);
            // A token that merges do not lead to (none of Qwen3's) must not be found as a whole.
            vocabulary.retain_whole(|id| reach.contains(id));
        }
        Ok(Self { vocabulary, merges, nfc: rules.nfc })
    }

    pub(crate) const fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Gives `sink` the tokens of `text` in order.
    pub(crate) fn encode(&self, text: &str, mut sink: impl FnMut(Piece)) {
        if !self.nfc || normalize::is_normal(text) {
            self.encode_normal(text, |id, start, end| {
                sink(Piece { id, start: floor_char(text, start), end: ceil_char(text, end) });
            });
        } else {
            let normalized = Normalized::new(text);
            self.encode_normal(normalized.text(), |id, start, end| {
                let (start, end) = normalized.origin(start, end);
                sink(Piece { id, start, end });
            });
        }
    }

    /// Gives `sink` the ids and byte ranges of the tokens of a text in NFC.
    fn encode_normal(&self, text: &str, mut sink: impl FnMut(u32, usize, usize)) {
        let bytes = text.as_bytes();
        let mut merger = Merger::default();
        for piece in Pieces::new(text) {
            match self.vocabulary.whole(bytes, piece.clone()) {
                Ok(id) => sink(id, piece.start, piece.end),
                Err(hash) => {
                    let mut at = piece.start;
                    for &Part { id, len } in merger.merge(bytes, piece, hash, &self.merges) {
                        let end = at + len as usize;
                        sink(id, at, end);
                        at = end;
                    }
                }
            }
        }
    }
}

/// The start of the character that holds byte `at`.
fn floor_char(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&border| text.is_char_boundary(border)).unwrap_or(0)
}

/// The end of the character that byte `at - 1` belongs to.
fn ceil_char(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&border| text.is_char_boundary(border)).unwrap_or(text.len())
}
