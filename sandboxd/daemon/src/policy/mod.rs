//! The sandbox policy: what is allowed, as data. Every entry carries its reason.

pub(crate) mod landlock;
pub(crate) mod mirror;
pub(crate) mod root;
pub(crate) mod seccomp;
