//! The effect receipt: what running one admitted command did.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::digest::Digest;
use crate::expiry::Binding;
use crate::measurement::Figure;
use crate::status::ObservationStatus;
use crate::units::{Bytes, Micros};
use crate::wire::Version;

closed_enum! {
    /// Which limit of the sandbox ended a run. Variants are only ever appended.
    pub enum ResourceLimit {
        /// Wall time.
        Wall = "wall",
        /// CPU time.
        Cpu = "cpu",
        /// Memory.
        Memory = "memory",
        /// Processes.
        Processes = "processes",
        /// Output.
        Output = "output",
        /// The size of a file.
        FileSize = "file_size",
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEnd {
    /// By itself, with this status.
    Exited(u8),
    /// By a signal that no limit sent.
    Signaled(u8),
    /// By a limit of the sandbox.
    OverLimit(ResourceLimit),
    /// It never began.
    NotStarted,
}

/// What a command printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Output {
    /// How much it printed.
    pub produced: Bytes,
    /// How much of that was kept.
    pub kept: Bytes,
    /// Digest of what was kept.
    pub digest: Digest,
}

/// What was observed of one command: the parts that must agree with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawObserved", into = "RawObserved")]
pub struct Observed(RawObserved);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RawObserved {
    end: ProcessEnd,
    status: ObservationStatus,
    output: Output,
}

/// Two parts of an effect receipt exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectContradiction {
    /// Passed, without having ended by itself.
    PassedWithoutExit {
        /// How it ended.
        end: ProcessEnd,
    },
    /// A verdict on the candidate, without the command having begun.
    JudgedWithoutStart,
    /// More output was kept than there was.
    KeptMoreThanProduced {
        /// How much there was.
        produced: Bytes,
        /// How much was kept.
        kept: Bytes,
    },
}

impl fmt::Display for EffectContradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PassedWithoutExit { end } => write!(f, "a command that passed must have exited; found {end:?}"),
            Self::JudgedWithoutStart => f.write_str("a command that never began says nothing about the candidate"),
            Self::KeptMoreThanProduced { produced, kept } => {
                write!(f, "at most {} bytes of output can have been kept; found {}", produced.0, kept.0)
            }
        }
    }
}

impl core::error::Error for EffectContradiction {}

impl Observed {
    /// # Errors
    /// [`EffectContradiction`] if the parts exclude each other.
    pub fn new(end: ProcessEnd, status: ObservationStatus, output: Output) -> Result<Self, EffectContradiction> {
        let judged = matches!(status, ObservationStatus::Passed | ObservationStatus::CandidateFailed);
        if judged && end == ProcessEnd::NotStarted {
            Err(EffectContradiction::JudgedWithoutStart)
        } else if status == ObservationStatus::Passed && !matches!(end, ProcessEnd::Exited(_)) {
            Err(EffectContradiction::PassedWithoutExit { end })
        } else if output.kept > output.produced {
            Err(EffectContradiction::KeptMoreThanProduced { produced: output.produced, kept: output.kept })
        } else {
            Ok(Self(RawObserved { end, status, output }))
        }
    }

    /// How the process ended.
    #[must_use]
    pub const fn end(&self) -> ProcessEnd {
        self.0.end
    }

    /// What the observation says.
    #[must_use]
    pub const fn status(&self) -> ObservationStatus {
        self.0.status
    }

    /// What it printed.
    #[must_use]
    pub const fn output(&self) -> Output {
        self.0.output
    }
}

impl TryFrom<RawObserved> for Observed {
    type Error = EffectContradiction;
    fn try_from(raw: RawObserved) -> Result<Self, EffectContradiction> {
        Self::new(raw.end, raw.status, raw.output)
    }
}

impl From<Observed> for RawObserved {
    fn from(observed: Observed) -> Self {
        observed.0
    }
}

/// Evidence that an exact command produced an observed state in a named environment (article, "Compact glossary").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectReceipt {
    /// Version of this record.
    pub version: Version<1>,
    /// Digest of the admission record that let it run.
    pub admission: Digest,
    /// Digest of the sandbox policy that it ran under.
    pub sandbox_policy: Digest,
    /// What it ran on.
    pub binding: Binding,
    /// The tree after it; `None` where nothing that it wrote was kept.
    pub tree_after: Option<Digest>,
    /// What was observed.
    pub observed: Observed,
    /// Wall time.
    pub wall: Figure<Micros>,
    /// CPU time, children included.
    pub cpu: Figure<Micros>,
}

/// What is known of one admitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "without a heap there is no box; a run holds few of these")]
pub enum Effect {
    /// There is a receipt.
    Confirmed(EffectReceipt),
    /// It may have taken effect, and nothing says so: to be reconciled before anything is retried.
    UnknownOutcome {
        /// Digest of the admission record.
        admission: Digest,
    },
}

impl Effect {
    /// The effect of the command that `admission` let run, given the receipt that was found for it, if any.
    ///
    /// A receipt of another command confirms nothing.
    #[must_use]
    pub fn of(admission: Digest, found: Option<EffectReceipt>) -> Self {
        match found {
            Some(receipt) if receipt.admission == admission => Self::Confirmed(receipt),
            _ => Self::UnknownOutcome { admission },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::FigureUnavailable;

    const fn output(produced: u64, kept: u64) -> Output {
        Output { produced: Bytes(produced), kept: Bytes(kept), digest: Digest([7; 32]) }
    }

    #[test]
    fn parts_that_exclude_each_other_are_refused_everywhere() {
        use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
        use ProcessEnd::{Exited, NotStarted, OverLimit, Signaled};
        let wall = OverLimit(ResourceLimit::Wall);
        #[rustfmt::skip]
        let cases = [ // end      status                 output              legal
            (Exited(0),           Passed,                output(9, 9),       true),
            (Exited(1),           CandidateFailed,       output(9, 4),       true),
            (Signaled(9),         CandidateFailed,       output(0, 0),       true),
            (wall,                CandidateFailed,       output(1 << 30, 4), true),
            (NotStarted,          InfrastructureUnknown, output(0, 0),       true),
            (NotStarted,          VerifierInvalid,       output(0, 0),       true),
            (wall,                Passed,                output(9, 9),       false),
            (Signaled(9),         Passed,                output(9, 9),       false),
            (NotStarted,          Passed,                output(0, 0),       false),
            (NotStarted,          CandidateFailed,       output(0, 0),       false),
            (Exited(0),           Passed,                output(4, 9),       false),
        ];
        for (end, status, output, legal) in cases {
            assert_eq!(Observed::new(end, status, output).is_ok(), legal, "{end:?} {status} {output:?}");
            let mut buffer = [0; 64];
            let wire = crate::wire::encode(&RawObserved { end, status, output }, &mut buffer).unwrap();
            assert_eq!(crate::wire::decode::<Observed>(wire).is_ok(), legal, "{end:?} {status} {output:?}");
        }
    }

    #[test]
    fn an_effect_without_its_receipt_is_unknown() {
        let digest = |byte| Digest([byte; 32]);
        let receipt = EffectReceipt {
            version: Version,
            admission: digest(1),
            sandbox_policy: digest(2),
            binding: Binding {
                intent: digest(3),
                tree: digest(4),
                patch: digest(5),
                environment: digest(6),
                verifier: digest(7),
            },
            tree_after: None,
            observed: Observed::new(ProcessEnd::Exited(0), ObservationStatus::Passed, output(1, 1)).unwrap(),
            wall: Figure::Measured(Micros(5)),
            cpu: Figure::Unavailable(FigureUnavailable::NoCounter),
        };
        let unknown = Effect::UnknownOutcome { admission: digest(1) };
        assert_eq!(Effect::of(digest(1), Some(receipt)), Effect::Confirmed(receipt));
        assert_eq!(Effect::of(digest(1), None), unknown);
        assert_eq!(Effect::of(digest(1), Some(EffectReceipt { admission: digest(8), ..receipt })), unknown);
    }
}
