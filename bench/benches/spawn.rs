//! What a sandbox costs, whole: spawn, isolate, run `/bin/true`, take everything down, and have the answer.
//!
//! ```text
//! bench/spawn/install PEERS
//! cargo bench -p tack-bench --bench spawn -- PEERS [ROUNDS]
//! ```
//!
//! As root, since sandboxes with groups are root's. It builds the helper it measures. Rounds are interleaved over all
//! rows, with a gap between rows, so that drift of the machine and what one row leaves to the kernel hit all alike.
//! Every row is checked once before the clock starts; a peer that is missing, or does not work here, is said to be
//! absent and why. `chrt -f 10` before the command keeps other work of the machine out of the figures. With
//! `TACK_BENCH_RECORD=FILE` the raw samples are written.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tack_bench::{Samples, record};
use tack_sandbox_client::protocol::{Cause, End, Stage};
use tack_sandbox_client::{Client, Helper, Run};

/// Samples of each row, unless the command says otherwise.
const ROUNDS: usize = 51;

/// Between two rows: longer than the grace period that the kernel may still be waiting for on behalf of the last.
const GAP: Duration = Duration::from_millis(30);

type Once<'a> = Box<dyn FnMut() -> Result<(), String> + 'a>;

/// One way to have `/bin/true` run.
struct Case<'a> {
    name: &'static str,
    once: Once<'a>,
    samples: Samples,
}

fn main() -> ExitCode {
    // `cargo bench` adds an argument of its own.
    let mut arguments = env::args_os().skip(1).filter(|argument| argument != "--bench");
    let Some(peers) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: cargo bench -p tack-bench --bench spawn -- PEERS [ROUNDS]");
        return ExitCode::from(2);
    };
    let rounds = arguments.next().and_then(|it| it.to_str()?.parse().ok()).unwrap_or(ROUNDS);
    match bench(&peers, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spawn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(peers: &Path, rounds: usize) -> Result<(), String> {
    let client = Client::with(Helper::Installed(build_helper()?));
    let run = Run::new(["/bin/true"], "/");
    let mut stages: [Samples; Stage::COUNT] = Default::default();
    let mut answered = Samples::default();
    let bundle = tempfile::tempdir().map_err(|error| format!("no folder for a bundle: {error}"))?;

    let mut cases = vec![
        Case::new("plain", || status(&mut command("/bin/true"))),
        Case::new("namespaces", in_namespaces),
        Case::new("tack one-shot", || {
            let finished = client.run(&run).map_err(|error| format!("{error:?}"))?;
            let receipt = finished.receipt;
            if receipt.cause != Cause::Exited || receipt.end != Some(End::Exited { status: 0 }) {
                return Err(format!("{:?}, {:?}", receipt.cause, receipt.end));
            }
            for (samples, us) in stages.iter_mut().zip(receipt.times.stage_us) {
                samples.0.push(f64::from(us));
            }
            answered.0.push(receipt.times.set_up_us as f64);
            Ok(())
        }),
    ];
    let mut absent = String::new();
    for (name, program) in [("bubblewrap", "bwrap"), ("nsjail", "nsjail"), ("crun", "crun"), ("isolate", "isolate")] {
        let path = peers.join(program);
        let case = if path.is_file() { peer(name, path, bundle.path()) } else { Err("not installed".to_owned()) };
        match case.and_then(|mut case| (case.once)().map(|()| case)) {
            Ok(case) => cases.push(case),
            // Writing to a `String` does not fail.
            Err(why) => _ = writeln!(absent, "{name:<22} absent: {why}"),
        }
    }
    for case in &mut cases {
        (case.once)().map_err(|error| format!("{}: {error}", case.name))?;
    }
    for _ in 0..rounds {
        for case in &mut cases {
            thread::sleep(GAP);
            let begun = Instant::now();
            (case.once)().map_err(|error| format!("{}: {error}", case.name))?;
            case.samples.0.push(begun.elapsed().as_nanos() as f64 / 1_000.0);
        }
    }

    let provenance = record::provenance(&format!("cargo bench -p tack-bench --bench spawn -- PEERS {rounds}"));
    print!("{provenance}\n{}{absent}", table(&cases));
    let samples: Vec<_> = cases.into_iter().map(|case| (case.name, case.samples)).collect();
    println!("\nwhere one-shot's time goes, by its receipts (us; groups are made beside the mounts)");
    println!("{:<22} {:>8} {:>8}", "stage", "p50", "p10");
    for (stage, samples) in Stage::ALL.iter().zip(&stages) {
        println!("{:<22} {:>8.0} {:>8.0}", format!("{stage:?}"), samples.quantile(0.5), samples.quantile(0.1));
    }
    println!("{:<22} {:>8.0} {:>8.0}", "request to exec", answered.quantile(0.5), answered.quantile(0.1));
    if let Some(path) = env::var_os("TACK_BENCH_RECORD") {
        write(Path::new(&path), &provenance, &samples).map_err(|error| format!("cannot write the record: {error}"))?;
    }
    Ok(())
}

impl<'a> Case<'a> {
    fn new(name: &'static str, once: impl FnMut() -> Result<(), String> + 'a) -> Self {
        Self { name, once: Box::new(once), samples: Samples::default() }
    }
}

fn table(cases: &[Case<'_>]) -> String {
    let mut table =
        format!("{:<22} {:>9} {:>9} {:>8} {:>8} {:>6}\n", "row", "p50 us", "p10 us", "x plain", "at p10", "n");
    let Some(plain) = cases.first() else { return table };
    for case in cases {
        let [p50, p10] = [0.5, 0.1].map(|share| case.samples.quantile(share));
        let [plain_p50, plain_p10] = [0.5, 0.1].map(|share| plain.samples.quantile(share));
        // Writing to a `String` does not fail.
        _ = writeln!(
            table,
            "{:<22} {p50:>9.0} {p10:>9.0} {:>8.2} {:>8.2} {:>6}",
            case.name,
            p50 / plain_p50,
            p10 / plain_p10,
            case.samples.0.len()
        );
    }
    table
}

fn write(path: &Path, provenance: &str, rows: &[(&'static str, Samples)]) -> io::Result<()> {
    let mut text = provenance.lines().fold(String::new(), |text, line| text + "# " + line + "\n");
    text.push_str("row,sample,us\n");
    for (name, samples) in rows {
        for (sample, us) in samples.0.iter().enumerate() {
            _ = writeln!(text, "{name},{sample},{us:.1}");
        }
    }
    fs::write(path, text)
}

/// The helper of this very tree, optimized; where it is.
fn build_helper() -> Result<PathBuf, String> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package", "tack-sandboxd"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    if !built.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return Err(format!("the helper cannot be built: {built:?}"));
    }
    // This program is `release/deps/spawn-…`.
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let helper = own.ancestors().nth(2).map(|folder| folder.join(Client::HELPER)).filter(|path| path.is_file());
    helper.ok_or_else(|| format!("no helper near `{}`", own.display()))
}

fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn status(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{} ended with {status}", command.get_program().display())),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

/// The floor of what isolates: six fresh namespaces (all but the user's, which no thread can make), then a plain spawn
/// inside. The thread that made them ends with them.
fn in_namespaces() -> Result<(), String> {
    let six = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    let isolated =
        move || unshare(six).map_err(|errno| errno.to_string()).and_then(|()| status(&mut command("/bin/true")));
    thread::spawn(isolated).join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))
}

/// A peer as its own manual would have it used for this: host root read-only, own `/tmp`, `/proc`, all namespaces.
fn peer<'a>(name: &'static str, path: PathBuf, bundle: &Path) -> Result<Case<'a>, String> {
    let mut command = command(&path);
    match name {
        "bubblewrap" => {
            command.args(["--unshare-all", "--new-session", "--die-with-parent", "--ro-bind", "/", "/"]);
            command.args(["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "/bin/true"]);
        }
        "nsjail" => _ = command.args(["-q", "-Mo", "--chroot", "/", "-T", "/tmp", "--", "/bin/true"]),
        "crun" => return crun(path, bundle),
        // It is told of a box once and then runs in it.
        _ => {
            status(command.arg("--init"))?;
            command = self::command(path);
            command.args(["--run", "--", "/bin/true"]);
        }
    }
    Ok(Case::new(name, move || status(&mut command)))
}

/// crun refuses a hierarchy of both versions, so it is shown a unified one alone, in a mount namespace that its thread
/// makes once; making it is not timed.
fn crun<'a>(path: PathBuf, bundle: &Path) -> Result<Case<'a>, String> {
    status(command(&path).arg("spec").current_dir(bundle))?;
    let file = bundle.join("config.json");
    let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let mut spec: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    spec["process"]["args"] = serde_json::json!(["/bin/true"]);
    spec["process"]["terminal"] = false.into();
    spec["root"] = serde_json::json!({ "path": "/", "readonly": true });
    fs::write(&file, spec.to_string()).map_err(|error| error.to_string())?;
    let (ask, asked) = std::sync::mpsc::sync_channel::<()>(0);
    let (answer, answered) = std::sync::mpsc::sync_channel(0);
    let bundle = bundle.to_owned();
    thread::spawn(move || {
        let none = None::<&str>;
        let shown = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| mount(Some("cgroup2"), "/sys/fs/cgroup", Some("cgroup2"), MsFlags::empty(), none));
        let mut count = 0_u32;
        while asked.recv().is_ok() {
            count += 1;
            let container = format!("tack-bench-{}-{count}", std::process::id());
            let mut command = command(&path);
            command.args(["--cgroup-manager=cgroupfs", "run", "--bundle"]).arg(&bundle).arg(container);
            let result = shown.map_err(|errno| errno.to_string()).and_then(|()| status(&mut command));
            if answer.send(result).is_err() {
                return;
            }
        }
    });
    Ok(Case::new("crun", move || {
        ask.send(()).map_err(|error| error.to_string())?;
        answered.recv().unwrap_or_else(|error| Err(error.to_string()))
    }))
}
