//! The selection rule.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, ActionSet, PerAction};
use crate::estimate::{Estimate, Estimates};
use crate::units::{Lambda, NormalizedCost};

/// `q - lambda * c`: finite for every legal estimate and lambda, since the product of two `f32` fits an `f64`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")] // the wire must not build a NaN, which would compare with nothing
pub struct Utility(f64);

impl Utility {
    /// The utility of one estimate at one lambda. The product is exact, so only the difference is rounded.
    #[must_use]
    pub fn of(estimate: Estimate, lambda: Lambda) -> Self {
        Self(f64::from(estimate.success.get()) - f64::from(lambda.get()) * f64::from(estimate.cost.get()))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// A utility came that is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NotAUtility(pub f64);

impl fmt::Display for NotAUtility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a utility must be finite; found {}", self.0)
    }
}

impl core::error::Error for NotAUtility {}

impl TryFrom<f64> for Utility {
    type Error = NotAUtility;
    fn try_from(value: f64) -> Result<Self, NotAUtility> {
        if value.is_finite() { Ok(Self(value)) } else { Err(NotAUtility(value)) }
    }
}

impl From<Utility> for f64 {
    fn from(value: Utility) -> Self {
        value.0
    }
}

/// The action that the rule picked, and what it was picked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The winner.
    pub action: Action,
    /// Its utility.
    pub utility: Utility,
    /// Its estimated cost.
    pub cost: NormalizedCost,
}

/// Picks the available action with the greatest utility `q_a - lambda * c_a`.
///
/// Paper, "Cost and action choice": `a*(x) = argmax over a in A(x) of [q_a - lambda c_a]`. The mask comes before
/// the maximum: an action outside `available` cannot win, whatever its estimate. Equal utilities go to the lower
/// cost, then to the earlier action. `None` if and only if `available` is empty.
#[must_use]
pub fn select(estimates: &Estimates, available: ActionSet, lambda: Lambda) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    for action in available.iter() {
        let estimate = estimates[action];
        let (utility, cost) = (Utility::of(estimate, lambda), estimate.cost);
        let wins = match best {
            None => true,
            Some(held) => held.utility < utility || (held.utility == utility && cost < held.cost),
        };
        if wins {
            best = Some(Choice { action, utility, cost });
        }
    }
    best
}

/// By how much the winner's utility exceeds the best of the others: never negative, 0 at a tie.
///
/// `None` with fewer than two available actions, where nothing was compared.
#[must_use]
pub fn lead(estimates: &Estimates, available: ActionSet, lambda: Lambda) -> Option<f64> {
    let winner = select(estimates, available, lambda)?;
    available
        .without(winner.action)
        .iter()
        .map(|other| winner.utility.get() - Utility::of(estimates[other], lambda).get())
        .reduce(f64::min)
}

/// The utility of every action, available or not: what a choice is explained with.
#[must_use]
pub fn utilities(estimates: &Estimates, lambda: Lambda) -> PerAction<Utility> {
    PerAction(estimates.0.map(|estimate| Utility::of(estimate, lambda)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Probability;
    use proptest::prelude::*;

    const BOTH: ActionSet = ActionSet::EMPTY.with(Action::Submit).with(Action::Continue);
    const SUBMIT_ONLY: ActionSet = ActionSet::EMPTY.with(Action::Submit);

    fn estimate((success, cost): (f32, f32)) -> Estimate {
        Estimate { success: Probability::new(success).unwrap(), cost: NormalizedCost::new(cost).unwrap() }
    }

    #[test]
    fn select_maximizes_utility_then_breaks_ties_by_cost_then_order() {
        use Action::{Continue, Submit};
        #[rustfmt::skip]
        let cases = [ // name                           available         submit (q, c)  continue (q, c)    lambda     picks
            ("cost is free at lambda 0",                BOTH,             (0.60, 0.00),  (0.61, 9.00),      0.0,       Some(Continue)),
            ("cost outweighs a small gain",             BOTH,             (0.60, 0.00),  (0.70, 1.00),      0.2,       Some(Submit)),
            ("a tie goes to the lower cost",            BOTH,             (0.50, 0.50),  (0.50, 0.25),      0.0,       Some(Continue)),
            ("a full tie goes to the earlier",          BOTH,             (0.50, 0.25),  (0.50, 0.25),      0.1,       Some(Submit)),
            ("the mask precedes the maximum",           SUBMIT_ONLY,      (0.10, 0.00),  (0.99, 0.00),      0.0,       Some(Submit)),
            ("a saturated cost loses, and stays finite", BOTH,            (0.00, 0.00),  (1.00, f32::MAX),  f32::MAX,  Some(Submit)),
            ("none available, none picked",             ActionSet::EMPTY, (0.90, 0.00),  (0.90, 0.00),      0.0,       None),
        ];
        for (name, available, submit, go_on, lambda, picks) in cases {
            let mut estimates = PerAction([estimate((0.0, 0.0)); 5]);
            estimates[Submit] = estimate(submit);
            estimates[Continue] = estimate(go_on);
            let choice = select(&estimates, available, Lambda::new(lambda).unwrap());
            assert_eq!(choice.map(|it| it.action), picks, "{name}");
            assert!(choice.is_none_or(|it| it.utility.get().is_finite()), "{name}");
        }
    }

    /// The slow, obvious twin: sort every member by (utility down, cost up, order up) and take the first.
    fn naive(estimates: &Estimates, available: ActionSet, lambda: f32) -> Option<Action> {
        let mut ranked: std::vec::Vec<(f64, f32, usize)> = std::vec::Vec::new();
        for index in 0..5 {
            if available.bits() >> index & 1 == 1 {
                let Estimate { success, cost } = estimates.0[index];
                let price = f64::from(lambda) * f64::from(cost.get());
                ranked.push((price - f64::from(success.get()), cost.get(), index));
            }
        }
        ranked.sort_by(|a, b| a.partial_cmp(b).unwrap());
        ranked.first().and_then(|&(_, _, index)| Action::from_index(index))
    }

    #[test]
    fn the_lead_is_the_gap_to_the_second() {
        use Action::{Continue, Retry, Submit};
        let mut estimates = PerAction([estimate((0.0, 0.0)); 5]);
        estimates[Submit] = estimate((0.25, 0.0));
        estimates[Continue] = estimate((0.75, 0.5));
        estimates[Retry] = estimate((1.0, 0.0));
        let at = |lambda| Lambda::new(lambda).unwrap();
        assert_eq!(lead(&estimates, BOTH, at(0.0)), Some(0.5));
        assert_eq!(lead(&estimates, BOTH, at(0.5)), Some(0.25));
        assert_eq!(lead(&estimates, BOTH, at(1.0)), Some(0.0), "a tie");
        assert_eq!(lead(&estimates, SUBMIT_ONLY, at(0.0)), None);
        assert_eq!(lead(&estimates, ActionSet::EMPTY, at(0.0)), None);
        assert_eq!(lead(&estimates, BOTH.with(Retry), at(0.0)), Some(0.25));
    }

    #[test]
    fn the_wire_builds_no_utility_that_is_not_finite() {
        for (value, legal) in [(0.5, true), (-3.0, true), (f64::NAN, false), (f64::INFINITY, false)] {
            assert_eq!(postcard::from_bytes::<Utility>(&value.to_le_bytes()).is_ok(), legal, "{value}");
        }
    }

    proptest! {
        /// Few distinct values, so that ties of both kinds are common.
        #[test]
        fn agrees_with_the_naive_twin(
            cells in proptest::array::uniform5((0u8..4, 0u8..4)), bits in 0u8..32, lambda in 0u8..4,
        ) {
            let estimates =
                PerAction(cells.map(|(q, c)| estimate((f32::from(q) / 4.0, f32::from(c) / 4.0))));
            let (available, lambda) = (ActionSet::from_bits(bits).unwrap(), f32::from(lambda) / 4.0);
            let choice = select(&estimates, available, Lambda::new(lambda).unwrap());
            prop_assert_eq!(choice.map(|it| it.action), naive(&estimates, available, lambda));
        }

        /// What wins is available, and no available action has more utility.
        #[test]
        fn the_winner_is_available_and_unbeaten(
            cells in proptest::array::uniform5((0.0f32..=1.0, 0.0f32..1e3)), bits in 0u8..32, lambda in 0.0f32..2.0,
        ) {
            let (estimates, lambda) = (PerAction(cells.map(estimate)), Lambda::new(lambda).unwrap());
            let available = ActionSet::from_bits(bits).unwrap();
            let all = utilities(&estimates, lambda);
            match select(&estimates, available, lambda) {
                None => prop_assert!(available.is_empty()),
                Some(choice) => {
                    let lead = lead(&estimates, available, lambda);
                    prop_assert_eq!(lead.is_none(), available.len() == 1);
                    prop_assert!(lead.is_none_or(|lead| lead >= 0.0));
                    prop_assert!(available.contains(choice.action));
                    prop_assert_eq!(choice.utility, all[choice.action]);
                    prop_assert!(available.iter().all(|other| all[other] <= choice.utility));
                }
            }
        }
    }
}
