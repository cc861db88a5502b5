//! `tack decide`: a file, a decision, and why.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tack_controller::engine::{
    BundleSource, EngineOptions, Isa, IsaError, LoadPhase, PACKS_KEPT, PackFile, PackPlace, PackSource,
};
use tack_controller::{Controller, DecisionReport, StageClock, fall_back};
use tack_core::{ActionSet, FallbackReason, Lambda, Micros, Spans, Stage, Utility};
use tack_trajectory::usage::OutputTokens;
use tack_trajectory::{IssueFile, Options, OwnedMenu, Read};

use crate::arguments;
use crate::exit::{self, Failure};
use crate::{input, mini, terminal};

/// Reads the file, decides, prints.
pub(crate) fn run(arguments: &arguments::Decide) -> Result<u8, Failure> {
    // The deadline is the whole command's: reading and loading count.
    let deadline = arguments.deadline.map(|ms| Micros(ms.saturating_mul(1_000)));
    let mut nobody = ();
    let mut clock = StageClock::start(&mut nobody, deadline);
    let lambda = arguments.lambda.map(Lambda::new).transpose().map_err(Failure::bad_input)?;

    clock.enter(Stage::Read);
    let read = read(arguments)?;
    clock.exit(Stage::Read);
    say_where_it_comes_from(&read);
    let lent = read.state.lend();
    let (state, late) = (lent.state(), FallbackReason::DeadlineMissed);
    if clock.is_late() {
        let undecided = fall_back(&state, ActionSet::ALL, late, &clock).map_err(Failure::bad_input)?;
        return print(arguments, &read, None, undecided.report());
    }

    clock.enter(Stage::Load);
    let mut controller = open(arguments)?;
    clock.exit(Stage::Load);
    if clock.is_late() {
        let undecided = fall_back(&state, ActionSet::ALL, late, &clock).map_err(Failure::bad_input)?;
        return print(arguments, &read, Some(&controller), undecided.report());
    }

    controller.settings.lambda = lambda;
    // A bundle that passed its checks and still gives no numbers is what has to be mended.
    let decision = controller.decide_within(&state, &mut clock).map_err(Failure::bad_input)?;
    print(arguments, &read, Some(&controller), decision.report(&controller))
}

fn print(
    arguments: &arguments::Decide,
    read: &Read,
    controller: Option<&Controller>,
    decision: DecisionReport<'_>,
) -> Result<u8, Failure> {
    let source = Source::new(read, arguments, controller);
    if arguments.json {
        terminal::answer_json(&Output { source, decision })?;
    } else {
        let text = for_people(&source, &decision).map_err(Failure::unknown)?;
        terminal::answer_people(&text).map_err(Failure::unknown)?;
    }
    Ok(exit::DONE)
}

/// Opens the model. What takes a second, or a gigabyte of somebody's disk, is said.
fn open(arguments: &arguments::Decide) -> Result<Controller, Failure> {
    let source = match &arguments.model {
        Some(directory) => BundleSource::directory(directory),
        None => BundleSource::memory(mini::FILES),
    };
    let options = EngineOptions {
        isa: isa(arguments)?,
        precision: arguments.precision,
        pack_file: if arguments.no_pack { PackFile::Never } else { PackFile::Worthwhile },
        pack_place: match &arguments.pack_dir {
            Some(directory) => PackPlace::In(directory.clone()),
            None => PackPlace::Beside { otherwise: cache_directory() },
        },
        ..EngineOptions::default()
    };
    let controller = Controller::load(&source, &options, &mut |phase| {
        if let LoadPhase::WritePack { bytes } = phase {
            let size = megabytes(bytes);
            terminal::note(&format!(
                "writing {size} of packed weights, so that the next start need not pack; `--no-pack` does not"
            ));
        }
    });
    let controller = controller.map_err(Failure::bad_input)?;
    match controller.pack_source() {
        PackSource::Written { path, bytes, .. } => terminal::note(&format!(
            "wrote `{}`, {}; it may be deleted at any time, and at most {PACKS_KEPT} such files stay in a directory",
            path.display(),
            megabytes(*bytes)
        )),
        PackSource::NotWritten(error) => terminal::warning(&format!(
            "packed weights are not kept, so the next start packs again: {error}; `--pack-dir DIR` keeps them elsewhere"
        )),
        PackSource::Bundle | PackSource::File { .. } => {}
    }
    Ok(controller)
}

/// The flag's, or the variable's.
fn isa(arguments: &arguments::Decide) -> Result<Option<Isa>, Failure> {
    match (arguments.cpu_isa, std::env::var(ISA_VARIABLE)) {
        (Some(isa), _) => Ok(Some(isa)),
        (None, Ok(name)) => name.parse().map(Some).map_err(|source| Failure::bad_input(IsaVariable(source))),
        (None, Err(_)) => Ok(None),
    }
}

const ISA_VARIABLE: &str = "TACK_CPU_ISA";

#[derive(Debug, thiserror::Error)]
#[error("the variable `{ISA_VARIABLE}` is of no use")]
struct IsaVariable(#[source] IsaError);

/// `$XDG_CACHE_HOME/tack`, by the XDG base directory specification: without that variable `~/.cache/tack`, and a path
/// that is not absolute counts as none.
fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("tack"))
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

fn read(arguments: &arguments::Decide) -> Result<Read, Failure> {
    let recording = input::read(&arguments.file, input::RECORDING)?;
    let patch = arguments.patch.as_deref().map(|path| input::read(path, input::PATCH)).transpose()?;
    let issue = arguments.issue.as_deref().map(|path| input::read(path, input::ISSUE)).transpose()?;
    let issue_name = arguments.issue.as_deref().map(Path::to_string_lossy).unwrap_or_default();
    let menu = arguments.menu.as_deref().map(read_menu).transpose()?;
    let options = Options {
        instance: arguments.instance.as_deref(),
        at: arguments.at,
        patch: patch.as_deref(),
        issue: issue.as_deref().map(|bytes| IssueFile { name: &issue_name, bytes }),
        menu,
    };
    tack_trajectory::read(&recording, &arguments.file.to_string_lossy(), &options).map_err(Failure::bad_input)
}

fn read_menu(path: &Path) -> Result<OwnedMenu, Failure> {
    tack_trajectory::read_menu(&input::read(path, input::MENU)?, &path.to_string_lossy()).map_err(Failure::bad_input)
}

fn say_where_it_comes_from(read: &Read) {
    if read.rows.count > 1 {
        let instance = read.instance.as_deref().unwrap_or("without an id");
        let (row, count) = (read.rows.picked + 1, read.rows.count);
        terminal::warning(&format!("row {row} of {count} ({instance}); `--instance ID` picks another"));
    }
    for gap in read.gaps.iter().filter(|gap| gap.is_warning()) {
        terminal::warning(&gap.to_string());
    }
}

/// The JSON that is printed: where the state comes from, then the decision.
#[derive(Serialize)]
struct Output<'a> {
    source: Source<'a>,
    #[serde(flatten)]
    decision: DecisionReport<'a>,
}

/// Where the state comes from.
#[derive(Serialize)]
struct Source<'a> {
    file: String,
    format: &'static str,
    instance: Option<&'a str>,
    row: usize,
    rows: usize,
    /// The last step that the state sees; `null` where it sees none.
    step: Option<u32>,
    steps: u32,
    at_default_point: bool,
    patch_bytes: Option<usize>,
    /// `recording` or `caller`; `null` where there is none.
    patch_from: Option<&'static str>,
    issue_from: Option<&'static str>,
    menu_from: Option<&'static str>,
    /// What the run had used by then: never part of the state.
    used: Used,
    gaps: Vec<String>,
}

/// What the run had used by the decision point; `null` where the recording does not say.
#[derive(Serialize)]
struct Used {
    replies: u32,
    tool_calls: u32,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// How many of the replies were counted here, with another tokenizer than the provider's.
    replies_estimated: u32,
    cost_usd: Option<f64>,
    wall_us: Option<u64>,
}

impl<'a> Source<'a> {
    fn new(read: &'a Read, arguments: &arguments::Decide, controller: Option<&Controller>) -> Self {
        // Without a tokenizer nothing is counted here: what the provider did not count stays unknown.
        let counted = controller.map(|it| read.usage.output_tokens(it.encoder().tokenizer()));
        let (output_tokens, replies_estimated) = match counted {
            Some(OutputTokens::Recorded(tokens)) => (Some(tokens), 0),
            Some(OutputTokens::Estimated { tokens, replies_counted_here }) => (Some(tokens), replies_counted_here),
            Some(OutputTokens::Unavailable { .. }) | None => (None, 0),
        };
        let usage = &read.usage;
        Self {
            file: arguments.file.to_string_lossy().into_owned(),
            format: read.format.name(),
            instance: read.instance.as_deref(),
            row: read.rows.picked,
            rows: read.rows.count,
            step: read.point.step,
            steps: read.point.steps,
            at_default_point: read.point.is_default,
            patch_bytes: read.state.patch.as_ref().map(Vec::len),
            patch_from: from(read.state.patch.is_some(), arguments.patch.is_some()),
            issue_from: from(read.state.issue.is_some(), arguments.issue.is_some()),
            menu_from: from(read.state.menu.is_some(), arguments.menu.is_some()),
            used: Used {
                replies: usage.replies,
                tool_calls: usage.tool_calls,
                input_tokens: usage.input_tokens,
                output_tokens,
                replies_estimated,
                cost_usd: usage.cost_usd,
                wall_us: usage.wall.map(|it| it.0),
            },
            gaps: read.gaps.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Where a field that is `known` comes from.
const fn from(known: bool, given: bool) -> Option<&'static str> {
    match (known, given) {
        (false, _) => None,
        (true, true) => Some("caller"),
        (true, false) => Some("recording"),
    }
}

fn for_people(source: &Source<'_>, report: &DecisionReport<'_>) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let out = &mut text;

    // 1. What was decided on.
    write!(out, "{} ({}", source.file, source.format)?;
    if let Some(instance) = source.instance {
        write!(out, ", {instance}")?;
    }
    match source.step {
        Some(step) => writeln!(out, "), after step {step} of steps 0 to {}", source.steps.saturating_sub(1))?,
        None => writeln!(out, ")")?,
    }
    match source.patch_bytes {
        Some(bytes) => writeln!(out, "patch: {bytes} bytes, from the {}", source.patch_from.unwrap_or_default())?,
        None => writeln!(out, "patch: unknown")?,
    }

    // 2. Every action's figures.
    writeln!(out, "\n  {:<16} {:>7} {:>9} {:>9}", "action", "q", "c", "utility")?;
    for row in &report.estimates {
        let mark = if row.action == report.action { '*' } else { ' ' };
        write!(out, "{mark} {:<16}", row.action)?;
        match (row.success, row.cost, row.utility) {
            (Some(q), Some(c), Some(utility)) => {
                write!(out, " {:>7.4} {:>9.4} {:>9.4}", q.get(), c.get(), utility.get())?;
            }
            _ => write!(out, " {:>7} {:>9} {:>9}", "-", "-", "-")?,
        }
        match row.reason {
            Some(reason) => writeln!(out, "  unavailable: {reason}")?,
            None => writeln!(out)?,
        }
    }

    // 3. The choice, and why.
    writeln!(out, "\n{}: {}", report.action, why(report))?;

    // 4. What the network saw, where the time went, and what made the estimates.
    if let Some(tokens) = &report.tokens {
        let fields = tokens.fields.iter().map(|field| {
            let cut = match field.bytes_cut.0 {
                0 => String::new(),
                bytes => format!(" (cut {bytes} bytes)"),
            };
            let known = if field.known { "" } else { " (unknown)" };
            format!("{} {}/{}{known}{cut}", field.field.name(), field.tokens.0, field.share.0)
        });
        writeln!(out, "tokens: {} = {}", tokens.total.0, fields.collect::<Vec<_>>().join(", "))?;
    }
    let latency = report.latency;
    let stages = latency.stages.iter().map(|it| format!("{} {}", it.stage.name(), milliseconds(it.wall)));
    let parts = stages.chain([format!("other {}", milliseconds(latency.other))]).collect::<Vec<_>>();
    writeln!(out, "latency: {} = {}", milliseconds(latency.total), parts.join(", "))?;
    if let (Some(model), Some(lambda), Some(from)) = (&report.model, report.lambda, report.lambda_from) {
        writeln!(out, "model: {} {}, lambda {} ({from})", model.name, model.digest, lambda.get())?;
        let phases = model.load_phases.phases().iter().map(|it| format!("{} {}", it.phase, milliseconds(it.wall)));
        let (load, phases) = (milliseconds(model.load), phases.collect::<Vec<_>>().join(", "));
        writeln!(
            out,
            "engine: {}, {}, {} threads; opened in {load} = {phases}",
            model.precision, model.isa, model.threads
        )?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(text)
}

fn why(report: &DecisionReport<'_>) -> String {
    if report.fallback.is_some() {
        return "a fallback, not a decision".to_owned();
    }
    let available = || report.estimates.iter().filter(|it| it.available);
    let of = |row: &tack_controller::report::ActionReport| row.utility.map_or(f64::NEG_INFINITY, Utility::get);
    let own = available().find(|it| it.action == report.action).map_or(f64::NEG_INFINITY, of);
    let second = available().filter(|it| it.action != report.action).max_by(|a, b| of(a).total_cmp(&of(b)));
    let mut text = match second {
        None => "the only action that is available".to_owned(),
        Some(second) => format!(
            "the greatest utility q - lambda * c of the {} available actions, {:.4} ahead of {}",
            report.available.len(),
            own - of(second),
            second.action
        ),
    };
    if report.near_tie == Some(true) {
        text.push_str("; a near tie: rounding alone could have turned it");
    }
    text
}

fn milliseconds(time: Micros) -> String {
    format!("{}.{:02} ms", time.0 / 1_000, time.0 % 1_000 / 10)
}
