//! Standard base64 with padding (RFC 4648, section 4), for the bytes of a state that are not UTF-8.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text form: four characters for each started group of three bytes.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0_u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let sextet = (word >> (18 - 6 * place) & 0x3f) as usize;
            text.push(if place <= group.len() { char::from(ALPHABET[sextet]) } else { '=' });
        }
    }
    text
}

/// The bytes of `text`; `None` if a character, the length, the padding or a leftover bit is not canonical.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&character| character == b'=').count();
    if padding > 2 {
        return None;
    }
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut word = 0_u32;
        for &character in group {
            word = word << 6 | sextet(character)?;
        }
        // A group of n digits carries n - 1 bytes; the bits left over must be zero, so that one value has one text.
        let spare = 4 - group.len();
        word <<= 6 * spare;
        let [_, full @ ..] = word.to_be_bytes();
        let (kept, dropped) = full.split_at(3 - spare.min(3));
        if dropped.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

/// Gives the bytes of `text` to `push` piece by piece; `None` where [`decode`] gives none.
pub(crate) fn decode_in_pieces(text: &str, push: &mut dyn FnMut(&[u8])) -> Option<()> {
    /// Whole groups of four characters.
    const PIECE: usize = 4 * 16_384;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(PIECE));
        // Padding stands at the very end alone.
        if !behind.is_empty() && piece.ends_with(b"=") {
            return None;
        }
        push(&decode(std::str::from_utf8(piece).ok()?)?);
        rest = behind;
    }
    Some(())
}

fn sextet(character: u8) -> Option<u32> {
    match character {
        b'A'..=b'Z' => Some(u32::from(character - b'A')),
        b'a'..=b'z' => Some(u32::from(character - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(character - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rfcs_own_vectors() {
        #[rustfmt::skip]
        let vectors = [
            ("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, text) in vectors {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn what_is_not_canonical_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Zm9v=", "====", "Z===", "Zm 9", "Zm9v\n", "Zg==Zg==", "Zm-_"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_return(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_decoded_or_refused_and_what_is_decoded_has_one_text(text in "[A-Za-z0-9+/=]{0,12}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
