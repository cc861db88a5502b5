//! What this kernel offers a sandbox, what it lacks, what that means; and a probe that tries the doors.

mod offer;
mod policy;
pub mod probe;

use std::path::Path;
use std::process::Command;

pub use offer::{Offer, offers};
pub use policy::{PolicyLine, policy};
pub use probe::{Outcome, ProbeLine};

/// How the probe is executed: a program that calls [`probe::main`] with the arguments after these.
#[derive(Clone, Debug)]
pub struct ProbeCommand<'a> {
    /// The program, on the host. Inside it is visible at [`PROBE_TARGET`](probe::PROBE_TARGET).
    pub program: &'a Path,
    /// What makes it the probe.
    pub argument: &'a str,
}

/// Everything `check` found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the kernel offers, one line a feature.
    pub offers: Vec<Offer>,
    /// What the probe found, or why it did not run.
    pub probe: Result<Vec<ProbeLine>, String>,
}

impl Report {
    /// Whether sandboxes can be made here and every door that was tried is as it should be.
    #[must_use]
    pub fn holds(&self) -> bool {
        let offered = self.offers.iter().all(|offer| offer.found.is_ok() || !offer.required);
        offered && self.probe.as_ref().is_ok_and(|lines| lines.iter().all(ProbeLine::holds))
    }
}

/// Looks at the kernel, then runs the probe twice: inside a sandbox, through `run_inside`, and outside, beside it.
///
/// `run_inside` gets the arguments of a command whose program is the probe's, mounted read-only at
/// [`PROBE_TARGET`](probe::PROBE_TARGET); it runs it in a sandbox and returns its standard output, or says why not.
pub fn report(probe: &ProbeCommand<'_>, run_inside: impl FnOnce(Vec<String>) -> Result<String, String>) -> Report {
    let host_pid = std::process::id().to_string();
    let arguments = |place: &str| vec![probe.argument.to_owned(), place.to_owned(), host_pid.clone()];
    let lines = || {
        let mut argv = vec![probe::PROBE_TARGET.to_owned()];
        argv.extend(arguments(probe::INSIDE));
        let inside = run_inside(argv)?;
        let control = Command::new(probe.program)
            .args(arguments(probe::OUTSIDE))
            .output()
            .map_err(|error| format!("the control outside did not start: {error}"))?;
        probe::compare(&inside, &String::from_utf8_lossy(&control.stdout))
    };
    Report { offers: offers(), probe: lines() }
}
