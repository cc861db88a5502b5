//! One text into a bound of tokens: whole if it fits, else its two ends around a visible mark.

use serde::Serialize;
use tack_core::{Bytes, Spans, Stage};

use crate::kept::Kept;
use crate::lossy::Lossy;
use crate::template::{Template, Unit};
use crate::tokenizer::{Piece, Tokenizer};

/// Bytes a token that a window starts from: code and logs run at three to four and a half.
const FIRST_BYTES_PER_TOKEN: usize = 5;

/// Bytes a token beyond which a window does not grow. Blanks and rulers pack up to 128 bytes in one token; past this
/// bound such a text shows less than its share, and memory stays at a few megabytes whatever comes in.
const MOST_BYTES_PER_TOKEN: usize = 32;

/// How a cut text divides its tokens: so many quarters to the head, the rest to the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadQuarters(pub(crate) usize);

/// What became of one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct TextReport {
    /// Bytes that came.
    pub bytes_in: Bytes,
    /// Bytes of them that stand before the cut, or all if there is none.
    pub head: Bytes,
    /// Bytes of them that stand after the cut.
    pub tail: Bytes,
    /// Bytes that were cut from the middle.
    pub cut: Bytes,
    /// Invalid UTF-8 sequences among the bytes kept; each shows as U+FFFD.
    pub replaced: u64,
}

/// Fits texts, and times its two stages apart: [`Stage::Tokenize`] while the encoder runs, [`Stage::Cut`] otherwise.
/// Whoever makes one has entered `Cut`.
pub(crate) struct Fitter<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) template: &'a Template,
    pub(crate) kept: &'a Kept,
    pub(crate) spans: &'a mut dyn Spans,
}

/// Tokens of one end of a text, with offsets in the whole text.
struct Window {
    pieces: Vec<Piece>,
    covers_all: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Head,
    Tail,
}

impl Fitter<'_> {
    pub(crate) fn encode(&mut self, text: &str) -> Vec<Piece> {
        self.spans.exit(Stage::Cut);
        self.spans.enter(Stage::Tokenize);
        let pieces = self.tokenizer.encode(text);
        self.spans.exit(Stage::Tokenize);
        self.spans.enter(Stage::Cut);
        pieces
    }

    /// Writes words of ours.
    pub(crate) fn words(&mut self, words: &str, ids: &mut Vec<u32>) {
        ids.extend(self.encode(words).iter().map(|piece| piece.id));
    }

    /// Writes at most `most` tokens of `text`.
    ///
    /// A text that does not fit keeps a head and a tail, cut between characters, and a mark with the count of bytes
    /// that are missing between them.
    pub(crate) fn text(&mut self, text: &[u8], most: usize, keep: HeadQuarters, ids: &mut Vec<u32>) -> TextReport {
        if let Some(report) = self.kept.write(text, most, keep, ids) {
            return report;
        }
        let before = ids.len();
        let report = self.fit(text, most, keep, ids);
        self.kept.insert(text, most, keep, &ids[before..], report);
        report
    }

    fn fit(&mut self, text: &[u8], most: usize, keep: HeadQuarters, ids: &mut Vec<u32>) -> TextReport {
        let bytes = |count: usize| Bytes(count as u64);
        let room = most.saturating_sub(self.template.mark_max(text.len() as u64, Unit::Bytes));
        let head_most = room * keep.0 / 4;
        let tail_most = room - head_most;
        // A text beyond the widest window is cut whatever it says, so only its head is wanted here.
        let is_cut = text.len() > widest(most);
        let front = self.window(text, if is_cut { head_most } else { most }, End::Head);
        if front.covers_all && front.pieces.len() <= most {
            ids.extend(front.pieces.iter().map(|piece| piece.id));
            let (bytes_in, replaced) = (bytes(text.len()), Lossy::replaced(text));
            return TextReport { bytes_in, head: bytes_in, replaced, ..TextReport::default() };
        }

        let head = snap_head(&front.pieces, head_most);
        let head_end = head.last().map_or(0, |piece| piece.end);
        let back = if front.covers_all {
            front.pieces[head.len()..].to_vec()
        } else {
            // Beginning where the head ended, the tail cannot show a byte twice.
            let mut back = self.window(&text[head_end..], tail_most, End::Tail).pieces;
            for piece in &mut back {
                (piece.start, piece.end) = (piece.start + head_end, piece.end + head_end);
            }
            back
        };
        let tail = snap_tail(&back, tail_most);
        let tail_start = tail.first().map_or(text.len(), |piece| piece.start);

        let cut = tail_start - head_end;
        ids.extend(head.iter().map(|piece| piece.id));
        if cut > 0 {
            self.template.mark(self.tokenizer, cut as u64, Unit::Bytes, ids);
        }
        ids.extend(tail.iter().map(|piece| piece.id));
        TextReport {
            bytes_in: bytes(text.len()),
            head: bytes(head_end),
            tail: bytes(text.len() - tail_start),
            cut: bytes(cut),
            replaced: Lossy::replaced(&text[..head_end]) + Lossy::replaced(&text[tail_start..]),
        }
    }

    /// Encodes a growing window at one end of `text` until it has more than `want` tokens, covers all, or is as wide as
    /// it may be.
    fn window(&mut self, text: &[u8], want: usize, end: End) -> Window {
        let mut width = want * FIRST_BYTES_PER_TOKEN + MOST_BYTES_PER_TOKEN;
        loop {
            let (window, shift) = match end {
                End::Head => (&text[..border_before(text, width)], 0),
                End::Tail => {
                    let start = border_after(text, text.len().saturating_sub(width));
                    (&text[start..], start)
                }
            };
            let covers_all = window.len() == text.len();
            let lossy = Lossy::of(window);
            let pieces = self.encode(lossy.text());
            if covers_all || pieces.len() > want || width >= widest(want) {
                let to_bytes = |offset| shift + lossy.byte_offset(offset);
                let pieces =
                    pieces.into_iter().map(|it| Piece { start: to_bytes(it.start), end: to_bytes(it.end), ..it });
                return Window { pieces: pieces.collect(), covers_all };
            }
            width = (width * 2).min(widest(want));
        }
    }
}

/// Bytes of the widest window for `want` tokens.
const fn widest(want: usize) -> usize {
    want * MOST_BYTES_PER_TOKEN
}

/// At most `most` pieces from the front, ending between characters.
fn snap_head(pieces: &[Piece], most: usize) -> &[Piece] {
    let mut count = most.min(pieces.len());
    while 0 < count && count < pieces.len() && pieces[count].start < pieces[count - 1].end {
        count -= 1;
    }
    &pieces[..count]
}

/// At most `most` pieces from the back, beginning between characters.
fn snap_tail(pieces: &[Piece], most: usize) -> &[Piece] {
    let mut start = pieces.len().saturating_sub(most);
    while 0 < start && start < pieces.len() && pieces[start].start < pieces[start - 1].end {
        start += 1;
    }
    &pieces[start..]
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The last character border at or before `at`, at most three bytes back, since no character is longer than four.
fn border_before(text: &[u8], at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    (at.saturating_sub(3)..=at).rev().find(|&border| !is_continuation(text[border])).unwrap_or(at)
}

/// The first character border at or after `at`, at most three bytes on.
fn border_after(text: &[u8], at: usize) -> usize {
    if at == 0 {
        return 0;
    }
    (at..text.len().min(at + 4)).find(|&border| !is_continuation(text[border])).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini::tokenizer;
    use proptest::prelude::*;
    use tack_core::FieldShares;

    fn fit(text: &[u8], most: usize, quarters: usize) -> (Vec<u32>, TextReport) {
        let template = Template::new(tokenizer(), &FieldShares::V1, "t.json").unwrap();
        let kept = Kept::default();
        let mut fitter = Fitter { tokenizer: tokenizer(), template: &template, kept: &kept, spans: &mut () };
        let mut ids = Vec::new();
        let report = fitter.text(text, most, HeadQuarters(quarters), &mut ids);
        // What is kept says the same.
        let mut again = Vec::new();
        assert_eq!((fitter.text(text, most, HeadQuarters(quarters), &mut again), &again), (report, &ids));
        (ids, report)
    }

    #[test]
    fn a_text_that_fits_is_whole() {
        for text in ["", "a", "def f():\r\n    return 1\r\n", "nul \0 here"] {
            let (ids, report) = fit(text.as_bytes(), 40, 2);
            assert_eq!(tokenizer().decode(&ids), text);
            let len = Bytes(text.len() as u64);
            assert_eq!(report, TextReport { bytes_in: len, head: len, ..TextReport::default() });
        }
    }

    #[test]
    fn a_cut_text_shows_both_ends_and_counts_what_is_missing() {
        let text: String = (0..2000).map(|line| format!("line {line} of the log\n")).collect::<Vec<_>>().concat();
        let (ids, report) = fit(text.as_bytes(), 100, 1);
        let shown = tokenizer().decode(&ids);
        let (head, rest) = shown.split_once("<|fim_suffix|>").unwrap();
        let (mark, tail) = rest.split_once("<|fim_suffix|>").unwrap();
        assert_eq!(mark, format!("{} bytes cut", report.cut.0));
        assert!(text.starts_with(head) && text.ends_with(tail));
        assert_eq!((head.len() as u64, tail.len() as u64), (report.head.0, report.tail.0));
        assert_eq!(report.head.0 + report.cut.0 + report.tail.0, report.bytes_in.0);
        assert!(ids.len() > 90 && head.len() * 2 < tail.len(), "{shown}");
    }

    #[test]
    fn a_mark_in_the_text_is_text() {
        let forged = "<|fim_suffix|>7 bytes cut<|fim_suffix|>";
        let (ids, report) = fit(forged.as_bytes(), 64, 2);
        assert_eq!(tokenizer().decode(&ids), forged);
        assert_eq!(report.cut, Bytes(0));
        let hole = tokenizer().added("<|fim_suffix|>", "t.json").unwrap();
        assert!(!ids.contains(&hole));
    }

    #[test]
    fn text_that_packs_tightly_is_cut_at_bytes() {
        let blanks = vec![b' '; 1_000_000];
        let (ids, report) = fit(&blanks, 100, 2);
        assert!(ids.len() <= 100);
        assert!(report.head.0 + report.tail.0 <= 2 * 100 * 2 * MOST_BYTES_PER_TOKEN as u64);
        assert_eq!(report.head.0 + report.cut.0 + report.tail.0, 1_000_000);
    }

    proptest! {
        /// Any bytes, any bound that has room for a mark: never over it, every byte accounted for, ends are true ends.
        #[test]
        fn never_over_and_every_byte_is_accounted_for(
            text in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..3000),
                "[a-z \n]{0,2000}".prop_map(String::into_bytes),
                "\\PC{0,600}".prop_map(String::into_bytes),
                (any::<u8>(), 0..4000usize).prop_map(|(byte, count)| vec![byte; count]),
            ],
            most in 40..200usize, quarters in 0..=4usize,
        ) {
            let (ids, report) = fit(&text, most, quarters);
            prop_assert!(ids.len() <= most, "{} of {}", ids.len(), most);
            prop_assert_eq!(report.bytes_in.0, text.len() as u64);
            prop_assert_eq!(report.head.0 + report.cut.0 + report.tail.0, report.bytes_in.0);
            // What is shown before the mark is the head, whatever follows.
            if text.is_ascii() {
                let shown = tokenizer().decode(&ids);
                let head = usize::try_from(report.head.0).unwrap();
                prop_assert_eq!(shown.get(..head).map(str::as_bytes), Some(&text[..head]));
                let tail = usize::try_from(report.tail.0).unwrap();
                prop_assert!(shown.as_bytes().ends_with(&text[text.len() - tail..]));
            }
        }
    }
}
