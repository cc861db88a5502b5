//! The head of a request: read strictly, or refused.
//!
//! What two readers could understand in two ways is how a request is smuggled past the one that judges it. So there is
//! one way to write each thing here: lines end in CR LF, a field stands on one line, its name touches its colon, a
//! length is a decimal number that stands once, and a body without a length does not exist. No client in use writes
//! anything else.

use tack_sandbox_protocol::destination::{host_of, is_name, parse_address, parse_port};
use tack_sandbox_protocol::egress::Host;

use crate::bounds::Bounds;

/// Why a request is not served: the status of the answer, and a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status code of the answer.
    pub status: u16,
    /// What was wrong.
    pub reason: &'static str,
}

const fn bad(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason }
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The beginning of a head; more must come.
    Incomplete,
    /// The first so many bytes are a head, empty line included.
    Head {
        /// How many.
        bytes: usize,
    },
}

/// Looks for the end of a head.
///
/// # Errors
/// A [`Refusal`] as soon as the bytes can no longer become a head: a bare CR or LF, another control character, too long.
pub fn scan(bytes: &[u8]) -> Result<Scan, Refusal> {
    let mut line_bytes = 0;
    for (at, byte) in bytes.iter().enumerate().take(Bounds::HEAD_BYTES) {
        match byte {
            b'\r' => match bytes.get(at + 1) {
                Some(b'\n') | None => {}
                Some(_) => return Err(bad("a CR without its LF")),
            },
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => return Err(bad("an LF without its CR")),
            b'\n' if line_bytes == 0 && at == 1 => return Err(bad("an empty line before the request")),
            b'\n' if line_bytes == 0 => return Ok(Scan::Head { bytes: at + 1 }),
            b'\n' => line_bytes = 0,
            b'\t' | b' '..=b'~' | 0x80.. => line_bytes += 1,
            _ => return Err(bad("a control character in the head")),
        }
    }
    if bytes.len() >= Bounds::HEAD_BYTES {
        return Err(Refusal { status: 431, reason: "the head is longer than 16 KiB" });
    }
    Ok(Scan::Incomplete)
}

/// What is asked of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A tunnel.
    Connect,
    /// One exchange.
    Forward {
        /// The head that is sent, written anew.
        head: Vec<u8>,
        /// How many bytes of body follow it.
        body_bytes: u64,
    },
}

/// A request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where to.
    pub host: Host,
    /// And which port.
    pub port: u16,
    /// What for.
    pub ask: Ask,
}

/// Fields that are about one connection (RFC 9110, 7.6.1), and so end here.
const HOP_BY_HOP: [&str; 7] = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "via"];

/// Reads a head, its empty line included.
///
/// # Errors
/// A [`Refusal`] where it is not one, or not one that a mirror answers.
pub fn parse(head: &[u8]) -> Result<Request, Refusal> {
    match scan(head)? {
        Scan::Head { bytes } if bytes == head.len() => {}
        _ => return Err(bad("not one head")),
    }
    let lines = head.strip_suffix(b"\r\n\r\n").ok_or(bad("not one head"))?;
    let mut lines = lines.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (method, target, version) = request_line(lines.next().unwrap_or_default())?;

    let mut fields = Vec::new();
    for line in lines {
        if fields.len() == Bounds::FIELDS {
            return Err(Refusal { status: 431, reason: "more than 100 fields" });
        }
        fields.push(field(line)?);
    }
    let host_field = once(&fields, "host")?;
    if version == Version::V11 && host_field.is_none() {
        return Err(bad("no Host field"));
    }
    for (name, refusal) in [
        ("proxy-authorization", Refusal { status: 403, reason: "a mirror takes no credentials" }),
        ("transfer-encoding", Refusal { status: 411, reason: "a body needs a Content-Length" }),
    ] {
        if fields.iter().any(|(it, _)| it.eq_ignore_ascii_case(name)) {
            return Err(refusal);
        }
    }
    let body_bytes = match once(&fields, "content-length")? {
        None => 0,
        Some(text) => length(text).ok_or(bad("a Content-Length that is no number"))?,
    };

    if method == "CONNECT" {
        let (host, port) = authority(target, None)?;
        if body_bytes > 0 {
            return Err(bad("CONNECT with a body"));
        }
        if let Some(text) = host_field {
            // Some clients leave the port out of the field.
            let named = authority(text, Some(port))?;
            if named != (host, port) {
                return Err(bad("the Host field names another destination than the request line"));
            }
        }
        return Ok(Request { host, port, ask: Ask::Connect });
    }

    if !["GET", "HEAD", "POST"].contains(&method) {
        return Err(Refusal { status: 405, reason: "a mirror answers CONNECT, GET, HEAD and POST" });
    }
    if body_bytes > 0 && method != "POST" {
        return Err(bad("GET or HEAD with a body"));
    }
    let rest = match target.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
        _ => return Err(bad("the target is no http:// URL; for https use CONNECT")),
    };
    let (named, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if path.contains('#') {
        return Err(bad("a fragment in the target"));
    }
    let (host, port) = authority(named, Some(80))?;
    if let Some(text) = host_field
        && authority(text, Some(80))? != (host, port)
    {
        return Err(bad("the Host field names another destination than the request line"));
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut head = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {named}\r\n").into_bytes();
    let nominated: Vec<&str> = fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .filter_map(|(_, value)| str::from_utf8(value).ok())
        .flat_map(|value| value.split(',').map(str::trim))
        .collect();
    for (name, value) in &fields {
        let is = |other: &&str| name.eq_ignore_ascii_case(other);
        // The first two are written by us.
        if ["host", "content-length"].iter().chain(&HOP_BY_HOP).any(is) || nominated.iter().any(is) {
            continue;
        }
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    if method == "POST" {
        head.extend_from_slice(format!("Content-Length: {body_bytes}\r\n").as_bytes());
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Request { host, port, ask: Ask::Forward { head, body_bytes } })
}

/// Of clients in use, Python's before 3.12 asks for tunnels by HTTP/1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V10,
    V11,
}

fn request_line(line: &[u8]) -> Result<(&str, &str, Version), Refusal> {
    let line = str::from_utf8(line).ok().filter(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    let mut words = line.ok_or(bad("the request line is not ASCII"))?.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(target), Some(version), None) if !method.is_empty() && !target.is_empty() => {
            let version = match version {
                "HTTP/1.0" => Version::V10,
                "HTTP/1.1" => Version::V11,
                _ => return Err(Refusal { status: 505, reason: "a mirror speaks HTTP/1.1" }),
            };
            Ok((method, target, version))
        }
        _ => Err(bad("the request line is not METHOD TARGET VERSION")),
    }
}

/// A field's name, and its value without the blanks around it.
fn field(line: &[u8]) -> Result<(&str, &[u8]), Refusal> {
    if line.first().is_some_and(|byte| b" \t".contains(byte)) {
        return Err(bad("a field that goes on on a second line"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(bad("a field without a colon"))?;
    let (name, value) = line.split_at(colon);
    // RFC 9110, 5.6.2: `tchar`.
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let name = str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.as_bytes().iter().all(is_token));
    Ok((name.ok_or(bad("a field whose name is not a token"))?, value[1..].trim_ascii()))
}

/// The value of a field that may stand once.
fn once<'a>(fields: &[(&str, &'a [u8])], name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = fields.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name));
    let value = values.next();
    if values.next().is_some() {
        return Err(bad("a field that may stand once stands twice"));
    }
    value.map(|(_, value)| str::from_utf8(value).map_err(|_| bad("a field that is not ASCII"))).transpose()
}

/// Decimal digits alone: no sign, no list, no blank.
fn length(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `HOST[:PORT]`. Nobody's name or password stands before it.
fn authority(text: &str, default_port: Option<u16>) -> Result<(Host, u16), Refusal> {
    if text.contains('@') {
        return Err(Refusal { status: 403, reason: "a mirror takes no credentials" });
    }
    // The colons of an address of the sixth version stand in brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, parse_port(port)),
        _ => (text, default_port),
    };
    let port = port.ok_or(bad("the destination's port is not a number from 1 to 65535"))?;
    let host = match parse_address(host) {
        Some(address) => host_of(address),
        None if is_name(host) => Host::new(host),
        None => None,
    };
    Ok((host.ok_or(bad("the destination's host is neither a name nor an address"))?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Result<(String, u16, String), (u16, &'static str)> {
        let head = head.replace('\n', "\r\n");
        let request = parse(head.as_bytes()).map_err(|refusal| (refusal.status, refusal.reason))?;
        let ask = match request.ask {
            Ask::Connect => "tunnel".to_owned(),
            Ask::Forward { head, body_bytes } => format!("{}[{body_bytes}]", String::from_utf8(head).unwrap()),
        };
        Ok((request.host.as_str().to_owned(), request.port, ask.replace("\r\n", "|")))
    }

    #[test]
    fn requests_that_a_mirror_answers() {
        #[rustfmt::skip]
        let cases = [
            ("CONNECT a.b:443 HTTP/1.1\nHost: a.b:443\n\n", ("a.b", 443, "tunnel")),
            ("CONNECT A.B:443 HTTP/1.0\n\n", ("a.b", 443, "tunnel")),
            ("CONNECT a.b:443 HTTP/1.1\nHost: a.b\nUser-Agent: x\nProxy-Connection: Keep-Alive\n\n", ("a.b", 443, "tunnel")),
            ("CONNECT [::1]:443 HTTP/1.1\nHost: [0:0::1]:443\n\n", ("::1", 443, "tunnel")),
            ("CONNECT 127.0.0.1:443 HTTP/1.1\nHost: 127.0.0.1:443\n\n", ("127.0.0.1", 443, "tunnel")),
            ("GET http://a.b/x?y HTTP/1.1\nHost: a.b\nAccept:  */* \n\n",
                ("a.b", 80, "GET /x?y HTTP/1.1|Host: a.b|Accept: */*|Connection: close||[0]")),
            ("GET HTTP://a.b:8080 HTTP/1.1\nHost: A.b:8080\n\n",
                ("a.b", 8080, "GET / HTTP/1.1|Host: a.b:8080|Connection: close||[0]")),
            ("HEAD http://a.b?q HTTP/1.1\nHost: a.b:80\n\n",
                ("a.b", 80, "HEAD /?q HTTP/1.1|Host: a.b|Connection: close||[0]")),
            ("POST http://a.b/ HTTP/1.1\nHost: a.b\nContent-Length: 12\n\n",
                ("a.b", 80, "POST / HTTP/1.1|Host: a.b|Content-Length: 12|Connection: close||[12]")),
            // What is about this connection stays here, and what the client calls so too; our own fields do not.
            ("GET http://a.b/ HTTP/1.1\nHost: a.b\nX: 1\nConnection: x, host,Content-Length\nUpgrade: h2c\nTE: trailers\nY:\n\n",
                ("a.b", 80, "GET / HTTP/1.1|Host: a.b|Y: |Connection: close||[0]")),
        ];
        for (head, (host, port, ask)) in cases {
            assert_eq!(read(head), Ok((host.to_owned(), port, ask.to_owned())), "{head}");
        }
    }

    #[test]
    fn requests_that_could_be_read_in_two_ways_or_that_a_mirror_does_not_answer() {
        let get = "GET http://a.b/ HTTP/1.1\nHost: a.b\n";
        let post = "POST http://a.b/ HTTP/1.1\nHost: a.b\n";
        let many = format!("{get}{}\n", "X: 1\n".repeat(100));
        let enough = format!("{get}{}\n", "X: 1\n".repeat(99));
        assert!(read(&enough).is_ok(), "the control");
        let cases = [
            // Lengths.
            (format!("{post}Content-Length: 1\nContent-Length: 2\n\n"), 400),
            (format!("{post}Content-Length: 1\nContent-Length: 1\n\n"), 400),
            (format!("{post}Content-Length: 1, 1\n\n"), 400),
            (format!("{post}Content-Length: +1\n\n"), 400),
            (format!("{post}Content-Length: -1\n\n"), 400),
            (format!("{post}Content-Length: 0x1\n\n"), 400),
            (format!("{post}Content-Length: 1 1\n\n"), 400),
            (format!("{post}Content-Length:\n\n"), 400),
            (format!("{post}Content-Length: 99999999999999999999\n\n"), 400),
            (format!("{post}Transfer-Encoding: chunked\nContent-Length: 1\n\n"), 411),
            (format!("{post}Content-Length: 1\ntransfer-encoding: identity\n\n"), 411),
            (format!("{post}Transfer-Encoding : chunked\n\n"), 400),
            (format!("{get}Content-Length: 1\n\n"), 400),
            ("CONNECT a.b:443 HTTP/1.1\nHost: a.b:443\nContent-Length: 1\n\n".into(), 400),
            // Lines.
            (format!("{get}X: 1\n 2\n\n"), 400),
            (format!("{get}X: 1\n\t2\n\n"), 400),
            (format!("{get} X: 1\n\n"), 400),
            (format!("{get}X\n\n"), 400),
            (format!("{get}: 1\n\n"), 400),
            (format!("{get}X Y: 1\n\n"), 400),
            (format!("{get}X: a\0b\n\n"), 400),
            (format!("{get}X: a\x0bb\n\n"), 400),
            (format!("{get}X: a\x7fb\n\n"), 400),
            (format!("\n{get}\n"), 400),
            (format!("{get}\n\n"), 400),
            (format!("{get}\nGET http://a.b/ HTTP/1.1\nHost: a.b\n\n"), 400),
            (get.into(), 400),
            (many, 431),
            (format!("{get}X: {}\n\n", "x".repeat(Bounds::HEAD_BYTES)), 431),
            // The request line.
            ("GET  http://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/ HTTP/1.1 \nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/ b HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET\thttp://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/ü HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/#x HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/ HTTP/2.0\nHost: a.b\n\n".into(), 505),
            ("GET http://a.b/ http/1.1\nHost: a.b\n\n".into(), 505),
            ("GET http://a.b/\n\n".into(), 400),
            ("GET / HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET a.b HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET https://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET ftp://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("OPTIONS * HTTP/1.1\nHost: a.b\n\n".into(), 405),
            ("PUT http://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 405),
            ("get http://a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 405),
            // Where to.
            ("GET http://a.b/ HTTP/1.1\n\n".into(), 400),
            ("GET http://a.b/ HTTP/1.1\nHost: a.b\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b/ HTTP/1.1\nHost: a.c\n\n".into(), 400),
            ("GET http://a.b/ HTTP/1.1\nHost: a.b:81\n\n".into(), 400),
            ("GET http://a.b/ HTTP/1.1\nHost: a.b, a.c\n\n".into(), 400),
            ("GET http:///x HTTP/1.1\nHost: \n\n".into(), 400),
            ("GET http://a.b:/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b:0/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b\\@c/ HTTP/1.1\nHost: a.b\n\n".into(), 403),
            ("GET http://a%2eb/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://a.b./ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("GET http://2130706433/ HTTP/1.1\nHost: 2130706433\n\n".into(), 400),
            ("CONNECT a.b HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("CONNECT a.b:443 HTTP/1.1\n\n".into(), 400),
            ("CONNECT a.b:443 HTTP/1.1\nHost: a.c:443\n\n".into(), 400),
            ("CONNECT a.b:443 HTTP/1.1\nHost: a.b:444\n\n".into(), 400),
            ("CONNECT http://a.b:443/ HTTP/1.1\nHost: a.b\n\n".into(), 400),
            ("CONNECT ::1:443 HTTP/1.1\nHost: ::1:443\n\n".into(), 400),
            // Credentials.
            ("GET http://u:p@a.b/ HTTP/1.1\nHost: a.b\n\n".into(), 403),
            ("CONNECT u@a.b:443 HTTP/1.1\nHost: a.b:443\n\n".into(), 403),
            (format!("{get}Proxy-Authorization: Basic x\n\n"), 403),
        ];
        for (head, status) in cases {
            assert_eq!(read(&head).map_err(|(status, _)| status), Err(status), "{head:?}");
        }
    }

    #[test]
    fn a_head_is_refused_at_the_first_byte_that_spoils_it() {
        let cases: [(&[u8], Result<Scan, u16>); 9] = [
            (b"", Ok(Scan::Incomplete)),
            (b"GET", Ok(Scan::Incomplete)),
            (b"GET\r", Ok(Scan::Incomplete)),
            (b"GET\r\n", Ok(Scan::Incomplete)),
            (b"GET\r\n\r\nrest", Ok(Scan::Head { bytes: 7 })),
            (b"GET\n", Err(400)),
            (b"GET\rX", Err(400)),
            (b"\r\n", Err(400)),
            (b"\x16\x03\x01", Err(400)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(scan(bytes).map_err(|refusal| refusal.status), expected, "{bytes:?}");
        }
        assert_eq!(scan(&vec![b'x'; Bounds::HEAD_BYTES - 1]), Ok(Scan::Incomplete));
        assert_eq!(scan(&vec![b'x'; Bounds::HEAD_BYTES]).unwrap_err().status, 431);
    }
}
