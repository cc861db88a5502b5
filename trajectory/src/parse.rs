//! The JSON parser: RFC 8259 over the bytes of a file, into a tree that points into them.
//!
//! A parser of our own, since a recording is not always what a library takes: a text may hold bytes that are not
//! UTF-8 and halves of surrogate pairs, and one text may be as large as memory. This one copies no text, neither to
//! mend it nor to unescape it, takes what no text can hold as U+FFFD and counts it, and skips the fields that hold
//! outcomes before any reader can see them. A property test compares it with `serde_json`.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::error::Problem;
use crate::json::Node;
use crate::shown::Shown;
use crate::text::{Text, escape};

/// Keys whose values never enter the tree: what a grader, a data set or a chooser knows and a decision must not. The
/// key stays, so that a file can still be told from its shape.
pub(crate) const WITHHELD: &[&str] = &[
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "critic_result",
    "fail_to_pass",
    "fail_to_pass_docstrings",
    "fail_to_pass_swebench",
    "gold_patch",
    "hints_text",
    "official_resolved",
    "pass_to_pass",
    "regressions",
    "resolved",
    "reward",
    "success_id",
    "test_patch",
    "tests_status",
];

/// Keys under which formats keep what the agent asked of a tool: SDK events, OpenHands V0, ATIF. The agent names the
/// arguments in there as it likes, and wrote them before any outcome was known, so none is withheld.
const CALLS: [&str; 3] = ["action", "args", "arguments"];

/// Deepest nesting of arrays and objects: the readers' formats have less than 20, and the stack has room for more.
const DEPTH_MAX: usize = 128;

/// Up to here, looking at every key of an object is faster than hashing them.
const SEARCHED_MEMBERS_MAX: usize = 32;

/// What was read as U+FFFD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// Sequences of bytes that are not UTF-8.
    pub(crate) not_utf8: usize,
    /// Escapes of half a surrogate pair.
    pub(crate) half_pairs: usize,
}

/// What to do with what no text can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Count it, and read it as U+FFFD.
    Replace,
    /// Refuse the file.
    Refuse,
}

/// Reads values off the front of `bytes`.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The line of the file at which `bytes` start, from 1.
    first_line: usize,
    unreadable: Unreadable,
    pub(crate) replaced: Replaced,
}

/// Parses one document.
pub(crate) fn parse(bytes: &[u8], unreadable: Unreadable) -> Result<Node<'_>, Problem> {
    let mut parser = Parser::new(bytes, 1, unreadable);
    let node = parser.value()?;
    parser.end()?;
    Ok(node)
}

impl<'a> Parser<'a> {
    pub(crate) fn new(bytes: &'a [u8], first_line: usize, unreadable: Unreadable) -> Self {
        Self { bytes, at: 0, first_line, unreadable, replaced: Replaced::default() }
    }

    /// The next value, with the blanks before it.
    pub(crate) fn value(&mut self) -> Result<Node<'a>, Problem> {
        self.nested(0, true)
    }

    /// The bytes that are still to be read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The line of the file at which [`Parser::rest`] starts.
    pub(crate) fn line(&self) -> usize {
        self.line_at(self.at)
    }

    /// Nothing but blanks may follow.
    pub(crate) fn end(&mut self) -> Result<(), Problem> {
        self.blanks();
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end")) }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn nested(&mut self, depth: usize, withholds: bool) -> Result<Node<'a>, Problem> {
        self.blanks();
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => {
                Err(self.problem(self.at, format!("nested more than {DEPTH_MAX} deep")))
            }
            Some(b'{') => self.object(depth + 1, withholds),
            Some(b'[') => self.list(depth + 1, withholds),
            Some(b'"') => Ok(Node::Text(self.text()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.word("null", Node::Null),
            Some(b't') => self.word("true", Node::Bool(true)),
            Some(b'f') => self.word("false", Node::Bool(false)),
            _ => Err(self.expected("a value")),
        }
    }

    fn object(&mut self, depth: usize, withholds: bool) -> Result<Node<'a>, Problem> {
        self.at += 1;
        let mut members: Vec<(Cow<'a, str>, Node<'a>)> = Vec::new();
        let mut seen = HashSet::new();
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Node::Object(members));
        }
        loop {
            self.blanks();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key"));
            }
            let key = self.text()?.into_cow();
            // A few members are searched one by one; objects of many (predictions by id) are not.
            let is_double = if members.len() < SEARCHED_MEMBERS_MAX {
                members.iter().any(|(known, _)| *known == key)
            } else {
                if seen.is_empty() {
                    seen.extend(members.iter().map(|(known, _)| known.clone()));
                }
                !seen.insert(key.clone())
            };
            if is_double {
                return Err(self.problem(start, format!("the key `{}` stands twice in one object", Shown(&key))));
            }
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.expected("`:` after a key"));
            }
            self.at += 1;
            let value = self.nested(depth, withholds && !CALLS.contains(&key.as_ref()))?;
            let is_withheld = withholds && WITHHELD.binary_search(&key.as_ref()).is_ok();
            members.push((key, if is_withheld { Node::Withheld } else { value }));
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Node::Object(members));
                }
                _ => return Err(self.expected("`,` or `}` after a member")),
            }
        }
    }

    fn list(&mut self, depth: usize, withholds: bool) -> Result<Node<'a>, Problem> {
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Node::List(items));
        }
        loop {
            items.push(self.nested(depth, withholds)?);
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Node::List(items));
                }
                _ => return Err(self.expected("`,` or `]` after an item")),
            }
        }
    }

    /// A string: checked to its end, decoded by nobody yet.
    fn text(&mut self) -> Result<Text<'a>, Problem> {
        self.at += 1;
        let start = self.at;
        let mut has_escapes = false;
        loop {
            let is_special = |&byte: &u8| byte == b'"' || byte == b'\\' || byte < 0x20;
            self.at += self.rest().iter().position(is_special).unwrap_or(self.rest().len());
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let Some(escape) = escape(self.rest()) else {
                        return Err(self.problem(self.at, "no escape of JSON".to_owned()));
                    };
                    if escape.is_half {
                        if self.unreadable == Unreadable::Refuse {
                            return Err(
                                self.problem(self.at, "half a surrogate pair, which no text can hold".to_owned())
                            );
                        }
                        self.replaced.half_pairs += 1;
                    }
                    has_escapes = true;
                    self.at += escape.len;
                }
                Some(_) => return Err(self.expected("an escape of a control character")),
                None => return Err(self.expected("`\"` at the end of a string")),
            }
        }
        let raw = &self.bytes[start..self.at];
        let text = match std::str::from_utf8(raw) {
            Ok(plain) if !has_escapes => Text::Plain(plain),
            Ok(_) => Text::coded(raw),
            Err(error) if self.unreadable == Unreadable::Refuse => {
                let reason = "not UTF-8; in this format such bytes are written as {\"base64\": ...}";
                return Err(self.problem(start + error.valid_up_to(), reason.to_owned()));
            }
            Err(_) => {
                self.replaced.not_utf8 += raw.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
                Text::coded(raw)
            }
        };
        self.at += 1;
        Ok(text)
    }

    /// A number: kept as it is written, and read by whoever knows what it counts.
    fn number(&mut self) -> Result<Node<'a>, Problem> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        // Digits, signs and letters that were looked at one by one are ASCII.
        Ok(Node::Number(std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default()))
    }

    fn digits(&mut self) -> Result<(), Problem> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count > 0 { Ok(()) } else { Err(self.expected("a digit")) }
    }

    fn word(&mut self, word: &'static str, node: Node<'a>) -> Result<Node<'a>, Problem> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(node)
    }

    fn line_at(&self, at: usize) -> usize {
        self.first_line + self.bytes[..at].split(|&byte| byte == b'\n').count() - 1
    }

    fn expected(&self, what: &str) -> Problem {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(byte @ 0x20..=0x7e) => format!("`{}`", char::from(byte)),
            Some(byte) => format!("the byte 0x{byte:02x}"),
        };
        self.problem(self.at, format!("expected {what}; found {found}"))
    }

    fn problem(&self, at: usize, reason: String) -> Problem {
        let before = &self.bytes[..at];
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        Problem::NotJson { line: self.line_at(at), column: at - line_start + 1, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn lenient(text: &[u8]) -> Result<Node<'_>, Problem> {
        parse(text, Unreadable::Replace)
    }

    #[test]
    fn the_withheld_keys_are_sorted_for_the_search() {
        assert!(WITHHELD.is_sorted());
    }

    #[test]
    fn outcome_fields_never_enter_the_tree() {
        for key in WITHHELD {
            let text = format!(r#"{{"a": [{{"{key}": ["secret", {{"b": "secret"}}]}}]}}"#);
            let node = lenient(text.as_bytes()).unwrap();
            assert!(!format!("{node:?}").contains("secret"), "{key}");
            assert!(node.member("a").is_some_and(|list| matches!(list, Node::List(items) if items[0].has(key))));
            // What the agent itself asked of a tool is no outcome, whatever it named it.
            for call in CALLS {
                let text = format!(r#"{{"{call}": {{"x": {{"{key}": "asked"}}}}, "{key}": "secret"}}"#);
                let node = lenient(text.as_bytes()).unwrap();
                assert_eq!(node.to_string(), format!(r#"{{"{call}": {{"x": {{"{key}": "asked"}}}}, "{key}": null}}"#));
            }
        }
    }

    #[test]
    fn strings_without_escapes_are_pieces_of_the_file() {
        let text = br#"{"plain": "abc", "escaped": "a\nb"}"#;
        let node = lenient(text).unwrap();
        assert!(matches!(node.member("plain"), Some(Node::Text(Text::Plain("abc")))));
        assert!(matches!(node.member("escaped"), Some(Node::Text(Text::Coded { raw: br"a\nb", .. }))));
    }

    #[test]
    fn errors_name_the_place() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let long = format!("{{\"{0}\": 1, \"{0}\": 2}}", "k".repeat(100_000));
        #[rustfmt::skip]
        let cases = [ // text, line and column, reason
            (r#"{"a": 1"#,           1, 8,   "expected `,` or `}` after a member; found the end"),
            ("{\n \"a\": ]",         2, 7,   "expected a value; found `]`"),
            (r#"{"a": 1, "a": 2}"#,  1, 10,  "the key `a` stands twice in one object"),
            (r#"{"\u001b": 1, "\u001b": 2}"#, 1, 15, "the key `\\u{1b}` stands twice in one object"),
            (&long,                  1, 100_009, "... (100000 bytes)` stands twice in one object"),
            (r#"{"a": NaN}"#,        1, 7,   "expected a value; found `N`"),
            (r#"{"a" 1}"#,           1, 6,   "expected `:` after a key; found `1`"),
            (r#"{"a": 1,}"#,         1, 9,   "expected a key; found `}`"),
            ("[1, 2,]",              1, 7,   "expected a value; found `]`"),
            ("[1\t2]",               1, 4,   "expected `,` or `]` after an item; found `2`"),
            ("1 2",                  1, 3,   "expected the end; found `2`"),
            ("01",                   1, 2,   "expected the end; found `1`"),
            ("-",                    1, 2,   "expected a digit; found the end"),
            ("1.",                   1, 3,   "expected a digit; found the end"),
            ("1e+x",                 1, 4,   "expected a digit; found `x`"),
            ("nul",                  1, 1,   "expected a value; found `n`"),
            ("\"a",                  1, 3,   "expected `\"` at the end of a string; found the end"),
            ("\"a\nb\"",             1, 3,   "expected an escape of a control character; found the byte 0x0a"),
            (r#""\x""#,              1, 2,   "no escape of JSON"),
            ("\0",                   1, 1,   "expected a value; found the byte 0x00"),
            ("",                     1, 1,   "expected a value; found the end"),
            (&deep(129),             1, 129, "nested more than 128 deep"),
        ];
        for (text, at_line, at_column, expected) in cases {
            match lenient(text.as_bytes()).unwrap_err() {
                Problem::NotJson { line, column, reason } => {
                    assert_eq!((line, column), (at_line, at_column), "{reason}");
                    assert!(reason.ends_with(expected), "{reason}");
                }
                other => panic!("{other}"),
            }
        }
        assert!(lenient(deep(128).as_bytes()).is_ok());
    }

    #[test]
    fn a_double_key_is_found_in_objects_of_any_size() {
        for members in [2, SEARCHED_MEMBERS_MAX - 1, SEARCHED_MEMBERS_MAX, SEARCHED_MEMBERS_MAX + 1, 500] {
            let keys: Vec<_> = (0..members).map(|key| format!("\"k{key}\": 1")).collect();
            assert!(lenient(format!("{{{}}}", keys.join(", ")).as_bytes()).is_ok(), "{members}");
            for double in [0, members / 2, members - 1] {
                let text = format!("{{{}, \"k{double}\": 2}}", keys.join(", "));
                let problem = lenient(text.as_bytes()).unwrap_err().to_string();
                assert!(problem.contains(&format!("the key `k{double}` stands twice")), "{problem}");
            }
        }
    }

    #[test]
    fn what_no_text_can_hold_is_counted_or_refused() {
        #[rustfmt::skip]
        let cases: [(&[u8], usize, usize, usize); 6] = [ // text, not UTF-8, half pairs, column of the refusal
            (b"[\"a\"]",                  0, 0, 0),
            (b"[\"a\xff\xfe\", \"\xe2\x82\"]", 3, 0, 4),
            (br#"["\ud83d\ude00\udc80"]"#, 0, 1, 15),
            (br#"{"\ud83d\u0041": 1}"#,    0, 1, 3),
            (br#"["\\udc80"]"#,            0, 0, 0),
            (b"[\"\xff\\udc80\"]",        1, 1, 4),
        ];
        for (text, not_utf8, half_pairs, refused_at) in cases {
            let mut parser = Parser::new(text, 1, Unreadable::Replace);
            parser.value().unwrap();
            assert_eq!(parser.replaced, Replaced { not_utf8, half_pairs }, "{text:?}");
            match parse(text, Unreadable::Refuse) {
                Ok(_) => assert_eq!(refused_at, 0, "{text:?}"),
                Err(Problem::NotJson { column, .. }) => assert_eq!(column, refused_at, "{text:?}"),
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-z\"\\\\é]{0,3}", inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn agree(node: &Node<'_>, value: &Value) -> bool {
        match (node, value) {
            (Node::Null, Value::Null) => true,
            (Node::Bool(one), Value::Bool(other)) => one == other,
            (Node::Number(one), Value::Number(other)) => match (other.as_u64(), other.as_i64(), other.as_f64()) {
                (Some(other), _, _) => one.parse() == Ok(other),
                (_, Some(other), _) => one.parse() == Ok(other),
                // Theirs is off by a bit in the last place at times.
                (_, _, Some(other)) => one.parse::<f64>().is_ok_and(|one| (one - other).abs() <= one.abs() * 1e-14),
                _ => false,
            },
            (Node::Text(one), Value::String(other)) => one.as_str() == other,
            (Node::List(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| agree(one, other))
            }
            (Node::Object(one), Value::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(key, one)| other.get(key.as_ref()).is_some_and(|other| agree(one, other)))
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_writes(value in any_json(), is_pretty: bool) {
            let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            prop_assert!(agree(&parse(text.as_bytes(), Unreadable::Refuse).unwrap(), &value), "{text}");
        }

        /// The same verdict as `serde_json`, byte by byte changed, but for the four things that we see otherwise.
        #[test]
        fn accepts_what_serde_json_accepts(
            value in any_json(),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), "[\\[\\]{}:,\"\\\\eE+.0-9tfnu \n\t-]"), 0..4),
            end in proptest::option::of(any::<proptest::sample::Index>()),
        ) {
            let mut text = value.to_string().into_bytes();
            for (at, byte) in changes {
                let at = at.index(text.len());
                text[at] = byte.as_bytes()[0];
            }
            if let Some(end) = end {
                text.truncate(end.index(text.len()));
            }
            let theirs = serde_json::from_slice::<Value>(&text);
            match (parse(&text, Unreadable::Refuse), &theirs) {
                (Ok(node), Ok(value)) => prop_assert!(agree(&node, value), "{value}"),
                (Err(_), Err(_)) => {}
                // They let the last of two equal keys win.
                (Err(problem), Ok(_)) => prop_assert!(problem.to_string().contains("stands twice"), "{problem}"),
                // They refuse a number that no f64 holds where it stands, we where somebody asks for its value.
                (Ok(_), Err(error)) => prop_assert!(error.to_string().contains("out of range"), "{error}"),
            }
        }
    }
}
