//! A JSON tree that points into its file, in which every access knows its path, so that an error can name it.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use crate::error::Problem;
use crate::kept::Kept;
use crate::shown::{beginning, show};
use crate::text::Text;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    Null,
    Bool(bool),
    /// As it is written in the file.
    Number(&'a str),
    Text(Text<'a>),
    List(Vec<Node<'a>>),
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// The value of a key of [`WITHHELD`](crate::parse::WITHHELD).
    Withheld,
}

impl Node<'_> {
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
            Self::Number(literal) => format!("the number {}", beginning(literal, SHOWN_MAX)),
            Self::Text(text) => match text.count_bytes() {
                0..=SHOWN_MAX => format!("the string {:?}", text.as_str()),
                bytes => format!("a string of {bytes} bytes"),
            },
            Self::List(items) => format!("an array of {}", items.len()),
            Self::Object(members) => format!("an object of {}", members.len()),
            Self::Withheld => "an outcome field".into(),
        }
    }
}

/// Most characters of a value, or of a key in a path, that an error quotes.
const SHOWN_MAX: usize = 40;

/// Compact JSON, in the order of the file: how the arguments of a tool call are shown. A withheld value shows as
/// `null`.
impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null | Self::Withheld => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(literal) => f.write_str(literal),
            Self::Text(text) => write_quoted(f, text.as_str()),
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
                Segment::Key(key) => {
                    f.write_str(if index == 0 { "" } else { "." })?;
                    show(f, key, SHOWN_MAX)?;
                }
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

    /// Another document in this one's place: JSON that stands in a text.
    pub(crate) fn holding<'m, 'b>(&self, node: &'m Node<'b>) -> At<'m, 'b>
    where
        'n: 'm,
    {
        At { node, path: self.path }
    }

    pub(crate) fn path(&self) -> String {
        self.path.to_string()
    }

    pub(crate) fn wrong(&self, expected: &'static str) -> Problem {
        Problem::WrongType { path: self.path(), expected, found: self.node.kind() }
    }

    pub(crate) fn out_of_range(&self, expected: &'static str) -> Problem {
        Problem::OutOfRange { path: self.path(), expected, found: beginning(self.node, 2 * SHOWN_MAX) }
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

    /// The text at `keys` as bytes of its own; `None` as soon as one is absent or null.
    pub(crate) fn bytes_at(&self, keys: &[&'n str]) -> Result<Option<Vec<u8>>, Problem> {
        self.walk(keys)?.map(|place| place.bytes()).transpose()
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
            Node::Text(text) => Ok(text.as_str()),
            _ => Err(self.wrong("a string")),
        }
    }

    /// The text as bytes of its own. Unlike [`At::text`], no copy stays in the tree.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Problem> {
        match self.node {
            Node::Text(text) => Ok(text.clone().into_cow().into_owned().into_bytes()),
            _ => Err(self.wrong("a string")),
        }
    }

    /// Gives the text to `push` piece by piece, holding none of it.
    pub(crate) fn pieces(&self, push: &mut dyn FnMut(&str)) -> Result<(), Problem> {
        match self.node {
            Node::Text(text) => {
                text.pieces(push);
                Ok(())
            }
            _ => Err(self.wrong("a string")),
        }
    }

    /// As much of the text as a state keeps.
    pub(crate) fn kept(&self) -> Result<Kept, Problem> {
        match self.node {
            Node::Text(text) => Ok(text.kept()),
            _ => Err(self.wrong("a string")),
        }
    }

    pub(crate) fn count(&self) -> Result<u64, Problem> {
        match self.node {
            Node::Number(literal) => literal.parse().ok(),
            _ => None,
        }
        .ok_or_else(|| self.wrong("a whole number from 0 to 2^64 - 1"))
    }

    pub(crate) fn number(&self) -> Result<f64, Problem> {
        match self.node {
            Node::Number(literal) => literal.parse().ok().filter(|value: &f64| value.is_finite()),
            _ => None,
        }
        .ok_or_else(|| self.wrong("a number"))
    }

    /// An exit status: `None` for a whole number that no `i32` holds.
    pub(crate) fn exit_status(&self) -> Result<Option<i32>, Problem> {
        match self.node {
            Node::Number(literal) if !literal.contains(['.', 'e', 'E']) => Ok(literal.parse().ok()),
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
    use crate::parse::{Unreadable, parse};

    #[test]
    fn a_wrong_type_names_its_path_what_was_expected_and_what_was_found() {
        let long = format!("[\"{}\", {}]", "x".repeat(100_000), "1".repeat(100_000));
        let long = parse(long.as_bytes(), Unreadable::Refuse).unwrap();
        let long: Vec<_> = At::root(&long).items().unwrap().collect();
        let text = format!(
            r#"{{"a": [{{"b": "x"}}, 7, 1.0, 1e3, -1, 18446744073709551616, 1e999], "d": null, "\u001b{}": 1}}"#,
            "k".repeat(100)
        );
        let node = parse(text.as_bytes(), Unreadable::Refuse).unwrap();
        let root = At::root(&node);
        let list: Vec<_> = root.items_at("a").unwrap();
        let (_, named_at_length) = root.members().unwrap().last().unwrap();
        let digits = "1".repeat(40);
        let named = format!("`\\u{{1b}}{}... (101 bytes)` should be a string; found the number 1", "k".repeat(39));
        let numbered = format!("`[1]` should be a string; found the number {digits}...");
        #[rustfmt::skip]
        let cases = [
            (list[0].count_at(&["b"]).unwrap_err(),   "`a[0].b` should be a whole number from 0 to 2^64 - 1; found the string \"x\""),
            (list[1].text().unwrap_err(),             "`a[1]` should be a string; found the number 7"),
            (list[1].field("b").unwrap_err(),         "`a[1]` should be an object; found the number 7"),
            (list[2].count().unwrap_err(),            "`a[2]` should be a whole number from 0 to 2^64 - 1; found the number 1.0"),
            (list[2].exit_status().unwrap_err(),      "`a[2]` should be a whole number; found the number 1.0"),
            (list[3].exit_status().unwrap_err(),      "`a[3]` should be a whole number; found the number 1e3"),
            (list[4].count().unwrap_err(),            "`a[4]` should be a whole number from 0 to 2^64 - 1; found the number -1"),
            (list[5].count().unwrap_err(),            "`a[5]` should be a whole number from 0 to 2^64 - 1; found the number 18446744073709551616"),
            (list[6].number().unwrap_err(),           "`a[6]` should be a number; found the number 1e999"),
            (root.required("d", "text").unwrap_err(), "`d` is missing; expected text"),
            (root.text().unwrap_err(),                "`(the whole document)` should be a string; found an object of 3"),
            (named_at_length.text().unwrap_err(),     &named),
            (long[0].count().unwrap_err(),            "`[0]` should be a whole number from 0 to 2^64 - 1; found a string of 100000 bytes"),
            (long[1].text().unwrap_err(),             &numbered),
        ];
        for (problem, expected) in cases {
            assert_eq!(problem.to_string(), expected);
        }
        assert!(root.text_at(&["x", "y"]).unwrap().is_none());
        assert!(root.text_at(&["d", "y"]).unwrap().is_none());
        assert_eq!((list[5].exit_status().unwrap(), list[4].exit_status().unwrap()), (None, Some(-1)));
        assert!((list[3].number().unwrap() - 1_000.0).abs() < f64::EPSILON);
    }

    #[test]
    fn what_is_shown_parses_to_the_same_tree() {
        let text = r#"{"a": [1, -2, 0.5, 1e300, 1.0, true, null, "q\"\\\n\u0001é"], "b": {}}"#;
        let node = parse(text.as_bytes(), Unreadable::Refuse).unwrap();
        assert_eq!(node.to_string(), text);
        assert_eq!(parse(node.to_string().as_bytes(), Unreadable::Refuse).unwrap(), node);
    }
}
