//! The one way out of a sandbox: a forward proxy that lets through exactly what root configured, and logs it.
//!
//! It is a process of its own, in the host's network, as a user that owns nothing, with two descriptors: a listener on
//! the sandbox's loopback, and a socket to the sandbox's helper. It answers `CONNECT host:port`, and `GET`, `HEAD` and
//! `POST` of `http://host[:port]/...`, one request a connection. [`serve`](serve::serve) is its whole life.
//!
//! What this crate does not do: it terminates no TLS, caches nothing, follows no redirect, knows no credentials and
//! takes none, and it makes no sandbox. A way to pass a secret into a sandbox does not exist, so neither does a way to
//! add one here.
//!
//! Invariants:
//! - no connection is made but to a configured pair of host and port, at an address that the pair may mean; the address
//!   that was judged is the one that is connected to;
//! - what is forwarded of a request's head is written anew from what was understood of it; a head that could be read in
//!   two ways is refused, and nothing of it is forwarded;
//! - each connection has a thread or two, of which there is a bounded number; bytes, silence and duration are bounded;
//! - the log is complete in its counts, whatever a payload does.
#![forbid(unsafe_code)]

pub mod address;
pub mod bounds;
mod connection;
mod log;
mod relay;
pub mod request;
pub mod serve;

pub use bounds::Bounds;
pub use serve::{MirrorError, main, serve};
