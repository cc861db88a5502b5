//! Numbers with their unit in the type. Times and counts stay integers until a formula begins.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A count of model tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u32);

/// A duration in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// A duration of `seconds` whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as u64 * 1_000_000)
    }
}

/// A point in time: whole seconds since 1970-01-01 UTC. This crate has no clock; whoever has one says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number that must be finite and in a range was not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// What was to be built: `probability`, `normalized cost`, `lambda`.
    pub what: &'static str,
    /// The range, in words.
    pub expected: &'static str,
    /// The number that came.
    pub found: f32,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}; found {}", self.what, self.expected, self.found)
    }
}

impl core::error::Error for OutOfRange {}

/// Builds a finite `f32` newtype with an inclusive range; the wire goes through the same constructor.
macro_rules! ranged {
    ($(#[$doc:meta])* $name:ident: $what:literal, $min:expr, $max:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f32", into = "f32")]
        pub struct $name(f32);

        impl $name {
            /// # Errors
            #[doc = concat!("[`OutOfRange`] if `value` is not ", $expected, ".")]
            pub const fn new(value: f32) -> Result<Self, OutOfRange> {
                if $min <= value && value <= $max { // false for NaN
                    Ok(Self(value + 0.0)) // -0 becomes 0: equal numbers have equal bytes, hence equal digests
                } else {
                    Err(OutOfRange { what: $what, expected: $expected, found: value })
                }
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> f32 {
                self.0
            }
        }

        impl TryFrom<f32> for $name {
            type Error = OutOfRange;
            fn try_from(value: f32) -> Result<Self, OutOfRange> {
                Self::new(value)
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

ranged! {
    /// Probability that the task ends solved: finite, in `[0, 1]`.
    Probability: "probability", 0.0, 1.0, "finite and in [0, 1]"
}

ranged! {
    /// `C = N_new / 8192 + T_pretest / 300`, or an estimate of it: finite, not negative, no unit.
    ///
    /// A control objective: not money, not total compute (paper, "Cost and action choice").
    NormalizedCost: "normalized cost", 0.0, f32::MAX, "finite and not negative"
}

ranged! {
    /// How much success one unit of normalized cost is worth: finite, not negative.
    Lambda: "lambda", 0.0, f32::MAX, "finite and not negative"
}

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);

    /// The nearest probability to a number that is not NaN.
    pub(crate) const fn saturating(value: f32) -> Self {
        debug_assert!(!value.is_nan());
        Self(value.clamp(0.0, 1.0))
    }
}

impl NormalizedCost {
    /// What `submit` costs.
    pub const ZERO: Self = Self(0.0);

    /// The nearest cost to a number that is not NaN; infinity becomes the largest `f32`.
    pub(crate) const fn saturating(value: f32) -> Self {
        debug_assert!(!value.is_nan());
        Self(value.clamp(0.0, f32::MAX))
    }
}

impl Lambda {
    /// Cost does not count: what a missed lambda gate falls back to.
    pub const ZERO: Self = Self(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_at_the_constructor_and_on_the_wire() {
        #[rustfmt::skip]
        let cases = [ // value            probability  cost and lambda
            (0.0,                         true,        true),
            (-0.0,                        true,        true),
            (1.0,                         true,        true),
            (1.000_000_1,                 false,       true),
            (-1e-9,                       false,       false),
            (f32::MAX,                    false,       true),
            (f32::INFINITY,               false,       false),
            (f32::NEG_INFINITY,           false,       false),
            (f32::NAN,                    false,       false),
        ];
        for (value, probability, cost) in cases {
            let wire = value.to_le_bytes();
            assert_eq!(Probability::new(value).is_ok(), probability, "{value}");
            assert_eq!(NormalizedCost::new(value).is_ok(), cost, "{value}");
            assert_eq!(Lambda::new(value).is_ok(), cost, "{value}");
            assert_eq!(postcard::from_bytes::<Probability>(&wire).is_ok(), probability, "{value}");
            assert_eq!(postcard::from_bytes::<NormalizedCost>(&wire).is_ok(), cost, "{value}");
            assert_eq!(postcard::from_bytes::<Lambda>(&wire).is_ok(), cost, "{value}");
        }
        assert_eq!(Probability::new(-0.0).unwrap().get().to_bits(), 0, "equal numbers have equal bytes");
    }
}
