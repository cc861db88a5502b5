//! A harness for things that take nanoseconds, against a peer in the same run.
//!
//! It is a hundred lines of our own and not a library, because it does what the libraries do not: it takes turns
//! between ours and the peer sample by sample, so that a busy neighbor slows both; it walks inputs that are in the
//! cache, and inputs that are not; and its rows carry a bound, which fails the run when it is broken.
//!
//! Invariants: nothing is timed before it agreed with its peer on every input; a sample is a whole walk over the
//! inputs, never less than a few microseconds, so that the clock's grain does not count.

pub mod random_bundle;
pub mod record;
pub mod resident;
pub mod worker;

use std::time::{Duration, Instant};

/// One implementation: it answers the input with this index, and the answer is summed so that it cannot be left out.
pub type Subject<'a> = &'a dyn Fn(&[u32]) -> u64;

/// What is compared: ours and a peer, over the same inputs in the same order.
pub struct Comparison<'a> {
    /// The row's name.
    pub name: &'static str,
    /// Ours: walks the inputs in the given order and returns the sum of its answers.
    pub ours: Subject<'a>,
    /// The peer: the same walk.
    pub peer: Subject<'a>,
    /// The order in which the inputs are walked.
    pub order: &'a [u32],
    /// The bound on the median of ours, in nanoseconds a call; `None` for a row that only informs.
    pub bound_ns: Option<f64>,
}

impl std::fmt::Debug for Comparison<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comparison").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Nanoseconds a call, one figure a sample, in the order in which they were taken.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The sample below which `share` of all samples lie; 0 without samples.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
        let index = (share.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64) as usize;
        sorted.get(index).copied().unwrap_or(0.0)
    }
}

/// A comparison that was run.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Ours.
    pub ours: Samples,
    /// The peer's.
    pub peer: Samples,
    /// The bound on the median of ours.
    pub bound_ns: Option<f64>,
}

impl Row {
    /// Whether the median of ours keeps the bound.
    #[must_use]
    pub fn keeps_bound(&self) -> bool {
        self.bound_ns.is_none_or(|bound| self.ours.quantile(0.5) <= bound)
    }
}

/// Samples of each implementation.
pub const SAMPLES: usize = 300;

/// Time that one comparison may take: it stops early rather than run over.
pub const BUDGET: Duration = Duration::from_secs(4);

/// Runs one comparison, in turns, after three walks that warm caches and branch predictors up.
///
/// # Panics
/// If the two do not agree on the sum of their answers: nothing is timed that is wrong.
#[must_use]
pub fn compare(comparison: &Comparison<'_>) -> Row {
    let Comparison { name, ours, peer, order, bound_ns } = *comparison;
    for _ in 0..3 {
        assert_eq!(ours(order), peer(order), "{name}: ours and the peer must agree before the clock starts");
    }
    let mut row = Row { name, ours: Samples::default(), peer: Samples::default(), bound_ns };
    let begun = Instant::now();
    for _ in 0..SAMPLES {
        row.ours.0.push(walk(ours, order));
        row.peer.0.push(walk(peer, order));
        if begun.elapsed() > BUDGET {
            break;
        }
    }
    row
}

fn walk(subject: Subject<'_>, order: &[u32]) -> f64 {
    let begun = Instant::now();
    std::hint::black_box(subject(std::hint::black_box(order)));
    begun.elapsed().as_nanos() as f64 / order.len() as f64
}

/// A small, fixed generator (`SplitMix64`), so that every run walks the same inputs.
#[derive(Clone, Copy, Debug)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The next number in `[0, 1)`, of 24 bits.
    pub fn next_unit(&mut self) -> f32 {
        (self.next_number() >> 40) as f32 / 16_777_216.0
    }

    /// The numbers below `count`, shuffled.
    pub fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for end in (1..order.len()).rev() {
            #[expect(clippy::cast_possible_truncation, reason = "a remainder below the length")]
            let other = (self.next_number() % (end as u64 + 1)) as usize;
            order.swap(end, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = Samples((1..=101).rev().map(f64::from).collect());
        assert_eq!(
            [0.0, 0.5, 0.95, 1.0].map(|share| samples.quantile(share).to_bits()),
            [1.0, 51.0, 96.0, 101.0].map(f64::to_bits)
        );
        assert!(Samples::default().quantile(0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_shuffle_keeps_every_member() {
        let mut order = Sequence(7).shuffled(1_000);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1_000));
    }
}
