//! The privileged side of the sandbox: makes one, runs one command in it, and says what happened.
//!
//! [`once::on_stdin`] is a helper process' whole life: one request on a socket, one sandbox, one receipt. The helper
//! stays outside and is root; the payload ends up inside as nobody. How it gets there is told on one page in `launch`.
//!
//! What this crate does not do: it serves no second request, keeps no state between runs, resolves no name of the
//! network, knows nothing of repositories or decisions, and has no threads.
//!
//! Invariants:
//! - a payload never runs less confined than its receipt says: a step that fails ends the launch, and a limit that the
//!   host cannot enforce is listed as inactive, with the reason;
//! - host uid 0 is mapped in no payload's user namespace;
//! - when the receipt is sent, no process of the run is left; when the helper dies, however it dies, none is left;
//! - mounts are made in a mount namespace that ends with the run: the host's mount table never changes;
//! - `unsafe` stands in `sys` alone, one system call a function.

pub mod check;
mod conversation;
mod group;
mod launch;
pub mod mirror;
pub mod once;
mod policy;
mod run;
pub mod serve;
mod sys;

/// Undoes `SIGCHLD` ignored, which a program inherits: its children's ends would be lost to it.
///
/// # Errors
/// The kernel's refusal, which a plain signal never meets.
pub fn heed_children() -> std::io::Result<()> {
    Ok(sys::process::heed_children()?)
}
