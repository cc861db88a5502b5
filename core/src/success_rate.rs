//! A success rate that is compared without rounding.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::outcome::HalfOutcomes;

/// A success rate as it was counted: half outcomes over twice the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawRate", into = "RawRate")]
pub struct SuccessRate(RawRate);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRate {
    half_outcomes: u64,
    states: u32,
}

/// A success rate came without states, or with more successes than they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASuccessRate {
    /// Half outcomes that ended solved.
    pub half_outcomes: u64,
    /// States.
    pub states: u32,
}

impl fmt::Display for NotASuccessRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0 to 2 half outcomes a state were expected; found {} on {}", self.half_outcomes, self.states)
    }
}

impl core::error::Error for NotASuccessRate {}

impl SuccessRate {
    /// # Errors
    /// [`NotASuccessRate`] if there is no state, or there are more than two half outcomes a state.
    pub const fn new(half_outcomes: u64, states: u32) -> Result<Self, NotASuccessRate> {
        if states > 0 && half_outcomes <= HalfOutcomes::PER_STATE as u64 * states as u64 {
            Ok(Self(RawRate { half_outcomes, states }))
        } else {
            Err(NotASuccessRate { half_outcomes, states })
        }
    }

    /// Half outcomes that ended solved.
    #[must_use]
    pub const fn half_outcomes(self) -> u64 {
        self.0.half_outcomes
    }

    /// States that were counted.
    #[must_use]
    pub const fn states(self) -> u32 {
        self.0.states
    }

    /// Whether this rate is higher than `other`. Each product is below 2^33 * 2^32.
    #[must_use]
    pub const fn exceeds(self, other: Self) -> bool {
        self.half_outcomes() as u128 * other.states() as u128 > other.half_outcomes() as u128 * self.states() as u128
    }

    /// Whether this rate is at least `bar` minus `points` percentage points, inclusive:
    /// `s / 2n >= b / 2m - t / 100`, which times `200 n m` is `100 s m + 2 t n m >= 100 b n`.
    #[must_use]
    pub const fn is_within(self, points: u8, bar: Self) -> bool {
        let (s, n) = (self.half_outcomes() as u128, self.states() as u128);
        let (b, m) = (bar.half_outcomes() as u128, bar.states() as u128);
        100 * s * m + 2 * points as u128 * n * m >= 100 * b * n
    }
}

impl TryFrom<RawRate> for SuccessRate {
    type Error = NotASuccessRate;
    fn try_from(raw: RawRate) -> Result<Self, NotASuccessRate> {
        Self::new(raw.half_outcomes, raw.states)
    }
}

impl From<SuccessRate> for RawRate {
    fn from(rate: SuccessRate) -> Self {
        rate.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_different_counts_compare_exactly() {
        let rate = |halves, states| SuccessRate::new(halves, states).unwrap();
        #[rustfmt::skip]
        let cases = [ // rate              bar                exceeds  within 2 points
            (rate(58, 50),                 rate(60, 50),      false,   true),  // 58 % and 60 %
            (rate(57, 50),                 rate(60, 50),      false,   false),
            (rate(1, 1),                   rate(50, 50),      false,   true),  // a half is a half
            (rate(2, 1),                   rate(99, 50),      true,    true),
            (rate(0, 1),                   rate(2, 50),       false,   true),  // 0 % and 2 %
            (rate(0, 1),                   rate(3, 50),       false,   false),
            (rate(u64::from(u32::MAX), u32::MAX), rate(u64::from(u32::MAX) - 1, u32::MAX), true, true),
        ];
        for (rate, bar, exceeds, within) in cases {
            assert_eq!(rate.exceeds(bar), exceeds, "{rate:?} {bar:?}");
            assert_eq!(rate.is_within(2, bar), within, "{rate:?} {bar:?}");
        }
    }

    #[test]
    fn no_rate_without_states_or_beyond_all_of_them() {
        for (halves, states, legal) in [(0, 0, false), (0, 1, true), (2, 1, true), (3, 1, false)] {
            assert_eq!(SuccessRate::new(halves, states).is_ok(), legal, "{halves} on {states}");
            let wire = [u8::try_from(halves).unwrap(), u8::try_from(states).unwrap()];
            assert_eq!(postcard::from_bytes::<SuccessRate>(&wire).is_ok(), legal, "{halves} on {states}");
        }
    }
}
