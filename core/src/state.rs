//! What a decision may see, borrowed from whoever holds it.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::action::{Action, ActionSet};
use crate::closed_enum::closed_enum;
use crate::limits::Remaining;

/// Everything the controller sees, and all it can see (paper, "Decision state").
///
/// There is no field for a future observation, a reference patch or an official outcome. Text is bytes: what an
/// agent recorded need not be UTF-8, and none of it is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionState<'a> {
    /// The issue as the requester wrote it.
    pub issue: Issue<'a>,
    /// The public tests that the two test actions would run.
    pub menu: Menu<'a>,
    /// The patch against the initial repository.
    pub patch: Patch<'a>,
    /// What the agent's tools answered, oldest first.
    pub observations: &'a [Observation<'a>],
    /// What is left of the repair budget.
    pub budget: Remaining,
}

/// An issue: bytes that may be empty, or not known at all. The two are never mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Issue<'a> {
    /// The recorder did not keep it, and nobody gave it. Nothing may be concluded from its absence.
    Unknown,
    /// The requester's words, byte for byte; empty means that nothing was written.
    Known(#[serde(borrow)] &'a [u8]),
}

/// A patch: bytes that may be empty, or not known at all. The two are never mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patch<'a> {
    /// The recorder did not keep it. Nothing may be concluded from its absence.
    Unknown,
    /// A unified git diff, byte for byte; empty means that nothing was changed.
    Known(#[serde(borrow)] &'a [u8]),
}

/// One thing that the agent saw: a call of a tool and what it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation<'a> {
    /// Which step of the recording it stands at, from 0.
    pub step: u32,
    /// The command or tool call, as recorded.
    #[serde(borrow)]
    pub call: &'a [u8],
    /// The answer, as recorded.
    #[serde(borrow)]
    pub output: &'a [u8],
    /// The exit status of the command, where it was recorded apart from the text.
    pub exit_status: Option<i32>,
    /// Why this entry is in the context.
    pub reason: ContextReason,
}

closed_enum! {
    /// Why an entry is in the context (article, "Ten fields", context: "why is each observation relevant?").
    pub enum ContextReason {
        /// The agent ran a command or called a tool, and this is the answer.
        ToolCall = "tool_call",
        /// The agent read a file or searched the tree.
        Inspection = "inspection",
        /// The agent changed a file, and this is what the editor said.
        Edit = "edit",
        /// The agent ran tests of its own choice.
        AgentTest = "agent_test",
        /// A prescribed public test of an action that was chosen earlier.
        Pretest = "pretest",
        /// The harness spoke: a format error, a limit, a time-out.
        Harness = "harness",
    }
}

/// The public tests that the two test actions would run, chosen from the initial tree by a fixed rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Menu<'a> {
    /// There is no repository to choose from. Both test actions are unavailable.
    Unknown,
    /// What the rule chose; either part may be empty, which makes its action unavailable.
    Known(KnownMenu<'a>),
}

/// A menu within its bounds: at most five targeted and twenty broader test functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMenu<'a> {
    targeted: &'a [&'a str],
    broader: &'a [&'a str],
}

/// A menu broke its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MenuError {
    /// `targeted` or `broader`.
    pub part: &'static str,
    /// How many test functions it may hold.
    pub most: usize,
    /// How many came.
    pub found: usize,
}

impl fmt::Display for MenuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} part of a menu holds at most {} test functions; found {}", self.part, self.most, self.found)
    }
}

impl core::error::Error for MenuError {}

impl<'a> Menu<'a> {
    /// Most test functions of `test_targeted` (paper, "Public tests and official labels").
    pub const TARGETED_MAX: usize = 5;
    /// Most test functions of `test_regression` (same place).
    pub const BROADER_MAX: usize = 20;

    /// A known menu.
    ///
    /// # Errors
    /// [`MenuError`] if a part is over its bound.
    pub const fn new(targeted: &'a [&'a str], broader: &'a [&'a str]) -> Result<Self, MenuError> {
        if targeted.len() > Self::TARGETED_MAX {
            Err(MenuError { part: "targeted", most: Self::TARGETED_MAX, found: targeted.len() })
        } else if broader.len() > Self::BROADER_MAX {
            Err(MenuError { part: "broader", most: Self::BROADER_MAX, found: broader.len() })
        } else {
            Ok(Self::Known(KnownMenu { targeted, broader }))
        }
    }

    /// The targeted test functions; none where the menu is unknown.
    #[must_use]
    pub const fn targeted(&self) -> &'a [&'a str] {
        match self {
            Self::Unknown => &[],
            Self::Known(menu) => menu.targeted,
        }
    }

    /// The broader test functions; none where the menu is unknown.
    #[must_use]
    pub const fn broader(&self) -> &'a [&'a str] {
        match self {
            Self::Unknown => &[],
            Self::Known(menu) => menu.broader,
        }
    }

    /// What the menu leaves available: all five actions, less each test action whose part has no entry.
    #[must_use]
    pub const fn available(&self) -> ActionSet {
        let mut set = ActionSet::ALL;
        if self.targeted().is_empty() {
            set = set.without(Action::TestTargeted);
        }
        if self.broader().is_empty() {
            set = set.without(Action::TestRegression);
        }
        set
    }
}

/// A candidate as the executor restores it: base, patch, and both histories.
///
/// The complete history is restored, never shown: a [`DecisionState`] is built from the visible one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The commit of the initial repository, where it was recorded.
    pub base: Option<&'a str>,
    /// The patch against the base.
    pub patch: Patch<'a>,
    /// Everything that was saved, oldest first.
    pub complete_history: &'a [Observation<'a>],
    /// What the repair policy may see of it.
    pub visible_history: &'a [Observation<'a>],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_part_leaves_its_action_unavailable_and_a_bound_is_a_bound() {
        let some: &[&str] = &["t::a"];
        #[rustfmt::skip]
        let cases = [ // menu                                  targeted  regression
            (Menu::Unknown,                                    false,    false),
            (Menu::new(&[], &[]).unwrap(),                     false,    false),
            (Menu::new(some, &[]).unwrap(),                    true,     false),
            (Menu::new(&[], some).unwrap(),                    false,    true),
            (Menu::new(&["t"; 5], &["t"; 20]).unwrap(),        true,     true),
        ];
        for (menu, targeted, regression) in cases {
            let available = menu.available();
            assert_eq!(available.contains(Action::TestTargeted), targeted, "{menu:?}");
            assert_eq!(available.contains(Action::TestRegression), regression, "{menu:?}");
            for always in [Action::Submit, Action::Continue, Action::Retry] {
                assert!(available.contains(always), "{menu:?}");
            }
        }
        assert_eq!(Menu::new(&["t"; 6], &[]), Err(MenuError { part: "targeted", most: 5, found: 6 }));
        assert_eq!(Menu::new(&[], &["t"; 21]), Err(MenuError { part: "broader", most: 20, found: 21 }));
    }
}
