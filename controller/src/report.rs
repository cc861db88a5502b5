//! A decision with everything that explains it, and its JSON.

use serde::Serialize;
use tack_core::receipt::{Backend, DecisionDigests, DecisionReceipt, RegimeMatch, RulingEnd};
use tack_core::{
    Action, Decided, Digest, Estimate, FallbackReason, Lambda, Micros, NormalizedCost, PerAction, Precision,
    Probability, Regime, Tokens, Utility, lead, utilities,
};
use tack_kernels::engine::PackSource;

use crate::availability::{Unavailable, available};
use crate::clock::Latency;
use crate::controller::Controller;
use crate::encode::{EncodeReport, FieldReport};
use crate::fallback::{Fallback, Undecided};
use crate::load::LoadTimes;
use crate::record::{ControllerRecord, TrainingRecord};
use crate::window::ObservationReport;

/// What every decision with an untrained model says.
pub const UNTRAINED_NOTE: &str = "The model is untrained: its estimates carry no information.";

/// What came out, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The record to keep.
    pub receipt: DecisionReceipt,
    /// What the network saw of the state, or would have seen; `None` where the time was up before there were tokens.
    pub encoding: Option<EncodeReport>,
    /// Tokens from the front that were not computed again: their keys and values were kept from an earlier decision.
    pub cached: Tokens,
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

/// A decision, or a fallback without one, as the command prints it with `--json`.
///
/// What only a model can say is `None` where none was there: lambda, tokens, the model, its regime, the digests.
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
    pub lambda: Option<Lambda>,
    /// `bundle`, or `caller`.
    pub lambda_from: Option<&'static str>,
    /// By how much the utility of the choice exceeds that of the second; `None` where nothing was compared.
    pub lead: Option<f64>,
    /// Whether the precision alone could have turned the choice; `None` for a fallback.
    pub near_tie: Option<bool>,
    /// Tokens and cuts; `None` where the time was up before there were any.
    pub tokens: Option<TokensReport<'a>>,
    /// Microseconds by stage.
    pub latency: &'a Latency,
    /// Which model, and what stands behind it.
    pub model: Option<ModelReport<'a>>,
    /// For whom the estimates hold.
    pub regime: Option<RegimeReport<'a>>,
    /// What the decision was made on.
    pub digests: Option<&'a DecisionDigests>,
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
    /// Of them, from the front, what was kept from an earlier decision and not computed again.
    pub cached: Tokens,
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
    /// On how many threads.
    pub threads: usize,
    /// How long the bundle took to open, in microseconds.
    pub load: Micros,
    /// The same by phase.
    pub load_phases: &'a LoadTimes,
    /// `bundle`, or `pack_file`: where the packed weights came from.
    pub packed_from: &'static str,
    /// The pack file that was used or written; `None` where there is none.
    pub pack_file: Option<String>,
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
        let pack = controller.pack_source();
        let (gate_met, gate_reason) = record.lambda_gate.verdict();
        let (near_tie, lead) = match ruling.end() {
            RulingEnd::Chosen { estimates, near_tie, .. } => {
                (Some(*near_tie), lead(estimates, ruling.available(), ruling.lambda()))
            }
            RulingEnd::Fallback { .. } => (None, None),
        };
        let estimates = Action::ALL.map(|action| {
            let figures = match ruling.end() {
                RulingEnd::Chosen { estimates, .. } => {
                    Some((estimates[action], utilities(estimates, ruling.lambda())[action]))
                }
                RulingEnd::Fallback { .. } => None,
            };
            ActionReport::new(action, figures, self.reasons[action])
        });
        DecisionReport {
            action: self.action(),
            fallback: self.fallback,
            estimates,
            available: ruling.available().iter().collect(),
            lambda: Some(ruling.lambda()),
            lambda_from: Some(if controller.settings.lambda.is_some() { "caller" } else { "bundle" }),
            lead,
            near_tie,
            tokens: self.encoding.as_ref().map(|encoding| TokensReport {
                total: encoding.total,
                cached: self.cached,
                digest: encoding.digest,
                fields: &encoding.fields,
                observations: &encoding.observations,
            }),
            latency: &self.latency,
            model: Some(ModelReport {
                name: record.name.as_str(),
                digest: self.receipt.digests.model,
                training: &record.training,
                gate_met,
                gate_reason,
                backend: self.receipt.backend,
                precision: ruling.precision(),
                isa: controller.isa(),
                threads: controller.threads(),
                load: controller.load_times().total(),
                load_phases: controller.load_times(),
                packed_from: if matches!(pack, PackSource::File { .. }) { "pack_file" } else { "bundle" },
                pack_file: match pack {
                    PackSource::File { path } | PackSource::Written { path, .. } => Some(path.display().to_string()),
                    PackSource::Bundle | PackSource::NotWritten(_) => None,
                },
            }),
            regime: Some(RegimeReport { trained_under: &record.regime, matches: self.receipt.regime }),
            digests: Some(&self.receipt.digests),
            notes: self.notes(record),
        }
    }

    fn notes(&self, record: &ControllerRecord) -> Vec<String> {
        let mut notes = Vec::new();
        if !record.training.trained {
            notes.push(UNTRAINED_NOTE.to_owned());
        }
        notes.extend(self.fallback.map(|fallback| fallback_note(self.action(), fallback)));
        let served = record.lambda_gate.serves(self.receipt.backend, self.receipt.ruling.precision());
        notes.extend(served.err().map(|other| format!("The bundle's lambda would not hold: {other}.")));
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

impl Undecided {
    /// The fallback in the form of a decision, with nothing where a model would have spoken.
    #[must_use]
    pub fn report(&self) -> DecisionReport<'_> {
        DecisionReport {
            action: self.action,
            fallback: Some(self.fallback),
            estimates: Action::ALL.map(|action| ActionReport::new(action, None, self.reasons[action])),
            available: available(&self.reasons).iter().collect(),
            lambda: None,
            lambda_from: None,
            lead: None,
            near_tie: None,
            tokens: None,
            latency: &self.latency,
            model: None,
            regime: None,
            digests: None,
            notes: vec![fallback_note(self.action, self.fallback)],
        }
    }
}

impl ActionReport {
    fn new(action: Action, figures: Option<(Estimate, Utility)>, reason: Option<Unavailable>) -> Self {
        Self {
            action,
            success: figures.map(|(estimate, _)| estimate.success),
            cost: figures.map(|(estimate, _)| estimate.cost),
            utility: figures.map(|(_, utility)| utility),
            available: reason.is_none(),
            reason,
        }
    }
}

fn fallback_note(action: Action, Fallback { reason, stage, .. }: Fallback) -> String {
    let why = match reason {
        FallbackReason::DeadlineMissed => format!("time ran out in stage `{stage}`"),
        FallbackReason::HeadOutput => "a head of the model returned a number that is not finite".to_owned(),
        FallbackReason::ModelUnavailable => format!("no model could be run after stage `{stage}`"),
    };
    format!("`{action}` is a fallback, not the rule's choice: {why}.")
}
