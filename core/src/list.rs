//! A list with a bound, stored in place.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Serialize};

/// At most `N` values. The wire builds no longer one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
pub struct List<T, const N: usize>(heapless::Vec<T, N>);

/// A list has no room for another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListFull {
    /// How many it holds at most.
    pub most: usize,
}

impl fmt::Display for ListFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} values is full", self.most)
    }
}

impl core::error::Error for ListFull {}

impl<T, const N: usize> List<T, N> {
    /// A list without values.
    #[must_use]
    pub const fn new() -> Self {
        Self(heapless::Vec::new())
    }

    /// Adds `value` at the end.
    ///
    /// # Errors
    /// [`ListFull`] if there are `N` already.
    pub fn push(&mut self, value: T) -> Result<(), ListFull> {
        self.0.push(value).map_err(|_| ListFull { most: N })
    }

    /// The values of an iterator, in order.
    ///
    /// # Errors
    /// [`ListFull`] if there are more than `N`.
    pub fn try_from_iter(values: impl IntoIterator<Item = T>) -> Result<Self, ListFull> {
        values.into_iter().try_fold(Self::new(), |mut list, value| list.push(value).map(|()| list))
    }
}

impl<T, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_at_the_constructor_and_on_the_wire() {
        for count in 0..6_u8 {
            let list = List::<u8, 3>::try_from_iter(0..count);
            assert_eq!(list.is_ok(), count <= 3, "{count}");
            assert!(list.is_err() || list.is_ok_and(|it| it.iter().copied().eq(0..count)));
            let mut wire = std::vec![count];
            wire.extend(0..count);
            assert_eq!(postcard::from_bytes::<List<u8, 3>>(&wire).is_ok(), count <= 3, "{count}");
        }
        let endless = [0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(postcard::from_bytes::<List<(), 3>>(&endless).is_err(), "a length without bytes behind it");
    }
}
