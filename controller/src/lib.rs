//! From a decision state to a decision.

#![forbid(unsafe_code)]

pub mod fit;
mod lossy;
#[cfg(test)]
mod mini;
pub mod template;
pub mod tokenizer;
