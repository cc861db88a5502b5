//! The five actions, in the one order that every head, bit set and table uses.

use core::fmt;
use core::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// What may happen next to a candidate patch (paper, "Actions").
///
/// The discriminant is the row of both heads and the bit in an [`ActionSet`]. Variants are only ever appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Action {
    /// The current patch is the answer.
    Submit = 0,
    /// Restore the candidate and its visible history, run the repair policy.
    Continue = 1,
    /// Restore the initial repository, begin afresh without the earlier history.
    Retry = 2,
    /// Restore the candidate, run the targeted public tests, append their real output, then continue.
    TestTargeted = 3,
    /// Restore the candidate, run the broader public tests, append their real output, then continue.
    TestRegression = 4,
}

impl Action {
    /// How many actions there are: the rows of each head.
    pub const COUNT: usize = 5;

    /// Every action, in the order of heads, bits and tables.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Submit, Self::Continue, Self::Retry, Self::TestTargeted, Self::TestRegression];

    /// The row of this action in a head or a table: 0 to 4.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The action whose row is `index`; `None` past the last.
    #[must_use]
    pub const fn from_index(index: usize) -> Option<Self> {
        match index {
            0 => Some(Self::Submit),
            1 => Some(Self::Continue),
            2 => Some(Self::Retry),
            3 => Some(Self::TestTargeted),
            4 => Some(Self::TestRegression),
            _ => None,
        }
    }

    /// The name in files, tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Continue => "continue",
            Self::Retry => "retry",
            Self::TestTargeted => "test_targeted",
            Self::TestRegression => "test_regression",
        }
    }

    /// Whether the action begins with a prescribed public test, which is charged to it.
    #[must_use]
    pub const fn has_pretest(self) -> bool {
        matches!(self, Self::TestTargeted | Self::TestRegression)
    }

    /// Whether the action ends the task: only `submit` does.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Submit)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of actions: bit `i` stands for [`Action::from_index`]`(i)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")] // the wire must not build a set with a sixth bit
pub struct ActionSet(u8);

impl ActionSet {
    /// No action at all.
    pub const EMPTY: Self = Self(0);
    /// All five.
    pub const ALL: Self = Self(0b1_1111);

    /// The set whose bits are `bits`; `None` if a bit beyond the fifth is set.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// Bit `i` is set if and only if action `i` is a member.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// This set and `action`.
    #[must_use]
    pub const fn with(self, action: Action) -> Self {
        Self(self.0 | 1 << action.index())
    }

    /// This set less `action`.
    #[must_use]
    pub const fn without(self, action: Action) -> Self {
        Self(self.0 & !(1 << action.index()))
    }

    /// Whether `action` is a member.
    #[must_use]
    pub const fn contains(self, action: Action) -> bool {
        self.0 & 1 << action.index() != 0
    }

    /// The members that `other` has too.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is no member.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, in [`Action::ALL`]'s order.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |&action| self.contains(action))
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> Self {
        actions.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for ActionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl From<ActionSet> for u8 {
    fn from(set: ActionSet) -> Self {
        set.0
    }
}

/// A set of actions came with a bit beyond the fifth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownActionBit(pub u8);

impl fmt::Display for UnknownActionBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "action set {:#b} has a bit beyond the five actions", self.0)
    }
}

impl core::error::Error for UnknownActionBit {}

impl TryFrom<u8> for ActionSet {
    type Error = UnknownActionBit;
    fn try_from(bits: u8) -> Result<Self, UnknownActionBit> {
        Self::from_bits(bits).ok_or(UnknownActionBit(bits))
    }
}

/// One `T` for each action, indexed by [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PerAction<T>(pub [T; Action::COUNT]);

impl<T> PerAction<T> {
    /// One value a call, in order.
    pub fn from_fn(mut value: impl FnMut(Action) -> T) -> Self {
        Self(Action::ALL.map(&mut value))
    }

    /// Each action with its value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Action, &T)> {
        Action::ALL.into_iter().zip(self.0.iter())
    }
}

impl<T> Index<Action> for PerAction<T> {
    type Output = T;
    fn index(&self, action: Action) -> &T {
        &self.0[action.index()]
    }
}

impl<T> IndexMut<Action> for PerAction<T> {
    fn index_mut(&mut self, action: Action) -> &mut T {
        &mut self.0[action.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_names_and_bits_are_one_table() {
        #[rustfmt::skip]
        let table = [ // action                 index  name               bit
            (Action::Submit,                    0,     "submit",          0b0_0001),
            (Action::Continue,                  1,     "continue",        0b0_0010),
            (Action::Retry,                     2,     "retry",           0b0_0100),
            (Action::TestTargeted,              3,     "test_targeted",   0b0_1000),
            (Action::TestRegression,            4,     "test_regression", 0b1_0000),
        ];
        assert_eq!(table.map(|row| row.0), Action::ALL);
        for (action, index, name, bit) in table {
            assert_eq!(action.index(), index, "{name}");
            assert_eq!(Action::from_index(index), Some(action), "{name}");
            assert_eq!(action.name(), name);
            assert_eq!(serde_json::to_value(action).unwrap(), name);
            assert_eq!(ActionSet::EMPTY.with(action).bits(), bit, "{name}");
        }
        assert_eq!(Action::from_index(5), None);
    }

    #[test]
    fn a_sixth_bit_is_refused_everywhere() {
        for bits in 0..=u8::MAX {
            let known = bits < 32;
            assert_eq!(ActionSet::from_bits(bits).is_some(), known, "{bits}");
            assert_eq!(serde_json::from_value::<ActionSet>(bits.into()).is_ok(), known, "{bits}");
            assert_eq!(postcard::from_bytes::<ActionSet>(&[bits]).is_ok(), known, "{bits}");
        }
    }

    #[test]
    fn a_set_is_its_members() {
        for bits in 0..32 {
            let set = ActionSet::from_bits(bits).unwrap();
            assert_eq!(set.iter().collect::<ActionSet>(), set);
            assert_eq!(set.iter().count(), set.len());
            assert_eq!(set.is_empty(), bits == 0);
            for action in Action::ALL {
                assert_eq!(set.contains(action), set.iter().any(|member| member == action));
                assert!(!set.without(action).contains(action));
                assert!(set.with(action).contains(action));
            }
        }
    }
}
