//! What an action may use, and what is left of it.

use serde::{Deserialize, Serialize};

use crate::units::{Micros, Tokens};

/// What every nonterminal action may use at most (paper, "Actions").
///
/// A common operating regime, not an equal realized cost: an action that submits early uses less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// New output tokens of the repair policy.
    pub output_tokens: Tokens,
    /// Calls of the repair policy's tools.
    pub tool_calls: u32,
    /// Wall time of the repair, model latency included.
    pub repair: Micros,
    /// Wall time of a prescribed pretest, on top of `repair` and charged to the action.
    pub pretest: Micros,
}

impl Limits {
    /// The paper's: 8,192 tokens, 30 calls, 1,200 s of repair, 300 s of pretest.
    pub const PAPER: Self = Self {
        output_tokens: Tokens(8_192),
        tool_calls: 30,
        repair: Micros::from_secs(1_200),
        pretest: Micros::from_secs(300),
    };
}

/// What is left of the repair budget; `None` where the recorder did not say. Unknown is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Remaining {
    /// Output tokens that may still be generated.
    pub output_tokens: Option<Tokens>,
    /// Tool calls that may still be made.
    pub tool_calls: Option<u32>,
    /// Wall time of repair that is left.
    pub repair: Option<Micros>,
}
