//! Tests of the lambda gate: the boundary cases as tables, the rest against a naive twin.

use super::*;
use crate::estimate::Estimate;
use crate::units::{NormalizedCost, Probability};
use proptest::prelude::*;
use std::vec::Vec;

const CONTEXT: GateContext = GateContext {
    controller: Digest([1; 32]),
    development: Digest([2; 32]),
    backend: Backend::Cpu,
    precision: Precision::F32,
};

/// A tally that is judged and costed everywhere.
fn tally(half_outcomes: u64, cost: u128) -> Tally {
    Tally { half_outcomes, cost: CostTicks(cost), ..Tally::default() }
}

/// 50 states, so that two percentage points are exactly two half outcomes of a hundred; fixed policies at 60 and less.
fn tallies(rows: [Tally; 5]) -> GateTallies {
    let fixed = PerAction([tally(60, 0), tally(58, 9), tally(10, 9), tally(60, 9), tally(0, 9)]);
    GateTallies { states: 50, rows, fixed, reference: None }
}

#[test]
fn the_tolerance_is_inclusive_and_ties_go_to_success_then_to_the_smaller_lambda() {
    use GateAnswer::{Met, NotMet};
    let unjudged = Tally { unjudged: 1, ..tally(99, 0) };
    let idle = Tally { without_action: 1, ..tally(98, 0) };
    let uncosted = Tally { uncosted: 1, ..tally(99, 0) };
    let low = tally(57, 1);
    #[rustfmt::skip]
    let cases = [ // name                              rows                                                             answer
        ("two points below still pass",                [low, tally(58, 5), low, low, low],                              Met { row: 1 }),
        ("one half outcome more below does not",       [low; 5],                                                        NotMet(GateShortfall::BelowBar)),
        ("the lowest cost wins, not the best success", [tally(90, 9), tally(80, 8), tally(60, 7), tally(58, 6), low],   Met { row: 3 }),
        ("a cost tie goes to the higher success",      [tally(58, 6), tally(59, 6), tally(61, 6), tally(60, 6), low],   Met { row: 2 }),
        ("a full tie goes to the smaller lambda",      [low, tally(60, 6), tally(60, 6), tally(60, 6), low],            Met { row: 1 }),
        ("an unjudged choice is out, however good",    [unjudged, unjudged, unjudged, tally(60, 9), idle],              Met { row: 3 }),
        ("all unjudged",                               [unjudged, unjudged, unjudged, unjudged, idle],                  NotMet(GateShortfall::NoEligibleRow)),
        ("an unknown cost is not the lowest",          [uncosted, uncosted, tally(58, 9), low, low],                    Met { row: 2 }),
        ("all of unknown cost",                        [uncosted, uncosted, uncosted, low, unjudged],                   NotMet(GateShortfall::NoCostedRow)),
    ];
    for (name, rows, answer) in cases {
        let gate = LambdaGate::from_tallies(CONTEXT, &tallies(rows));
        assert_eq!(gate.answer(), answer, "{name}");
        let expected = if let Met { row } = answer { LAMBDA_GRID[usize::from(row)] } else { 0.0 };
        assert_eq!(gate.lambda(), Lambda::new(expected).unwrap(), "{name}");
        assert_eq!(gate.gate_met(), matches!(answer, Met { .. }), "{name}");
    }
}

#[test]
fn the_bar_is_the_best_eligible_fixed_policy_or_a_higher_reference() {
    let plain = tallies([tally(60, 1); 5]);
    let rate = |half_outcomes, states| Some(SuccessRate::new(half_outcomes, states).unwrap());
    let with_reference = |reference| {
        let mut it = plain;
        it.reference = reference;
        it
    };
    let spoil = |spoiled: &[Action]| {
        let mut it = plain;
        for &action in spoiled {
            it.fixed[action].unjudged = 1;
        }
        it
    };
    let every = spoil(&Action::ALL);
    let fixed = |action, halves| Some((BarSource::FixedPolicy(action), halves));
    #[rustfmt::skip]
    let cases = [ // name                              tallies                                          bar
        ("a tie of fixed policies: the earlier",       plain,                                           fixed(Action::Submit, 60)),
        ("an ineligible one sets no bar",              spoil(&[Action::Submit]),                        fixed(Action::TestTargeted, 60)),
        ("an equal reference is not higher",           with_reference(rate(6, 5)),                      fixed(Action::Submit, 60)),
        ("a higher one, of another count of states",   with_reference(rate(2, 1)),                      Some((BarSource::FrozenReference, 2))),
        ("a lower one",                                with_reference(rate(59, 50)),                    fixed(Action::Submit, 60)),
        ("a reference alone",                          GateTallies { reference: rate(1, 9), ..every },  Some((BarSource::FrozenReference, 1))),
        ("nothing at all",                             every,                                           None),
    ];
    for (name, tallies, bar) in cases {
        assert_eq!(tallies.bar().map(|bar| (bar.source, bar.success.half_outcomes())), bar, "{name}");
    }
    assert_eq!(every.answer(), GateAnswer::NotMet(GateShortfall::NoBar));
    let none = LambdaGate::evaluate(CONTEXT, &[], rate(1, 1)).unwrap();
    assert_eq!((none.answer(), none.lambda()), (GateAnswer::NotMet(GateShortfall::NoStates), Lambda::ZERO));
}

#[test]
fn submit_weighs_as_two_seeds_and_an_unavailable_fixed_policy_continues() {
    let estimate = Estimate { success: Probability::ZERO, cost: NormalizedCost::ZERO };
    let half = |halves: u8| Some(HalfOutcomes::try_from(halves).unwrap());
    let cost = |ticks| Some(PairCost { sum: CostTicks(ticks), estimated: ticks == 3 });
    let state = DevelopmentState {
        available: ActionSet::ALL.without(Action::TestTargeted),
        estimates: PerAction([estimate; 5]),
        outcomes: StateOutcomes::new(PerAction([half(2), half(1), None, half(2), half(0)])).unwrap(),
        costs: PerAction([None, cost(3), cost(5), cost(7), None]),
    };
    let fixed = GateTallies::count(&[state, state], None).unwrap().fixed;
    #[rustfmt::skip]
    let table = [ // action         halves  ticks  unjudged  uncosted  estimated
        (Action::Submit,            4,      0,     0,        0,        0),
        (Action::Continue,          2,      6,     0,        0,        2),
        (Action::Retry,             0,      10,    2,        0,        0),
        (Action::TestTargeted,      2,      6,     0,        0,        2), // unavailable, so it continues
        (Action::TestRegression,    0,      0,     0,        2,        0),
    ];
    for (action, half_outcomes, ticks, unjudged, uncosted, estimated_costs) in table {
        let cost = CostTicks(ticks);
        let expected = Tally { half_outcomes, cost, unjudged, uncosted, estimated_costs, without_action: 0 };
        assert_eq!(fixed[action], expected, "{action}");
    }
}

#[test]
fn a_record_that_was_changed_is_refused() {
    let gate = LambdaGate::from_tallies(
        CONTEXT,
        &tallies([tally(60, 5), tally(58, 4), tally(57, 3), tally(57, 2), tally(57, 1)]),
    );
    assert_eq!(gate.lambda(), Lambda::new(0.02).unwrap());
    let text = serde_json::to_string(&gate).unwrap();
    assert_eq!(serde_json::from_str::<LambdaGate>(&text).unwrap(), gate);
    for (from, to) in [
        (r#""lambda":0.02"#, r#""lambda":0.2"#),
        (r#""gate_met":true"#, r#""gate_met":false"#),
        (r#""row":1"#, r#""row":4"#),
        (r#""fixed_policy":"submit""#, r#""fixed_policy":"retry""#),
        (r#""grid":[0.0,"#, r#""grid":[0.01,"#),
        (r#""half_outcomes":58,"cost":4"#, r#""half_outcomes":57,"cost":4"#),
        (r#""half_outcomes":58,"cost":4"#, r#""half_outcomes":101,"cost":4"#),
        ("This is no distribution-free guarantee", "This is a guarantee"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        assert!(serde_json::from_str::<LambdaGate>(&text.replacen(from, to, 1)).is_err(), "{to}");
    }
}

/// The slow, obvious twin: plays each row as a list, compares fractions, takes the least of a sorted key. It shares
/// nothing with the gate but its inputs.
fn naive(states: &[DevelopmentState], reference: Option<(u64, u32)>) -> Option<usize> {
    type Play = (Option<i128>, Option<u128>); // halves, ticks; `None` where any state lacks it
    let play = |choose: &dyn Fn(&DevelopmentState) -> Option<usize>| -> Play {
        let chosen: Vec<_> = states.iter().map(|state| choose(state).map(|action| (state, action))).collect();
        let halves = chosen.iter().map(|it| {
            it.and_then(|(state, action)| state.outcomes.of(Action::ALL[action])).map(|halves| i128::from(halves.get()))
        });
        let ticks = chosen.iter().map(|it| match it {
            None => None,
            Some((_, 0)) => Some(0),
            Some((state, action)) => state.costs.0[*action].map(|cost| cost.sum.0),
        });
        (halves.sum(), ticks.sum())
    };
    let n = i128::try_from(states.len()).unwrap();
    let fixed =
        (0..5).map(|action| play(&|state| [action, 1].into_iter().find(|it| state.available.bits() >> it & 1 == 1)));
    // Rates as exact fractions (numerator, denominator).
    let mut bars: Vec<(i128, i128)> = fixed.filter_map(|(halves, _)| halves.map(|halves| (halves, 2 * n))).collect();
    bars.extend(reference.map(|(halves, states)| (i128::from(halves), 2 * i128::from(states))));
    let bar = bars.into_iter().reduce(|a, b| if b.0 * a.1 > a.0 * b.1 { b } else { a })?;
    let mut passing = Vec::new();
    for (row, lambda) in LAMBDA_GRID.into_iter().enumerate() {
        let chosen = play(&|state| {
            (0..5).filter(|it| state.available.bits() >> it & 1 == 1).min_by(|&a, &b| {
                let key = |it: usize| {
                    let Estimate { success, cost } = state.estimates.0[it];
                    (f64::from(lambda) * f64::from(cost.get()) - f64::from(success.get()), cost.get())
                };
                key(a).partial_cmp(&key(b)).unwrap()
            })
        });
        if let (Some(halves), Some(ticks)) = chosen
            && 50 * halves * bar.1 >= 50 * bar.0 * 2 * n - 2 * n * bar.1
        {
            passing.push((ticks, -halves, row));
        }
    }
    if states.is_empty() { None } else { passing.into_iter().min().map(|(_, _, row)| row) }
}

fn any_state() -> impl Strategy<Value = DevelopmentState> {
    let cell = (0u8..5, 0u8..4, proptest::option::weighted(0.97, 0u8..=2), proptest::option::weighted(0.97, 0u8..4));
    (proptest::array::uniform5(cell), 0u8..8, 0u8..64).prop_map(|(cells, tests_left, emptied)| {
        let mut halves = cells.map(|it| it.2.map(|halves| HalfOutcomes::try_from(halves).unwrap()));
        halves[0] = cells[0].2.map(|halves| HalfOutcomes::try_from(halves / 2 * 2).unwrap());
        let test_bits = (tests_left & 0b11) << 3 | 0b111;
        DevelopmentState {
            available: ActionSet::from_bits(if emptied == 0 { 0 } else { test_bits }).unwrap(),
            estimates: PerAction(cells.map(|(q, c, ..)| Estimate {
                success: Probability::new(f32::from(q) / 4.0).unwrap(),
                cost: NormalizedCost::new(f32::from(c)).unwrap(),
            })),
            outcomes: StateOutcomes::new(PerAction(halves)).unwrap(),
            costs: PerAction(
                cells.map(|it| it.3.map(|ticks| PairCost { sum: CostTicks(ticks.into()), estimated: false })),
            ),
        }
    })
}

proptest! {
    #[test]
    fn agrees_with_the_naive_twin(
        states in proptest::collection::vec(any_state(), 0..12), reference in proptest::option::of((0u64..=20, 10u32..14)),
    ) {
        let rate = reference.map(|(halves, states)| SuccessRate::new(halves, states).unwrap());
        let gate = LambdaGate::evaluate(CONTEXT, &states, rate).unwrap();
        let row = if let GateAnswer::Met { row } = gate.answer() { Some(usize::from(row)) } else { None };
        prop_assert_eq!(row, naive(&states, reference));
        let mut buffer = [0; 2_048];
        let wire = crate::wire::encode(&gate, &mut buffer).unwrap();
        prop_assert_eq!(crate::wire::decode_owned::<LambdaGate>(wire), Ok(gate));
    }
}
