//! Makes a file readable that is nearly JSON: agents record what programs print, and that need not be UTF-8.

use std::borrow::Cow;

/// The file's text, and what had to be replaced to get it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mended<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Sequences of bytes that are not UTF-8, each now U+FFFD.
    pub(crate) not_utf8: usize,
    /// Escapes of half a surrogate pair (`\udc80`, as Python writes undecodable bytes), each now `\ufffd`.
    pub(crate) lone_surrogates: usize,
}

/// Replaces what no JSON parser takes. Copies the file only where there is something to replace.
pub(crate) fn mend(bytes: &[u8]) -> Mended<'_> {
    let bytes = without_mark(bytes);
    let (text, not_utf8) = match std::str::from_utf8(bytes) {
        Ok(text) => (Cow::Borrowed(text), 0),
        Err(_) => (String::from_utf8_lossy(bytes), bytes.utf8_chunks().filter(|it| !it.invalid().is_empty()).count()),
    };
    let lone = lone_surrogates(text.as_bytes());
    if lone.is_empty() {
        return Mended { text, not_utf8, lone_surrogates: 0 };
    }
    let count = lone.len();
    let mut mended = text.into_owned();
    for at in lone {
        // Four ASCII digits for four ASCII digits: no offset moves.
        mended.replace_range(at..at + 4, "fffd");
    }
    Mended { text: Cow::Owned(mended), not_utf8, lone_surrogates: count }
}

/// The file without its byte order mark, which is not JSON and says nothing.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Where the four digits of each escape stand that names half a pair.
fn lone_surrogates(text: &[u8]) -> Vec<usize> {
    let mut lone = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].iter().position(|&byte| byte == b'\\') {
        at += found;
        let Some(unit) = unit(text, at) else {
            // Another escape: both bytes are consumed, so that `\\ud800` is a backslash and five letters.
            at = (at + 2).min(text.len());
            continue;
        };
        match unit {
            0xd800..=0xdbff if self::unit(text, at + 6).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => at += 12,
            0xd800..=0xdfff => {
                lone.push(at + 2);
                at += 6;
            }
            _ => at += 6,
        }
    }
    lone
}

/// The UTF-16 unit that the escape at `at` names, if there is one.
fn unit(text: &[u8], at: usize) -> Option<u32> {
    let escape = text.get(at..at + 6)?;
    let digits = escape.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_no_parser_takes_is_replaced() {
        #[rustfmt::skip]
        let cases: [(&[u8], &str, usize, usize); 10] = [ // bytes, text, not UTF-8, lone surrogates
            (b"{}",                      "{}",                    0, 0),
            (b"\xef\xbb\xbf{}",          "{}",                    0, 0),
            (b"\"\xff\xfe\"",            "\"\u{fffd}\u{fffd}\"",  2, 0),
            (b"\"\xe2\x82\"",            "\"\u{fffd}\"",          1, 0),
            (br#""\ud83d\ude00""#,       r#""\ud83d\ude00""#,     0, 0),
            (br#""\udc80""#,             r#""\ufffd""#,           0, 1),
            (br#""\ud83d\u0041""#,       r#""\ufffd\u0041""#,     0, 1),
            (br#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#, 0, 1),
            (br#""\\udc80""#,            r#""\\udc80""#,          0, 0),
            (br#""\\\udc80\""#,          r#""\\\ufffd\""#,        0, 1),
        ];
        for (bytes, text, not_utf8, lone_surrogates) in cases {
            let mended = mend(bytes);
            assert_eq!(mended, Mended { text: text.into(), not_utf8, lone_surrogates });
        }
    }

    proptest! {
        #[test]
        fn what_serde_json_reads_is_left_alone(value in ".*") {
            let text = serde_json::to_string(&value).unwrap();
            let mended = mend(text.as_bytes());
            prop_assert!(matches!(mended.text, Cow::Borrowed(_)));
            prop_assert_eq!(mended.text, text.as_str());
        }

        #[test]
        fn after_mending_no_string_is_refused_for_its_bytes(units in proptest::collection::vec(0xd700_u32..0xe100, 0..12), raw: Vec<u8>) {
            let mut text = b"\"".to_vec();
            for unit in units {
                text.extend(format!("\\u{unit:04x}").bytes());
            }
            text.extend(raw.iter().filter(|&&byte| byte >= 0x20 && byte != b'"' && byte != b'\\'));
            text.push(b'"');
            let mended = mend(&text);
            prop_assert!(serde_json::from_str::<String>(&mended.text).is_ok(), "{}", mended.text);
        }
    }
}
