//! `tack sandbox run` and `tack sandbox check`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::{env, io};

use tack_sandbox_client::protocol::{Cause, Layer, Reason, SetUpFailure, Stage, Stream};
use tack_sandbox_client::{Access, Client, Egress, Finished, Helper, Mount, Piece, Receipt, Run, Source, Way};
use tack_sandboxd::check::probe::PROBE_TARGET;
use tack_sandboxd::check::{self, ProbeCommand, Report};

use crate::arguments::{CONFIGURED, SandboxCheck, SandboxRun};
use crate::exit::{self, Failure};
use crate::terminal;

/// The hidden argument that makes this command the one-shot sandbox helper.
pub(crate) const HELPER_ARGUMENT: &str = "__sandboxd-once";

/// The hidden argument that makes this command the probe of `tack sandbox check`.
pub(crate) const PROBE_ARGUMENT: &str = "__sandbox-probe";

/// The hidden argument that makes this command the mirror of a sandbox.
pub(crate) const MIRROR_ARGUMENT: &str = "__sandbox-mirror";

/// The name of the memory controller's line in `sandbox check`.
const MEMORY_OFFER: &str = "memory_controller";

/// A client of the installed helper, else of this very command.
pub(crate) fn client() -> Client {
    // The file that is running, even if it was replaced or deleted since it was started.
    let program = PathBuf::from("/proc/self/exe");
    Client::find(Some(Helper::Own { program, argument: HELPER_ARGUMENT.into() }))
}

/// Runs one command; ends with its status, or with 125 where the sandbox itself failed.
pub(crate) fn run(arguments: &SandboxRun) -> ExitCode {
    let outcome = request(arguments).and_then(|run| {
        let mut output = Output::default();
        let finished = client()
            .with_mirror(arguments.mirror.iter().filter(|it| *it != CONFIGURED).cloned())
            .run_live(&run, &mut |piece| output.pass_on(piece))?;
        Ok(conclude(&finished, &run, arguments, output.lost))
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            terminal::failure(&Failure { code: exit::SANDBOX_FAILED, error });
            ExitCode::from(exit::SANDBOX_FAILED)
        }
    }
}

type Error = Box<dyn std::error::Error>;

/// Why a run cannot be asked for as the command line says.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot show `{}` to the command", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("this host cannot limit memory, which `--memory` asks for: {missing}")]
    Memory { missing: String },
    #[error("`--time {0}` is not a number of seconds above 0 and at most 1,000,000")]
    Time(f64),
}

fn request(arguments: &SandboxRun) -> Result<Run, Error> {
    let mut mounts = Vec::new();
    for (paths, access) in
        [(&arguments.rw, Access::ReadWrite), (&arguments.scratch, Access::Scratch), (&arguments.ro, Access::ReadOnly)]
    {
        for path in paths {
            let (source, target) = opened(path)?;
            mounts.push(Mount { source, target, access });
        }
    }
    let directory = mounts.first().map_or(PathBuf::from("/tmp"), |mount| mount.target.clone());
    let mut run = Run::new(arguments.command.iter().map(OsString::clone), directory);
    run.mounts = mounts;
    // Output is passed on as it comes.
    run.limits.kept_bytes = 0;
    if !arguments.mirror.is_empty() {
        run.egress = Egress::Mirror;
    }
    if let Some(seconds) = arguments.time {
        run.limits.wall_us = wall_us(seconds)?;
        // The wall limit is the one that was asked for; two cores' worth of it never ends a run earlier.
        run.limits.cpu_us = run.limits.wall_us.saturating_mul(1_024);
    }
    if let Some(bytes) = arguments.memory {
        // A limit that was asked for holds, or nothing runs. What the daemon's host offers is not this process' to see.
        let by_daemon = matches!(client().way(), Some(Way::Daemon(_)));
        let offers = if by_daemon { Vec::new() } else { check::offers() };
        let missing =
            offers.iter().find(|offer| offer.name == MEMORY_OFFER).and_then(|offer| offer.found.as_ref().err());
        if let Some(missing) = missing {
            return Err(RunError::Memory { missing: missing.clone() }.into());
        }
        run.limits.memory_bytes = bytes;
    }
    Ok(run)
}

/// The directory, opened once, and its name without links: what is opened here is what the command sees, whatever
/// happens to the name. A path that goes through a link is said to, since whoever may write there chose what is shown.
fn opened(path: &Path) -> Result<(Source, PathBuf), Error> {
    let failed = |source| RunError::Directory { path: path.to_owned(), source };
    let source = Source::open(path)?;
    let resolved = source.name().map_err(failed)?;
    let named = env::current_dir().map_err(failed)?.join(path);
    let goes_up = named.components().any(|it| it == Component::ParentDir);
    if !goes_up && named.components().ne(resolved.components()) {
        terminal::warning(&format!("`{}` goes through a link: `{}` is shown", path.display(), resolved.display()));
    }
    Ok((source, resolved))
}

fn wall_us(seconds: f64) -> Result<u64, RunError> {
    if seconds > 0.0 && seconds <= 1e6 {
        // In range by the test above; a fraction of a microsecond is dropped.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let micros = (seconds * 1e6) as u64;
        Ok(micros.max(1))
    } else {
        Err(RunError::Time(seconds))
    }
}

/// The limits that a host may be unable to enforce, so that a person should hear of it.
const LIMITS: [Layer; 4] = [Layer::MemoryLimit, Layer::SwapLimit, Layer::ProcessLimit, Layer::CpuLimit];

/// The payload's output on its way to this command's.
#[derive(Default)]
struct Output {
    /// Some of it could not be written, for another reason than that nobody reads.
    lost: bool,
}

impl Output {
    fn pass_on(&mut self, piece: Piece<'_>) {
        let name = if piece.stream == Stream::Stdout { "standard output" } else { "standard error" };
        if piece.skipped > 0 {
            terminal::warning(&format!("{} bytes of {name} were left out: it is read too slowly", piece.skipped));
        }
        let written = match piece.stream {
            Stream::Stdout => write(piece.bytes, &mut io::stdout().lock()),
            Stream::Stderr | Stream::Report => write(piece.bytes, &mut io::stderr().lock()),
        };
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
            && !self.lost
        {
            terminal::warning(&format!("cannot pass on the command's {name}: {error}"));
            self.lost = true;
        }
    }
}

fn write(bytes: &[u8], into: &mut dyn io::Write) -> io::Result<()> {
    into.write_all(bytes)?;
    into.flush()
}

/// Passes the payload's status on, and says what ended it where it did not end by itself.
fn conclude(finished: &Finished, run: &Run, arguments: &SandboxRun, lost: bool) -> u8 {
    let receipt = &finished.receipt;
    if let Some(text) = explain(receipt, run) {
        terminal::warning(&text);
    }
    if arguments.json {
        match serde_json::to_string(receipt) {
            Ok(json) => terminal::record(&json),
            Err(error) => terminal::warning(&format!("the receipt cannot be written as JSON: {error}")),
        }
    }
    for (layer, reason) in receipt.layers.inactive().filter(|(layer, _)| LIMITS.contains(layer)) {
        if !matches!(reason, Reason::NotReached | Reason::NotAsked) {
            terminal::warning(&format!("{layer} did not hold: {reason}"));
        }
    }
    if lost { exit::SANDBOX_FAILED } else { receipt.shell_status().unwrap_or(exit::SANDBOX_FAILED) }
}

/// Why a launch failed, in the words of what was asked for.
fn not_run(failure: SetUpFailure, run: &Run) -> String {
    let error = io::Error::from_raw_os_error(failure.errno);
    let stage = failure.stage;
    let mount = failure.mount.and_then(|index| run.mounts.get(usize::from(index)));
    match (stage, mount) {
        (_, Some(mount)) => format!(
            "the command did not run: `{}` cannot be shown to it (step `{stage}`: {error}). Give a directory of its own: \
             not one of the system's, not a device, and without links in its path",
            mount.target.display()
        ),
        (Stage::Directory, None) => format!(
            "the command did not run: it cannot start in `{}`: {error}. Give a directory first, then files",
            run.directory.display()
        ),
        (_, None) => format!("the command did not run: step `{stage}` failed: {error}"),
    }
}

/// What a person should hear about the end of a run; nothing where the payload ended by itself.
fn explain(receipt: &Receipt, run: &Run) -> Option<String> {
    match receipt.cause {
        Cause::Exited | Cause::Signalled => None,
        Cause::Idle => Some("it wrote nothing for as long as it may; the whole process tree was killed".to_owned()),
        Cause::SeccompKill => Some("it made a system call of a foreign kind, and the kernel killed it".to_owned()),
        Cause::Wall => Some("the wall limit passed; the whole process tree was killed".to_owned()),
        Cause::Cpu => Some("the CPU limit passed; the whole process tree was killed".to_owned()),
        Cause::OutOfMemory => Some("the memory limit was reached; the kernel killed the command".to_owned()),
        Cause::OutputLimit(stream) => Some(format!(
            "{stream} passed its limit after {} bytes; the whole process tree was killed",
            receipt.stream(stream).bytes_total
        )),
        Cause::Cancelled => Some("the run was cancelled".to_owned()),
        Cause::Killed => {
            Some("the command was killed from outside the sandbox, or for want of the host's memory".to_owned())
        }
        Cause::SetUp(failure) => Some(not_run(failure, run)),
        Cause::CommandNotFound => Some("there is no such command inside the sandbox".to_owned()),
        Cause::CommandNotExecutable { errno } => {
            Some(format!("the command cannot be executed: {}", io::Error::from_raw_os_error(errno)))
        }
    }
}

/// Says what this kernel offers, what is missing and what that means; then tries each door, inside and outside.
pub(crate) fn check(arguments: &SandboxCheck) -> Result<u8, Failure> {
    let program = env::current_exe().map_err(Failure::unknown)?;
    let probe = ProbeCommand { program: &program, argument: PROBE_ARGUMENT };
    let report = check::report(&probe, |argv| probe_inside(&program, argv).map_err(|error| chain(&*error)));
    if arguments.json {
        terminal::answer_json(&json(&report))?;
    } else {
        let text = for_people(&report, arguments.policy).map_err(Failure::unknown)?;
        terminal::answer_people(&text).map_err(Failure::unknown)?;
    }
    // A host that offers too little could not answer; a door that stands open is a no.
    let missing = report.offers.iter().any(|offer| offer.required && offer.found.is_err());
    Ok(match (report.holds(), missing || report.probe.is_err()) {
        (true, _) => exit::DONE,
        (false, true) => exit::UNKNOWN,
        (false, false) => exit::NO,
    })
}

fn probe_inside(program: &Path, argv: Vec<String>) -> Result<String, Error> {
    let mut run = Run::new(argv, "/");
    let mount = Mount { source: program.into(), target: PROBE_TARGET.into(), access: Access::ReadOnly };
    run.mounts.push(mount);
    let finished = client().run(&run)?;
    match finished.receipt.exit_status() {
        Some(0) => Ok(String::from_utf8_lossy(&finished.stdout.head).into_owned()),
        _ => Err(ProbeError(finished.receipt.cause).into()),
    }
}

/// The probe did not get to its end inside.
#[derive(Debug, thiserror::Error)]
#[error("the probe did not get to its end in the sandbox: {0}")]
struct ProbeError(Cause);

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn json(report: &Report) -> serde_json::Value {
    let offers = report.offers.iter().map(|offer| {
        serde_json::json!({
            "name": offer.name, "found": offer.found.as_ref().ok(), "missing": offer.found.as_ref().err(),
            "required": offer.required, "meaning": offer.meaning,
        })
    });
    let probe = report.probe.as_ref().map(|lines| {
        lines.iter().map(|line| {
            serde_json::json!({
                "attempt": line.name, "expected": line.expected.to_string(), "inside": line.inside.to_string(),
                "outside": line.outside.to_string(), "holds": line.holds(), "has_control": line.has_control(),
            })
        })
    });
    serde_json::json!({
        "holds": report.holds(),
        "offers": offers.collect::<Vec<_>>(),
        "probe": probe.as_ref().ok().map(|lines| lines.clone().collect::<Vec<_>>()),
        "probe_failed": probe.as_ref().err(),
    })
}

fn for_people(report: &Report, with_policy: bool) -> Result<String, std::fmt::Error> {
    let way = match client().way() {
        Some(Way::Daemon(socket)) => format!("the daemon at `{}`", socket.display()),
        Some(Way::OneShot(Helper::Installed(program))) => format!("the helper `{}`, one a run", program.display()),
        Some(Way::OneShot(Helper::Own { .. })) => "this command itself, one process a run".to_owned(),
        None => "nobody".to_owned(),
    };
    let mut text = format!("Sandboxes are made by {way}.\nWhat this host offers:\n");
    for offer in &report.offers {
        let (mark, found) = match &offer.found {
            Ok(found) => ("ok     ", found),
            Err(missing) if offer.required => ("MISSING", missing),
            Err(missing) => ("without", missing),
        };
        writeln!(text, "  {mark} {:<20} {found} ({})", offer.name, offer.meaning)?;
    }
    match &report.probe {
        Err(error) => writeln!(text, "\nThe probe did not run: {error}")?,
        Ok(lines) => {
            writeln!(text, "\nWhat was tried, in a sandbox and beside it:")?;
            for line in lines {
                let mark = if line.holds() { "ok  " } else { "OPEN" };
                write!(text, "  {mark} {:<52} inside {:<12} outside {}", line.name, line.inside, line.outside)?;
                if line.holds() { writeln!(text)? } else { writeln!(text, " (expected {})", line.expected)? }
            }
            let held = lines.iter().filter(|line| line.holds()).count();
            let proven = lines.iter().filter(|line| line.has_control()).count();
            writeln!(text, "\n{held} of {} lines hold; {proven} of them have a control that succeeds.", lines.len())?;
        }
    }
    if with_policy {
        writeln!(text, "\nThe sandbox policy:")?;
        for line in check::policy() {
            writeln!(text, "  {}: {} ({})", line.part, line.subjects.join(" "), line.reason)?;
        }
    }
    Ok(text)
}
