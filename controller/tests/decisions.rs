//! Decisions with the shipped bundle: what they say, what they are made on, and what happens when one cannot be made.

#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

mod common;

use std::collections::BTreeMap;
use std::error::Error as _;

use common::{MINI, NOTHING, mini, observation};
use serde_json::{Value, json};
use tack_controller::controller::BUNDLE_FILES;
use tack_controller::{Controller, DecideError, Settings};
use tack_core::receipt::RegimeMatch;
use tack_core::{
    Action, ActionSet, Decide, Decided, DecisionState, Digest, FallbackReason, Issue, Lambda, Menu, Micros, Patch,
    Stage,
};
use tack_kernels::{BundleSource, CpuNetwork, Network, Options};

fn controller() -> Controller {
    Controller::embedded(&MINI).unwrap()
}

const STATE: DecisionState<'static> =
    DecisionState { issue: Issue::Known(b"f(0) fails"), patch: Patch::Known(b"diff"), ..NOTHING };

#[test]
fn a_decision_explains_itself() {
    let mut controller = controller();
    let decision = controller.decide(&STATE, &mut ()).unwrap();
    let report = serde_json::to_value(decision.report(&controller)).unwrap();

    let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    for key in [
        "action",
        "estimates",
        "available",
        "lambda",
        "tokens",
        "latency",
        "model",
        "near_tie",
        "fallback",
        "regime",
        "digests",
        "notes",
    ] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
    assert_eq!(report["available"], json!(["submit", "continue", "retry"]));
    assert_eq!(report["lambda"], 0.0);
    assert_eq!(report["fallback"], Value::Null);
    assert_eq!(report["model"]["name"], "mini");
    assert_eq!(report["model"]["trained"], false);
    assert_eq!(report["model"]["gate_met"], false);
    assert_eq!(report["notes"][0], "The model is untrained: its estimates carry no information.");
    let total = report["latency"]["total"].as_u64().unwrap();
    let stages = ["cut", "tokenize", "forward", "heads", "select"];
    assert!(stages.iter().map(|stage| report["latency"][stage].as_u64().unwrap()).sum::<u64>() <= total);

    let best = (0..3).max_by(|&a, &b| {
        let utility = |index: usize| report["estimates"][index]["utility"].as_f64().unwrap();
        utility(a).total_cmp(&utility(b))
    });
    assert_eq!(report["action"], Action::from_index(best.unwrap()).unwrap().name());
    for (action, estimate) in Action::ALL.into_iter().zip(report["estimates"].as_array().unwrap()) {
        assert_eq!(estimate["action"], action.name());
        let (q, c) = (estimate["success"].as_f64().unwrap(), estimate["cost"].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&q) && c >= 0.0, "{estimate}");
        let reason = if action.has_pretest() { json!("menu_unknown") } else { Value::Null };
        assert_eq!(estimate["reason"], reason, "masked actions keep their estimates and say why they are masked");
    }
}

#[test]
fn the_shipped_bundle_is_complete_and_small() {
    assert_eq!(MINI.map(|(name, _)| name), BUNDLE_FILES);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mini");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || BUNDLE_FILES.contains(&name.as_str()), "{name}");
    }
    assert!(MINI.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() < 2_000_000);
}

#[test]
fn a_folder_and_the_same_bytes_decide_alike_and_twice() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in MINI {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let (mut opened, mut embedded) = (Controller::open(folder.path()).unwrap(), controller());
    assert_eq!(opened.digest(), embedded.digest());
    let seen = [observation(0, b"pytest", b"1 failed\n")];
    let state = DecisionState { observations: &seen, ..STATE };
    let first = opened.decide(&state, &mut ()).unwrap().receipt;
    for other in [&mut opened, &mut embedded] {
        let again = other.decide(&state, &mut ()).unwrap().receipt;
        assert_eq!((again.digests, again.ruling), (first.digests, first.ruling));
    }
}

#[test]
fn what_is_not_available_never_wins() {
    let mut controller = controller();
    let tests: &[&str] = &["t.py::a"];
    for (menu, of_menu) in [
        (Menu::Unknown, 0b0_0111),
        (Menu::new(&[], &[]).unwrap(), 0b0_0111),
        (Menu::new(tests, &[]).unwrap(), 0b0_1111),
        (Menu::new(tests, tests).unwrap(), 0b1_1111),
    ] {
        let of_menu = ActionSet::from_bits(of_menu).unwrap();
        for bits in 0..32 {
            controller.settings.allowed = ActionSet::from_bits(bits).unwrap();
            let left = of_menu.intersection(controller.settings.allowed);
            match controller.decide(&DecisionState { menu, ..STATE }, &mut ()) {
                Ok(decision) => {
                    assert!(left.contains(decision.action()));
                    assert_eq!(decision.receipt.ruling.available(), left);
                }
                Err(error) => {
                    assert!(matches!(error, DecideError::NoneAvailable { .. }), "{error}");
                    assert!(left.is_empty());
                }
            }
        }
    }
}

#[test]
fn a_missed_deadline_gives_a_fallback_and_no_estimates() {
    let long: Vec<u8> = (0..8_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let seen: Vec<_> = (0..8).map(|step| observation(step, b"pytest", &long)).collect();
    let state = |patch| DecisionState { issue: Issue::Known(&long), patch, observations: &seen, ..NOTHING };
    let mut controller = controller();
    let patch = Patch::Known(&long);
    let decided = controller.decide(&state(patch), &mut ()).unwrap();
    let total = decided.latency.total;
    // In the middle of the pass, which is by far the longest stage.
    let middle = Micros(total.0 / 2);
    #[rustfmt::skip]
    let cases = [ // deadline     patch               falls back to            in stage
        (Micros(0),               patch,              Action::Submit,          Stage::Tokenize),
        (Micros(0),               Patch::Known(b""),  Action::Continue,        Stage::Tokenize),
        (Micros(0),               Patch::Unknown,     Action::Continue,        Stage::Tokenize),
        (middle,                  patch,              Action::Submit,          Stage::Forward),
    ];
    for (deadline, patch, action, stage) in cases {
        controller.settings.deadline = Some(deadline);
        let decision = controller.decide(&state(patch), &mut ()).unwrap();
        assert_eq!(decision.action(), action);
        assert_eq!(Decided::fallback(&decision), Some(FallbackReason::DeadlineMissed));
        assert_eq!(decision.fallback.unwrap().stage, stage);
        let report = serde_json::to_value(decision.report(&controller)).unwrap();
        for estimate in report["estimates"].as_array().unwrap() {
            assert_eq!((&estimate["success"], &estimate["utility"]), (&Value::Null, &Value::Null));
        }
        assert_eq!(report["near_tie"], Value::Null);
        assert_eq!(report["fallback"]["reason"], "deadline_missed");
        let note =
            format!("`{action}` is a fallback, not the rule's choice: time ran out in stage `{}`.", stage.name());
        assert!(report["notes"].as_array().unwrap().contains(&note.into()), "{report}");
    }
    controller.settings.deadline = Some(Micros::from_secs(3_600));
    assert_eq!(controller.decide(&state(patch), &mut ()).unwrap().fallback, None);
}

#[test]
fn the_callers_lambda_and_regime_are_named() {
    let mut controller = controller();
    let lambda = Lambda::new(0.5).unwrap();
    let regime = controller.record().regime.clone();
    controller.settings = Settings { lambda: Some(lambda), regime: Some(regime.clone()), ..Settings::default() };
    let decision = controller.decide(&STATE, &mut ()).unwrap();
    assert_eq!(decision.receipt.ruling.lambda(), lambda);
    assert_eq!(decision.receipt.regime, RegimeMatch::Same);
    assert_eq!(decision.report(&controller).lambda_from, "caller");

    let mut other = regime;
    other.scaffold.digest = Digest([7; 32]);
    controller.settings.regime = Some(other);
    let decision = controller.decide(&STATE, &mut ()).unwrap();
    assert!(matches!(decision.receipt.regime, RegimeMatch::Differs(_)));
    let notes = decision.report(&controller).notes;
    let note = "The decision is for another regime than the model's; it differs in: scaffold.";
    assert!(notes.iter().any(|it| it == note), "{notes:?}");
}

/// A bundle's files, by name.
type Files = Vec<(&'static str, Vec<u8>)>;

/// The mini bundle with some files changed and a record that is about the result.
fn changed(change: &[(&'static str, Vec<u8>)]) -> Files {
    let mut files: BTreeMap<&'static str, Vec<u8>> = MINI.iter().map(|&(name, bytes)| (name, bytes.to_vec())).collect();
    files.extend(change.iter().cloned());
    let source = BundleSource::memory(files.clone());
    let mut record: Value = serde_json::from_slice(&files["controller.json"]).unwrap();
    if let Ok(network) = CpuNetwork::<tack_kernels::ActionHeads>::load(&source, Options::default()) {
        record["digests"]["network"] = json!(network.digest());
    }
    record["digests"]["tokenizer"] = json!(source.open("tokenizer.json").unwrap().digest());
    files.insert("controller.json", record.to_string().into_bytes());
    files.into_iter().collect()
}

fn load(files: Files) -> Result<Controller, String> {
    Controller::load(&BundleSource::memory(files), Options::default()).map_err(|error| {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            message = format!("{message}: {inner}");
            source = inner.source();
        }
        message
    })
}

fn edited(name: &'static str, edit: impl FnOnce(&mut Value)) -> (&'static str, Vec<u8>) {
    let mut value: Value = serde_json::from_slice(mini(name)).unwrap();
    edit(&mut value);
    (name, value.to_string().into_bytes())
}

#[test]
fn a_bundle_that_does_not_fit_together_is_refused_by_file_and_place() {
    let without =
        |name: &str| MINI.iter().filter(|it| it.0 != name).map(|&(name, bytes)| (name, bytes.to_vec())).collect();
    let stale = |file: (&'static str, Vec<u8>)| {
        MINI.iter()
            .map(|&(name, bytes)| (name, bytes.to_vec()))
            .filter(|it| it.0 != file.0)
            .chain([file.clone()])
            .collect()
    };
    #[rustfmt::skip]
    let cases: [(Files, &str); 8] = [
        (without("controller.json"),  "the model bundle cannot be used: "),
        (without("tokenizer.json"),   "the model bundle cannot be used: "),
        (without("heads.safetensors"), "the model bundle cannot be used: "),
        (stale(edited("tokenizer.json", |it| it["version"] = json!("1.1"))),
         "`embedded:controller.json`: `digests.tokenizer` is 3c35444443de8415d38d16b66ce19e0d85ed9a40c428f09ddc1f8979cd85b88c; the bundle's is "),
        (stale(edited("config.json", |it| it["rms_norm_eps"] = json!(1e-5))),
         "`embedded:controller.json`: `digests.network` is "),
        (changed(&[edited("config.json", |it| it["max_position_embeddings"] = json!(2048))]),
         "`embedded:config.json`: `max_position_embeddings` must be at least 4096; found 2048"),
        (changed(&[edited("tokenizer.json", |it| it["added_tokens"][3]["id"] = json!(6144))]),
         "the tokenizer cannot be used: `embedded:tokenizer.json`: token `<|object_ref_start|>` is number 6144, but the model embeds 6144 tokens, 0 to 6143"),
        (changed(&[edited("tokenizer.json", |it| it["added_tokens"][18]["content"] = json!("<|hole|>"))]),
         "the tokenizer cannot be used: the tokenizer cannot write the template: `embedded:tokenizer.json`: `added_tokens` must have `<|fim_suffix|>`; it has 26 others"),
    ];
    for (files, message) in cases {
        let found = load(files).unwrap_err();
        assert!(found.starts_with(message), "{found}\n{message}");
    }
    assert!(load(changed(&[])).is_ok(), "the control: a record about the same files");
}

#[test]
fn an_estimate_that_is_no_number_is_an_error_that_names_its_action() {
    let heads = mini("heads.safetensors");
    let header = 8 + usize::try_from(u64::from_le_bytes(heads[..8].try_into().unwrap())).unwrap();
    let text = String::from_utf8(heads[8..header].to_vec()).unwrap();
    let value: Value = serde_json::from_str(text.trim()).unwrap();
    let start = header + usize::try_from(value["success.weight"]["data_offsets"][0].as_u64().unwrap()).unwrap();
    // Row 2 is retry. The hidden state has root mean square 1 after its norm, so some unit is beyond 1 and overflows.
    let row = start + 2 * 64 * 4..start + 3 * 64 * 4;
    let error = row.step_by(4).find_map(|weight| {
        let mut heads = heads.to_vec();
        heads[weight..weight + 4].copy_from_slice(&f32::MAX.to_le_bytes());
        load(changed(&[("heads.safetensors", heads)])).unwrap().decide(&STATE, &mut ()).err()
    });
    let error = error.unwrap();
    assert_eq!(error.to_string(), "the estimates are not numbers");
    let source = error.source().unwrap().to_string();
    assert!(source.starts_with("the success head returned ") && source.contains("for `retry`"), "{source}");
}
