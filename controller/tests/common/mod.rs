//! The shipped mini bundle and small states, for the tests of this crate.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

use std::sync::OnceLock;

use tack_controller::{Encoder, Tokenizer};
use tack_core::{ContextReason, DecisionState, Issue, Menu, Observation, Patch, Remaining};

#[path = "../../../models/mini.rs"]
mod files;

/// The mini bundle, by file.
pub(crate) use files::FILES as MINI;

/// One of its files.
pub(crate) fn mini(name: &str) -> &'static [u8] {
    MINI.iter().find(|(found, _)| *found == name).unwrap().1
}

/// The encoder over its tokenizer, made once.
pub(crate) fn encoder() -> &'static Encoder {
    static ENCODER: OnceLock<Encoder> = OnceLock::new();
    ENCODER.get_or_init(|| {
        let tokenizer = Tokenizer::from_bytes(mini("tokenizer.json"), "tokenizer.json").unwrap();
        Encoder::new(tokenizer, "tokenizer.json").unwrap()
    })
}

/// A state about which nothing is known.
pub(crate) const NOTHING: DecisionState<'static> = DecisionState {
    issue: Issue::Unknown,
    menu: Menu::Unknown,
    patch: Patch::Unknown,
    observations: &[],
    budget: Remaining { output_tokens: None, tool_calls: None, repair: None },
};

/// An observation of the agent's own tool call.
pub(crate) const fn observation<'a>(step: u32, call: &'a [u8], output: &'a [u8]) -> Observation<'a> {
    Observation { step, call, output, exit_status: None, reason: ContextReason::ToolCall }
}
