//! `tack`: decides what should happen next to a candidate patch, and carries it out in a sandbox.
//!
//! This crate parses arguments, prints, and picks the exit code; every behavior lives in the room it calls.

mod arguments;
mod commands;
mod exit;
mod input;
#[path = "../../models/mini.rs"]
mod mini;
mod terminal;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use tack_sandboxd::mirror::MirrorProgram;

use crate::arguments::{Arguments, Command, SandboxCommand};

fn main() -> ExitCode {
    // The one-shot sandbox helper where no `tack-sandboxd` is installed, its mirror, and the probe that it runs for
    // `sandbox check`: nothing of the command comes before them.
    match env::args_os().nth(1) {
        Some(argument) if argument == commands::sandbox::HELPER_ARGUMENT => {
            let mirror = MirrorProgram::Own(commands::sandbox::MIRROR_ARGUMENT.into());
            return tack_sandboxd::once::on_stdin(mirror, env::args_os().skip(2));
        }
        Some(argument) if argument == commands::sandbox::MIRROR_ARGUMENT => {
            return tack_sandbox_mirror::main(env::args_os().skip(2));
        }
        Some(argument) if argument == commands::sandbox::PROBE_ARGUMENT => {
            return tack_sandboxd::check::probe::main(env::args_os().skip(2));
        }
        _ => {}
    }
    // Whoever started this command may ignore its children's ends; this command waits for its own.
    if let Err(error) = tack_sandboxd::heed_children() {
        terminal::warning(&format!("cannot heed SIGCHLD: {error}"));
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers; anything else is bad input.
            let code = if error.use_stderr() { exit::BAD_INPUT } else { exit::DONE };
            // Nothing is left to do if the terminal is gone.
            drop(error.print());
            return ExitCode::from(code);
        }
    };
    let outcome = match arguments.command {
        Command::Lab(arguments) => commands::lab::run(&arguments),
        Command::Decide(arguments) => commands::decide::run(&arguments),
        Command::Menu(arguments) => commands::menu::run(&arguments),
        Command::Sandbox { command: SandboxCommand::Check(arguments) } => commands::sandbox::check(&arguments),
        Command::Sandbox { command: SandboxCommand::Run(arguments) } => return commands::sandbox::run(&arguments),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            terminal::failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}
