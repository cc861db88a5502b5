//! The crate's only `unsafe`: one file a reason.
#![allow(unsafe_code)]

pub(crate) mod map;
pub(crate) mod simd;
