//! Text in records: bounded, and never trusted.
//!
//! Two kinds. A [`Name`] is short and outlives the buffer that it was read from, so it is stored in place. A
//! [`Text`] is borrowed: stored in place, every slot would have to be as long as the longest legal text, and one
//! evidence package would take a megabyte of stack; borrowed, it decodes without a copy and without a heap.

use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text broke a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// It is longer than its kind may be.
    TooLong {
        /// The bound, in bytes.
        most_bytes: usize,
        /// What came, in bytes.
        found_bytes: usize,
    },
    /// A name is empty.
    Empty,
    /// A name has a control character or a line break.
    ControlCharacter,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { most_bytes, found_bytes } => {
                write!(f, "at most {most_bytes} bytes of text were expected; found {found_bytes}")
            }
            Self::Empty => f.write_str("a name must not be empty"),
            Self::ControlCharacter => f.write_str("a name must not hold a control character"),
        }
    }
}

impl core::error::Error for TextError {}

/// A name of a person, a program, a policy or a commit: 1 to 64 bytes of UTF-8 without control characters.
///
/// 64 bytes hold a SHA-256 in hexadecimal, the longest name that the records carry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(heapless::String<{ Name::MAX_BYTES }>);

impl Name {
    /// The bound.
    pub const MAX_BYTES: usize = 64;

    /// # Errors
    /// [`TextError`] if `text` is empty, longer than 64 bytes, or holds a control character.
    pub fn new(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            Err(TextError::Empty)
        } else if text.chars().any(char::is_control) {
            Err(TextError::ControlCharacter)
        } else {
            let too_long = TextError::TooLong { most_bytes: Self::MAX_BYTES, found_bytes: text.len() };
            text.try_into().map(Self).map_err(|_| too_long)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name of 1 to 64 bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                Name::new(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// Free text of a record, borrowed: at most 4,096 bytes of UTF-8, line breaks and control characters included.
///
/// Whoever prints it escapes it: it may come from a repository.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// The bound: a long paragraph. What is longer is a file, and a record holds its digest.
    pub const MAX_BYTES: usize = 4_096;

    /// # Errors
    /// [`TextError::TooLong`] past 4,096 bytes.
    pub const fn new(text: &'a str) -> Result<Self, TextError> {
        if text.len() > Self::MAX_BYTES {
            Err(TextError::TooLong { most_bytes: Self::MAX_BYTES, found_bytes: text.len() })
        } else {
            Ok(Self(text))
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&'a str>::deserialize(deserializer)?;
        Self::new(text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn bounds_hold_at_the_constructor_and_on_the_wire() {
        #[rustfmt::skip]
        let cases = [ // text         name                                 text
            (String::new(),           Err(TextError::Empty),               true),
            ("a".into(),              Ok(()),                              true),
            ("two words é".into(),    Ok(()),                              true),
            ("a\nb".into(),           Err(TextError::ControlCharacter),    true),
            ("a\u{0}".into(),         Err(TextError::ControlCharacter),    true),
            ("x".repeat(64),          Ok(()),                              true),
            ("x".repeat(65),          Err(TextError::TooLong { most_bytes: 64, found_bytes: 65 }), true),
            ("x".repeat(4_096),       Err(TextError::TooLong { most_bytes: 64, found_bytes: 4_096 }), true),
            ("x".repeat(4_097),       Err(TextError::TooLong { most_bytes: 64, found_bytes: 4_097 }), false),
        ];
        for (text, name, fits) in cases {
            assert_eq!(Name::new(&text).map(|_| ()), name, "{text}");
            assert_eq!(Text::new(&text).is_ok(), fits, "{text}");
            let mut buffer = [0; 5_000];
            let wire = postcard::to_slice(text.as_str(), &mut buffer).unwrap();
            assert_eq!(postcard::from_bytes::<Name>(wire).is_ok(), name.is_ok(), "{text}");
            assert_eq!(postcard::from_bytes::<Text<'_>>(wire).is_ok(), fits, "{text}");
        }
    }

    #[test]
    fn a_name_reads_from_escaped_json() {
        assert_eq!(serde_json::from_str::<Name>(r#""a\"b""#).unwrap().as_str(), "a\"b");
        assert!(serde_json::from_str::<Name>(r#""a\nb""#).is_err());
    }
}
