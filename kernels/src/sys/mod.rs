//! Memory maps and the plain network's vector code: `unsafe`, one file a reason. The engine's own stands beside its tiles.
#![allow(unsafe_code)]

pub(crate) mod map;
pub(crate) mod simd;
