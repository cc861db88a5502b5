//! Decisions with the shipped bundle: what they say, what they are made on, and what happens when one cannot be made.

#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

mod common;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{MINI, NOTHING, mini, observation};
use serde_json::{Value, json};
use tack_controller::controller::BUNDLE_FILES;
use tack_controller::{Controller, DecideError, Decision, Settings, StageClock, fall_back};
use tack_core::cost::CostTicks;
use tack_core::lambda_gate::{DevelopmentState, GateContext};
use tack_core::receipt::{Backend, RegimeMatch};
use tack_core::{
    Action, ActionSet, Decide, Decided, DecisionState, Digest, Estimate, FallbackReason, FieldShares, HalfOutcomes,
    Issue, Lambda, LambdaGate, Menu, Micros, NormalizedCost, PairCost, Patch, PerAction, Precision, Probability, Spans,
    Stage, StateOutcomes,
};
use tack_kernels::{BundleSource, CpuNetwork, EngineOptions, Network, Options, PrecisionPolicy};

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
    let latency = report["latency"].as_object().unwrap();
    let mut names: Vec<&str> = latency.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["cut", "digest", "forward", "heads", "other", "select", "tokenize", "total"]);
    let micros = |name: &str| latency[name].as_u64().unwrap();
    let parts: u64 = names.iter().filter(|name| **name != "total").map(|name| micros(name)).sum();
    assert_eq!(parts, micros("total"), "the parts add up to the whole");

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
        assert_eq!(estimate["reason"], reason, "what is not available keeps its estimates and says why");
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

/// A clock that stands still, until it jumps by an hour as one stage begins or ends.
struct Jump<'a> {
    time: &'a AtomicU64,
    at: Option<(Stage, Edge)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Begin,
    End,
}

const HOUR: Micros = Micros::from_secs(3_600);

impl Jump<'_> {
    fn reach(&mut self, edge: (Stage, Edge)) {
        if self.at == Some(edge) {
            self.at = None;
            self.time.fetch_add(HOUR.0, Ordering::Relaxed);
        }
    }
}

impl Spans for Jump<'_> {
    fn enter(&mut self, stage: Stage) {
        self.reach((stage, Edge::Begin));
    }

    fn exit(&mut self, stage: Stage) {
        self.reach((stage, Edge::End));
    }
}

/// Decides with `deadline` on a clock that jumps `at` a stage's edge.
fn decide_with_jump(
    controller: &mut Controller,
    state: &DecisionState<'_>,
    deadline: Micros,
    at: Option<(Stage, Edge)>,
) -> Decision {
    let (started, time) = (Instant::now(), AtomicU64::new(0));
    let now = || started + Duration::from_micros(time.load(Ordering::Relaxed));
    let mut jump = Jump { time: &time, at };
    controller.decide_within(state, &mut StageClock::start_on(&now, &mut jump, Some(deadline))).unwrap()
}

#[test]
fn whenever_the_time_is_up_the_answer_is_a_fallback_that_names_the_stage() {
    use Edge::{Begin, End};
    let mut controller = controller();
    let seen = [observation(0, b"pytest", b"1 failed\n")];
    for stage in [Stage::Digest, Stage::Cut, Stage::Tokenize, Stage::Forward, Stage::Heads, Stage::Select] {
        for edge in [Begin, End] {
            let state = DecisionState { observations: &seen, ..STATE };
            let decision = decide_with_jump(&mut controller, &state, HOUR, Some((stage, edge)));
            let fallback = decision.fallback.unwrap();
            assert_eq!((fallback.stage, fallback.deadline), (stage, Some(HOUR)), "{stage} {edge:?}");
            assert_eq!(Decided::fallback(&decision), Some(FallbackReason::DeadlineMissed));
            assert_eq!(decision.action(), Action::Submit);
            assert!(decision.latency.total >= HOUR);
            // Nothing is begun once the time is up, but what was begun in turns.
            let ran = |stage| decision.latency.stages.iter().any(|it| it.stage == stage);
            let tokens = stage != Stage::Digest;
            assert_eq!((decision.encoding.is_some(), ran(Stage::Cut)), (tokens, tokens), "{stage} {edge:?}");
            let pass = tokens && ![Stage::Cut, Stage::Tokenize].contains(&stage);
            assert_eq!(ran(Stage::Forward), pass, "{stage} {edge:?}");

            let more = Micros(HOUR.0 + 1);
            let in_time = decide_with_jump(&mut controller, &state, more, Some((stage, edge)));
            assert_eq!((in_time.fallback, in_time.latency.total), (None, HOUR), "a microsecond makes the difference");
        }
    }
    assert_eq!(decide_with_jump(&mut controller, &STATE, HOUR, None).fallback, None);
}

#[test]
fn a_missed_deadline_gives_a_fallback_and_no_estimates() {
    let mut controller = controller();
    #[rustfmt::skip]
    let cases = [ // deadline     patch                    stage            falls back to
        (Micros(0),               Patch::Known(b"diff"),   None,            Action::Submit,    Stage::Digest),
        (Micros(0),               Patch::Known(b""),       None,            Action::Continue,  Stage::Digest),
        (Micros(0),               Patch::Unknown,          None,            Action::Continue,  Stage::Digest),
        (HOUR,                    Patch::Known(b"diff"),   Some(Stage::Forward), Action::Submit, Stage::Forward),
        (HOUR,                    Patch::Unknown,          Some(Stage::Select), Action::Continue, Stage::Select),
    ];
    for (deadline, patch, jump, action, stage) in cases {
        let state = DecisionState { patch, ..STATE };
        let decision = decide_with_jump(&mut controller, &state, deadline, jump.map(|stage| (stage, Edge::Begin)));
        assert_eq!(decision.action(), action);
        let report = serde_json::to_value(decision.report(&controller)).unwrap();
        for estimate in report["estimates"].as_array().unwrap() {
            assert_eq!((&estimate["success"], &estimate["utility"]), (&Value::Null, &Value::Null));
        }
        assert_eq!((&report["near_tie"], &report["lead"]), (&Value::Null, &Value::Null));
        let expected = json!({"reason": "deadline_missed", "stage": stage.name(), "deadline_us": deadline.0});
        assert_eq!(report["fallback"], expected);
        let note = format!("`{action}` is a fallback, not the rule's choice: time ran out in stage `{stage}`.");
        assert!(report["notes"].as_array().unwrap().contains(&note.into()), "{report}");
    }
}

/// By the true clock: a choice is never later than its deadline, however large the state that is hashed for its receipt.
#[test]
fn no_choice_is_later_than_its_deadline() {
    let large: Vec<u8> = (0..200_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let seen = [observation(0, &large, &large)];
    let state =
        DecisionState { issue: Issue::Known(&large), patch: Patch::Known(&large), observations: &seen, ..NOTHING };
    let mut controller = controller();
    let whole = controller.decide(&state, &mut ()).unwrap();
    assert!(whole.latency.stages.iter().any(|it| it.stage == Stage::Digest && it.wall > Micros(0)));
    for share in 0..=20 {
        let deadline = Micros(whole.latency.total.0 * share / 16);
        controller.settings.deadline = Some(deadline);
        let decision = controller.decide(&state, &mut ()).unwrap();
        assert_eq!(decision.fallback.is_none(), decision.latency.total < deadline, "{:?}", decision.latency);
        assert_eq!(decision.receipt.digests, whole.receipt.digests);
    }
    controller.settings.deadline = Some(HOUR);
    assert_eq!(controller.decide(&state, &mut ()).unwrap().receipt.ruling, whole.receipt.ruling);
}

#[test]
fn the_time_before_the_controller_counts_and_is_named() {
    let mut controller = controller();
    let (started, time) = (Instant::now(), AtomicU64::new(0));
    let now = || started + Duration::from_micros(time.load(Ordering::Relaxed));
    for stage in [Stage::Read, Stage::Load] {
        time.store(0, Ordering::Relaxed);
        let mut jump = Jump { time: &time, at: Some((stage, Edge::Begin)) };
        let mut clock = StageClock::start_on(&now, &mut jump, Some(HOUR));
        for earlier in [Stage::Read, Stage::Load] {
            clock.enter(earlier);
            clock.exit(earlier);
        }
        let decision = controller.decide_within(&STATE, &mut clock).unwrap();
        assert_eq!(decision.fallback.unwrap().stage, stage);
        assert_eq!(decision.encoding, None);
        assert_eq!(decision.latency.stages.iter().find(|it| it.stage == stage).unwrap().wall, HOUR);
        let report = serde_json::to_value(decision.report(&controller)).unwrap();
        assert_eq!(report["tokens"], Value::Null);
        assert_eq!(report["model"]["name"], "mini");
    }
}

#[test]
fn without_a_model_there_is_still_something_to_do() {
    let mut listener = ();
    let mut clock = StageClock::start(&mut listener, Some(Micros(0)));
    clock.enter(Stage::Read);
    clock.exit(Stage::Read);
    let late = fall_back(&STATE, ActionSet::ALL, FallbackReason::DeadlineMissed, &clock).unwrap();
    let report = serde_json::to_value(late.report()).unwrap();
    assert_eq!((Decided::action(&late), &report["action"]), (Action::Submit, &json!("submit")));
    assert_eq!(report["fallback"], json!({"reason": "deadline_missed", "stage": "read", "deadline_us": 0}));
    assert_eq!(report["available"], json!(["submit", "continue", "retry"]));
    assert_eq!(report["estimates"][3]["reason"], "menu_unknown");
    for key in ["lambda", "lambda_from", "lead", "near_tie", "tokens", "model", "regime", "digests"] {
        assert_eq!(report.get(key), Some(&Value::Null), "{key}");
    }
    let note = "`submit` is a fallback, not the rule's choice: time ran out in stage `read`.";
    assert_eq!(report["notes"], json!([note]));

    // An agent whose bundle does not open, or does not compute, goes on by the same rule.
    clock.enter(Stage::Load);
    let broken = Controller::embedded(&MINI[..3]).map(|_| ());
    clock.exit(Stage::Load);
    assert!(broken.is_err());
    let allowed = ActionSet::ALL.without(Action::Submit);
    let unopened = fall_back(&STATE, allowed, FallbackReason::ModelUnavailable, &clock).unwrap();
    assert_eq!((unopened.action, unopened.fallback.reason), (Action::Continue, FallbackReason::ModelUnavailable));
    let none = fall_back(&STATE, ActionSet::EMPTY, FallbackReason::ModelUnavailable, &clock).unwrap_err();
    let message = "no action is available: the caller allows {}, of which the test menu leaves none";
    assert_eq!(none.to_string(), message);
    assert_eq!(DecideError::NoneAvailable(none).fallback_reason(), None);
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
    assert_eq!(decision.report(&controller).lambda_from, Some("caller"));

    let mut other = regime;
    other.scaffold.digest = Digest([7; 32]);
    controller.settings.regime = Some(other);
    let decision = controller.decide(&STATE, &mut ()).unwrap();
    assert!(matches!(decision.receipt.regime, RegimeMatch::Differs(_)));
    let notes = decision.report(&controller).notes;
    let note = "The decision is for another regime than the model's; it differs in: scaffold.";
    assert!(notes.iter().any(|it| it == note), "{notes:?}");
}

/// The mini bundle with a lambda that a gate chose on `backend` in `precision`.
fn gated(backend: Backend, precision: Precision) -> Controller {
    let controller = controller().record().digests.controller(&FieldShares::V1);
    let estimate = |q, c| Estimate { success: Probability::new(q).unwrap(), cost: NormalizedCost::new(c).unwrap() };
    let [submit, go_on, other] = [(0.49, 0.0), (0.5, 1.0), (0.0, 0.0)].map(|(q, c)| estimate(q, c));
    let state = DevelopmentState {
        available: ActionSet::ALL,
        estimates: PerAction([submit, go_on, other, other, other]),
        outcomes: StateOutcomes::new(PerAction([Some(HalfOutcomes::try_from(2).unwrap()); 5])).unwrap(),
        costs: PerAction([Some(PairCost { sum: CostTicks(1), estimated: false }); 5]),
    };
    let context = GateContext { controller, development: Digest([9; 32]), backend, precision };
    let gate = LambdaGate::evaluate(context, &[state], None).unwrap();
    let record = edited("controller.json", |it| {
        it["lambda"] = json!(gate.lambda());
        it["lambda_gate"] = json!({"ran": gate});
    });
    load(changed(&[record])).unwrap()
}

#[test]
fn a_lambda_is_served_as_it_was_chosen_or_not_at_all() {
    let mut same = gated(Backend::Cpu, Precision::F32);
    let decision = same.decide(&STATE, &mut ()).unwrap();
    let report = serde_json::to_value(decision.report(&same)).unwrap();
    assert_eq!((&report["lambda_from"], &report["model"]["gate_met"]), (&json!("bundle"), &json!(true)));
    assert_eq!(decision.receipt.ruling.lambda(), Lambda::new(0.02).unwrap());

    // Integers where the lambda was chosen for integers, although so small a network gets floats by itself.
    let mut integers = gated(Backend::Cpu, Precision::Int12);
    let ruling = integers.decide(&STATE, &mut ()).unwrap().receipt.ruling;
    assert_eq!((ruling.precision(), ruling.lambda()), (Precision::Int12, Lambda::new(0.02).unwrap()));

    for (backend, precision) in [(Backend::Cpu, Precision::Bf16), (Backend::Cuda, Precision::F32)] {
        let mut other = gated(backend, precision);
        let error = other.decide(&STATE, &mut ()).unwrap_err();
        let why = format!("the lambda gate ran on {backend} in {precision}; this controller serves on cpu in f32");
        assert_eq!(error.source().unwrap().to_string(), why);
        assert_eq!(error.fallback_reason(), Some(FallbackReason::ModelUnavailable));

        other.settings.lambda = Some(Lambda::ZERO);
        let decision = other.decide(&STATE, &mut ()).unwrap();
        let note = format!("The bundle's lambda would not hold: {why}.");
        assert!(decision.report(&other).notes.contains(&note), "{note}");
    }
}

/// The patch at a step, and the calls and outputs until then.
type Step = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// A task's decisions one after the other: a step adds an observation, and now and then the patch changes.
fn steps() -> Vec<Step> {
    let patch = |step: usize| format!("--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-x = 0\n+x = {}\n", step / 3).into_bytes();
    let seen =
        |step: usize| (format!("pytest -k {step}").into_bytes(), format!("{step} failed\n").repeat(9).into_bytes());
    (0..7).map(|step| (patch(step), (0..step).map(seen).collect())).collect()
}

/// Runs `decide` over the steps' states, with an issue of some blocks.
fn over_steps<R>(mut decide: impl FnMut(&[DecisionState<'_>]) -> R) -> R {
    let issue = "The queue loses a job when a worker dies twice in a row. ".repeat(20);
    let steps = steps();
    let seen: Vec<Vec<_>> = steps
        .iter()
        .map(|(_, seen)| (0_u32..).zip(seen).map(|(at, (call, output))| observation(at, call, output)).collect())
        .collect();
    let states: Vec<_> = steps
        .iter()
        .zip(&seen)
        .map(|((patch, _), seen)| DecisionState {
            issue: Issue::Known(issue.as_bytes()),
            patch: Patch::Known(patch),
            observations: seen,
            ..NOTHING
        })
        .collect();
    decide(&states)
}

/// Whatever a controller has seen before and whatever else is in the call, in both precisions.
#[test]
fn a_decision_is_the_same_cold_cached_and_in_a_batch() {
    let load = |precision, cache_bytes| {
        let options = EngineOptions { precision, cache_bytes, ..EngineOptions::default() };
        Controller::load(&BundleSource::memory(MINI), &options, &mut |_| {}).unwrap()
    };
    for (policy, precision) in
        [(PrecisionPolicy::Worthwhile, Precision::F32), (PrecisionPolicy::Measured, Precision::Int12)]
    {
        let (mut cold, mut warm) = (load(policy, 0), load(policy, 64 << 20));
        let known = |it: &Decision| (it.receipt.digests, it.receipt.ruling);
        over_steps(|states| {
            let expected: Vec<_> = states.iter().map(|state| cold.decide(state, &mut ()).unwrap()).collect();
            assert!(expected.iter().all(|it| it.cached.0 == 0 && it.receipt.ruling.precision() == precision));
            let mut cached = 0;
            for (state, expected) in states.iter().zip(&expected) {
                let found = warm.decide(state, &mut ()).unwrap();
                assert_eq!(known(&found), known(expected));
                cached += found.cached.0;
                let report = serde_json::to_value(found.report(&warm)).unwrap();
                assert_eq!(report["tokens"]["cached"], found.cached.0);
            }
            assert!(cached > 1_000, "{cached} tokens of {} states were kept", states.len());
            let mut nobody = ();
            for controller in [&mut warm, &mut load(policy, 0)] {
                let found = controller.decide_batch(states, &mut StageClock::start(&mut nobody, None)).unwrap();
                assert_eq!(found.iter().map(known).collect::<Vec<_>>(), expected.iter().map(known).collect::<Vec<_>>());
            }
        });
    }
}

/// What a task's decisions share stays, whatever comes between; another task takes its place.
#[test]
fn the_beginning_of_the_last_task_outlives_others_in_a_small_cache() {
    let controller = controller();
    let of_one = over_steps(|states| {
        let mut controller = Controller::embedded(&MINI).unwrap();
        controller.decide(&states[6], &mut ()).unwrap();
        controller.cached_bytes()
    });
    drop(controller);
    let options = EngineOptions { cache_bytes: of_one, ..EngineOptions::default() };
    let mut controller = Controller::load(&BundleSource::memory(MINI), &options, &mut |_| {}).unwrap();
    over_steps(|states| {
        for state in states.iter().chain(states) {
            let decision = controller.decide(state, &mut ()).unwrap();
            assert!(controller.cached_bytes() <= of_one);
            let beginning = decision.encoding.unwrap().fields[2].start.0;
            assert!(decision.cached.0 >= beginning / 64 * 64 || state.observations.is_empty(), "{}", decision.cached.0);
        }
    });
}

/// The engine's files beside a bundle are none of the bundle's.
#[test]
fn a_second_start_maps_the_pack_file_and_decides_alike() {
    use tack_kernels::engine::{PackFile, PackPlace, PackSource};
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in MINI {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let elsewhere = folder.path().join("cache/tack");
    let mut receipts = Vec::new();
    for place in [PackPlace::Beside { otherwise: None }, PackPlace::In(elsewhere)] {
        for start in 0..2 {
            let options = EngineOptions {
                precision: PrecisionPolicy::Measured,
                pack_file: PackFile::Always,
                pack_place: place.clone(),
                ..EngineOptions::default()
            };
            let mut phases = Vec::new();
            let source = BundleSource::directory(folder.path());
            let mut controller = Controller::load(&source, &options, &mut |phase| phases.push(phase)).unwrap();
            assert_eq!(matches!(controller.pack_source(), PackSource::File { .. }), start == 1, "{place:?}");
            let decision = controller.decide(&STATE, &mut ()).unwrap();
            let report = serde_json::to_value(decision.report(&controller)).unwrap();
            let model = &report["model"];
            assert_eq!(model["packed_from"], ["bundle", "pack_file"][start]);
            assert!(model["pack_file"].as_str().unwrap().ends_with(".measured.pack"), "{model}");
            let names: Vec<_> = model["load_phases"].as_array().unwrap().iter().map(|it| &it["phase"]).collect();
            let expected: &[&str] = match start {
                0 => &["tokenizer", "read", "identify", "open_pack", "check", "pack", "write_pack", "fit"],
                _ => &["tokenizer", "read", "identify", "open_pack", "fit"],
            };
            assert_eq!(names, expected);
            assert_eq!(phases.len() + 1, expected.len());
            receipts.push((decision.receipt.digests, decision.receipt.ruling));
        }
    }
    assert!(receipts.windows(2).all(|pair| pair[0] == pair[1]));
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
    Controller::load(&BundleSource::memory(files), &EngineOptions::default(), &mut |_| {}).map_err(|error| {
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
    assert_eq!(error.fallback_reason(), Some(FallbackReason::HeadOutput));
    let source = error.source().unwrap().to_string();
    assert!(source.starts_with("the success head returned ") && source.contains("for `retry`"), "{source}");
}
