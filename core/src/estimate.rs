//! From ten raw head outputs to five probabilities and five costs.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, PerAction};
use crate::closed_enum::closed_enum;
use crate::units::{NormalizedCost, Probability};

/// What the two heads return, before any activation.
///
/// `success_logits[a]` is the paper's `z_a`; `cost_preactivations[a]` is `v_a . h + b_a`, whose softplus is `l_a`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadOutputs {
    /// `z`, one logit an action.
    pub success_logits: PerAction<f32>,
    /// `v . h + b`, one an action.
    pub cost_preactivations: PerAction<f32>,
}

/// What one action is worth: both figures hold for one repair policy, one scaffold and one budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// `q`: probability that the task ends solved.
    pub success: Probability,
    /// `c`: expected normalized cost.
    pub cost: NormalizedCost,
}

/// One [`Estimate`] an action. None of the ten numbers is NaN or infinite: there is no way to build one that is.
pub type Estimates = PerAction<Estimate>;

closed_enum! {
    /// Which head an output belongs to.
    pub enum Head {
        /// The success head, `z`.
        Success = "success",
        /// The cost head, `v . h + b`.
        Cost = "cost",
    }
}

/// A head returned NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOutputError {
    /// The action whose row it is.
    pub action: Action,
    /// The head.
    pub head: Head,
    /// The number.
    pub found: f32,
}

impl fmt::Display for HeadOutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, head, found } = self;
        write!(f, "the {head} head returned {found} for `{action}`; a finite number was expected")
    }
}

impl core::error::Error for HeadOutputError {}

impl Estimates {
    /// Applies `q = sigmoid(z)`, `l = softplus(v . h + b)`, `c = exp(l) - 1` to each action.
    ///
    /// Finite outputs of any size give finite figures: `q` saturates at 0 and 1, `c` at the largest `f32`.
    ///
    /// # Errors
    /// [`HeadOutputError`] names the first action with a NaN or infinite output.
    pub fn from_heads(outputs: &HeadOutputs) -> Result<Self, HeadOutputError> {
        let mut estimates = [Estimate { success: Probability::ZERO, cost: NormalizedCost::ZERO }; Action::COUNT];
        for (estimate, action) in estimates.iter_mut().zip(Action::ALL) {
            let (z, x) = (outputs.success_logits[action], outputs.cost_preactivations[action]);
            for (head, found) in [(Head::Success, z), (Head::Cost, x)] {
                if !found.is_finite() {
                    return Err(HeadOutputError { action, head, found });
                }
            }
            *estimate = Estimate { success: sigmoid(z), cost: cost(x) };
        }
        Ok(Self(estimates))
    }
}

/// `1 / (1 + exp(-z))`, by the branch whose exponential cannot overflow, in double precision until the one rounding
/// at the end: so a greater logit never gives a smaller probability, which single precision does not promise.
fn sigmoid(z: f32) -> Probability {
    let z = f64::from(z);
    let q = if z >= 0.0 {
        1.0 / (1.0 + libm::exp(-z))
    } else {
        let e = libm::exp(z);
        e / (1.0 + e)
    };
    #[expect(clippy::cast_possible_truncation, reason = "the rounding to `f32` is the intent")]
    Probability::saturating(q as f32)
}

/// `expm1(softplus(x))`, in double precision until the one rounding at the end.
///
/// Algebra would shorten it to `exp(x)`. It is computed as the paper writes it, because `l` is what the loss
/// compares, and the two roundings must agree between training and serving.
fn cost(x: f32) -> NormalizedCost {
    let l = log1p_cost(x);
    #[expect(clippy::cast_possible_truncation, reason = "the rounding is the intent; infinity saturates")]
    NormalizedCost::saturating(libm::expm1(l) as f32)
}

/// `softplus(x) = ln(1 + exp(x))`, as `max(x, 0) + ln(1 + exp(-|x|))`: the paper's `l`.
#[must_use]
pub fn log1p_cost(x: f32) -> f64 {
    let x = f64::from(x);
    libm::fmax(x, 0.0) + libm::log1p(libm::exp(-libm::fabs(x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outputs(z: f32, x: f32) -> HeadOutputs {
        HeadOutputs { success_logits: PerAction([z; 5]), cost_preactivations: PerAction([x; 5]) }
    }

    #[test]
    fn known_values_and_saturation() {
        #[rustfmt::skip]
        let cases = [ // z      x         q                  c
            (0.0_f32,   0.0_f32,  0.5_f32,           1.0_f32),
            (1.0,       -1.0,     0.731_058_6,       0.367_879_44),
            (-1.0,      2.0,      0.268_941_43,      7.389_056),
            (20.0,      -20.0,    1.0,               2.061_153_6e-9),
            (-88.0,     5.0,      6.054_601e-39,    148.413_16),
            (1e4,       1e4,      1.0,               f32::MAX),
            (-1e4,      -1e4,     0.0,               0.0),
            (f32::MAX,  f32::MAX, 1.0,               f32::MAX),
            (f32::MIN,  f32::MIN, 0.0,               0.0),
        ];
        for (z, x, q, c) in cases {
            let found = Estimates::from_heads(&outputs(z, x)).unwrap()[Action::Retry];
            let close = |a: f32, b: f32| (a - b).abs() <= 1.2e-7 * b.abs();
            assert!(close(found.success.get(), q), "z {z}: {found:?}");
            assert!(close(found.cost.get(), c), "x {x}: {found:?}");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_names_its_action_and_head() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for action in Action::ALL {
                for head in [Head::Success, Head::Cost] {
                    let mut heads = outputs(0.5, 0.5);
                    match head {
                        Head::Success => heads.success_logits[action] = bad,
                        Head::Cost => heads.cost_preactivations[action] = bad,
                    }
                    let error = Estimates::from_heads(&heads).unwrap_err();
                    assert_eq!((error.action, error.head), (action, head));
                }
            }
        }
    }

    proptest! {
        /// Against the textbook formulas in `f64`, where they do not overflow.
        #[test]
        fn agrees_with_the_plain_formulas(z in -80.0f32..80.0, x in -80.0f32..80.0) {
            let found = Estimates::from_heads(&outputs(z, x)).unwrap()[Action::Submit];
            let q = 1.0 / (1.0 + (-f64::from(z)).exp());
            let c = f64::from(x).exp().ln_1p().exp_m1();
            prop_assert!((f64::from(found.success.get()) - q).abs() <= 1e-7 * q + 1e-44);
            prop_assert!((f64::from(found.cost.get()) - c).abs() <= 1e-6 * c + 1e-14);
        }

        /// Every finite output gives legal figures, and more logit never gives less success.
        #[test]
        fn total_and_monotone(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            let (low, high) = if a <= b { (a, b) } else { (b, a) };
            let low = Estimates::from_heads(&outputs(low, low)).unwrap()[Action::Submit];
            let high = Estimates::from_heads(&outputs(high, high)).unwrap()[Action::Submit];
            prop_assert!(low.success <= high.success && low.cost <= high.cost);
        }
    }
}
