//! One decision: state, tokens, hidden state, estimates, choice.

use std::path::PathBuf;

use tack_core::estimate::HeadOutputError;
use tack_core::receipt::{Backend, DecisionDigests, DecisionReceipt, RegimeMatch, Ruling, RulingError, Training};
use tack_core::wire::Version;
use tack_core::{
    Action, ActionSet, Decide, DecisionState, Digest, Estimates, FallbackReason, Field, FieldShares, Lambda, Micros,
    PerAction, Regime, Spans, Stage, Tokens,
};
use tack_kernels::bundle::digest_files;
use tack_kernels::engine::{LoadPhase, PackSource};
use tack_kernels::{
    BundleError, BundleSource, Engine, EngineError, EngineOptions, ForwardError, Network, Precision, PrecisionPolicy,
    Stop,
};

use crate::availability::{Unavailable, available, fallback_action, unavailable};
use crate::clock::{StageClock, TimeUp};
use crate::digests::{issue_digest, regime_digest, shares_digest, state_digest};
use crate::encode::{EncodeReport, Encoded, Encoder};
use crate::fallback::{Fallback, NoneAvailable};
use crate::load::{LoadTimes, phase_name};
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

/// Tokens that share one pass over the weights, at most, unless a single state has more: two full states. At the full
/// shape a token takes 230 kB of keys and values and 40 kB of everything else.
const PASS_TOKENS_MOST: usize = 2 * FieldShares::TOTAL.0 as usize;

/// A model bundle that decides.
#[derive(Debug)]
pub struct Controller {
    /// What each decision is made with; may be changed between decisions.
    pub settings: Settings,
    encoder: Encoder,
    network: Engine,
    record: ControllerRecord,
    digests: BundleDigest,
    load: LoadTimes,
    /// The beginning of the last state, which the next one of the same task shares: its keys and values are pinned.
    kept: Vec<u32>,
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
    /// The processor, or an option that the engine does not have.
    #[error("the engine cannot run the model")]
    Engine(#[source] EngineError),
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
        Self::load(&BundleSource::directory(directory), &EngineOptions::default(), &mut |_| {})
    }

    /// Opens a bundle that the program carries, as `(file name, content)`.
    ///
    /// # Errors
    /// As [`Controller::open`]; messages call the files `embedded:NAME`.
    pub fn embedded(files: &[(&'static str, &'static [u8])]) -> Result<Self, OpenError> {
        Self::load(&BundleSource::memory(files.iter().copied()), &EngineOptions::default(), &mut |_| {})
    }

    /// Opens a bundle with options of the network's; `hear` is told of each phase as it begins.
    ///
    /// Under [`PrecisionPolicy::Worthwhile`] a bundle whose lambda was chosen for a precision of this engine's gets that
    /// one, since the lambda holds for no other.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn load(
        source: &BundleSource,
        options: &EngineOptions,
        hear: &mut dyn FnMut(LoadPhase),
    ) -> Result<Self, OpenError> {
        let mut times = LoadTimes::start();
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
        let mut options = options.clone();
        if options.precision == PrecisionPolicy::Worthwhile {
            options.precision = match record.lambda_gate.ran_on() {
                Some((Backend::Cpu, tack_core::Precision::F32)) => PrecisionPolicy::Fixed(Precision::Float),
                Some((Backend::Cpu, tack_core::Precision::Int12)) => PrecisionPolicy::Measured,
                _ => options.precision,
            };
        }
        let loaded = Engine::load_in_phases(source, &options, &mut |phase| {
            times.enter(phase_name(phase));
            hear(phase);
        });
        let network: Engine = loaded.map_err(|error| match error {
            EngineError::Bundle(error) => OpenError::Bundle(error),
            other => OpenError::Engine(other),
        })?;
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
        times.end();
        Ok(Self { settings: Settings::default(), encoder, network, record, digests, load: times, kept: Vec::new() })
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
    pub fn load_times(&self) -> &LoadTimes {
        &self.load
    }

    /// Where the packed weights came from.
    #[must_use]
    pub fn pack_source(&self) -> &PackSource {
        self.network.pack_source()
    }

    /// Threads of a forward pass.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.network.threads()
    }

    /// Bytes of keys and values that are kept for the next decisions.
    #[must_use]
    pub fn cached_bytes(&self) -> usize {
        self.network.cached_bytes()
    }

    /// The instruction set of the inner loop.
    #[must_use]
    pub fn isa(&self) -> &'static str {
        self.network.isa().name()
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
    cached: Tokens,
    estimates: Option<Estimates>,
}

/// What a decision is made with, whatever the network says.
struct Frame {
    reasons: PerAction<Option<Unavailable>>,
    available: ActionSet,
    instead: Action,
    digests: DecisionDigests,
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
        let mut decisions = self.decide_batch(&[*state], clock)?;
        Ok(decisions.swap_remove(0)) // one state, one decision
    }

    /// Decisions on several states, which share passes over the weights: each is what it would be alone.
    ///
    /// They share the clock too: the latency of each is that of all, and where the time is up, all of them fall back.
    ///
    /// # Errors
    /// [`DecideError`] of the first state that has one; as [`Controller::decide_within`].
    pub fn decide_batch(
        &mut self,
        states: &[DecisionState<'_>],
        clock: &mut StageClock<'_>,
    ) -> Result<Vec<Decision>, DecideError> {
        // 1. What may be chosen, which comes before everything, and the price of cost. What a decision is made on is
        //    hashed here because a state may be large, and after the estimates nothing may take time.
        let lambda = self.lambda()?;
        let precision = self.network.precision();
        let frames: Vec<Frame> = states.iter().map(|state| self.frame(state, clock)).collect::<Result<_, _>>()?;

        // 2. States to estimates, as long as there is time.
        let progress = self.estimate(states, clock)?;

        // 3. The rule; and the fallback, in case.
        let reason = FallbackReason::DeadlineMissed;
        let mut ends = Vec::with_capacity(states.len());
        for (frame, Progress { encoding, cached, estimates }) in frames.into_iter().zip(progress) {
            let choose = |estimates| {
                clock.enter(Stage::Select);
                let ruling = Ruling::choose(estimates, frame.available, lambda, precision);
                clock.exit(Stage::Select);
                ruling
            };
            let chosen = estimates.map(choose).transpose().map_err(DecideError::Rule)?;
            let fallen = Ruling::fall_back(frame.instead, reason, frame.available, lambda, precision);
            ends.push((frame, encoding, cached, chosen, fallen.map_err(DecideError::Rule)?));
        }
        let (regime, training) = (self.regime_match(), self.training());

        // 4. The last look at the clock.
        let TimeUp { latency, is_late } = clock.look();
        let decision = |(frame, encoding, cached, chosen, fallen): (Frame, _, _, Option<Ruling>, Ruling)| {
            let Frame { reasons, digests, .. } = frame;
            let (ruling, fallback) = match chosen {
                Some(chosen) if !is_late => (chosen, None),
                _ => (fallen, Some(Fallback::new(reason, clock))),
            };
            let stage_times = latency.stages.clone();
            let receipt =
                DecisionReceipt { version: Version, digests, regime, training, backend: BACKEND, ruling, stage_times };
            Decision { receipt, encoding, cached, reasons, fallback, latency: latency.clone() }
        };
        Ok(ends.into_iter().map(decision).collect())
    }

    fn frame(&self, state: &DecisionState<'_>, clock: &mut StageClock<'_>) -> Result<Frame, DecideError> {
        let allowed = self.settings.allowed;
        let reasons = unavailable(&state.menu, allowed);
        let available = available(&reasons);
        let none = DecideError::NoneAvailable(NoneAvailable { allowed });
        let instead = fallback_action(state, available).ok_or(none)?;
        clock.enter(Stage::Digest);
        let digests = self.decision_digests(state);
        clock.exit(Stage::Digest);
        Ok(Frame { reasons, available, instead, digests })
    }

    /// The caller's lambda, or the bundle's where it was chosen for what computes the estimates here.
    fn lambda(&self) -> Result<Lambda, DecideError> {
        if let Some(lambda) = self.settings.lambda {
            return Ok(lambda);
        }
        self.record.lambda_gate.serves(BACKEND, self.network.precision()).map_err(DecideError::Gate)?;
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

    /// Tokens, hidden states and estimates of the states; one entry a state.
    fn estimate(
        &mut self,
        states: &[DecisionState<'_>],
        clock: &mut StageClock<'_>,
    ) -> Result<Vec<Progress>, DecideError> {
        // 1. Tokens.
        let mut encoded = Vec::with_capacity(states.len());
        for state in states {
            if clock.is_late() {
                break;
            }
            encoded.push(self.encoder.encode(state, clock));
        }

        // 2. As many at once as a pass takes.
        let mut progress = Vec::with_capacity(states.len());
        let mut rest = &*encoded;
        while !rest.is_empty() && rest.len() + progress.len() == states.len() && !clock.is_late() {
            let mut sum = 0;
            let fits = |it: &&Encoded| {
                sum += it.ids.len();
                sum <= PASS_TOKENS_MOST
            };
            let (group, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let Some(of_group) = self.pass(group, clock)? else { break };
            progress.extend(of_group);
            rest = after;
        }

        // 3. What there was no time for.
        let unfinished = |it: &Encoded| Progress { encoding: Some(it.report.clone()), ..Progress::default() };
        progress.extend(rest.iter().map(unfinished));
        progress.resize_with(states.len(), Progress::default);
        Ok(progress)
    }

    /// One pass; `None` if the time was up before its end.
    fn pass(&mut self, encoded: &[Encoded], clock: &mut StageClock<'_>) -> Result<Option<Vec<Progress>>, DecideError> {
        clock.enter(Stage::Forward);
        let timer = clock.timer();
        let tokens: Vec<&[u32]> = encoded.iter().map(|it| &*it.ids).collect();
        let hidden = self.network.hidden_batch(&tokens, Stop::when(&|| timer.is_late()));
        if let (Ok(_), Some(last)) = (&hidden, encoded.last()) {
            self.keep(last);
        }
        clock.exit(Stage::Forward);
        let hidden = match hidden {
            Ok(hidden) => hidden,
            Err(ForwardError::Stopped) => return Ok(None),
            Err(error) => return Err(DecideError::Forward(error)),
        };

        clock.enter(Stage::Heads);
        let finish = |((encoded, &cached), hidden): ((&Encoded, &usize), Vec<f32>)| {
            let estimates = Estimates::from_heads(&self.network.outputs(&hidden)).map_err(DecideError::HeadOutput)?;
            let cached = Tokens(u32::try_from(cached).unwrap_or(u32::MAX));
            Ok(Progress { encoding: Some(encoded.report.clone()), cached, estimates: Some(estimates) })
        };
        let finished: Result<Vec<_>, _> =
            encoded.iter().zip(self.network.last_cached()).zip(hidden).map(finish).collect();
        clock.exit(Stage::Heads);
        finished.map(Some)
    }

    /// Pins what the next decision on the same task begins with too: everything before the patch. What an earlier task
    /// began with is left to its age.
    fn keep(&mut self, encoded: &Encoded) {
        let before_patch = encoded.report.fields[Field::Patch as usize].start.0 as usize;
        let beginning = encoded.ids.get(..before_patch).unwrap_or_default();
        if self.kept != beginning {
            self.network.unpin(&self.kept);
            self.network.pin(beginning);
            beginning.clone_into(&mut self.kept);
        }
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
