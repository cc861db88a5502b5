//! One file a command.

pub(crate) mod decide;
pub(crate) mod lab;
pub(crate) mod menu;
pub(crate) mod sandbox;
