//! What a mirror has seen, and what its run may still carry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tack_sandbox_protocol::EgressLog;
use tack_sandbox_protocol::egress::{Connections, Host, Verdict};

/// One connection while it lasts. Threads write its counters, and the end of the run reads them.
#[derive(Debug)]
pub(crate) struct Traffic {
    began: Instant,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    /// When a byte last went either way, in milliseconds since the beginning.
    active_ms: AtomicU64,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { began: Instant::now(), bytes_out: zero(), bytes_in: zero(), active_ms: zero() }
    }

    pub(crate) fn lasted(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn now_active(&self) {
        self.active_ms.store(millis(self.lasted()), Ordering::Relaxed);
    }

    pub(crate) fn idle(&self) -> Duration {
        self.lasted().saturating_sub(Duration::from_millis(self.active_ms.load(Ordering::Relaxed)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// All connections of a run: those that have ended, and those that last.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    ended: EgressLog,
    open: Vec<(u64, Host, u16, std::sync::Arc<Traffic>)>,
    next: u64,
}

/// [`Seen`], for many threads. None of them panics while it holds the lock, and the log outlives one that would.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Seen>);

impl Log {
    fn with<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A connection to a configured destination begins. The number ends it.
    pub(crate) fn open(&self, host: Host, port: u16, traffic: &std::sync::Arc<Traffic>) -> u64 {
        self.with(|seen| {
            seen.next += 1;
            seen.open.push((seen.next, host, port, traffic.clone()));
            seen.next
        })
    }

    /// It has ended.
    pub(crate) fn close(&self, number: u64, verdict: Verdict) {
        self.with(|seen| {
            if let Some(at) = seen.open.iter().position(|it| it.0 == number) {
                let (_, host, port, traffic) = seen.open.swap_remove(at);
                seen.ended.add(&line(host, port, verdict, &traffic));
            }
        });
    }

    /// A connection that came to nothing.
    pub(crate) fn refuse(&self, host: Host, port: u16, verdict: Verdict, traffic: &Traffic) {
        self.with(|seen| seen.ended.add(&line(host, port, verdict, traffic)));
    }

    /// The log with the connections that still last.
    pub(crate) fn now(&self) -> EgressLog {
        self.with(|seen| {
            let mut log = seen.ended;
            for (_, host, port, traffic) in &seen.open {
                log.add(&line(*host, *port, Verdict::Passed, traffic));
            }
            log
        })
    }
}

fn line(host: Host, port: u16, verdict: Verdict, traffic: &Traffic) -> Connections {
    Connections {
        host,
        port,
        verdict,
        count: 1,
        bytes_out: traffic.bytes_out.load(Ordering::Relaxed),
        bytes_in: traffic.bytes_in.load(Ordering::Relaxed),
        duration_us: u64::try_from(traffic.lasted().as_micros()).unwrap_or(u64::MAX),
    }
}
