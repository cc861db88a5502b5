//! A file as JSON: one value, or one a line. What is no JSON at all is told apart from JSON with a fault in it.

use crate::error::Problem;
use crate::json::Node;
use crate::parse::{Parser, Replaced, Unreadable};
use crate::state_json;

/// What a file is, before a reader looks at it.
#[derive(Debug, PartialEq)]
pub(crate) enum Document<'a> {
    /// One JSON value.
    One(Node<'a>),
    /// One JSON value a line.
    Lines(Vec<Node<'a>>),
}

/// The file's document, and what had to be replaced to read it.
///
/// A first value that is an object, stands on one line and is not the last one makes the file one of lines.
pub(crate) fn open(bytes: &[u8]) -> Result<(Document<'_>, Replaced), Problem> {
    let bytes = without_mark(bytes);
    let text = bytes.trim_ascii();
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let mut parser = Parser::new(bytes, 1, Unreadable::Replace);
    let is_json = text.starts_with(b"{") || text.starts_with(b"[");
    let foreign = |problem| if is_json { problem } else { not_json(text) };
    let first = parser.value().map_err(foreign)?;
    if parser.rest().trim_ascii().is_empty() {
        return Ok((Document::One(first), parser.replaced));
    }
    if state_json::stated_format(&first) == Some(state_json::STATE_FORMAT) {
        return Err(Problem::SeveralStates);
    }
    let start = bytes.len() - bytes.trim_ascii_start().len();
    let is_one_line = !bytes[start..bytes.len() - parser.rest().len()].contains(&b'\n');
    let line_end = parser.rest().iter().position(|&byte| byte == b'\n');
    let ends_line = line_end.is_some_and(|end| parser.rest()[..end].trim_ascii().is_empty());
    if !(matches!(first, Node::Object(_)) && is_one_line && ends_line) {
        parser.end().map_err(foreign)?;
    }
    let mut replaced = parser.replaced;
    let mut rows = vec![first];
    let first_line = parser.line();
    for (index, line) in parser.rest().split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let mut parser = Parser::new(line, first_line + index, Unreadable::Replace);
        rows.push(parser.value()?);
        parser.end()?;
        replaced.not_utf8 += parser.replaced.not_utf8;
        replaced.half_pairs += parser.replaced.half_pairs;
    }
    Ok((Document::Lines(rows), replaced))
}

/// The file without its byte order mark, which is not JSON and says nothing.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// How many bytes of a file that is no JSON are looked at to say what it is.
const SNIFFED_BYTES: usize = 4_096;

/// What else a person may have given, told by its first bytes, and what to do about it.
fn not_json(text: &[u8]) -> Problem {
    const UNPACK: &str = "Unpack it first";
    const GIVE_PATCH: &str =
        "Give it with `--patch`, beside a recording, or as the `model_patch` of a predictions file";
    const GIVE_RECORDING: &str = "Give what the agent recorded";
    let starts: [(&[u8], &str, &str); 8] = [
        (b"diff --git ", "a patch", GIVE_PATCH),
        (b"--- ", "a patch", GIVE_PATCH),
        (b"Index: ", "a patch", GIVE_PATCH),
        (b"\x1f\x8b", "a gzip file", UNPACK),
        (b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
        (b"PK\x03\x04", "a zip file", UNPACK),
        (b"\xff\xfe", "text in UTF-16", "Save it in UTF-8"),
        (b"\xfe\xff", "text in UTF-16", "Save it in UTF-8"),
    ];
    let sniffed = &text[..text.len().min(SNIFFED_BYTES)];
    let has = |words: &[u8]| sniffed.windows(words.len()).any(|window| window == words);
    // The last character may be cut in two.
    let is_text = !sniffed.contains(&0)
        && std::str::from_utf8(sniffed).map_or_else(|error| error.error_len().is_none(), |_| true);
    let known = starts.iter().find(|(start, ..)| text.starts_with(start));
    let (what, mend) = match known {
        Some(&(_, what, mend)) => (what, mend),
        None if has(b"\ndiff --git ") || has(b"\n@@ -") => ("a patch", GIVE_PATCH),
        None if is_text => ("text", GIVE_RECORDING),
        None => ("a binary file", GIVE_RECORDING),
    };
    Problem::NotARecording { what, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_one_value_or_one_a_line() {
        let lines = |count| format!("{count} lines");
        let more = "line 2, column 1 is not readable JSON: expected the end; found `{`";
        #[rustfmt::skip]
        let cases = [ // file, what it is
            ("{}",                          "one".to_owned()),
            ("\u{feff} {}\n\n",            "one".to_owned()),
            ("{\n}",                        "one".to_owned()),
            ("[]",                          "one".to_owned()),
            ("7",                           "one".to_owned()),
            ("{}\n{}",                      lines(2)),
            ("\n {} \r\n\r\n{\"a\":1}\r\n[]\n", lines(3)),
            ("{\n}\n{}",                    more.replace("line 2", "line 3")),
            ("[]\n{}",                      more.to_owned()),
            ("{} {}",                       "line 1, column 4 is not readable JSON: expected the end; found `{`".to_owned()),
            ("{}\n\n{} {}",                 "line 3, column 4 is not readable JSON: expected the end; found `{`".to_owned()),
            ("{}\n{",                       "line 2, column 2 is not readable JSON: expected a key; found the end".to_owned()),
            (" \r\n\t",                     "the file is empty".to_owned()),
            ("\u{feff}",                    "the file is empty".to_owned()),
        ];
        for (file, expected) in cases {
            let found = match open(file.as_bytes()) {
                Ok((Document::One(_), _)) => "one".to_owned(),
                Ok((Document::Lines(rows), _)) => lines(rows.len()),
                Err(problem) => problem.to_string(),
            };
            assert_eq!(found, expected, "{file:?}");
        }
    }

    #[test]
    fn one_state_a_file() {
        let state = r#"{"format": "tack-state", "version": 1, "observations": []}"#;
        for file in [format!("{state}\n{state}\n"), format!("{state} {state}"), state.replace(' ', "\n") + state] {
            assert!(matches!(open(file.as_bytes()), Err(Problem::SeveralStates)), "{file}");
        }
    }

    #[test]
    fn what_is_replaced_is_counted_over_all_lines() {
        let (_, replaced) = open(b"{\"a\": \"\xff\"}\n{\"a\": \"\xff\\udc80\"}\n").unwrap();
        assert_eq!(replaced, Replaced { not_utf8: 2, half_pairs: 1 });
    }

    #[test]
    fn what_is_no_json_is_told_by_its_first_bytes() {
        let patch = "Give it with `--patch`, beside a recording, or as the `model_patch` of a predictions file";
        let accents = format!("x{}", "é".repeat(3_000));
        let mailed = b"From 1234 Mon Sep 17\nSubject: x\n\ndiff --git a/a b/a\n";
        #[rustfmt::skip]
        let cases: [(&[u8], &str, &str); 14] = [
            (b"diff --git a/a b/a\n",         "a patch",        patch),
            (b"\r\n--- a\n+++ b\n@@ -1 +1 @@", "a patch",        patch),
            (b"Some words.\n\n@@ -1 +1 @@",    "a patch",        patch),
            (mailed,                          "a patch",        patch),
            (b"From me to you",               "text",           "Give what the agent recorded"),
            (b"the issue",                    "text",           "Give what the agent recorded"),
            (b"7 apples",                     "text",           "Give what the agent recorded"),
            (b"\"a\",\"b\"",                  "text",           "Give what the agent recorded"),
            (accents.as_bytes(),              "text",           "Give what the agent recorded"),
            (b"x\0",                          "a binary file",  "Give what the agent recorded"),
            (b"\x7fELF\xff\xff",              "a binary file",  "Give what the agent recorded"),
            (b"\x1f\x8b\x08",                 "a gzip file",    "Unpack it first"),
            (b"PK\x03\x04",                   "a zip file",     "Unpack it first"),
            (b"\xff\xfe{\0}\0",              "text in UTF-16", "Save it in UTF-8"),
        ];
        for (file, expected, mended) in cases {
            match open(file).unwrap_err() {
                Problem::NotARecording { what, mend } => assert_eq!((what, mend), (expected, mended), "{file:?}"),
                other => panic!("{other}"),
            }
        }
    }
}
