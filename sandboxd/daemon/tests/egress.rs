//! The one way out of a sandbox. This program is its tests, and, by its first argument, the helper, the mirror, and the
//! payload that asks the mirror: so it needs nothing of the host's but itself.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail by panicking, as tests do

mod harness;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, iter, thread};

use harness::{can_sandbox, processes_with, text, within};
use tack_sandbox_client::protocol::egress::{MIRROR_PORT, Verdict};
use tack_sandbox_client::protocol::{Cause, EgressRecord, SetUpFailure, Stage};
use tack_sandbox_client::{Access, Client, ClientError, Egress, Finished, Helper, Mount, Run};
use tack_sandboxd::mirror::MirrorProgram;

const HELPER: &str = "--helper";
const MIRROR: &str = "--mirror-program";
/// Sends each further argument to the mirror, on a connection of its own, and prints what comes back.
const ASK: &str = "--ask";
/// Prints the environment's names with `proxy` in them, and what connecting to each further argument comes to.
const TRY: &str = "--try";
/// Holds a tunnel to the destination open until it is killed.
const HOLD: &str = "--hold";
/// Where this program is, inside.
const INSIDE: &str = "/egress";

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let first = arguments.next();
    match first.as_ref().and_then(|it| it.to_str()) {
        Some(HELPER) => return tack_sandboxd::once::on_stdin(MirrorProgram::Own(MIRROR.into()), arguments),
        Some(MIRROR) => return tack_sandbox_mirror::main(arguments),
        Some(ASK) => arguments.for_each(|request| println!("{}\n--", ask(&request.into_string().unwrap()))),
        Some(TRY) => look_around(arguments),
        Some(HOLD) => hold(&arguments.next().unwrap().into_string().unwrap()),
        _ => return tests(first.into_iter().chain(arguments)),
    }
    ExitCode::SUCCESS
}

/// Runs the tests whose name contains an argument that is none of the usual test programs' options; all without one.
fn tests(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    #[rustfmt::skip]
    let tests: &[(&str, fn())] = &[
        ("what_is_configured_is_reached_and_the_receipt_says_so", what_is_configured_is_reached),
        ("without_being_asked_for_there_is_no_way_out", without_being_asked_for_there_is_no_way_out),
        ("a_mirror_to_nowhere_is_refused", a_mirror_to_nowhere_is_refused),
        ("the_mirror_is_nobody_with_nothing", the_mirror_is_nobody_with_nothing),
        ("a_mirror_that_dies_takes_its_log_along_and_nothing_else", a_mirror_that_dies),
        ("a_helper_that_dies_takes_its_mirror_along", a_helper_that_dies_takes_its_mirror_along),
    ];
    let names: Vec<String> = arguments
        .filter_map(|it| it.into_string().ok())
        .filter(|it| !it.starts_with('-') && it.parse::<u32>().is_err())
        .collect();
    if !can_sandbox("egress") {
        return ExitCode::SUCCESS;
    }
    for (name, test) in tests.iter().filter(|it| names.is_empty() || names.iter().any(|name| it.0.contains(name))) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn ask(request: &str) -> String {
    let mut mirror = TcpStream::connect(("127.0.0.1", MIRROR_PORT)).unwrap();
    mirror.write_all(request.as_bytes()).unwrap();
    mirror.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    mirror.read_to_string(&mut answer).unwrap();
    answer
}

fn look_around(addresses: impl Iterator<Item = OsString>) {
    for (name, value) in env::vars().filter(|(name, _)| name.to_ascii_lowercase().contains("proxy")) {
        println!("{name}={value}");
    }
    for address in addresses {
        let address = address.into_string().unwrap();
        let came = TcpStream::connect(&address).map_err(|error| error.raw_os_error());
        println!("{address} {:?}", came.map(drop));
    }
}

fn hold(destination: &str) {
    let mut mirror = TcpStream::connect(("127.0.0.1", MIRROR_PORT)).unwrap();
    mirror.write_all(format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n").as_bytes()).unwrap();
    mirror.read_exact(&mut [0; 12]).unwrap();
    println!("held");
    mirror.read_to_end(&mut Vec::new()).unwrap();
    println!("released");
    thread::sleep(Duration::from_secs(1_000));
}

fn client(destinations: &[&str]) -> Client {
    let program = env::current_exe().unwrap();
    Client::with(Helper::Own { program, argument: HELPER.into() })
        .with_mirror(destinations.iter().map(|it| (*it).to_owned()))
}

/// A run of this program.
fn payload(arguments: &[&str]) -> Run {
    let mut run = Run::new(iter::once(INSIDE).chain(arguments.iter().copied()), "/");
    let source = env::current_exe().unwrap().into();
    run.mounts.push(Mount { source, target: INSIDE.into(), access: Access::ReadOnly });
    run.egress = Egress::Mirror;
    run
}

fn finish(client: &Client, run: &Run) -> Finished {
    client.run(run).unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)))
}

/// Answers every connection to a port of the host's loopback that has sent something.
fn server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if stream.read(&mut [0; 4_096]).is_ok_and(|count| count > 0) {
                stream.write_all(answer.as_bytes()).ok();
            }
        }
    });
    port
}

fn what_is_configured_is_reached() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let port = server(answer);
    let get = |host: &str| format!("GET http://{host}:{port}/x HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let tunnel = |host: &str| format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let requests = [
        get("index.example"),
        tunnel("index.example") + "x",
        get("127.0.0.1"),
        tunnel("localhost"),
        get("other.example"),
    ];
    let mut arguments = vec![ASK];
    arguments.extend(requests.iter().map(String::as_str));
    let finished = finish(&client(&[&format!("index.example:{port}=127.0.0.1")]), &payload(&arguments));
    let error = String::from_utf8_lossy(&finished.stderr.head).into_owned();
    assert_eq!(finished.receipt.exit_status(), Some(0), "{:?} {error}", finished.receipt.cause);
    let answers: Vec<_> = text(&finished.stdout.head).split("\n--\n").collect();
    assert_eq!(answers[0], answer);
    assert_eq!(answers[1], format!("HTTP/1.1 200 Connection established\r\n\r\n{answer}"));
    for refused in &answers[2..5] {
        assert!(refused.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{refused}");
    }
    let EgressRecord::Mirror(log) = finished.receipt.egress else { panic!("{:?}", finished.receipt.egress) };
    let lines: Vec<_> = log
        .lines()
        .iter()
        .map(|line| (line.host.as_str().to_owned(), line.port, line.verdict, line.count, line.bytes_in))
        .collect();
    let line = |host: &str, verdict, count, bytes_in: usize| (host.to_owned(), port, verdict, count, bytes_in as u64);
    let expected = [
        line("index.example", Verdict::Passed, 2, 2 * answer.len()),
        line("127.0.0.1", Verdict::NotListed, 1, 0),
        line("localhost", Verdict::NotListed, 1, 0),
        line("other.example", Verdict::NotListed, 1, 0),
    ];
    assert_eq!((lines, log.unlisted()), (expected.to_vec(), 0));
    assert!(finished.receipt.times.stage_us[Stage::Egress as usize] > 0);
}

fn without_being_asked_for_there_is_no_way_out() {
    let port = server("x");
    let addresses = [format!("127.0.0.1:{MIRROR_PORT}"), format!("127.0.0.1:{port}"), "10.0.0.1:80".to_owned()];
    let mut arguments = vec![TRY];
    arguments.extend(addresses.iter().map(String::as_str));
    let look = |run: &Run| {
        let finished = finish(&client(&[&format!("index.example:{port}=127.0.0.1")]), run);
        assert_eq!(finished.receipt.exit_status(), Some(0), "{}", String::from_utf8_lossy(&finished.stderr.head));
        (text(&finished.stdout.head).to_owned(), finished.receipt)
    };
    let outcome = |to_mirror: &str| {
        let refused = format!("Err(Some({}))", libc_errno::ECONNREFUSED);
        let unreachable = format!("Err(Some({}))", libc_errno::ENETUNREACH);
        format!("{} {to_mirror}\n{} {refused}\n{} {unreachable}\n", addresses[0], addresses[1], addresses[2])
    };
    let mut run = payload(&arguments);
    run.egress = Egress::None;
    let (said, without) = look(&run);
    assert_eq!(said, outcome(&format!("Err(Some({}))", libc_errno::ECONNREFUSED)));
    assert_eq!(without.egress, EgressRecord::None);

    // The control: with it there is the mirror and nothing else, and programs are told, unless they have been told.
    run.egress = Egress::Mirror;
    run.environment.push(("NO_PROXY".into(), "*".into()));
    let (said, with) = look(&run);
    let (told, came): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.contains('='));
    assert_eq!(came.join("\n") + "\n", outcome("Ok(())"));
    let told: BTreeMap<_, _> = told.into_iter().filter_map(|line| line.split_once('=')).collect();
    let mirror = format!("http://127.0.0.1:{MIRROR_PORT}");
    let local = "localhost,127.0.0.1,::1";
    let expected = [
        ("HTTPS_PROXY", mirror.as_str()),
        ("HTTP_PROXY", &mirror),
        ("NO_PROXY", "*"),
        ("http_proxy", &mirror),
        ("https_proxy", &mirror),
        ("no_proxy", local),
    ];
    assert_eq!(told, expected.into());
    assert_ne!(without.policy_digest, with.policy_digest, "what may be reached is of the sandbox policy");
}

/// Error numbers of Linux on every architecture that this is built for.
mod libc_errno {
    pub(super) const ENETUNREACH: i32 = 101;
    pub(super) const ECONNREFUSED: i32 = 111;
    pub(super) const EDESTADDRREQ: i32 = 89;
}

fn a_mirror_to_nowhere_is_refused() {
    let finished = finish(&client(&[]), &payload(&[TRY]));
    let failure = SetUpFailure { stage: Stage::Egress, errno: libc_errno::EDESTADDRREQ, mount: None };
    assert_eq!(finished.receipt.cause, Cause::SetUp(failure));
    // What is no destination is the helper's caller's to mend: nothing is asked for then.
    let wrong = client(&["http://index.example/"]).run(&payload(&[TRY]));
    assert!(wrong.is_err(), "{wrong:?}");
}

/// The mirror's process, by a destination that no other test has.
fn mirror_process(marker: &str) -> Option<PathBuf> {
    let marker = format!("tack-sandbox-mirror {MIRROR} {marker}");
    let found = processes_with(&marker);
    let process = found.first()?.split(' ').next()?;
    Some(Path::new("/proc").join(process))
}

/// A run that holds a tunnel through its mirror for three seconds, and its mirror's `/proc`.
fn held(host: &str) -> (thread::JoinHandle<Result<Finished, ClientError>>, PathBuf) {
    let port = server("x");
    let destination = format!("{host}:{port}=127.0.0.1");
    let mut run = payload(&[HOLD, &format!("{host}:{port}")]);
    run.limits.wall_us = 3_000_000;
    let client = client(&[&destination]);
    let running = thread::spawn(move || client.run(&run));
    assert!(within(Duration::from_secs(10), || mirror_process(&destination).is_some()));
    let mirror = mirror_process(&destination).unwrap();
    // Once it serves a connection, so that the payload is there too.
    let served = || fs::read_dir(mirror.join("fd")).is_ok_and(|fds| fds.count() > 5);
    assert!(within(Duration::from_secs(10), served));
    (running, mirror)
}

fn kill(process: &str) {
    assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
}

fn the_mirror_is_nobody_with_nothing() {
    let (running, mirror) = held("nobody.example");
    let status = fs::read_to_string(mirror.join("status")).unwrap();
    let field = |name: &str| {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {status}"));
        line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>()
    };
    for ids in ["Uid", "Gid"] {
        let ids: Vec<u32> = field(ids).iter().map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0] && (0x7fd0_0000..0x7ff0_0000).contains(id)), "{ids:x?}");
    }
    assert!(field("Groups").is_empty());
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs"), ["1"]);
    // It is in the host's network and pid namespaces, and in none of the sandbox's.
    for namespace in ["net", "pid", "mnt"] {
        let of = |process: &Path| fs::read_link(process.join("ns").join(namespace)).unwrap();
        assert_eq!(of(&mirror), of(Path::new("/proc/self")), "{namespace}");
    }
    // A listener, the socket to the helper, and nothing; then the connections that it serves.
    let open: BTreeMap<u32, String> = fs::read_dir(mirror.join("fd"))
        .unwrap()
        .flatten()
        .filter_map(|fd| {
            let to = fs::read_link(fd.path()).ok()?;
            Some((fd.file_name().to_str()?.parse().ok()?, to.to_str()?.to_owned()))
        })
        .collect();
    assert_eq!(open[&2], "/dev/null");
    assert!(open.iter().all(|(number, to)| *number == 2 || to.starts_with("socket:")), "{open:?}");
    running.join().unwrap().unwrap();
    assert!(!mirror.exists(), "the run is over, and so is its mirror");
}

fn a_mirror_that_dies() {
    let (running, mirror) = held("dies.example");
    kill(mirror.file_name().unwrap().to_str().unwrap());
    let finished = running.join().unwrap().unwrap();
    assert_eq!(finished.receipt.cause, Cause::Wall, "the payload goes on");
    assert_eq!(text(&finished.stdout.head), "held\nreleased\n");
    assert!(matches!(finished.receipt.egress, EgressRecord::Unavailable(_)), "{:?}", finished.receipt.egress);
}

fn a_helper_that_dies_takes_its_mirror_along() {
    let (running, mirror) = held("orphan.example");
    let status = fs::read_to_string(mirror.join("status")).unwrap();
    kill(status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim());
    assert!(within(Duration::from_secs(10), || !mirror.exists()));
    running.join().unwrap().unwrap_err();
}
