//! What a person sees: failures with their causes, warnings, progress while it is a terminal, and answers.
//!
//! Most of it quotes files that nobody trusts. [`inert`] stands between them and the terminal, once, here.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Prints a failure and the whole chain of its causes, once.
pub(crate) fn failure(failure: &Failure) {
    let mut text = format!("tack: {}", failure.error);
    let mut cause = failure.error.source();
    while let Some(error) = cause {
        text.push_str("\n  because: ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    line(&text);
}

/// Prints something that the user should know and that does not stop the command.
pub(crate) fn warning(text: &str) {
    line(&format!("tack: warning: {text}"));
}

/// Prints something that the user may want to know.
pub(crate) fn note(text: &str) {
    line(&format!("tack: {text}"));
}

/// Shows `text` in place while standard error is a terminal; an empty one clears it.
pub(crate) fn progress(text: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // Progress is a courtesy: a terminal that is gone does not stop the work.
        drop(write!(stderr, "\r\x1b[K{}", inert(text)).and_then(|()| stderr.flush()));
    }
}

/// Prints an answer as indented JSON to standard output.
pub(crate) fn answer_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut json = serde_json::to_string_pretty(value).map_err(Failure::unknown)?;
    json.push('\n');
    answer(&json).map_err(Failure::unknown)
}

/// Prints an answer for people to standard output.
pub(crate) fn answer_people(text: &str) -> io::Result<()> {
    answer(&inert(text))
}

/// Prints to standard output; a reader that went away (`tack ... | head`) is not a failure.
fn answer(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints one line of JSON to standard error, where standard output belongs to a payload.
pub(crate) fn record(json: &str) {
    line(json);
}

fn line(text: &str) {
    // There is nowhere left to say that standard error is gone.
    drop(writeln!(io::stderr().lock(), "{}", inert(text)));
}

/// `text` without anything that a terminal would obey or that would reorder or break what is read: control characters but
/// line feed and tab, Unicode's own line ends, and the bidirectional controls, each written out as an escape.
fn inert(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if acts(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let cases = [
            ("plain\n\ttext é 漢", "plain\n\ttext é 漢"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("a\rb\x08c\x7f", "a\\rb\\u{8}c\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("if \u{202e}evil", "if \\u{202e}evil"),
            ("a\u{2028}b\u{2029}c\u{61c}", "a\\u{2028}b\\u{2029}c\\u{61c}"),
        ];
        for (text, expected) in cases {
            assert_eq!(inert(text), expected);
        }
    }
}
