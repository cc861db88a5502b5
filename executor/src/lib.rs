//! The repository as an environment: a candidate is restored exactly, run in a sandbox of its own, and judged.
//!
//! Walk it as a patch does: [`restore`] applies it to the base, byte for byte; [`runner`] says what to execute and
//! what the answer means; [`evidence`] puts it through the five layers of acceptance and binds what they said to the
//! exact patch and environment. [`lab`] is all of it on the smallest example.
//!
//! What this crate does not do: it makes no sandbox (it asks `tack-sandbox-client` for each execution) and links no
//! model. Invariants:
//! - nothing of a candidate is executed, imported or opened by name on the host;
//! - a verdict comes from a descriptor that was open before the candidate's code loaded, against a list of tests
//!   that the run did not supply, and never from standard output;
//! - a layer that was not reached did not fail, and an environment that could not answer is not the candidate's
//!   failure.
//!
//! What it cannot promise: code inside the test process can lie about that process. The mutation layer catches a lie
//! that is told about every tree; one that first looks whether it is being graded with a defect put back is beyond
//! any check made inside the process, and is for a reader of the patch to see.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod lab;
pub mod menu;
pub mod restore;
pub mod runner;
pub mod task;
