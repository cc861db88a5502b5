//! Every way in which a bundle can be bad: an error that names file, tensor, expected and found; never a panic, and
//! never more memory than the files have.
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tack_core::transition::ComparatorOutputs;
use tack_kernels::{
    ActionHeads, Adapter, BundleError, BundleSource, ComparatorHeads, CpuNetwork, ForwardError, Network, Options, Stop,
};

/// A bundle in memory, to be damaged.
#[derive(Clone)]
struct Files(BTreeMap<String, Vec<u8>>);

/// A tensor, to be damaged.
#[derive(Clone)]
struct Raw {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Raw {
    fn f32(shape: &[usize], value: f32) -> Self {
        let count = shape.iter().product();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), data: value.to_le_bytes().repeat(count) }
    }
}

impl Files {
    fn golden(case: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case);
        let files = folder.read_dir().unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        });
        Self(files.filter(|(name, _)| name != "expected.safetensors").collect())
    }

    fn load_as<H: tack_kernels::network::HeadsKind>(&self, adapter: Adapter) -> Result<CpuNetwork<H>, BundleError> {
        let options = Options { adapter, ..Options::default() };
        CpuNetwork::load(&BundleSource::memory(self.0.clone()), options)
    }

    fn load(&self) -> Result<CpuNetwork, BundleError> {
        self.load_as::<ActionHeads>(Adapter::Apart)
    }

    fn json(mut self, file: &str, edit: impl FnOnce(&mut Value)) -> Self {
        let mut value = serde_json::from_slice(&self.0[file]).unwrap();
        edit(&mut value);
        self.0.insert(file.into(), value.to_string().into_bytes());
        self
    }

    fn field(self, file: &str, field: &str, value: Value) -> Self {
        self.json(file, |config| config[field] = value)
    }

    fn tensors(mut self, file: &str, edit: impl FnOnce(&mut BTreeMap<String, Raw>)) -> Self {
        let parsed = SafeTensors::deserialize(&self.0[file]).unwrap();
        let raw = |view: safetensors::tensor::TensorView<'_>| Raw {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        };
        let mut tensors = parsed.tensors().into_iter().map(|(name, view)| (name, raw(view))).collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|(name, Raw { dtype, shape, data })| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        self.0.insert(file.into(), bytes);
        self
    }

    fn tensor(self, file: &str, tensor: &str, edit: impl FnOnce(&mut Raw)) -> Self {
        self.tensors(file, |tensors| edit(tensors.get_mut(tensor).unwrap()))
    }

    fn without_tensor(self, file: &str, tensor: &str) -> Self {
        self.tensors(file, |tensors| assert!(tensors.remove(tensor).is_some()))
    }

    fn without(mut self, file: &str) -> Self {
        assert!(self.0.remove(file).is_some());
        self
    }

    fn bytes(mut self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        edit(self.0.get_mut(file).unwrap());
        self
    }
}

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER: &str = "adapter_model.safetensors";
const HEADS: &str = "heads.safetensors";

const Q: &str = "model.layers.1.self_attn.q_proj.weight";
const LORA_A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

/// The shape `[rows, columns]` with zeros for elements.
fn reshape(rows: usize, columns: usize) -> impl FnOnce(&mut Raw) {
    move |raw| *raw = Raw::f32(&[rows, columns], 0.0)
}

fn set_element(index: usize, value: f32) -> impl FnOnce(&mut Raw) {
    move |raw| raw.data[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes())
}

#[test]
fn each_defect_names_file_tensor_expected_and_found() {
    // `plain`: D 64, H 4, G 2, E 16, F 48, V 96, R 16.
    let plain = || Files::golden("plain");
    let sharded = || Files::golden("sharded");
    #[rustfmt::skip]
    let cases: Vec<(&str, Files, &[&str])> = vec![
        ("no configuration",       plain().without(CONFIG),                               &["`embedded:config.json` is missing"]),
        ("configuration cut off",  plain().bytes(CONFIG, |bytes| bytes.truncate(100)),    &[CONFIG, "JSON"]),
        ("unknown architecture",   plain().field(CONFIG, "model_type", json!("llama")),   &[CONFIG, "`model_type` is llama", "\"qwen3\""]),
        ("no weights",             plain().without(MODEL),                                &["`embedded:model.safetensors` is missing"]),
        ("tensor missing",         plain().without_tensor(MODEL, Q),                      &[MODEL, Q, "missing", "[64, 64]"]),
        ("norm missing",           plain().without_tensor(MODEL, "model.norm.weight"),    &[MODEL, "model.norm.weight", "missing", "[64]"]),
        ("wrong shape",            plain().tensor(MODEL, Q, reshape(64, 32)),             &[MODEL, Q, "[64, 32]", "[64, 64]"]),
        ("transposed",             plain().tensor(MODEL, "model.layers.0.mlp.up_proj.weight", reshape(64, 48)),
                                                                                          &[MODEL, "up_proj", "[64, 48]", "[48, 64]"]),
        ("vector as matrix",       plain().tensor(MODEL, "model.norm.weight", reshape(1, 64)), &["model.norm.weight", "[1, 64]", "[64]"]),
        ("vocabulary too large",   plain().field(CONFIG, "vocab_size", json!(97)),        &[MODEL, "embed_tokens", "[96, 64]", "[97, 64]"]),
        ("vocabulary too small",   plain().field(CONFIG, "vocab_size", json!(95)),        &[MODEL, "embed_tokens", "[96, 64]", "[95, 64]"]),
        ("one layer more",         plain().field(CONFIG, "num_hidden_layers", json!(3)),  &[MODEL, "layers.2.", "missing"]),
        ("one layer less",         plain().field(CONFIG, "num_hidden_layers", json!(1)),  &[MODEL, "layers.1.", "belongs to no part"]),
        ("more heads",             plain().field(CONFIG, "num_attention_heads", json!(8)), &[MODEL, "q_proj", "[64, 64]", "[128, 64]"]),
        ("no heads",               plain().field(CONFIG, "num_attention_heads", json!(0)), &[CONFIG, "num_attention_heads", "is 0"]),
        ("kv heads do not divide", plain().field(CONFIG, "num_key_value_heads", json!(3)), &[CONFIG, "num_key_value_heads", "is 3", "a divisor of the 4"]),
        ("odd heads",              plain().field(CONFIG, "head_dim", json!(15)),          &[CONFIG, "head_dim", "is 15", "even"]),
        ("absurd width",           plain().field(CONFIG, "hidden_size", json!(u64::MAX)), &[CONFIG, "hidden_size", "18446744073709551615"]),
        ("absurd but allowed",     plain().field(CONFIG, "intermediate_size", json!(9_999_999)), &[MODEL, "gate_proj", "[48, 64]", "[9999999, 64]"]),
        ("scaled rotation",        plain().field(CONFIG, "rope_scaling", json!({"rope_type": "yarn"})), &[CONFIG, "rope_type", "yarn", "default"]),
        ("a bias",                 plain().tensors(MODEL, |all| { all.insert("model.layers.0.self_attn.q_proj.bias".into(), Raw::f32(&[64], 0.0)); }),
                                                                                          &[MODEL, "q_proj.bias", "belongs to no part"]),
        ("NaN",                    plain().tensor(MODEL, Q, set_element(130, f32::NAN)),  &[MODEL, Q, "NaN at element 130", "finite"]),
        ("infinity",               plain().tensor(MODEL, "model.norm.weight", set_element(3, f32::INFINITY)), &[MODEL, "model.norm.weight", "inf at element 3"]),
        ("integer weights",        plain().tensor(MODEL, Q, |raw| raw.dtype = Dtype::I32), &[MODEL, Q, "I32", "BF16"]),
        ("weights cut off",        plain().bytes(MODEL, |bytes| { bytes.pop(); }),        &[MODEL, "truncated", "tensor `"]),
        ("weights with a tail",    plain().bytes(MODEL, |bytes| bytes.push(0)),           &[MODEL, "its header describes"]),
        ("an empty file",          plain().bytes(MODEL, Vec::clear),                      &[MODEL, "truncated", "found 0"]),
        ("rank of one matrix",     plain().tensor(ADAPTER, LORA_A, reshape(8, 64)),       &[ADAPTER, LORA_A, "[8, 64]", "[16, 64]", ADAPTER_CONFIG]),
        ("rank of the file",       plain().field(ADAPTER_CONFIG, "r", json!(8)),          &[ADAPTER, "lora_A", "[16, 64]", "[8, 64]", ADAPTER_CONFIG]),
        ("rank 0",                 plain().field(ADAPTER_CONFIG, "r", json!(0)),          &[ADAPTER_CONFIG, "`r` is 0"]),
        ("a pair incomplete",      plain().without_tensor(ADAPTER, LORA_A),               &[ADAPTER, LORA_A, "missing", "[16, 64]"]),
        ("a target more",          plain().field(ADAPTER_CONFIG, "target_modules", json!(["q_proj", "up_proj"])), &[ADAPTER_CONFIG, "target_modules", "up_proj"]),
        ("a target less",          plain().field(ADAPTER_CONFIG, "target_modules", json!(["q_proj"])), &[ADAPTER, "belongs to no part"]),
        ("targets as a pattern",   plain().field(ADAPTER_CONFIG, "target_modules", json!(".*_proj")), &[ADAPTER_CONFIG, "target_modules"]),
        ("another method",         plain().field(ADAPTER_CONFIG, "peft_type", json!("IA3")), &[ADAPTER_CONFIG, "peft_type", "IA3", "LORA"]),
        ("DoRA",                   plain().field(ADAPTER_CONFIG, "use_dora", json!(true)), &[ADAPTER_CONFIG, "use_dora", "true"]),
        ("ranks by pattern",       plain().field(ADAPTER_CONFIG, "rank_pattern", json!({"q_proj": 4})), &[ADAPTER_CONFIG, "rank_pattern"]),
        ("trained biases",         plain().field(ADAPTER_CONFIG, "bias", json!("all")),   &[ADAPTER_CONFIG, "`bias` is all"]),
        ("base moved by init",     plain().field(ADAPTER_CONFIG, "init_lora_weights", json!("pissa_niter_4")), &[ADAPTER_CONFIG, "init_lora_weights", "pissa"]),
        ("NaN in the adapter",     plain().tensor(ADAPTER, LORA_A, set_element(0, f32::NAN)), &[ADAPTER, LORA_A, "NaN at element 0"]),
        ("no adapter weights",     plain().without(ADAPTER),                              &["`embedded:adapter_model.safetensors` is missing"]),
        ("no heads file",          plain().without(HEADS),                                &["`embedded:heads.safetensors` is missing"]),
        ("a head missing",         plain().without_tensor(HEADS, "cost.bias"),            &[HEADS, "cost.bias", "missing", "[5]"]),
        ("four actions",           plain().tensor(HEADS, "cost.weight", reshape(4, 64)),  &[HEADS, "cost.weight", "[4, 64]", "[5, 64]"]),
        ("heads of another width", plain().tensor(HEADS, "success.weight", reshape(5, 32)), &[HEADS, "success.weight", "[5, 32]", "[5, 64]"]),
        ("heads of a comparator",  comparator(plain()),                                   &[HEADS, "[1, 64]", "a comparator", "[5, 64]", "five actions"]),
        ("NaN in a head",          plain().tensor(HEADS, "cost.bias", set_element(4, f32::NAN)), &[HEADS, "cost.bias", "NaN at element 4"]),
        ("a shard missing",        sharded().without("model-00003-of-00005.safetensors"), &["`embedded:model-00003-of-00005.safetensors` is missing"]),
        ("index without tensor",   sharded().json(INDEX, |index| { index["weight_map"].as_object_mut().unwrap().remove(Q); }),
                                                                                          &[INDEX, Q, "does not place"]),
        ("index with a wrong one", sharded().json(INDEX, |index| index["weight_map"]["model.norm.weight"] = json!("model-00001-of-00005.safetensors")),
                                                                                          &[INDEX, "model.norm.weight", "does not"]),
        ("index out of bundle",    sharded().json(INDEX, |index| index["weight_map"][Q] = json!("../x")), &["../x", "missing"]),
        ("index not JSON",         sharded().bytes(INDEX, |bytes| bytes.truncate(50)),    &[INDEX, "JSON"]),
    ];
    for (name, files, parts) in cases {
        let Err(error) = files.load() else { panic!("{name}: accepted") };
        let message = error.to_string();
        for part in parts {
            assert!(message.contains(part), "{name}: `{part}` is not in: {message}");
        }
    }
}

/// The same bundle with the heads of a comparator.
fn comparator(files: Files) -> Files {
    files.tensors(HEADS, |heads| {
        for (name, row) in [("success.weight", 64 * 4), ("success.bias", 4)] {
            let head = heads.get_mut(name).unwrap();
            head.shape[0] = 1;
            head.data.truncate(row);
        }
    })
}

#[test]
fn a_comparator_loads_as_one_and_only_as_one() {
    let (actions, comparator) = (Files::golden("plain"), comparator(Files::golden("plain")));
    assert!(matches!(actions.load_as::<ComparatorHeads>(Adapter::Folded), Err(BundleError::HeadsKind { .. })));
    let mut network = comparator.load_as::<ComparatorHeads>(Adapter::Apart).unwrap();
    let ComparatorOutputs { success_logit, cost_preactivations } = network.forward(&[1, 2, 3], Stop::never()).unwrap();
    let five = actions.load().unwrap().forward(&[1, 2, 3], Stop::never()).unwrap();
    assert_eq!(success_logit.to_bits(), five.success_logits.0[0].to_bits());
    assert_eq!(cost_preactivations, five.cost_preactivations);
}

#[test]
fn a_fold_that_overflows_is_refused() {
    let huge = |raw: &mut Raw| *raw = Raw::f32(&raw.shape.clone(), 1e30);
    let files = Files::golden("plain").tensors(ADAPTER, |tensors| tensors.values_mut().for_each(huge));
    let error = files.load_as::<ActionHeads>(Adapter::Folded).unwrap_err();
    assert!(matches!(error, BundleError::FoldNotFinite { .. }), "{error}");
    assert!(error.to_string().contains("q_proj"), "{error}");
}

#[test]
fn without_the_adapter_its_files_are_not_even_opened() {
    let files = Files::golden("plain").without(ADAPTER).without(ADAPTER_CONFIG);
    files.load_as::<ActionHeads>(Adapter::None).unwrap();
}

#[test]
fn input_without_a_hidden_state_is_an_error() {
    let mut network = Files::golden("plain").load().unwrap();
    let (never, now) = (Stop::never(), || true);
    #[rustfmt::skip]
    let cases = [
        ("no tokens",         vec![],                never,           ForwardError::Empty),
        ("too many",          vec![1; 513],          never,           ForwardError::TooLong { most: 512, found: 513 }),
        ("first unknown one", vec![95, 96, 97],      never,           ForwardError::UnknownToken { position: 1, token: 96, vocab_size: 96 }),
        ("largest token",     vec![u32::MAX],        never,           ForwardError::UnknownToken { position: 0, token: u32::MAX, vocab_size: 96 }),
        ("stopped at once",   vec![1],               Stop::when(&now), ForwardError::Stopped),
    ];
    for (name, tokens, stop, expected) in cases {
        assert_eq!(network.forward(&tokens, stop), Err(expected), "{name}");
    }
    network.forward(&[1; 512], never).unwrap();
}

/// Wherever a pass is stopped, it says so, and the next pass is as if it had never begun.
#[test]
fn a_stopped_pass_leaves_nothing_behind() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let mut network = Files::golden("plain").load().unwrap();
    let tokens = [7; 40];
    let asked = AtomicUsize::new(0);
    let count = || asked.fetch_add(1, Ordering::Relaxed) == usize::MAX;
    let expected = network.forward(&tokens, Stop::when(&count)).unwrap();
    let questions = asked.into_inner();
    assert!(questions >= 20, "two layers of at least ten steps ask {questions} times");
    for allowed in 0..questions {
        let asked = AtomicUsize::new(0);
        let late = || asked.fetch_add(1, Ordering::Relaxed) >= allowed;
        assert_eq!(network.forward(&tokens, Stop::when(&late)), Err(ForwardError::Stopped), "question {allowed}");
    }
    assert_eq!(network.forward(&tokens, Stop::never()), Ok(expected));
}

/// Numbers in a configuration or a header allocate nothing: only tensors that are there do.
#[test]
#[cfg(target_os = "linux")]
fn absurd_numbers_cost_no_memory() {
    let peak_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak_kib();
    let fields = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ];
    for field in fields {
        for number in [1_000, 1_000_000, 10_000_000, 1_u64 << 40, u64::MAX] {
            let files = Files::golden("plain").field(CONFIG, field, json!(number));
            assert!(files.load().is_err(), "{field} = {number}");
        }
    }
    for length in [1_u64 << 20, 1 << 30, 1 << 40, 1 << 62, u64::MAX] {
        let files = Files::golden("plain").bytes(MODEL, |bytes| bytes[..8].copy_from_slice(&length.to_le_bytes()));
        assert!(files.load().is_err(), "header of {length} bytes");
    }
    let grown = peak_kib() - before;
    // The other tests of this file run beside this one, on bundles of 300 kB.
    assert!(grown < 64 << 10, "peak memory grew by {grown} KiB");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Bytes changed, cut off or added anywhere in any file: an error that names a file of the bundle, or a network
    /// that runs.
    #[test]
    fn damage_anywhere_is_an_error_or_a_network(
        case in prop::sample::select(vec!["bf16", "sharded"]),
        file in any::<prop::sample::Index>(),
        // Mostly near the beginning, where the header is.
        edits in prop::collection::vec((prop_oneof![3 => 0.0..0.1_f64, 1 => 0.0..1.0_f64], any::<u8>()), 0..4),
        length in prop::option::weighted(0.3, 0.0..1.01_f64),
    ) {
        let mut files = Files::golden(case);
        let name = files.0.keys().nth(file.index(files.0.len())).unwrap().clone();
        let bytes = files.0.get_mut(&name).unwrap();
        let size = bytes.len();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a small file")]
        let place = |share: f64| (share * size as f64) as usize;
        for (share, value) in edits {
            bytes[place(share)] = value;
        }
        if let Some(share) = length {
            bytes.resize(place(share), 0);
        }
        match files.load() {
            Ok(mut network) => {
                let tokens = [0, 1, 2];
                let known = network.config().vocab_size > 2 && network.config().max_position_embeddings > 2;
                prop_assert_eq!(network.forward(&tokens, Stop::never()).is_ok(), known);
            }
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.contains("embedded:"), "{message}");
            }
        }
    }
}
