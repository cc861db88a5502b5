//! The crate's only `unsafe`: one thin function a system call that `nix` does not wrap, `nix::Result` out.
#![allow(unsafe_code)]

pub(crate) mod mount;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod socket;
