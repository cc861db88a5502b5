//! What a person sees on standard error: failures with their causes, warnings, and progress while it is a terminal.

use std::io::{self, IsTerminal, Write};

use crate::exit::Failure;

/// Prints a failure and the whole chain of its causes, once.
pub(crate) fn failure(failure: &Failure) {
    let mut text = format!("tack: {}", failure.error);
    let mut cause = failure.error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n  because: {error}"));
        cause = error.source();
    }
    line(&text);
}

/// Prints something that the user should know and that does not stop the command.
pub(crate) fn warning(text: &str) {
    line(&format!("tack: {text}"));
}

/// Shows `text` in place while standard error is a terminal; an empty one clears it.
pub(crate) fn progress(text: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // Progress is a courtesy: a terminal that is gone does not stop the work.
        drop(write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()));
    }
}

/// Prints to standard output; a reader that went away (`tack ... | head`) is not a failure.
pub(crate) fn answer(text: &str) -> io::Result<()> {
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
    drop(writeln!(io::stderr().lock(), "{text}"));
}
