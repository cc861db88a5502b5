//! The formats that have a reader.

use std::fmt;

/// Which reader read the file: one for each format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Our own JSON form of a state.
    State,
    /// SWE-agent `.traj`, 0.x: `state` is a JSON string, the issue stands in the first user message.
    SweAgent0,
    /// SWE-agent `.traj`, 1.x: `state` is an object, `replay_config` holds the configuration.
    SweAgent1,
    /// mini-swe-agent 1.x before its format had a name: a bare list of messages.
    MiniMessages,
    /// mini-swe-agent 1.x: `trajectory_format` is `mini-swe-agent-1`.
    Mini1,
    /// mini-swe-agent 2.x: `trajectory_format` is `mini-swe-agent-1.1`.
    Mini2,
    /// OpenHands `output.jsonl` of its V0 evaluation.
    OpenHandsOutput,
    /// OpenHands software-agent-sdk events (V1).
    OpenHandsSdk,
    /// Harbor's agent trajectory interchange format, 1.0 to 1.8.
    Atif,
    /// Trae agent's rows of candidate patches for selection.
    Trae,
    /// SWE-bench predictions: a patch and nothing else.
    Predictions,
}

impl Format {
    /// Every format, in the order in which they are recognized.
    pub const ALL: [Self; 11] = [
        Self::State,
        Self::SweAgent0,
        Self::SweAgent1,
        Self::MiniMessages,
        Self::Mini1,
        Self::Mini2,
        Self::OpenHandsOutput,
        Self::OpenHandsSdk,
        Self::Atif,
        Self::Trae,
        Self::Predictions,
    ];

    /// The name in messages and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "tack-state 1",
            Self::SweAgent0 => "SWE-agent 0.x",
            Self::SweAgent1 => "SWE-agent 1.x",
            Self::MiniMessages => "mini-swe-agent messages",
            Self::Mini1 => "mini-swe-agent-1",
            Self::Mini2 => "mini-swe-agent-1.1",
            Self::OpenHandsOutput => "OpenHands output.jsonl",
            Self::OpenHandsSdk => "OpenHands SDK events",
            Self::Atif => "ATIF 1.0 to 1.8",
            Self::Trae => "Trae patch selection",
            Self::Predictions => "SWE-bench predictions",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
