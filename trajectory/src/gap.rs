//! What a recording does not say. A reader states it instead of guessing.

use std::borrow::Cow;
use std::fmt;

/// Something that a format does not carry, that this recording lacks, or that had to be altered to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What it is about.
    pub about: About,
    /// Whether every file of the format lacks it, or this one.
    pub cause: Cause,
    /// One sentence without a full stop.
    pub note: Cow<'static, str>,
}

/// What a [`Gap`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The issue text.
    Issue,
    /// The commit of the initial repository.
    Base,
    /// The patch against it.
    Patch,
    /// The tool calls and their answers.
    Observations,
    /// The exit status of commands.
    ExitStatus,
    /// What is left of the repair budget.
    Budget,
    /// Tokens that went in and came out.
    Tokens,
    /// Money.
    Cost,
    /// Wall time.
    Time,
    /// Which of several rows or candidates was read.
    Selection,
}

impl About {
    /// The name in messages and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::Base => "base",
            Self::Patch => "patch",
            Self::Observations => "observations",
            Self::ExitStatus => "exit_status",
            Self::Budget => "budget",
            Self::Tokens => "tokens",
            Self::Cost => "cost",
            Self::Time => "time",
            Self::Selection => "selection",
        }
    }
}

/// Why a [`Gap`] is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The format has no place for it: the reader's stated loss.
    Format,
    /// The format has a place for it, and this recording left it open.
    Recording,
    /// It was altered, so that it could be read at all.
    Altered,
    /// Several would do, and one was taken.
    Chosen,
}

impl Gap {
    pub(crate) fn new(about: About, cause: Cause, note: impl Into<Cow<'static, str>>) -> Self {
        Self { about, cause, note: note.into() }
    }

    /// Whether a person who decides on this state should hear of it: it concerns what the decision sees, or this
    /// very file, and not just the accounting of the format.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self.about, About::Issue | About::Patch | About::Observations | About::Selection)
            || self.cause != Cause::Format
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about.name(), self.note)
    }
}
