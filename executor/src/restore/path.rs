//! Paths inside a repository: bytes, as git and Linux have them, and how they are written in text.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest path of a file in a tree, in bytes: Linux's `PATH_MAX` of 4,096, less room for the directory around it.
pub const PATH_BYTES_MAX: usize = 3_072;
/// Longest name in a path, in bytes: Linux's `NAME_MAX`.
pub const NAME_BYTES_MAX: usize = 255;

/// A path inside a repository: relative, `/`-separated, and unable to leave it or to reach its git directory.
///
/// Any other bytes than NUL may stand in it. Its text (`Display`, JSON) is git's: a name with a control character, a
/// quote, a backslash or a byte beyond ASCII is written in double quotes with C's escapes, so that no name can forge
/// a line of a report and any name can be read back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TreePath(Vec<u8>);

/// Why some bytes are no path inside a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no name at all, or none between two slashes.
    #[error("it has an empty part")]
    Empty,
    /// It starts at the root of the file system.
    #[error("it is absolute")]
    Absolute,
    /// A part is `.` or `..`.
    #[error("it has a `.` or `..` part")]
    Dots,
    /// A part is `.git`, in any case: hooks, configuration and attributes live there.
    #[error("it reaches into a `.git` directory")]
    Git,
    /// It holds a NUL, which ends a path for the system.
    #[error("it holds a NUL byte")]
    Nul,
    /// It is longer than [`PATH_BYTES_MAX`], or a name in it than [`NAME_BYTES_MAX`].
    #[error("it is longer than {PATH_BYTES_MAX} bytes, or a name in it than {NAME_BYTES_MAX}")]
    Long,
    /// Its text opens a quote and is not as git quotes a name.
    #[error("it starts with a quote and is not a name as git quotes it")]
    Quoting,
}

impl TreePath {
    /// A path, if the bytes are one.
    ///
    /// # Errors
    /// [`PathError`] names the first rule that they break.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let bytes = bytes.as_ref();
        if bytes.starts_with(b"/") {
            return Err(PathError::Absolute);
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(PathError::Long);
        }
        if bytes.contains(&0) {
            return Err(PathError::Nul);
        }
        for part in bytes.split(|it| *it == b'/') {
            match part {
                b"" => return Err(PathError::Empty),
                b"." | b".." => return Err(PathError::Dots),
                it if it.eq_ignore_ascii_case(b".git") => return Err(PathError::Git),
                it if it.len() > NAME_BYTES_MAX => return Err(PathError::Long),
                _ => {}
            }
        }
        Ok(Self(bytes.to_owned()))
    }

    /// The path as text has it: plain, or quoted as git quotes.
    ///
    /// # Errors
    /// [`PathError`], also where a quoted text is not closed or has an unknown escape.
    pub fn from_text(text: &str) -> Result<Self, PathError> {
        if !text.starts_with('"') {
            return Self::new(text);
        }
        match unquote(text.as_bytes()) {
            Some((bytes, b"")) => Self::new(bytes),
            _ => Err(PathError::Quoting),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as the system's calls take it, relative to the repository.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The directories above the file, nearest first.
    pub fn parents(&self) -> impl Iterator<Item = &[u8]> {
        let slashes = self.0.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| &self.0[..at])
    }

    /// How many directories stand above the file.
    pub(crate) fn depth(&self) -> usize {
        self.parents().count()
    }
}

/// Both order by bytes, so a map of paths can be asked with bytes.
impl Borrow<[u8]> for TreePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0))
    }
}

impl TryFrom<String> for TreePath {
    type Error = PathError;
    fn try_from(text: String) -> Result<Self, PathError> {
        Self::from_text(&text)
    }
}

impl From<TreePath> for String {
    fn from(path: TreePath) -> Self {
        text(&path.0)
    }
}

/// A name as git writes it with its default settings (`core.quotePath`): plain where it can be, else quoted.
#[must_use]
pub fn text(name: &[u8]) -> String {
    let plain = |byte: &u8| (b' '..=b'~').contains(byte) && !matches!(byte, b'"' | b'\\');
    if name.iter().all(plain) {
        return name.iter().map(|byte| char::from(*byte)).collect();
    }
    let mut quoted = String::from("\"");
    for byte in name {
        match ESCAPES.iter().find(|(_, value)| value == byte) {
            Some((letter, _)) => quoted.extend(['\\', char::from(*letter)]),
            None if plain(byte) => quoted.push(char::from(*byte)),
            // Writing to a string does not fail.
            None => {
                write!(quoted, "\\{byte:03o}").ok();
            }
        }
    }
    quoted.push('"');
    quoted
}

/// The letter after a backslash, and the byte it stands for.
const ESCAPES: [(u8, u8); 9] = [
    (b'a', 0x07),
    (b'b', 0x08),
    (b't', b'\t'),
    (b'n', b'\n'),
    (b'v', 0x0b),
    (b'f', 0x0c),
    (b'r', b'\r'),
    (b'"', b'"'),
    (b'\\', b'\\'),
];

/// The name in a text that starts with a quote, and what follows the closing one.
#[must_use]
pub fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut name = Vec::new();
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((name, rest)),
            b'\\' => {
                let (escape, after) = rest.split_first()?;
                rest = after;
                if let Some((_, value)) = ESCAPES.iter().find(|(letter, _)| letter == escape) {
                    name.push(*value);
                    continue;
                }
                // Three octal digits, of which the first is at most 3.
                let (more, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = [*escape, more[0], more[1]];
                let fits = digits[0] <= b'3' && digits.iter().all(|it| (b'0'..=b'7').contains(it));
                if !fits {
                    return None;
                }
                name.push(digits.iter().fold(0, |value, it| (value << 3) | (it - b'0')));
            }
            plain => name.push(*plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_stays_inside_the_tree_and_out_of_its_git_directory() {
        let name = "a".repeat(NAME_BYTES_MAX);
        let (long_name, long) = (format!("{name}a"), format!("{name}/").repeat(12) + &name);
        #[rustfmt::skip]
        let cases: [(&[u8], Result<(), PathError>); 21] = [
            (b"retrykit/config.py",  Ok(())),
            (b".gitignore",          Ok(())),
            ("a b/ü.py".as_bytes(),  Ok(())),
            (b"\xff\xfe",            Ok(())),
            (b"a\\..\\b",            Ok(())),
            (b"a\x1b[2Jb",           Ok(())),
            (b"...",                 Ok(())),
            (b"",                    Err(PathError::Empty)),
            (b"a//b",                Err(PathError::Empty)),
            (b"a/",                  Err(PathError::Empty)),
            (b"/etc/passwd",         Err(PathError::Absolute)),
            (b"../up",               Err(PathError::Dots)),
            (b"a/../../up",          Err(PathError::Dots)),
            (b"./a",                 Err(PathError::Dots)),
            (b".git/hooks/x",        Err(PathError::Git)),
            (b"sub/.GIT/config",     Err(PathError::Git)),
            (b".git",                Err(PathError::Git)),
            (b"a\0b",                Err(PathError::Nul)),
            (name.as_bytes(),        Ok(())),
            (long_name.as_bytes(),   Err(PathError::Long)),
            (long.as_bytes(),        Err(PathError::Long)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(TreePath::new(bytes).map(|_| ()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_name_is_written_as_git_writes_it() {
        #[rustfmt::skip]
        let cases: [(&[u8], &str); 6] = [
            (b"a b",              "a b"),
            (b"a\tb\n",           r#""a\tb\n""#),
            (b"\"q\"\\",          r#""\"q\"\\""#),
            ("ü".as_bytes(),      r#""\303\274""#),
            (b"\xff\x1b[2J\x7f",  r#""\377\033[2J\177""#),
            (b"a\x07\x08\x0b\x0c\r", r#""a\a\b\v\f\r""#),
        ];
        for (name, written) in cases {
            assert_eq!(text(name), written);
            assert_eq!(TreePath::from_text(written).unwrap().as_bytes(), name);
        }
        for broken in
            [r#"""#, r#""a"#, r#""\"#, r#""\4"#, r#""\400""#, r#""\08a""#, r#""\x""#, r#""a"b"#, r#""a\000b""#]
        {
            TreePath::from_text(broken).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn any_name_survives_its_own_text(name in proptest::collection::vec(1_u8.., 1..40)) {
            if let Ok(path) = TreePath::new(&name) {
                prop_assert_eq!(&TreePath::from_text(&path.to_string()).unwrap(), &path);
                prop_assert!(path.to_string().bytes().all(|it| (b' '..=b'~').contains(&it)));
            }
        }
    }
}
