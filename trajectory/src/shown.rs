//! Words of a file inside a message of ours.

use std::fmt::{self, Write as _};

/// Most characters of a file's own words that one message quotes.
const SHOWN_MAX: usize = 200;

/// Shows a text that nobody trusts: bounded, and with nothing in it that a terminal would act on.
///
/// Control characters, line ends, and characters that turn the direction of text are escaped as Rust escapes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'t>(pub(crate) &'t str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, SHOWN_MAX)
    }
}

/// Writes at most `most` characters of `text`, and how many bytes there are where that is not all.
pub(crate) fn show(f: &mut fmt::Formatter<'_>, text: &str, most: usize) -> fmt::Result {
    let mut characters = text.chars();
    for character in characters.by_ref().take(most) {
        match character {
            // Quotes and backslashes act on nothing.
            '\'' | '"' | '\\' => f.write_char(character)?,
            _ => write!(f, "{}", character.escape_debug())?,
        }
    }
    if characters.as_str().is_empty() { Ok(()) } else { write!(f, "... ({} bytes)", text.len()) }
}

/// Most names of a list that one message quotes.
const LISTED_MAX: usize = 10;

/// The first names of a list, and how many more there are.
pub(crate) struct Listed<'t>(pub(crate) &'t [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, Shown(name))?;
        }
        match self.0.len() {
            0 => f.write_str("no instance id"),
            count if count > LISTED_MAX => write!(f, " and {} more", count - LISTED_MAX),
            _ => Ok(()),
        }
    }
}

/// The first characters of what `value` shows, without writing the rest.
pub(crate) fn beginning(value: &impl fmt::Display, most: usize) -> String {
    struct Room {
        text: String,
        left: usize,
    }
    impl fmt::Write for Room {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.char_indices().nth(self.left).map_or(text.len(), |(at, _)| at);
            self.text.push_str(&text[..end]);
            self.left -= text[..end].chars().count();
            if end == text.len() { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut room = Room { text: String::new(), left: most };
    if write!(room, "{value}").is_err() {
        room.text.push_str("...");
    }
    room.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_a_terminal_and_nothing_is_long() {
        let long = "é".repeat(SHOWN_MAX + 1);
        #[rustfmt::skip]
        let cases = [
            ("",                    ""),
            ("a 'b' \"c\" \\d é漢", "a 'b' \"c\" \\d é漢"),
            ("\x1b]0;x\x07",        "\\u{1b}]0;x\\u{7}"),
            ("a\r\nb\tc\0",         "a\\r\\nb\\tc\\0"),
            ("\u{9b}31m\u{202e}x",  "\\u{9b}31m\\u{202e}x"),
            (&long[..2 * SHOWN_MAX], &long[..2 * SHOWN_MAX]),
        ];
        for (text, expected) in cases {
            assert_eq!(Shown(text).to_string(), expected);
        }
        assert_eq!(Shown(&long).to_string(), format!("{}... (402 bytes)", &long[2..]));
    }

    #[test]
    fn a_list_shows_its_first_names() {
        let names = |count: usize| (0..count).map(|name| format!("n{name}")).collect::<Vec<_>>();
        #[rustfmt::skip]
        let cases = [
            (0,       "no instance id"),
            (1,       "n0"),
            (10,      "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9"),
            (12,      "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more"),
            (100_000, "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 99990 more"),
        ];
        for (count, expected) in cases {
            assert_eq!(Listed(&names(count)).to_string(), expected);
        }
    }

    #[test]
    fn a_beginning_is_all_or_says_that_it_is_not() {
        assert_eq!(beginning(&"éé", 2), "éé");
        assert_eq!(beginning(&"ééa", 2), "éé...");
        assert_eq!(beginning(&format_args!("{}{}", "a", "bc"), 2), "ab...");
    }
}
