//! Digests of what a decision is made on.

use sha2::{Digest as _, Sha256};
use tack_core::{DecisionState, Digest, Field, FieldShares, Issue, Menu, Patch, Regime};

/// SHA-256 over a state's five fields, byte for byte as they came: also the bytes that the encoder cuts.
///
/// Each text is preceded by its length (u64, little-endian), each list by its count, and each value that may be missing
/// by a byte 0 or 1, so no two states have one image.
#[must_use]
pub fn state_digest(state: &DecisionState<'_>) -> Digest {
    let mut image = Image::new("tack state 1");
    image.issue(state.issue);
    match state.menu {
        Menu::Unknown => image.present(false),
        Menu::Known(_) => {
            image.present(true);
            for tests in [state.menu.targeted(), state.menu.broader()] {
                image.number(tests.len() as u64);
                for test in tests {
                    image.bytes(test.as_bytes());
                }
            }
        }
    }
    match state.patch {
        Patch::Unknown => image.present(false),
        Patch::Known(patch) => {
            image.present(true);
            image.bytes(patch);
        }
    }
    image.number(state.observations.len() as u64);
    for observation in state.observations {
        image.number(u64::from(observation.step));
        image.bytes(observation.call);
        image.bytes(observation.output);
        image.optional(observation.exit_status.map(|status| u64::from(status.cast_unsigned())));
        image.number(observation.reason as u64);
    }
    image.optional(state.budget.output_tokens.map(|tokens| u64::from(tokens.0)));
    image.optional(state.budget.tool_calls.map(u64::from));
    image.optional(state.budget.repair.map(|left| left.0));
    image.digest()
}

/// SHA-256 over an intent that is an issue alone; an unknown one has another digest than an empty one.
#[must_use]
pub fn issue_digest(issue: Issue<'_>) -> Digest {
    let mut image = Image::new("tack intent 1");
    image.issue(issue);
    image.present(false); // no acceptance text
    image.digest()
}

/// SHA-256 over the parts of a regime that [`Regime::difference`] compares; names are for people.
#[must_use]
pub fn regime_digest(regime: &Regime) -> Digest {
    let mut image = Image::new("tack regime 1");
    image.bytes(&regime.repair_policy.digest.0);
    image.bytes(&regime.scaffold.digest.0);
    image.number(u64::from(regime.limits.output_tokens.0));
    image.number(u64::from(regime.limits.tool_calls));
    image.number(regime.limits.repair.0);
    image.number(regime.limits.pretest.0);
    image.digest()
}

/// SHA-256 over the field shares.
#[must_use]
pub fn shares_digest(shares: &FieldShares) -> Digest {
    let mut image = Image::new("tack field shares");
    image.number(u64::from(shares.version));
    for field in Field::ALL {
        image.bytes(field.name().as_bytes());
        image.number(u64::from(shares.of(field).0));
    }
    image.digest()
}

/// SHA-256 over token numbers.
pub(crate) fn ids_digest(ids: &[u32]) -> Digest {
    let mut hasher = Sha256::new();
    for id in ids {
        hasher.update(id.to_le_bytes());
    }
    Digest(hasher.finalize().into())
}

/// An unambiguous byte string, hashed as it is written.
struct Image(Sha256);

impl Image {
    fn new(kind: &str) -> Self {
        let mut image = Self(Sha256::new());
        image.bytes(kind.as_bytes());
        image
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn issue(&mut self, issue: Issue<'_>) {
        match issue {
            Issue::Unknown => self.present(false),
            Issue::Known(issue) => {
                self.present(true);
                self.bytes(issue);
            }
        }
    }

    fn present(&mut self, present: bool) {
        self.0.update([u8::from(present)]);
    }

    fn optional(&mut self, number: Option<u64>) {
        self.present(number.is_some());
        self.number(number.unwrap_or(0));
    }

    fn digest(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tack_core::{ContextReason, Observation, Remaining, Tokens};

    #[test]
    fn states_that_differ_anywhere_have_different_digests() {
        let empty = DecisionState {
            issue: Issue::Unknown,
            menu: Menu::Unknown,
            patch: Patch::Unknown,
            observations: &[],
            budget: Remaining::default(),
        };
        let seen = Observation { step: 0, call: b"", output: b"", exit_status: None, reason: ContextReason::ToolCall };
        let budget = |tokens| Remaining { output_tokens: Some(Tokens(tokens)), ..Remaining::default() };
        let states = [
            empty,
            DecisionState { issue: Issue::Known(b""), ..empty },
            DecisionState { issue: Issue::Known(b"a"), ..empty },
            DecisionState { issue: Issue::Known(b"ab"), ..empty },
            DecisionState { menu: Menu::new(&[], &[]).unwrap(), ..empty },
            DecisionState { menu: Menu::new(&["t"], &[]).unwrap(), ..empty },
            DecisionState { menu: Menu::new(&[], &["t"]).unwrap(), ..empty },
            DecisionState { patch: Patch::Known(b""), ..empty },
            DecisionState { patch: Patch::Known(b"a"), ..empty },
            DecisionState { observations: &[seen], ..empty },
            DecisionState { observations: &[seen, seen], ..empty },
            DecisionState { observations: &[Observation { step: 1, ..seen }], ..empty },
            DecisionState { observations: &[Observation { call: b"a", ..seen }], ..empty },
            DecisionState { observations: &[Observation { output: b"a", ..seen }], ..empty },
            DecisionState { observations: &[Observation { exit_status: Some(0), ..seen }], ..empty },
            DecisionState { observations: &[Observation { exit_status: Some(-1), ..seen }], ..empty },
            DecisionState { observations: &[Observation { reason: ContextReason::Pretest, ..seen }], ..empty },
            DecisionState { budget: budget(0), ..empty },
            DecisionState { budget: budget(1), ..empty },
        ];
        let digests: HashSet<Digest> = states.iter().map(state_digest).collect();
        assert_eq!(digests.len(), states.len());
        let intents: HashSet<Digest> = states[..4].iter().map(|it| issue_digest(it.issue)).collect();
        assert_eq!(intents.len(), 4, "unknown, empty and two texts");
        assert_eq!(state_digest(&states[3]), state_digest(&states[3]));
    }
}
