//! How much of one text a state keeps.
//!
//! A program can print more than memory holds. Of a call and of its answer a state keeps at most [`KEPT_MAX`] bytes:
//! all of it, or both ends around a mark that says how many bytes are missing. The mark is part of the state, so the
//! state's digest is of what was decided on; a [`Gap`](crate::Gap) counts what was left out, which no text can forge.

/// Most bytes of a call or of an answer that a state keeps, the mark included.
///
/// An encoder shows an answer in 224 tokens of at most 32 bytes, 14 kB with both ends: the bound is 70 times as much,
/// and above what agents let through to their models (10 kB to 400 kB).
pub const KEPT_MAX: usize = 1 << 20;

/// Room for the mark: its words, and a count of at most 20 digits.
const MARK_MAX: usize = 64;

/// Bytes of each end of a text that is cut.
const END: usize = (KEPT_MAX - MARK_MAX) / 2;

/// As much of a text as a state keeps.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the text that are not among them.
    pub(crate) dropped: u64,
}

impl Kept {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut keeper = Keeper::default();
        keeper.push(bytes);
        keeper.finish()
    }
}

/// Takes a text in pieces and holds no more of it than will be kept, and as much again.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// The first [`KEPT_MAX`] bytes.
    first: Vec<u8>,
    /// Of those behind them, the last [`END`] at least.
    last: Vec<u8>,
    /// How many stand behind the first.
    behind: u64,
}

impl Keeper {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        let room = KEPT_MAX - self.first.len();
        let (first, behind) = piece.split_at(room.min(piece.len()));
        self.first.extend_from_slice(first);
        self.behind += behind.len() as u64;
        self.last.extend_from_slice(&behind[behind.len().saturating_sub(END)..]);
        // Twice the end before the front goes: each byte is moved once at most.
        if self.last.len() > 2 * END {
            self.last.drain(..self.last.len() - END);
        }
    }

    pub(crate) fn finish(self) -> Kept {
        let Self { first, mut last, behind } = self;
        if behind == 0 {
            return Kept { bytes: first, dropped: 0 };
        }
        let from_first = END.saturating_sub(last.len());
        last.drain(..last.len().saturating_sub(END));
        let mut tail = first[KEPT_MAX - from_first..].to_vec();
        tail.append(&mut last);
        // Cut between characters, so that what was text stays text.
        let head = &first[..border_before(&first, END)];
        let tail = &tail[border_after(&tail)..];
        let dropped = KEPT_MAX as u64 + behind - (head.len() + tail.len()) as u64;
        let mark = format!("\n[... {dropped} bytes left out ...]\n");
        Kept { bytes: [head, mark.as_bytes(), tail].concat(), dropped }
    }
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The last border of a character at or before `at`; `at` itself where the bytes are no UTF-8.
fn border_before(bytes: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at).rev().find(|&border| !is_continuation(bytes[border])).unwrap_or(at)
}

/// The first border of a character in `bytes`; 0 where they are no UTF-8.
fn border_after(bytes: &[u8]) -> usize {
    bytes.iter().take(4).position(|&byte| !is_continuation(byte)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_pieces(text: &[u8], size: usize) -> Kept {
        let mut keeper = Keeper::default();
        text.chunks(size).for_each(|piece| keeper.push(piece));
        keeper.finish()
    }

    /// The same, from the whole text at once.
    fn naive(text: &[u8]) -> Kept {
        if text.len() <= KEPT_MAX {
            return Kept { bytes: text.to_vec(), dropped: 0 };
        }
        let head = (0..=END).rev().find(|&at| !is_continuation(text[at])).unwrap();
        let tail = (text.len() - END..text.len()).find(|&at| !is_continuation(text[at])).unwrap();
        let mark = format!("\n[... {} bytes left out ...]\n", tail - head);
        Kept { bytes: [&text[..head], mark.as_bytes(), &text[tail..]].concat(), dropped: (tail - head) as u64 }
    }

    #[test]
    fn a_text_is_whole_up_to_the_bound_and_has_both_ends_beyond() {
        let letters = |count: usize| (b'a'..=b'z').cycle().take(count).collect::<Vec<_>>();
        for count in [0, 1, KEPT_MAX - 1, KEPT_MAX, KEPT_MAX + 1, KEPT_MAX + END, 2 * KEPT_MAX, 5 * KEPT_MAX + 7] {
            let text = letters(count);
            let expected = naive(&text);
            assert_eq!(expected.dropped > 0, count > KEPT_MAX, "{count}");
            assert!(expected.bytes.len() <= KEPT_MAX, "{count}");
            for size in [count.max(1), 65_536, END, 1_000_003] {
                assert!(in_pieces(&text, size) == expected, "{count} bytes in pieces of {size}");
            }
            // What was kept is kept again as it is: a state returns from its file.
            assert_eq!(Kept::of(&expected.bytes), Kept { dropped: 0, ..expected });
        }
    }

    #[test]
    fn a_cut_falls_between_characters() {
        for shift in 0..4 {
            let text = "x".repeat(shift) + &"🎉".repeat(KEPT_MAX / 4 + 9);
            let kept = Kept::of(text.as_bytes());
            assert!(kept == naive(text.as_bytes()), "{shift}");
            let shown = std::str::from_utf8(&kept.bytes).unwrap();
            assert!(shown.starts_with(&text[..shift + 4]) && shown.ends_with('🎉'), "{shift}");
        }
        // No UTF-8 at all: still cut, still bounded.
        let noise = Kept::of(&vec![0x80; 2 * KEPT_MAX]);
        assert_eq!(noise.dropped, 2 * (KEPT_MAX - END) as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn pieces_do_not_matter(count in KEPT_MAX - 10..3 * KEPT_MAX, sizes in proptest::collection::vec(1..KEPT_MAX, 1..4)) {
            let text: Vec<u8> = "é🎉x".bytes().cycle().take(count - count % 7).collect();
            let mut keeper = Keeper::default();
            let (mut rest, mut sizes) = (&text[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                keeper.push(piece);
                rest = behind;
            }
            prop_assert!(keeper.finish() == naive(&text));
        }
    }
}
