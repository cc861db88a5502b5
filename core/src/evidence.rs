//! The evidence package: what a reviewer gets instead of a transcript, keyed by the ten fields of a run.
//!
//! Its texts are borrowed and its lists are bounded in place, so it is read without a heap and without a copy (see
//! [`crate::text`] for why). It travels as postcard; the JSON form is for people and for readers with a heap, since
//! JSON escapes cannot be undone in borrowed text.

use serde::{Deserialize, Serialize};

use crate::acceptance::Acceptance;
use crate::action::Action;
use crate::closed_enum::{closed_enum, closed_set};
use crate::digest::Digest;
use crate::expiry::Binding;
use crate::limits::Limits;
use crate::list::List;
use crate::outcome::Outcome;
use crate::state::ContextReason;
use crate::status::ObservationStatus;
use crate::text::{Name, Text};
use crate::wire::Version;

closed_enum! {
    /// The ten fields of a repository control loop (article, the table of that name), in its order.
    pub enum RunField {
        /// What behavior is being changed, and who may clarify it.
        Intent = "intent",
        /// Who requested, proposed, verified and merges.
        Identity = "identity",
        /// Which exact software world produced the observations.
        WorldState = "world_state",
        /// What was looked at, and why.
        Context = "context",
        /// Which explanations were alive, and what would have told them apart.
        Reasoning = "reasoning",
        /// What was mechanically possible.
        Authority = "authority",
        /// What was done.
        Action = "action",
        /// What was shown, bound to the patch.
        Evidence = "evidence",
        /// Whether the intended postcondition holds.
        Outcome = "outcome",
        /// What happens after acceptance, or after an unknown outcome.
        ReleaseAndRecovery = "release_and_recovery",
    }
}

closed_set! {
    /// Some of the ten.
    pub struct RunFields(u16) of RunField
}

/// What behavior is being changed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Intent<'a> {
    /// What must be observable when the task is done.
    #[serde(borrow)]
    pub acceptance: List<Text<'a>, 16>,
    /// What must not change, or is not asked for.
    #[serde(borrow)]
    pub exclusions: List<Text<'a>, 16>,
    /// What depends on it.
    #[serde(borrow)]
    pub consequence: Option<Text<'a>>,
    /// Who may resolve an ambiguity.
    pub clarifier: Option<Name>,
}

/// Who did what. A person, a program or a model, by name; `None` where nobody did it yet.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// Who asked for the change.
    pub requester: Option<Name>,
    /// Who made the patch.
    pub proposer: Option<Name>,
    /// Who, or what, verified it.
    pub verifier: Option<Name>,
    /// Who may merge it.
    pub merge_actor: Option<Name>,
}

impl Identity {
    /// Whether the verifier is known and is not the proposer: only then can the evidence disagree with the patch's
    /// author for a reason that the author did not choose.
    #[must_use]
    pub fn verifier_is_independent(&self) -> bool {
        self.verifier.is_some() && self.proposer.is_some() && self.verifier != self.proposer
    }
}

closed_enum! {
    /// What a software world is made of, beside its base commit.
    pub enum WorldPart {
        /// Dependencies and toolchain.
        Dependencies = "dependencies",
        /// What was generated and not written.
        GeneratedArtifacts = "generated_artifacts",
        /// Services that must run.
        Services = "services",
        /// Test fixtures.
        Fixtures = "fixtures",
    }
}

/// One element of the world: pinned, or typed as unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldElement {
    /// What it is a part of.
    pub part: WorldPart,
    /// Its name.
    pub name: Name,
    /// The digest that pins it; `None` where it could not be rebuilt.
    pub pin: Option<Digest>,
}

/// The exact software world.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorldState {
    /// The commit of the initial repository.
    pub base_commit: Option<Name>,
    /// What else it is made of.
    pub elements: List<WorldElement, 32>,
}

/// One entry of the context, with the reason why it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextEntry<'a> {
    /// The file, symbol or command.
    #[serde(borrow)]
    pub what: Text<'a>,
    /// Digest of what was seen.
    pub seen: Digest,
    /// Why it is there.
    pub reason: ContextReason,
}

/// An explanation, and the observation that would tell it from its rivals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hypothesis<'a> {
    /// The suspected mechanism.
    #[serde(borrow)]
    pub mechanism: Text<'a>,
    /// What should be seen if it is right, and not otherwise.
    #[serde(borrow)]
    pub prediction: Text<'a>,
    /// What was seen; `None` where nobody looked.
    pub observed: Option<ObservationStatus>,
}

/// What was mechanically possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority<'a> {
    /// Digest of the sandbox policy, which holds commands, network and write scope in full.
    pub sandbox_policy: Digest,
    /// The paths that the patch may change.
    #[serde(borrow)]
    pub allowed_paths: List<Text<'a>, 64>,
    /// The budget.
    pub limits: Limits,
}

/// One thing that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionEntry {
    /// The action of which it is a step; `None` for a step of set-up or verification.
    pub action: Option<Action>,
    /// Digest of the admission record.
    pub admission: Digest,
    /// Digest of the effect receipt; `None` is an unknown outcome, to be reconciled.
    pub effect: Option<Digest>,
}

closed_enum! {
    /// What a reviewer decided.
    pub enum Review {
        /// Nobody looked yet.
        Pending = "pending",
        /// Accepted.
        Accepted = "accepted",
        /// Rejected.
        Rejected = "rejected",
    }
}

/// Whether the intended postcondition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disposition {
    /// The official outcome.
    pub outcome: Outcome,
    /// What the broader tests said; `None` where they were not run.
    pub regression: Option<ObservationStatus>,
    /// What the reviewer decided.
    pub review: Review,
}

/// What happens after acceptance, or after an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReleaseAndRecovery<'a> {
    /// How the change is tried before it is everywhere.
    #[serde(borrow)]
    pub canary: Option<Text<'a>>,
    /// How it is taken back.
    #[serde(borrow)]
    pub rollback: Option<Text<'a>>,
    /// How an operation that timed out is reconciled before it is repeated.
    #[serde(borrow)]
    pub reconciliation: Option<Text<'a>>,
    /// Who hears of an incident, and how.
    #[serde(borrow)]
    pub incident_path: Option<Text<'a>>,
}

/// Something that is known to be missing. Naming it is what keeps a package honest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap<'a> {
    /// The field that it belongs to.
    pub field: RunField,
    /// What is missing.
    #[serde(borrow)]
    pub what: Text<'a>,
}

/// Everything that a reviewer needs to accept or reject one exact patch, by the ten fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidencePackage<'a> {
    /// Version of this record.
    pub version: Version<1>,
    /// What all of it is about. If any of the five moves, the package is expired.
    pub binding: Binding,
    /// Field 1.
    #[serde(borrow)]
    pub intent: Intent<'a>,
    /// Field 2.
    pub identity: Identity,
    /// Field 3.
    pub world_state: WorldState,
    /// Field 4.
    #[serde(borrow)]
    pub context: List<ContextEntry<'a>, 64>,
    /// Field 5.
    #[serde(borrow)]
    pub reasoning: List<Hypothesis<'a>, 16>,
    /// Field 6; `None` where nothing confined the run.
    #[serde(borrow)]
    pub authority: Option<Authority<'a>>,
    /// Field 7.
    pub actions: List<ActionEntry, 64>,
    /// Field 8.
    pub evidence: Acceptance,
    /// Field 9; `None` where nothing was graded.
    pub outcome: Option<Disposition>,
    /// Field 10.
    #[serde(borrow)]
    pub release_and_recovery: ReleaseAndRecovery<'a>,
    /// What is known to be missing.
    #[serde(borrow)]
    pub gaps: List<Gap<'a>, 32>,
}

// It is read onto a stack: a thread's has megabytes, a microcontroller's some tens of kilobytes.
const _: () = assert!(size_of::<EvidencePackage<'_>>() <= 16_384);

impl EvidencePackage<'_> {
    /// A package about `binding` in which nothing was filled in yet.
    #[must_use]
    pub fn about(binding: Binding) -> Self {
        Self {
            version: Version,
            binding,
            intent: Intent::default(),
            identity: Identity::default(),
            world_state: WorldState::default(),
            context: List::new(),
            reasoning: List::new(),
            authority: None,
            actions: List::new(),
            evidence: Acceptance::NOT_RUN,
            outcome: None,
            release_and_recovery: ReleaseAndRecovery::default(),
            gaps: List::new(),
        }
    }

    /// Whether a field answers its control question.
    #[must_use]
    pub fn answers(&self, field: RunField) -> bool {
        let Self { intent, identity, world_state, release_and_recovery: release, .. } = self;
        match field {
            RunField::Intent => !intent.acceptance.is_empty() && intent.clarifier.is_some(),
            RunField::Identity => {
                identity.requester.is_some() && identity.merge_actor.is_some() && identity.verifier_is_independent()
            }
            RunField::WorldState => {
                world_state.base_commit.is_some() && world_state.elements.iter().all(|it| it.pin.is_some())
            }
            RunField::Context => !self.context.is_empty(),
            RunField::Reasoning => !self.reasoning.is_empty(),
            RunField::Authority => self.authority.is_some(),
            RunField::Action => !self.actions.is_empty() && self.actions.iter().all(|entry| entry.effect.is_some()),
            RunField::Evidence => self.evidence.first_not_passed().is_none(),
            RunField::Outcome => {
                self.outcome.is_some_and(|it| matches!(it.outcome, Outcome::Judged(_)) && it.review != Review::Pending)
            }
            RunField::ReleaseAndRecovery => release.rollback.is_some() && release.reconciliation.is_some(),
        }
    }

    /// The fields that neither answer their question nor own up to a gap: what a package must not have.
    #[must_use]
    pub fn unaccounted(&self) -> RunFields {
        RunField::ALL
            .into_iter()
            .filter(|&field| !self.answers(field) && self.gaps.iter().all(|gap| gap.field != field))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::{AcceptanceLayer, LayerResult};
    use crate::outcome::Verdict;
    use crate::wire::{WireError, decode, encode};
    use std::string::ToString;

    const fn digest(byte: u8) -> Digest {
        Digest([byte; 32])
    }

    fn binding() -> Binding {
        Binding { intent: digest(1), tree: digest(2), patch: digest(3), environment: digest(4), verifier: digest(5) }
    }

    fn name(text: &str) -> Option<Name> {
        Name::new(text).ok()
    }

    fn text(text: &str) -> Text<'_> {
        Text::new(text).unwrap()
    }

    fn complete() -> EvidencePackage<'static> {
        let passed = LayerResult::Ran { status: ObservationStatus::Passed, receipt: Some(digest(6)) };
        EvidencePackage {
            intent: Intent {
                acceptance: List::try_from_iter([text("zero attempts means no retry")]).unwrap(),
                exclusions: List::try_from_iter([text("the default stays three")]).unwrap(),
                consequence: None,
                clarifier: name("maintainer"),
            },
            identity: Identity {
                requester: name("reporter"),
                proposer: name("agent"),
                verifier: name("hidden tests"),
                merge_actor: name("maintainer"),
            },
            world_state: WorldState { base_commit: name("0f1e2d"), elements: List::new() },
            context: List::try_from_iter([ContextEntry {
                what: text("grep DEFAULT_ATTEMPTS\nworker.py"),
                seen: digest(7),
                reason: ContextReason::Inspection,
            }])
            .unwrap(),
            reasoning: List::try_from_iter([Hypothesis {
                mechanism: text("the fallback is written twice"),
                prediction: text("a worker with zero attempts still retries"),
                observed: Some(ObservationStatus::CandidateFailed),
            }])
            .unwrap(),
            authority: Some(Authority {
                sandbox_policy: digest(8),
                allowed_paths: List::try_from_iter([text("retrykit/worker.py")]).unwrap(),
                limits: Limits::PAPER,
            }),
            actions: List::try_from_iter([ActionEntry {
                action: Some(Action::Continue),
                admission: digest(9),
                effect: Some(digest(10)),
            }])
            .unwrap(),
            evidence: AcceptanceLayer::ALL.into_iter().fold(Acceptance::NOT_RUN, |all, one| all.with(one, passed)),
            outcome: Some(Disposition {
                outcome: Outcome::Judged(Verdict::Solved),
                regression: Some(ObservationStatus::Passed),
                review: Review::Accepted,
            }),
            release_and_recovery: ReleaseAndRecovery {
                rollback: Some(text("revert the commit")),
                reconciliation: Some(text("read the branch before pushing again")),
                ..ReleaseAndRecovery::default()
            },
            ..EvidencePackage::about(binding())
        }
    }

    #[test]
    fn every_field_is_answered_or_owned_up_to() {
        assert_eq!(complete().unaccounted(), RunFields::EMPTY);
        let empty = EvidencePackage::about(binding());
        assert_eq!(empty.unaccounted().to_string(), RunField::ALL.map(RunField::name).join(", "));
        for field in RunField::ALL {
            let gaps = List::try_from_iter([Gap { field, what: text("nobody knows") }]).unwrap();
            let package = EvidencePackage { gaps, ..empty.clone() };
            assert!(!package.answers(field) && !package.unaccounted().contains(field), "{field}");
        }
    }

    #[test]
    fn an_answer_can_be_lost() {
        let lost = |change: &dyn Fn(&mut EvidencePackage<'_>)| {
            let mut package = complete();
            change(&mut package);
            package.unaccounted().to_string()
        };
        let layer = |status| LayerResult::Ran { status, receipt: None };
        #[rustfmt::skip]
        let cases = [
            ("identity",    lost(&|it| it.identity.verifier = it.identity.proposer.clone())),
            ("intent",      lost(&|it| it.intent.clarifier = None)),
            ("action",      lost(&|it| it.actions.push(ActionEntry { action: None, admission: digest(1), effect: None }).unwrap())),
            ("evidence",    lost(&|it| it.evidence = it.evidence.with(AcceptanceLayer::Hidden, layer(ObservationStatus::InfrastructureUnknown)))),
            ("world_state", lost(&|it| it.world_state.elements.push(WorldElement { part: WorldPart::Services, name: Name::new("queue").unwrap(), pin: None }).unwrap())),
            ("outcome",     lost(&|it| it.outcome = None)),
        ];
        for (field, found) in cases {
            assert_eq!(found, field);
        }
    }

    #[test]
    fn it_survives_the_wire_and_every_truncation_is_an_error() {
        let package = complete();
        let mut buffer = [0; 4_096];
        let wire = &*encode(&package, &mut buffer).unwrap();
        assert_eq!(decode::<EvidencePackage<'_>>(wire).unwrap(), package);
        for cut in 0..wire.len() {
            assert_eq!(decode::<EvidencePackage<'_>>(&wire[..cut]), Err(WireError::Truncated), "{cut}");
        }
    }
}
