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
//! Times are microseconds. A lambda gate that ran is `{ "ran": RECORD }` with the whole [`LambdaGate`], which is
//! recomputed from its rows as it is read; its context must name this network. `digests.network` is [`Network::digest`](tack_kernels::Network::digest) with the adapter, and
//! `digests.tokenizer` is of `tokenizer.json`; both are checked when a bundle is opened, so that a record never speaks
//! for other weights. A field that version 1 does not know is an error, not a guess.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tack_core::lambda_gate::GateAnswer;
use tack_core::{Digest, FieldShares, Lambda, LambdaGate, Name, Regime};

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

/// The files that the record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleDigests {
    /// Of the network's files.
    pub network: Digest,
    /// Of `tokenizer.json`.
    pub tokenizer: Digest,
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
    /// The file is not a JSON object.
    #[error("`{file}`: not a JSON object")]
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
        let fields = serde_json::from_slice::<Map<String, Value>>(content);
        let fields = fields.map_err(|source| RecordError::Json { file: file.to_owned(), source })?;
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
        if let GateRecord::Ran(gate) = &record.lambda_gate
            && gate.context().controller != record.digests.network
        {
            let expected = format!("about the network {}", record.digests.network);
            return refuse("lambda_gate", expected, gate.context().controller.to_string());
        }
        Ok(record)
    }
}

struct Fields<'a> {
    fields: Map<String, Value>,
    file: &'a str,
}

impl Fields<'_> {
    fn remove(&mut self, field: &'static str) -> Result<Value, RecordError> {
        let missing = || RecordError::Missing { file: self.file.to_owned(), field };
        self.fields.remove(field).ok_or_else(missing)
    }

    fn take<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<T, RecordError> {
        let value = self.remove(field)?;
        let refused = |source| RecordError::Field { file: self.file.to_owned(), field, source };
        serde_json::from_value(value).map_err(refused)
    }

    fn require(&mut self, field: &'static str, expected: &Value) -> Result<(), RecordError> {
        let found = self.remove(field)?;
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
        let cases: [(Change, &str, Option<&str>); 11] = [
            (|it| *it = json!([]),                            "`c.json`: not a JSON object", Some("invalid type: sequence, expected a map")),
            (|it| it["format"] = json!("other"),              "`c.json`: field `format` must be \"tack-controller\"; found \"other\"", None),
            (|it| it["version"] = json!(2),                   "`c.json`: field `version` must be 1; found 2", None),
            (|it| { it.as_object_mut().unwrap().remove("regime"); }, "`c.json`: field `regime` is missing", None),
            (|it| it["lambda"] = json!("much"),               "`c.json`: field `lambda` is refused", Some("invalid type: string \"much\", expected f32")),
            (|it| it["lambda"] = json!(-0.5),                 "`c.json`: field `lambda` is refused", Some("lambda must be finite and not negative; found -0.5")),
            (|it| it["lambda"] = json!(0.1),                  "`c.json`: field `lambda` must be 0, which follows from `lambda_gate`; found 0.1", None),
            (|it| it["field_shares"] = json!(2),              "`c.json`: field `field_shares` must be 1; found 2", None),
            (|it| it["digests"]["network"] = json!("00"),     "`c.json`: field `digests` is refused", Some("a SHA-256 digest is 64 hexadecimal digits")),
            (|it| it["training"]["extra"] = json!(1),         "`c.json`: field `training` is refused", Some("unknown field `extra`, expected `trained` or `note`")),
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
}
