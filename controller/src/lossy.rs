//! Bytes as text: the one rule for what is not UTF-8.

use std::borrow::Cow;

/// A window of a field as text, with the way back to its bytes.
///
/// The rule is lossy and says so: each maximal invalid sequence becomes one U+FFFD, as `String::from_utf8_lossy` has
/// it; everything else, CR and NUL included, stays as it is. Two fields that differ only in invalid bytes may encode
/// alike; the state's digest, which is over the bytes, still tells them apart.
#[derive(Debug)]
pub(crate) struct Lossy<'a> {
    text: Cow<'a, str>,
    /// Where each run begins: in the text, in the bytes. Empty if the two are the same.
    runs: Vec<(usize, usize)>,
}

impl<'a> Lossy<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return Self { text: Cow::Borrowed(text), runs: Vec::new() };
        }
        let mut text = String::with_capacity(bytes.len());
        let mut runs = Vec::new();
        let mut at = 0;
        for chunk in bytes.utf8_chunks() {
            runs.push((text.len(), at));
            text.push_str(chunk.valid());
            at += chunk.valid().len();
            if !chunk.invalid().is_empty() {
                runs.push((text.len(), at));
                text.push(char::REPLACEMENT_CHARACTER);
                at += chunk.invalid().len();
            }
        }
        runs.push((text.len(), at));
        Self { text: Cow::Owned(text), runs }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The offset in the bytes of an offset in the text; both are borders of characters.
    pub(crate) fn byte_offset(&self, text_offset: usize) -> usize {
        let after = self.runs.partition_point(|&(text, _)| text <= text_offset);
        match after.checked_sub(1).and_then(|run| self.runs.get(run)) {
            None => text_offset,
            // Valid text maps one to one; an invalid sequence has no border within.
            Some(&(text, byte)) => byte + (text_offset - text),
        }
    }

    /// How many invalid sequences `bytes` holds.
    pub(crate) fn replaced(bytes: &[u8]) -> u64 {
        bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_lead_back_to_the_bytes() {
        let bytes = b"a\xFF\xC3\xA9\xE2\x82b\xF0\x9F";
        let lossy = Lossy::of(bytes);
        assert_eq!(lossy.text(), "a\u{FFFD}é\u{FFFD}b\u{FFFD}");
        let borders: Vec<usize> = lossy.text().char_indices().map(|(at, _)| at).collect();
        assert_eq!(borders.iter().map(|&at| lossy.byte_offset(at)).collect::<Vec<_>>(), [0, 1, 2, 4, 6, 7]);
        assert_eq!(lossy.byte_offset(lossy.text().len()), bytes.len());
        assert_eq!(Lossy::replaced(bytes), 3);
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_rule(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let lossy = Lossy::of(&bytes);
            prop_assert_eq!(lossy.text(), String::from_utf8_lossy(&bytes));
            prop_assert_eq!(lossy.byte_offset(lossy.text().len()), bytes.len());
            prop_assert_eq!(lossy.byte_offset(0), 0);
        }
    }
}
