//! A destination that root configures for the mirror: a host, a port, and which addresses the host may mean.

use core::fmt;
use core::net::IpAddr;

use crate::egress::Host;

/// One host and port that sandboxes with a mirror may reach, written `HOST:PORT`, `HOST:PORT=private` or
/// `HOST:PORT=ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// A name in lower case, or an address as [`IpAddr`] writes it.
    pub host: Host,
    /// Its port; not 0.
    pub port: u16,
    /// What the host may mean.
    pub reach: Reach,
}

/// Which addresses the name of a destination may mean. A name that comes to mean another is refused: who answers for a
/// name must not be able to turn it against the host's own network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Addresses that the whole Internet shares.
    Public,
    /// Those, and the ones that a site uses inside (RFC 1918, RFC 6598, RFC 4193); neither loopback nor link-local.
    Private,
    /// This address alone, whatever it is; the name is not resolved.
    Pinned(IpAddr),
}

/// Why text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationError {
    /// There is no port, or it is not a number from 1 to 65535.
    Port,
    /// The host is neither a name nor an address; an address of the sixth version stands in brackets.
    Host,
    /// The host is an address, and what follows `=` would say which address it means.
    AddressTwice,
    /// What follows `=` is neither `private` nor an address.
    Reach,
}

impl fmt::Display for DestinationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Port => "expected HOST:PORT, with a port from 1 to 65535",
            Self::Host => "the host is neither a name nor an address (one of the sixth version stands in brackets)",
            Self::AddressTwice => "the host is an address already: nothing may follow `=`",
            Self::Reach => "after `=` stands `private` or an address",
        })
    }
}

impl core::error::Error for DestinationError {}

impl Destination {
    /// Reads one destination.
    ///
    /// # Errors
    /// A [`DestinationError`] that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        let (pair, reach) = match text.split_once('=') {
            Some((pair, reach)) => (pair, Some(reach)),
            None => (text, None),
        };
        let (host, port) = pair.rsplit_once(':').ok_or(DestinationError::Port)?;
        let port = parse_port(port).ok_or(DestinationError::Port)?;
        let address = parse_address(host);
        let host = match address {
            Some(address) => host_of(address),
            None if is_name(host) => Host::new(host),
            None => None,
        };
        let host = host.ok_or(DestinationError::Host)?;
        let reach = match (address, reach) {
            (Some(address), None) => Reach::Pinned(address),
            (Some(_), Some(_)) => return Err(DestinationError::AddressTwice),
            (None, None) => Reach::Public,
            (None, Some("private")) => Reach::Private,
            (None, Some(text)) => Reach::Pinned(text.parse().map_err(|_| DestinationError::Reach)?),
        };
        Ok(Self { host, port, reach })
    }
}

/// A port in decimal digits, without a sign or leading zeros; `None` if it is none, or 0.
#[must_use]
pub fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| digits)
}

/// An address as it stands in a URL: of the fourth version in four decimal numbers, of the sixth in brackets and
/// without a zone.
#[must_use]
pub fn parse_address(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

/// The one text of an address.
#[must_use]
pub fn host_of(address: IpAddr) -> Option<Host> {
    use core::fmt::Write;
    /// Of an address in text: `INET6_ADDRSTRLEN`.
    struct Text([u8; 46], usize);
    impl Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let rest = self.0.get_mut(self.1..self.1 + text.len()).ok_or(fmt::Error)?;
            rest.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut text = Text([0; 46], 0);
    write!(text, "{address}").ok()?;
    Host::new(core::str::from_utf8(&text.0[..text.1]).ok()?)
}

/// Whether `text` is a name of the domain name system, without the root's dot. A name whose last label is a number is
/// none: resolvers read it as an address, and every one in its own way.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.starts_with(|c: char| c.is_ascii_digit())
        && (last.bytes().all(|byte| byte.is_ascii_digit())
            || last.get(1..2).is_some_and(|x| x.eq_ignore_ascii_case("x"))
                && last.bytes().skip(2).all(|byte| byte.is_ascii_hexdigit()));
    text.len() <= Host::MAX_BYTES && text.split('.').all(is_label) && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations() {
        use DestinationError as E;
        let pinned = |address: &str| Reach::Pinned(address.parse().unwrap());
        let cases = [
            ("pypi.example:443", Ok(("pypi.example", 443, Reach::Public))),
            ("PyPI.Example:65535=private", Ok(("pypi.example", 65_535, Reach::Private))),
            ("mirror:80=10.0.0.1", Ok(("mirror", 80, pinned("10.0.0.1")))),
            ("mirror:80=fd00::1", Ok(("mirror", 80, pinned("fd00::1")))),
            ("127.0.0.1:8080", Ok(("127.0.0.1", 8_080, pinned("127.0.0.1")))),
            ("[0:0::1]:8080", Ok(("::1", 8_080, pinned("::1")))),
            ("mirror", Err(E::Port)),
            ("mirror:", Err(E::Port)),
            ("mirror:0", Err(E::Port)),
            ("mirror:080", Err(E::Port)),
            ("mirror:+80", Err(E::Port)),
            ("mirror:65536", Err(E::Port)),
            ("http://mirror:80", Err(E::Host)),
            (":80", Err(E::Host)),
            ("a..b:80", Err(E::Host)),
            ("a.:80", Err(E::Host)),
            ("-a:80", Err(E::Host)),
            ("a b:80", Err(E::Host)),
            ("*.example:80", Err(E::Host)),
            ("user@mirror:80", Err(E::Host)),
            ("::1:80", Err(E::Host)),
            ("[::1%lo]:80", Err(E::Host)),
            ("2130706433:80", Err(E::Host)),
            ("0x7f.1:80", Err(E::Host)),
            ("1.0x7f000001:80", Err(E::Host)),
            ("127.0.0.01:80", Err(E::Host)),
            ("1.2.3.4:80=private", Err(E::AddressTwice)),
            ("mirror:80=", Err(E::Reach)),
            ("mirror:80=public", Err(E::Reach)),
            ("mirror:80=mirror", Err(E::Reach)),
        ];
        for (text, expected) in cases {
            let found =
                Destination::parse(text).map(|it| (std::string::String::from(it.host.as_str()), it.port, it.reach));
            assert_eq!(found, expected.map(|(host, port, reach)| (host.into(), port, reach)), "{text}");
        }
    }
}
