//! An adapter that rounding would undo is not folded away in silence.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use tack_kernels::{
    Adapter, BundleSource, Engine, EngineError, EngineOptions, Network, Precision, PrecisionPolicy, Stop,
};
use tempfile::TempDir;

/// The plain golden bundle whose query weights lie on two values, as a checkpoint of one bit has them, and whose adapter is
/// `share` of what it was.
fn bundle(share: f32) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/plain");
    for file in ["config.json", "adapter_config.json", "heads.safetensors"] {
        fs::copy(golden.join(file), directory.path().join(file)).unwrap();
    }
    let edit = |file: &str, is_wanted: &dyn Fn(&str) -> bool, to: &dyn Fn(f32) -> f32| {
        let mut bytes = fs::read(golden.join(file)).unwrap();
        let (header, _) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let base = bytes.as_ptr() as usize;
        assert!(header < bytes.len());
        let wanted: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| is_wanted(name)).collect();
        assert!(!wanted.is_empty());
        let ranges: Vec<_> = wanted
            .iter()
            .map(|(_, tensor)| tensor.data().as_ptr() as usize - base)
            .zip(wanted.iter().map(|(_, tensor)| tensor.data().len()))
            .collect();
        for (start, length) in ranges {
            for word in bytes[start..start + length].as_chunks_mut::<4>().0 {
                *word = to(f32::from_le_bytes(*word)).to_le_bytes();
            }
        }
        fs::write(directory.path().join(file), bytes).unwrap();
    };
    edit("model.safetensors", &|name| name.ends_with("q_proj.weight"), &|x| 0.05_f32.copysign(x));
    edit("adapter_model.safetensors", &|name| name.contains("lora_B"), &|x| x * share);
    directory
}

fn load(directory: &TempDir, adapter: Adapter, precision: PrecisionPolicy) -> Result<Engine, EngineError> {
    let options = EngineOptions { adapter, precision, ..EngineOptions::default() };
    Engine::load(&BundleSource::directory(directory.path()), &options)
}

const STANDARD: PrecisionPolicy = PrecisionPolicy::Fixed(Precision::STANDARD);
const FLOAT: PrecisionPolicy = PrecisionPolicy::Fixed(Precision::Float);

#[test]
fn an_adapter_that_would_be_rounded_away_is_refused_kept_apart_or_given_finer_weights() {
    let (tiny, usual) = (bundle(1e-4), bundle(1.0));
    let lost = match load(&tiny, Adapter::Folded, STANDARD).unwrap_err() {
        EngineError::AdapterLost(lost) => lost,
        other => unreachable!("{other}"),
    };
    println!("{lost:?}");
    assert_eq!((lost.layer, lost.projection), (0, "q_proj"));
    assert!((lost.kept - 1.0).abs() > 0.2, "{lost:?}");
    // The controls: the usual adapter at that precision, and the tiny one in floats and beside the weights.
    assert!(load(&usual, Adapter::Folded, STANDARD).is_ok());
    assert!(load(&tiny, Adapter::Folded, FLOAT).is_ok());
    assert!(load(&tiny, Adapter::Apart, STANDARD).is_ok());
    // Left to be measured, the matrix becomes finer.
    let measured = load(&tiny, Adapter::Folded, PrecisionPolicy::Measured).unwrap();
    assert_ne!(measured.precisions()[0][0], Precision::STANDARD);
}

#[test]
fn weights_become_finer_for_an_adapter_that_is_swapped_in() {
    let (tiny, usual) = (bundle(1e-4), bundle(1.0));
    let mut engine = load(&usual, Adapter::Folded, STANDARD).unwrap();
    let tokens: Vec<u32> = (0..70).map(|i| i * 7 % 90).collect();
    engine.hidden(&tokens, Stop::never()).unwrap();
    engine.swap_adapter(&BundleSource::directory(tiny.path())).unwrap();
    assert_ne!(engine.precisions()[0][0], Precision::STANDARD);
    let found = engine.hidden(&tokens, Stop::never()).unwrap();
    assert_eq!(engine.last_pass().cached, 0);
    let expected = load(&tiny, Adapter::Folded, FLOAT).unwrap().hidden(&tokens, Stop::never()).unwrap();
    let square = |pairs: &mut dyn Iterator<Item = f32>| pairs.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let error =
        (square(&mut found.iter().zip(&expected).map(|(f, e)| f - e)) / square(&mut expected.iter().copied())).sqrt();
    assert!(error < 6e-3, "{error:.2e}");
}
