//! The one way out of a sandbox, where it was asked for: a proxy that lets through what root configured, and what it
//! has seen.

use core::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::layer::{Reason, named};

/// Where the payload finds the mirror: on its own loopback. A payload that wants the port for itself gets `EADDRINUSE`.
pub const MIRROR_PORT: u16 = 3_128;

/// What a mirror says to the sandbox's helper when it listens; what it says last is its [`EgressLog`], as one frame.
pub const MIRROR_READY: u8 = b'r';

/// What of the network a payload may reach besides its own loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// Nothing.
    #[default]
    None,
    /// The destinations that root configured, through a proxy at [`MIRROR_PORT`]. Which they are is not the request's
    /// to say.
    Mirror,
}

named! {
    /// What became of a connection to the mirror.
    Verdict {
        /// It was let through, and ended by itself or with the run.
        Passed = "passed",
        /// Its destination is none of those that root configured. Answered with 403.
        NotListed = "not_listed",
        /// Its destination is configured, and its name means an address that it may not mean. Answered with 403.
        AddressRefused = "address_refused",
        /// Its destination is configured, and its name means no address. Answered with 502.
        NotResolved = "not_resolved",
        /// Its destination is configured and does not answer. Answered with 502.
        NotConnected = "not_connected",
        /// It was no request that a mirror answers. Answered with 400 or its like.
        Malformed = "malformed",
        /// There were too many at one time. Answered with 503.
        TooMany = "too_many",
        /// It carried more bytes than a run may, and was cut.
        TooLong = "too_long",
        /// It was silent for too long, or lasted for too long, and was cut.
        TimedOut = "timed_out",
    }
}

/// A host as a request to the mirror named it: a name in lower case or an address; never anything that a terminal
/// would obey. Empty where the request named none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Host {
    bytes: [u8; Host::MAX_BYTES],
    count: u8,
}

impl Host {
    /// The greatest length of a name (RFC 1035, without the root's dot).
    pub const MAX_BYTES: usize = 253;

    /// No host.
    pub const NONE: Self = Self { bytes: [0; Self::MAX_BYTES], count: 0 };

    /// `None` if `text` is too long, or has other characters than names and addresses have.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let sane = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:".contains(byte);
        let mut host = Self::NONE;
        host.count = u8::try_from(text.len()).ok()?;
        let bytes = host.bytes.get_mut(..text.len()).filter(|_| text.as_bytes().iter().all(sane))?;
        bytes.copy_from_slice(text.as_bytes());
        bytes.make_ascii_lowercase();
        Some(host)
    }

    /// The host's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // ASCII alone gets in.
        core::str::from_utf8(&self.bytes[..usize::from(self.count)]).unwrap_or_default()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Host;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a host of at most {} bytes", Host::MAX_BYTES)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Host, E> {
                Host::new(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// All connections to one destination with one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Whose destination was this host,
    pub host: Host,
    /// and this port; 0 where the request named none.
    pub port: u16,
    /// What became of them.
    pub verdict: Verdict,
    /// How many there were.
    pub count: u32,
    /// Bytes that the payload sent to the destination.
    pub bytes_out: u64,
    /// Bytes that the destination sent to the payload.
    pub bytes_in: u64,
    /// How long they lasted, added up, in microseconds.
    pub duration_us: u64,
}

/// How many lines an [`EgressLog`] has at most. Installing the dependencies of a repository takes two or three; what a
/// payload tries beyond is counted.
pub const MAX_EGRESS_LINES: usize = 16;

/// What the mirror of one run has seen, a line for each destination and verdict, in the order of their first connection.
#[derive(Clone, Copy)]
pub struct EgressLog {
    lines: [Connections; MAX_EGRESS_LINES],
    count: usize,
    unlisted: u32,
}

impl EgressLog {
    const EMPTY_LINE: Connections = Connections {
        host: Host::NONE,
        port: 0,
        verdict: Verdict::Passed,
        count: 0,
        bytes_out: 0,
        bytes_in: 0,
        duration_us: 0,
    };

    /// Most bytes of a log as it travels: [`MAX_EGRESS_LINES`] of a name (253 bytes), its length (2), a port (3), a
    /// verdict (1) and four numbers (35), the number of lines (1) and what is not listed (5), rounded up.
    pub const MAX_BYTES: usize = 8 << 10;

    /// Nothing seen.
    #[must_use]
    pub const fn new() -> Self {
        Self { lines: [Self::EMPTY_LINE; MAX_EGRESS_LINES], count: 0, unlisted: 0 }
    }

    /// Adds connections to the line of their destination and verdict. Of a destination that has no line when all are
    /// taken, only the number of connections is kept.
    pub fn add(&mut self, connections: &Connections) {
        let same = |line: &&mut Connections| {
            (line.host, line.port, line.verdict) == (connections.host, connections.port, connections.verdict)
        };
        if let Some(line) = self.lines[..self.count].iter_mut().find(same) {
            line.count = line.count.saturating_add(connections.count);
            line.bytes_out = line.bytes_out.saturating_add(connections.bytes_out);
            line.bytes_in = line.bytes_in.saturating_add(connections.bytes_in);
            line.duration_us = line.duration_us.saturating_add(connections.duration_us);
        } else if let Some(line) = self.lines.get_mut(self.count) {
            *line = *connections;
            self.count += 1;
        } else {
            self.unlisted = self.unlisted.saturating_add(connections.count);
        }
    }

    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[Connections] {
        &self.lines[..self.count]
    }

    /// How many connections there were besides those in the lines.
    #[must_use]
    pub const fn unlisted(&self) -> u32 {
        self.unlisted
    }
}

impl Default for EgressLog {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::missing_fields_in_debug, reason = "the lines show how many they are")]
impl fmt::Debug for EgressLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressLog").field("lines", &self.lines()).field("unlisted", &self.unlisted).finish()
    }
}

impl PartialEq for EgressLog {
    fn eq(&self, other: &Self) -> bool {
        self.lines() == other.lines() && self.unlisted == other.unlisted
    }
}

impl Eq for EgressLog {}

/// The log as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename = "EgressLog")]
struct Written {
    lines: Lines,
    unlisted: u32,
}

struct Lines(EgressLog);

impl Serialize for Lines {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.lines())
    }
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sequence;
        impl<'de> Visitor<'de> for Sequence {
            type Value = Lines;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_EGRESS_LINES} lines, each of another destination or verdict")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Lines, A::Error> {
                let mut log = EgressLog::new();
                for expected in 1.. {
                    let Some(line) = sequence.next_element::<Connections>()? else { break };
                    log.add(&line);
                    if log.count != expected {
                        return Err(de::Error::invalid_length(expected, &self));
                    }
                }
                Ok(Lines(log))
            }
        }
        deserializer.deserialize_seq(Sequence)
    }
}

impl Serialize for EgressLog {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written { lines: Lines(*self), unlisted: self.unlisted }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EgressLog {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { lines: Lines(log), unlisted } = Written::deserialize(deserializer)?;
        Ok(Self { unlisted, ..log })
    }
}

/// What a receipt says of the network.
// A receipt is one value without a heap.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressRecord {
    /// There was no way out.
    None,
    /// There was a mirror, and this is what it has seen.
    Mirror(EgressLog),
    /// There was a mirror, and what it has seen could not be had.
    Unavailable(Reason),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    fn line(host: &str, verdict: Verdict, bytes_out: u64) -> Connections {
        let host = Host::new(host).unwrap();
        Connections { host, port: 443, verdict, count: 1, bytes_out, bytes_in: 2, duration_us: 3 }
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_nothing_else() {
        let long = "a".repeat(254);
        let cases = [
            ("Example.org", Some("example.org")),
            ("_srv.a-b.c", Some("_srv.a-b.c")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("", Some("")),
            (&long[1..], Some(&long[1..])),
            (&long, None),
            ("a b", None),
            ("a\x1b[2J", None),
            ("bücher.example", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Host::new(text).as_ref().map(Host::as_str), expected, "{text:?}");
        }
    }

    #[test]
    fn a_log_has_a_line_for_each_destination_and_verdict_and_counts_the_rest() {
        let mut log = EgressLog::new();
        log.add(&line("a.example", Verdict::Passed, 10));
        log.add(&line("a.example", Verdict::NotListed, 0));
        log.add(&line("A.example", Verdict::Passed, 5));
        let sum = Connections { count: 2, bytes_out: 15, bytes_in: 4, duration_us: 6, ..log.lines()[0] };
        assert_eq!(log.lines(), [sum, line("a.example", Verdict::NotListed, 0)]);
        for index in 0..20 {
            log.add(&line(&format!("{index}.example"), Verdict::NotListed, 0));
        }
        log.add(&line("a.example", Verdict::Passed, u64::MAX));
        assert_eq!((log.lines().len(), log.unlisted()), (MAX_EGRESS_LINES, 6));
        assert_eq!(log.lines()[0].bytes_out, u64::MAX, "a sum that cannot be told stays at the greatest number");
    }

    #[test]
    fn a_log_survives_both_formats_and_a_longer_one_is_refused() {
        let mut log = EgressLog::new();
        for index in 0..20 {
            log.add(&line(&format!("{index}.example"), Verdict::TooMany, index));
        }
        for record in [EgressRecord::None, EgressRecord::Mirror(log), EgressRecord::Mirror(EgressLog::new())] {
            let mut buffer = [0; 4_096];
            let bytes = postcard::to_slice(&record, &mut buffer).unwrap();
            assert_eq!(postcard::from_bytes::<EgressRecord>(bytes), Ok(record));
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<EgressRecord>(&text).unwrap(), record, "{text}");
        }
        let text = |lines: &str| format!(r#"{{"lines":[{lines}],"unlisted":0}}"#);
        let one = |host: u32| {
            let line = line(&format!("{host}.example"), Verdict::Passed, 0);
            serde_json::to_string(&line).unwrap()
        };
        let many = (0..17).map(one).collect::<std::vec::Vec<String>>().join(",");
        let twice = [one(1), one(1)].join(",");
        for (lines, good) in [(one(1), true), (many, false), (twice, false)] {
            assert_eq!(serde_json::from_str::<EgressLog>(&text(&lines)).is_ok(), good, "{lines}");
        }
    }
}
