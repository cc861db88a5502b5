//! The sandbox helper as a program of its own: small, so that starting it is cheap.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(argument), None) if argument == "--once" => tack_sandboxd::once::on_stdin(),
        _ => {
            eprintln!("usage: tack-sandboxd --once    serve one request on the socket that is standard input");
            ExitCode::from(2)
        }
    }
}
