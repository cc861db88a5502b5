//! Keys and values of token sequences that were computed before, shared by whoever begins with the same tokens.
//!
//! Sequences are cut into blocks of [`BLOCK`] tokens. A block is found under the SHA-256 of its tokens and of the key of
//! the block before it; the first of a chain follows the *seed*, a digest of everything that keys and values depend on
//! beside the tokens. So a changed weight, adapter, precision or layout cannot meet an old entry.
//!
//! Whole blocks are shared and never written again. Where a new sequence leaves a cached one inside a block, that block
//! is copied and the copy is written on.
//!
//! The cache is bounded in bytes. The least recently used block that is not pinned goes first, the deeper one of two of
//! the same age, so that what is left of a chain is its beginning.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::engine::kv::{BLOCK, KvBlock};

/// A copy that saves fewer tokens costs about what it saves.
const COPY_LEAST: usize = 4;

/// The cache.
pub(crate) struct PrefixCache {
    seed: Digest,
    /// Bytes of blocks, at most.
    most_bytes: usize,
    block_bytes: usize,
    entries: HashMap<Digest, Entry>,
    /// The blocks that follow a block, or the seed.
    children: HashMap<Digest, Vec<Digest>>,
    clock: u64,
}

struct Entry {
    parent: Digest,
    /// 1 to [`BLOCK`]; fewer than that at the end of a sequence.
    tokens: Box<[u32]>,
    block: Arc<KvBlock>,
    depth: usize,
    used: u64,
    pins: u32,
}

/// What of a sequence was there.
#[derive(Default)]
pub(crate) struct Hit {
    /// Whole blocks from its beginning.
    pub(crate) shared: Vec<Arc<KvBlock>>,
    /// A block that begins like the next one of the sequence, and how many of its tokens are the same.
    pub(crate) partial: Option<(Arc<KvBlock>, usize)>,
}

impl Hit {
    /// Tokens of the sequence that need not be computed.
    pub(crate) fn tokens(&self) -> usize {
        self.shared.len() * BLOCK + self.partial.as_ref().map_or(0, |(_, tokens)| *tokens)
    }
}

fn key(parent: Digest, tokens: &[u32]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(parent.0);
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    Digest(hasher.finalize().into())
}

impl PrefixCache {
    /// An empty cache of at most `most_bytes`, for blocks of `block_bytes`.
    pub(crate) fn new(seed: Digest, most_bytes: usize, block_bytes: usize) -> Self {
        Self { seed, most_bytes, block_bytes, entries: HashMap::new(), children: HashMap::new(), clock: 0 }
    }

    /// Forgets everything; what follows belongs to another seed.
    pub(crate) fn reset(&mut self, seed: Digest) {
        *self = Self::new(seed, self.most_bytes, self.block_bytes);
    }

    /// Bytes that its blocks take, shared ones once.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() * self.block_bytes
    }

    /// Finds the longest beginning of `tokens` that is there, always without the last token: a pass needs one to compute.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Hit {
        let tokens = &tokens[..tokens.len().saturating_sub(1)];
        let mut hit = Hit::default();
        let (parent, rest) = self.walk(tokens, |entry| hit.shared.push(Arc::clone(&entry.block)));
        let same = |entry: &Entry| entry.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let children = self.children.get(&parent).into_iter().flatten();
        let closest = children.max_by_key(|key| self.entries.get(key).map_or(0, &same)).copied();
        if let Some(entry) = closest.and_then(|key| self.entries.get_mut(&key)) {
            let count = entry.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if count >= COPY_LEAST {
                entry.used = self.clock;
                hit.partial = Some((Arc::clone(&entry.block), count));
            }
        }
        hit
    }

    /// Visits the whole blocks that `tokens` begins with, and returns the last one's key and the tokens that are left.
    fn walk<'t>(&mut self, tokens: &'t [u32], mut visit: impl FnMut(&mut Entry)) -> (Digest, &'t [u32]) {
        self.clock += 1;
        let mut parent = self.seed;
        let mut rest = tokens;
        while let Some((block, after)) = rest.split_at_checked(BLOCK) {
            let key = key(parent, block);
            let Some(entry) = self.entries.get_mut(&key) else { break };
            entry.used = self.clock;
            visit(entry);
            (parent, rest) = (key, after);
        }
        (parent, rest)
    }

    /// Keeps the blocks of a sequence that was computed: `own` are those from block `first` on.
    pub(crate) fn insert(&mut self, tokens: &[u32], first: usize, own: Vec<KvBlock>) {
        self.clock += 1;
        let mut own = own.into_iter();
        let mut parent = self.seed;
        for (depth, tokens) in tokens.chunks(BLOCK).enumerate() {
            let key = key(parent, tokens);
            let block = if depth < first { None } else { own.next() };
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.used = self.clock;
            } else {
                // A block of the chain that has gone in the meantime ends it: nothing after it would be found.
                let Some(block) = block else { return };
                self.forget_beginnings(parent, tokens);
                if !self.make_room() {
                    return;
                }
                let (block, tokens) = (Arc::new(block), tokens.into());
                self.entries.insert(key, Entry { parent, tokens, block, depth, used: self.clock, pins: 0 });
                self.children.entry(parent).or_default().push(key);
            }
            parent = key;
        }
    }

    /// Removes an unfinished block that `tokens` begins with: it holds nothing that the new one does not.
    fn forget_beginnings(&mut self, parent: Digest, tokens: &[u32]) {
        let children = self.children.get(&parent).into_iter().flatten();
        let covered = |key: &&Digest| {
            let entry = self.entries.get(*key);
            entry.is_some_and(|entry| entry.pins == 0 && tokens.starts_with(&entry.tokens))
        };
        for key in children.filter(covered).copied().collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    /// Evicts until one more block fits; `false` if pins or the bound leave no room.
    fn make_room(&mut self) -> bool {
        while (self.entries.len() + 1) * self.block_bytes > self.most_bytes {
            // Not what this very call has used: to evict the beginning of a chain for its end would lose both.
            let unpinned = self.entries.iter().filter(|(_, entry)| entry.pins == 0 && entry.used < self.clock);
            let Some(key) = unpinned.min_by_key(|(_, entry)| (entry.used, Reverse(entry.depth))).map(|(key, _)| *key)
            else {
                return false;
            };
            self.remove(key);
        }
        true
    }

    fn remove(&mut self, key: Digest) {
        let Some(entry) = self.entries.remove(&key) else { return };
        if let Some(siblings) = self.children.get_mut(&entry.parent) {
            siblings.retain(|sibling| *sibling != key);
            if siblings.is_empty() {
                self.children.remove(&entry.parent);
            }
        }
    }

    /// Pins the whole blocks that `tokens` begins with, as far as they are there; returns how many tokens those are.
    pub(crate) fn pin(&mut self, tokens: &[u32]) -> usize {
        let (_, rest) = self.walk(tokens, |entry| entry.pins += 1);
        tokens.len() - rest.len()
    }

    /// Takes one pin back from each whole block of the first `tokens`; returns how many tokens those are.
    pub(crate) fn unpin(&mut self, tokens: &[u32]) -> usize {
        let (_, rest) = self.walk(tokens, |entry| entry.pins = entry.pins.saturating_sub(1));
        tokens.len() - rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kv::HeadLayout;
    use proptest::prelude::*;

    const LAYOUT: HeadLayout =
        HeadLayout { head_dim: 8, value_rows: 8, heads_per_unit: 4, key_value_heads: 1, queries_per_key: 2, layers: 1 };

    fn cache(blocks: usize) -> PrefixCache {
        PrefixCache::new(Digest([0; 32]), blocks * LAYOUT.block_bytes() + 1, LAYOUT.block_bytes())
    }

    fn tokens(first: u32, count: usize) -> Vec<u32> {
        (first..).take(count).collect()
    }

    /// Computes what is not there, as an engine does.
    fn run(cache: &mut PrefixCache, tokens: &[u32]) -> usize {
        let hit = cache.find(tokens);
        let own = tokens.len().div_ceil(BLOCK) - hit.shared.len();
        cache.insert(tokens, hit.shared.len(), vec![KvBlock::zeroed(&LAYOUT); own]);
        hit.tokens()
    }

    #[test]
    fn finds_the_longest_beginning_but_never_the_last_token() {
        let mut cache = cache(100);
        let whole = tokens(0, 200);
        assert_eq!(run(&mut cache, &whole), 0);
        let mut other = whole.clone();
        other[150] = 7;
        #[rustfmt::skip]
        let cases: [(&str, &[u32], usize); 9] = [
            ("the same",                          &whole,        199),
            ("its beginning, at a block's end",   &whole[..128], 127),
            ("its beginning, just inside a block", &whole[..130], 128),
            ("its beginning, inside a block",     &whole[..140], 139),
            ("one token",                         &whole[..1],   0),
            ("longer",                            &tokens(0, 300), 200),
            ("another inside the third block",    &other,        150),
            ("another from the start",            &whole[1..],   0),
            ("nothing",                           &[],           0),
        ];
        for (name, tokens, expected) in cases {
            assert_eq!(cache.find(tokens).tokens(), expected, "{name}");
        }
    }

    #[test]
    fn another_seed_finds_nothing() {
        let mut cache = cache(100);
        run(&mut cache, &tokens(0, 200));
        cache.reset(Digest([1; 32]));
        assert_eq!((cache.find(&tokens(0, 200)).tokens(), cache.bytes()), (0, 0));
    }

    #[test]
    fn the_least_recently_used_goes_first_and_its_end_before_its_beginning() {
        let mut cache = cache(6);
        let [a, b, c] = [0, 1000, 2000].map(|first| tokens(first, 3 * BLOCK));
        run(&mut cache, &a);
        run(&mut cache, &b);
        assert_eq!(cache.find(&a).tokens(), 3 * BLOCK - 1);
        run(&mut cache, &c[..BLOCK]);
        assert_eq!(cache.find(&b).tokens(), 2 * BLOCK);
        run(&mut cache, &c);
        assert_eq!(cache.find(&c).tokens(), 3 * BLOCK - 1);
        assert!(cache.bytes() <= 6 * LAYOUT.block_bytes());
    }

    #[test]
    fn what_is_pinned_stays() {
        let mut cache = cache(4);
        let pinned = tokens(0, 2 * BLOCK + 10);
        run(&mut cache, &pinned);
        assert_eq!(cache.pin(&pinned), 2 * BLOCK);
        for first in 1..20 {
            run(&mut cache, &tokens(1000 * first, 3 * BLOCK));
            assert!(cache.find(&pinned).tokens() >= 2 * BLOCK, "{first}");
        }
        assert_eq!(cache.unpin(&pinned), 2 * BLOCK);
        run(&mut cache, &tokens(90_000, 4 * BLOCK));
        assert_eq!(cache.find(&pinned).tokens(), 0);
    }

    #[test]
    fn an_unfinished_block_makes_way_for_its_continuation() {
        let mut cache = cache(100);
        for count in 65..=130 {
            run(&mut cache, &tokens(0, count));
        }
        // Two whole blocks and the two tokens after them.
        assert_eq!(cache.entries.len(), 3);
    }

    proptest! {
        /// A hit is a common beginning with something that was inserted, and the bound holds at every step.
        #[test]
        fn hits_are_true_and_the_bound_holds(
            steps in prop::collection::vec((0..3_u32, 0..3_u32, 1..200_usize, 0..200_usize), 1..40),
            blocks in 0..8_usize,
        ) {
            let mut cache = cache(blocks);
            let mut seen: Vec<Vec<u32>> = Vec::new();
            for (before, after, count, turn) in steps {
                let sequence: Vec<u32> = (0..count).map(|i| if i < turn { before } else { after }).collect();
                let found = run(&mut cache, &sequence);
                let common = |other: &Vec<u32>| other.iter().zip(&sequence).take_while(|(a, b)| a == b).count();
                prop_assert!(found < count && found <= seen.iter().map(common).max().unwrap_or(0));
                prop_assert!(cache.bytes() <= blocks * LAYOUT.block_bytes());
                let children: usize = cache.children.values().map(Vec::len).sum();
                prop_assert_eq!(children, cache.entries.len());
                seen.push(sequence);
            }
        }
    }
}
