//! The tokens: bytes of an id, and the id of bytes.
//!
//! Two thirds of the tokens, and nearly all that occur, are at most eight bytes long. Their bytes stand in the table
//! itself, so that finding one touches a single cache line; a longer one costs a second, for the comparison.

use std::ops::Range;

/// Odd, with its bits spread evenly: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Most bytes of a token that stands in the table itself.
const SHORT_BYTES: usize = 8;

/// Every token, numbered from 0 without a gap.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The bytes of all tokens, in the order of their numbers.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
    short: Vec<Short>,
    long: Vec<Long>,
}

/// A token of at most eight bytes, or an empty slot: one whose `len` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Short {
    /// The bytes, the first one lowest, zeros after the last.
    bytes: u64,
    id: u32,
    len: u8,
    /// Whether a piece of these bytes is this token.
    whole: bool,
}

/// A token of more than eight bytes, or an empty slot: one whose `tag` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Long {
    /// High half of the hash; of its bits, `OCCUPIED` is set, and `WHOLE` says whether a piece of these bytes is this
    /// token.
    tag: u32,
    id: u32,
}

/// Bit of [`Long::tag`].
const OCCUPIED: u32 = 1;
/// Bit of [`Long::tag`].
const WHOLE: u32 = 2;

/// The tag of a hash, without [`WHOLE`].
const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 & !WHOLE | OCCUPIED
}

impl Vocabulary {
    /// `bytes` are those of all tokens in the order of their numbers, `ends` where each one's end; none is empty, and
    /// no two are equal.
    pub(crate) fn new(bytes: Vec<u8>, ends: Vec<u32>) -> Self {
        let mut vocabulary = Self { bytes, ends, short: Vec::new(), long: Vec::new() };
        let ids = 0..u32::try_from(vocabulary.ends.len()).unwrap_or(u32::MAX);
        let count_short = ids.clone().filter(|&id| vocabulary.bytes(id).len() <= SHORT_BYTES).count();
        vocabulary.short = vec![Short::default(); slots(count_short)];
        vocabulary.long = vec![Long::default(); slots(vocabulary.ends.len() - count_short)];
        for id in ids {
            let token = vocabulary.bytes(id);
            if let Some((bytes, len)) = short(token, token.len()) {
                let at = vocabulary.short_slot(bytes, len, short_hash(bytes, len));
                vocabulary.short[at] = Short { bytes, id, len, whole: true };
            } else {
                let hash = hash(token);
                let at = vocabulary.long_slot(token, hash);
                vocabulary.long[at] = Long { tag: tag(hash) | WHOLE, id };
            }
        }
        vocabulary
    }

    /// The bytes of a token, or nothing if there is none of that number.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// The token of these bytes.
    pub(crate) fn id(&self, token: &[u8]) -> Option<u32> {
        if let Some((bytes, len)) = short(token, token.len()) {
            let slot = self.short[self.short_slot(bytes, len, short_hash(bytes, len))];
            (slot.len > 0).then_some(slot.id)
        } else {
            let slot = self.long[self.long_slot(token, hash(token))];
            (slot.tag != 0).then_some(slot.id)
        }
    }

    /// The token that `piece` of `text` is as a whole, if it is one and merges would lead to it; else the piece's hash.
    #[inline]
    pub(super) fn whole(&self, text: &[u8], piece: Range<usize>) -> Result<u32, u64> {
        if let Some((bytes, len)) = short(&text[piece.start..], piece.len()) {
            let hash = short_hash(bytes, len);
            let slot = self.short[self.short_slot(bytes, len, hash)];
            if slot.whole { Ok(slot.id) } else { Err(hash) }
        } else {
            let hash = hash(&text[piece.clone()]);
            let slot = self.long[self.long_slot(&text[piece], hash)];
            if slot.tag & WHOLE != 0 { Ok(slot.id) } else { Err(hash) }
        }
    }

    /// Keeps as whole pieces only those tokens that pass `is_whole`.
    pub(super) fn retain_whole(&mut self, is_whole: impl Fn(u32) -> bool) {
        for slot in &mut self.short {
            slot.whole = slot.len > 0 && is_whole(slot.id);
        }
        for slot in &mut self.long {
            if slot.tag != 0 && !is_whole(slot.id) {
                slot.tag &= !WHOLE;
            }
        }
    }

    /// How many tokens there are.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The slot of these bytes, or the empty one where they would go. One is always found: a third are empty.
    #[inline]
    fn short_slot(&self, bytes: u64, len: u8, hash: u64) -> usize {
        let mask = self.short.len() - 1;
        let mut at = low(hash) & mask;
        loop {
            let slot = &self.short[at];
            if slot.len == 0 || (slot.bytes == bytes && slot.len == len) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot of these bytes, or the empty one where they would go.
    #[inline]
    fn long_slot(&self, token: &[u8], hash: u64) -> usize {
        let mask = self.long.len() - 1;
        let mut at = low(hash) & mask;
        loop {
            let slot = self.long[at];
            if slot.tag == 0 || (slot.tag & !WHOLE == tag(hash) && self.bytes(slot.id) == token) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }
}

/// A power of two of which `count` fills at most two thirds: a search ends after a step or two, and always ends.
pub(super) fn slots(count: usize) -> usize {
    (count + count / 2).next_power_of_two().max(2)
}

/// The first `len` bytes of `bytes` in one number, and `len`, if they are few enough.
#[inline]
fn short(bytes: &[u8], len: usize) -> Option<(u64, u8)> {
    let small = u8::try_from(len).ok().filter(|_| (1..=SHORT_BYTES).contains(&len))?;
    let word = if let Some(chunk) = bytes.first_chunk::<SHORT_BYTES>() {
        u64::from_le_bytes(*chunk) & (u64::MAX >> (64 - 8 * len))
    } else {
        let mut padded = [0; SHORT_BYTES];
        padded[..len].copy_from_slice(&bytes[..len]);
        u64::from_le_bytes(padded)
    };
    Some((word, small))
}

/// Multiplies to 128 bits and folds them: every bit of `value` reaches every bit of the result.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the halves are 64 bits wide")]
pub(super) fn fold(value: u64) -> u64 {
    let product = u128::from(value) * u128::from(MULTIPLIER);
    let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
    (low ^ high) as u64
}

/// The low bits of a hash, of which a table takes as many as it needs.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a table takes the low bits alone")]
pub(super) const fn low(hash: u64) -> usize {
    hash as usize
}

#[inline]
fn short_hash(bytes: u64, len: u8) -> u64 {
    fold(bytes ^ u64::from(len))
}

/// A hash of a token of more than eight bytes: its words, the last one overlapping the one before.
#[inline]
fn hash(token: &[u8]) -> u64 {
    let mut hash = token.len() as u64;
    let (words, _) = token.as_chunks::<8>();
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word));
    }
    if let Some(last) = token.last_chunk::<8>() {
        hash = fold(hash ^ u64::from_le_bytes(*last)).rotate_left(23);
    }
    hash
}
