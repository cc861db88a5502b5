//! The rule, and a decision on the wire.
//!
//! `cargo bench -p tack-bench` prints the table; with `TACK_BENCH_RECORD=FILE` it writes the raw samples too. It fails
//! if a bound is broken, or if anything that should not allocate does.

use std::path::PathBuf;
use std::process::ExitCode;

use allocation_counter::measure;
use tack_bench::{Comparison, Row, Sequence, compare, record};
use tack_core::receipt::Ruling;
use tack_core::wire::{decode_owned, encode};
use tack_core::{
    Action, ActionSet, Choice, Estimate, Estimates, HeadOutputs, Lambda, NormalizedCost, PerAction, Precision,
    Probability, select,
};

/// What a decision is asked with, as the wire carries it.
type Asked = (Estimates, ActionSet, Lambda);

/// Inputs of the cold walk: about 50 MiB, more than a processor's share of the caches of the machines at hand.
const COLD_INPUTS: u32 = 1 << 20;
/// Inputs of the warm walks: about 50 KiB.
const WARM_INPUTS: u32 = 1 << 10;
/// Bytes that an encoded [`Asked`] takes: ten floats, the set, lambda.
const ASKED_BYTES: usize = 45;

fn asked(sequence: &mut Sequence) -> Asked {
    let estimate = |_| Estimate {
        success: legal(Probability::new(sequence.next_unit())),
        cost: legal(NormalizedCost::new(2.0 * sequence.next_unit())),
    };
    let estimates = PerAction::from_fn(estimate);
    // Submit, continue and retry are always available; each test action in half of the inputs.
    let tests = [Action::TestTargeted, Action::TestRegression].into_iter().filter(|_| sequence.next_unit() < 0.5);
    let available = tests.chain([Action::Submit, Action::Continue, Action::Retry]).collect();
    (estimates, available, legal(Lambda::new(0.2 * sequence.next_unit())))
}

fn legal<T>(value: Result<T, tack_core::units::OutOfRange>) -> T {
    #[expect(clippy::expect_used, reason = "the generator's range is the type's")]
    value.expect("a number in range")
}

/// The peer: arrays of floats, an array of flags, one loop. Not one of our types is in it.
#[derive(Clone, Copy)]
struct Plain {
    success: [f32; 5],
    cost: [f32; 5],
    available: [bool; 5],
    lambda: f32,
}

impl Plain {
    fn of(&(estimates, available, lambda): &Asked) -> Self {
        Self {
            success: estimates.0.map(|it| it.success.get()),
            cost: estimates.0.map(|it| it.cost.get()),
            available: Action::ALL.map(|action| available.contains(action)),
            lambda: lambda.get(),
        }
    }

    /// In double precision, as the rule: or the two would differ on ties that single precision makes.
    #[inline(never)]
    fn pick(&self) -> usize {
        let (mut best, mut best_utility) = (usize::MAX, f64::NEG_INFINITY);
        for action in 0..5 {
            let utility = f64::from(self.success[action]) - f64::from(self.lambda) * f64::from(self.cost[action]);
            if self.available[action] && utility > best_utility {
                (best, best_utility) = (action, utility);
            }
        }
        best
    }

    /// The same from bytes in a fixed layout, without a format: the least that any wire costs.
    fn from_bytes(bytes: &[u8; ASKED_BYTES]) -> Self {
        let float = |index: usize, gap: usize| {
            let at = 4 * index + gap;
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            success: core::array::from_fn(|action| float(2 * action, 0)),
            cost: core::array::from_fn(|action| float(2 * action + 1, 0)),
            available: core::array::from_fn(|action| bytes[40] >> action & 1 == 1),
            lambda: float(10, 1),
        }
    }
}

fn choice_index(choice: Option<Choice>) -> u64 {
    choice.map_or(u64::MAX, |choice| choice.action as u64)
}

/// `select` behind a call, as a caller in another crate has it.
#[inline(never)]
fn ours((estimates, available, lambda): &Asked) -> Option<Choice> {
    select(estimates, *available, *lambda)
}

/// Bytes in, bytes out: decode, choose, encode.
#[inline(never)]
fn ours_on_the_wire(bytes: &[u8]) -> u64 {
    let Ok((estimates, available, lambda)) = decode_owned::<Asked>(bytes) else { return u64::MAX };
    let mut buffer = [0; 32];
    match encode(&select(&estimates, available, lambda), &mut buffer) {
        // The first byte says that there is a choice, the second which.
        Ok([1, action, ..]) => u64::from(*action),
        _ => u64::MAX,
    }
}

/// The whole ruling: decode, choose, judge the near tie, encode all that it follows from.
#[inline(never)]
fn ours_as_a_ruling(bytes: &[u8]) -> u64 {
    let Ok((estimates, available, lambda)) = decode_owned::<Asked>(bytes) else { return u64::MAX };
    let Ok(ruling) = Ruling::choose(estimates, available, lambda, Precision::Bf16) else { return u64::MAX };
    let mut buffer = [0; 64];
    match encode(&ruling, &mut buffer) {
        // Set, lambda, precision, which end, ten floats; then the action.
        Ok(bytes) => bytes.get(47).copied().map_or(u64::MAX, u64::from),
        Err(_) => u64::MAX,
    }
}

fn sum(order: &[u32], answer: impl Fn(usize) -> u64) -> u64 {
    order.iter().map(|&index| answer(index as usize)).fold(0, u64::wrapping_add)
}

fn rows() -> Vec<Row> {
    let mut sequence = Sequence(1);
    let inputs: Vec<Asked> = (0..COLD_INPUTS).map(|_| asked(&mut sequence)).collect();
    let plain: Vec<Plain> = inputs.iter().map(Plain::of).collect();
    let wire: Vec<[u8; ASKED_BYTES]> = inputs[..WARM_INPUTS as usize]
        .iter()
        .map(|input| {
            let mut bytes = [0; ASKED_BYTES];
            assert_eq!(encode(input, &mut bytes).map(|it| it.len()), Ok(ASKED_BYTES));
            bytes
        })
        .collect();
    let heads = HeadOutputs { success_logits: PerAction([0.5; 5]), cost_preactivations: PerAction([-0.5; 5]) };
    let warm: Vec<u32> = (0..WARM_INPUTS).collect();
    // A walk of a sixteenth of all: it never comes back to a line before the cache has lost it.
    let cold = &sequence.shuffled(COLD_INPUTS)[..COLD_INPUTS as usize / 16];

    let ours_select = |order: &[u32]| sum(order, |index| choice_index(ours(&inputs[index])));
    let peer_select = |order: &[u32]| sum(order, |index| plain[index].pick() as u64);
    let ours_wire = |order: &[u32]| sum(order, |index| ours_on_the_wire(&wire[index]));
    let ours_ruling = |order: &[u32]| sum(order, |index| ours_as_a_ruling(&wire[index]));
    let peer_wire = |order: &[u32]| sum(order, |index| Plain::from_bytes(&wire[index]).pick() as u64);
    let ours_heads = |order: &[u32]| {
        sum(order, |index| {
            let mut heads = heads;
            heads.success_logits[Action::Retry] = index as f32 / 256.0;
            Estimates::from_heads(&heads).map_or(0, |it| u64::from(it[Action::Retry].success.get() >= 0.5))
        })
    };
    let peer_heads = |order: &[u32]| {
        sum(order, |index| {
            let mut z = [0.5_f32; 5];
            z[2] = index as f32 / 256.0;
            let success = z.map(|z| 1.0 / (1.0 + (-z).exp()));
            let cost = [-0.5_f32; 5].map(|x| x.exp().ln_1p().exp_m1());
            u64::from(std::hint::black_box(success)[2] >= 0.5 && std::hint::black_box(cost)[2] > 0.0)
        })
    };

    let compared = measure(|| {
        std::hint::black_box(ours_select(&warm) + ours_wire(&warm) + ours_ruling(&warm));
    });
    println!("allocations in {} decisions: {}", 3 * warm.len(), compared.count_total);
    assert_eq!(compared.count_total, 0, "a decision must not allocate");

    let of = |name, ours, peer, order, bound_ns| compare(&Comparison { name, ours, peer, order, bound_ns });
    vec![
        of("select", &ours_select, &peer_select, &warm, Some(50.0)),
        of("select, inputs not in the cache", &ours_select, &peer_select, cold, None),
        of("heads to estimates", &ours_heads, &peer_heads, &warm, None),
        of("decode, select, encode", &ours_wire, &peer_wire, &warm, Some(500.0)),
        of("decode, rule, encode the ruling", &ours_ruling, &peer_wire, &warm, None),
    ]
}

fn main() -> ExitCode {
    let provenance = record::provenance("cargo bench -p tack-bench --bench decision");
    print!("{provenance}");
    let rows = rows();
    print!("{}", record::table(&rows));
    if let Some(path) = std::env::var_os("TACK_BENCH_RECORD").map(PathBuf::from)
        && let Err(error) = record::write(&path, &provenance, &rows)
    {
        eprintln!("cannot write `{}`: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if rows.iter().all(Row::keeps_bound) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
