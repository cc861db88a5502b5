//! Whether rounding alone could have turned a choice.

use crate::action::ActionSet;
use crate::estimate::{Estimate, Estimates};
use crate::receipt::Precision;
use crate::rule::{Utility, select};
use crate::units::Lambda;

impl Precision {
    /// `e`: an output of a head is off by at most `e` times the greater of itself and 1.
    ///
    /// These are the tolerances of the golden rows, which hold the outputs together against their norm; so an output
    /// near 0 is not more exact than one of size 1.
    #[must_use]
    pub const fn output_error(self) -> f64 {
        match self {
            Self::F32 => 1e-5,
            Self::F16 | Self::Bf16 => 2e-2,
            // Half as much again as the worst of the 1,260 golden outputs, which is 6.8e-3.
            Self::Int12 => 1e-2,
        }
    }

    /// By how much the utility of `estimate` may be off, at most.
    ///
    /// With `d(y) = e max(|y|, 1)` for an output `y`, and `expm1(d)` in place of `d` to bound the change over the whole
    /// interval and not its slope at one point:
    /// - `q = sigmoid(z)` moves by at most `q (1 - q) expm1(d(z))`, since `|ln sigmoid'|` has no slope beyond 1;
    /// - `c = exp(x)` moves by at most `c expm1(d(x))`, and its part of the utility by lambda times that;
    /// - the last rounding of each to `f32` is relative to it.
    ///
    /// `z` and `x` are taken back from `q` and `c`. Where those are saturated, `z` and `x` are not known: a `q` of 0 or
    /// 1 and a `c` of 0 cannot move by more than their rounding, and the greatest `c` is taken for what it is.
    #[must_use]
    pub fn utility_error(self, estimate: Estimate, lambda: Lambda) -> f64 {
        let (q, c) = (f64::from(estimate.success.get()), f64::from(estimate.cost.get()));
        let lambda = f64::from(lambda.get());
        let moves = |size: f64, output: f64| {
            if size > 0.0 { size * libm::expm1(self.output_error() * libm::fmax(libm::fabs(output), 1.0)) } else { 0.0 }
        };
        let success = moves(q * (1.0 - q), libm::log(q) - libm::log1p(-q));
        let cost = moves(c, libm::log(c));
        success + lambda * cost + (q + lambda * c) * f64::from(f32::EPSILON)
    }
}

/// Whether another available action could have won if both utilities were off by what `precision` allows.
///
/// An exact tie is a near tie whatever the precision. With fewer than two available actions nothing was compared.
#[must_use]
pub fn is_near_tie(estimates: &Estimates, available: ActionSet, lambda: Lambda, precision: Precision) -> bool {
    let Some(winner) = select(estimates, available, lambda) else { return false };
    let error_of = |action| precision.utility_error(estimates[action], lambda);
    let error = error_of(winner.action);
    available.without(winner.action).iter().any(|other| {
        let lead = winner.utility.get() - Utility::of(estimates[other], lambda).get();
        lead <= error + error_of(other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, PerAction};
    use crate::estimate::HeadOutputs;
    use crate::units::{NormalizedCost, Probability};
    use proptest::prelude::*;

    const BOTH: ActionSet = ActionSet::EMPTY.with(Action::Submit).with(Action::Continue);

    fn estimate((q, c): (f32, f32)) -> Estimate {
        Estimate { success: Probability::new(q).unwrap(), cost: NormalizedCost::new(c).unwrap() }
    }

    fn pair(submit: (f32, f32), go_on: (f32, f32)) -> Estimates {
        let mut estimates = PerAction([estimate((0.0, 0.0)); Action::COUNT]);
        estimates[Action::Submit] = estimate(submit);
        estimates[Action::Continue] = estimate(go_on);
        estimates
    }

    #[test]
    fn the_bound_follows_lambda_and_both_estimates() {
        use Precision::{Bf16, F32, Int12};
        #[rustfmt::skip]
        let cases = [ // name                               submit (q, c)    continue (q, c)    lambda  precision  near
            ("wide apart",                                  (0.50, 0.00),    (0.60, 0.00),      0.0,    Bf16,      false),
            ("half precision moves q by 0.005 at 1/2",      (0.50, 0.00),    (0.509, 0.00),     0.0,    Bf16,      true),
            ("integers move q by 0.0025 at 1/2",            (0.50, 0.00),    (0.5049, 0.00),    0.0,    Int12,     true),
            ("and no further",                              (0.50, 0.00),    (0.5051, 0.00),    0.0,    Int12,     false),
            ("and single precision by 0.0000025",           (0.50, 0.00),    (0.50002, 0.00),   0.0,    F32,       false),
            ("two of those meet",                           (0.50, 0.00),    (0.500_004, 0.00), 0.0,    F32,       true),
            ("far from 1/2, q moves less",                  (0.99, 0.00),    (0.994, 0.00),     0.0,    Bf16,      false),
            ("a cost is free at lambda 0",                  (0.50, 50.0),    (0.60, 50.0),      0.0,    Bf16,      false),
            ("a great cost moves more than q does",         (0.50, 50.0),    (0.60, 50.0),      0.2,    Bf16,      true),
            ("so it does at a great lambda",                (0.50, 2.00),    (0.60, 2.00),      5.0,    Bf16,      true),
            ("only the one that is dear",                   (0.90, 0.00),    (1.00, 3.00),      0.1,    Bf16,      false),
            ("in single precision too",                     (0.50, 1e5),     (0.60, 1e5),       0.2,    F32,       true),
            ("an exact tie",                                (0.00, 0.00),    (0.00, 0.00),      0.0,    F32,       true),
            ("a tie of saturated costs",                    (0.50, f32::MAX), (0.60, f32::MAX), f32::MAX, F32,     true),
        ];
        for (name, submit, go_on, lambda, precision, near) in cases {
            let lambda = Lambda::new(lambda).unwrap();
            assert_eq!(is_near_tie(&pair(submit, go_on), BOTH, lambda, precision), near, "{name}");
            let one = ActionSet::EMPTY.with(Action::Submit);
            assert!(!is_near_tie(&pair(submit, go_on), one, lambda, precision), "{name}: nothing was compared");
            assert!(!is_near_tie(&pair(submit, go_on), ActionSet::EMPTY, lambda, precision), "{name}");
        }
    }

    #[test]
    fn a_third_action_that_is_less_certain_counts_although_the_second_is_nearer() {
        let lambda = Lambda::new(1e4).unwrap();
        let mut estimates = pair((0.98, 0.0), (0.975, 0.0)); // 0.005 apart, and off by 0.0035 together
        assert!(!is_near_tie(&estimates, ActionSet::ALL, lambda, Precision::Bf16));
        estimates[Action::Retry] = estimate((1.0, 2.55e-6)); // 0.0055 behind, and off by 0.0075 alone
        assert!(is_near_tie(&estimates, ActionSet::ALL, lambda, Precision::Bf16));
        assert!(!is_near_tie(&estimates, ActionSet::ALL, lambda, Precision::F32));
    }

    proptest! {
        /// Against the forward formulas: outputs that are off by what is allowed turn no choice that is not flagged.
        #[test]
        fn no_allowed_error_turns_a_choice_that_is_not_flagged(
            z in proptest::array::uniform2(-30.0f32..30.0), x in proptest::array::uniform2(-30.0f32..20.0),
            sides in proptest::array::uniform4(-1.0f64..=1.0), lambda in 0.0f32..10.0, precision in 0..Precision::COUNT,
        ) {
            let precision = Precision::ALL[precision];
            let off = |y: f32, side: f64| {
                let error = precision.output_error() * 0.99; // the rest is for rounding the outputs of this test
                #[expect(clippy::cast_possible_truncation, reason = "an output is an `f32`")]
                let moved = (f64::from(y) + side * error * f64::from(y).abs().max(1.0)) as f32;
                moved
            };
            let outputs = |z: [f32; 2], x: [f32; 2]| {
                let spread = |two: [f32; 2]| PerAction([two[0], two[1], 0.0, 0.0, 0.0]);
                let heads = HeadOutputs { success_logits: spread(z), cost_preactivations: spread(x) };
                Estimates::from_heads(&heads).unwrap()
            };
            let lambda = Lambda::new(lambda).unwrap();
            let exact = outputs(z, x);
            let moved = outputs([off(z[0], sides[0]), off(z[1], sides[1])], [off(x[0], sides[2]), off(x[1], sides[3])]);
            for action in [Action::Submit, Action::Continue] {
                let change = Utility::of(exact[action], lambda).get() - Utility::of(moved[action], lambda).get();
                let bound = precision.utility_error(exact[action], lambda);
                prop_assert!(change.abs() <= bound, "{change} beyond {bound}: {:?}", exact[action]);
            }
            let picks = |estimates| select(estimates, BOTH, lambda).map(|it| it.action);
            if !is_near_tie(&exact, BOTH, lambda, precision) {
                prop_assert_eq!(picks(&exact), picks(&moved));
            }
        }
    }
}
