//! Merging: from bytes, the adjacent pair of the lowest rank becomes one token, the leftmost of equals first, until no
//! pair has a rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::UnknownMerge;
use super::vocabulary::{Vocabulary, fold, low, slots};

/// Above this many bytes a piece is merged with a heap. Up to here looking at every pair is faster, and the cost of
/// that, which grows with the square, stays bounded.
const SCAN_BYTES: usize = 64;

/// The rank of a pair that has none: higher than any.
pub(super) const NONE: u32 = u32::MAX;

/// Bits of a token's number and of a rank in a slot: three of them fit a word. No vocabulary has two million tokens.
const BITS: u32 = 21;

/// Tokens and merges that the table can number.
pub(crate) const MOST: usize = 1 << BITS;

/// Rank and result of every pair.
///
/// A slot is left, right and rank in one word: eight slots a cache line, two megabytes for Qwen3's 151,387 merges. Most
/// of what merging costs is waiting for this table.
#[derive(Debug)]
pub(crate) struct Merges {
    /// The token of each byte.
    bytes: Box<[u32; 256]>,
    /// The rank of two bytes; row: the left one. Every merge begins here, so this part needs no search.
    of_bytes: Vec<u32>,
    slots: Vec<u64>,
    /// The token that the merge of each rank makes.
    made: Vec<u32>,
}

/// An empty slot: no token is the last that `BITS` can number.
const EMPTY: u64 = u64::MAX;

/// The part of a slot that is looked for.
const fn pair(left: u32, right: u32) -> u64 {
    (left as u64) << BITS | right as u64
}

/// The last of the parts of a slot.
#[expect(clippy::cast_possible_truncation, reason = "`BITS` bits are left of it")]
const fn last_part(slot: u64) -> u32 {
    (slot & (MOST as u64 - 1)) as u32
}

impl Merges {
    /// `vocabulary` has at most [`MOST`] tokens, and all bytes among them.
    pub(super) fn new(
        pairs: impl ExactSizeIterator<Item = Option<(u32, u32)>>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, UnknownMerge> {
        let mut bytes = Box::new([0; 256]);
        for byte in 0..=u8::MAX {
            bytes[usize::from(byte)] = vocabulary.id(&[byte]).unwrap_or_default();
        }
        let mut table = Self { bytes, of_bytes: Vec::new(), slots: vec![EMPTY; slots(pairs.len())], made: Vec::new() };
        let mut joined = Vec::new();
        for (rank, halves) in (0_u32..).zip(pairs) {
            let index = rank as usize;
            let (left, right) = halves.filter(|_| index < MOST).ok_or(UnknownMerge { index })?;
            joined.clear();
            joined.extend_from_slice(vocabulary.bytes(left));
            joined.extend_from_slice(vocabulary.bytes(right));
            table.made.push(vocabulary.id(&joined).ok_or(UnknownMerge { index })?);
            let at = table.slot(pair(left, right));
            table.slots[at] = pair(left, right) << BITS | u64::from(rank);
        }
        table.of_bytes = (0..=u16::MAX)
            .map(|both| both.to_be_bytes().map(|byte| table.bytes[usize::from(byte)]))
            .map(|[left, right]| table.rank(left, right))
            .collect();
        Ok(table)
    }

    /// Left, right, rank and result of every pair, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let pairs = self.slots.iter().filter(|&&slot| slot != EMPTY);
        pairs.map(move |&slot| {
            (
                last_part(slot >> (2 * BITS)),
                last_part(slot >> BITS),
                last_part(slot),
                self.made[last_part(slot) as usize],
            )
        })
    }

    /// The slot of a pair, or the empty one where it would go.
    #[inline]
    fn slot(&self, pair: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = low(fold(pair)) & mask;
        while self.slots[at] >> BITS != pair && self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        match self.slots[self.slot(pair(left, right))] {
            EMPTY => NONE,
            slot => last_part(slot),
        }
    }

    #[inline]
    fn rank_of_bytes(&self, left: u8, right: u8) -> u32 {
        self.of_bytes[usize::from(left) << 8 | usize::from(right)]
    }
}

/// One token of a piece and how many bytes it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: u32,
    pub(crate) len: u32,
}

/// The scratch of one call.
///
/// It keeps what the call has merged: in code, more than half of the pieces that are no token occur again in the same
/// text. Between calls it keeps nothing.
#[derive(Debug)]
pub(crate) struct Merger {
    short: Short,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, usize)>>,
    /// By the low bits of a piece's hash, the last one that was merged.
    merged: Vec<Merged>,
    parts: Vec<Part>,
}

/// A piece that was merged: where it stands in the text, and which parts it gave.
#[derive(Clone, Debug, Default)]
struct Merged {
    piece: Range<usize>,
    parts: Range<usize>,
}

/// Merged pieces that are kept: a few times as many as a full state has distinct ones, which is about 120.
const MERGED: usize = 512;

/// The tokens of a short piece, in parallel arrays.
#[derive(Debug)]
struct Short {
    /// The rank of each token with the next one; `NONE` at the last.
    ranks: [u32; SCAN_BYTES],
    ids: [u32; SCAN_BYTES],
    lens: [u8; SCAN_BYTES],
}

/// A token of a long piece, linked to its neighbors.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    len: u32,
    previous: usize,
    next: usize,
    /// The rank of it with the next one.
    rank: u32,
}

/// No neighbor.
const END: usize = usize::MAX;

impl Default for Merger {
    fn default() -> Self {
        Self {
            short: Short { ranks: [NONE; SCAN_BYTES], ids: [0; SCAN_BYTES], lens: [0; SCAN_BYTES] },
            symbols: Vec::new(),
            queue: BinaryHeap::new(),
            merged: Vec::new(),
            parts: Vec::new(),
        }
    }
}

impl Merger {
    /// The parts of a piece of `text`, which is the same text in each call.
    pub(super) fn merge(&mut self, text: &[u8], piece: Range<usize>, hash: u64, merges: &Merges) -> &[Part] {
        if self.merged.is_empty() {
            self.merged = vec![Merged::default(); MERGED];
        }
        let slot = low(hash >> 32) % MERGED;
        let merged = &self.merged[slot];
        if text[merged.piece.clone()] != text[piece.clone()] {
            let begin = self.parts.len();
            self.run(&text[piece.clone()], merges);
            self.merged[slot] = Merged { piece, parts: begin..self.parts.len() };
        }
        &self.parts[self.merged[slot].parts.clone()]
    }

    /// Appends the parts of a piece.
    fn run(&mut self, piece: &[u8], merges: &Merges) {
        if piece.len() <= SCAN_BYTES {
            self.short.run(piece, merges, &mut self.parts);
        } else {
            self.run_long(piece, merges);
        }
    }

    /// Whether merging leads from the bytes of a token to the token.
    pub(super) fn leads_to(&mut self, token: &[u8], id: u32, merges: &Merges) -> bool {
        self.parts.clear();
        self.run(token, merges);
        matches!(self.parts[..], [Part { id: only, .. }] if only == id)
    }

    fn run_long(&mut self, piece: &[u8], merges: &Merges) {
        self.symbols.clear();
        self.queue.clear();
        for (at, &byte) in piece.iter().enumerate() {
            let rank = piece.get(at + 1).map_or(NONE, |&next| merges.rank_of_bytes(byte, next));
            self.symbols.push(Symbol {
                id: merges.bytes[usize::from(byte)],
                len: 1,
                previous: at.checked_sub(1).unwrap_or(END),
                next: if at + 1 < piece.len() { at + 1 } else { END },
                rank,
            });
            if rank != NONE {
                self.queue.push(Reverse((rank, at)));
            }
        }
        while let Some(Reverse((rank, at))) = self.queue.pop() {
            // The pair is gone if either side has merged since; then another rank, or `NONE`, stands here.
            if self.symbols[at].rank != rank {
                continue;
            }
            let Symbol { next, previous, .. } = self.symbols[at];
            let taken = self.symbols[next];
            self.symbols[next].rank = NONE;
            self.symbols[at] = Symbol {
                id: merges.made[rank as usize],
                len: self.symbols[at].len + taken.len,
                next: taken.next,
                ..self.symbols[at]
            };
            if taken.next != END {
                self.symbols[taken.next].previous = at;
            }
            self.pair_anew(at, merges);
            if previous != END {
                self.pair_anew(previous, merges);
            }
        }
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            self.parts.push(Part { id: symbol.id, len: symbol.len });
            at = symbol.next;
        }
    }

    /// Looks up the rank of the symbol at `at` with the one after it.
    fn pair_anew(&mut self, at: usize, merges: &Merges) {
        let rank = match self.symbols[at].next {
            END => NONE,
            next => merges.rank(self.symbols[at].id, self.symbols[next].id),
        };
        self.symbols[at].rank = rank;
        if rank != NONE {
            self.queue.push(Reverse((rank, at)));
        }
    }
}

impl Short {
    #[inline]
    fn run(&mut self, piece: &[u8], merges: &Merges, parts: &mut Vec<Part>) {
        let Self { ranks, ids, lens } = self;
        let mut count = piece.len().min(SCAN_BYTES);
        if count == 0 {
            return;
        }
        for at in 0..count - 1 {
            ranks[at] = merges.rank_of_bytes(piece[at], piece[at + 1]);
        }
        ranks[count - 1] = NONE;
        for at in 0..count {
            ids[at] = merges.bytes[usize::from(piece[at])];
        }
        lens[..count].fill(1);
        loop {
            let (mut best, mut at) = (NONE, 0);
            for (index, &rank) in ranks[..count].iter().enumerate() {
                if rank < best {
                    (best, at) = (rank, index);
                }
            }
            if best == NONE {
                break;
            }
            ids[at] = merges.made[best as usize];
            lens[at] += lens[at + 1];
            ranks.copy_within(at + 2..count, at + 1);
            ids.copy_within(at + 2..count, at + 1);
            lens.copy_within(at + 2..count, at + 1);
            count -= 1;
            ranks[at] = if at + 1 < count { merges.rank(ids[at], ids[at + 1]) } else { NONE };
            if at > 0 {
                ranks[at - 1] = merges.rank(ids[at - 1], ids[at]);
            }
        }
        parts.extend(ids.iter().zip(&*lens).take(count).map(|(&id, &len)| Part { id, len: u32::from(len) }));
    }
}
