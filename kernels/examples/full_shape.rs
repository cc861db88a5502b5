//! Runs a bundle of Qwen3-0.6B's shape and compares it with what torch recorded: see `tests/golden/full_shape.py`.
//!
//! ```text
//! full_shape FOLDER [THREADS]
//! ```

use std::error::Error;
use std::time::Instant;
use std::{env, fs};

use tack_kernels::{Adapter, BundleSource, CpuNetwork, Network, Options, Stop};

/// Passes of 512 tokens that are timed for each way to use the adapter.
const TIMED: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("usage: full_shape FOLDER [THREADS]")?;
    let threads = match arguments.next() {
        Some(threads) => threads.parse()?,
        None => Options::default().threads,
    };
    let recorded = fs::read(format!("{folder}/expected.safetensors"))?;
    let expected = safetensors::SafeTensors::deserialize(&recorded)?;

    for (adapter, weights) in [(Adapter::Folded, "adapted"), (Adapter::Apart, "adapted"), (Adapter::None, "base")] {
        let clock = Clock::start()?;
        let mut network: CpuNetwork =
            CpuNetwork::load(&BundleSource::directory(&folder), Options { adapter, threads })?;
        println!("{adapter:?}, {threads} threads, {}: loaded in {}", network.isa(), clock.stop()?);
        let vocab_size = u32::try_from(network.config().vocab_size)?;
        for length in [1, 128, 512] {
            let tokens: Vec<u32> = (0..length).map(|i| (7919 * i + 13) % vocab_size).collect();
            let hidden = network.hidden(&tokens, Stop::never())?;
            let error = relative_error(&hidden, expected.tensor(&format!("{weights}.f32.{length}.hidden"))?.data());
            println!("  {length} tokens: relative L2 error of the hidden state {error:.2e}");
        }
        let tokens: Vec<u32> = (0..512).map(|i| (7919 * i + 13) % vocab_size).collect();
        for _ in 0..TIMED {
            let clock = Clock::start()?;
            network.forward(&tokens, Stop::never())?;
            println!("  512 tokens: {}", clock.stop()?);
        }
    }
    print!("peak memory, mapped weights included: {}", status_line("VmHWM:")?);
    let load = fs::read_to_string("/proc/loadavg")?;
    println!("load average {load}");
    Ok(())
}

/// `|found - expected| / |expected|`, with `expected` as little-endian 32-bit floats.
fn relative_error(found: &[f32], expected: &[u8]) -> f64 {
    let expected = expected.as_chunks().0.iter().map(|word| f64::from(f32::from_le_bytes(*word)));
    let pairs = found.iter().map(|&found| f64::from(found)).zip(expected);
    let (difference, size) = pairs.fold((0.0, 0.0), |(d, s), (f, e)| (d + (f - e) * (f - e), s + e * e));
    (difference / size).sqrt()
}

/// Wall time and the processor time of all threads of this process.
struct Clock {
    wall: Instant,
    ticks: u64,
}

impl Clock {
    fn start() -> Result<Self, Box<dyn Error>> {
        Ok(Self { wall: Instant::now(), ticks: ticks()? })
    }

    fn stop(self) -> Result<String, Box<dyn Error>> {
        // Linux counts in hundredths of a second (`USER_HZ`), whatever its own clock.
        let cpu = (ticks()? - self.ticks) as f64 / 100.0;
        Ok(format!("{:.2} s wall, {cpu:.2} s CPU", self.wall.elapsed().as_secs_f64()))
    }
}

/// User and system ticks of this process, ended threads included: fields 14 and 15 of `proc_pid_stat(5)`.
fn ticks() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, after_name) = stat.rsplit_once(')').ok_or("a stat line has a name in parentheses")?;
    let fields = after_name.split_ascii_whitespace().skip(11).take(2);
    Ok(fields.map(str::parse::<u64>).sum::<Result<_, _>>()?)
}

fn status_line(key: &str) -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)).ok_or("no such line")?;
    Ok(format!("{}\n", line.trim()))
}
