//! The command line, as types.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tack_controller::engine::{Isa, Precision, PrecisionPolicy};
use tack_sandbox_client::protocol::{Destination, DestinationError};

/// Decides what should happen next to a candidate patch, and carries it out in a sandbox.
///
/// Exit codes: 0 done; 1 the answer is no; 2 bad input; 3 the environment could not answer. `tack sandbox run` passes
/// the payload's own status through and uses 125 for its own errors.
#[derive(Debug, Parser)]
#[command(name = "tack", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the repair lab: three candidates for one defect, judged layer by layer in fresh sandboxes.
    Lab(Lab),
    /// Decide what should happen next to the candidate in a file that an agent wrote.
    Decide(Decide),
    /// Say which of a repository's own tests the two test actions would run for a patch; runs nothing.
    Menu(Menu),
    /// Run one command in a sandbox, or say what this kernel offers.
    Sandbox {
        #[command(subcommand)]
        command: SandboxCommand,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// Judge the hostile candidates too, each with the end it must come to.
    #[arg(long)]
    pub(crate) hostile: bool,
    /// Judge these candidates alone. May be given again.
    #[arg(long, value_name = "NAME", conflicts_with = "hostile")]
    pub(crate) candidate: Vec<String>,
    /// Let a patch change any path, to see what the other layers catch.
    #[arg(long)]
    pub(crate) no_path_rule: bool,
    /// Print one receipt a candidate, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Decide {
    /// A state in tack's own JSON, or a recording of a known agent; `-` reads standard input.
    pub(crate) file: PathBuf,
    /// The model bundle; without it the small model that is part of this command.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// How much success one unit of cost is worth; without it the bundle's.
    #[arg(long, value_name = "X")]
    pub(crate) lambda: Option<f32>,
    /// Decide at this step of the recording (counted from 0) instead of after the last edit.
    #[arg(long, value_name = "STEP")]
    pub(crate) at: Option<u32>,
    /// Which row of a file that holds several.
    #[arg(long, value_name = "ID")]
    pub(crate) instance: Option<String>,
    /// The candidate's patch at that step, where the recording does not hold it.
    #[arg(long, value_name = "FILE")]
    pub(crate) patch: Option<PathBuf>,
    /// The public-test menu; without it the two test actions are unavailable.
    #[arg(long, value_name = "FILE")]
    pub(crate) menu: Option<PathBuf>,
    /// The issue text, or a task row that holds it, for recordings that hold none.
    #[arg(long, value_name = "FILE")]
    pub(crate) issue: Option<PathBuf>,
    /// Hold weights and inputs of the network as: `auto` (what the bundle's lambda was chosen for, else 12-bit integers in
    /// large networks), `exact` (32-bit floats), `integer` (12 bits and wider, by measured error).
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = precision)]
    pub(crate) precision: PrecisionPolicy,
    /// Use these instructions of the processor (scalar, neon, avx2, avx-vnni, avx512, avx512-vnni) instead of the fastest;
    /// no result depends on it. Also from the variable `TACK_CPU_ISA`.
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<Isa>,
    /// Keep packed weights, 2 bytes a weight, in this directory instead of beside the bundle or, where that cannot be
    /// written, in `$XDG_CACHE_HOME/tack`.
    #[arg(long, value_name = "DIR", conflicts_with = "no_pack")]
    pub(crate) pack_dir: Option<PathBuf>,
    /// Neither read nor write packed weights: each start packs them anew.
    #[arg(long)]
    pub(crate) no_pack: bool,
    /// Answer within this many milliseconds: with a decision, or with a fallback that says it is one.
    #[arg(long, value_name = "MS")]
    pub(crate) deadline: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Menu {
    /// The repository as it was before the patch.
    #[arg(value_name = "REPO")]
    pub(crate) repository: PathBuf,
    /// The patch; `-` reads standard input. Only its file names are looked at.
    #[arg(long, value_name = "FILE")]
    pub(crate) patch: PathBuf,
    /// Print JSON, as `tack decide --menu` reads it.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Run one command in a fresh sandbox and end with its status.
    Run(SandboxRun),
    /// Say what this kernel offers, what is missing, and what that means; then try each door.
    Check(SandboxCheck),
}

#[derive(Debug, Args)]
pub(crate) struct SandboxRun {
    /// A directory that the command may change, at the same path; it starts there. May be given again.
    #[arg(long, value_name = "DIR")]
    pub(crate) rw: Vec<PathBuf>,
    /// A directory that the command may read, at the same path. May be given again.
    #[arg(long, value_name = "DIR")]
    pub(crate) ro: Vec<PathBuf>,
    /// Let the command reach this host and port through a proxy on its loopback, and nothing else: `HOST:PORT`, with
    /// `=private` where the name may mean an address of a private network, or `=ADDRESS` where it means that address
    /// alone. With a sandbox daemon it is root who says so, and the word here is `configured`. What went through is in the receipt. May be given again.
    #[arg(long, value_name = "HOST:PORT", value_parser = destination)]
    pub(crate) mirror: Vec<String>,
    /// A directory that the command may change, at the same path, and that is not changed by it: what it writes is gone
    /// when it ends. May be given again.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Vec<PathBuf>,
    /// Wall-clock limit in seconds, after which the whole process tree is killed.
    #[arg(long, value_name = "S")]
    pub(crate) time: Option<f64>,
    /// Memory limit: bytes, or a number with K, M or G.
    #[arg(long, value_name = "M", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// Print the receipt as JSON on standard error when the command has ended.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SandboxCheck {
    /// Print the sandbox policy too: every call and path with the reason for it.
    #[arg(long, conflicts_with = "json")]
    pub(crate) policy: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// In place of a destination: what the sandbox daemon's configuration lists.
pub(crate) const CONFIGURED: &str = "configured";

/// A destination of a mirror, as it was written.
fn destination(text: &str) -> Result<String, DestinationError> {
    if text == CONFIGURED { Ok(text.to_owned()) } else { Destination::parse(text).map(|_| text.to_owned()) }
}

/// Reads `268435456`, `256M`, `1G`.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number of bytes, such as 268435456, 256M or 1G")?;
    number.checked_mul(unit).filter(|&it| it > 0).ok_or_else(|| "out of range".to_owned())
}

fn precision(name: &str) -> Result<PrecisionPolicy, String> {
    match name {
        "auto" => Ok(PrecisionPolicy::Worthwhile),
        "exact" => Ok(PrecisionPolicy::Fixed(Precision::Float)),
        "integer" => Ok(PrecisionPolicy::Measured),
        _ => Err("expected auto, exact or integer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes() {
        let cases = [("1", Some(1)), ("2K", Some(2048)), ("256m", Some(268_435_456)), ("1G", Some(1 << 30))];
        let bad = ["", "K", "-1", "1.5M", "0", "99999999999999999999", "18446744073709551615G", "1Mé", "é"];
        for (text, expected) in cases.into_iter().chain(bad.map(|it| (it, None))) {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
