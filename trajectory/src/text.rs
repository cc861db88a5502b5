//! The text of a JSON string: a piece of the file, decoded where it is asked for.
//!
//! Agents record what programs print, and that need not be UTF-8: a sequence of bytes that is none, and an escape of
//! half a surrogate pair (`\udc80`, as Python writes undecodable bytes), each decode to U+FFFD. The parser counts them.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use crate::kept::{Keeper, Kept};

/// The text of a JSON string.
#[derive(Clone)]
pub(crate) enum Text<'a> {
    /// UTF-8 without an escape: it stands in the file as it is.
    Plain(&'a str),
    /// What stands between the quotes, and what it decodes to once somebody wanted all of it.
    Coded { raw: &'a [u8], decoded: OnceCell<Box<str>> },
}

impl<'a> Text<'a> {
    /// A text with escapes or with bytes that are not UTF-8; the parser has seen that every escape is one.
    pub(crate) fn coded(raw: &'a [u8]) -> Self {
        Self::Coded { raw, decoded: OnceCell::new() }
    }

    /// The whole text, decoded once and kept beside the file from then on.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Coded { raw, decoded } => decoded.get_or_init(|| decode_all(raw).into()),
        }
    }

    /// The whole text, to be owned by somebody else.
    pub(crate) fn into_cow(self) -> Cow<'a, str> {
        match self {
            Self::Plain(text) => Cow::Borrowed(text),
            Self::Coded { raw, .. } => Cow::Owned(decode_all(raw)),
        }
    }

    /// Gives the text to `push` piece by piece, holding none of it.
    pub(crate) fn pieces(&self, push: &mut dyn FnMut(&str)) {
        match self {
            Self::Plain(text) => push(text),
            Self::Coded { raw, .. } => decode(raw, push),
        }
    }

    /// As much of the text as a state keeps.
    pub(crate) fn kept(&self) -> Kept {
        let mut keeper = Keeper::default();
        self.pieces(&mut |piece| keeper.push(piece.as_bytes()));
        keeper.finish()
    }

    /// How many bytes the text has.
    pub(crate) fn count_bytes(&self) -> usize {
        let mut count = 0;
        self.pieces(&mut |piece| count += piece.len());
        count
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

fn decode_all(raw: &[u8]) -> String {
    let mut all = String::new();
    decode(raw, &mut |piece| all.push_str(piece));
    all
}

fn decode(raw: &[u8], push: &mut dyn FnMut(&str)) {
    let mut rest = raw;
    while !rest.is_empty() {
        let run = rest.iter().position(|&byte| byte == b'\\').unwrap_or(rest.len());
        for chunk in rest[..run].utf8_chunks() {
            push(chunk.valid());
            if !chunk.invalid().is_empty() {
                push("\u{fffd}");
            }
        }
        rest = &rest[run..];
        if let Some(Escape { character, len, .. }) = escape(rest) {
            push(character.encode_utf8(&mut [0; 4]));
            rest = &rest[len..];
        }
    }
}

/// An escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Escape {
    /// What it stands for; U+FFFD for half a pair.
    pub(crate) character: char,
    /// Its bytes, the backslash included.
    pub(crate) len: usize,
    /// Whether it names half a surrogate pair.
    pub(crate) is_half: bool,
}

/// The escape at the start of `text`, if one stands there.
pub(crate) fn escape(text: &[u8]) -> Option<Escape> {
    let character = match text.get(..2)? {
        b"\\\"" => '"',
        b"\\\\" => '\\',
        b"\\/" => '/',
        b"\\b" => '\u{8}',
        b"\\f" => '\u{c}',
        b"\\n" => '\n',
        b"\\r" => '\r',
        b"\\t" => '\t',
        b"\\u" => return escaped_unit(text),
        _ => return None,
    };
    Some(Escape { character, len: 2, is_half: false })
}

fn escaped_unit(text: &[u8]) -> Option<Escape> {
    let high = unit(text)?;
    if let Some(character) = char::from_u32(high) {
        return Some(Escape { character, len: 6, is_half: false });
    }
    let low = text.get(6..).and_then(unit).filter(|low| (0xdc00..0xe000).contains(low));
    let pair =
        low.filter(|_| high < 0xdc00).and_then(|low| char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low - 0xdc00));
    Some(match pair {
        Some(character) => Escape { character, len: 12, is_half: false },
        None => Escape { character: char::REPLACEMENT_CHARACTER, len: 6, is_half: true },
    })
}

/// The UTF-16 unit that `\u` and four hexadecimal digits at the start of `text` name.
fn unit(text: &[u8]) -> Option<u32> {
    let digits = text.get(..6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_no_text_can_hold_is_replaced_and_nothing_else() {
        #[rustfmt::skip]
        let cases: [(&[u8], &str); 11] = [
            (b"plain",                   "plain"),
            (b"\xff\xfe",                "\u{fffd}\u{fffd}"),
            (b"\xe2\x82",                "\u{fffd}"),
            (b"\xe2\x82\\n\xac",         "\u{fffd}\n\u{fffd}"),
            (br"\ud83d\ude00",           "\u{1f600}"),
            (br"\udc80",                 "\u{fffd}"),
            (br"\ud83d\u0041",           "\u{fffd}A"),
            (br"\ud83d\ud83d\ude00",     "\u{fffd}\u{1f600}"),
            (br"\\udc80",                "\\udc80"),
            (br#"\\\udc80\""#,           "\\\u{fffd}\""),
            (br#"\"\\\/\b\f\n\r\t\u0000"#, "\"\\/\u{8}\u{c}\n\r\t\0"),
        ];
        for (raw, expected) in cases {
            let text = Text::coded(raw);
            assert_eq!(text.as_str(), expected, "{raw:?}");
            assert_eq!(text.kept().bytes, expected.as_bytes());
            assert_eq!(text.count_bytes(), expected.len());
            assert_eq!(text.into_cow(), expected);
        }
    }

    #[test]
    fn what_is_no_escape_is_none() {
        for text in [&b""[..], b"\\", b"\\x", b"\\u12", b"\\u12g4", b"n", b"\\u+123"] {
            assert_eq!(escape(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn decodes_as_serde_json_does(value in ".*") {
            let quoted = serde_json::to_string(&value).unwrap();
            let ascii: String = value.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
            for raw in [&quoted.as_bytes()[1..quoted.len() - 1], ascii.as_bytes()] {
                let text = Text::coded(raw);
                prop_assert_eq!(text.as_str(), &value);
            }
        }
    }
}
