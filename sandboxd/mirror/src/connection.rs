//! One connection: its head read, judged, and carried out or refused.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tack_sandbox_protocol::Destination;
use tack_sandbox_protocol::destination::Reach;
use tack_sandbox_protocol::egress::{Host, Verdict};

use crate::address::may_mean;
use crate::bounds::Bounds;
use crate::log::{Log, Traffic};
use crate::relay::{Budget, Relay, Way, is_timeout};
use crate::request::{Ask, Refusal, Request, Scan, parse, scan};

/// What all connections of a run share.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) destinations: Vec<Destination>,
    pub(crate) bounds: Bounds,
    pub(crate) budget: Budget,
    pub(crate) log: Log,
}

/// How long, and for how many bytes, a refused client is listened to: closing with bytes unread would reset the
/// connection, and take the answer with it.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_READS: usize = 16;

/// The stack of a relay's second thread.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// Why a connection came to nothing.
struct Stop {
    host: Host,
    port: u16,
    verdict: Verdict,
    /// Nothing is answered to a client that has said nothing.
    answer: Option<Refusal>,
}

impl Mirror {
    /// The whole life of one connection.
    pub(crate) fn answer(&self, client: &TcpStream) {
        let traffic = Arc::new(Traffic::new());
        if let Err(stop) = self.serve(client, &traffic) {
            self.log.refuse(stop.host, stop.port, stop.verdict, &traffic);
            if let Some(refusal) = stop.answer {
                refuse(client, &refusal, LINGER);
            }
        }
    }

    fn serve(&self, client: &TcpStream, traffic: &Arc<Traffic>) -> Result<(), Box<Stop>> {
        let nowhere = |verdict, answer| Box::new(Stop { host: Host::NONE, port: 0, verdict, answer });
        let malformed = |refusal| nowhere(Verdict::Malformed, Some(refusal));
        let mut bytes = Vec::new();
        let head_bytes = match self.read_head(client, &mut bytes) {
            Ok(head_bytes) => head_bytes,
            Err(HeadError::Refused(refusal)) => return Err(malformed(refusal)),
            Err(HeadError::TimedOut) => {
                let refusal = Refusal { status: 408, reason: "the head did not come in time" };
                return Err(nowhere(Verdict::TimedOut, Some(refusal)));
            }
            Err(HeadError::Gone) => return Err(nowhere(Verdict::Malformed, None)),
        };
        let Request { host, port, ask } = parse(&bytes[..head_bytes]).map_err(malformed)?;
        let early = &bytes[head_bytes..];
        let stop =
            |verdict, status, reason| Box::new(Stop { host, port, verdict, answer: Some(Refusal { status, reason }) });
        if let Ask::Forward { body_bytes, .. } = &ask
            && early.len() as u64 > *body_bytes
        {
            return Err(stop(Verdict::Malformed, 400, "more than one request on a connection"));
        }

        let listed = self.destinations.iter().find(|it| (it.host, it.port) == (host, port));
        let listed = listed.ok_or_else(|| stop(Verdict::NotListed, 403, "the destination is not configured"))?;
        let destination = connect(listed, &self.bounds).map_err(|verdict| match verdict {
            Verdict::AddressRefused => {
                stop(verdict, 403, "the destination's name means an address that it may not mean")
            }
            Verdict::NotResolved => stop(verdict, 502, "the destination's name means no address"),
            _ => stop(verdict, 502, "the destination does not answer"),
        })?;

        let relay = Relay { client, destination: &destination, traffic, budget: &self.budget, bounds: &self.bounds };
        relay.arm().map_err(|_| stop(Verdict::NotConnected, 502, "the destination does not answer"))?;
        traffic.now_active();
        let number = self.log.open(host, port, traffic);
        let verdict = carry_out(&relay, &ask, early);
        self.log.close(number, verdict);
        Ok(())
    }

    /// Reads until a head is whole, and says how long it is. What came behind it stands in `bytes` too.
    fn read_head(&self, mut client: &TcpStream, bytes: &mut Vec<u8>) -> Result<usize, HeadError> {
        let deadline = Instant::now() + self.bounds.head;
        let mut buffer = [0; 4 << 10];
        loop {
            // Looked at from its start each time: a head has 16 KiB at most, and its reads are bounded in time.
            match scan(bytes).map_err(HeadError::Refused)? {
                Scan::Head { bytes } => return Ok(bytes),
                Scan::Incomplete => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HeadError::TimedOut);
            }
            client.set_read_timeout(Some(left)).map_err(|_| HeadError::Gone)?;
            match client.read(&mut buffer) {
                Ok(0) if bytes.is_empty() => return Err(HeadError::Gone),
                Ok(0) => {
                    return Err(HeadError::Refused(Refusal { status: 400, reason: "the head ends in its middle" }));
                }
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(HeadError::Gone),
            }
        }
    }
}

enum HeadError {
    Refused(Refusal),
    TimedOut,
    Gone,
}

/// Resolves, judges and connects: to the very address that was judged.
fn connect(destination: &Destination, bounds: &Bounds) -> Result<TcpStream, Verdict> {
    let addresses: Vec<IpAddr> = match destination.reach {
        Reach::Pinned(address) => vec![address],
        Reach::Public | Reach::Private => (destination.host.as_str(), destination.port)
            .to_socket_addrs()
            .map_err(|_| Verdict::NotResolved)?
            .map(|it| it.ip())
            .collect(),
    };
    if addresses.is_empty() {
        return Err(Verdict::NotResolved);
    }
    let allowed: Vec<_> = addresses.into_iter().filter(|it| may_mean(destination.reach, *it)).collect();
    if allowed.is_empty() {
        return Err(Verdict::AddressRefused);
    }
    allowed
        .into_iter()
        .take(Bounds::ADDRESSES)
        .find_map(|it| TcpStream::connect_timeout(&SocketAddr::new(it, destination.port), bounds.connect).ok())
        .ok_or(Verdict::NotConnected)
}

/// Carries the request out, and says how it ended.
fn carry_out(relay: &Relay<'_>, ask: &Ask, early: &[u8]) -> Verdict {
    let (begun, out_bytes, tunnel) = match ask {
        Ask::Connect => {
            let mut client = relay.client;
            let greeted = client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").map_err(|_| Verdict::Passed);
            (greeted.and_then(|()| relay.send(Way::Out, early)), u64::MAX, true)
        }
        Ask::Forward { head, body_bytes } => {
            let sent = relay.send(Way::Out, head).and_then(|()| relay.send(Way::Out, early));
            (sent, body_bytes - early.len() as u64, false)
        }
    };
    if let Err(verdict) = begun {
        relay.cut();
        return verdict;
    }
    thread::scope(|scope| {
        // A tunnel's end of one direction is told to the other side and leaves the other direction open. An exchange is
        // over with its answer, and a client that is done asking waits for it.
        let out = || {
            let verdict = relay.copy(Way::Out, out_bytes, tunnel);
            if verdict != Verdict::Passed {
                relay.cut();
            }
            verdict
        };
        let out = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, out);
        let inward = match &out {
            Ok(_) => relay.copy(Way::In, u64::MAX, true),
            // No thread to be had: the connection is not served by half.
            Err(_) => Verdict::TooMany,
        };
        if inward != Verdict::Passed || !tunnel {
            relay.cut();
        }
        let outward = out.ok().and_then(|thread| thread.join().ok()).unwrap_or(inward);
        relay.cut();
        if inward == Verdict::Passed { outward } else { inward }
    })
}

/// Answers with a refusal, and listens for `linger` so that the answer arrives.
pub(crate) fn refuse(mut client: &TcpStream, refusal: &Refusal, linger: Duration) {
    let reason = match refusal.status {
        400 => "Bad Request",
        403 => "Forbidden",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "HTTP Version Not Supported",
    };
    let Refusal { status, reason: text } = refusal;
    let body = format!("tack mirror: {text}\n");
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let told = client
        .set_write_timeout(Some(LINGER))
        .and_then(|()| client.write_all(answer.as_bytes()))
        .and_then(|()| client.shutdown(Shutdown::Write));
    let deadline = Instant::now() + linger;
    for _ in 0..LINGER_READS {
        let left = deadline.saturating_duration_since(Instant::now());
        if told.is_err() || left.is_zero() || client.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match client.read(&mut [0; 4 << 10]) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
