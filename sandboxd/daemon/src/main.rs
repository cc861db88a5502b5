//! The sandbox helper as a program of its own: small, so that starting it is cheap.

use std::env;
use std::process::ExitCode;

use tack_sandboxd::mirror::MirrorProgram;
use tack_sandboxd::{check, once, serve};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    match arguments.next() {
        Some(argument) if argument == "--once" => once::on_stdin(MirrorProgram::Installed, arguments),
        Some(argument) if argument == "serve" => serve::main(arguments),
        Some(argument) if argument == "--probe" => check::probe::main(arguments),
        _ => {
            eprintln!(
                "usage: tack-sandboxd --once [--mirror DESTINATION]...\n\
                 \x20                                                 serve one request on the socket that is standard input\n\
                 \x20      tack-sandboxd serve [--config FILE] [--runtime DIR] [--state DIR]\n\
                 \x20                                                 serve those whom root allows, until it is killed\n\
                 \x20      tack-sandboxd --probe inside|outside PID    try what a sandbox denies, and say what came of it"
            );
            ExitCode::from(2)
        }
    }
}
