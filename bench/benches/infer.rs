//! One pass of the value network at the full shape, on this machine, beside its instruction peak.
//!
//! ```text
//! cargo bench -p tack-bench --bench infer -- DIRECTORY [--long] [--exact TOKENS] [--threads N] [--isa NAME] [--samples N]
//! ```
//!
//! `DIRECTORY` gets a bundle of random weights if it has none; it should be empty or an earlier run's. `--long` adds the
//! rows that take minutes (2,048 and 4,096 cold). `--exact` compares the hidden state with 64-bit floats first, at about
//! half a second a token.
//!
//! Each row gives wall and CPU time. CPU time is the process's: on a machine with other work it is the figure that holds,
//! and rates and shares are made from it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use tack_bench::random_bundle::{self, Shape};
use tack_bench::record;
use tack_bench::resident::Resident;
use tack_bench::worker::memory_mb as memory_mb_of;
use tack_kernels::engine::{LoadPhase, PackSource, Peak};
use tack_kernels::reference::Reference;
use tack_kernels::{
    ActionHeads, Adapter, BundleSource, Engine, EngineOptions, Isa, Network, Precision, PrecisionPolicy, Stop,
};

const SHAPE: Shape = Shape::QWEN3_0_6B;

/// Tokens that are cached before the append rows: a full state less one block of observations.
const PREFIX: usize = 3584;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Arguments {
    directory: PathBuf,
    long: bool,
    exact: Option<usize>,
    threads: Option<NonZeroUsize>,
    isa: Option<Isa>,
    samples: usize,
}

impl Arguments {
    fn read() -> Outcome<Option<Self>> {
        let (mut directory, mut long, mut exact, mut threads, mut isa, mut samples) =
            (None, false, None, None, None, 3);
        // Cargo adds `--bench`.
        let mut arguments = std::env::args().skip(1).filter(|it| it != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--long" => long = true,
                "--exact" => exact = Some(value()?.parse()?),
                "--threads" => threads = Some(value()?.parse()?),
                "--isa" => isa = Some(value()?.parse()?),
                "--samples" => samples = value()?.parse()?,
                _ => directory = Some(PathBuf::from(argument)),
            }
        }
        Ok(directory.map(|directory| Self { directory, long, exact, threads, isa, samples }))
    }

    fn options(&self, precision: PrecisionPolicy) -> EngineOptions {
        let standard = EngineOptions::default();
        let threads = self.threads.unwrap_or(standard.threads);
        EngineOptions { adapter: Adapter::None, threads, isa: self.isa, precision, ..standard }
    }
}

/// A moment, by the wall and by the work of this process.
#[derive(Clone, Copy)]
struct Moment {
    wall: Instant,
    cpu_s: f64,
}

/// What passed between two moments, in seconds.
#[derive(Clone, Copy, Default)]
struct Spent {
    wall_s: f64,
    cpu_s: f64,
}

impl Moment {
    fn now() -> Self {
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
        let cpu_s = cpu.map_or(f64::NAN, |it| it.tv_sec() as f64 + it.tv_nsec() as f64 * 1e-9);
        Self { wall: Instant::now(), cpu_s }
    }

    fn spent(self) -> Spent {
        let now = Self::now();
        Spent { wall_s: (now.wall - self.wall).as_secs_f64(), cpu_s: now.cpu_s - self.cpu_s }
    }
}

fn median(mut samples: Vec<Spent>) -> Spent {
    samples.sort_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s));
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

fn memory_mb(name: &str) -> f64 {
    memory_mb_of("self", name)
}

/// Tokens that tell states apart: `turn` changes them from `shared` on.
fn tokens(length: usize, shared: usize, turn: usize) -> Vec<u32> {
    let token = |i: usize| (i * 7919 + 13 + if i < shared { 0 } else { turn * 104_729 }) % 150_000;
    (0..length).map(|i| u32::try_from(token(i)).unwrap_or(0)).collect()
}

fn load(arguments: &Arguments, precision: PrecisionPolicy, shown: bool) -> Outcome<Engine> {
    let mut steps: Vec<(LoadPhase, Moment)> = Vec::new();
    let source = BundleSource::directory(&arguments.directory);
    let engine = Engine::load_in_phases(&source, &arguments.options(precision), &mut |phase| {
        steps.push((phase, Moment::now()));
    })?;
    if shown {
        let source = match engine.pack_source() {
            PackSource::File { .. } => "the pack file",
            PackSource::Written { .. } => "the bundle, pack file written",
            _ => "the bundle alone",
        };
        let [first, last] = [steps.first(), steps.last()].map(|it| it.map_or_else(Instant::now, |it| it.1.wall));
        print!("load, {precision}, from {source}: {:.3} s;", (last - first).as_secs_f64());
        for pair in steps.windows(2) {
            let [(phase, begun), (_, ended)] = [pair[0], pair[1]];
            print!(" {phase:?} {:.3}/{:.3}", (ended.wall - begun.wall).as_secs_f64(), ended.cpu_s - begun.cpu_s);
        }
        println!(" (wall/CPU s); resident {:.0} MB", memory_mb("VmRSS:"));
    }
    Ok(engine)
}

/// One kind of pass, over and over, each time with tokens that were not seen.
struct Bench<'a> {
    engine: &'a mut Engine,
    samples: usize,
    peak: f64,
    turn: usize,
}

impl Bench<'_> {
    fn row(&mut self, name: &str, prefix: usize, new: usize, states: usize) -> Outcome<Spent> {
        let mut samples = Vec::new();
        for _ in 0..self.samples {
            let batch: Vec<Vec<u32>> = (0..states)
                .map(|_| {
                    self.turn += 1;
                    tokens(prefix + new, prefix, self.turn)
                })
                .collect();
            let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
            let begun = Moment::now();
            let hidden = self.engine.hidden_batch(&batch, Stop::never())?;
            samples.push(begun.spent());
            let pass = self.engine.last_pass();
            assert_eq!((pass.cached, pass.computed), (states * prefix, states * new), "{name}: another pass than said");
            assert!(hidden.iter().flatten().all(|x| x.is_finite()), "{name}: a hidden state that is no number");
        }
        let spent = median(samples);
        let rate = states as f64 * SHAPE.operations(new, prefix) / spent.cpu_s;
        println!(
            "{name:<26} {:>9.1} {:>9.1} {:>8.0} {:>9.0} {:>7.0} %",
            1e3 * spent.wall_s,
            1e3 * spent.cpu_s,
            (states * new) as f64 / spent.cpu_s,
            rate / 1e9,
            100.0 * rate / self.peak
        );
        Ok(spent)
    }
}

fn compare_with_exact(arguments: &Arguments, length: usize) -> Outcome<()> {
    let source = BundleSource::directory(&arguments.directory);
    let tokens = tokens(length, length, 0);
    let exact = Reference::load::<ActionHeads>(&source, false)?.hidden(&tokens)?;
    for precision in [PrecisionPolicy::Measured, PrecisionPolicy::Fixed(Precision::Float)] {
        let mut engine = load(arguments, precision, false)?;
        let hidden: Vec<f64> = engine.hidden(&tokens, Stop::never())?.into_iter().map(f64::from).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let difference: Vec<f64> = hidden.iter().zip(&exact).map(|(a, b)| a - b).collect();
        println!(
            "{precision}, {length} tokens against 64-bit floats: relative error {:.2e}, cosine 1 - {:.1e}",
            (dot(&difference, &difference) / dot(&exact, &exact)).sqrt(),
            1.0 - dot(&hidden, &exact) / (dot(&hidden, &hidden) * dot(&exact, &exact)).sqrt()
        );
    }
    Ok(())
}

/// What is resident after everything ran, beside what there must be: packed weights, cache, activations.
fn memory(engine: &Engine) {
    const MB: f64 = 1024.0 * 1024.0;
    let Resident { pack, files, anonymous } = Resident::now();
    let (cache, activations) = (engine.cached_bytes() as f64 / MB, engine.activation_bytes() as f64 / MB);
    println!(
        "resident: {pack:.0} MB of the pack file, {anonymous:.0} of no file, {files:.0} of originals and program; at most \
         {:.0} in all; cache {cache:.0}, activations {activations:.0}: {:.2} times what there must be, originals apart",
        memory_mb("VmHWM:"),
        (pack + anonymous) / (pack + cache + activations)
    );
}

fn swap(engine: &mut Engine, directory: &Path) -> Outcome<()> {
    let samples = (1..=3).map(|seed| {
        let adapter = directory.join(format!("adapter-{seed}"));
        random_bundle::write_adapter(&adapter, directory, SHAPE, seed)?;
        let begun = Moment::now();
        engine.swap_adapter(&BundleSource::directory(&adapter))?;
        Ok(begun.spent())
    });
    let spent = median(samples.collect::<Outcome<Vec<_>>>()?);
    println!("adapter of rank 16 swapped: {:.0} ms wall, {:.0} ms CPU", 1e3 * spent.wall_s, 1e3 * spent.cpu_s);
    Ok(())
}

fn run(arguments: &Arguments) -> Outcome<()> {
    random_bundle::write(&arguments.directory, SHAPE)?;
    print!("{}", record::provenance("cargo bench -p tack-bench --bench infer"));
    if let Some(length) = arguments.exact {
        compare_with_exact(arguments, length)?;
    }
    for precision in [PrecisionPolicy::Measured, PrecisionPolicy::Fixed(Precision::Float)] {
        let mut engine = load(arguments, precision, true)?;
        if matches!(engine.pack_source(), PackSource::Written { .. }) {
            drop(engine);
            engine = load(arguments, precision, true)?;
        }
        let begun = Moment::now();
        engine.hidden(&tokens(1, 1, 0), Stop::never())?;
        println!("first decision, one token, checks the pack file: {:.3} s", begun.spent().wall_s);
        let peak = Peak::measure(engine.isa(), 400);
        let float = precision == PrecisionPolicy::Fixed(Precision::Float);
        println!(
            "{}: one core's peak {:.0} Gop/s integer, {:.0} float; {} threads",
            engine.isa(),
            peak.integer / 1e9,
            peak.float / 1e9,
            arguments.options(precision).threads
        );
        println!("{precision:<26} {:>9} {:>9} {:>8} {:>9} {:>9}", "wall ms", "CPU ms", "tok/s", "Gop/s", "of peak");
        let peak = if float { peak.float } else { peak.integer };
        let mut bench = Bench { engine: &mut engine, samples: arguments.samples, peak, turn: 0 };
        let lengths: &[usize] = if arguments.long { &[128, 512, 1024, 2048, 4096] } else { &[64, 128, 512] };
        for &length in lengths {
            bench.row(&format!("cold {length}"), 0, length, 1)?;
        }
        bench.row("cold 128, batch of 4", 0, 128, 4)?;
        if float {
            continue;
        }
        bench.samples = 1;
        let cold = bench.row(&format!("cold {PREFIX}, the prefix"), 0, PREFIX, 1);
        let cold = cold?.cpu_s;
        // The prefix of the rows that follow is turn 0's; one pass computes it.
        bench.engine.clear_cache();
        bench.engine.hidden(&tokens(PREFIX, PREFIX, 0), Stop::never())?;
        bench.engine.pin(&tokens(PREFIX, PREFIX, 0));
        bench.samples = arguments.samples;
        for new in [64, 256, 512] {
            let spent = bench.row(&format!("{new} new on {PREFIX}"), PREFIX, new, 1)?;
            println!(
                "    {:.1} times faster than the prefix and these, cold",
                cold * (1.0 + new as f64 / PREFIX as f64) / spent.cpu_s
            );
        }
        memory(bench.engine);
        swap(&mut engine, &arguments.directory)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let outcome = Arguments::read().and_then(|arguments| {
        if let Some(arguments) = arguments {
            return run(&arguments);
        }
        // `cargo bench` without arguments runs every benchmark; this one needs 3 GB of disk, and is asked for.
        println!("SKIPPED: infer needs a directory for 1.2 GB of random weights and their pack files");
        Ok(())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
