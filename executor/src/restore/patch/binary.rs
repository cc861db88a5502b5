//! Git's binary hunks: base85 around zlib around a literal or a delta.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use sha1::{Digest as _, Sha1};

use crate::restore::patch::{Binary, Body, FILE_BYTES_MAX, ObjectId, PatchError};
use crate::restore::path::TreePath;

/// Git's alphabet: five digits for four bytes, most significant first.
const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Bytes on one line, as many as its first letter can count.
const LINE_BYTES: usize = 52;
/// zlib's own default, so that sizes are those of git.
const LEVEL: u8 = 6;

impl ObjectId {
    /// The name of `content`.
    pub(super) fn of(content: &[u8]) -> Self {
        let mut blob = Sha1::new();
        blob.update(format!("blob {}\0", content.len()));
        blob.update(content);
        Self(blob.finalize().into())
    }

    /// 40 hexadecimal digits; `None` for an abbreviation.
    pub(super) fn parse(digits: &[u8]) -> Option<Self> {
        let mut id = [0; 20];
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        if pairs.len() != id.len() {
            return None;
        }
        for (byte, [high, low]) in id.iter_mut().zip(pairs) {
            let value = |digit: &u8| char::from(*digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
            *byte = (value(high)? << 4) | value(low)?;
        }
        Some(Self(id))
    }

    /// All zeros: there is no file on this side.
    pub(super) fn is_none(self) -> bool {
        self.0 == [0; 20]
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Binary {
    /// The content after the hunk; `old` is the one before, `None` where there is no file.
    pub(super) fn apply(&self, path: &TreePath, old: Option<&[u8]>) -> Result<Vec<u8>, PatchError> {
        Self::expect(path, "before", self.old, old)?;
        let new = match &self.body {
            Body::Literal(content) => content.clone(),
            Body::Delta(delta) => {
                let fault = |fault| PatchError::Delta { path: path.clone(), fault };
                patch_delta(old.unwrap_or_default(), delta).map_err(fault)?
            }
        };
        // A deletion leaves nothing, which is not the empty file.
        let left = (self.new.is_some() || !new.is_empty()).then_some(new.as_slice());
        Self::expect(path, "after", self.new, left)?;
        Ok(new)
    }

    fn expect(
        path: &TreePath,
        side: &'static str,
        expected: Option<ObjectId>,
        content: Option<&[u8]>,
    ) -> Result<(), PatchError> {
        let found = content.map(ObjectId::of);
        if found == expected {
            return Ok(());
        }
        let shown = |it: Option<ObjectId>| it.map_or_else(|| "no file".to_owned(), |it| it.to_string());
        Err(PatchError::Object { path: path.clone(), side, expected: shown(expected), found: shown(found) })
    }
}

/// The bytes of one line of a binary hunk; `None` where it is not one.
pub(super) fn decode_line(line: &[u8]) -> Option<Vec<u8>> {
    let (count, digits) = line.split_first()?;
    let count = usize::from(match count {
        b'A'..=b'Z' => count - b'A' + 1,
        b'a'..=b'z' => count - b'a' + 27,
        _ => return None,
    });
    let (groups, []) = digits.as_chunks::<5>() else { return None };
    if groups.len() != count.div_ceil(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(groups.len() * 4);
    for group in groups {
        let mut value: u32 = 0;
        for digit in group {
            let digit = u32::try_from(DIGITS.iter().position(|it| it == digit)?).ok()?;
            value = value.checked_mul(85)?.checked_add(digit)?;
        }
        bytes.extend(value.to_be_bytes());
    }
    bytes.truncate(count);
    Some(bytes)
}

/// What `compressed` inflates to, if that is exactly `size` bytes.
pub(super) fn inflate(compressed: &[u8], size: usize) -> Option<Vec<u8>> {
    let size = (size <= FILE_BYTES_MAX).then_some(size)?;
    decompress_to_vec_zlib_with_limit(compressed, size).ok().filter(|it| it.len() == size)
}

/// A literal hunk of `content`, with its heading and the empty line after it.
pub(super) fn write_literal(content: &[u8], patch: &mut Vec<u8>) {
    patch.extend(format!("literal {}\n", content.len()).bytes());
    for line in compress_to_vec_zlib(content, LEVEL).chunks(LINE_BYTES) {
        let count = u8::try_from(line.len()).unwrap_or_default();
        patch.push(if count <= 26 { b'A' + count - 1 } else { b'a' + count - 27 });
        for group in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(bytes);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(value % 85) as usize];
                value /= 85;
            }
            patch.extend(digits);
        }
        patch.push(b'\n');
    }
    patch.push(b'\n');
}

/// Git's delta: two sizes, then copies out of `old` and insertions.
fn patch_delta(old: &[u8], delta: &[u8]) -> Result<Vec<u8>, &'static str> {
    const CUT: &str = "ends in the middle of an instruction";
    let mut rest = delta;
    if size(&mut rest).ok_or(CUT)? != old.len() {
        return Err("starts from a file of another size");
    }
    let new_size = size(&mut rest).ok_or(CUT)?;
    if new_size > FILE_BYTES_MAX {
        return Err("makes a file that is too large");
    }
    let mut new = Vec::with_capacity(new_size);
    while let Some((opcode, after)) = rest.split_first() {
        rest = after;
        let bytes = if opcode & 0x80 != 0 {
            let mut field = |bits: std::ops::Range<u8>| {
                bits.clone().filter(|bit| opcode & (1 << bit) != 0).try_fold(0, |value: usize, bit| {
                    let (byte, after) = rest.split_first()?;
                    rest = after;
                    Some(value | usize::from(*byte) << (8 * (bit - bits.start)))
                })
            };
            let offset = field(0..4).ok_or(CUT)?;
            let count = match field(4..7).ok_or(CUT)? {
                0 => 0x1_0000,
                count => count,
            };
            old.get(offset..offset + count).ok_or("copies from beyond the file")?
        } else if *opcode == 0 {
            return Err("has an instruction that does not exist");
        } else {
            let (bytes, after) = rest.split_at_checked(usize::from(*opcode)).ok_or(CUT)?;
            rest = after;
            bytes
        };
        if new.len() + bytes.len() > new_size {
            return Err("makes more than it says");
        }
        new.extend_from_slice(bytes);
    }
    if new.len() == new_size { Ok(new) } else { Err("makes less than it says") }
}

/// A size: seven bits a byte, least significant first.
fn size(rest: &mut &[u8]) -> Option<usize> {
    let (mut value, mut shift) = (0_usize, 0);
    loop {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        // Five bytes hold more than any file here has.
        if shift > 28 {
            return None;
        }
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_object_has_the_name_that_git_gives_it() {
        // `git hash-object --stdin`, on nothing and on "hello\n".
        for (content, name) in
            [("", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"), ("hello\n", "ce013625030ba8dba906f756967f9e9ca394464a")]
        {
            let id = ObjectId::of(content.as_bytes());
            assert_eq!((id.to_string().as_str(), ObjectId::parse(name.as_bytes())), (name, Some(id)));
        }
        assert_eq!((ObjectId::parse(b"e69de29"), ObjectId::parse(&[b'g'; 40])), (None, None));
    }

    #[test]
    fn a_delta_that_does_not_fit_says_how() {
        type Case<'a> = (&'a [u8], Result<&'a [u8], &'static str>);
        #[rustfmt::skip]
        let cases: [Case<'_>; 11] = [
            (&[5, 3, 0x90, 3],                      Ok(b"abc")),                       // copy 3 from 0
            (&[5, 4, 0x91, 2, 3, 1, b'!'],          Ok(b"cde!")),                      // copy 3 from 2, insert 1
            (&[5, 0],                               Ok(b"")),
            (&[],                                   Err("ends in the middle of an instruction")),
            (&[0x85],                               Err("ends in the middle of an instruction")),
            (&[4, 0],                               Err("starts from a file of another size")),
            (&[5, 3, 0x91, 4, 3],                   Err("copies from beyond the file")),
            (&[5, 3, 0x90],                         Err("ends in the middle of an instruction")),
            (&[5, 3, 0],                            Err("has an instruction that does not exist")),
            (&[5, 1, 2, b'a', b'b'],                Err("makes more than it says")),
            (&[5, 3, 2, b'a', b'b'],                Err("makes less than it says")),
        ];
        for (delta, expected) in cases {
            assert_eq!(patch_delta(b"abcde", delta).as_deref(), expected.as_ref().map(|it| *it), "{delta:?}");
        }
        assert_eq!(patch_delta(b"", &[0, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err("makes a file that is too large"));
        assert_eq!(patch_delta(b"", &[0xff; 12]), Err("ends in the middle of an instruction"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(content in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut patch = Vec::new();
            write_literal(&content, &mut patch);
            let mut lines = patch.split(|it| *it == b'\n').skip(1);
            let mut compressed = Vec::new();
            for line in lines.by_ref().take_while(|it| !it.is_empty()) {
                compressed.extend(decode_line(line).unwrap());
            }
            prop_assert_eq!(inflate(&compressed, content.len()), Some(content.clone()));
            prop_assert_eq!(inflate(&compressed, content.len() + 1), None);
            prop_assert!(lines.eq([b""]));
        }

        #[test]
        fn no_bytes_panic(line in proptest::collection::vec(any::<u8>(), 0..80), old in proptest::collection::vec(any::<u8>(), 0..20)) {
            drop((decode_line(&line), inflate(&line, 100), patch_delta(&old, &line)));
        }
    }
}
