//! One safetensors file: eight bytes of length, a JSON header, then the tensors without a gap.
//!
//! The `safetensors` crate reads the same format, and the tests hold this reader against it. It is not used here
//! because its errors leave out what ours must name (the tensor of an unknown type, the bytes that a truncated file
//! lacks), because it takes headers of 100 MB, and because offsets near `u64::MAX` overflow in its last check.

use std::collections::btree_map::{self, BTreeMap};
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};

use crate::bundle::error::BundleError;
use crate::bundle::source::FileBytes;

/// Bytes of the header, at most. Qwen3-0.6B's has 36,000; the largest Qwen3's single shards stay under 1 MB.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// How a tensor's elements are stored, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Where one tensor lies in its file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Bytes of the file: `shape` times the size of an element, and inside the file.
    pub(crate) bytes: Range<usize>,
}

/// A safetensors file whose header was checked against its length.
pub(crate) struct TensorFile {
    /// The file, as a message names it.
    pub(crate) file: String,
    pub(crate) bytes: FileBytes,
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl TensorFile {
    /// Checks the header; reads no element.
    pub(crate) fn parse(file: String, bytes: FileBytes) -> Result<Self, BundleError> {
        let available = bytes.len() as u64;
        let truncated = |what: &str, expected| {
            Err(BundleError::Truncated { file: file.clone(), what: what.to_owned(), expected, found: available })
        };
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return truncated("the length of the header", 8);
        };
        let length = u64::from_le_bytes(*length);
        if length > HEADER_BYTES_MAX {
            // As a length this is nonsense, so it is no measure of how much is missing.
            let found = usize::try_from(length).unwrap_or(usize::MAX);
            let most = usize::try_from(HEADER_BYTES_MAX).unwrap_or(usize::MAX);
            return Err(BundleError::TooLarge { file: format!("{file} (header)"), most, found });
        }
        let Some(header) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
            return truncated("the header", 8 + length);
        };
        let Header(raw) = serde_json::from_slice(header)
            .map_err(|source| BundleError::Json { file: format!("{file} (header)"), source })?;

        let data_start = 8 + header.len();
        let mut entries = BTreeMap::new();
        for (tensor, raw) in &raw {
            entries.insert(tensor.clone(), raw.check(&file, tensor, data_start)?);
        }
        check_coverage(&file, &raw, available - data_start as u64)?;
        Ok(Self { file, bytes, entries })
    }
}

/// Tensors lie one after the other and fill the file, so no byte belongs to two tensors or to none.
fn check_coverage(file: &str, raw: &BTreeMap<String, RawEntry>, data_bytes: u64) -> Result<(), BundleError> {
    let mut by_place: Vec<_> = raw.iter().collect();
    by_place.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    for (tensor, entry) in &by_place {
        if entry.data_offsets[0] != end {
            return Err(BundleError::Offsets {
                file: file.to_owned(),
                tensor: (*tensor).clone(),
                expected: format!("a begin at {end}, where the tensor before it ends,"),
                found: entry.data_offsets,
            });
        }
        end = entry.data_offsets[1];
        if end > data_bytes {
            return Err(BundleError::Truncated {
                file: file.to_owned(),
                what: format!("tensor `{tensor}`"),
                expected: end,
                found: data_bytes,
            });
        }
    }
    if end < data_bytes {
        return Err(BundleError::TrailingBytes { file: file.to_owned(), expected: end, found: data_bytes });
    }
    Ok(())
}

/// The header as it stands.
struct Header(BTreeMap<String, RawEntry>);

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl RawEntry {
    /// An [`Entry`] whose span is its shape's; whether the file is that long is [`check_coverage`]'s question.
    fn check(&self, file: &str, tensor: &str, data_start: usize) -> Result<Entry, BundleError> {
        let Some(dtype) = Dtype::parse(&self.dtype) else {
            let (file, tensor) = (file.to_owned(), tensor.to_owned());
            return Err(BundleError::Dtype { file, tensor, found: self.dtype.clone() });
        };
        let element = dtype.size() as u64;
        let size = self.shape.iter().try_fold(element, |product, &dimension| product.checked_mul(dimension));
        let [begin, end] = self.data_offsets;
        let bytes = (end.checked_sub(begin) == size)
            .then(|| {
                Some(data_start.checked_add(begin.try_into().ok()?)?..data_start.checked_add(end.try_into().ok()?)?)
            })
            .flatten();
        let shape = self.shape.iter().map(|&dimension| usize::try_from(dimension).ok()).collect();
        match (bytes, shape) {
            (Some(bytes), Some(shape)) => Ok(Entry { dtype, shape, bytes }),
            _ => Err(BundleError::Offsets {
                file: file.to_owned(),
                tensor: tensor.to_owned(),
                expected: match size {
                    Some(size) => format!("{size} bytes, as {} {:?} needs,", self.dtype, self.shape),
                    None => format!("a shape smaller than {:?}", self.shape),
                },
                found: self.data_offsets,
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(tensor) = map.next_key::<String>()? {
                    if tensor == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else if let btree_map::Entry::Vacant(entry) = entries.entry(tensor) {
                        entry.insert(map.next_value()?);
                    } else {
                        // Which of the two a reader takes is its own affair, so two readers could differ.
                        return Err(de::Error::custom("a tensor is described twice"));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::borrow::Cow;

    fn parse(bytes: &[u8]) -> Result<TensorFile, BundleError> {
        TensorFile::parse("f".into(), FileBytes::from(Cow::Owned(bytes.to_vec())))
    }

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 0);
        bytes
    }

    #[test]
    fn each_defect_of_a_header_is_its_own_error() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let good = one("F32", "[2,3]", "[0,24]");
        let twice = format!("{},{}", &good[..good.len() - 1], &good[1..]);
        let near_overflow =
            r#"{"t":{"dtype":"F32","shape":[4611686018427387903],"data_offsets":[0,18446744073709551612]}}"#;
        #[rustfmt::skip]
        let cases: [(&str, Vec<u8>, &str); 15] = [
            ("sound",                         file(&good, 24),                                   ""),
            ("sound, with metadata",          file(&good.replacen('{', r#"{"__metadata__":{"format":"pt"},"#, 1), 24), ""),
            ("no length",                     vec![1, 0, 0],                                     "is truncated: the length of the header needs 8 bytes; found 3"),
            ("header past the end",           file(&good, 24)[..20].to_vec(),                    "the header needs"),
            ("absurd length",                 vec![0xff; 64],                                    "at most 16777216"),
            ("not JSON",                      file("{]", 0),                                     "JSON"),
            ("not UTF-8",                     [&[2, 0, 0, 0, 0, 0, 0, 0][..], b"\xff\xfe"].concat(), "JSON"),
            ("a tensor twice",                file(&twice, 24),                                  "JSON"),
            ("unknown type",                  file(&one("F8_E4M3", "[24]", "[0,24]"), 24),        "tensor `t` is stored as `F8_E4M3`"),
            ("shape and span differ",         file(&one("F32", "[2,3]", "[0,20]"), 20),           "24 bytes, as F32 [2, 3] needs"),
            ("shape overflows",               file(&one("F32", "[4294967296,4294967296]", "[0,0]"), 0), "a shape smaller than"),
            ("a gap",                         file(&one("F32", "[2,3]", "[4,28]"), 28),           "a begin at 0"),
            ("truncated tensor",              file(&good, 23),                                   "tensor `t` needs 24 bytes; found 23"),
            ("trailing bytes",                file(&good, 25),                                   "has 25 bytes of tensors"),
            ("offsets near 2^64",             file(near_overflow, 0),                            "t"),
        ];
        for (name, bytes, message) in cases {
            match parse(&bytes) {
                Ok(_) => assert_eq!(message, "", "{name}"),
                Err(error) => assert!(!message.is_empty() && error.to_string().contains(message), "{name}: {error}"),
            }
        }
    }

    fn sound() -> Vec<u8> {
        let data = [7_u8; 64];
        let view = |dtype, shape: &[usize], bytes| {
            safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &data[..bytes]).unwrap()
        };
        let tensors = [
            ("a", view(safetensors::Dtype::F32, &[4, 4], 64)),
            ("b", view(safetensors::Dtype::BF16, &[3], 6)),
            ("c", view(safetensors::Dtype::F16, &[1, 5], 10)),
        ];
        safetensors::serialize(tensors, None).unwrap()
    }

    proptest! {
        /// Any damage gives an error or the very entries that the `safetensors` crate sees; never a panic.
        #[test]
        fn never_takes_what_the_safetensors_crate_refuses(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = sound();
            for (place, value) in edits {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(ours) = parse(&bytes) {
                let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                prop_assert_eq!(ours.entries.len(), theirs.len());
                for (name, entry) in &ours.entries {
                    let view = theirs.tensor(name).unwrap();
                    prop_assert_eq!(&entry.shape, view.shape());
                    prop_assert_eq!(&bytes[entry.bytes.clone()], view.data());
                }
            }
        }

        /// Bytes of no format at all.
        #[test]
        fn any_bytes_are_an_error_or_a_file(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(parse(&bytes).map_or(true, |file| file.entries.len() <= bytes.len()));
        }
    }
}
