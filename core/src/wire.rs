//! Records on the wire: postcard, one record a byte string, bounded, versioned, and nothing after it.
//!
//! Postcard writes the position of an enum's variant, so variants are only ever appended, and a record's fields are
//! never reordered: what changes gets a new version. `tests/golden_wire.rs` pins the bytes.

use core::fmt;

use postcard::ser_flavors::Flavor;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest record that is read or written. An evidence package with every list full of long texts fits.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// Why bytes are no record, or a record got no bytes. Variants are only ever appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireError {
    /// The bytes are more than a record may have.
    TooLong {
        /// What came.
        found_bytes: u64,
    },
    /// The bytes end within the record.
    Truncated,
    /// The bytes hold a value that the record's type refuses.
    Refused,
    /// Something follows the record.
    TrailingBytes {
        /// How much.
        found_bytes: u64,
    },
    /// The record does not fit the buffer, or breaks the bound.
    BufferFull {
        /// The room that there was.
        room_bytes: u64,
    },
    /// The bytes hold a legal record, written otherwise than this crate writes it: a count with leading zeros, say.
    NotCanonical,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { found_bytes } => {
                write!(f, "a record has at most {MAX_RECORD_BYTES} bytes; found {found_bytes}")
            }
            Self::Truncated => f.write_str("the bytes end within the record"),
            Self::Refused => f.write_str("the bytes hold a value that the record refuses"),
            Self::TrailingBytes { found_bytes } => {
                write!(f, "nothing was expected after the record; found {found_bytes} bytes")
            }
            Self::BufferFull { room_bytes } => write!(f, "the record does not fit in {room_bytes} bytes"),
            Self::NotCanonical => f.write_str("the record is written otherwise than it would be written here"),
        }
    }
}

impl core::error::Error for WireError {}

/// Reads the one record that `bytes` are, borrowing its texts.
///
/// One record has one byte string: other spellings that postcard would take are refused, since two digests of one
/// receipt would be two receipts.
///
/// # Errors
/// [`WireError`] for any bytes that are not exactly one legal record. No bytes panic.
pub fn decode<'a, T: Deserialize<'a> + Serialize>(bytes: &'a [u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(WireError::TooLong { found_bytes: bytes.len() as u64 });
    }
    let (record, rest) = postcard::take_from_bytes(bytes).map_err(|error| match error {
        postcard::Error::DeserializeUnexpectedEnd => WireError::Truncated,
        _ => WireError::Refused,
    })?;
    if !rest.is_empty() {
        return Err(WireError::TrailingBytes { found_bytes: rest.len() as u64 });
    }
    postcard::serialize_with_flavor(&record, Same { rest: bytes }).map_err(|_| WireError::NotCanonical)?;
    Ok(record)
}

/// A place to serialize to that only looks whether the bytes are the expected ones.
struct Same<'a> {
    rest: &'a [u8],
}

impl Flavor for Same<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.rest = self.rest.strip_prefix(bytes).ok_or(postcard::Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(postcard::Error::SerializeBufferFull) }
    }
}

/// Reads a record that borrows nothing.
///
/// # Errors
/// As [`decode`].
pub fn decode_owned<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, WireError> {
    decode(bytes)
}

/// Writes one record to the front of `buffer` and returns the bytes that it took.
///
/// # Errors
/// [`WireError::BufferFull`] if it does not fit, or would break [`MAX_RECORD_BYTES`].
pub fn encode<'b, T: Serialize + ?Sized>(record: &T, buffer: &'b mut [u8]) -> Result<&'b mut [u8], WireError> {
    let room = buffer.len().min(MAX_RECORD_BYTES);
    let full = WireError::BufferFull { room_bytes: room as u64 };
    postcard::to_slice(record, &mut buffer[..room]).map_err(|_| full)
}

/// The version of a record, as its first field. Another number on the wire is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Version<const N: u16>;

impl<const N: u16> Version<N> {
    /// The number.
    pub const NUMBER: u16 = N;
}

impl<const N: u16> Serialize for Version<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(N)
    }
}

impl<'de, const N: u16> Deserialize<'de> for Version<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = u16::deserialize(deserializer)?;
        if found == N {
            Ok(Self)
        } else {
            Err(de::Error::custom(format_args!("record version {N} was expected; found {found}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;

    #[test]
    fn each_failure_has_its_name() {
        type Record = (Version<2>, u8);
        #[rustfmt::skip]
        let cases = [ // bytes                     reads as
            (vec![2, 9],                           Ok((Version, 9))),
            (vec![2],                              Err(WireError::Truncated)),
            (vec![],                               Err(WireError::Truncated)),
            (vec![3, 9],                           Err(WireError::Refused)), // another version
            (vec![0x82, 0, 9],                     Err(WireError::NotCanonical)),
            (vec![2, 9, 0, 0],                     Err(WireError::TrailingBytes { found_bytes: 2 })),
            (vec![2; MAX_RECORD_BYTES + 1],        Err(WireError::TooLong { found_bytes: 1_048_577 })),
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode_owned::<Record>(&bytes), expected, "{} bytes", bytes.len());
        }
        let record: Record = (Version, 9);
        assert_eq!(encode(&record, &mut [0; 8]).unwrap(), [2, 9]);
        assert_eq!(encode(&record, &mut [0; 1]), Err(WireError::BufferFull { room_bytes: 1 }));
    }

    #[test]
    fn a_version_in_text_says_what_it_expected() {
        assert_eq!(serde_json::to_string(&Version::<3>).unwrap(), "3");
        let error = serde_json::from_str::<Version<3>>("4").unwrap_err().to_string();
        assert_eq!(error, "record version 3 was expected; found 4");
    }
}
