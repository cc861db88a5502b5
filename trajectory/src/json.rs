//! A borrowed JSON tree: strings without escapes point into the file, a key may stand once in an object, and every
//! access knows its path, so that an error can name it.
//!
//! Fields that hold outcomes are dropped here, before any reader can see them: see [`WITHHELD`].

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::Problem;

/// Keys whose values never enter the tree, wherever they stand: what a grader, a data set or a chooser knows and a
/// decision must not. The key stays, so that a file can still be told from its shape.
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

/// Up to here, looking at every key of an object is faster than hashing them.
const SEARCHED_MEMBERS_MAX: usize = 32;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// The value of a key of [`WITHHELD`].
    Withheld,
}

impl<'a> Node<'a> {
    /// Parses one JSON document. `line` is the line of the file at which it starts, from 1.
    pub(crate) fn parse(text: &'a str, line: usize) -> Result<Self, Problem> {
        serde_json::from_str(text).map_err(|error| not_json(&error, line))
    }

    /// Parses every line that is not blank as a document of its own.
    pub(crate) fn parse_lines(text: &'a str) -> Result<Vec<Self>, Problem> {
        let lines = text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(index, line)| Self::parse(line, index + 1)).collect()
    }

    /// The value of `key`, if this is an object that has it.
    pub(crate) fn member(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Whether this is an object that has `key`, whatever its value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.member(key).is_some()
    }

    fn kind(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Unsigned(value) => format!("the number {value}"),
            Self::Signed(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Text(text) if text.len() <= 40 => format!("the string {text:?}"),
            Self::Text(text) => format!("a string of {} bytes", text.len()),
            Self::List(items) => format!("an array of {}", items.len()),
            Self::Object(members) => format!("an object of {}", members.len()),
            Self::Withheld => "an outcome field".into(),
        }
    }
}

fn not_json(error: &serde_json::Error, first_line: usize) -> Problem {
    // The place is told apart from the words, so the words lose their own copy of it.
    let words = error.to_string();
    let reason = words.rsplit_once(" at line ").map_or(words.as_str(), |(reason, _)| reason).to_owned();
    Problem::NotJson { line: first_line + error.line().saturating_sub(1), column: error.column(), reason }
}

impl<'de> Deserialize<'de> for Node<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Node<'de>, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
                Ok(Node::Bool(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
                Ok(Node::Unsigned(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
                Ok(Node::Signed(value))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
                Ok(Node::Float(value))
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
                Ok(Node::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
                Ok(Node::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node<'de>, A::Error> {
                let mut members: Vec<(Cow<'de, str>, Node<'de>)> = Vec::new();
                let mut seen = HashSet::new();
                while let Some(Key(key)) = map.next_key()? {
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
                        return Err(A::Error::custom(format_args!("the key {key:?} stands twice in one object")));
                    }
                    let value = if WITHHELD.binary_search(&key.as_ref()).is_ok() {
                        map.next_value::<IgnoredAny>()?;
                        Node::Withheld
                    } else {
                        map.next_value()?
                    };
                    members.push((key, value));
                }
                Ok(Node::Object(members))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A key, borrowed where it has no escape.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Compact JSON, in the order of the file: how the arguments of a tool call are shown. A withheld value shows as
/// `null`.
impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null | Self::Withheld => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write_quoted(f, text),
            Self::List(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write!(f, "{item}")?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                f.write_char('{')?;
                for (index, (key, value)) in members.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write_quoted(f, key)?;
                    write!(f, ": {value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

/// A JSON string; only what JSON does not allow raw is escaped.
pub(crate) fn write_quoted(f: &mut impl fmt::Write, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\0'..='\u{1f}' => write!(f, "\\u{:04x}", u32::from(character))?,
            _ => f.write_char(character)?,
        }
    }
    f.write_char('"')
}

/// A node and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'n, 'a> {
    pub(crate) node: &'n Node<'a>,
    path: Path<'n>,
}

/// The deepest place that a reader visits has seven segments (SDK statistics).
const PATH_MAX: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Path<'n> {
    segments: [Segment<'n>; PATH_MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Segment<'n> {
    Key(&'n str),
    Index(usize),
}

impl<'n> Path<'n> {
    fn then(mut self, segment: Segment<'n>) -> Self {
        // Deeper than any reader goes: the path stays at its prefix.
        if let Some(slot) = self.segments.get_mut(self.len) {
            *slot = segment;
            self.len += 1;
        }
        self
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len == 0 {
            return f.write_str("(the whole document)");
        }
        for (index, segment) in self.segments[..self.len].iter().enumerate() {
            match segment {
                Segment::Key(key) => write!(f, "{}{key}", if index == 0 { "" } else { "." })?,
                Segment::Index(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

impl<'n, 'a> At<'n, 'a> {
    /// The whole document.
    pub(crate) fn root(node: &'n Node<'a>) -> Self {
        Self { node, path: Path { segments: [Segment::Index(0); PATH_MAX], len: 0 } }
    }

    /// Row `index` of a file of JSON lines.
    pub(crate) fn row(node: &'n Node<'a>, index: usize) -> Self {
        let root = Self::root(node);
        Self { node, path: root.path.then(Segment::Index(index)) }
    }

    pub(crate) fn path(&self) -> String {
        self.path.to_string()
    }

    pub(crate) fn wrong(&self, expected: &'static str) -> Problem {
        Problem::WrongType { path: self.path(), expected, found: self.node.kind() }
    }

    pub(crate) fn out_of_range(&self, expected: &'static str) -> Problem {
        Problem::OutOfRange { path: self.path(), expected, found: self.node.to_string().chars().take(80).collect() }
    }

    /// The member `key`; `None` where it is absent or null.
    pub(crate) fn field(&self, key: &'n str) -> Result<Option<Self>, Problem> {
        let Node::Object(_) = self.node else {
            return Err(self.wrong("an object"));
        };
        let path = self.path.then(Segment::Key(key));
        Ok(self.node.member(key).filter(|node| **node != Node::Null).map(|node| Self { node, path }))
    }

    /// The member `key`, which the format always has.
    pub(crate) fn required(&self, key: &'n str, expected: &'static str) -> Result<Self, Problem> {
        self.field(key)?
            .ok_or_else(|| Problem::Missing { path: self.path.then(Segment::Key(key)).to_string(), expected })
    }

    /// The place that `keys` lead to; `None` as soon as one is absent or null.
    pub(crate) fn walk(&self, keys: &[&'n str]) -> Result<Option<Self>, Problem> {
        let mut place = *self;
        for key in keys {
            match place.field(key)? {
                Some(next) => place = next,
                None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// The text at `keys`; `None` as soon as one is absent or null.
    pub(crate) fn text_at(&self, keys: &[&'n str]) -> Result<Option<&'n str>, Problem> {
        self.walk(keys)?.map(|place| place.text()).transpose()
    }

    /// The count at `keys`; `None` as soon as one is absent or null.
    pub(crate) fn count_at(&self, keys: &[&'n str]) -> Result<Option<u64>, Problem> {
        self.walk(keys)?.map(|place| place.count()).transpose()
    }

    /// The number at `keys`; `None` as soon as one is absent or null.
    pub(crate) fn number_at(&self, keys: &[&'n str]) -> Result<Option<f64>, Problem> {
        self.walk(keys)?.map(|place| place.number()).transpose()
    }

    pub(crate) fn text(&self) -> Result<&'n str, Problem> {
        match self.node {
            Node::Text(text) => Ok(text),
            _ => Err(self.wrong("a string")),
        }
    }

    pub(crate) fn count(&self) -> Result<u64, Problem> {
        match self.node {
            Node::Unsigned(value) => Ok(*value),
            _ => Err(self.wrong("a whole number, not negative")),
        }
    }

    pub(crate) fn number(&self) -> Result<f64, Problem> {
        match self.node {
            #[expect(clippy::cast_precision_loss, reason = "money and limits, far below 2^52")]
            Node::Unsigned(value) => Ok(*value as f64),
            #[expect(clippy::cast_precision_loss, reason = "money and limits, far below 2^52")]
            Node::Signed(value) => Ok(*value as f64),
            Node::Float(value) => Ok(*value),
            _ => Err(self.wrong("a number")),
        }
    }

    /// An exit status: `None` for a number that no `i32` holds.
    pub(crate) fn exit_status(&self) -> Result<Option<i32>, Problem> {
        match self.node {
            Node::Unsigned(value) => Ok(i32::try_from(*value).ok()),
            Node::Signed(value) => Ok(i32::try_from(*value).ok()),
            _ => Err(self.wrong("a whole number")),
        }
    }

    pub(crate) fn items(&self) -> Result<impl ExactSizeIterator<Item = Self> + use<'n, 'a>, Problem> {
        let path = self.path;
        match self.node {
            Node::List(items) => Ok(items
                .iter()
                .enumerate()
                .map(move |(index, node)| Self { node, path: path.then(Segment::Index(index)) })),
            _ => Err(self.wrong("an array")),
        }
    }

    /// The items of the array `key`; none where it is absent or null.
    pub(crate) fn items_at(&self, key: &'n str) -> Result<Vec<Self>, Problem> {
        Ok(match self.field(key)? {
            Some(list) => list.items()?.collect(),
            None => Vec::new(),
        })
    }

    pub(crate) fn members(&self) -> Result<impl Iterator<Item = (&'n str, Self)> + use<'n, 'a>, Problem> {
        let path = self.path;
        match self.node {
            Node::Object(members) => Ok(members
                .iter()
                .map(move |(key, node)| (key.as_ref(), Self { node, path: path.then(Segment::Key(key)) }))),
            _ => Err(self.wrong("an object")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_withheld_keys_are_sorted_for_the_search() {
        assert!(WITHHELD.is_sorted());
    }

    #[test]
    fn outcome_fields_never_enter_the_tree() {
        for key in WITHHELD {
            let text = format!(r#"{{"a": [{{"{key}": ["secret", {{"b": "secret"}}]}}]}}"#);
            let node = Node::parse(&text, 1).unwrap();
            assert!(!format!("{node:?}").contains("secret"), "{key}");
            assert!(node.member("a").is_some_and(|list| matches!(list, Node::List(items) if items[0].has(key))));
        }
    }

    #[test]
    fn strings_without_escapes_are_borrowed() {
        let text = r#"{"plain": "abc", "escaped": "a\nb"}"#;
        let node = Node::parse(text, 1).unwrap();
        assert!(matches!(node.member("plain"), Some(Node::Text(Cow::Borrowed("abc")))));
        assert!(matches!(node.member("escaped"), Some(Node::Text(Cow::Owned(_)))));
    }

    #[test]
    fn errors_name_the_place() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        #[rustfmt::skip]
        let cases = [ // text, line of the file, expected
            (r#"{"a": 1"#,             1, "line 1, column 7 is not readable JSON: EOF while parsing an object"),
            ("{\n \"a\": ]",           5, "line 6, column 7 is not readable JSON: expected value"),
            (r#"{"a": 1, "a": 2}"#,    1, "line 1, column 12 is not readable JSON: the key \"a\" stands twice in one object"),
            (r#"{"a": NaN}"#,          1, "line 1, column 7 is not readable JSON: expected value"),
            ("1 2",                    3, "line 3, column 3 is not readable JSON: trailing characters"),
            (&deep,                    1, "line 1, column 128 is not readable JSON: recursion limit exceeded"),
        ];
        for (text, line, expected) in cases {
            assert_eq!(Node::parse(text, line).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_double_key_is_found_in_objects_of_any_size() {
        for members in [2, SEARCHED_MEMBERS_MAX - 1, SEARCHED_MEMBERS_MAX, SEARCHED_MEMBERS_MAX + 1, 500] {
            let keys: Vec<_> = (0..members).map(|key| format!("\"k{key}\": 1")).collect();
            assert!(Node::parse(&format!("{{{}}}", keys.join(", ")), 1).is_ok(), "{members}");
            for double in [0, members / 2, members - 1] {
                let text = format!("{{{}, \"k{double}\": 2}}", keys.join(", "));
                let problem = Node::parse(&text, 1).unwrap_err().to_string();
                assert!(problem.contains(&format!("the key \"k{double}\" stands twice")), "{problem}");
            }
        }
    }

    #[test]
    fn a_wrong_type_names_its_path_what_was_expected_and_what_was_found() {
        let node = Node::parse(r#"{"a": [{"b": "x"}, 7], "c": -1, "d": null}"#, 1).unwrap();
        let root = At::root(&node);
        let list: Vec<_> = root.items_at("a").unwrap();
        let long = Node::Text("x".repeat(41).into());
        #[rustfmt::skip]
        let cases = [
            (list[0].count_at(&["b"]).unwrap_err(),   "`a[0].b` should be a whole number, not negative; found the string \"x\""),
            (list[1].text().unwrap_err(),             "`a[1]` should be a string; found the number 7"),
            (list[1].field("b").unwrap_err(),         "`a[1]` should be an object; found the number 7"),
            (root.count_at(&["c"]).unwrap_err(),      "`c` should be a whole number, not negative; found the number -1"),
            (root.required("d", "text").unwrap_err(), "`d` is missing; expected text"),
            (root.text().unwrap_err(),                "`(the whole document)` should be a string; found an object of 3"),
            (At::row(&long, 4).count().unwrap_err(),  "`[4]` should be a whole number, not negative; found a string of 41 bytes"),
        ];
        for (problem, expected) in cases {
            assert_eq!(problem.to_string(), expected);
        }
        assert!(root.text_at(&["x", "y"]).unwrap().is_none());
        assert!(root.text_at(&["d", "y"]).unwrap().is_none());
    }

    #[test]
    fn what_is_shown_parses_to_the_same_tree() {
        let text = r#"{"a": [1, -2, 0.5, 1e300, true, null, "q\"\\\n\u0001é"], "b": {}}"#;
        let node = Node::parse(text, 1).unwrap();
        assert_eq!(Node::parse(&node.to_string(), 1).unwrap(), node);
    }
}
