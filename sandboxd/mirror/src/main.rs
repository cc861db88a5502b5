//! The mirror as a program of its own: the listener is standard input, the socket to the helper standard output.
#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    tack_sandbox_mirror::main(env::args_os().skip(1))
}
