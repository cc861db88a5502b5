//! The repository as an environment: a candidate is restored exactly, run in a sandbox, and judged.
#![forbid(unsafe_code)]

pub mod restore;
