//! What one decision costs after another of the same task: every decision point of real recordings, in their order.
//!
//! ```text
//! cargo bench -p tack-bench --bench consecutive -- [DIRECTORY] [--points N] [--recordings FOLDER]
//! ```
//!
//! One controller decides at each point in turn, with what its cache has kept; another keeps nothing. Both give the same
//! decision, or the run fails. `DIRECTORY` gets a full-shape bundle of random weights; without it the model inside the
//! command decides, whose tokens are the same in number and whose time says nothing. `--points` takes the last so many of
//! each recording. `TACK_QWEN3_TOKENIZER` names the real tokenizer; else it is the mini model's, which cuts text finer.
//!
//! Most recordings hold the patch at their end alone. Where a point has none, the first lines of the final patch stand in,
//! as many as the share of edits made by then, so that each edit changes the patch as it did for the agent.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tack_bench::random_bundle::{self, Shape};
use tack_bench::record;
use tack_controller::Controller;
use tack_controller::engine::{BundleSource, EngineOptions, PackFile, PackPlace};
use tack_core::{ContextReason, Decide, Stage};
use tack_kernels::{ActionHeads, CpuNetwork, Network, Options};
use tack_trajectory::Read;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Arguments {
    directory: Option<PathBuf>,
    recordings: PathBuf,
    points: usize,
}

impl Arguments {
    fn read() -> Outcome<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut read = Self { directory: None, recordings: root.join("../trajectory/samples"), points: usize::MAX };
        // Cargo adds `--bench`.
        let mut arguments = std::env::args().skip(1).filter(|it| it != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--points" => read.points = value()?.parse()?,
                "--recordings" => read.recordings = value()?.into(),
                _ => read.directory = Some(argument.into()),
            }
        }
        Ok(read)
    }
}

/// The mini bundle's files, or a full-shape network with a tokenizer and a record that is about them.
fn bundle(directory: Option<&Path>) -> Outcome<PathBuf> {
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mini");
    let Some(directory) = directory else { return Ok(mini) };
    random_bundle::write(directory, Shape::QWEN3_0_6B)?;
    let folder = directory.join("controller");
    fs::create_dir_all(&folder)?;
    let tokenizer = std::env::var_os("TACK_QWEN3_TOKENIZER").map_or(mini.join("tokenizer.json"), PathBuf::from);
    fs::copy(tokenizer, folder.join("tokenizer.json"))?;
    random_bundle::write_adapter(&folder, directory, Shape::QWEN3_0_6B, 1)?;
    for file in ["config.json", "model.safetensors"] {
        let (from, to) = (fs::canonicalize(directory.join(file))?, folder.join(file));
        if !to.exists() {
            fs::hard_link(from, to)?;
        }
    }
    // What the record must say of the network is what the plain reader says.
    let source = BundleSource::directory(&folder);
    let memo = folder.join("record.digest");
    let digest = match fs::read_to_string(&memo) {
        Ok(digest) => digest,
        Err(_) => CpuNetwork::<ActionHeads>::load(&source, Options::default())?.digest().to_string(),
    };
    fs::write(memo, &digest)?;
    let mut record: Value = serde_json::from_slice(&fs::read(mini.join("controller.json"))?)?;
    record["name"] = json!("random");
    record["digests"] = json!({"network": digest, "tokenizer": source.open("tokenizer.json")?.digest()});
    fs::write(folder.join("controller.json"), record.to_string())?;
    Ok(folder)
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) -> Outcome<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() { files(&path, into)? } else { into.push(path) }
    }
    Ok(())
}

/// The recording's states, one a decision point.
fn points(path: &Path) -> Vec<Read> {
    let Ok(bytes) = fs::read(path) else { return Vec::new() };
    let name = path.to_string_lossy();
    let at = |at, patch: Option<&[u8]>| {
        tack_trajectory::read(&bytes, &name, &tack_trajectory::Options { at, patch, ..Default::default() })
    };
    let Ok(last) = at(None, None) else { return Vec::new() };
    let end = last.point.step.unwrap_or(0);
    let edits = |read: &Read| {
        let observations = read.state.observations.iter();
        observations.filter(|it| it.reason == ContextReason::Edit).count()
    };
    let of_all = edits(&last);
    let whole = last.state.patch.clone().unwrap_or_default();
    let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    let point = |step| {
        if step == end {
            return Some(last.clone());
        }
        at(Some(step), None).ok().or_else(|| {
            let made = edits(&at(Some(step), Some(b"")).ok()?);
            let patch = lines[..lines.len() * made / of_all.max(1)].concat();
            at(Some(step), Some(&patch)).ok()
        })
    };
    (0..=end).filter_map(point).collect()
}

#[derive(Default)]
struct Sums {
    decisions: usize,
    tokens: u64,
    computed: u64,
    cold_us: u64,
    cached_us: u64,
    tokenize_us: u64,
    heads_us: u64,
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let folder = bundle(arguments.directory.as_deref())?;
    let source = BundleSource::directory(folder);
    let open = |cache_bytes| {
        let pack_file = if arguments.directory.is_some() { PackFile::Worthwhile } else { PackFile::Never };
        let pack_place = PackPlace::Beside { otherwise: None };
        let options = EngineOptions { cache_bytes, pack_file, pack_place, ..Default::default() };
        Controller::load(&source, &options, &mut |_| {})
    };
    print!("{}", record::provenance("cargo bench -p tack-bench --bench consecutive"));
    let mut cold = open(0)?;
    let mut kept = open(EngineOptions::default().cache_bytes)?;
    println!("{}, {} threads; each first decision of a recording is cold\n", kept.isa(), kept.threads());
    println!(
        "{:<52} {:>9} {:>10} {:>10} {:>9} {:>10} {:>7}",
        "recording", "decisions", "tokens", "computed", "cold ms", "cached ms", "faster"
    );
    let mut paths = Vec::new();
    files(&arguments.recordings, &mut paths)?;
    let mut all = Sums::default();
    let mut raw = String::from("recording,step,tokens,cached,cold_forward_us,cached_forward_us,tokenize_us,heads_us\n");
    for path in paths {
        let points = points(&path);
        let name = path.strip_prefix(&arguments.recordings)?.display().to_string();
        let mut sums = Sums::default();
        let first = points.len().saturating_sub(arguments.points);
        for (index, read) in points[first..].iter().enumerate() {
            let lent = read.state.lend();
            let expected = cold.decide(&lent.state(), &mut ())?;
            let found = kept.decide(&lent.state(), &mut ())?;
            if (found.receipt.digests, found.receipt.ruling) != (expected.receipt.digests, expected.receipt.ruling) {
                return Err(format!("{name}, point {index}: cached and cold decide differently").into());
            }
            let stage = |decision: &tack_controller::Decision, stage| {
                decision.receipt.stage_times.iter().filter(|it| it.stage == stage).map(|it| it.wall.0).sum::<u64>()
            };
            let tokens = found.encoding.as_ref().map_or(0, |it| u64::from(it.total.0));
            let times = [stage(&expected, Stage::Forward), stage(&found, Stage::Forward)];
            let (tokenize, heads) =
                (stage(&found, Stage::Tokenize) + stage(&found, Stage::Cut), stage(&found, Stage::Heads));
            writeln!(raw, "{name},{index},{tokens},{},{},{},{tokenize},{heads}", found.cached.0, times[0], times[1])?;
            // A task's first decision is cold whatever is kept.
            if index > 0 {
                sums.decisions += 1;
                sums.tokens += tokens;
                sums.computed += tokens - u64::from(found.cached.0);
                sums.cold_us += times[0];
                sums.cached_us += times[1];
                sums.tokenize_us += tokenize;
                sums.heads_us += heads;
            }
        }
        if sums.decisions > 0 {
            show(&name, &sums);
            all.decisions += sums.decisions;
            all.tokens += sums.tokens;
            all.computed += sums.computed;
            all.cold_us += sums.cold_us;
            all.cached_us += sums.cached_us;
            all.tokenize_us += sums.tokenize_us;
            all.heads_us += sums.heads_us;
        }
    }
    show("all, a decision", &all);
    let per = |us: u64| us as f64 / all.decisions.max(1) as f64 / 1e3;
    println!(
        "tokens of a state {:.3} ms, forward {:.1} ms, heads {:.3} ms a decision; cache {:.0} MB",
        per(all.tokenize_us),
        per(all.cached_us),
        per(all.heads_us),
        kept.cached_bytes() as f64 / 1e6
    );
    if let Some(path) = std::env::var_os("TACK_BENCH_RECORD") {
        fs::write(path, raw)?;
    }
    Ok(())
}

fn show(name: &str, sums: &Sums) {
    let per = |sum: u64| sum as f64 / sums.decisions.max(1) as f64;
    println!(
        "{name:<52} {:>9} {:>10.0} {:>10.0} {:>9.1} {:>10.1} {:>6.1}x",
        sums.decisions,
        per(sums.tokens),
        per(sums.computed),
        per(sums.cold_us) / 1e3,
        per(sums.cached_us) / 1e3,
        sums.cold_us as f64 / sums.cached_us.max(1) as f64
    );
}

fn main() -> ExitCode {
    match Arguments::read().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
