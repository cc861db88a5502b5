//! The fast engine against Hugging Face's numbers and against itself: what may change no bit, changes none.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test asserts by panicking, in its helpers too")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tack_core::HeadOutputs;
use tack_kernels::reference::Reference;
use tack_kernels::{
    ActionHeads, Adapter, BundleSource, Engine, EngineOptions, ForwardError, Isa, Network, Precision, PrecisionPolicy,
    Stop,
};

const CASES: [&str; 7] = ["plain", "wide_heads", "one_kv_head", "theta", "bf16", "f16", "sharded"];
const LENGTHS: [usize; 9] = [1, 2, 17, 63, 64, 65, 255, 256, 257];

/// Relative L2 error of the hidden state and of the ten outputs with exact weights and inputs.
const FLOAT_LIMIT: f64 = 1e-5;

/// The same with integers of measured precision.
const INTEGER_LIMIT: f64 = 6e-3;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case)
}

/// Token i of the script's formula.
fn tokens(length: usize, vocab_size: usize) -> Vec<u32> {
    (0..length).map(|i| u32::try_from((7919 * i + 13) % vocab_size).unwrap()).collect()
}

fn load(case: &str, options: &EngineOptions) -> Engine {
    Engine::load(&BundleSource::directory(golden(case)), options).unwrap()
}

fn options(precision: Precision) -> EngineOptions {
    EngineOptions {
        precision: PrecisionPolicy::Fixed(precision),
        threads: NonZeroUsize::new(2).unwrap(),
        ..EngineOptions::default()
    }
}

fn expected(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("expected.safetensors has no {name}"));
    tensor.data().as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    (difference / expected.iter().map(|&e| square(f64::from(e))).sum::<f64>()).sqrt()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn check_goldens(precision: PrecisionPolicy, limit: f64) {
    let mut worst = (0.0, String::new());
    let mut of_output = 0.0_f64;
    for case in CASES {
        let bytes = std::fs::read(golden(case).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let modes = [(Adapter::None, "base"), (Adapter::Folded, "adapted"), (Adapter::Apart, "adapted")];
        for (adapter, weights) in modes {
            let mut engine = load(case, &EngineOptions { adapter, precision, ..EngineOptions::default() });
            let output_error = engine.precision().output_error();
            for length in LENGTHS {
                let name = format!("{weights}.f32.{length}");
                let hidden = engine.hidden(&tokens(length, engine.config().vocab_size), Stop::never()).unwrap();
                let HeadOutputs { success_logits, cost_preactivations } = engine.outputs(&hidden);
                let outputs = [success_logits.0, cost_preactivations.0].concat();
                let part = |part| expected(&file, &format!("{name}.{part}"));
                // What a decision takes for granted of each output alone, when it calls two actions a near tie.
                for (found, expected) in outputs.iter().zip([part("success"), part("cost")].concat()) {
                    let error = f64::from((found - expected).abs()) / f64::from(expected.abs().max(1.0));
                    assert!(error <= output_error, "{case}, {name}: {found} for {expected}, off by {error:.2e}");
                    of_output = error.max(of_output);
                }
                for (what, found, expected) in
                    [("hidden", hidden, part("hidden")), ("outputs", outputs, [part("success"), part("cost")].concat())]
                {
                    let error = relative_error(&found, &expected);
                    let line = format!("{case}, {name}, {adapter:?}, {what}: relative L2 {error:.2e} of {limit:.0e}");
                    assert!(error <= limit, "{line}"); // false for NaN
                    if error > worst.0 {
                        worst = (error, line);
                    }
                }
            }
        }
    }
    println!("{}; an output alone: {of_output:.2e}", worst.1);
}

/// The judge itself, judged.
#[test]
fn the_reference_agrees_with_transformers_and_peft() {
    for case in CASES {
        let bytes = std::fs::read(golden(case).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (with_adapter, weights) in [(false, "base"), (true, "adapted")] {
            let reference =
                Reference::load::<ActionHeads>(&BundleSource::directory(golden(case)), with_adapter).unwrap();
            let vocab_size = load(case, &options(Precision::Float)).config().vocab_size;
            for length in [1, 17, 64, 257] {
                let hidden = reference.hidden(&tokens(length, vocab_size)).unwrap();
                #[expect(clippy::cast_possible_truncation, reason = "compared with floats of 32 bits")]
                let hidden: Vec<f32> = hidden.into_iter().map(|x| x as f32).collect();
                let error = relative_error(&hidden, &expected(&file, &format!("{weights}.f32.{length}.hidden")));
                assert!(error < FLOAT_LIMIT, "{case}, {weights}, {length} tokens: {error:.2e}");
            }
        }
    }
}

#[test]
fn exact_products_agree_with_transformers_and_peft() {
    check_goldens(PrecisionPolicy::Fixed(Precision::Float), FLOAT_LIMIT);
}

#[test]
fn integer_products_agree_with_transformers_and_peft() {
    check_goldens(PrecisionPolicy::Measured, INTEGER_LIMIT);
}

#[test]
fn each_step_of_the_ladder_is_more_exact() {
    let bytes = std::fs::read(golden("plain").join("expected.safetensors")).unwrap();
    let expected = expected(&SafeTensors::deserialize(&bytes).unwrap(), "adapted.f32.257.hidden");
    let errors = Precision::LADDER.map(|precision| {
        let mut engine = load("plain", &options(precision));
        let vocab_size = engine.config().vocab_size;
        relative_error(&engine.hidden(&tokens(257, vocab_size), Stop::never()).unwrap(), &expected)
    });
    println!("{errors:?}");
    assert!(errors.is_sorted_by(|coarse, fine| coarse > fine), "{errors:?}");
}

#[test]
fn neither_threads_nor_instructions_change_a_bit() {
    for precision in [Precision::STANDARD, Precision::Float] {
        for case in ["plain", "wide_heads"] {
            let options = |precision| EngineOptions { cache_bytes: 0, ..options(precision) };
            let mut first = load(case, &EngineOptions { threads: NonZeroUsize::MIN, ..options(precision) });
            let tokens = tokens(257, first.config().vocab_size);
            let expected = bits(&first.hidden(&tokens, Stop::never()).unwrap());
            for isa in Isa::available() {
                for threads in [1, 2, 5] {
                    let threads = NonZeroUsize::new(threads).unwrap();
                    let mut engine = load(case, &EngineOptions { threads, isa: Some(isa), ..options(precision) });
                    for _ in 0..3 {
                        let found = bits(&engine.hidden(&tokens, Stop::never()).unwrap());
                        assert_eq!(found, expected, "{case}, {precision:?}, {isa}, {threads} threads");
                    }
                }
            }
        }
    }
}

#[test]
fn a_hundred_repeats_are_one_result() {
    for precision in [Precision::STANDARD, Precision::Float] {
        let mut engine =
            load("wide_heads", &EngineOptions { threads: NonZeroUsize::new(3).unwrap(), ..options(precision) });
        let tokens = tokens(130, engine.config().vocab_size);
        let expected = bits(&engine.hidden(&tokens, Stop::never()).unwrap());
        for repeat in 1..=100 {
            // Every other one from nothing; the rest from what the one before has left.
            if repeat % 2 == 0 {
                engine.clear_cache();
            }
            assert_eq!(bits(&engine.hidden(&tokens, Stop::never()).unwrap()), expected, "{precision:?}, {repeat}");
        }
    }
}

/// What stood after a sequence's last token in an earlier pass (in its blocks, in the rows of every buffer) is no part of
/// its result, wherever in a block and in a tile it ends.
#[test]
fn trailing_garbage_changes_no_bit() {
    for precision in [Precision::STANDARD, Precision::Float] {
        let mut cold = load("plain", &EngineOptions { cache_bytes: 0, ..options(precision) });
        let vocab_size = cold.config().vocab_size;
        let whole = tokens(257, vocab_size);
        for length in (1..=9).chain(60..=68).chain([127, 128, 129, 191, 193, 250]) {
            let expected = bits(&cold.hidden(&whole[..length], Stop::never()).unwrap());
            let garbage: Vec<u32> = tokens(257 + 70, vocab_size)[70..].iter().rev().copied().collect();
            let long = [&whole[..length], &garbage].concat();
            // Stale rows alone, then stale rows and blocks that the garbage shares.
            cold.hidden(&long, Stop::never()).unwrap();
            assert_eq!(bits(&cold.hidden(&whole[..length], Stop::never()).unwrap()), expected, "{length} tokens");
            let mut warm = load("plain", &options(precision));
            warm.hidden(&long, Stop::never()).unwrap();
            assert_eq!(bits(&warm.hidden(&whole[..length], Stop::never()).unwrap()), expected, "{length} tokens");
            let batch: [&[u32]; 2] = [&whole[..length], &long];
            assert_eq!(bits(&warm.hidden_batch(&batch, Stop::never()).unwrap()[0]), expected, "{length} tokens");
        }
    }
}

#[test]
fn a_sequence_is_the_same_alone_and_in_company() {
    for precision in [Precision::STANDARD, Precision::Float] {
        let mut engine = load("plain", &EngineOptions { cache_bytes: 0, ..options(precision) });
        let vocab_size = engine.config().vocab_size;
        let sequences: Vec<Vec<u32>> =
            [1, 64, 7, 130, 65].into_iter().map(|length| tokens(length + 3, vocab_size)[3..].to_vec()).collect();
        let alone: Vec<_> =
            sequences.iter().map(|tokens| bits(&engine.hidden(tokens, Stop::never()).unwrap())).collect();
        let batch: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let together = engine.hidden_batch(&batch, Stop::never()).unwrap();
        assert_eq!(together.iter().map(|hidden| bits(hidden)).collect::<Vec<_>>(), alone);
    }
}

/// Warm runs of every kind against cold ones: whole blocks, inside a block, one new token, a sequence that turns away.
#[test]
fn cold_and_cached_are_the_same_bit_for_bit() {
    for (case, precision, adapter) in [
        ("plain", Precision::STANDARD, Adapter::Folded),
        ("wide_heads", Precision::Float, Adapter::Folded),
        ("theta", Precision::STANDARD, Adapter::Folded),
        ("plain", Precision::STANDARD, Adapter::Apart),
    ] {
        let options = EngineOptions { adapter, ..options(precision) };
        let mut cold = load(case, &EngineOptions { cache_bytes: 0, ..options.clone() });
        let mut warm = load(case, &options);
        let vocab_size = cold.config().vocab_size;
        let whole = tokens(257, vocab_size);
        let mut turned = whole.clone();
        turned[100] = (turned[100] + 1) % 80;
        #[rustfmt::skip]
        let cases: [(&[u32], usize); 9] = [
            (&whole[..64],  0),
            (&whole[..65],  64),
            (&whole[..66],  64),
            (&whole[..200], 64),
            (&whole[..200], 199),
            (&turned,       100),
            (&whole,        200),
            (&whole[..128], 127),
            (&whole[..1],   0),
        ];
        for (tokens, cached) in cases {
            let expected = cold.hidden(tokens, Stop::never()).unwrap();
            assert_eq!((cold.last_pass().cached, cold.cached_bytes()), (0, 0));
            let found = warm.hidden(tokens, Stop::never()).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{case}, {} tokens", tokens.len());
            assert_eq!(warm.last_pass().cached, cached, "{case}, {} tokens", tokens.len());
        }
        // Several at once, each with another share of its tokens cached.
        let batch: [&[u32]; 4] = [&whole, &turned[..140], &whole[3..50], &whole[..70]];
        let expected: Vec<_> = batch.iter().map(|tokens| bits(&cold.hidden(tokens, Stop::never()).unwrap())).collect();
        let found = warm.hidden_batch(&batch, Stop::never()).unwrap();
        assert_eq!(found.iter().map(|hidden| bits(hidden)).collect::<Vec<_>>(), expected, "{case}");
    }
}

#[test]
fn a_pass_that_was_stopped_leaves_nothing_behind() {
    let mut engine = load("plain", &options(Precision::STANDARD));
    let tokens = tokens(257, engine.config().vocab_size);
    for after in [0, 1, 5, 20, 60] {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= after;
        assert_eq!(engine.hidden(&tokens, Stop::when(&stop)), Err(ForwardError::Stopped));
        assert_eq!(engine.cached_bytes(), 0);
    }
    let expected = load("plain", &options(Precision::STANDARD)).hidden(&tokens, Stop::never()).unwrap();
    assert_eq!(bits(&engine.hidden(&tokens, Stop::never()).unwrap()), bits(&expected));
}
