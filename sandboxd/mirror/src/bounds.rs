//! What a mirror puts up with.

use std::time::Duration;

/// The bounds of one run's mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at one time. A package manager opens about ten.
    pub connections: usize,
    /// From a connection's start to the end of its request's head. A payload is beside us: it needs microseconds.
    pub head: Duration,
    /// For the destination to accept a connection, at each of its addresses.
    pub connect: Duration,
    /// Without a byte either way.
    pub idle: Duration,
    /// From a connection's start to its end.
    pub total: Duration,
    /// Bytes to destinations, of all connections of the run together: a mirror serves downloads, and what leaves is
    /// requests.
    pub bytes_out: u64,
    /// Bytes from destinations, of all connections of the run together: several times what the largest wheels take.
    pub bytes_in: u64,
}

impl Bounds {
    /// Bytes of a request's head. Servers take 8 KiB of a line and 16 to 64 KiB in all.
    pub const HEAD_BYTES: usize = 16 << 10;

    /// Fields of a request's head. Clients send about ten.
    pub const FIELDS: usize = 100;

    /// Addresses of one name that are tried.
    pub const ADDRESSES: usize = 4;
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 32,
            head: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            total: Duration::from_hours(1),
            bytes_out: 64 << 20,
            bytes_in: 16 << 30,
        }
    }
}
