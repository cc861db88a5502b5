//! The bytes of everything that crosses the wire, pinned. A difference here is a new version of a record, or a bug.
//!
//! Beside the golden bytes: any byte string decodes to a value or to an error, one record has one byte string, and no
//! single flipped bit goes unseen.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test assert as the test does")]

use std::fmt::{Debug, Write};

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tack_core::acceptance::{Acceptance, AcceptanceLayer, LayerResult};
use tack_core::admission::{AdmissionCheck, AdmissionRecord, CheckResult, Refusal};
use tack_core::boundary::{FailureBoundary, RunEnd};
use tack_core::cost::{CostError, CostTerm};
use tack_core::effect::{EffectReceipt, Observed, Output, ProcessEnd, ResourceLimit};
use tack_core::estimate::Head;
use tack_core::evidence::{ContextEntry, EvidencePackage, Gap, Identity, Review, RunField, WorldPart};
use tack_core::expiry::{Binding, BindingPart, BindingParts, Standing};
use tack_core::lambda_gate::{DevelopmentState, GateAnswer, GateContext, GateShortfall, LambdaGate};
use tack_core::list::List;
use tack_core::readiness::{Finding, Findings, GrantedAuthority, Mechanism, ReadinessGate, ReadinessRecord, TaskShape};
use tack_core::receipt::{
    Backend, DecisionDigests, DecisionReceipt, Precision, RegimeMatch, Ruling, StageTime, Training,
};
use tack_core::regime::{Named, Regime, RegimePart, RegimeParts};
use tack_core::transition::TransitionKernel;
use tack_core::wire::{MAX_RECORD_BYTES, Version, WireError, decode, decode_owned, encode};
use tack_core::{
    Action, ActionSet, Bytes, ContextReason, Digest, Ending, EstimateMethod, Estimates, FallbackReason, Field, Figure,
    FigureUnavailable, HalfOutcomes, HeadOutputs, Lambda, Limits, Measurement, Micros, Name, ObservationStatus,
    Outcome, OutcomeUnavailable, PairCost, PerAction, Stage, StateOutcomes, SuccessRate, Text, Tokens, UnixSeconds,
    Verdict,
};

fn bytes_of(value: &impl Serialize) -> Vec<u8> {
    let mut buffer = vec![0; MAX_RECORD_BYTES];
    encode(value, &mut buffer).unwrap().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// A closed enum's members are these, in this order, one byte each, and there is no other.
fn closed<T: Serialize + DeserializeOwned + Debug>(names: &str) {
    let count = u8::try_from(names.split(' ').count()).unwrap();
    for (position, name) in (0..).zip(names.split(' ')) {
        let member = decode_owned::<T>(&[position]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(serde_json::to_value(&member).unwrap(), name);
    }
    assert_eq!(decode_owned::<T>(&[count]).map(|_| ()), Err(WireError::Refused), "one more than {names}");
}

#[test]
fn closed_enums_keep_their_positions() {
    closed::<AcceptanceLayer>("scope compile visible hidden mutation");
    closed::<Action>("submit continue retry test_targeted test_regression");
    closed::<AdmissionCheck>("executable arguments working_directory network time output_size write_scope");
    closed::<Backend>("cpu cuda");
    closed::<BindingPart>("intent tree patch environment verifier");
    closed::<ContextReason>("tool_call inspection edit agent_test pretest harness");
    closed::<CostTerm>("output_tokens pretest_wall");
    closed::<Ending>(
        "set_up_failed restore_failed pretest_passed pretest_failed pretest_timed_out pretest_not_run \
         repair_submitted repair_spent agent_timed_out transport_failed grade_passed grade_failed \
         expected_tests_missing candidate_over_limit candidate_does_not_load grader_timed_out grader_failed \
         verifier_changed",
    );
    closed::<EstimateMethod>(
        "local_tokenizer bytes_per_token time_stamps call_latencies wall_times_processors shared_counter",
    );
    closed::<FailureBoundary>("missing_intent irreproducible_state weak_oracle unbounded_authority moving_base");
    closed::<FallbackReason>("deadline_missed head_output model_unavailable");
    closed::<Field>("issue menu patch observations budget template");
    closed::<FigureUnavailable>("not_recorded provider_silent stage_not_reached no_counter record_lost contradictory");
    closed::<Finding>("holds fails missing");
    closed::<GateShortfall>("no_states no_bar no_eligible_row below_bar no_costed_row");
    closed::<GrantedAuthority>("human_led improve_environment read_only_or_draft bounded_interactive");
    closed::<Head>("success cost");
    closed::<Mechanism>("direct_patch fixed_pipeline bounded_agent human");
    closed::<ObservationStatus>("passed candidate_failed infrastructure_unknown verifier_invalid");
    closed::<OutcomeUnavailable>(
        "transport set_up restore pretest_not_run grader_time_out grading verifier_invalid interrupted",
    );
    closed::<Precision>("f32 f16 bf16 int12");
    closed::<ReadinessGate>("intent state observation action evidence recovery");
    closed::<Refusal>("not_listed protected malformed over_limit outside_tree not_checked");
    closed::<RegimePart>("repair_policy scaffold budget");
    closed::<ResourceLimit>("wall cpu memory processes output file_size");
    closed::<Review>("pending accepted rejected");
    closed::<RunField>(
        "intent identity world_state context reasoning authority action evidence outcome release_and_recovery",
    );
    closed::<Stage>("read cut tokenize forward heads select load digest");
    closed::<TaskShape>("local predictable_phases observation_sensitive not_derivable");
    closed::<Training>("trained untrained");
    closed::<Verdict>("not_solved solved");
    closed::<WorldPart>("dependencies generated_artifacts services fixtures");
}

/// A value has these bytes, and these bytes are the value.
fn pinned<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, golden: &str) {
    let bytes = bytes_of(&value);
    assert_eq!(hex(&bytes), golden, "{value:?}");
    assert_eq!(decode_owned::<T>(&bytes), Ok(value));
}

#[test]
fn enums_that_carry_something_keep_their_bytes() {
    pinned(WireError::TooLong { found_bytes: 300 }, "00ac02");
    pinned(WireError::Truncated, "01");
    pinned(WireError::Refused, "02");
    pinned(WireError::TrailingBytes { found_bytes: 1 }, "0301");
    pinned(WireError::BufferFull { room_bytes: 2 }, "0402");
    pinned(WireError::NotCanonical, "05");
    pinned(CostError { term: CostTerm::PretestWall, reason: FigureUnavailable::RecordLost }, "0104");
    pinned(Figure::Measured(Tokens(300)), "00ac02");
    pinned(Figure::Estimated { value: Micros(1), method: EstimateMethod::TimeStamps }, "010102");
    pinned(Figure::<Micros>::Unavailable(FigureUnavailable::NoCounter), "0203");
    pinned(Outcome::Judged(Verdict::Solved), "0001");
    pinned(Outcome::Unavailable(OutcomeUnavailable::GraderTimeOut), "0104");
    pinned(LayerResult::NotRun, "00");
    pinned(LayerResult::Ran { status: ObservationStatus::CandidateFailed, receipt: None }, "010100");
    pinned(CheckResult::Allowed { rule: 7 }, "0007");
    pinned(CheckResult::Refused(Refusal::OutsideTree), "0104");
    pinned(RunEnd::Submitted, "00");
    pinned(RunEnd::BudgetSpent, "01");
    pinned(RunEnd::Escalated(FailureBoundary::MovingBase), "0204");
    pinned(RunEnd::Unavailable(OutcomeUnavailable::Interrupted), "0307");
    pinned(ProcessEnd::Exited(1), "0001");
    pinned(ProcessEnd::Signaled(9), "0109");
    pinned(ProcessEnd::OverLimit(ResourceLimit::Memory), "0202");
    pinned(ProcessEnd::NotStarted, "03");
    pinned(Standing::Holds, "00");
    let tree = BindingParts::EMPTY.with(BindingPart::Tree);
    pinned(Standing::Expired { moved: tree, unknown: BindingParts::EMPTY }, "010200");
    pinned(Standing::CannotTell { unknown: tree }, "0202");
    pinned(RegimeMatch::Same, "00");
    pinned(RegimeMatch::Differs(RegimeParts::EMPTY.with(RegimePart::Budget)), "0104");
    pinned(RegimeMatch::Unknown, "02");
    pinned(GateAnswer::Met { row: 3 }, "0003");
    pinned(GateAnswer::NotMet(GateShortfall::BelowBar), "0103");
}

const fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn binding() -> Binding {
    Binding { intent: digest(1), tree: digest(2), patch: digest(3), environment: digest(4), verifier: digest(5) }
}

fn estimates() -> Estimates {
    let outputs = HeadOutputs {
        success_logits: PerAction([0.5, 0.25, -1.0, 0.0, 2.0]),
        cost_preactivations: PerAction([-9.0, -1.0, 0.0, -2.0, 1.0]),
    };
    Estimates::from_heads(&outputs).unwrap()
}

fn decision_receipt() -> DecisionReceipt {
    let available = ActionSet::ALL.without(Action::TestTargeted);
    DecisionReceipt {
        version: Version,
        digests: DecisionDigests {
            state: digest(1),
            intent: digest(2),
            model: digest(3),
            regime: digest(4),
            sandbox_policy: Some(digest(5)),
            shares: digest(6),
        },
        regime: RegimeMatch::Differs(RegimeParts::EMPTY.with(RegimePart::Scaffold)),
        training: Training::Untrained,
        backend: Backend::Cpu,
        ruling: Ruling::choose(estimates(), available, Lambda::new(0.05).unwrap(), Precision::Bf16).unwrap(),
        stage_times: List::try_from_iter([
            StageTime { stage: Stage::Tokenize, wall: Micros(310) },
            StageTime { stage: Stage::Forward, wall: Micros(8_100_000) },
        ])
        .unwrap(),
    }
}

fn fallback_receipt() -> DecisionReceipt {
    let (lambda, precision) = (Lambda::ZERO, Precision::F32);
    let reason = FallbackReason::DeadlineMissed;
    let ruling = Ruling::fall_back(Action::Continue, reason, ActionSet::ALL, lambda, precision).unwrap();
    DecisionReceipt { ruling, stage_times: List::new(), ..decision_receipt() }
}

fn effect_receipt() -> EffectReceipt {
    let output = Output { produced: Bytes(1 << 30), kept: Bytes(1 << 18), digest: digest(8) };
    let end = ProcessEnd::OverLimit(ResourceLimit::Output);
    EffectReceipt {
        version: Version,
        admission: digest(6),
        sandbox_policy: digest(7),
        binding: binding(),
        tree_after: None,
        observed: Observed::new(end, ObservationStatus::CandidateFailed, output).unwrap(),
        wall: Figure::Measured(Micros(1_234_567)),
        cpu: Figure::Unavailable(FigureUnavailable::NoCounter),
    }
}

fn admission_record() -> AdmissionRecord {
    let mut checks = [CheckResult::Allowed { rule: 1 }; AdmissionCheck::COUNT];
    checks[AdmissionCheck::Network.index()] = CheckResult::Refused(Refusal::NotListed);
    AdmissionRecord {
        version: Version,
        request: digest(1),
        sandbox_policy: digest(2),
        decision: Some(digest(3)),
        checks,
    }
}

fn readiness_record() -> ReadinessRecord {
    let mut findings = Findings([Finding::Holds; 6]);
    findings.0[ReadinessGate::Recovery.index()] = Finding::Missing;
    let life = [UnixSeconds(1_700_000_000), UnixSeconds(1_710_000_000)];
    ReadinessRecord::new(name("local defects"), digest(4), findings, Some(TaskShape::Local), life).unwrap()
}

fn lambda_gate() -> LambdaGate {
    let half = |halves: u8| Some(HalfOutcomes::try_from(halves).unwrap());
    let state = DevelopmentState {
        available: ActionSet::ALL,
        estimates: estimates(),
        outcomes: StateOutcomes::new(PerAction([half(0), half(1), half(1), half(2), half(2)])).unwrap(),
        costs: PerAction([Some(PairCost::ZERO); 5]),
    };
    let context = GateContext {
        controller: digest(1),
        development: digest(2),
        backend: Backend::Cuda,
        precision: Precision::Bf16,
    };
    LambdaGate::evaluate(context, &[state; 3], Some(SuccessRate::new(1, 7).unwrap())).unwrap()
}

fn regime() -> Regime {
    Regime {
        repair_policy: Named { name: name("policy"), digest: digest(1) },
        scaffold: Named { name: name("scaffold"), digest: digest(2) },
        budget: name("paper"),
        limits: Limits::PAPER,
    }
}

fn measurement() -> Measurement {
    Measurement {
        output_tokens: Figure::Estimated { value: Tokens(512), method: EstimateMethod::LocalTokenizer },
        pretest_wall: Figure::Measured(Micros(300_000_000)),
        ..Measurement::unavailable(Action::TestTargeted, FigureUnavailable::NotRecorded)
    }
}

fn evidence_package() -> EvidencePackage<'static> {
    let passed = LayerResult::Ran { status: ObservationStatus::Passed, receipt: Some(digest(9)) };
    EvidencePackage {
        identity: Identity {
            requester: Some(name("reporter")),
            proposer: Some(name("agent")),
            verifier: Some(name("hidden tests")),
            merge_actor: None,
        },
        context: List::try_from_iter([ContextEntry {
            what: Text::new("worker.py").unwrap(),
            seen: digest(7),
            reason: ContextReason::Inspection,
        }])
        .unwrap(),
        evidence: Acceptance::NOT_RUN.with(AcceptanceLayer::Compile, passed),
        gaps: List::try_from_iter([Gap { field: RunField::Authority, what: Text::new("é").unwrap() }]).unwrap(),
        ..EvidencePackage::about(binding())
    }
}

fn kernel() -> TransitionKernel {
    let half = |halves: u8| Some(HalfOutcomes::try_from(halves).unwrap());
    let state = |submit| StateOutcomes::new(PerAction([half(submit), half(1), half(2), None, None])).unwrap();
    TransitionKernel::from_training_states(&[state(0), state(2), state(2)])
}

/// A record's name, its bytes as they are written now, and the golden ones in hexadecimal.
type Row = (&'static str, fn() -> Vec<u8>, &'static str);

const GOLDEN: [Row; 10] = [
    ("admission_record", || bytes_of(&admission_record()), include_str!("golden/admission_record.hex")),
    ("decision_receipt", || bytes_of(&decision_receipt()), include_str!("golden/decision_receipt.hex")),
    ("effect_receipt", || bytes_of(&effect_receipt()), include_str!("golden/effect_receipt.hex")),
    ("evidence_package", || bytes_of(&evidence_package()), include_str!("golden/evidence_package.hex")),
    ("fallback_receipt", || bytes_of(&fallback_receipt()), include_str!("golden/fallback_receipt.hex")),
    ("lambda_gate", || bytes_of(&lambda_gate()), include_str!("golden/lambda_gate.hex")),
    ("measurement", || bytes_of(&measurement()), include_str!("golden/measurement.hex")),
    ("readiness_record", || bytes_of(&readiness_record()), include_str!("golden/readiness_record.hex")),
    ("regime", || bytes_of(&regime()), include_str!("golden/regime.hex")),
    ("transition_kernel", || bytes_of(&kernel()), include_str!("golden/transition_kernel.hex")),
];

/// With `TACK_BLESS` set it writes the golden files anew and fails, so that their diff is read before it is believed.
#[test]
fn records_keep_their_bytes() {
    let bless = std::env::var_os("TACK_BLESS").is_some();
    for (record, bytes, golden) in GOLDEN {
        let found = hex(&bytes());
        if bless {
            let lines: Vec<_> = found.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
            let path = format!("{}/tests/golden/{record}.hex", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, lines.join("\n") + "\n").unwrap();
        } else {
            let golden: String = golden.split_whitespace().collect();
            assert_eq!(found, golden, "{record}");
        }
    }
    assert!(!bless, "the golden files were written: read their diff, and run again without TACK_BLESS");
}

/// Whether no bit of a record can be flipped, and no byte be lost, so that what is read is the record still.
fn tamper_evident<T: Serialize + DeserializeOwned + PartialEq + Debug>(record: T) {
    let golden = bytes_of(&record);
    for bit in 0..golden.len() * 8 {
        let mut bytes = golden.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_owned::<T>(&bytes).map_or(true, |found| found != record), "bit {bit}");
    }
    for cut in 0..golden.len() {
        assert!(decode_owned::<T>(&golden[..cut]).is_err(), "cut at {cut}");
    }
    assert_eq!(decode_owned::<T>(&golden), Ok(record));
}

#[test]
fn no_flipped_bit_goes_unseen() {
    tamper_evident(admission_record());
    tamper_evident(decision_receipt());
    tamper_evident(effect_receipt());
    tamper_evident(fallback_receipt());
    tamper_evident(lambda_gate());
    tamper_evident(measurement());
    tamper_evident(readiness_record());
    tamper_evident(regime());
    tamper_evident(kernel());
    let package = evidence_package();
    let golden = bytes_of(&package);
    for bit in 0..golden.len() * 8 {
        let mut bytes = golden.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode::<EvidencePackage<'_>>(&bytes).map_or(true, |found| found != package), "bit {bit}");
    }
}

/// Any bytes are a record or an error; and if they are a record, they are the bytes of that record.
fn total<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(record) = decode_owned::<T>(bytes) {
        assert_eq!(bytes_of(&record), bytes);
    }
}

fn every_decoder(bytes: &[u8]) {
    total::<AdmissionRecord>(bytes);
    total::<DecisionReceipt>(bytes);
    total::<EffectReceipt>(bytes);
    total::<LambdaGate>(bytes);
    total::<Measurement>(bytes);
    total::<ReadinessRecord>(bytes);
    total::<Regime>(bytes);
    total::<TransitionKernel>(bytes);
    total::<DevelopmentState>(bytes);
    if let Ok(package) = decode::<EvidencePackage<'_>>(bytes) {
        assert_eq!(bytes_of(&package), bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_decode_to_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        every_decoder(&bytes);
    }

    /// Bytes that begin as a record does reach further in than random ones.
    #[test]
    fn mangled_records_decode_to_a_value_or_an_error(
        record in 0..GOLDEN.len(), edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        length in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = GOLDEN[record].1();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        every_decoder(&bytes);
        every_decoder(&bytes[..length.index(bytes.len())]);
    }
}
