//! The JSON form of a decision state, version 1, and the menu file.
//!
//! ```json
//! {
//!   "format": "tack-state",
//!   "version": 1,
//!   "issue": "Names with a dot break the router",
//!   "menu": { "targeted": ["tests/test_router.py::test_dot"], "broader": [] },
//!   "patch": "diff --git a/router.py b/router.py\n...",
//!   "observations": [
//!     { "step": 0, "call": "cat router.py", "output": { "base64": "/w==" }, "exit_status": 0, "reason": "inspection" }
//!   ],
//!   "budget": { "output_tokens": 4096, "tool_calls": 12, "repair_us": null }
//! }
//! ```
//!
//! - `format` and `version` come first in what is written and are required in what is read.
//! - A *text* is a JSON string where the bytes are UTF-8, else `{"base64": ...}`: standard alphabet, with padding. So
//!   every state returns from its JSON byte for byte.
//! - Unknown is `null`, or the field left out. A `null` menu is unknown, one with empty parts is known and empty; a
//!   `null` patch is unknown, `""` says that nothing was changed. Only `observations`, and in each entry `step`,
//!   `call`, `output` and `reason`, must stand.
//! - `reason` is one of `tool_call`, `inspection`, `edit`, `agent_test`, `pretest`, `harness`.
//! - A field that is not named here is refused: an outcome has no place in a state, whatever it is called.

use serde::Serialize;
use tack_core::{ContextReason, Micros, Remaining, Tokens};

use crate::base64;
use crate::document::without_mark;
use crate::error::Problem;
use crate::gap::Gap;
use crate::json::{At, Node};
use crate::kept::{Keeper, Kept};
use crate::parse::{Unreadable, parse};
use crate::recording::cut_gap;
use crate::state::{OwnedMenu, OwnedObservation, OwnedState};

/// What `format` says in a state.
pub const STATE_FORMAT: &str = "tack-state";
/// What `format` says in a menu file.
pub const MENU_FORMAT: &str = "tack-menu";
/// The one version of both.
pub const VERSION: u64 = 1;

/// Every reason with its name in the file.
const REASONS: [(&str, ContextReason); 6] = [
    ("tool_call", ContextReason::ToolCall),
    ("inspection", ContextReason::Inspection),
    ("edit", ContextReason::Edit),
    ("agent_test", ContextReason::AgentTest),
    ("pretest", ContextReason::Pretest),
    ("harness", ContextReason::Harness),
];

impl OwnedState {
    /// The state's JSON form, indented, with a newline at the end.
    ///
    /// # Panics
    /// Never: every value of a state has a JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        #[expect(
            clippy::expect_used,
            reason = "strings, integers and lists of them: none can fail, nor can the writer"
        )]
        let mut text = serde_json::to_string_pretty(&StateOut::from(self)).expect("a state has a JSON form");
        text.push('\n');
        text
    }

    /// Reads [`OwnedState::to_json`]'s form.
    ///
    /// # Errors
    /// [`Problem`] if it is not JSON, not this format and version, or has a field that the format does not have.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Problem> {
        state(At::root(&strict(bytes)?), &mut text)
    }
}

#[derive(Serialize)]
struct StateOut<'a> {
    format: &'static str,
    version: u64,
    issue: Option<TextOut<'a>>,
    menu: Option<MenuOut<'a>>,
    patch: Option<TextOut<'a>>,
    observations: Vec<ObservationOut<'a>>,
    budget: BudgetOut,
}

#[derive(Serialize)]
struct MenuOut<'a> {
    targeted: &'a [String],
    broader: &'a [String],
}

#[derive(Serialize)]
struct ObservationOut<'a> {
    step: u32,
    call: TextOut<'a>,
    output: TextOut<'a>,
    exit_status: Option<i32>,
    reason: ContextReason,
}

#[derive(Serialize)]
struct BudgetOut {
    output_tokens: Option<u32>,
    tool_calls: Option<u32>,
    repair_us: Option<u64>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum TextOut<'a> {
    Utf8(&'a str),
    Bytes { base64: String },
}

impl<'a> From<&'a [u8]> for TextOut<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(_) => Self::Bytes { base64: base64::encode(bytes) },
        }
    }
}

impl<'a> From<&'a OwnedState> for StateOut<'a> {
    fn from(state: &'a OwnedState) -> Self {
        Self {
            format: STATE_FORMAT,
            version: VERSION,
            issue: state.issue.as_deref().map(TextOut::from),
            menu: state.menu.as_ref().map(|menu| MenuOut { targeted: menu.targeted(), broader: menu.broader() }),
            patch: state.patch.as_deref().map(TextOut::from),
            observations: state
                .observations
                .iter()
                .map(|seen| ObservationOut {
                    step: seen.step,
                    call: seen.call.as_slice().into(),
                    output: seen.output.as_slice().into(),
                    exit_status: seen.exit_status,
                    reason: seen.reason,
                })
                .collect(),
            budget: BudgetOut {
                output_tokens: state.budget.output_tokens.map(|Tokens(count)| count),
                tool_calls: state.budget.tool_calls,
                repair_us: state.budget.repair.map(|Micros(time)| time),
            },
        }
    }
}

/// A state out of its JSON tree, with calls and answers within [`KEPT_MAX`](crate::KEPT_MAX) as in any other format,
/// and what was left out for that. None of the states that this crate makes is over the bound.
pub(crate) fn bounded_state(root: At<'_, '_>) -> Result<(OwnedState, Option<Gap>), Problem> {
    let mut dropped = Vec::new();
    let state = state(root, &mut |place| {
        let kept = kept(place)?;
        dropped.push(kept.dropped);
        Ok(kept.bytes)
    })?;
    Ok((state, cut_gap(dropped.into_iter())))
}

/// How the bytes of a call or an answer come out of their place.
type BytesOf<'f> = &'f mut dyn FnMut(At<'_, '_>) -> Result<Vec<u8>, Problem>;

fn state(root: At<'_, '_>, of_observation: BytesOf<'_>) -> Result<OwnedState, Problem> {
    const FORMAT: &str = "tack-state 1";
    check_version(root, STATE_FORMAT, "tack-state")?;
    only(root, FORMAT, &["format", "version", "issue", "menu", "patch", "observations", "budget"])?;
    let observations = root.required("observations", "an array of observations")?;
    Ok(OwnedState {
        issue: root.field("issue")?.map(text).transpose()?,
        menu: match root.field("menu")? {
            Some(menu) => {
                only(menu, FORMAT, &["targeted", "broader"])?;
                Some(menu_parts(menu)?)
            }
            None => None,
        },
        patch: root.field("patch")?.map(text).transpose()?,
        observations: observations
            .items()?
            .map(|entry| observation(entry, of_observation))
            .collect::<Result<_, _>>()?,
        budget: match root.field("budget")? {
            Some(budget) => remaining(budget)?,
            None => Remaining::default(),
        },
    })
}

/// A menu out of its file.
pub(crate) fn menu_file(bytes: &[u8]) -> Result<OwnedMenu, Problem> {
    let node = strict(bytes)?;
    let root = At::root(&node);
    check_version(root, MENU_FORMAT, "tack-menu")?;
    only(root, "tack-menu 1", &["format", "version", "targeted", "broader"])?;
    menu_parts(root)
}

/// Our own forms are exact: bytes that are not UTF-8 stand in base64, or not at all.
fn strict(bytes: &[u8]) -> Result<Node<'_>, Problem> {
    let bytes = without_mark(bytes);
    if bytes.trim_ascii().is_empty() {
        return Err(Problem::Empty);
    }
    parse(bytes, Unreadable::Refuse)
}

fn check_version(root: At<'_, '_>, format: &'static str, name: &'static str) -> Result<(), Problem> {
    let stated = root.required("format", "the name of the format")?;
    if stated.text()? != format {
        return Err(stated.out_of_range(name));
    }
    let version = root.required("version", "the version of the format")?;
    match version.count()? {
        VERSION => Ok(()),
        other => Err(Problem::UnknownVersion { format: name, found: other.to_string(), known: "1" }),
    }
}

fn only(object: At<'_, '_>, format: &'static str, known: &[&str]) -> Result<(), Problem> {
    match object.members()?.find(|(key, _)| !known.contains(key)) {
        None => Ok(()),
        Some((_, place)) => Err(Problem::UnknownField { path: place.path(), format, known: known.join(", ") }),
    }
}

fn text(place: At<'_, '_>) -> Result<Vec<u8>, Problem> {
    match encoded(place)? {
        None => place.bytes(),
        Some(encoded) => base64::decode(encoded.text()?).ok_or_else(|| Problem::Base64 { path: encoded.path() }),
    }
}

/// The same, as much of it as a state keeps.
fn kept(place: At<'_, '_>) -> Result<Kept, Problem> {
    match encoded(place)? {
        None => place.kept(),
        Some(encoded) => {
            let mut keeper = Keeper::default();
            base64::decode_in_pieces(encoded.text()?, &mut |piece| keeper.push(piece))
                .ok_or_else(|| Problem::Base64 { path: encoded.path() })?;
            Ok(keeper.finish())
        }
    }
}

/// The base64 of a text that is not UTF-8.
fn encoded<'n, 'a>(place: At<'n, 'a>) -> Result<Option<At<'n, 'a>>, Problem> {
    match place.node {
        Node::Text(_) => Ok(None),
        Node::Object(_) => {
            only(place, "a text of tack-state 1", &["base64"])?;
            place.required("base64", "standard base64").map(Some)
        }
        _ => Err(place.wrong("a string, or {\"base64\": ...} where the bytes are not UTF-8")),
    }
}

fn menu_parts(menu: At<'_, '_>) -> Result<OwnedMenu, Problem> {
    let part = |key| -> Result<Vec<String>, Problem> {
        let tests = menu.required(key, "an array of test functions")?;
        tests.items()?.map(|test| test.text().map(str::to_owned)).collect()
    };
    OwnedMenu::new(part("targeted")?, part("broader")?).map_err(Problem::Menu)
}

fn observation(entry: At<'_, '_>, bytes_of: BytesOf<'_>) -> Result<OwnedObservation, Problem> {
    only(entry, "an observation of tack-state 1", &["step", "call", "output", "exit_status", "reason"])?;
    let reason = entry.required("reason", "why the entry is in the context")?;
    let name = reason.text()?;
    Ok(OwnedObservation {
        step: number(entry.required("step", "the step of the recording")?)?,
        call: bytes_of(entry.required("call", "the command or tool call")?)?,
        output: bytes_of(entry.required("output", "the answer")?)?,
        exit_status: match entry.field("exit_status")? {
            None => None,
            Some(place) => Some(place.exit_status()?.ok_or_else(|| place.out_of_range("an exit status of 32 bits"))?),
        },
        reason: REASONS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, reason)| reason)
            .ok_or_else(|| reason.out_of_range("tool_call, inspection, edit, agent_test, pretest or harness"))?,
    })
}

fn remaining(budget: At<'_, '_>) -> Result<Remaining, Problem> {
    only(budget, "the budget of tack-state 1", &["output_tokens", "tool_calls", "repair_us"])?;
    Ok(Remaining {
        output_tokens: budget.field("output_tokens")?.map(number).transpose()?.map(Tokens),
        tool_calls: budget.field("tool_calls")?.map(number).transpose()?,
        repair: budget.count_at(&["repair_us"])?.map(Micros),
    })
}

fn number(place: At<'_, '_>) -> Result<u32, Problem> {
    u32::try_from(place.count()?).map_err(|_| place.out_of_range("a whole number under 2^32"))
}

/// Whether a document says that it is one of our own forms.
pub(crate) fn stated_format<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match node.member("format") {
        Some(Node::Text(text)) => Some(text.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINIMAL: &str = r#"{"format": "tack-state", "version": 1, "observations": []}"#;

    #[test]
    fn the_form_is_pinned() {
        let state = OwnedState {
            issue: Some("naïve\r\n\0".as_bytes().to_vec()),
            menu: Some(OwnedMenu::new(vec!["t.py::test_a".to_owned()], vec![]).unwrap()),
            patch: None,
            observations: vec![OwnedObservation {
                step: 2,
                call: b"cat x".to_vec(),
                output: vec![0xff],
                exit_status: Some(-9),
                reason: ContextReason::Inspection,
            }],
            budget: Remaining { output_tokens: Some(Tokens(8)), tool_calls: None, repair: Some(Micros(5)) },
        };
        let expected = r#"{
  "format": "tack-state",
  "version": 1,
  "issue": "naïve\r\n\u0000",
  "menu": {
    "targeted": [
      "t.py::test_a"
    ],
    "broader": []
  },
  "patch": null,
  "observations": [
    {
      "step": 2,
      "call": "cat x",
      "output": {
        "base64": "/w=="
      },
      "exit_status": -9,
      "reason": "inspection"
    }
  ],
  "budget": {
    "output_tokens": 8,
    "tool_calls": null,
    "repair_us": 5
  }
}
"#;
        assert_eq!(state.to_json(), expected);
        assert_eq!(OwnedState::from_json(expected.as_bytes()).unwrap(), state);
    }

    #[test]
    fn what_is_left_out_is_unknown() {
        assert_eq!(OwnedState::from_json(MINIMAL.as_bytes()).unwrap(), OwnedState::default());
    }

    #[test]
    fn reasons_are_named_as_core_names_them() {
        for (name, reason) in REASONS {
            assert_eq!(serde_json::to_value(reason).unwrap(), name);
        }
    }

    #[test]
    fn what_the_form_does_not_have_is_refused() {
        let with = |field: &str| MINIMAL.replace('}', &format!(", {field}}}"));
        let entry = |fields: &str| MINIMAL.replace("[]", &format!("[{{{fields}}}]"));
        let six = r#""menu": {"targeted": ["a","b","c","d","e","f"], "broader": []}"#;
        #[rustfmt::skip]
        let cases = [
            (String::new(),                               "the file is empty"),
            ("[]".into(),                                 "`(the whole document)` should be an object; found an array of 0"),
            (MINIMAL.replace("\"version\": 1", "\"version\": 2"), "tack-state says version `2`; known are 1"),
            (MINIMAL.replace("\"version\": 1,", ""),      "`version` is missing; expected the version of the format"),
            (MINIMAL.replace("tack-state", "tack-menu"),  "`format` should be tack-state; found `\"tack-menu\"`"),
            (with(r#""resolved": true"#),                 "`resolved` is not a field of tack-state 1, which has format, version, issue, menu, patch, observations, budget"),
            (with(r#""gold_patch": "x""#),                "`gold_patch` is not a field of tack-state 1, which has format, version, issue, menu, patch, observations, budget"),
            (with(r#""patch": 7"#),                       "`patch` should be a string, or {\"base64\": ...} where the bytes are not UTF-8; found the number 7"),
            (with(r#""patch": {"base64": "Zg"}"#),        "`patch.base64` should be standard base64 with padding"),
            (with(r#""patch": {"base64": "", "x": 1}"#),  "`patch.x` is not a field of a text of tack-state 1, which has base64"),
            (with(r#""budget": {"tool_calls": -1}"#),     "`budget.tool_calls` should be a whole number from 0 to 2^64 - 1; found the number -1"),
            (with(r#""budget": {"tool_calls": 4294967296}"#), "`budget.tool_calls` should be a whole number under 2^32; found `4294967296`"),
            (with(six),                                   "the menu is over its bounds"),
            (entry(r#""step": 0"#),                       "`observations[0].reason` is missing; expected why the entry is in the context"),
            (entry(r#""step": 0, "call": "", "output": "", "reason": "luck""#), "`observations[0].reason` should be tool_call, inspection, edit, agent_test, pretest or harness; found `\"luck\"`"),
            (entry(r#""step": 0, "call": "", "output": "", "reason": "edit", "exit_status": 99999999999"#), "`observations[0].exit_status` should be an exit status of 32 bits; found `99999999999`"),
            (with(r#""issue": "\ud800""#),                "line 1, column 70 is not readable JSON: half a surrogate pair, which no text can hold"),
        ];
        for (text, expected) in cases {
            assert_eq!(OwnedState::from_json(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
        }
        let raw = OwnedState::from_json(b"{\n \"issue\": \"\xff\"}").unwrap_err().to_string();
        assert!(raw.starts_with("line 2, column 12 is not readable JSON: not UTF-8"), "{raw}");
    }

    #[test]
    fn a_menu_file_is_a_menu() {
        let menu = br#"{"format": "tack-menu", "version": 1, "targeted": ["a"], "broader": ["b", "c"]}"#;
        let menu = menu_file(menu).unwrap();
        assert_eq!((menu.targeted().len(), menu.broader().len()), (1, 2));
        for bad in [&br#"{"format": "tack-menu", "version": 1, "targeted": []}"#[..], b"", b"\xff", MINIMAL.as_bytes()]
        {
            assert!(menu_file(bad).is_err());
        }
    }

    prop_compose! {
        fn any_observation()(
            step: u32, call: Vec<u8>, output: Vec<u8>, exit_status: Option<i32>, reason in 0_usize..6,
        ) -> OwnedObservation {
            OwnedObservation { step, call, output, exit_status, reason: REASONS[reason].1 }
        }
    }
    prop_compose! {
        fn any_state()(
            issue: Option<Vec<u8>>,
            menu in proptest::option::of((proptest::collection::vec(".*", 0..=5), proptest::collection::vec(".*", 0..=20))),
            patch: Option<Vec<u8>>,
            observations in proptest::collection::vec(any_observation(), 0..4),
            output_tokens: Option<u32>, tool_calls: Option<u32>, repair: Option<u64>,
        ) -> OwnedState {
            OwnedState {
                issue,
                menu: menu.map(|(targeted, broader)| OwnedMenu::new(targeted, broader).unwrap()),
                patch,
                observations,
                budget: Remaining { output_tokens: output_tokens.map(Tokens), tool_calls, repair: repair.map(Micros) },
            }
        }
    }

    proptest! {
        #[test]
        fn every_state_returns_byte_for_byte(state in any_state()) {
            prop_assert_eq!(OwnedState::from_json(state.to_json().as_bytes()).unwrap(), state);
        }

        #[test]
        fn any_bytes_are_a_state_or_an_error(bytes: Vec<u8>) {
            if let Ok(state) = OwnedState::from_json(&bytes) {
                prop_assert_eq!(OwnedState::from_json(state.to_json().as_bytes()).unwrap(), state);
            }
        }
    }
}
