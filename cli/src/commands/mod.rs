//! One file a command.

pub(crate) mod decide;
pub(crate) mod lab;
pub(crate) mod sandbox;
