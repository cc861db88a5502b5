//! A state never seen before, from text to tokens, against the `tokenizers` crate.
//!
//! `cargo bench -p tack-bench --bench tokenizer` prints the table; with `TACK_BENCH_RECORD=FILE` it writes the raw
//! samples too. States are cut from the sources of the crates that this workspace is built of, or from the folder that
//! `TACK_BENCH_CORPUS` names; every third one is marked as a diff is. The vocabulary is Qwen3's where
//! `TACK_QWEN3_TOKENIZER` names its `tokenizer.json` (`controller/tests/fetch_qwen3_tokenizer` gets it), else the mini
//! model's. Fails if the bound is broken or a token differs.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use tack_bench::{Row, Samples, record};
use tack_controller::Tokenizer;

/// Distinct states of a row.
const STATES: usize = 300;
/// Tokens of each: a full state.
const TOKENS: usize = 4096;
/// Bytes of source that are enough for one, but where it is all blanks.
const SOURCE_BYTES: usize = 32 * 1024;
/// What a full state may cost.
const BOUND_NS: f64 = 300_000.0;
/// Loads of each tokenizer.
const LOADS: usize = 5;

fn main() -> ExitCode {
    match rows() {
        Ok((provenance, rows)) => report(&provenance, &rows),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn report(provenance: &str, rows: &[Row]) -> ExitCode {
    print!("{provenance}{}", record::table(rows));
    if let Some(path) = env::var_os("TACK_BENCH_RECORD").map(PathBuf::from)
        && let Err(error) = record::write(&path, provenance, rows)
    {
        eprintln!("cannot write `{}`: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if rows.iter().all(Row::keeps_bound) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn rows() -> Result<(String, Vec<Row>), String> {
    let mini = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/mini/tokenizer.json"));
    let path = env::var_os("TACK_QWEN3_TOKENIZER").map_or(mini, PathBuf::from);
    let content = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let plain = without_added(&content)?;

    let mut load =
        Row { name: "load tokenizer.json", ours: Samples::default(), peer: Samples::default(), bound_ns: None };
    let (mut ours, mut peer) = (None, None);
    for _ in 0..LOADS {
        let (ns, opened) = timed(|| Tokenizer::from_bytes(&content, "tokenizer.json"));
        load.ours.0.push(ns);
        ours = Some(opened);
        let (ns, opened) = timed(|| tokenizers::Tokenizer::from_bytes(&plain));
        load.peer.0.push(ns);
        peer = Some(opened);
    }
    let ours = ours.ok_or("no load")?.map_err(|error| error.to_string())?;
    let peer = peer.ok_or("no load")?.map_err(|error| error.to_string())?;

    let folder = corpus_folder()?;
    let states = states(&folder, &ours)?;
    let bytes: usize = states.iter().map(String::len).sum();
    let provenance = format!(
        "{}vocabulary: {}\nstates: {STATES} of {TOKENS} tokens a row, {} bytes on average, from {}\n",
        record::provenance("cargo bench -p tack-bench --bench tokenizer"),
        path.display(),
        bytes / states.len(),
        folder.display(),
    );
    let (in_a_row, in_turns) = states.split_at(STATES);
    let in_a_row = first_time("a state, first time, one by one", in_a_row, Turns::Rows, &ours, &peer)?;
    let in_turns = first_time("a state, first time, after the peer", in_turns, Turns::States, &ours, &peer)?;
    Ok((provenance, vec![in_a_row, in_turns, load]))
}

/// Who comes after whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turns {
    /// All states through ours, then all through the peer: each finds its own tables in the processor's caches, as
    /// where texts are encoded all day.
    Rows,
    /// Each state through both: each finds the other's tables there, as after a forward pass.
    States,
}

/// Each state once: neither has seen it.
fn first_time(
    name: &'static str,
    states: &[String],
    turns: Turns,
    ours: &Tokenizer,
    peer: &tokenizers::Tokenizer,
) -> Result<Row, String> {
    let bound_ns = (turns == Turns::Rows).then_some(BOUND_NS);
    let mut row = Row { name, ours: Samples::default(), peer: Samples::default(), bound_ns };
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let one = |state: &String| timed(|| ours.ids(black_box(state)));
    let other = |state: &String| timed(|| peer.encode_fast(black_box(state.as_str()), false));
    for state in states {
        let (ns, ids) = one(state);
        row.ours.0.push(ns);
        found.push(ids);
        if turns == Turns::States {
            let (ns, encoding) = other(state);
            row.peer.0.push(ns);
            expected.push(encoding);
        }
    }
    if turns == Turns::Rows {
        for state in states {
            let (ns, encoding) = other(state);
            row.peer.0.push(ns);
            expected.push(encoding);
        }
    }
    for ((state, found), expected) in states.iter().zip(found).zip(expected) {
        if expected.map_err(|error| error.to_string())?.get_ids() != found {
            return Err(format!("not the peer's tokens: {state:?}"));
        }
    }
    Ok(row)
}

fn timed<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let answer = black_box(run());
    (begun.elapsed().as_nanos() as f64, answer)
}

/// The file without added tokens: to us no text is one.
fn without_added(content: &[u8]) -> Result<String, String> {
    let mut plain: serde_json::Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    plain["added_tokens"] = serde_json::json!([]);
    Ok(plain.to_string())
}

fn corpus_folder() -> Result<PathBuf, String> {
    if let Some(folder) = env::var_os("TACK_BENCH_CORPUS") {
        return Ok(folder.into());
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    Ok(home.ok_or("neither TACK_BENCH_CORPUS nor CARGO_HOME nor HOME is set")?.join("registry/src"))
}

/// Distinct texts of exactly as many tokens as a full state has.
fn states(folder: &Path, tokenizer: &Tokenizer) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    collect(folder, &mut paths);
    paths.sort();
    let mut states = Vec::new();
    let mut source = String::new();
    for path in paths {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        source.push_str(&text);
        if source.len() < SOURCE_BYTES {
            continue;
        }
        if states.len() % 3 == 2 {
            let marks = ["+", "-", " "].iter().cycle();
            source = source.split_inclusive('\n').zip(marks).flat_map(|(line, mark)| [*mark, line]).collect();
        }
        let Some(last) = tokenizer.encode(&source).get(TOKENS - 1).copied() else { continue };
        states.push(source[..last.end].to_owned());
        source.clear();
        if states.len() == 2 * STATES {
            return Ok(states);
        }
    }
    Err(format!("{}: {} states in it, expected {}", folder.display(), states.len(), 2 * STATES))
}

/// Sources and prose under a folder.
fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|it| it.path()) {
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|it| ["rs", "py", "md", "txt", "toml"].iter().any(|known| it == *known))
        {
            into.push(path);
        }
    }
}
