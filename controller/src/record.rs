//! `controller.json`: what a bundle says of itself beside its weights.
//!
//! ```json
//! {
//!   "format": "tack-controller", "version": 1, "name": "mini",
//!   "lambda": 0.0,
//!   "lambda_gate": { "not_run": "no development outcomes" },
//!   "field_shares": 1,
//!   "regime": {
//!     "repair_policy": { "name": "...", "digest": "64 hexadecimal digits" },
//!     "scaffold": { "name": "...", "digest": "..." },
//!     "budget": "paper",
//!     "limits": { "output_tokens": 8192, "tool_calls": 30, "repair": 1200000000, "pretest": 300000000 }
//!   },
//!   "digests": { "network": "...", "tokenizer": "..." },
//!   "training": { "trained": false, "note": "random weights" }
//! }
//! ```
//!
//! Times are microseconds. `digests.network` is [`Network::digest`](tack_kernels::Network::digest) with the adapter, and
//! `digests.tokenizer` is of `tokenizer.json`; both are checked when a bundle is opened, so that a record never speaks
//! for other weights. A field that version 1 does not know, at any depth, is an error and not a guess, and so is a field
//! that stands twice.
//!
//! A lambda gate that ran is `{ "ran": RECORD }` with the whole [`LambdaGate`], which is recomputed from its rows as it
//! is read. Its context must name this controller, by [`BundleDigests::controller`]; and its lambda is served by the
//! backend and in the precision that it names, or not at all ([`GateRecord::serves`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tack_core::lambda_gate::GateAnswer;
use tack_core::receipt::Backend;
use tack_core::{Digest, FieldShares, Lambda, LambdaGate, Name, Precision, Regime};
use tack_kernels::bundle::digest_files;

use crate::digests::shares_digest;

/// The file's name in a bundle.
pub const RECORD_FILE: &str = "controller.json";

const FORMAT: &str = "tack-controller";
const VERSION: u64 = 1;

/// The content of `controller.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerRecord {
    /// What people call the bundle.
    pub name: Name,
    /// The price of cost that was chosen on development data.
    pub lambda: Lambda,
    /// How it was chosen.
    pub lambda_gate: GateRecord,
    /// The version of the field shares that the network was trained on.
    pub field_shares: u16,
    /// For whom the estimates hold.
    pub regime: Regime,
    /// What the record is about.
    pub digests: BundleDigests,
    /// What stands behind the weights.
    pub training: TrainingRecord,
}

/// How lambda was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateRecord {
    /// It was not, for this reason; lambda is 0.
    NotRun(String),
    /// By the lambda gate, over development data.
    Ran(Box<LambdaGate>),
}

impl GateRecord {
    /// The lambda that follows.
    #[must_use]
    pub fn lambda(&self) -> Lambda {
        match self {
            Self::NotRun(_) => Lambda::ZERO,
            Self::Ran(gate) => gate.lambda(),
        }
    }

    /// What the gate's rows were computed with; `None` where it did not run.
    #[must_use]
    pub const fn ran_on(&self) -> Option<(Backend, Precision)> {
        match self {
            Self::NotRun(_) => None,
            Self::Ran(gate) => Some((gate.context().backend, gate.context().precision)),
        }
    }

    /// Whether its lambda holds for estimates of `backend` in `precision`; where the gate did not run, lambda is 0 and
    /// holds for all.
    ///
    /// # Errors
    /// [`OtherPrecision`], since rows that were computed otherwise say nothing about these estimates.
    pub fn serves(&self, backend: Backend, precision: Precision) -> Result<(), OtherPrecision> {
        match self {
            Self::NotRun(_) => Ok(()),
            Self::Ran(gate) => {
                let (ran, serving) = ((gate.context().backend, gate.context().precision), (backend, precision));
                if ran == serving { Ok(()) } else { Err(OtherPrecision { ran, serving }) }
            }
        }
    }

    /// Whether an operating point passed, and why not.
    #[must_use]
    pub fn verdict(&self) -> (bool, String) {
        match self {
            Self::NotRun(reason) => (false, reason.clone()),
            Self::Ran(gate) => match gate.answer() {
                GateAnswer::Met { row } => {
                    (true, format!("row {row} of the grid has the lowest cost within the tolerance"))
                }
                GateAnswer::NotMet(shortfall) => (false, shortfall.name().to_owned()),
            },
        }
    }
}

/// A lambda gate ran on another backend, or in another precision, than serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lambda gate ran on {} in {}; this controller serves on {} in {}", ran.0, ran.1, serving.0, serving.1)]
pub struct OtherPrecision {
    /// What the gate's rows were computed with.
    pub ran: (Backend, Precision),
    /// What computes the estimates here.
    pub serving: (Backend, Precision),
}

/// The files that the record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleDigests {
    /// Of the network's files.
    pub network: Digest,
    /// Of `tokenizer.json`.
    pub tokenizer: Digest,
}

impl BundleDigests {
    /// What a lambda gate's context calls its controller: one digest of all that turns a state into estimates, which is
    /// the field shares, the tokenizer and the network. Not of the record, which holds the gate.
    #[must_use]
    pub fn controller(&self, shares: &FieldShares) -> Digest {
        let files =
            [("field_shares", shares_digest(shares)), ("network", self.network), ("tokenizer.json", self.tokenizer)];
        digest_files(files)
    }
}

/// What stands behind the weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingRecord {
    /// Whether the weights were trained on action outcomes at all.
    pub trained: bool,
    /// On what, with which seed; or what the weights are instead.
    pub note: String,
}

/// Why a `controller.json` was refused.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file is not a JSON object, or names a field twice.
    #[error("`{file}`: not a JSON object of distinct fields")]
    Json {
        /// The file.
        file: String,
        /// What the parser met.
        source: serde_json::Error,
    },
    /// A field is missing.
    #[error("`{file}`: field `{field}` is missing")]
    Missing {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
    },
    /// A field holds something else. The source names what was expected and what was found.
    #[error("`{file}`: field `{field}` is refused")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// Expected and found.
        source: serde_json::Error,
    },
    /// A field is well formed and still cannot be.
    #[error("`{file}`: field `{field}` must be {expected}; found {found}")]
    Value {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A field that version 1 does not have.
    #[error("`{file}`: version {VERSION} has no field `{field}`")]
    Unknown {
        /// The file.
        file: String,
        /// The field.
        field: String,
    },
}

impl ControllerRecord {
    /// Reads the content of a `controller.json`; `file` is what errors call it.
    ///
    /// # Errors
    /// Every variant of [`RecordError`].
    pub fn from_bytes(content: &[u8], file: &str) -> Result<Self, RecordError> {
        let fields = serde_json::from_slice::<DistinctFields<'_>>(content);
        let DistinctFields(fields) = fields.map_err(|source| RecordError::Json { file: file.to_owned(), source })?;
        let mut fields = Fields { fields, file };
        fields.require("format", &FORMAT.into())?;
        fields.require("version", &VERSION.into())?;
        let record = Self {
            name: fields.take("name")?,
            lambda: fields.take("lambda")?,
            lambda_gate: fields.take("lambda_gate")?,
            field_shares: fields.take("field_shares")?,
            regime: fields.take("regime")?,
            digests: fields.take("digests")?,
            training: fields.take("training")?,
        };
        let refuse = |field, expected: String, found: String| {
            Err(RecordError::Value { file: file.to_owned(), field, expected, found })
        };
        if let Some(field) = fields.fields.keys().next() {
            return Err(RecordError::Unknown { file: file.to_owned(), field: field.clone() });
        }
        if record.field_shares != FieldShares::V1.version {
            return refuse("field_shares", FieldShares::V1.version.to_string(), record.field_shares.to_string());
        }
        let follows = record.lambda_gate.lambda();
        if record.lambda != follows {
            // A lambda that passed nothing would look chosen.
            let expected = format!("{}, which follows from `lambda_gate`", follows.get());
            return refuse("lambda", expected, record.lambda.get().to_string());
        }
        let controller = record.digests.controller(&FieldShares::V1);
        if let GateRecord::Ran(gate) = &record.lambda_gate
            && gate.context().controller != controller
        {
            let expected = format!("about the controller {controller}");
            return refuse("lambda_gate", expected, gate.context().controller.to_string());
        }
        Ok(record)
    }
}

/// The fields of an object, each as it stands there: so the type that reads it sees every digit and every field.
struct DistinctFields<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for DistinctFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Distinct;
        impl<'de> Visitor<'de> for Distinct {
            type Value = BTreeMap<String, &'de RawValue>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some(field) = map.next_key::<String>()? {
                    match fields.entry(field) {
                        Entry::Vacant(vacant) => vacant.insert(map.next_value()?),
                        Entry::Occupied(held) => {
                            return Err(A::Error::custom(format_args!("field `{}` stands twice", held.key())));
                        }
                    };
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Distinct).map(Self)
    }
}

struct Fields<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    file: &'a str,
}

impl Fields<'_> {
    fn take<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<T, RecordError> {
        let missing = || RecordError::Missing { file: self.file.to_owned(), field };
        let value = self.fields.remove(field).ok_or_else(missing)?;
        let refused = |source| RecordError::Field { file: self.file.to_owned(), field, source };
        serde_json::from_str(value.get()).map_err(refused)
    }

    fn require(&mut self, field: &'static str, expected: &Value) -> Result<(), RecordError> {
        let found = self.take::<Value>(field)?;
        if found == *expected {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(RecordError::Value { file: self.file.to_owned(), field, expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini;
    use proptest::prelude::*;
    use serde_json::json;
    use std::error::Error as _;
    use tack_core::cost::CostTicks;
    use tack_core::lambda_gate::{DevelopmentState, GateContext};
    use tack_core::{
        Action, ActionSet, Estimate, HalfOutcomes, NormalizedCost, PairCost, PerAction, Probability, StateOutcomes,
    };

    fn changed(change: impl FnOnce(&mut Value)) -> Result<ControllerRecord, RecordError> {
        let mut value: Value = serde_json::from_slice(mini::file(RECORD_FILE)).unwrap();
        change(&mut value);
        ControllerRecord::from_bytes(value.to_string().as_bytes(), "c.json")
    }

    #[test]
    fn the_mini_record_says_that_it_is_untrained() {
        let record = changed(|_| {}).unwrap();
        assert_eq!(record.name.as_str(), "mini");
        assert_eq!((record.lambda, record.lambda_gate.verdict().0), (Lambda::ZERO, false));
        assert!(!record.training.trained);
        assert_eq!(record.regime.limits, tack_core::Limits::PAPER);
    }

    proptest! {
        /// A damaged file is refused or read, and never more than that.
        #[test]
        fn a_damaged_file_never_panics(at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
            let mut content = mini::file(RECORD_FILE).to_vec();
            let len = content.len();
            content[at % len] = byte;
            for content in [&content[..], &content[..cut % len]] {
                if let Err(error) = ControllerRecord::from_bytes(content, "c.json") {
                    prop_assert!(error.to_string().starts_with("`c.json`: "));
                }
            }
        }
    }

    #[test]
    fn a_refusal_names_the_file_the_field_and_what_was_expected_and_found() {
        type Change = fn(&mut Value);
        #[rustfmt::skip]
        let cases: [(Change, &str, Option<&str>); 15] = [
            (|it| *it = json!([]),                            "`c.json`: not a JSON object of distinct fields", Some("invalid type: sequence, expected an object")),
            (|it| it["format"] = json!("other"),              "`c.json`: field `format` must be \"tack-controller\"; found \"other\"", None),
            (|it| it["version"] = json!(2),                   "`c.json`: field `version` must be 1; found 2", None),
            (|it| { it.as_object_mut().unwrap().remove("regime"); }, "`c.json`: field `regime` is missing", None),
            (|it| it["lambda"] = json!("much"),               "`c.json`: field `lambda` is refused", Some("invalid type: string \"much\", expected f32")),
            (|it| it["lambda"] = json!(-0.5),                 "`c.json`: field `lambda` is refused", Some("lambda must be finite and not negative; found -0.5")),
            (|it| it["lambda"] = json!(0.1),                  "`c.json`: field `lambda` must be 0, which follows from `lambda_gate`; found 0.1", None),
            (|it| it["field_shares"] = json!(2),              "`c.json`: field `field_shares` must be 1; found 2", None),
            (|it| it["digests"]["network"] = json!("00"),     "`c.json`: field `digests` is refused", Some("a SHA-256 digest is 64 hexadecimal digits")),
            (|it| it["training"]["extra"] = json!(1),         "`c.json`: field `training` is refused", Some("unknown field `extra`, expected `trained` or `note`")),
            (|it| it["regime"]["foo"] = json!(1),             "`c.json`: field `regime` is refused", Some("unknown field `foo`, expected one of `repair_policy`")),
            (|it| it["regime"]["limits"]["extra"] = json!(1), "`c.json`: field `regime` is refused", Some("unknown field `extra`, expected one of `output_tokens`")),
            (|it| it["regime"]["scaffold"]["at"] = json!(1),  "`c.json`: field `regime` is refused", Some("unknown field `at`, expected `name` or `digest`")),
            (|it| it["lambda_gate"]["ran"] = json!({}),       "`c.json`: field `lambda_gate` is refused", Some("")),
            (|it| it["threshold"] = json!(0.5),               "`c.json`: version 1 has no field `threshold`", None),
        ];
        for (change, message, source) in cases {
            let error = changed(change).unwrap_err();
            assert_eq!(error.to_string(), message);
            let found = error.source().map(ToString::to_string);
            match source {
                None => assert_eq!(found, None, "{message}"),
                Some(source) => assert!(found.as_ref().is_some_and(|it| it.contains(source)), "{message}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_at_any_depth() {
        let content = String::from_utf8(mini::file(RECORD_FILE).to_vec()).unwrap();
        for (field, message) in [
            (r#""lambda": 0.0,"#, "field `lambda` stands twice"),
            (r#""version": 1,"#, "field `version` stands twice"),
            (r#""budget": "paper","#, "duplicate field `budget`"),
            (r#""tool_calls": 30,"#, "duplicate field `tool_calls`"),
            (r#""trained": false,"#, "duplicate field `trained`"),
        ] {
            assert!(content.contains(field), "{field}");
            let twice = content.replace(field, &format!("{field}{field}"));
            let error = ControllerRecord::from_bytes(twice.as_bytes(), "c.json").unwrap_err();
            assert!(error.source().unwrap().to_string().contains(message), "{field}: {error:?}");
        }
    }

    /// A gate over one state, on which a price of 0.02 turns the choice from `continue` to `submit`.
    fn gate(controller: Digest) -> LambdaGate {
        let estimate = |q, c| Estimate { success: Probability::new(q).unwrap(), cost: NormalizedCost::new(c).unwrap() };
        let mut estimates = PerAction([estimate(0.0, 0.0); Action::COUNT]);
        estimates[Action::Submit] = estimate(0.49, 0.0);
        estimates[Action::Continue] = estimate(0.5, 1.0);
        let dear = PairCost { sum: CostTicks(u128::from(u64::MAX) + 1), estimated: false };
        let state = DevelopmentState {
            available: ActionSet::ALL,
            estimates,
            outcomes: StateOutcomes::new(PerAction([Some(HalfOutcomes::try_from(2).unwrap()); Action::COUNT])).unwrap(),
            costs: PerAction([Some(dear); Action::COUNT]),
        };
        let development = Digest([9; 32]);
        let context = GateContext { controller, development, backend: Backend::Cpu, precision: Precision::F32 };
        LambdaGate::evaluate(context, &[state], None).unwrap()
    }

    /// The mini record with a gate that ran. It is put together as text: the gate's cost is beyond 64 bits.
    fn with_gate(gate: &str) -> Result<ControllerRecord, RecordError> {
        let content = String::from_utf8(mini::file(RECORD_FILE).to_vec()).unwrap();
        let (before, rest) = content.split_once(r#""lambda_gate": {"#).unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        let before = before.replace(r#""lambda": 0.0"#, r#""lambda": 0.02"#);
        let content = format!(r#"{before}"lambda_gate": {{"ran": {gate}}}{after}"#);
        ControllerRecord::from_bytes(content.as_bytes(), "c.json")
    }

    #[test]
    fn a_gate_is_about_this_controller_and_says_no_more_than_a_gate() {
        let mini = changed(|_| {}).unwrap().digests;
        let own = gate(mini.controller(&FieldShares::V1));
        let text = serde_json::to_string(&own).unwrap();
        let record = with_gate(&text).unwrap();
        assert_eq!(record.lambda, Lambda::new(0.02).unwrap());
        assert_eq!(record.lambda_gate, GateRecord::Ran(Box::new(own)), "read to the last digit");
        assert_eq!(record.lambda_gate.serves(Backend::Cpu, Precision::F32), Ok(()));
        for (backend, precision) in [(Backend::Cpu, Precision::Bf16), (Backend::Cuda, Precision::F32)] {
            assert!(record.lambda_gate.serves(backend, precision).is_err());
        }

        let error = with_gate(&serde_json::to_string(&gate(mini.network)).unwrap()).unwrap_err();
        let (expected, found) = (own.context().controller, mini.network);
        let message = format!("`c.json`: field `lambda_gate` must be about the controller {expected}; found {found}");
        assert_eq!(error.to_string(), message);

        for place in [
            r#"{"version""#,
            r#"{"controller""#,
            r#"{"states":1,"rows""#,
            r#"{"half_outcomes":2,"cost""#,
            r#"{"source""#,
            r#"{"half_outcomes":2,"states""#,
            r#"{"row""#,
        ] {
            assert!(text.contains(place), "{place} in {text}");
            let error = with_gate(&text.replacen(place, &place.replace('{', r#"{"extra":1,"#), 1)).unwrap_err();
            assert!(error.source().unwrap().to_string().contains("unknown field `extra`"), "{place}: {error:?}");
        }
    }
}
