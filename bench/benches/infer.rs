//! `infer DIRECTORY [LENGTH ...]`: the forward pass at the full shape on this machine, beside its instruction peak.
//!
//! The directory gets a bundle of random weights if it has none. CPU seconds are the process's, so that a figure holds on a
//! machine with other work.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use tack_bench::random_bundle::{self, Shape};
use tack_kernels::engine::Peak;
use tack_kernels::{Adapter, BundleSource, Engine, EngineOptions, Network, Precision, Stop};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn cpu_seconds() -> f64 {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(f64::NAN, |t| t.tv_sec() as f64 + t.tv_nsec() as f64 * 1e-9)
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("usage: infer DIRECTORY [LENGTH ...]")?);
    let lengths = arguments.map(|length| length.parse::<usize>()).collect::<Result<Vec<_>, _>>()?;
    let shape = Shape::QWEN3_0_6B;
    random_bundle::write(&directory, shape)?;
    let threads: usize = std::env::var("THREADS").ok().and_then(|x| x.parse().ok()).unwrap_or(1);
    let reps: usize = std::env::var("REPS").ok().and_then(|x| x.parse().ok()).unwrap_or(3);
    let isa = std::env::var("ISA").ok().map(|x| x.parse()).transpose()?;

    if let Some(length) = std::env::var("REFERENCE").ok().and_then(|x| x.parse::<u32>().ok()) {
        let source = BundleSource::directory(&directory);
        let tokens: Vec<u32> = (0..length).map(|i| (i * 7919 + 13) % 150_000).collect();
        let exact = tack_kernels::reference::Reference::load::<tack_kernels::ActionHeads>(&source, false)?.hidden(&tokens)?;
        let norm = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
        for precision in [tack_kernels::PrecisionPolicy::Measured, tack_kernels::PrecisionPolicy::Fixed(Precision::STANDARD)] {
            let options = EngineOptions { adapter: Adapter::None, isa, precision, ..EngineOptions::default() };
            let mut engine: Engine = Engine::load(&source, options)?;
            let hidden = engine.hidden(&tokens, Stop::never())?;
            let error = hidden.iter().zip(&exact).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
            let finer = engine.precisions().iter().flatten().filter(|&&p| p != Precision::STANDARD).count();
            println!("{precision:?}: relative error {:.2e}, {finer} matrices above standard, {:.2} s CPU so far", error / norm, cpu_seconds());
        }
        return Ok(());
    }
    for precision in [Precision::STANDARD, Precision::Float] {
        let options = EngineOptions {
            adapter: Adapter::None,
            threads: NonZeroUsize::new(threads).ok_or("no threads")?,
            isa,
            precision: tack_kernels::PrecisionPolicy::Fixed(precision),
        };
        let start = (Instant::now(), cpu_seconds());
        let mut engine: Engine = Engine::load(&BundleSource::directory(&directory), options)?;
        println!("load {:.2} s wall, {:.2} s CPU", start.0.elapsed().as_secs_f64(), cpu_seconds() - start.1);
        let peak = Peak::measure(engine.isa(), 200);
        println!("{} peak of one core: {:.0} Gop/s integer, {:.0} float", engine.isa(), peak.integer / 1e9, peak.float / 1e9);
        for &length in &lengths {
            let tokens: Vec<u32> = (0..length as u32).map(|i| (i * 7919 + 13) % 150_000).collect();
            for _ in 0..reps {
                let start = (Instant::now(), cpu_seconds());
                let hidden = engine.hidden(&tokens, Stop::never())?;
                let (wall, cpu) = (start.0.elapsed().as_secs_f64(), cpu_seconds() - start.1);
                let rate = shape.operations(length, 0) / cpu;
                let of = if precision == Precision::Float { peak.float } else { peak.integer };
                println!(
                    "{precision:?} S={length}: {wall:.3} s wall, {cpu:.3} s CPU, {:.0} Gop/s a core, {:.0} % of peak; h[0] {}",
                    rate / 1e9,
                    100.0 * rate / of,
                    hidden[0]
                );
            }
        }
    }
    Ok(())
}
