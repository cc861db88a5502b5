//! `tack menu`: which tests of a repository the two test actions would run for a patch.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use tack_executor::menu::collection::decides_about_tests;
use tack_executor::menu::{Project, TestMenu};
use tack_executor::restore::checkout::Checkout;
use tack_executor::restore::patch::Patch;
use tack_executor::restore::path::TreePath;

use crate::exit::{self, Failure};
use crate::{arguments, input, terminal};

/// What `tack decide --menu` reads, by the ids that the runner takes.
#[derive(Serialize)]
struct Menu {
    targeted: Vec<String>,
    broader: Vec<String>,
}

/// Reads the repository and the patch, chooses, prints. Nothing is run.
pub(crate) fn run(arguments: &arguments::Menu) -> Result<u8, Failure> {
    let patch = Patch::parse(&input::read(&arguments.patch, input::PATCH)?).map_err(Failure::bad_input)?;
    let changed: BTreeSet<TreePath> = patch.paths().cloned().collect();
    let base = Checkout::read(&arguments.repository).map_err(Failure::bad_input)?;
    let chosen = TestMenu::choose(&base, &changed).map_err(Failure::unknown)?;
    let menu =
        Menu { targeted: chosen.ids(&chosen.targeted).collect(), broader: chosen.ids(&chosen.broader).collect() };
    for path in &changed {
        if let Some(reason) = decides_about_tests(path) {
            terminal::warning(&format!("the patch changes `{path}`: {reason}"));
        }
    }
    if arguments.json {
        terminal::answer_json(&menu)?;
    } else {
        terminal::answer_people(&for_people(chosen.project, &menu, &chosen.excluded)).map_err(Failure::unknown)?;
    }
    Ok(exit::DONE)
}

fn for_people(project: Project, menu: &Menu, excluded: &[TreePath]) -> String {
    let mut text = format!("runner: {project}\n");
    for (action, tests) in [("test_targeted", &menu.targeted), ("test_regression", &menu.broader)] {
        // Writing to a string does not fail.
        let none = if tests.is_empty() { ": nothing is associated with the changed files; unavailable" } else { "" };
        writeln!(text, "{action}{none}").ok();
        for test in tests {
            writeln!(text, "  {test}").ok();
        }
    }
    for path in excluded {
        writeln!(text, "left out, since the patch changes it: {path}").ok();
    }
    text
}
