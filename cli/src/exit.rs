//! Exit codes, the same for every command, and an error that carries one.

use std::error::Error;

/// Done.
pub(crate) const DONE: u8 = 0;
/// The answer is no: rejected, gate not met, evidence expired.
pub(crate) const NO: u8 = 1;
/// Bad input: the message names the file, the place and the mend.
pub(crate) const BAD_INPUT: u8 = 2;
/// The environment could not answer.
pub(crate) const UNKNOWN: u8 = 3;
/// `tack sandbox run` itself failed; every other code of it is the payload's own.
pub(crate) const SANDBOX_FAILED: u8 = 125;

/// What a command failed with, and the code it ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) error: Box<dyn Error>,
}

impl Failure {
    pub(crate) fn bad_input(error: impl Into<Box<dyn Error>>) -> Self {
        Self { code: BAD_INPUT, error: error.into() }
    }

    pub(crate) fn unknown(error: impl Into<Box<dyn Error>>) -> Self {
        Self { code: UNKNOWN, error: error.into() }
    }
}
