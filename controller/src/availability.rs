//! Which actions may be chosen, and why the others may not; and which one stands in where nothing was chosen.

use serde::Serialize;
use tack_core::{Action, ActionSet, DecisionState, Menu, Patch, PerAction};

/// Why an action may not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unavailable {
    /// There is no repository to choose tests from.
    #[error("the test menu is unknown: there is no repository to choose tests from")]
    MenuUnknown,
    /// The menu's rule found no test for it.
    #[error("its part of the test menu is empty")]
    MenuEmpty,
    /// The caller left it out.
    #[error("the caller does not allow it")]
    NotAllowed,
}

/// What each action lacks; `None` for an action that may be chosen.
#[must_use]
pub fn unavailable(menu: &Menu<'_>, allowed: ActionSet) -> PerAction<Option<Unavailable>> {
    let of_menu = menu.available();
    PerAction::from_fn(|action| match menu {
        Menu::Unknown if !of_menu.contains(action) => Some(Unavailable::MenuUnknown),
        Menu::Known(_) if !of_menu.contains(action) => Some(Unavailable::MenuEmpty),
        _ if !allowed.contains(action) => Some(Unavailable::NotAllowed),
        _ => None,
    })
}

/// The actions that lack nothing.
#[must_use]
pub fn available(reasons: &PerAction<Option<Unavailable>>) -> ActionSet {
    reasons.iter().filter(|(_, why)| why.is_none()).map(|(action, _)| action).collect()
}

/// What to do where there are no estimates: a deadline passed, or the model could not be run.
///
/// A patch that is known and not empty is submitted: it is what an agent without a controller would do with it, it
/// costs nothing, and it ends; so a controller that is always late changes nothing and spends nothing. A patch that is
/// empty or not known is no answer, so the work goes on, which throws nothing away and can be decided again; starting
/// afresh or testing costs more and comes after. `None` if and only if `available` is empty.
#[must_use]
pub fn fallback_action(state: &DecisionState<'_>, available: ActionSet) -> Option<Action> {
    use Action::{Continue, Retry, Submit, TestRegression, TestTargeted};
    let order = match state.patch {
        Patch::Known(patch) if !patch.is_empty() => [Submit, Continue, TestTargeted, TestRegression, Retry],
        Patch::Known(_) | Patch::Unknown => [Continue, Retry, TestTargeted, TestRegression, Submit],
    };
    order.into_iter().find(|&action| available.contains(action))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tack_core::{Issue, Remaining};

    #[test]
    fn an_action_that_may_not_be_chosen_says_why() {
        use Unavailable::{MenuEmpty, MenuUnknown, NotAllowed};
        let some: &[&str] = &["t::a"];
        let no_retry = ActionSet::ALL.without(Action::Retry);
        #[rustfmt::skip]
        let cases = [ // menu                    allowed           retry         targeted           regression
            (Menu::Unknown,                      ActionSet::ALL,   None,         Some(MenuUnknown), Some(MenuUnknown)),
            (Menu::new(&[], &[]).unwrap(),       ActionSet::ALL,   None,         Some(MenuEmpty),   Some(MenuEmpty)),
            (Menu::new(some, &[]).unwrap(),      ActionSet::ALL,   None,         None,              Some(MenuEmpty)),
            (Menu::new(&[], some).unwrap(),      no_retry,         Some(NotAllowed), Some(MenuEmpty),   None),
            (Menu::new(some, some).unwrap(),     ActionSet::EMPTY, Some(NotAllowed), Some(NotAllowed),      Some(NotAllowed)),
        ];
        for (menu, allowed, retry, targeted, regression) in cases {
            let found = unavailable(&menu, allowed);
            let expected = (retry, targeted, regression);
            assert_eq!((found[Action::Retry], found[Action::TestTargeted], found[Action::TestRegression]), expected);
            assert_eq!(available(&found), menu.available().intersection(allowed), "the reasons and the set are one");
        }
    }

    #[test]
    fn a_reason_is_one_word() {
        for (reason, word) in [
            (Unavailable::MenuUnknown, "menu_unknown"),
            (Unavailable::MenuEmpty, "menu_empty"),
            (Unavailable::NotAllowed, "not_allowed"),
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), word);
        }
    }

    #[test]
    fn the_fallback_submits_an_answer_and_continues_without_one() {
        use Action::{Continue, Retry, Submit};
        let state = |patch| DecisionState {
            issue: Issue::Unknown,
            menu: Menu::Unknown,
            patch,
            observations: &[],
            budget: Remaining::default(),
        };
        #[rustfmt::skip]
        let cases = [ // patch               without                 falls back to
            (Patch::Known(b"diff"),          ActionSet::EMPTY,        Some(Submit)),
            (Patch::Known(b"diff"),          [Submit].into_iter().collect(), Some(Continue)),
            (Patch::Known(b""),              ActionSet::EMPTY,        Some(Continue)),
            (Patch::Unknown,                 ActionSet::EMPTY,        Some(Continue)),
            (Patch::Unknown,                 [Continue].into_iter().collect(), Some(Retry)),
            (Patch::Unknown,                 ActionSet::ALL,          None),
        ];
        for (patch, without, expected) in cases {
            let available = ActionSet::ALL.iter().filter(|&action| !without.contains(action)).collect();
            assert_eq!(fallback_action(&state(patch), available), expected);
        }
        for bits in 0..32 {
            let available = ActionSet::from_bits(bits).unwrap();
            for patch in [Patch::Unknown, Patch::Known(b""), Patch::Known(b"diff")] {
                let action = fallback_action(&state(patch), available);
                assert_eq!(action.is_none(), available.is_empty());
                assert!(action.is_none_or(|it| available.contains(it)));
            }
        }
    }
}
