//! The pre-tokenizer: cuts a text into pieces that merges cannot cross.

use std::ops::Range;

use super::classes::{self, Class};

/// The expression that Qwen3 publishes, and that [`Pieces`] is, alternative by alternative.
pub(crate) const PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The matches of [`PATTERN`], which leave no byte out: each character begins some alternative.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The class of the character at `at` and where the next one begins.
    #[inline]
    fn class(&self, at: usize) -> Option<(Class, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        match classes::OF_BYTE[usize::from(byte)] {
            Some(class) => Some((class, at + 1)),
            None => self.wide_class(at),
        }
    }

    #[cold]
    fn wide_class(&self, at: usize) -> Option<(Class, usize)> {
        let character = self.text.get(at..)?.chars().next()?;
        Some((classes::wide(character), at + character.len_utf8()))
    }

    /// The end of a run of one class.
    #[inline]
    fn run(&self, mut at: usize, of: Class) -> usize {
        while let Some((class, next)) = self.class(at)
            && class == of
        {
            at = next;
        }
        at
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` in either case, at an apostrophe. U+017F (C5 BF) folds to `s`,
    /// and no other letter to these.
    fn contraction(&self, at: usize) -> Option<usize> {
        let tail = &self.text.as_bytes()[at + 1..];
        let lower = |index: usize| tail.get(index).map(u8::to_ascii_lowercase);
        match (lower(0)?, lower(1)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) | (0xC5, Some(0xBF)) => Some(at + 3),
            _ => None,
        }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline of the run; else all of the run but its last character,
    /// which goes with what follows; else all of it.
    fn space(&self, start: usize) -> usize {
        let (mut end, mut last, mut newline) = (start, start, None);
        while let Some((class @ (Class::Space | Class::Newline), next)) = self.class(end) {
            if class == Class::Newline {
                newline = Some(next);
            }
            (last, end) = (end, next);
        }
        match newline {
            Some(newline) => newline,
            None if end < self.text.len() && last > start => last,
            None => end,
        }
    }

    #[inline]
    fn end_of_piece(&self, at: usize) -> Option<usize> {
        let (class, next) = self.class(at)?;
        Some(match class {
            Class::Letter => self.run(next, Class::Letter),
            Class::Number => next,
            Class::Newline => self.space(at),
            Class::Other | Class::Space => {
                let byte = self.text.as_bytes()[at];
                if byte == b'\''
                    && let Some(end) = self.contraction(at)
                {
                    return Some(end);
                }
                match self.class(next) {
                    Some((Class::Letter, letters)) => self.run(letters, Class::Letter),
                    Some((Class::Other, others)) if byte == b' ' => self.symbols(others),
                    _ if class == Class::Other => self.symbols(next),
                    _ => self.space(at),
                }
            }
        })
    }

    /// The rest of `[^\s\p{L}\p{N}]+[\r\n]*`.
    fn symbols(&self, at: usize) -> usize {
        let end = self.run(at, Class::Other);
        self.run(end, Class::Newline)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let (start, end) = (self.at, self.end_of_piece(self.at)?);
        self.at = end;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_where_the_expression_does() {
        #[rustfmt::skip]
        let cases: [(&str, &[&str]); 24] = [
            ("",                        &[]),
            ("don't",                   &["don", "'t"]),
            ("'sabc 'Re'LL",            &["'s", "abc", " '", "Re", "'LL"]),
            ("'\u{17F}x",               &["'\u{17F}", "x"]),
            ("'lx 'r",                  &["'lx", " '", "r"]),
            ("a  b",                    &["a", " ", " b"]),
            ("a   1",                   &["a", "  ", " ", "1"]),
            ("a \t\t(",                 &["a", " \t", "\t", "("]),
            ("a  ",                     &["a", "  "]),
            ("a \n  \r\n  b",           &["a", " \n  \r\n", " ", " b"]),
            ("\n",                      &["\n"]),
            ("x\n\n",                   &["x", "\n\n"]),
            ("x;\r\n\ty",               &["x", ";\r\n", "\ty"]),
            ("12.5",                    &["1", "2", ".", "5"]),
            (" 1",                      &[" ", "1"]),
            (" --x",                    &[" --", "x"]),
            ("-x",                      &["-x"]),
            ("\r\u{A0}x",               &["\r", "\u{A0}x"]),
            ("\u{A0}-",                 &["\u{A0}", "-"]),
            ("\u{3000}\u{3000}\u{4E2D}", &["\u{3000}", "\u{3000}\u{4E2D}"]),
            ("e\u{301}x",               &["e", "\u{301}x"]),
            ("\u{663}\u{BD}",           &["\u{663}", "\u{BD}"]),
            ("\u{1F600}\u{FE0F}\n",     &["\u{1F600}\u{FE0F}\n"]),
            ("<|im_end|>",              &["<|", "im", "_end", "|>"]),
        ];
        for (text, pieces) in cases {
            assert_eq!(Pieces::new(text).map(|it| &text[it]).collect::<Vec<_>>(), pieces, "{text:?}");
        }
    }
}
