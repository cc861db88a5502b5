//! The six readiness gates: how much authority a task class gets in one environment.
//!
//! The record is not additive: a stronger model makes up for no failed readiness gate.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::digest::Digest;
use crate::text::Name;
use crate::units::UnixSeconds;
use crate::wire::Version;

closed_enum! {
    /// The six (article, "Six gates before granting interactive repository authority"), in its order.
    pub enum ReadinessGate {
        /// Acceptance names observable behavior, exclusions, and who may resolve an ambiguity.
        Intent = "intent",
        /// Base, dependencies, fixtures and services are pinned, or typed as unknown.
        State = "state",
        /// Search, history, build and tests show what decides the task, within a budget.
        Observation = "observation",
        /// Paths, commands, network, credentials and rights are mechanically scoped and reversible.
        Action = "action",
        /// One verifier at least is independent of the patch's author, and results bind to patch and environment.
        Evidence = "evidence",
        /// Time-outs, duplicate effects, rebase, rollback and incidents have handlers and owners.
        Recovery = "recovery",
    }
}

closed_enum! {
    /// What was found at one readiness gate.
    pub enum Finding {
        /// It holds.
        Holds = "holds",
        /// It fails.
        Fails = "fails",
        /// Nobody looked, or there was nothing to look at: it fails.
        Missing = "missing",
    }
}

closed_enum! {
    /// How much may be done, from least to most.
    pub enum GrantedAuthority {
        /// A person leads.
        HumanLed = "human_led",
        /// The environment is improved first: nothing that it answers now would mean anything.
        ImproveEnvironment = "improve_environment",
        /// Read-only analysis, or draft patches.
        ReadOnlyOrDraft = "read_only_or_draft",
        /// Bounded interactive authority.
        BoundedInteractive = "bounded_interactive",
    }
}

closed_enum! {
    /// What a task class asks of a mechanism (article, "Agency is a conditional design choice").
    pub enum TaskShape {
        /// The code and its contract stand together, and are complete.
        Local = "local",
        /// Localization, repair and validation follow each other predictably.
        PredictablePhases = "predictable_phases",
        /// Each observation changes what should be looked at or edited next.
        ObservationSensitive = "observation_sensitive",
        /// Intent or outside state cannot be derived from the repository.
        NotDerivable = "not_derivable",
    }
}

closed_enum! {
    /// What may do the work, from least to most adaptive.
    pub enum Mechanism {
        /// One patch, proposed once.
        DirectPatch = "direct_patch",
        /// A fixed pipeline: localize, repair, validate.
        FixedPipeline = "fixed_pipeline",
        /// A bounded agent that chooses its next observation.
        BoundedAgent = "bounded_agent",
        /// A person.
        Human = "human",
    }
}

/// What was found at the six readiness gates, in the order of [`ReadinessGate::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Findings(pub [Finding; ReadinessGate::COUNT]);

impl Findings {
    /// Nobody looked yet.
    pub const MISSING: Self = Self([Finding::Missing; ReadinessGate::COUNT]);

    /// Whether one readiness gate holds. A missing input does not.
    #[must_use]
    pub const fn holds(&self, gate: ReadinessGate) -> bool {
        matches!(self.0[gate.index()], Finding::Holds)
    }

    /// The authority that follows: the first rule that applies, in this order.
    #[must_use]
    pub const fn authority(&self) -> GrantedAuthority {
        if !self.holds(ReadinessGate::Intent) || !self.holds(ReadinessGate::Evidence) {
            GrantedAuthority::HumanLed
        } else if !self.holds(ReadinessGate::State) || !self.holds(ReadinessGate::Observation) {
            GrantedAuthority::ImproveEnvironment
        } else if !self.holds(ReadinessGate::Action) || !self.holds(ReadinessGate::Recovery) {
            GrantedAuthority::ReadOnlyOrDraft
        } else {
            GrantedAuthority::BoundedInteractive
        }
    }
}

impl Mechanism {
    /// The least adaptive mechanism that would do for `shape` within `authority`; an unknown shape asks for a person.
    ///
    /// The shape names what is needed. Where the authority does not reach that far, nothing below it would do either,
    /// so the work goes to a person; a draft may come from a direct patch or a fixed pipeline, not from an
    /// interactive agent.
    #[must_use]
    pub const fn least_adaptive(shape: Option<TaskShape>, authority: GrantedAuthority) -> Self {
        use GrantedAuthority::{BoundedInteractive, ReadOnlyOrDraft};
        match (shape, authority) {
            (Some(TaskShape::Local), BoundedInteractive | ReadOnlyOrDraft) => Self::DirectPatch,
            (Some(TaskShape::PredictablePhases), BoundedInteractive | ReadOnlyOrDraft) => Self::FixedPipeline,
            (Some(TaskShape::ObservationSensitive), BoundedInteractive) => Self::BoundedAgent,
            _ => Self::Human,
        }
    }
}

/// The authority of one task class in one environment, until its end date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawReadiness", into = "RawReadiness")]
pub struct ReadinessRecord {
    task_class: Name,
    environment: Digest,
    findings: Findings,
    shape: Option<TaskShape>,
    issued: UnixSeconds,
    ends: UnixSeconds,
}

/// What travels: what was found, and what follows, so that a reader sees both.
#[derive(Serialize, Deserialize)]
struct RawReadiness {
    version: Version<1>,
    task_class: Name,
    environment: Digest,
    findings: Findings,
    shape: Option<TaskShape>,
    authority: GrantedAuthority,
    mechanism: Mechanism,
    issued: UnixSeconds,
    ends: UnixSeconds,
}

/// A readiness record cannot be what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadinessError {
    /// It ends before it begins.
    EndsTooEarly {
        /// Its beginning.
        issued: UnixSeconds,
        /// Its end.
        ends: UnixSeconds,
    },
    /// The authority does not follow from the findings.
    NotTheAuthority {
        /// What follows.
        expected: GrantedAuthority,
        /// What it says.
        found: GrantedAuthority,
    },
    /// The mechanism does not follow from shape and authority.
    NotTheMechanism {
        /// What follows.
        expected: Mechanism,
        /// What it says.
        found: Mechanism,
    },
}

impl fmt::Display for ReadinessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndsTooEarly { issued, ends } => {
                write!(f, "an end after {} was expected; found {}", issued.0, ends.0)
            }
            Self::NotTheAuthority { expected, found } => {
                write!(f, "the findings grant `{expected}`; found `{found}`")
            }
            Self::NotTheMechanism { expected, found } => {
                write!(f, "the least adaptive mechanism is `{expected}`; found `{found}`")
            }
        }
    }
}

impl core::error::Error for ReadinessError {}

/// Why a record grants nothing here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGranted {
    /// It is about another task class.
    OtherTaskClass,
    /// It is about another environment.
    OtherEnvironment,
    /// It has not begun.
    NotYet,
    /// Its end date has passed.
    Expired,
}

impl fmt::Display for NotGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherTaskClass => "the readiness record is about another task class",
            Self::OtherEnvironment => "the readiness record is about another environment",
            Self::NotYet => "the readiness record has not begun",
            Self::Expired => "the readiness record has expired",
        })
    }
}

impl core::error::Error for NotGranted {}

impl ReadinessRecord {
    /// Records what was found for one task class in one environment.
    ///
    /// # Errors
    /// [`ReadinessError::EndsTooEarly`] unless `ends` is after `issued`.
    pub fn new(
        task_class: Name,
        environment: Digest,
        findings: Findings,
        shape: Option<TaskShape>,
        [issued, ends]: [UnixSeconds; 2],
    ) -> Result<Self, ReadinessError> {
        if issued < ends {
            Ok(Self { task_class, environment, findings, shape, issued, ends })
        } else {
            Err(ReadinessError::EndsTooEarly { issued, ends })
        }
    }

    /// What was found.
    #[must_use]
    pub const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// The authority that it grants while it holds.
    #[must_use]
    pub const fn authority(&self) -> GrantedAuthority {
        self.findings.authority()
    }

    /// The least adaptive mechanism that would do.
    #[must_use]
    pub const fn mechanism(&self) -> Mechanism {
        Mechanism::least_adaptive(self.shape, self.authority())
    }

    /// What it grants to `task_class` in `environment` at `now`. The last second of its life is the one before `ends`.
    ///
    /// # Errors
    /// [`NotGranted`] if it is about something else, or its time has not come or is over.
    pub fn grant(
        &self,
        task_class: &Name,
        environment: Digest,
        now: UnixSeconds,
    ) -> Result<GrantedAuthority, NotGranted> {
        if self.task_class != *task_class {
            Err(NotGranted::OtherTaskClass)
        } else if self.environment != environment {
            Err(NotGranted::OtherEnvironment)
        } else if now < self.issued {
            Err(NotGranted::NotYet)
        } else if self.ends <= now {
            Err(NotGranted::Expired)
        } else {
            Ok(self.authority())
        }
    }
}

impl TryFrom<RawReadiness> for ReadinessRecord {
    type Error = ReadinessError;
    fn try_from(raw: RawReadiness) -> Result<Self, ReadinessError> {
        let record = Self::new(raw.task_class, raw.environment, raw.findings, raw.shape, [raw.issued, raw.ends])?;
        if record.authority() != raw.authority {
            Err(ReadinessError::NotTheAuthority { expected: record.authority(), found: raw.authority })
        } else if record.mechanism() != raw.mechanism {
            Err(ReadinessError::NotTheMechanism { expected: record.mechanism(), found: raw.mechanism })
        } else {
            Ok(record)
        }
    }
}

impl From<ReadinessRecord> for RawReadiness {
    fn from(record: ReadinessRecord) -> Self {
        Self {
            version: Version,
            authority: record.authority(),
            mechanism: record.mechanism(),
            task_class: record.task_class,
            environment: record.environment,
            findings: record.findings,
            shape: record.shape,
            issued: record.issued,
            ends: record.ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: GrantedAuthority = GrantedAuthority::BoundedInteractive;
    const D: GrantedAuthority = GrantedAuthority::ReadOnlyOrDraft;
    const E: GrantedAuthority = GrantedAuthority::ImproveEnvironment;
    const H: GrantedAuthority = GrantedAuthority::HumanLed;

    /// One row for each of the 64 combinations: a capital holds, a small letter does not. The letters are intent,
    /// state, observation, action, evidence, recovery.
    #[test]
    fn all_64_combinations() {
        #[rustfmt::skip]
        let table = [
            ("isoaer", H), ("isoaeR", H), ("isoaEr", H), ("isoaER", H),
            ("isoAer", H), ("isoAeR", H), ("isoAEr", H), ("isoAER", H),
            ("isOaer", H), ("isOaeR", H), ("isOaEr", H), ("isOaER", H),
            ("isOAer", H), ("isOAeR", H), ("isOAEr", H), ("isOAER", H),
            ("iSoaer", H), ("iSoaeR", H), ("iSoaEr", H), ("iSoaER", H),
            ("iSoAer", H), ("iSoAeR", H), ("iSoAEr", H), ("iSoAER", H),
            ("iSOaer", H), ("iSOaeR", H), ("iSOaEr", H), ("iSOaER", H),
            ("iSOAer", H), ("iSOAeR", H), ("iSOAEr", H), ("iSOAER", H),
            ("Isoaer", H), ("IsoaeR", H), ("IsoaEr", E), ("IsoaER", E),
            ("IsoAer", H), ("IsoAeR", H), ("IsoAEr", E), ("IsoAER", E),
            ("IsOaer", H), ("IsOaeR", H), ("IsOaEr", E), ("IsOaER", E),
            ("IsOAer", H), ("IsOAeR", H), ("IsOAEr", E), ("IsOAER", E),
            ("ISoaer", H), ("ISoaeR", H), ("ISoaEr", E), ("ISoaER", E),
            ("ISoAer", H), ("ISoAeR", H), ("ISoAEr", E), ("ISoAER", E),
            ("ISOaer", H), ("ISOaeR", H), ("ISOaEr", D), ("ISOaER", D),
            ("ISOAer", H), ("ISOAeR", H), ("ISOAEr", D), ("ISOAER", B),
        ];
        assert_eq!(table.len(), 64);
        for (row, (letters, authority)) in table.into_iter().enumerate() {
            assert_eq!(letters.to_ascii_lowercase(), "isoaer");
            let mask = letters.bytes().fold(0, |mask, letter| mask << 1 | usize::from(letter.is_ascii_uppercase()));
            assert_eq!(mask, row, "each combination once, in order");
            for fails in [Finding::Fails, Finding::Missing] {
                let mut findings = Findings::MISSING;
                for (finding, letter) in findings.0.iter_mut().zip(letters.bytes()) {
                    *finding = if letter.is_ascii_uppercase() { Finding::Holds } else { fails };
                }
                assert_eq!(findings.authority(), authority, "{letters}, {fails}");
            }
        }
    }

    #[test]
    fn the_least_adaptive_mechanism() {
        use Mechanism::{BoundedAgent, DirectPatch, FixedPipeline, Human};
        #[rustfmt::skip]
        let table = [ // shape                         bounded        draft          improve  human-led
            (Some(TaskShape::Local),                   [DirectPatch,   DirectPatch,   Human,   Human]),
            (Some(TaskShape::PredictablePhases),       [FixedPipeline, FixedPipeline, Human,   Human]),
            (Some(TaskShape::ObservationSensitive),    [BoundedAgent,  Human,         Human,   Human]),
            (Some(TaskShape::NotDerivable),            [Human,         Human,         Human,   Human]),
            (None,                                     [Human,         Human,         Human,   Human]),
        ];
        for (shape, mechanisms) in table {
            for (authority, mechanism) in [B, D, E, H].into_iter().zip(mechanisms) {
                assert_eq!(Mechanism::least_adaptive(shape, authority), mechanism, "{shape:?} {authority}");
            }
        }
    }

    fn record(findings: Findings) -> ReadinessRecord {
        let class = Name::new("local defects").unwrap();
        let life = [UnixSeconds(100), UnixSeconds(200)];
        ReadinessRecord::new(class, Digest([1; 32]), findings, Some(TaskShape::Local), life).unwrap()
    }

    #[test]
    fn a_record_is_bound_to_its_class_its_environment_and_its_time() {
        let record = record(Findings([Finding::Holds; 6]));
        let class = |name| Name::new(name).unwrap();
        #[rustfmt::skip]
        let cases = [ // class          environment  now  grants
            ("local defects",           1,           99,  Err(NotGranted::NotYet)),
            ("local defects",           1,           100, Ok(B)),
            ("local defects",           1,           199, Ok(B)),
            ("local defects",           1,           200, Err(NotGranted::Expired)),
            ("local defects",           2,           150, Err(NotGranted::OtherEnvironment)),
            ("migrations",              1,           150, Err(NotGranted::OtherTaskClass)),
        ];
        for (name, environment, now, grants) in cases {
            let found = record.grant(&class(name), Digest([environment; 32]), UnixSeconds(now));
            assert_eq!(found, grants, "{name} {environment} {now}");
        }
        let backwards = [UnixSeconds(5), UnixSeconds(5)];
        let refused = ReadinessRecord::new(class("x"), Digest([1; 32]), Findings::MISSING, None, backwards);
        assert!(matches!(refused, Err(ReadinessError::EndsTooEarly { .. })));
    }

    #[test]
    fn a_record_that_grants_more_than_it_found_is_refused() {
        let honest = record(Findings::MISSING);
        let text = serde_json::to_string(&honest).unwrap();
        assert_eq!(serde_json::from_str::<ReadinessRecord>(&text).unwrap(), honest);
        for (from, to) in [
            (r#""authority":"human_led""#, r#""authority":"bounded_interactive""#),
            (r#""mechanism":"human""#, r#""mechanism":"bounded_agent""#),
            (r#""version":1"#, r#""version":2"#),
            (r#""ends":200"#, r#""ends":100"#),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(serde_json::from_str::<ReadinessRecord>(&text.replace(from, to)).is_err(), "{to}");
        }
    }
}
