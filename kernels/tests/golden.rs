//! The network against Hugging Face's: hidden states and head outputs that `tests/golden/make.py` recorded.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test asserts by panicking, in its helpers too")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tack_core::HeadOutputs;
use tack_kernels::{Adapter, BundleSource, CpuNetwork, Network, Options, Stop};

const LENGTHS: [usize; 9] = [1, 2, 17, 63, 64, 65, 255, 256, 257];

/// Relative L2 error of the hidden state, and of the ten outputs, in 32-bit floats.
const F32_LIMIT: f64 = 1e-5;

/// The same where the reference rounds every activation to bfloat16 and we round none: 2 layers of some ten roundings of
/// 2^-9 each.
const BF16_LIMIT: f64 = 2e-2;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case)
}

/// Token i of the script's formula.
fn tokens(length: usize, vocab_size: usize) -> Vec<u32> {
    (0..length).map(|i| u32::try_from((7919 * i + 13) % vocab_size).unwrap()).collect()
}

fn load(case: &str, adapter: Adapter, threads: usize) -> CpuNetwork {
    let threads = NonZeroUsize::new(threads).unwrap();
    CpuNetwork::load(&BundleSource::directory(golden(case)), Options { adapter, threads }).unwrap()
}

fn expected(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("expected.safetensors has no {name}"));
    tensor.data().as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The worst of many comparisons, and where it was.
struct Worst {
    share: f64,
    line: String,
}

impl Worst {
    /// Compares by relative L2, and remembers the comparison that came closest to its limit.
    fn compare(&mut self, name: &str, found: &[f32], expected: &[f32], limit: f64) {
        assert_eq!(found.len(), expected.len(), "{name}");
        let difference = |(&f, &e): (&f32, &f32)| f64::from(f) - f64::from(e);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let pairs = || found.iter().zip(expected);
        let error = norm(&mut pairs().map(difference)) / norm(&mut expected.iter().map(|&x| f64::from(x)));
        let (place, (f, e)) =
            pairs().enumerate().max_by(|a, b| difference(a.1).abs().total_cmp(&difference(b.1).abs())).unwrap();
        let line = format!("{name}: relative L2 {error:.2e} of {limit:.0e}; worst element {place}: {f} for {e}");
        assert!(error <= limit, "{line}"); // false for NaN
        if error / limit >= self.share {
            *self = Self { share: error / limit, line };
        }
    }
}

fn check(case: &str, precision: &str, limit: f64) {
    let bytes = std::fs::read(golden(case).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut worst = Worst { share: 0.0, line: String::new() };
    for (adapter, weights) in [(Adapter::None, "base"), (Adapter::Folded, "adapted"), (Adapter::Apart, "adapted")] {
        let mut network = load(case, adapter, 2);
        for length in LENGTHS {
            let name = format!("{weights}.{precision}.{length}");
            let hidden = network.hidden(&tokens(length, network.config().vocab_size), Stop::never()).unwrap();
            let HeadOutputs { success_logits, cost_preactivations } = network.outputs(&hidden);
            let shown = |part| format!("{case}, {adapter:?}, {name}.{part}");
            let part = |part| expected(&file, &format!("{name}.{part}"));
            worst.compare(&shown("hidden"), &hidden, &part("hidden"), limit);
            let outputs = [success_logits.0, cost_preactivations.0].concat();
            worst.compare(&shown("outputs"), &outputs, &[part("success"), part("cost")].concat(), limit);
        }
    }
    println!("{}", worst.line);
}

#[test]
fn agrees_with_transformers_and_peft_in_32_bits() {
    for case in ["plain", "wide_heads", "one_kv_head", "theta", "bf16", "f16", "sharded"] {
        check(case, "f32", F32_LIMIT);
    }
}

#[test]
fn agrees_with_transformers_computing_in_bfloat16() {
    check("bf16", "bf16", BF16_LIMIT);
}

/// The comparison above can fail: the adapter, and the length, each change the result by far more than the limit.
#[test]
fn the_adapter_and_every_token_matter() {
    for case in ["plain", "wide_heads", "one_kv_head", "theta", "bf16", "f16", "sharded"] {
        let (mut base, mut adapted) = (load(case, Adapter::None, 1), load(case, Adapter::Folded, 1));
        let tokens = tokens(64, base.config().vocab_size);
        let hidden = |tokens: &[u32], network: &mut CpuNetwork| network.hidden(tokens, Stop::never()).unwrap();
        let apart = |a: &[f32], b: &[f32]| {
            let squares = |x: f32| f64::from(x) * f64::from(x);
            let difference: f64 = a.iter().zip(b).map(|(a, b)| squares(a - b)).sum();
            (difference / a.iter().map(|&a| squares(a)).sum::<f64>()).sqrt()
        };
        let whole = hidden(&tokens, &mut base);
        assert!(apart(&whole, &hidden(&tokens, &mut adapted)) > 1e-2, "{case}: adapter");
        for changed in [0, 31, 63] {
            let mut other = tokens.clone();
            other[changed] = (other[changed] + 1) % 80;
            assert!(apart(&whole, &hidden(&other, &mut base)) > 1e-4, "{case}: token {changed}");
        }
    }
}

#[test]
fn the_thread_count_changes_no_bit() {
    for adapter in [Adapter::Folded, Adapter::Apart] {
        let mut single = load("plain", adapter, 1);
        let tokens = tokens(257, single.config().vocab_size);
        let expected = single.hidden(&tokens, Stop::never()).unwrap();
        for threads in [1, 2, 3, 8] {
            let found = load("plain", adapter, threads).hidden(&tokens, Stop::never()).unwrap();
            assert!(found.iter().zip(&expected).all(|(f, e)| f.to_bits() == e.to_bits()), "{threads} threads");
        }
    }
}

#[test]
fn embedded_bytes_and_a_mapped_directory_are_one_network() {
    let names =
        ["config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors", "heads.safetensors"];
    let files = names.map(|name| (name, std::fs::read(golden("plain").join(name)).unwrap()));
    let options = Options { adapter: Adapter::Folded, threads: NonZeroUsize::MIN };
    let mut embedded: CpuNetwork = CpuNetwork::load(&BundleSource::memory(files), options).unwrap();
    let mut mapped = load("plain", Adapter::Folded, 1);
    assert_eq!(embedded.digest(), mapped.digest());
    assert_ne!(embedded.digest(), load("plain", Adapter::None, 1).digest());
    let tokens = tokens(17, 96);
    assert_eq!(embedded.forward(&tokens, Stop::never()), mapped.forward(&tokens, Stop::never()));
}
