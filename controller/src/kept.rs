//! Texts that were fitted before: a field that has not changed since the last state is not tokenized again.
//!
//! A text's tokens depend on itself and its bound alone. Before and after it stand structural tokens, which are no text, so
//! no merge reaches from one text into the next, and what was written once can be written again wherever it stands.
//!
//! Two generations, each bounded in bytes: what is asked for moves into the young one, and when that is full the old one
//! is forgotten. A text is compared whole, so no collision of hashes gives another text's tokens.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use crate::fit::{HeadQuarters, TextReport};

/// Bytes of texts and tokens in one generation, at most: some hundred full states' fields.
const GENERATION_BYTES: usize = 4 << 20;

/// Bytes of a text that is kept, at most: what the largest field shows has 8 kB, and reading more than this again takes as
/// long as finding where to cut.
const TEXT_BYTES: usize = 64 << 10;

/// The texts.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, Entry>,
    old: HashMap<u64, Entry>,
    /// Of the young one.
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    most: usize,
    keep: HeadQuarters,
    ids: Box<[u32]>,
    report: TextReport,
}

impl Entry {
    fn is(&self, text: &[u8], most: usize, keep: HeadQuarters) -> bool {
        (self.most, self.keep) == (most, keep) && *self.text == *text
    }
}

impl Kept {
    fn hash(&self, text: &[u8], most: usize, keep: HeadQuarters) -> u64 {
        self.hasher.hash_one((text, most, keep.0))
    }

    /// Writes the tokens of a text that is kept.
    pub(crate) fn write(&self, text: &[u8], most: usize, keep: HeadQuarters, ids: &mut Vec<u32>) -> Option<TextReport> {
        if text.len() > TEXT_BYTES {
            return None;
        }
        let hash = self.hash(text, most, keep);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = generations.old.remove(&hash) {
            generations.keep(hash, entry);
        }
        let entry = generations.young.get(&hash).filter(|entry| entry.is(text, most, keep))?;
        ids.extend_from_slice(&entry.ids);
        Some(entry.report)
    }

    /// Keeps the tokens of a text.
    pub(crate) fn insert(&self, text: &[u8], most: usize, keep: HeadQuarters, ids: &[u32], report: TextReport) {
        if text.len() > TEXT_BYTES {
            return;
        }
        let hash = self.hash(text, most, keep);
        let entry = Entry { text: text.into(), most, keep, ids: ids.into(), report };
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).keep(hash, entry);
    }
}

impl Generations {
    fn keep(&mut self, hash: u64, entry: Entry) {
        let bytes = entry.text.len() + size_of_val(&*entry.ids) + size_of::<Entry>();
        if self.bytes + bytes > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.young.insert(hash, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_what_is_asked_for_stays() {
        let kept = Kept::default();
        let report = TextReport::default();
        let text = |index: usize| format!("{index:>1000}").into_bytes();
        let has = |index, most| kept.write(&text(index), most, HeadQuarters(2), &mut Vec::new()).is_some();
        for index in 0..50_000 {
            kept.insert(&text(index), 9, HeadQuarters(2), &[7; 300], report);
            assert!(has(0, 9), "{index}");
        }
        let generations = kept.generations.lock().unwrap();
        let count = generations.young.len() + generations.old.len();
        assert!(count * (1000 + 1200) <= 2 * GENERATION_BYTES && generations.bytes <= GENERATION_BYTES, "{count}");
        drop(generations);
        assert!(has(49_999, 9) && !has(49_999, 8) && !has(1, 9));
        kept.insert(&vec![b'a'; TEXT_BYTES + 1], 9, HeadQuarters(2), &[7], report);
        assert!(kept.write(&vec![b'a'; TEXT_BYTES + 1], 9, HeadQuarters(2), &mut Vec::new()).is_none());
    }
}
