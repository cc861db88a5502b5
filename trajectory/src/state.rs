//! A decision state that owns its bytes, and lends the views of `tack-core`.

use tack_core::{Candidate, ContextReason, DecisionState, Issue, Menu, MenuError, Observation, Patch, Remaining};

/// The five fields of a decision state, owned.
///
/// Like [`DecisionState`] it has no place for an outcome. Every text is bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnedState {
    /// The issue as the requester wrote it; `None`, where neither the recording nor the caller has it, is
    /// [`Issue::Unknown`], which is not the empty issue.
    pub issue: Option<Vec<u8>>,
    /// The public-test menu; `None` is [`Menu::Unknown`].
    pub menu: Option<OwnedMenu>,
    /// The patch against the initial repository; `None` is [`Patch::Unknown`], which is not the empty patch.
    pub patch: Option<Vec<u8>>,
    /// What the agent's tools answered, oldest first.
    pub observations: Vec<OwnedObservation>,
    /// What is left of the repair budget.
    pub budget: Remaining,
}

/// An [`Observation`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObservation {
    /// Which step of the recording it stands at, from 0.
    pub step: u32,
    /// The command or tool call, as recorded.
    pub call: Vec<u8>,
    /// The answer, as recorded.
    pub output: Vec<u8>,
    /// The exit status of the command, where it was recorded apart from the text.
    pub exit_status: Option<i32>,
    /// Why this entry is in the context.
    pub reason: ContextReason,
}

impl OwnedObservation {
    /// The view of `tack-core`.
    #[must_use]
    pub fn lend(&self) -> Observation<'_> {
        Observation {
            step: self.step,
            call: &self.call,
            output: &self.output,
            exit_status: self.exit_status,
            reason: self.reason,
        }
    }
}

/// A public-test menu within the bounds of [`Menu`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnedMenu {
    targeted: Vec<String>,
    broader: Vec<String>,
}

impl OwnedMenu {
    /// A menu of these test functions.
    ///
    /// # Errors
    /// [`MenuError`] if a part is over its bound.
    pub fn new(targeted: Vec<String>, broader: Vec<String>) -> Result<Self, MenuError> {
        let bounds = [("targeted", Menu::TARGETED_MAX, targeted.len()), ("broader", Menu::BROADER_MAX, broader.len())];
        for (part, most, found) in bounds {
            if found > most {
                return Err(MenuError { part, most, found });
            }
        }
        Ok(Self { targeted, broader })
    }

    /// The targeted test functions: at most [`Menu::TARGETED_MAX`].
    #[must_use]
    pub fn targeted(&self) -> &[String] {
        &self.targeted
    }

    /// The broader test functions: at most [`Menu::BROADER_MAX`].
    #[must_use]
    pub fn broader(&self) -> &[String] {
        &self.broader
    }
}

/// What a candidate is restored from, beside the state: the base, and what was saved but not shown.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Saved {
    /// The commit of the initial repository, where it was recorded.
    pub base: Option<String>,
    /// Answers up to the decision point that were hidden from the agent, oldest first. With the state's own they are
    /// the complete history; kept apart, no answer is held twice.
    pub hidden: Vec<Hidden>,
}

/// An answer that the agent was not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// How many of the state's observations came before it.
    pub after: usize,
    /// The answer.
    pub observation: OwnedObservation,
}

/// The lists of views that a lent state points into. See [`OwnedState::lend`].
#[derive(Clone, Debug)]
pub struct Lent<'s> {
    issue: Issue<'s>,
    menu: Option<(Vec<&'s str>, Vec<&'s str>)>,
    patch: Patch<'s>,
    observations: Vec<Observation<'s>>,
    budget: Remaining,
    base: Option<&'s str>,
    complete_history: Vec<Observation<'s>>,
}

impl OwnedState {
    /// Lends the state. Two calls, since the views point into lists that somebody has to hold:
    ///
    /// ```
    /// # use tack_trajectory::OwnedState;
    /// let state = OwnedState { issue: Some(b"it breaks".to_vec()), ..OwnedState::default() };
    /// let lent = state.lend();
    /// assert_eq!(lent.state().issue, tack_core::Issue::Known(b"it breaks"));
    /// ```
    #[must_use]
    pub fn lend(&self) -> Lent<'_> {
        Lent {
            issue: self.issue.as_deref().map_or(Issue::Unknown, Issue::Known),
            menu: self.menu.as_ref().map(|menu| (as_strs(&menu.targeted), as_strs(&menu.broader))),
            patch: self.patch.as_deref().map_or(Patch::Unknown, Patch::Known),
            observations: self.observations.iter().map(OwnedObservation::lend).collect(),
            budget: self.budget,
            base: None,
            complete_history: self.observations.iter().map(OwnedObservation::lend).collect(),
        }
    }

    /// Lends the state and, with what was `saved`, its candidate.
    #[must_use]
    pub fn lend_with<'s>(&'s self, saved: &'s Saved) -> Lent<'s> {
        Lent { base: saved.base.as_deref(), complete_history: self.complete_history(saved), ..self.lend() }
    }
}

impl OwnedState {
    fn complete_history<'s>(&'s self, saved: &'s Saved) -> Vec<Observation<'s>> {
        let mut hidden = saved.hidden.iter().peekable();
        let mut all = Vec::with_capacity(self.observations.len() + saved.hidden.len());
        for (index, seen) in self.observations.iter().enumerate() {
            while let Some(next) = hidden.next_if(|hidden| hidden.after <= index) {
                all.push(next.observation.lend());
            }
            all.push(seen.lend());
        }
        all.extend(hidden.map(|hidden| hidden.observation.lend()));
        all
    }
}

fn as_strs(tests: &[String]) -> Vec<&str> {
    tests.iter().map(String::as_str).collect()
}

impl Lent<'_> {
    /// The decision state.
    #[must_use]
    pub fn state(&self) -> DecisionState<'_> {
        DecisionState {
            issue: self.issue,
            menu: self.menu(),
            patch: self.patch,
            observations: &self.observations,
            budget: self.budget,
        }
    }

    /// The candidate: its visible history is the state's. Lent by [`OwnedState::lend`] alone, it has no base, and its
    /// complete history is the visible one.
    #[must_use]
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate {
            base: self.base,
            patch: self.patch,
            complete_history: &self.complete_history,
            visible_history: &self.observations,
        }
    }

    fn menu(&self) -> Menu<'_> {
        match &self.menu {
            None => Menu::Unknown,
            #[expect(clippy::expect_used, reason = "`OwnedMenu::new` holds the same two bounds")]
            Some((targeted, broader)) => Menu::new(targeted, broader).expect("an owned menu is within its bounds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(count: usize) -> Vec<String> {
        (0..count).map(|test| format!("tests/test_a.py::test_{test}")).collect()
    }

    #[test]
    fn the_bounds_are_those_of_core() {
        for targeted in [0, 1, 5, 6, 20, 21] {
            for broader in [0, 5, 20, 21] {
                let (a, b) = (tests(targeted), tests(broader));
                let (a_strs, b_strs) = (as_strs(&a), as_strs(&b));
                let of_core = Menu::new(&a_strs, &b_strs).map(|_| ());
                assert_eq!(OwnedMenu::new(a.clone(), b.clone()).map(|_| ()), of_core, "{targeted} and {broader}");
            }
        }
    }

    #[test]
    fn what_is_lent_is_what_is_owned() {
        let seen = OwnedObservation {
            step: 3,
            call: b"ls".to_vec(),
            output: vec![0xff, 0],
            exit_status: Some(-1),
            reason: ContextReason::Inspection,
        };
        let at = |step| OwnedObservation { step, ..seen.clone() };
        let state = OwnedState {
            issue: Some(b"issue".to_vec()),
            menu: Some(OwnedMenu::new(tests(2), tests(0)).unwrap()),
            patch: Some(Vec::new()),
            observations: vec![at(3), at(5)],
            budget: Remaining { tool_calls: Some(7), ..Remaining::default() },
        };
        let saved = Saved {
            base: Some("abc".to_owned()),
            hidden: [(0, 2), (1, 4), (2, 6)].map(|(after, step)| Hidden { after, observation: at(step) }).into(),
        };
        let lent = state.lend_with(&saved);
        assert_eq!(lent.state().issue, Issue::Known(b"issue"));
        assert_eq!(lent.state().menu.targeted().len(), 2);
        assert_eq!(lent.state().patch, Patch::Known(&[]));
        assert_eq!(lent.state().observations, [at(3).lend(), at(5).lend()]);
        assert_eq!(lent.state().budget.tool_calls, Some(7));
        let candidate = lent.candidate();
        assert_eq!(candidate.base, Some("abc"));
        let steps = |history: &[Observation<'_>]| history.iter().map(|seen| seen.step).collect::<Vec<_>>();
        assert_eq!(steps(candidate.complete_history), [2, 3, 4, 5, 6]);
        assert_eq!(steps(candidate.visible_history), [3, 5]);
        assert_eq!(steps(state.lend().candidate().complete_history), [3, 5]);

        let unknown = OwnedState::default();
        assert_eq!(unknown.lend().state().issue, Issue::Unknown);
        assert_eq!(unknown.lend().state().patch, Patch::Unknown);
        assert_eq!(unknown.lend().state().menu, Menu::Unknown);
    }
}
