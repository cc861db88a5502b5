//! A list of C strings in one borrowed slice: how `argv` and the environment travel.

use core::ffi::CStr;
use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Strings without NUL, each followed by one NUL, one after another: `b"ls\0-l\0"` is two strings.
///
/// The layout is the one in which the kernel keeps `argv`, so that decoding allocates nothing, however many strings
/// there are: ten thousand of them cost what their bytes cost.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Strings<'a>(&'a [u8]);

/// The last string of a packed list had no NUL after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTerminated;

impl fmt::Display for NotTerminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the last string of a packed list must end in a NUL byte")
    }
}

impl core::error::Error for NotTerminated {}

impl<'a> Strings<'a> {
    /// Views `packed` as a list of strings; no bytes is the empty list.
    ///
    /// # Errors
    /// [`NotTerminated`] if there are bytes and the last is not NUL.
    pub const fn new(packed: &'a [u8]) -> Result<Self, NotTerminated> {
        match packed {
            [] | [.., 0] => Ok(Self(packed)),
            _ => Err(NotTerminated),
        }
    }

    /// The packed bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there is no string.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The strings in order.
    #[must_use]
    pub const fn iter(&self) -> Iter<'a> {
        Iter { rest: self.0 }
    }
}

impl<'a> IntoIterator for &Strings<'a> {
    type Item = &'a CStr;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Strings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterates over [`Strings`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a CStr;
    fn next(&mut self) -> Option<&'a CStr> {
        // `None` at the end; before it there is a NUL, since the constructor saw the last one.
        let string = CStr::from_bytes_until_nul(self.rest).ok()?;
        self.rest = &self.rest[string.count_bytes() + 1..];
        Some(string)
    }
}

impl Serialize for Strings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Strings<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Packed;
        impl<'de> Visitor<'de> for Packed {
            type Value = Strings<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("packed NUL-terminated strings")
            }
            fn visit_borrowed_bytes<E: de::Error>(self, packed: &'de [u8]) -> Result<Strings<'de>, E> {
                Strings::new(packed).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn packed_bytes_are_a_list() {
        let cases: [(&str, Option<&[&CStr]>); 6] = [
            ("", Some(&[])),
            ("\0", Some(&[c""])),
            ("ls\0-l\0", Some(&[c"ls", c"-l"])),
            ("\0\0a\0", Some(&[c"", c"", c"a"])),
            ("ls", None),
            ("ls\0-l", None),
        ];
        for (packed, expected) in cases {
            let found = Strings::new(packed.as_bytes()).map(|strings| strings.iter().collect::<Vec<_>>());
            assert_eq!(found.as_deref().ok(), expected, "{packed:?}");
        }
    }
}
