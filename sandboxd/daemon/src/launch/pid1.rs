//! The sandbox's pid 1: it reaps whatever ends, and ends with the payload. The payload is another process, so that it
//! has the signals, the core dumps and the exit status of any process.

use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::unistd::Pid;

use crate::launch::progress::{Record, elapsed_us, send};
use crate::sys::process::{Closing, close_range, wait4};

/// Reaps until `payload` has ended, and reports how. Returning ends the process, upon which the kernel kills and reaps
/// every other process of the pid namespace.
pub(crate) fn reap(payload: Pid, end: &OwnedFd, began: Instant) -> i32 {
    // The helper's standard streams are still open here. Nothing is read or written, so failing to close is harmless.
    close_range(0, 2, Closing::Now).ok();
    loop {
        match wait4(None) {
            Ok(waited) if waited.pid == payload.as_raw() => {
                let sent = send(end, Record::Ended { status: waited.status, at_us: elapsed_us(began) });
                return i32::from(sent.is_err());
            }
            Ok(_) => {}
            // The payload is our child and unreaped, so there is always one to wait for.
            Err(errno) => return errno as i32,
        }
    }
}
