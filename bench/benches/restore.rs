//! A patch onto a repository on disk, to the digest of the tree after it, against git.
//!
//! `cargo bench -p tack-bench --bench restore -- DIRECTORY` prints the table; with `TACK_BENCH_RECORD=FILE` it writes
//! the raw samples too. `DIRECTORY` is a source tree such as an unpacked Django; without it this checkout's own is
//! taken. The patch adds a line to twenty files spread over the tree. Ours reads and verifies those files and digests
//! the whole tree; the peer is `git apply --cached` and `git write-tree` on a repository of the same files, two
//! processes with their index in the page cache. Fails if the bound is broken.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use std::{env, fs};

use tack_bench::{Row, Samples, record};
use tack_executor::restore::checkout::Checkout;
use tack_executor::restore::patch::{Patch, write};
use tack_executor::restore::tree::{Base, Changes, Mode};

const SAMPLES: usize = 31;
/// Files that the patch changes.
const CHANGED: usize = 20;
/// What a first application may cost, the digest of the tree included.
const BOUND_NS: f64 = 50e6;

fn main() -> ExitCode {
    match rows() {
        Ok((provenance, rows)) => {
            print!("{provenance}{}", record::table(&rows));
            if let Some(path) = env::var_os("TACK_BENCH_RECORD").map(PathBuf::from)
                && let Err(error) = record::write(&path, &provenance, &rows)
            {
                eprintln!("cannot write `{}`: {error}", path.display());
                return ExitCode::FAILURE;
            }
            if rows.iter().all(Row::keeps_bound) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn rows() -> Result<(String, Vec<Row>), String> {
    let here = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let source = env::args_os().skip(1).find(|it| !it.to_string_lossy().starts_with("--")).map_or(here, PathBuf::from);
    let scratch = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let root = scratch.path().join("tree");
    // Only what a tree holds is copied: build products of this checkout are not.
    let tracked =
        Command::new("git").args(["-C"]).arg(&source).args(["ls-files", "-z"]).output().map_err(|it| it.to_string())?;
    if tracked.status.success() {
        for name in tracked.stdout.split(|it| *it == 0).filter(|it| !it.is_empty()) {
            let name = String::from_utf8_lossy(name);
            let to = root.join(name.as_ref());
            fs::create_dir_all(to.parent().unwrap_or(&root)).map_err(|it| it.to_string())?;
            fs::copy(source.join(name.as_ref()), to).map_err(|error| format!("{name}: {error}"))?;
        }
    } else {
        run(Command::new("cp").arg("-a").arg(&source).arg(&root), b"")?;
    }

    let mut read =
        Row { name: "read and digest a tree", ours: Samples::default(), peer: Samples::default(), bound_ns: None };
    let mut apply =
        Row { name: "apply and digest", ours: Samples::default(), peer: Samples::default(), bound_ns: Some(BOUND_NS) };
    let (ns, checkout) = timed(|| Checkout::read(&root));
    let checkout = checkout.map_err(|error| error.to_string())?;
    read.ours.0.push(ns);
    let patch = patch(&checkout)?;
    git(&root, &["init", "--quiet", "."], b"")?;
    let (ns, added) = timed(|| git(&root, &["add", "--all", "--force"], b""));
    added?;
    read.peer.0.push(ns);
    for _ in 0..SAMPLES {
        let (ns, digest) = timed(|| {
            let changes = Patch::parse(&patch).and_then(|it| it.apply(&checkout)).map_err(|error| error.to_string())?;
            Ok::<_, String>(checkout.listing().digest_with(&changes))
        });
        digest?;
        apply.ours.0.push(ns);
        let (ns, applied) = timed(|| {
            git(&root, &["apply", "--cached", "-"], &patch)?;
            git(&root, &["write-tree"], b"")
        });
        applied?;
        apply.peer.0.push(ns);
        git(&root, &["apply", "--cached", "--reverse", "-"], &patch)?;
        let (ns, verified) = timed(|| checkout.verify());
        verified.map_err(|error| error.to_string())?;
        read.ours.0.push(ns);
    }
    let files = checkout.listing().entries().count();
    let bytes: u64 = checkout.listing().entries().map(|(_, it)| it.bytes).sum();
    Ok((
        format!("{files} files, {} MiB, a patch of {CHANGED} files and {} bytes\n", bytes >> 20, patch.len()),
        vec![read, apply],
    ))
}

/// A line more in each of some files of text.
fn patch(checkout: &Checkout) -> Result<Vec<u8>, String> {
    let all: Vec<_> =
        checkout.listing().entries().filter(|(_, it)| it.mode != Mode::Symlink && it.bytes > 100).collect();
    let mut changes = Changes::new();
    for (path, _) in all.iter().step_by((all.len() / CHANGED / 2).max(1)) {
        let file = checkout.read(path).map_err(|error| error.to_string())?;
        if let Some(mut file) = file.map(std::borrow::Cow::into_owned).filter(|it| !it.bytes.contains(&0)) {
            let middle = file.bytes.len() / 2;
            let at = file.bytes[middle..].iter().position(|it| *it == b'\n').map_or(0, |it| middle + it + 1);
            file.bytes.splice(at..at, b"a line more\n".iter().copied());
            changes.insert((*path).clone(), Some(file));
        }
        if changes.len() == CHANGED {
            break;
        }
    }
    write(checkout, &changes).map_err(|error| error.to_string())
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = work();
    (began.elapsed().as_nanos() as f64, done)
}

fn git(directory: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    run(Command::new("git").current_dir(directory).args(arguments), input)
}

fn run(command: &mut Command, input: &[u8]) -> Result<Vec<u8>, String> {
    use std::io::Write as _;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    child.stdin.take().map(|mut it| it.write_all(input)).transpose().map_err(|error| error.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{command:?}: {}", output.status)) }
}
