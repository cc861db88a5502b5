//! Bytes both ways between a payload and its destination, until both have ended or a bound is reached.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tack_sandbox_protocol::egress::Verdict;

use crate::bounds::Bounds;
use crate::log::Traffic;

/// How often a silent direction looks whether the other one is silent too.
const TICK: Duration = Duration::from_millis(250);

/// The bytes that a run may still carry each way.
#[derive(Debug)]
pub(crate) struct Budget {
    out: AtomicU64,
    r#in: AtomicU64,
}

impl Budget {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        Self { out: AtomicU64::new(bounds.bytes_out), r#in: AtomicU64::new(bounds.bytes_in) }
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the payload.
    Out,
    /// To the payload.
    In,
}

/// One connection's two ends, its counters and its bounds.
#[derive(Debug)]
pub(crate) struct Relay<'a> {
    pub(crate) client: &'a TcpStream,
    pub(crate) destination: &'a TcpStream,
    pub(crate) traffic: &'a Traffic,
    pub(crate) budget: &'a Budget,
    pub(crate) bounds: &'a Bounds,
}

impl Relay<'_> {
    /// Sends `bytes` that are at hand already.
    pub(crate) fn send(&self, way: Way, bytes: &[u8]) -> Result<(), Verdict> {
        let (counter, left) = match way {
            Way::Out => (&self.traffic.bytes_out, &self.budget.out),
            Way::In => (&self.traffic.bytes_in, &self.budget.r#in),
        };
        let count = bytes.len() as u64;
        if left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count)).is_err() {
            return Err(Verdict::TooLong);
        }
        let mut to = match way {
            Way::Out => self.destination,
            Way::In => self.client,
        };
        // Before they are sent: nothing that the other end has seen is missing from the log.
        counter.fetch_add(count, Ordering::Relaxed);
        match to.write_all(bytes) {
            Ok(()) => {}
            Err(error) if is_timeout(&error) => return Err(Verdict::TimedOut),
            // Whoever went away has ended the connection.
            Err(_) => return Err(Verdict::Passed),
        }
        self.traffic.now_active();
        Ok(())
    }

    /// Copies one way, `most` bytes at most, until the sender has ended; then tells the receiver, if `half_close`.
    pub(crate) fn copy(&self, way: Way, most: u64, half_close: bool) -> Verdict {
        let (mut from, to) = match way {
            Way::Out => (self.client, self.destination),
            Way::In => (self.destination, self.client),
        };
        let mut buffer = vec![0; 32 << 10];
        let mut left = most;
        while left > 0 {
            if self.traffic.idle() >= self.bounds.idle || self.traffic.lasted() >= self.bounds.total {
                return Verdict::TimedOut;
            }
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            match from.read(&mut buffer[..room]) {
                Ok(0) => break,
                Ok(count) => {
                    if let Err(verdict) = self.send(way, &buffer[..count]) {
                        return verdict;
                    }
                    left -= count as u64;
                }
                Err(error) if is_timeout(&error) || error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Verdict::Passed,
            }
        }
        if half_close {
            // It fails where the receiver is gone.
            to.shutdown(Shutdown::Write).ok();
        }
        Verdict::Passed
    }

    /// Sets the sockets' own bounds, which [`copy`](Self::copy) relies on.
    pub(crate) fn arm(&self) -> io::Result<()> {
        for socket in [self.client, self.destination] {
            socket.set_read_timeout(Some(TICK.min(self.bounds.idle)))?;
            socket.set_write_timeout(Some(self.bounds.idle))?;
            socket.set_nodelay(true)?;
        }
        Ok(())
    }

    /// Ends both directions, whoever is still waiting for them.
    pub(crate) fn cut(&self) {
        // They fail where the other side is gone already.
        self.client.shutdown(Shutdown::Both).ok();
        self.destination.shutdown(Shutdown::Both).ok();
    }
}

/// The kernel says that a socket's time-out passed by either.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
