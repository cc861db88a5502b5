//! Test runners: what is executed in the sandbox, and what its answer says about the candidate.

pub mod python;
pub mod report;
pub mod unittest;
