//! `tack lab`: three candidates for one defect, five layers, one fresh sandbox an execution.

use tack_core::ObservationStatus;
use tack_executor::evidence::layers::PathRule;
use tack_executor::lab::{self, LabError, Options, Progress};

use crate::arguments;
use crate::commands::sandbox;
use crate::exit::{self, Failure};
use crate::terminal;

/// Grades the candidates and prints the article's table, or a receipt a candidate.
pub(crate) fn run(arguments: &arguments::Lab) -> Result<u8, Failure> {
    let client = sandbox::client();
    let candidates = if arguments.candidate.is_empty() {
        let mut all = lab::candidates().map_err(failure)?;
        if arguments.hostile {
            all.extend(lab::hostile().map_err(failure)?);
        }
        all
    } else {
        arguments.candidate.iter().map(|name| lab::candidate(name)).collect::<Result<_, _>>().map_err(failure)?
    };
    let path_rule = if arguments.no_path_rule { PathRule::Off } else { PathRule::Enforced };
    let options = Options { candidates, path_rule, ..Options::default() };
    let mut current = String::new();
    let report = lab::run(&client, &options, &mut |progress| match progress {
        Progress::Candidate { name, index, count } => {
            current = format!("{} of {count}: {name}", index + 1);
            terminal::progress(&current);
        }
        Progress::Executed(execution) => terminal::progress(&format!("{current}, {}", execution.purpose)),
        Progress::Graded(_) => terminal::progress(""),
    });
    terminal::progress("");
    let report = report.map_err(failure)?;
    if arguments.json {
        terminal::answer_json(&report)?;
    } else {
        terminal::answer_people(&report.to_string()).map_err(Failure::unknown)?;
    }
    Ok(match report.status() {
        ObservationStatus::Passed => exit::DONE,
        ObservationStatus::CandidateFailed | ObservationStatus::VerifierInvalid => exit::NO,
        ObservationStatus::InfrastructureUnknown => exit::UNKNOWN,
    })
}

fn failure(error: LabError) -> Failure {
    if error.is_bad_input() { Failure::bad_input(error) } else { Failure::unknown(error) }
}
