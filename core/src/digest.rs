//! A SHA-256 digest. This crate only carries it: whoever has the bytes computes it.

use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 32 bytes of SHA-256; 64 lower-case hexadecimal digits in text formats, 32 raw bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// Text that should be a digest was not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADigest;

impl fmt::Display for NotADigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a SHA-256 digest is 64 hexadecimal digits")
    }
}

impl core::error::Error for NotADigest {}

impl Digest {
    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`NotADigest`] for any other text.
    pub fn from_hex(text: &str) -> Result<Self, NotADigest> {
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| NotADigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| (digit as char).to_digit(16).ok_or(NotADigest);
            *byte = u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).map_err(|_| NotADigest)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Hex;
        impl Visitor<'_> for Hex {
            type Value = Digest;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hexadecimal digits")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
                Digest::from_hex(text).map_err(E::custom)
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Hex)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn hexadecimal_in_text_raw_on_the_wire() {
        let digest = Digest(core::array::from_fn(|i| u8::try_from(i * 7).unwrap()));
        let hex = digest.to_string();
        assert_eq!(&hex[..8], "00070e15");
        assert_eq!(Digest::from_hex(&hex), Ok(digest));
        assert_eq!(serde_json::from_str::<Digest>(&serde_json::to_string(&digest).unwrap()).unwrap(), digest);
        let mut wire = [0; 40];
        assert_eq!(postcard::to_slice(&digest, &mut wire).unwrap(), &digest.0);
        for bad in ["", "00", &hex[1..], &hex.replace('0', "g"), &hex.replace("00", "é")] {
            assert_eq!(Digest::from_hex(bad), Err(NotADigest), "{bad}");
        }
    }
}
