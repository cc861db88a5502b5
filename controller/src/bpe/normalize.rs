//! NFC, where it changes something.
//!
//! A character that NFC leaves alone, that no other can be reordered around and that composes with nothing before it is
//! *steady*; all others *move* (`unicode::MOVES`). Text of steady characters is in NFC. Other text falls into segments,
//! each a steady character and those that move behind it, and NFC of the text is NFC of each of them.

use unicode_normalization_alignments::UnicodeNormalization;

use super::classes::moves;

/// Whether `text` certainly is in NFC.
pub(crate) fn is_normal(text: &str) -> bool {
    text.is_ascii() || !text.chars().any(moves)
}

/// A text in NFC, and where each part of it came from.
#[derive(Debug)]
pub(crate) struct Normalized {
    text: String,
    changes: Vec<Change>,
}

/// A segment that NFC rewrote.
#[derive(Clone, Copy, Debug)]
struct Change {
    start: usize,
    end: usize,
    origin_start: usize,
    origin_end: usize,
}

impl Normalized {
    pub(crate) fn new(origin: &str) -> Self {
        let mut text = String::with_capacity(origin.len());
        let mut changes = Vec::new();
        let mut rest = origin;
        while !rest.is_empty() {
            let (segment, after) = rest.split_at(segment_end(rest));
            let (start, origin_start) = (text.len(), origin.len() - rest.len());
            if segment.chars().any(moves) {
                text.extend(segment.nfc().map(|(character, _)| character));
                if &text[start..] != segment {
                    let (end, origin_end) = (text.len(), origin_start + segment.len());
                    changes.push(Change { start, end, origin_start, origin_end });
                }
            } else {
                text.push_str(segment);
            }
            rest = after;
        }
        Self { text, changes }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of the original that stand for a range of the text: widened to whole characters, and to the whole of a
    /// segment that was rewritten.
    pub(crate) fn origin(&self, start: usize, end: usize) -> (usize, usize) {
        let start = match self.change_before(start) {
            Some(change) if start < change.end => change.origin_start,
            change => change.map_or(0, |it| it.origin_end) + self.since(change, super::floor_char(&self.text, start)),
        };
        // `end - 1` is the last byte that belongs to the range, which is never empty.
        let end = match self.change_before(end - 1) {
            Some(change) if end - 1 < change.end => change.origin_end,
            change => change.map_or(0, |it| it.origin_end) + self.since(change, super::ceil_char(&self.text, end)),
        };
        (start, end)
    }

    /// The last change that begins at or before `at`.
    fn change_before(&self, at: usize) -> Option<&Change> {
        self.changes[..self.changes.partition_point(|it| it.start <= at)].last()
    }

    #[expect(clippy::unused_self, reason = "reads as a property of the text")]
    fn since(&self, change: Option<&Change>, at: usize) -> usize {
        at - change.map_or(0, |it| it.end)
    }
}

/// The end of the first segment: a run of steady characters but the last, or a character and all that move behind it.
fn segment_end(text: &str) -> usize {
    let mut last_steady = 0;
    let mut characters = text.char_indices();
    for (at, character) in characters.by_ref() {
        if moves(character) {
            if last_steady > 0 {
                return last_steady;
            }
            break;
        }
        last_steady = at;
    }
    characters.find(|&(_, character)| !moves(character)).map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nfc(text: &str) -> String {
        text.nfc().map(|(character, _)| character).collect()
    }

    #[test]
    fn segments_compose_as_the_whole_does() {
        #[rustfmt::skip]
        let cases = [
            "", "abc", "e\u{301}", "abce\u{301}def", "\u{301}\u{301}", "a\u{323}\u{307}b\u{307}\u{323}", "\u{1100}\u{1161}\u{11A8}x",
            "\u{AC00}\u{11A8}\u{11A8}", "\u{212B}\u{2126}", "\u{958}", "\u{2F800}x", "q\u{307}\u{323}\u{301}", "e\u{301}e\u{301}",
            "\u{1E9B}\u{323}", "\u{9C7}\u{9BE}", "caf\u{E9} e\u{301} \u{4E2D}",
        ];
        for text in cases {
            let normalized = Normalized::new(text);
            assert_eq!(normalized.text(), nfc(text), "{text:?}");
            assert!(!is_normal(text) || nfc(text) == text, "{text:?}");
            assert!(text.is_empty() || normalized.origin(0, normalized.text().len()) == (0, text.len()), "{text:?}");
        }
    }

    #[test]
    fn a_rewritten_segment_comes_from_the_whole_of_its_origin() {
        let normalized = Normalized::new("abe\u{301}c\u{E9}");
        assert_eq!(normalized.text(), "ab\u{E9}c\u{E9}");
        #[rustfmt::skip]
        let cases = [((0, 1), (0, 1)), ((0, 3), (0, 5)), ((2, 3), (2, 5)), ((3, 4), (2, 5)), ((3, 5), (2, 6)), ((4, 5), (5, 6)), ((5, 6), (6, 8)), ((6, 7), (6, 8))];
        for ((start, end), origin) in cases {
            assert_eq!(normalized.origin(start, end), origin, "{start}..{end}");
        }
    }
}
