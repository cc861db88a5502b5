//! A decision with everything that explains it, and its JSON.

use serde::Serialize;
use tack_core::receipt::{Backend, DecisionDigests, DecisionReceipt, RegimeMatch, RulingEnd};
use tack_core::{
    Action, ActionSet, Decided, Digest, FallbackReason, Lambda, Micros, NormalizedCost, PerAction, Precision,
    Probability, Regime, Stage, Tokens, Utility, utilities,
};

use crate::availability::Unavailable;
use crate::clock::Latency;
use crate::controller::Controller;
use crate::encode::{EncodeReport, FieldReport};
use crate::record::TrainingRecord;
use crate::window::ObservationReport;

/// What every decision with an untrained model says.
pub const UNTRAINED_NOTE: &str = "The model is untrained: its estimates carry no information.";

/// What came out, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The record to keep.
    pub receipt: DecisionReceipt,
    /// What the network saw of the state.
    pub encoding: EncodeReport,
    /// Why each action that is not available is not.
    pub reasons: PerAction<Option<Unavailable>>,
    /// What was missed, where the answer is a fallback.
    pub fallback: Option<Fallback>,
    /// Where the time went.
    pub latency: Latency,
}

impl Decided for Decision {
    fn action(&self) -> Action {
        self.receipt.action()
    }

    fn fallback(&self) -> Option<FallbackReason> {
        self.receipt.fallback()
    }
}

/// Why an answer is a fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The reason that the receipt keeps.
    pub reason: FallbackReason,
    /// The stage that was running, or had just ended, when the time was up.
    pub stage: Stage,
    /// The time that there was.
    pub deadline: Option<Micros>,
}

/// A decision as the command prints it with `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecisionReport<'a> {
    /// What should happen next.
    pub action: Action,
    /// Set where `action` is not the rule's choice.
    pub fallback: Option<Fallback>,
    /// One entry an action, in the order of [`Action::ALL`].
    pub estimates: [ActionReport; Action::COUNT],
    /// The actions that could be chosen.
    pub available: Vec<Action>,
    /// The price of cost.
    pub lambda: Lambda,
    /// `bundle`, or `caller`.
    pub lambda_from: &'static str,
    /// Whether the precision alone could have turned the choice; `None` for a fallback.
    pub near_tie: Option<bool>,
    /// Tokens and cuts.
    pub tokens: TokensReport<'a>,
    /// Microseconds by stage.
    pub latency: &'a Latency,
    /// Which model, and what stands behind it.
    pub model: ModelReport<'a>,
    /// For whom the estimates hold.
    pub regime: RegimeReport<'a>,
    /// What the decision was made on.
    pub digests: &'a DecisionDigests,
    /// What a reader must know beside the figures.
    pub notes: Vec<String>,
}

/// One action.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ActionReport {
    /// Which.
    pub action: Action,
    /// `q`: probability that the task ends solved; `None` where a fallback has no estimates.
    pub success: Option<Probability>,
    /// `c`: expected normalized cost.
    pub cost: Option<NormalizedCost>,
    /// `q - lambda c`.
    pub utility: Option<Utility>,
    /// Whether it could be chosen.
    pub available: bool,
    /// Why not.
    pub reason: Option<Unavailable>,
}

/// What the network saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokensReport<'a> {
    /// All tokens.
    pub total: Tokens,
    /// Digest of the token numbers: equal if and only if the network saw the same.
    pub digest: Digest,
    /// One entry a field.
    pub fields: &'a [FieldReport],
    /// The observations in the context, each with the reason why it is there.
    pub observations: &'a [ObservationReport],
}

/// Which model it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport<'a> {
    /// The bundle's name.
    pub name: &'a str,
    /// Digest of the bundle.
    pub digest: Digest,
    /// Whether the weights were trained on action outcomes, and on what.
    #[serde(flatten)]
    pub training: &'a TrainingRecord,
    /// Whether the lambda gate was met.
    pub gate_met: bool,
    /// By what, or why not.
    pub gate_reason: String,
    /// Which code ran the forward pass.
    pub backend: Backend,
    /// In which precision.
    pub precision: Precision,
    /// With which instructions.
    pub isa: &'static str,
    /// How long the bundle took to open, in microseconds.
    pub load: Micros,
}

/// For whom the estimates hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegimeReport<'a> {
    /// The regime that the model was trained under.
    pub trained_under: &'a Regime,
    /// Whether the decision is for the same one.
    #[serde(rename = "match")]
    pub matches: RegimeMatch,
}

impl Decision {
    /// The decision as `controller`, which made it, prints it.
    #[must_use]
    pub fn report<'a>(&'a self, controller: &'a Controller) -> DecisionReport<'a> {
        let ruling = &self.receipt.ruling;
        let record = controller.record();
        let (gate_met, gate_reason) = record.lambda_gate.verdict();
        let near_tie = match ruling.end() {
            RulingEnd::Chosen { near_tie, .. } => Some(*near_tie),
            RulingEnd::Fallback { .. } => None,
        };
        DecisionReport {
            action: self.action(),
            fallback: self.fallback,
            estimates: self.actions(),
            available: ruling.available().iter().collect(),
            lambda: ruling.lambda(),
            lambda_from: if controller.settings.lambda.is_some() { "caller" } else { "bundle" },
            near_tie,
            tokens: TokensReport {
                total: self.encoding.total,
                digest: self.encoding.digest,
                fields: &self.encoding.fields,
                observations: &self.encoding.observations,
            },
            latency: &self.latency,
            model: ModelReport {
                name: record.name.as_str(),
                digest: self.receipt.digests.model,
                training: &record.training,
                gate_met,
                gate_reason,
                backend: self.receipt.backend,
                precision: ruling.precision(),
                isa: controller.isa(),
                load: controller.load_time(),
            },
            regime: RegimeReport { trained_under: &record.regime, matches: self.receipt.regime },
            digests: &self.receipt.digests,
            notes: self.notes(record.training.trained),
        }
    }

    fn actions(&self) -> [ActionReport; Action::COUNT] {
        let ruling = &self.receipt.ruling;
        Action::ALL.map(|action| {
            let reason = self.reasons[action];
            let figures = match ruling.end() {
                RulingEnd::Chosen { estimates, .. } => {
                    Some((estimates[action], utilities(estimates, ruling.lambda())[action]))
                }
                RulingEnd::Fallback { .. } => None,
            };
            ActionReport {
                action,
                success: figures.map(|(estimate, _)| estimate.success),
                cost: figures.map(|(estimate, _)| estimate.cost),
                utility: figures.map(|(_, utility)| utility),
                available: reason.is_none(),
                reason,
            }
        })
    }

    fn notes(&self, trained: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if !trained {
            notes.push(UNTRAINED_NOTE.to_owned());
        }
        if let Some(fallback) = self.fallback {
            notes.push(format!(
                "`{}` is a fallback, not the rule's choice: time ran out in stage `{}`.",
                self.action(),
                fallback.stage.name()
            ));
        }
        match self.receipt.regime {
            RegimeMatch::Same => {}
            RegimeMatch::Differs(parts) => {
                notes.push(format!("The decision is for another regime than the model's; it differs in: {parts}."));
            }
            RegimeMatch::Unknown => {
                notes.push(
                    "Nobody said for which regime the decision is; the estimates hold for the model's.".to_owned(),
                );
            }
        }
        notes
    }
}

impl DecisionReport<'_> {
    /// The actions that could be chosen, as a set.
    #[must_use]
    pub fn available_set(&self) -> ActionSet {
        self.available.iter().copied().collect()
    }
}
