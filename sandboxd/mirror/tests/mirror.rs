//! A mirror on loopback between a client and a server of the test's.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail by panicking, as tests do

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::prelude::*;
use tack_sandbox_mirror::request::{Ask, Scan, parse, scan};
use tack_sandbox_mirror::{Bounds, serve};
use tack_sandbox_protocol::egress::{EgressLog, Verdict};
use tack_sandbox_protocol::{Destination, frame};

struct Served {
    address: SocketAddr,
    control: UnixStream,
    mirror: JoinHandle<()>,
}

impl Served {
    fn start(destinations: &[&str], bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let destinations = destinations.iter().map(|it| Destination::parse(it).unwrap()).collect();
        let mirror = thread::spawn(move || serve(listener, &theirs, destinations, bounds).unwrap());
        let mut ready = [0];
        control.read_exact(&mut ready).unwrap();
        Self { address, control, mirror }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
    }

    /// Sends `request` and reads to the end.
    fn ask(&self, request: &str) -> String {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).unwrap();
        read_all(&mut client)
    }

    /// Ends the mirror, and returns its log as host, port, verdict, count, bytes out, bytes in.
    fn end(mut self) -> Vec<(String, u16, Verdict, u32, u64, u64)> {
        self.control.shutdown(Shutdown::Write).unwrap();
        let mut bytes = Vec::new();
        self.control.read_to_end(&mut bytes).unwrap();
        self.mirror.join().unwrap();
        let log: EgressLog = frame::decode(&bytes).unwrap();
        let line = |it: &tack_sandbox_protocol::egress::Connections| {
            (it.host.as_str().to_owned(), it.port, it.verdict, it.count, it.bytes_out, it.bytes_in)
        };
        log.lines().iter().map(line).collect()
    }
}

fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // What was cut by the other side is what came until then.
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8(bytes).unwrap()
}

/// A server that hands each connection to `life`, as many as `count`; and what it returns of each.
fn server<T: Send + 'static>(
    count: usize,
    life: impl Fn(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<Vec<T>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, thread::spawn(move || (0..count).map(|_| life(listener.accept().unwrap().0)).collect()))
}

/// Reads a head and `body` bytes, answers, and returns what it read.
fn exchange(mut stream: TcpStream, body: usize, answer: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    let mut rest = vec![0; body];
    stream.read_exact(&mut rest).unwrap();
    read.extend_from_slice(&rest);
    stream.write_all(answer.as_bytes()).unwrap();
    String::from_utf8(read).unwrap()
}

#[test]
fn what_is_configured_is_reached_and_nothing_else() {
    let answer = "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n";
    let (port, server) = server(2, move |stream| exchange(stream, 4, answer));
    let mirror = Served::start(&[&format!("mirror.example:{port}=127.0.0.1")], Bounds::default());
    let head = |host: &str, port: u16| format!("POST http://{host}:{port}/p HTTP/1.1\r\nHost: {host}:{port}\r\n");

    let found = mirror.ask(&format!("{}Content-Length: 4\r\n\r\nbody", head("mirror.example", port)));
    assert_eq!(found, answer, "a redirect is the client's to follow");
    let tunnel = format!("CONNECT MIRROR.example:{port} HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\nearl");
    assert_eq!(mirror.ask(&tunnel), format!("HTTP/1.1 200 Connection established\r\n\r\n{answer}"));

    // Where the redirect leads; another name of the same address; another port; the address itself.
    for (host, port) in [("elsewhere.example", 80), ("localhost", port), ("mirror.example", 1), ("127.0.0.1", port)] {
        let refused = mirror.ask(&format!("{}\r\n", head(host, port)));
        assert!(refused.starts_with("HTTP/1.1 403 Forbidden\r\n") && refused.contains("not configured"), "{refused}");
        let refused = mirror.ask(&format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"));
        assert!(refused.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{refused}");
    }
    let sent = format!(
        "POST /p HTTP/1.1\r\nHost: mirror.example:{port}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    );
    let tunneled = "GET / HTTP/1.1\r\n\r\nearl";
    assert_eq!(server.join().unwrap(), [sent.clone(), tunneled.to_owned()]);
    let (bytes_out, bytes_in) = ((sent.len() + tunneled.len()) as u64, 2 * answer.len() as u64);
    let no = |host: &str, port| (host.to_owned(), port, Verdict::NotListed, 2, 0, 0);
    assert_eq!(
        mirror.end(),
        [
            ("mirror.example".to_owned(), port, Verdict::Passed, 2, bytes_out, bytes_in),
            no("elsewhere.example", 80),
            no("localhost", port),
            no("mirror.example", 1),
            no("127.0.0.1", port),
        ]
    );
}

#[test]
fn a_name_that_means_another_address_than_it_may_is_refused() {
    let (port, _server) = server(0, drop);
    let public = format!("localhost:{port}");
    let private = format!("localhost:{}=private", port ^ 1);
    let mirror = Served::start(&[&public, &private, "nowhere.invalid:80"], Bounds::default());
    for (host, status) in [
        (public.clone(), "403 Forbidden"),
        (format!("localhost:{}", port ^ 1), "403 Forbidden"),
        ("nowhere.invalid:80".to_owned(), "502 Bad Gateway"),
    ] {
        let answer = mirror.ask(&format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{host}: {answer}");
    }
    let verdicts: Vec<_> = mirror.end().into_iter().map(|line| line.2).collect();
    assert_eq!(verdicts, [Verdict::AddressRefused, Verdict::AddressRefused, Verdict::NotResolved]);
}

#[test]
fn a_second_request_on_a_connection_reaches_nobody() {
    let (port, server) = server(1, move |stream| exchange(stream, 0, "HTTP/1.1 204 No Content\r\n\r\n"));
    let mirror = Served::start(&[&format!("m:{port}=127.0.0.1")], Bounds::default());
    let get = format!("GET http://m:{port}/ HTTP/1.1\r\nHost: m:{port}\r\n\r\n");
    let piped = mirror.ask(&format!("{get}{get}"));
    assert!(piped.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{piped}");
    assert!(piped.contains("more than one request"), "{piped}");
    assert_eq!(mirror.ask(&get), "HTTP/1.1 204 No Content\r\n\r\n", "the control");
    let served = server.join().unwrap();
    assert_eq!(served, [format!("GET / HTTP/1.1\r\nHost: m:{port}\r\nConnection: close\r\n\r\n")]);
    assert_eq!(mirror.end().len(), 2);
}

#[test]
fn slow_half_open_and_endless_clients_are_cut() {
    let bounds = Bounds { head: Duration::from_millis(300), ..Bounds::default() };
    let mirror = Served::start(&["m:80"], bounds);
    // A byte now and then: the head's time is its own, not each byte's.
    let mut slow = mirror.connect();
    let trickle = slow.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let mut trickle = trickle;
        while trickle.write_all(b"G").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(read_all(&mut slow).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    drop(slow);
    writer.join().unwrap();
    // Nothing at all, for ever.
    let mut silent = mirror.connect();
    assert!(read_all(&mut silent).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    // Its sending half closed in the middle, and before the beginning.
    let mut half = mirror.connect();
    half.write_all(b"GET http://m/ HT").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut half).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    let mut gone = mirror.connect();
    gone.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut gone), "");
    // 10,000 fields; one endless line. The answer comes while they still write.
    for endless in ["GET http://m/ HTTP/1.1\r\n".to_owned() + &"X: y\r\n".repeat(10_000), "G".repeat(1 << 20)] {
        let mut client = mirror.connect();
        client.write_all(endless.as_bytes()).ok();
        let answer = read_all(&mut client);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"),
            "{answer}"
        );
    }
    let counts: Vec<_> = mirror.end().into_iter().map(|line| (line.2, line.3)).collect();
    assert_eq!(counts, [(Verdict::TimedOut, 2), (Verdict::Malformed, 4)]);
}

#[test]
fn bounds_of_places_bytes_and_silence_hold() {
    // The server answers a tunnel with 200,000 bytes, or with nothing.
    let (port, server) = server(3, |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).ok();
        if first == *b"d" {
            stream.write_all(&vec![b'x'; 200_000]).ok();
        }
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let bounds = Bounds {
        connections: 1,
        idle: Duration::from_millis(400),
        bytes_out: 1_000,
        bytes_in: 100_000,
        ..Bounds::default()
    };
    let mirror = Served::start(&[&format!("m:{port}=127.0.0.1")], bounds);
    let tunnel = format!("CONNECT m:{port} HTTP/1.1\r\nHost: m:{port}\r\n\r\n");
    let ask = |first: &str| {
        // The place of the one before may be free a moment after its end is seen.
        loop {
            let answer = mirror.ask(&format!("{tunnel}{first}"));
            if !answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n") {
                return answer;
            }
        }
    };
    // One is silent for too long; while it lasts there is no place for another.
    let mut idle = mirror.connect();
    idle.write_all(format!("{tunnel}s").as_bytes()).unwrap();
    let mut greeting = [0; 39];
    idle.read_exact(&mut greeting).unwrap();
    let other = mirror.ask(&tunnel);
    assert!(other.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{other}");
    assert_eq!(read_all(&mut idle), "", "cut");
    // Too much in one direction, and in the other.
    let answer = ask("d");
    assert!(answer.len() <= 39 + 100_000, "{}", answer.len());
    ask(&"s".repeat(1_001));
    drop(server);
    let log = mirror.end();
    let of = |verdict| log.iter().find(|line| line.2 == verdict).unwrap_or_else(|| panic!("{verdict}: {log:?}"));
    assert_eq!((of(Verdict::TimedOut).3, of(Verdict::TooLong).3), (1, 2));
    assert!(of(Verdict::TooMany).3 >= 1);
    assert!(of(Verdict::TooLong).5 <= 100_000, "{log:?}");
}

#[test]
fn a_tunnel_stays_open_one_way_when_the_other_has_ended() {
    let (port, server) = server(1, |mut stream| {
        let mut read = String::new();
        stream.read_to_string(&mut read).unwrap();
        stream.write_all(b"late").unwrap();
        read
    });
    let mirror = Served::start(&[&format!("m:{port}=127.0.0.1")], Bounds::default());
    let mut client = mirror.connect();
    client.write_all(format!("CONNECT m:{port} HTTP/1.1\r\nHost: m:{port}\r\n\r\nasked").as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), "HTTP/1.1 200 Connection established\r\n\r\nlate");
    assert_eq!(server.join().unwrap(), ["asked"]);
    assert_eq!(mirror.end(), [("m".to_owned(), port, Verdict::Passed, 1, 5, 4)]);
}

#[test]
fn a_connection_that_lasts_is_in_the_log_as_it_stands() {
    let (port, _server) = server(1, |mut stream| {
        stream.write_all(b"hello").unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let mirror = Served::start(&[&format!("m:{port}=127.0.0.1")], Bounds::default());
    let mut client = mirror.connect();
    client.write_all(format!("CONNECT m:{port} HTTP/1.1\r\nHost: m:{port}\r\n\r\n").as_bytes()).unwrap();
    let mut greeting = [0; 39 + 5];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(mirror.end(), [("m".to_owned(), port, Verdict::Passed, 1, 0, 5)]);
}

/// Bytes that are likely to get somewhere in the parser.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "GET ",
        "POST ",
        "CONNECT ",
        "http://",
        "a.b",
        ":80",
        "/",
        "?",
        "#",
        "@",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\r\n\r\n",
        "\r",
        "\n",
        "\n\n",
        "Host: a.b",
        "Host:",
        "Content-Length: ",
        "1",
        "0",
        "Transfer-Encoding: chunked",
        "Connection: ",
        "close",
        ",",
        " ",
        "\t",
        ":",
        "[::1]",
        "\0",
        "X",
        "é",
        "%0d%0a",
        "\u{b}",
        "Proxy-Authorization: x",
    ]);
    let pieces = prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat().into_bytes());
    let near = (0..80_usize, any::<u8>(), pieces.clone()).prop_map(|(at, byte, tail)| {
        let mut head = b"POST http://a.b:81/x?y HTTP/1.1\r\nHost: a.b:81\r\nContent-Length: 7\r\nX: y\r\n\r\n".to_vec();
        let at = at.min(head.len() - 1);
        match byte % 3 {
            0 => head[at] = byte,
            1 => drop(head.remove(at)),
            _ => drop(head.splice(at..at, tail)),
        }
        head
    });
    prop_oneof![pieces, near, prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever comes in: no panic; what is understood names one destination; what is forwarded is one request without
    /// a second reading, with our own length and end of connection; and reading it again gives the same.
    #[test]
    fn what_is_forwarded_can_be_read_in_one_way(bytes in heads()) {
        let whole = scan(&bytes);
        // However the bytes come in pieces, the end is found at the same place, or the same is wrong.
        let by_pieces = (0..=bytes.len()).map(|end| scan(&bytes[..end])).find(|it| *it != Ok(Scan::Incomplete));
        match (whole, by_pieces) {
            (Ok(Scan::Incomplete), None) => return Ok(()),
            (Ok(Scan::Head { bytes }), Some(Ok(Scan::Head { bytes: found }))) => prop_assert_eq!(bytes, found),
            (Err(whole), Some(Err(piece))) => prop_assert_eq!(whole, piece),
            (whole, piece) => prop_assert!(false, "{:?} but {:?}", whole, piece),
        }
        let Ok(Scan::Head { bytes: head_bytes }) = whole else { return Ok(()) };
        let Ok(request) = parse(&bytes[..head_bytes]) else { return Ok(()) };
        prop_assert!(!request.host.as_str().is_empty() && request.port > 0);
        let Ask::Forward { head, body_bytes } = request.ask else { return Ok(()) };
        prop_assert_eq!(scan(&head), Ok(Scan::Head { bytes: head.len() }));
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let fields = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        prop_assert_eq!(fields("host:"), 1);
        prop_assert_eq!(fields("connection:"), 1);
        prop_assert_eq!(fields("transfer-encoding"), 0);
        prop_assert_eq!(fields("content-length:"), usize::from(text.starts_with("post ")));
        if text.starts_with("post ") {
            let expected = format!("content-length: {body_bytes}\r\n");
            prop_assert!(text.contains(&expected));
        }
    }
}
