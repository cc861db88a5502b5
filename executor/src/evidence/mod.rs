//! Evidence: what each layer of acceptance said about one exact patch, and the executions that show it.

pub mod desk;
pub mod execution;
pub mod layers;
