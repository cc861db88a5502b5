//! The unprivileged side of the sandbox: asks for one run, and reads its output and its receipt.
//!
//! ```no_run
//! use tack_sandbox_client::{Access, Client, Mount, Run};
//!
//! let mut run = Run::new(["/usr/bin/python3", "-c", "print(1)"], "/task");
//! run.mounts.push(Mount { source: "/home/me/repository".into(), target: "/task".into(), access: Access::ReadOnly });
//! let finished = Client::find(None).run(&run)?;
//! assert_eq!(finished.receipt.exit_status(), Some(0));
//! assert_eq!(finished.stdout.head, b"1\n");
//! # Ok::<(), tack_sandbox_client::ClientError>(())
//! ```
//!
//! What this crate does not do: it makes no namespace and no mount, and links no code that could. Where the daemon
//! serves it connects to it; else it finds the privileged helper and spawns it over a socket pair. With either it speaks
//! [`protocol`]. A client that dies closes the socket, and the run is ended.
#![forbid(unsafe_code)]

mod connection;
mod helper;
mod run;
mod source;

pub use tack_sandbox_protocol as protocol;
pub use tack_sandbox_protocol::{Access, Egress, Receipt, RunLimits};

pub use connection::ClientError;
pub use helper::{Client, Helper, Way};
pub use run::{Captured, Finished, Mount, Piece, RequestError, Run};
pub use source::{Source, SourceError};
