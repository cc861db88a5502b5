//! One pass of the value network at the full shape, beside the peers, in turns, each checked before it counts.
//!
//! ```text
//! bench/peers/install PEERS
//! cargo bench -p tack-bench --bench peers -- DIRECTORY PEERS [--samples N] [--rows NAME,..] [--only PEER,..] [--threads N]
//! ```
//!
//! `DIRECTORY` gets a bundle of random weights if it has none, our pack files, and what peers convert. Each implementation
//! is a process; each row runs sample by sample, one implementation after the other, on the same tokens; and each hidden
//! state is held against that of our exact pass, which is held against 64-bit floats.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use tack_bench::random_bundle::{self, Shape};
use tack_bench::record;
use tack_bench::worker::{Answer, Outcome, Worker};
use tack_kernels::engine::Peak;
use tack_kernels::reference::Reference;
use tack_kernels::{
    ActionHeads, Adapter, BundleSource, Engine, EngineOptions, Isa, Network, Precision, PrecisionPolicy, Stop,
};

const SHAPE: Shape = Shape::QWEN3_0_6B;

/// Tokens that are there before those of a row.
const PREFIX: usize = 3584;

/// Tokens of the comparison with 64-bit floats.
const EXACT: usize = 128;

/// Implementations in the order of their turns, and the greatest relative error of each that counts as the same network.
const IMPLEMENTATIONS: [(&str, f64); 9] = [
    ("ours-int12", 6e-3),
    ("ours-f32", 5e-6),
    ("openvino", 1e-4),
    ("torch", 1e-4),
    ("candle", 1e-4),
    ("llama-f16", 2e-2),
    ("llama-q8_0", 1e-1),
    // Not asked for by anybody who needs 6e-3, and fast where the processor has the instructions.
    ("openvino-bf16", 5e-2),
    ("torch-bf16", 5e-2),
];

/// What stands in a row.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    prefix: usize,
    new: usize,
    states: usize,
    /// Share of the samples that were asked for, rounded up: long rows take minutes.
    share: f64,
}

const ROWS: [Row; 9] = [
    Row { name: "cold-128", prefix: 0, new: 128, states: 1, share: 1.0 },
    Row { name: "cold-512", prefix: 0, new: 512, states: 1, share: 1.0 },
    Row { name: "cold-1024", prefix: 0, new: 1024, states: 1, share: 0.6 },
    Row { name: "batch-4x128", prefix: 0, new: 128, states: 4, share: 1.0 },
    Row { name: "64-on-3584", prefix: PREFIX, new: 64, states: 1, share: 1.0 },
    Row { name: "256-on-3584", prefix: PREFIX, new: 256, states: 1, share: 0.6 },
    Row { name: "512-on-3584", prefix: PREFIX, new: 512, states: 1, share: 0.6 },
    Row { name: "cold-2048", prefix: 0, new: 2048, states: 1, share: 0.2 },
    Row { name: "cold-4096", prefix: 0, new: 4096, states: 1, share: 0.2 },
];

struct Arguments {
    directory: PathBuf,
    peers: PathBuf,
    samples: usize,
    rows: Option<String>,
    only: Option<String>,
    threads: NonZeroUsize,
    worker: Option<String>,
}

impl Arguments {
    fn read() -> Outcome<Option<Self>> {
        let (mut samples, mut rows, mut only, mut worker) = (5, None, None, None);
        let mut threads = std::thread::available_parallelism()?;
        let mut places = Vec::new();
        // Cargo adds `--bench`.
        let mut arguments = std::env::args().skip(1).filter(|it| it != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--samples" => samples = value()?.parse()?,
                "--rows" => rows = Some(value()?),
                "--only" => only = Some(value()?),
                "--threads" => threads = value()?.parse()?,
                "--worker" => worker = Some(value()?),
                _ => places.push(PathBuf::from(argument)),
            }
        }
        let mut places = places.into_iter();
        let (Some(directory), Some(peers)) = (places.next(), places.next()) else { return Ok(None) };
        Ok(Some(Self { directory, peers, samples, rows, only, threads, worker }))
    }

    /// Starts an implementation; why not, if it is not there.
    fn start(&self, name: &str) -> Outcome<Worker> {
        let threads = self.threads.to_string();
        let mut command = match name {
            "candle" => {
                let mut command = Command::new(self.peers.join("candle/release/tack-peer-candle"));
                command.arg(&self.directory).env("RAYON_NUM_THREADS", threads);
                command
            }
            _ if name.starts_with("ours") => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(&self.directory).arg(&self.peers).args(["--worker", name, "--threads", &threads]);
                command
            }
            _ => {
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/worker.py");
                let mut command = Command::new(self.peers.join("venv/bin/python"));
                command.arg(script).arg(name).arg(&self.directory).arg(threads);
                command
            }
        };
        Worker::start(&mut command)
    }
}

/// Tokens that tell states apart: `turn` changes them.
fn tokens(length: usize, turn: usize) -> Vec<u32> {
    let token = |i: usize| (i * 7919 + 13 + turn * 104_729) % 150_000;
    (0..length).map(|i| u32::try_from(token(i)).unwrap_or(0)).collect()
}

/// Ours, as a worker.
fn work(arguments: &Arguments, name: &str) -> Outcome<()> {
    let precision = match name {
        "ours-f32" => PrecisionPolicy::Fixed(Precision::Float),
        _ => PrecisionPolicy::Measured,
    };
    let options = EngineOptions { adapter: Adapter::None, threads: arguments.threads, precision, ..Default::default() };
    let source = BundleSource::directory(&arguments.directory);
    let mut engine = Engine::<ActionHeads>::load(&source, &options)?;
    engine.hidden(&[1], Stop::never())?; // touches every weight, and checks the pack file
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", json!({"ready": format!("tack, {}, {}", engine.precision(), engine.isa())}))?;
    out.flush()?;
    let mut held: Vec<u32> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let request: serde_json::Value = serde_json::from_str(&line?)?;
        let prefix: Vec<u32> = serde_json::from_value(request["prefix"].clone())?;
        let states: Vec<Vec<u32>> = serde_json::from_value(request["states"].clone())?;
        if held != prefix {
            engine.clear_cache();
            if !prefix.is_empty() {
                engine.hidden(&prefix, Stop::never())?;
                engine.pin(&prefix);
            }
            held.clone_from(&prefix);
        }
        let whole: Vec<Vec<u32>> = states.iter().map(|state| [&*prefix, state].concat()).collect();
        let batch: Vec<&[u32]> = whole.iter().map(Vec::as_slice).collect();
        let cpu_s = || {
            clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(|it| it.tv_sec() as f64 + it.tv_nsec() as f64 * 1e-9)
        };
        let (begun, cpu) = (Instant::now(), cpu_s()?);
        let hidden = engine.hidden_batch(&batch, Stop::never())?;
        let (wall_s, cpu_s) = (begun.elapsed().as_secs_f64(), cpu_s()? - cpu);
        let computed: usize = states.iter().map(Vec::len).sum();
        if engine.last_pass().computed != computed {
            return Err(format!("{} tokens were computed, not {computed}", engine.last_pass().computed).into());
        }
        writeln!(out, "{}", json!({"wall_s": wall_s, "cpu_s": cpu_s, "hidden": hidden}))?;
        out.flush()?;
    }
    Ok(())
}

/// Relative L2 error, and 1 less the cosine.
fn error(found: &[f64], expected: &[f64]) -> (f64, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let difference: Vec<f64> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
    let size = dot(expected, expected);
    ((dot(&difference, &difference) / size).sqrt(), 1.0 - dot(found, expected) / (dot(found, found) * size).sqrt())
}

/// The hidden state in 64-bit floats, computed once: half a second a token.
fn exact(directory: &Path) -> Outcome<Vec<f64>> {
    let path = directory.join(format!("peers/exact.{EXACT}.json"));
    if let Ok(bytes) = std::fs::read(&path) {
        return Ok(serde_json::from_slice(&bytes)?);
    }
    let reference = Reference::load::<ActionHeads>(&BundleSource::directory(directory), false)?;
    let hidden = reference.hidden(&tokens(EXACT, 0))?;
    std::fs::create_dir_all(directory.join("peers"))?;
    std::fs::write(path, serde_json::to_vec(&hidden)?)?;
    Ok(hidden)
}

fn median(samples: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = samples.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(arguments: &Arguments) -> Outcome<()> {
    random_bundle::write(&arguments.directory, SHAPE)?;
    let isa = Isa::detect();
    let provenance = record::provenance("cargo bench -p tack-bench --bench peers -- DIRECTORY PEERS");
    let peak = Peak::measure(isa, 400);
    let [integer, float] = [peak.integer, peak.float].map(|peak| peak / 1e9);
    print!("{provenance}");
    println!("{isa}, one core's peak: {integer:.0} Gop/s integer, {float:.0} float; {} threads\n", arguments.threads);

    // 1. Who is there, and that each is the same network.
    let exact = exact(&arguments.directory)?;
    let is_wanted =
        |name: &str, list: &Option<String>| list.as_ref().is_none_or(|it| it.split(',').any(|it| it == name));
    let mut there: Vec<(&str, f64, Worker)> = Vec::new();
    for (name, limit) in IMPLEMENTATIONS {
        if !(is_wanted(name, &arguments.only) || name == "ours-f32") {
            continue;
        }
        let mut worker = match arguments.start(name) {
            Ok(worker) => worker,
            Err(error) => {
                println!("{name:<14} SKIPPED: {error}");
                continue;
            }
        };
        let found = worker.pass(&[], &[tokens(EXACT, 0)])??;
        let (error, cosine) = error(&found.hidden[0], &exact);
        println!("{name:<14} {}: error {error:.1e} against 64-bit floats, cosine 1 - {cosine:.1e}", worker.name);
        if error.is_nan() || error > limit {
            return Err(format!("{name} is off by {error:.1e}, over {limit:.0e}: nothing wrong is timed").into());
        }
        there.push((name, limit, worker));
    }

    // 2. Row by row, in turns.
    let mut raw = provenance.lines().fold(String::new(), |text, line| text + "# " + line + "\n");
    raw.push_str("row,implementation,sample,wall_s,cpu_s,error\n");
    for (index, row) in ROWS.iter().enumerate().filter(|(_, row)| is_wanted(row.name, &arguments.rows)) {
        let Row { name: row_name, prefix, new, states, share } = *row;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
        let samples = ((arguments.samples as f64 * share).ceil() as usize).max(1);
        let mut answers: BTreeMap<&str, Vec<(Answer, f64)>> = BTreeMap::new();
        let mut unable: BTreeMap<&str, String> = BTreeMap::new();
        // Ours in floats first of all: what the others are held against.
        let (count, first) = (there.len(), there.iter().position(|it| it.0 == "ours-f32").unwrap_or(0));
        for sample in 0..samples {
            let turns = (0..count).map(|index| (index + sample) % count).filter(|&it| it != first);
            let order = std::iter::once(first).chain(turns);
            let begins = tokens(prefix, 0);
            // No two rows, samples or states begin alike, so that no cache helps but for the prefix.
            let of = |state| tokens(prefix + new, 1 + 1000 * index + sample * states + state)[prefix..].to_vec();
            let passes: Vec<Vec<u32>> = (0..states).map(of).collect();
            let mut expected: Option<Vec<Vec<f64>>> = None;
            for turn in order {
                let (name, limit, worker) = &mut there[turn];
                if unable.contains_key(*name) {
                    continue;
                }
                let answer = match worker.pass(&begins, &passes)? {
                    Ok(answer) => answer,
                    Err(why) => {
                        unable.insert(*name, why);
                        continue;
                    }
                };
                let expected = expected.get_or_insert_with(|| answer.hidden.clone());
                let errors =
                    answer.hidden.iter().zip(expected.iter()).map(|(found, expected)| error(found, expected).0);
                let error = errors.fold(0.0, f64::max);
                if error.is_nan() || error > *limit || answer.hidden.len() != states {
                    return Err(format!("{row_name}: {name} is off by {error:.1e}, over {limit:.0e}").into());
                }
                writeln!(raw, "{row_name},{name},{sample},{:.6},{:.4},{error:.2e}", answer.wall_s, answer.cpu_s)?;
                answers.entry(*name).or_default().push((answer, error));
            }
        }
        show(row, &there, &answers, &unable, [integer, float]);
    }
    if let Some(path) = std::env::var_os("TACK_BENCH_RECORD") {
        std::fs::write(path, raw)?;
    }
    Ok(())
}

fn show(
    row: &Row,
    there: &[(&str, f64, Worker)],
    answers: &BTreeMap<&str, Vec<(Answer, f64)>>,
    unable: &BTreeMap<&str, String>,
    [integer, float]: [f64; 2],
) {
    let of =
        |name: &str, what: fn(&Answer) -> f64| answers.get(name).map(|all| median(all.iter().map(|it| what(&it.0))));
    let (wall, cpu) = (|it: &Answer| it.wall_s, |it: &Answer| it.cpu_s);
    let ours = [of("ours-int12", wall), of("ours-int12", cpu)].map(|it| it.unwrap_or(f64::NAN));
    let samples = answers.values().map(Vec::len).max().unwrap_or(0);
    println!(
        "\n{:<12} {samples:>2} samples  {:>9} {:>9} {:>11} {:>10} {:>7} {:>8} {:>8} {:>9}",
        row.name, "wall ms", "CPU ms", "ours: wall", "by CPU", "Gop/s", "of peak", "error", "most MB"
    );
    for (name, _, worker) in there {
        if let Some(why) = unable.get(name) {
            println!("  {name:<22} unavailable: {why}");
        }
        let (Some(wall), Some(cpu)) = (of(name, wall), of(name, cpu)) else { continue };
        let rate = row.states as f64 * SHAPE.operations(row.new, row.prefix) / 1e9;
        // By processor time a core's share is the same on a machine with other work.
        let peak = if *name == "ours-int12" { integer } else { float };
        let error = answers.get(name).map_or(f64::NAN, |all| all.iter().map(|it| it.1).fold(0.0, f64::max));
        println!(
            "  {name:<22} {:>9.1} {:>9.1} {:>10.2}x {:>9.2}x {:>7.0} {:>7.0}% {error:>8.0e} {:>9.0}",
            wall * 1e3,
            cpu * 1e3,
            wall / ours[0],
            cpu / ours[1],
            rate / wall,
            100.0 * rate / cpu / peak,
            worker.memory_mb("VmHWM:")
        );
    }
}

fn main() -> ExitCode {
    let outcome = Arguments::read().and_then(|arguments| {
        let Some(arguments) = arguments else {
            // `cargo bench` without arguments runs every benchmark; this one is asked for.
            println!("SKIPPED: peers needs a directory for random weights, and what `bench/peers/install` made");
            return Ok(());
        };
        arguments.worker.as_ref().map_or_else(|| run(&arguments), |name| work(&arguments, name))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
