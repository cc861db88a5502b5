//! One decision: state, tokens, hidden state, estimates, choice.

use std::path::PathBuf;
use std::time::Instant;

use tack_core::estimate::HeadOutputError;
use tack_core::receipt::{Backend, DecisionDigests, DecisionReceipt, RegimeMatch, Ruling, RulingError, Training};
use tack_core::wire::Version;
use tack_core::{
    ActionSet, Decide, DecisionState, Digest, Estimates, FallbackReason, FieldShares, Lambda, Micros, Precision,
    Regime, Spans, Stage,
};
use tack_kernels::bundle::digest_files;
use tack_kernels::{BundleError, BundleSource, CpuNetwork, ForwardError, Network, Options, Stop};

use crate::availability::{available, fallback_action, unavailable};
use crate::clock::{StageClock, TimeUp, micros};
use crate::digests::{issue_digest, regime_digest, shares_digest, state_digest};
use crate::encode::{EncodeReport, Encoded, Encoder};
use crate::fallback::{Fallback, NoneAvailable};
use crate::record::{ControllerRecord, OtherPrecision, RECORD_FILE, RecordError};
use crate::report::Decision;
use crate::template::TemplateError;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The tokenizer's name in a bundle.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The files of a bundle whose weights are in one file, as a program embeds them for [`Controller::embedded`].
pub const BUNDLE_FILES: [&str; 7] = [
    "config.json",
    "model.safetensors",
    TOKENIZER_FILE,
    "adapter_config.json",
    "adapter_model.safetensors",
    "heads.safetensors",
    RECORD_FILE,
];

/// The code that runs the forward pass here.
const BACKEND: Backend = Backend::Cpu;
/// What it computes in.
const PRECISION: Precision = Precision::F32;

/// A model bundle that decides.
#[derive(Debug)]
pub struct Controller {
    /// What each decision is made with; may be changed between decisions.
    pub settings: Settings,
    encoder: Encoder,
    network: CpuNetwork,
    record: ControllerRecord,
    digests: BundleDigest,
    load: Micros,
}

/// What the caller decides with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The actions that the caller allows; a menu may take more away.
    pub allowed: ActionSet,
    /// The price of cost; `None` for the bundle's own.
    pub lambda: Option<Lambda>,
    /// Wall time of each [`Decide::decide`], from the call, after which the answer is a fallback; `None` waits for the
    /// estimates. The clock of a [`Controller::decide_within`] has its own.
    pub deadline: Option<Micros>,
    /// The regime that the decision is for; `None` if nobody said.
    pub regime: Option<Regime>,
    /// Digest of the intent; `None` takes the issue's alone.
    pub intent: Option<Digest>,
    /// Digest of the sandbox policy that will confine the action, if one will.
    pub sandbox_policy: Option<Digest>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { allowed: ActionSet::ALL, lambda: None, deadline: None, regime: None, intent: None, sandbox_policy: None }
    }
}

#[derive(Clone, Copy, Debug)]
struct BundleDigest {
    /// Of the whole bundle: network, tokenizer and record.
    bundle: Digest,
    regime: Digest,
    shares: Digest,
}

/// Why a bundle does not make a controller.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The network's files, or a file that could not be opened.
    #[error("the model bundle cannot be used")]
    Bundle(#[source] BundleError),
    /// `tokenizer.json`.
    #[error("the tokenizer cannot be used")]
    Tokenizer(#[source] TokenizerError),
    /// `tokenizer.json`, where the template is concerned.
    #[error("the tokenizer cannot be used")]
    Template(#[source] TemplateError),
    /// `controller.json`.
    #[error("the controller record cannot be used")]
    Record(#[source] RecordError),
    /// The record is about other files.
    #[error("`{file}`: `digests.{field}` is {expected}; the bundle's is {found}")]
    Digest {
        /// The record.
        file: String,
        /// `network` or `tokenizer`.
        field: &'static str,
        /// What the record says.
        expected: Digest,
        /// What the files have.
        found: Digest,
    },
    /// The network has fewer positions than an encoded state may have tokens.
    #[error("`{file}`: `max_position_embeddings` must be at least {}; found {found}", FieldShares::TOTAL.0)]
    Positions {
        /// `config.json`.
        file: String,
        /// What it says.
        found: usize,
    },
}

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// Neither the menu nor the caller leaves an action.
    #[error(transparent)]
    NoneAvailable(NoneAvailable),
    /// The bundle's lambda was chosen for other estimates than these. The caller may give one.
    #[error("the bundle's lambda does not hold for this decision, and the caller gives none")]
    Gate(#[source] OtherPrecision),
    /// The network refused the tokens.
    #[error("the network cannot run on the state's tokens")]
    Forward(#[source] ForwardError),
    /// A head returned a number that is not finite.
    #[error("the estimates are not numbers")]
    HeadOutput(#[source] HeadOutputError),
    /// The rule refused its input.
    #[error("the rule cannot choose")]
    Rule(#[source] RulingError),
}

impl DecideError {
    /// What a caller that must act nevertheless calls its [`fall_back`](crate::fallback::fall_back); `None` where there
    /// is no action to take.
    #[must_use]
    pub const fn fallback_reason(&self) -> Option<FallbackReason> {
        match self {
            Self::NoneAvailable(_) => None,
            Self::HeadOutput(_) => Some(FallbackReason::HeadOutput),
            Self::Gate(_) | Self::Forward(_) | Self::Rule(_) => Some(FallbackReason::ModelUnavailable),
        }
    }
}

impl Controller {
    /// Opens the bundle in a directory.
    ///
    /// # Errors
    /// [`OpenError`] names the file, the place, what was expected and what was found.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, OpenError> {
        Self::load(&BundleSource::directory(directory), Options::default())
    }

    /// Opens a bundle that the program carries, as `(file name, content)`.
    ///
    /// # Errors
    /// As [`Controller::open`]; messages call the files `embedded:NAME`.
    pub fn embedded(files: &[(&'static str, &'static [u8])]) -> Result<Self, OpenError> {
        Self::load(&BundleSource::memory(files.iter().copied()), Options::default())
    }

    /// Opens a bundle with options of the network's.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn load(source: &BundleSource, options: Options) -> Result<Self, OpenError> {
        let started = Instant::now();
        let read = |file| source.open(file).map_err(OpenError::Bundle);
        let (record_bytes, tokenizer_bytes) = (read(RECORD_FILE)?, read(TOKENIZER_FILE)?);

        // 1. What the bundle says of itself, first: it is the smallest file.
        let record_file = source.display(RECORD_FILE);
        let record = ControllerRecord::from_bytes(&record_bytes, &record_file).map_err(OpenError::Record)?;

        // 2. The tokenizer, and that it is the one that the record is about.
        let tokenizer_file = source.display(TOKENIZER_FILE);
        let same = |field, expected, found| {
            let file = record_file.clone();
            if expected == found { Ok(()) } else { Err(OpenError::Digest { file, field, expected, found }) }
        };
        let tokenizer_digest = tokenizer_bytes.digest();
        let tokenizer = Tokenizer::from_bytes(&tokenizer_bytes, &tokenizer_file).map_err(OpenError::Tokenizer)?;
        same("tokenizer", record.digests.tokenizer, tokenizer_digest)?;

        // 3. The network, and that it takes whatever the encoder makes.
        let network = CpuNetwork::load(source, options).map_err(OpenError::Bundle)?;
        same("network", record.digests.network, network.digest())?;
        let (positions, rows) = (network.config().max_position_embeddings, network.config().vocab_size);
        if positions < FieldShares::TOTAL.0 as usize {
            return Err(OpenError::Positions { file: source.display("config.json"), found: positions });
        }
        tokenizer.check_vocabulary(rows, &tokenizer_file).map_err(OpenError::Tokenizer)?;
        let encoder = Encoder::new(tokenizer, &tokenizer_file).map_err(OpenError::Template)?;

        let digests = BundleDigest {
            bundle: digest_files([
                (RECORD_FILE, record_bytes.digest()),
                (TOKENIZER_FILE, tokenizer_digest),
                ("network", network.digest()),
            ]),
            regime: regime_digest(&record.regime),
            shares: shares_digest(&encoder.shares()),
        };
        let load = micros(started.elapsed());
        Ok(Self { settings: Settings::default(), encoder, network, record, digests, load })
    }

    /// What turns states into tokens.
    #[must_use]
    pub const fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// What the bundle says of itself.
    #[must_use]
    pub const fn record(&self) -> &ControllerRecord {
        &self.record
    }

    /// Digest of the bundle: of its record, its tokenizer and its network.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digests.bundle
    }

    /// How long opening took.
    #[must_use]
    pub const fn load_time(&self) -> Micros {
        self.load
    }

    /// The instruction set of the inner loop.
    #[must_use]
    pub fn isa(&self) -> &'static str {
        self.network.isa()
    }

    /// What stands behind the weights.
    #[must_use]
    pub const fn training(&self) -> Training {
        if self.record.training.trained { Training::Trained } else { Training::Untrained }
    }

    fn regime_match(&self) -> RegimeMatch {
        match &self.settings.regime {
            None => RegimeMatch::Unknown,
            Some(regime) => {
                let difference = self.record.regime.difference(regime);
                if difference.is_empty() { RegimeMatch::Same } else { RegimeMatch::Differs(difference) }
            }
        }
    }
}

/// How far a state came before the time was up.
#[derive(Default)]
struct Progress {
    encoding: Option<EncodeReport>,
    estimates: Option<Estimates>,
}

impl Controller {
    /// One decision on one state, on a clock that started where the caller's time did.
    ///
    /// With a deadline, the clock is asked after each stage, and throughout the forward pass: once it has passed, the
    /// pass is stopped, what was computed is thrown away, and the answer is the [`fallback_action`], flagged as such.
    /// The last act is to ask the clock once more; so a total below the deadline and a choice by the rule are one, and
    /// estimates that are complete a moment too late are thrown away as well.
    ///
    /// # Errors
    /// [`DecideError`]; never a late guess.
    pub fn decide_within(
        &mut self,
        state: &DecisionState<'_>,
        clock: &mut StageClock<'_>,
    ) -> Result<Decision, DecideError> {
        // 1. What may be chosen, which comes before everything, and the price of cost.
        let allowed = self.settings.allowed;
        let reasons = unavailable(&state.menu, allowed);
        let available = available(&reasons);
        let none = DecideError::NoneAvailable(NoneAvailable { allowed });
        let instead = fallback_action(state, available).ok_or(none)?;
        let lambda = self.lambda()?;

        // 2. What the decision is made on. It is hashed here because a state may be large, and after the estimates
        //    nothing may take time.
        clock.enter(Stage::Digest);
        let digests = self.decision_digests(state);
        clock.exit(Stage::Digest);

        // 3. State to estimates, as long as there is time.
        let Progress { encoding, estimates } = self.estimate(state, clock)?;

        // 4. The rule; and the fallback, in case.
        let choose = |estimates| {
            clock.enter(Stage::Select);
            let ruling = Ruling::choose(estimates, available, lambda, PRECISION);
            clock.exit(Stage::Select);
            ruling
        };
        let chosen = estimates.map(choose).transpose().map_err(DecideError::Rule)?;
        let reason = FallbackReason::DeadlineMissed;
        let fallen = Ruling::fall_back(instead, reason, available, lambda, PRECISION).map_err(DecideError::Rule)?;
        let (regime, training) = (self.regime_match(), self.training());

        // 5. The last look at the clock.
        let TimeUp { latency, is_late } = clock.look();
        let (ruling, fallback) = match chosen {
            Some(chosen) if !is_late => (chosen, None),
            _ => (fallen, Some(Fallback::new(reason, clock))),
        };
        let stage_times = latency.stages.clone();
        let receipt =
            DecisionReceipt { version: Version, digests, regime, training, backend: BACKEND, ruling, stage_times };
        Ok(Decision { receipt, encoding, reasons, fallback, latency })
    }

    /// The caller's lambda, or the bundle's where it was chosen for what computes the estimates here.
    fn lambda(&self) -> Result<Lambda, DecideError> {
        if let Some(lambda) = self.settings.lambda {
            return Ok(lambda);
        }
        self.record.lambda_gate.serves(BACKEND, PRECISION).map_err(DecideError::Gate)?;
        Ok(self.record.lambda)
    }

    fn decision_digests(&self, state: &DecisionState<'_>) -> DecisionDigests {
        DecisionDigests {
            state: state_digest(state),
            intent: self.settings.intent.unwrap_or_else(|| issue_digest(state.issue)),
            model: self.digests.bundle,
            regime: self.digests.regime,
            sandbox_policy: self.settings.sandbox_policy,
            shares: self.digests.shares,
        }
    }

    fn estimate(&mut self, state: &DecisionState<'_>, clock: &mut StageClock<'_>) -> Result<Progress, DecideError> {
        if clock.is_late() {
            return Ok(Progress::default());
        }
        let Encoded { ids, report } = self.encoder.encode(state, clock);
        let encoded = Progress { encoding: Some(report), estimates: None };
        if clock.is_late() {
            return Ok(encoded);
        }

        clock.enter(Stage::Forward);
        let timer = clock.timer();
        let hidden = self.network.hidden(&ids, Stop::when(&|| timer.is_late()));
        clock.exit(Stage::Forward);
        let hidden = match hidden {
            Ok(hidden) => hidden,
            Err(ForwardError::Stopped) => return Ok(encoded),
            Err(error) => return Err(DecideError::Forward(error)),
        };

        clock.enter(Stage::Heads);
        let estimates = Estimates::from_heads(&self.network.outputs(&hidden));
        clock.exit(Stage::Heads);
        let estimates = Some(estimates.map_err(DecideError::HeadOutput)?);
        Ok(Progress { estimates, ..encoded })
    }
}

impl Decide for Controller {
    type Decision = Decision;
    type Error = DecideError;

    /// [`Controller::decide_within`] the deadline of the settings, from now.
    fn decide(&mut self, state: &DecisionState<'_>, spans: &mut dyn Spans) -> Result<Decision, DecideError> {
        let mut clock = StageClock::start(spans, self.settings.deadline);
        self.decide_within(state, &mut clock)
    }
}
