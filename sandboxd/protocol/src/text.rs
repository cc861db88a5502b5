//! How a receipt reads in a text format: digests as hexadecimal digits, tables as maps by name. On the wire nothing of
//! this is there: 32 bytes are 32 bytes, and a table is its values in order.

use core::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Of a digest: 64 lower-case hexadecimal digits.
pub(crate) mod hex {
    use super::{Deserialize, Deserializer, Hex, HexVisitor, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(&Hex(bytes)) } else { bytes.serialize(serializer) }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(HexVisitor)
        } else {
            <[u8; 32]>::deserialize(deserializer)
        }
    }
}

struct Hex<'a>(&'a [u8; 32]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

struct HexVisitor;

impl Visitor<'_> for HexVisitor {
    type Value = [u8; 32];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 hexadecimal digits")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<[u8; 32], E> {
        from_hex(text.as_bytes()).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// The 32 bytes that 64 hexadecimal digits stand for.
pub(crate) fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = digits.try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for &digit in pair {
            *byte = *byte << 4 | char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok())?;
        }
    }
    Some(bytes)
}

/// What a table is indexed by.
pub(crate) trait Key: Copy + Serialize + for<'de> Deserialize<'de> + 'static {
    /// Every key, in the order of the table.
    const ALL: &'static [Self];

    /// Where the key's value stands.
    fn index(self) -> usize;
}

/// Of a table with a value a key: a map.
pub(crate) mod by_key {
    use super::{Deserialize, Deserializer, Key, Serialize, Serializer, Table};

    pub(crate) fn serialize<K: Key, V: Serialize, S: Serializer>(
        values: &[V],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(K::ALL.iter().copied().zip(values))
    }

    pub(crate) fn deserialize<'de, K: Key, V, D, const N: usize>(deserializer: D) -> Result<[V; N], D::Error>
    where
        V: Deserialize<'de> + Copy,
        D: Deserializer<'de>,
    {
        deserializer.deserialize_map(Table::<K, V, N>(core::marker::PhantomData))
    }
}

struct Table<K, V, const N: usize>(core::marker::PhantomData<(K, V)>);

impl<'de, K: Key, V: Deserialize<'de> + Copy, const N: usize> Visitor<'de> for Table<K, V, N> {
    type Value = [V; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of {N} names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<[V; N], A::Error> {
        let mut values = [None; N];
        while let Some((key, value)) = map.next_entry::<K, V>()? {
            if values[key.index()].replace(value).is_some() {
                return Err(de::Error::custom("a name stands twice"));
            }
        }
        let mut found = 0;
        let filled = values.map(|value| {
            found += usize::from(value.is_some());
            value
        });
        match filled.iter().flatten().next().copied() {
            Some(any) if found == N => Ok(filled.map(|value| value.unwrap_or(any))),
            _ => Err(de::Error::invalid_length(found, &self)),
        }
    }
}
