//! A decision without an operating system's help: no standard library, no C library, no heap, an entry point of its own.
//!
//! It reads two frames from descriptor 0: a request of the sandbox protocol, then head outputs with the available
//! actions and lambda. It ends with the number of the action that the rule picks. `tests/freestanding.rs` builds,
//! links and runs it; that it links at all is the proof that nothing in those crates needs more.
#![no_std]
#![no_main]

mod sys;

use tack_core::{ActionSet, Estimates, HeadOutputs, Lambda, select};
use tack_sandbox_protocol::{FrameError, Request, frame};

/// No action is available.
const NONE_AVAILABLE: u8 = 5;
/// A frame was refused.
const BAD_FRAME: u8 = 101;
/// A head output is not finite.
const BAD_HEADS: u8 = 102;
/// The input could not be read, or is longer than the buffer.
const BAD_INPUT: u8 = 103;
/// Something panicked, which nothing may.
const PANICKED: u8 = 120;

/// Bytes of input that are read at most.
const INPUT_BYTES: usize = 1 << 18;

fn answer(input: &[u8]) -> u8 {
    match decide(input) {
        Err(_) => BAD_FRAME,
        Ok((outputs, available, lambda)) => match Estimates::from_heads(&outputs) {
            Err(_) => BAD_HEADS,
            Ok(estimates) => match select(&estimates, available, lambda) {
                None => NONE_AVAILABLE,
                Some(choice) => choice.action as u8,
            },
        },
    }
}

/// Splits the input into its two frames; the first must be a request that names a program.
fn decide(input: &[u8]) -> Result<(HeadOutputs, ActionSet, Lambda), FrameError> {
    let short = FrameError::Length { expected_bytes: frame::HEADER_BYTES, found_bytes: input.len() };
    let (header, _) = input.split_first_chunk().ok_or(short)?;
    let first_bytes = frame::HEADER_BYTES + frame::body_bytes(header)?;
    let (first, second) = input.split_at_checked(first_bytes).ok_or(short)?;
    let Request::Run(run) = frame::decode(first)? else { return Err(FrameError::Body) };
    if run.argv.iter().next().is_none() {
        return Err(FrameError::Body);
    }
    frame::decode(second)
}

/// Where the processor arrives from `_start`, with a stack and nothing else.
extern "C" fn entry() -> ! {
    let mut buffer = [0; INPUT_BYTES];
    sys::exit(sys::read_to_end(&mut buffer).map_or(BAD_INPUT, answer))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
