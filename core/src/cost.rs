//! Normalized cost, exactly: `C = N_new / 8192 + T_pretest / 300`.
//!
//! Counts and microseconds are integers, and so is this cost until someone asks for a float. The common denominator
//! of `1 / 8192` (a token) and `1 / (300 * 10^6)` (a microsecond) is `2^13 * 3 * 5^8 = 9,600,000,000`; in that unit a
//! token is 1,171,875 ticks and a microsecond 32. So means over the same states compare without rounding.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::measurement::{EstimateMethod, Figure, FigureUnavailable, Measurement};
use crate::units::{Micros, NormalizedCost, Tokens};

/// A normalized cost as a whole number of ticks, `1 / 9,600,000,000` each. Every count and time fits exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CostTicks(pub u128);

impl CostTicks {
    /// What `submit` costs.
    pub const ZERO: Self = Self(0);
    /// Ticks of a cost of 1: the least common multiple of 8,192 and 300 * 10^6.
    pub const PER_UNIT: u128 = 9_600_000_000;
    /// Output tokens that cost 1 (paper, "Cost and action choice").
    pub const TOKENS_PER_UNIT: u128 = 8_192;
    /// Microseconds of pretest that cost 1 (same place: 300 s).
    pub const MICROS_PER_UNIT: u128 = 300_000_000;

    /// `output_tokens / 8192 + pretest / 300 s`, without rounding and without overflow.
    #[must_use]
    pub const fn of(output_tokens: Tokens, pretest: Micros) -> Self {
        const TOKEN: u128 = CostTicks::PER_UNIT / CostTicks::TOKENS_PER_UNIT;
        const MICRO: u128 = CostTicks::PER_UNIT / CostTicks::MICROS_PER_UNIT;
        const { assert!(TOKEN * CostTicks::TOKENS_PER_UNIT == CostTicks::PER_UNIT) };
        const { assert!(MICRO * CostTicks::MICROS_PER_UNIT == CostTicks::PER_UNIT) };
        // Below 2^32 * 2^21 + 2^64 * 2^5, far from 2^128.
        Self(output_tokens.0 as u128 * TOKEN + pretest.0 as u128 * MICRO)
    }

    /// The nearest normalized cost that an `f32` can hold.
    #[must_use]
    pub fn to_normalized_nearest(self) -> NormalizedCost {
        #[expect(clippy::cast_possible_truncation, reason = "the rounding to `f32` is the intent")]
        let cost = (self.0 as f64 / Self::PER_UNIT as f64) as f32;
        NormalizedCost::saturating(cost)
    }
}

closed_enum! {
    /// The terms of the formula.
    pub enum CostTerm {
        /// `N_new / 8192`.
        OutputTokens = "output_tokens",
        /// `T_pretest / 300`.
        PretestWall = "pretest_wall",
    }
}

/// The exact cost of one executed action, with the method of each term that was estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredCost {
    /// The cost.
    pub ticks: CostTicks,
    /// How `N_new` was estimated; `None` where it was measured, or is 0 by definition.
    pub output_tokens_method: Option<EstimateMethod>,
    /// How `T_pretest` was estimated; `None` where it was measured, or is 0 by definition.
    pub pretest_method: Option<EstimateMethod>,
}

impl MeasuredCost {
    /// What `submit` costs, by definition.
    pub const ZERO: Self = Self { ticks: CostTicks::ZERO, output_tokens_method: None, pretest_method: None };

    /// Whether a term was estimated.
    #[must_use]
    pub const fn is_estimated(self) -> bool {
        self.output_tokens_method.is_some() || self.pretest_method.is_some()
    }
}

/// A cost does not exist, because one of its terms could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostError {
    /// The term.
    pub term: CostTerm,
    /// Why it could not be had.
    pub reason: FigureUnavailable,
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no normalized cost: {} is unavailable ({})", self.term, self.reason)
    }
}

impl core::error::Error for CostError {}

impl TryFrom<&Measurement> for MeasuredCost {
    type Error = CostError;

    /// `submit` costs 0 whatever was measured; an action without a pretest is charged none.
    fn try_from(measurement: &Measurement) -> Result<Self, CostError> {
        let action = measurement.action;
        if action.is_terminal() {
            return Ok(Self::ZERO);
        }
        let pretest = if action.has_pretest() { measurement.pretest_wall } else { Figure::Measured(Micros(0)) };
        let missing = |term| move |reason| CostError { term, reason };
        let tokens = measurement.output_tokens.value().map_err(missing(CostTerm::OutputTokens))?;
        let wall = pretest.value().map_err(missing(CostTerm::PretestWall))?;
        Ok(Self {
            ticks: CostTicks::of(tokens, wall),
            output_tokens_method: measurement.output_tokens.method(),
            pretest_method: pretest.method(),
        })
    }
}

impl TryFrom<&Measurement> for NormalizedCost {
    type Error = CostError;
    fn try_from(measurement: &Measurement) -> Result<Self, CostError> {
        MeasuredCost::try_from(measurement).map(|cost| cost.ticks.to_normalized_nearest())
    }
}

/// The cost of one action on one state over its two prescribed seeds: their sum, so that the mean is half of it.
///
/// `submit` has one outcome and no cost, so its sum is [`PairCost::ZERO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCost {
    /// Sum over both seeds; the mean `c` of the paper is half of it.
    pub sum: CostTicks,
    /// Whether a term of either seed was estimated.
    pub estimated: bool,
}

impl PairCost {
    /// What `submit` costs.
    pub const ZERO: Self = Self { sum: CostTicks::ZERO, estimated: false };

    /// Both seeds together.
    #[must_use]
    pub const fn of(seeds: [MeasuredCost; 2]) -> Self {
        let [first, second] = seeds;
        Self {
            sum: CostTicks(first.ticks.0.saturating_add(second.ticks.0)),
            estimated: first.is_estimated() || second.is_estimated(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use proptest::prelude::*;

    fn measurement(action: Action, tokens: Figure<Tokens>, pretest: Figure<Micros>) -> Measurement {
        Measurement {
            output_tokens: tokens,
            pretest_wall: pretest,
            ..Measurement::unavailable(action, FigureUnavailable::NotRecorded)
        }
    }

    #[test]
    fn the_formula_and_what_it_needs() {
        use Action::{Continue, Retry, Submit, TestRegression, TestTargeted};
        use Figure::Measured;
        let silent = FigureUnavailable::ProviderSilent;
        let lost = FigureUnavailable::RecordLost;
        let no = |term, reason| Err(CostError { term, reason });
        #[rustfmt::skip]
        let cases = [ // name                              action          N_new                       T_pretest                         C
            ("the ceilings cost 1 each",                   TestTargeted,   Measured(8_192),            Measured(300_000_000),            Ok(2.0)),
            ("half of each",                               TestRegression, Measured(4_096),            Measured(150_000_000),            Ok(1.0)),
            ("nothing used, nothing paid",                 Continue,       Measured(0),                Measured(0),                      Ok(0.0)),
            ("no pretest of its own, none charged",        Continue,       Measured(8_192),            Measured(300_000_000),            Ok(1.0)),
            ("and none needed",                            Retry,          Measured(2_048),            Figure::Unavailable(lost),        Ok(0.25)),
            ("a time-out is charged what elapsed",         TestTargeted,   Measured(0),                Measured(300_000_000),            Ok(1.0)),
            ("submit costs 0, known or not",               Submit,         Figure::Unavailable(silent), Figure::Unavailable(lost),       Ok(0.0)),
            ("unknown tokens are not zero tokens",         Continue,       Figure::Unavailable(silent), Measured(0),                     no(CostTerm::OutputTokens, silent)),
            ("an unknown pretest is not a free one",       TestTargeted,   Measured(1),                Figure::Unavailable(lost),        no(CostTerm::PretestWall, lost)),
        ];
        for (name, action, tokens, pretest, expected) in cases {
            let tokens = match tokens {
                Figure::Unavailable(reason) => Figure::Unavailable(reason),
                Measured(count) | Figure::Estimated { value: count, .. } => Measured(Tokens(count)),
            };
            let pretest = match pretest {
                Figure::Unavailable(reason) => Figure::Unavailable(reason),
                Measured(count) | Figure::Estimated { value: count, .. } => Measured(Micros(count)),
            };
            let found = NormalizedCost::try_from(&measurement(action, tokens, pretest)).map(NormalizedCost::get);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn an_estimated_term_stays_marked() {
        let tokens = Figure::Estimated { value: Tokens(10), method: EstimateMethod::LocalTokenizer };
        let wall = Figure::Estimated { value: Micros(10), method: EstimateMethod::TimeStamps };
        let cost = |action| MeasuredCost::try_from(&measurement(action, tokens, wall)).unwrap();
        assert_eq!(cost(Action::Continue).output_tokens_method, Some(EstimateMethod::LocalTokenizer));
        assert_eq!(cost(Action::Continue).pretest_method, None, "it has no pretest to estimate");
        assert_eq!(cost(Action::TestTargeted).pretest_method, Some(EstimateMethod::TimeStamps));
        assert!(!cost(Action::Submit).is_estimated());
        assert!(PairCost::of([cost(Action::Submit), cost(Action::Continue)]).estimated);
    }

    #[test]
    fn the_extremes_stay_exact_and_finite() {
        let most = CostTicks::of(Tokens(u32::MAX), Micros(u64::MAX));
        assert_eq!(most.0, u128::from(u32::MAX) * 1_171_875 + u128::from(u64::MAX) * 32);
        assert!(most.to_normalized_nearest().get().is_finite());
        assert!(CostTicks(u128::MAX).to_normalized_nearest().get().is_finite());
    }

    proptest! {
        /// Against the formula as the paper writes it, in floats from the first step.
        #[test]
        fn agrees_with_the_paper_in_floats(tokens in any::<u32>(), micros in 0u64..1 << 53) {
            let naive = f64::from(tokens) / 8192.0 + micros as f64 / 1e6 / 300.0;
            let found = f64::from(CostTicks::of(Tokens(tokens), Micros(micros)).to_normalized_nearest().get());
            prop_assert!((found - naive).abs() <= 6e-8 * naive, "{found} for {naive}");
        }

        /// Order is decided by the exact rational, also where both floats are equal.
        #[test]
        fn compares_as_the_exact_rational(a in (any::<u32>(), any::<u32>()), b in (any::<u32>(), any::<u32>())) {
            let cross = |(tokens, micros): (u32, u32)| {
                u128::from(tokens) * 300_000_000 + u128::from(micros) * 8_192
            };
            let ticks = |(tokens, micros): (u32, u32)| CostTicks::of(Tokens(tokens), Micros(u64::from(micros)));
            prop_assert_eq!(ticks(a).cmp(&ticks(b)), cross(a).cmp(&cross(b)));
        }
    }
}
