//! The daemon: whom it serves, what it refuses, and that it leaves nothing, however it or its clients end.
//!
//! A test program of one thread where it counts: it takes other users' ids and gives them back.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a helper of tests fails by panicking, as they do

mod harness;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use harness::{HELPER, HostState, Scratch, processes_with, read_answer, shell, within};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, setegid, seteuid};
use tack_sandbox_client::protocol::{self, Cause, Key, Limit, Refusal, Reply, SourceProblem, Token, frame};
use tack_sandbox_client::{Access, Client, ClientError, Finished, Mount, Run, Source};

/// A user that owns nothing.
const USER: u32 = 12_345;

fn main() -> ExitCode {
    if !harness::can_sandbox("the daemon") {
        return if std::env::var_os("CI").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let tests: &[(&str, fn())] = &[
        ("a run comes back with the daemon's word on it", a_run_comes_back_signed),
        ("a receipt that the daemon did not sign is none", a_forged_receipt_is_none),
        ("who may ask is root's to say", who_may_ask_is_root_s_to_say),
        ("what is no submission is refused", what_is_no_submission_is_refused),
        ("a client that asks byte by byte is hung up on", a_client_that_asks_byte_by_byte_is_hung_up_on),
        ("nothing above a ceiling is run", nothing_above_a_ceiling_is_run),
        ("a peer is shown what it could reach by itself", a_peer_is_shown_what_it_could_reach_by_itself),
        ("what was opened in another mount namespace is said to be", what_was_opened_elsewhere_is_said_to_be),
        ("a key is answered once, also by the next daemon", a_key_is_answered_once),
        ("a full disk is said before anything is run", a_full_disk_is_said_before_anything_is_run),
        ("more than root allows wait or are refused", more_than_root_allows_wait_or_are_refused),
        ("one peer leaves places to the others", one_peer_leaves_places_to_the_others),
        ("a daemon without descriptors serves again", a_daemon_without_descriptors_serves_again_when_it_has_some),
        ("nothing outlives the daemon", nothing_outlives_the_daemon),
        ("a keeper or a client that dies takes its run along", a_keeper_or_a_client_that_dies_takes_its_run_along),
        ("many clients at a time leave nothing in the daemon", many_clients_leave_nothing_in_the_daemon),
        ("a changed configuration holds for the next request", a_changed_configuration_holds_for_the_next_request),
        ("what the daemon cannot use stops it", what_the_daemon_cannot_use_stops_it),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    for (name, test) in tests.iter().filter(|(name, _)| wanted.iter().all(|it| name.contains(it.as_str()))) {
        print!("test {name} ... ");
        std::io::stdout().flush().unwrap();
        test();
        println!("ok");
    }
    ExitCode::SUCCESS
}

type Change = fn(&mut Run);
type Prepare = fn(&Path);

/// A daemon of the test's own, with its places.
struct Daemon {
    scratch: Scratch,
    process: Child,
}

impl Daemon {
    fn start(name: &str, config: &str) -> Self {
        Self::start_with(name, config, |_| ())
    }

    fn start_with(name: &str, config: &str, prepare: fn(&Path)) -> Self {
        let scratch = Scratch::new(name);
        prepare(&scratch.0);
        fs::write(scratch.0.join("conf"), config).unwrap();
        let process = spawn(&scratch.0);
        let daemon = Self { scratch, process };
        assert!(within(Duration::from_secs(20), || UnixStream::connect(daemon.socket()).is_ok()), "it serves");
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.scratch.0.join("run/sandboxd.sock")
    }

    fn client(&self) -> Client {
        Client::of_daemon(self.socket(), Token([0; 32]))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.scratch.0);
        assert!(within(Duration::from_secs(20), || UnixStream::connect(self.socket()).is_ok()), "it serves again");
    }

    fn keepers(&self) -> Vec<Pid> {
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.process.id())).unwrap_or_default();
        children.split_whitespace().map(|it| Pid::from_raw(it.parse().unwrap())).collect()
    }

    /// When nobody is served.
    fn descriptors(&self) -> usize {
        assert!(within(Duration::from_secs(20), || self.keepers().is_empty()), "{:?} are kept", self.keepers());
        // A keeper is reaped a moment before its descriptors are let go.
        std::thread::sleep(Duration::from_millis(50));
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        // Where a test mounted one.
        umount2(&self.scratch.0.join("state"), MntFlags::MNT_DETACH).ok();
    }
}

fn spawn(place: &Path) -> Child {
    Command::new(HELPER)
        .arg("serve")
        .args(["--config".as_ref(), place.join("conf").as_os_str()])
        .args(["--runtime".as_ref(), place.join("run").as_os_str()])
        .args(["--state".as_ref(), place.join("state").as_os_str()])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Does something with another user's effective ids.
fn as_user<T>(work: impl FnOnce() -> T) -> T {
    setegid(Gid::from_raw(USER)).unwrap();
    seteuid(Uid::from_raw(USER)).unwrap();
    let done = work();
    seteuid(Uid::from_raw(0)).unwrap();
    setegid(Gid::from_raw(0)).unwrap();
    done
}

fn refusal(answer: Result<Finished, ClientError>) -> Refusal {
    match answer {
        Err(ClientError::Refused(refusal)) => refusal,
        Err(error) => panic!("{error}"),
        Ok(finished) => panic!("it was run: {}", finished.receipt.cause),
    }
}

/// A submission as one frame, for a client that does not wait.
fn submission(argv: &[u8]) -> Vec<u8> {
    let run = protocol::RunRequest {
        argv: protocol::Strings::new(argv).unwrap(),
        environment: protocol::Strings::new(b"PATH=/usr/bin:/bin\0").unwrap(),
        directory: b"/tmp",
        mounts: protocol::Mounts::new(),
        limits: protocol::RunLimits::default(),
        report: false,
        live: false,
        egress: protocol::Egress::None,
    };
    let request = protocol::Request::Submit(protocol::Submission { token: Token([0; 32]), key: None, run });
    let mut buffer = vec![0; frame::MAX_FRAME_BYTES];
    frame::encode(&request, &mut buffer).unwrap().to_vec()
}

/// A run that sleeps under a name of its own, asked for by hand.
fn sleeper(daemon: &Daemon, marker: &str) -> UnixStream {
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    let script = format!("sleep 600; : {marker}");
    client.write_all(&submission(&[b"/bin/sh\0-c\0", script.as_bytes(), b"\0"].concat())).unwrap();
    assert!(within(Duration::from_secs(10), || !processes_with(marker).is_empty()), "it sleeps");
    client
}

fn gone(marker: &str) -> bool {
    within(Duration::from_secs(5), || processes_with(marker).is_empty())
}

fn a_run_comes_back_signed() {
    let daemon = Daemon::start("signed", "");
    let finished = daemon.client().run(&shell("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!(
        (finished.receipt.exit_status(), &finished.stdout.head[..], &finished.stderr.head[..]),
        (Some(7), &b"out\n"[..], &b"err\n"[..])
    );
    let signed = finished.signed.unwrap();
    assert_eq!((signed.statement.peer_uid, signed.statement.receipt), (0, finished.receipt));
    let secret = fs::metadata(daemon.scratch.0.join("state/receipt.key")).unwrap();
    assert_eq!((secret.permissions().mode() & 0o777, secret.len()), (0o600, 32));
    assert_eq!(fs::metadata(daemon.scratch.0.join("state")).unwrap().permissions().mode() & 0o777, 0o700);
}

fn a_forged_receipt_is_none() {
    let daemon = Daemon::start("forged", "");
    let public = daemon.scratch.0.join("run/receipt.pub");
    let good = fs::read(&public).unwrap();
    // Another daemon's key.
    let other = Daemon::start("forger", "");
    fs::copy(other.scratch.0.join("run/receipt.pub"), &public).unwrap();
    let error = daemon.client().run(&shell("true")).unwrap_err().to_string();
    assert_eq!(error, "the receipt's signature does not hold: the daemon did not sign this");
    fs::write(&public, b"short").unwrap();
    let error = daemon.client().run(&shell("true")).unwrap_err().to_string();
    assert_eq!(error, "the receipt's signature does not hold: the public key is none");
    fs::write(&public, good).unwrap();
    daemon.client().run(&shell("true")).unwrap();
}

fn who_may_ask_is_root_s_to_say() {
    let token = Scratch::new("token");
    let file = token.0.join("token");
    fs::write(&file, "ab".repeat(32)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let others = Daemon::start("others", "peer uid 54321\n");
    let by_uid = Daemon::start("by-uid", &format!("peer uid {USER}\n"));
    let by_gid = Daemon::start("by-gid", &format!("peer gid {USER}\n"));
    let by_token = Daemon::start("by-token", &format!("peer uid {USER}\ntoken-file {}\n", file.display()));
    as_user(|| {
        assert_eq!(refusal(others.client().run(&shell("true"))), Refusal::Peer { uid: USER });
        for daemon in [&by_uid, &by_gid] {
            let finished = daemon.client().run(&shell("id -u")).unwrap();
            assert_eq!(finished.stdout.head, b"1000\n");
            assert_eq!(finished.signed.unwrap().statement.peer_uid, USER);
        }
        assert_eq!(refusal(by_token.client().run(&shell("true"))), Refusal::Token);
        let client = Client::of_daemon(by_token.socket(), Token([0xab; 32]));
        assert_eq!(client.run(&shell("true")).unwrap().receipt.exit_status(), Some(0));
    });
}

fn what_is_no_submission_is_refused() {
    let daemon = Daemon::start("malformed", "");
    let mut unknown = submission(b"true\0");
    unknown[8] = 0x7f;
    let mut huge = submission(b"true\0");
    huge[4..8].copy_from_slice(&(100_u32 << 20).to_le_bytes());
    let mut trailing = submission(b"true\0");
    let longer = u32::try_from(trailing.len() - 8 + 1).unwrap();
    trailing[4..8].copy_from_slice(&longer.to_le_bytes());
    trailing.push(0);
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), harness::request_frame(b"true\0"), unknown, huge, trailing] {
        let mut client = UnixStream::connect(daemon.socket()).unwrap();
        client.write_all(&bytes).unwrap();
        let answer = read_answer(&mut client);
        assert_eq!(frame::decode::<Reply>(&answer), Ok(Reply::Refused(Refusal::Malformed)));
    }
    // One that says nothing holds nothing up.
    let silent = UnixStream::connect(daemon.socket()).unwrap();
    daemon.client().run(&shell("true")).unwrap();
    drop(silent);
    assert!(within(Duration::from_secs(5), || daemon.keepers().is_empty()), "nobody is kept for nobody");
}

fn a_client_that_asks_byte_by_byte_is_hung_up_on() {
    let daemon = Daemon::start("dripping", "runs 1\nqueue 4\n");
    let frame = submission(&[b"/bin/true\0".to_vec(), b"x".repeat(4_000), b"\0".to_vec()].concat());
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    let began = std::time::Instant::now();
    let sent = frame.iter().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(100));
        client.write_all(&[**byte]).is_ok()
    });
    assert!(sent.count() < frame.len(), "it was let finish after {:?}", began.elapsed());
    daemon.client().run(&shell("true")).unwrap();
}

fn nothing_above_a_ceiling_is_run() {
    let daemon = Daemon::start("ceilings", "limit memory_bytes 268435456\nlimit wall_us 5000000\nlimit processes 16\n");
    let with = |change: fn(&mut Run)| {
        let mut run = shell("true");
        run.limits.memory_bytes = 64 << 20;
        run.limits.wall_us = 1_000_000;
        run.limits.processes = 8;
        change(&mut run);
        daemon.client().run(&run)
    };
    assert_eq!(with(|_| ()).unwrap().receipt.exit_status(), Some(0));
    #[rustfmt::skip]
    let cases: [(Change, Limit, u64); 3] = [
        (|run| run.limits.memory_bytes = 1 << 30, Limit::Memory,    256 << 20),
        (|run| run.limits.wall_us = u64::MAX,     Limit::Wall,      5_000_000),
        (|run| run.limits.processes = 17,         Limit::Processes, 16),
    ];
    for (change, limit, most) in cases {
        assert_eq!(refusal(with(change)), Refusal::Ceiling { limit, most });
    }
}

fn a_peer_is_shown_what_it_could_reach_by_itself() {
    let roots = Scratch::new("roots");
    let root = roots.0.join("root");
    let make = |name: &str, owner: u32, mode: u32| {
        let path = roots.0.join(name);
        fs::create_dir_all(&path).unwrap();
        for (file, mode) in [("open", 0o644), ("closed", 0o600)] {
            fs::write(path.join(file), "text").unwrap();
            chown(path.join(file), Some(owner), Some(owner)).unwrap();
            fs::set_permissions(path.join(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    make("root", 0, 0o755);
    let own = make("root/own", USER, 0o700);
    let theirs = make("root/theirs", 0, 0o777);
    let secret = make("root/secret", 0, 0o700);
    let outside = make("outside", USER, 0o700);
    // A file of root's in a directory of the user's.
    fs::write(own.join("roots"), "text").unwrap();
    fs::set_permissions(own.join("roots"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    let daemon = Daemon::start("granted", &format!("peer uid {USER}\nroot {}\n", root.display()));
    let shown = |source: Source, access, script: &str| {
        let mut run = shell(script);
        run.directory = "/task".into();
        run.mounts.push(Mount { source, target: "/task".into(), access });
        daemon.client().run(&run)
    };
    let open = |path: &Path| Source::open(path).unwrap();
    // Descriptors that somebody with more rights has opened for the peer.
    let (theirs_lent, secret_lent) = (open(&theirs), open(&secret));
    as_user(|| {
        let (read, write) = (Access::ReadOnly, Access::ReadWrite);
        let look = "cat open closed roots 2>/dev/null; echo; echo x >new && echo written";
        let finished = shown(open(&own), write, look).unwrap();
        assert_eq!(finished.stdout.head, b"texttext\nwritten\n", "one's own, but for what is root's in it");
        let finished = shown(open(&own), read, look).unwrap();
        assert_eq!(finished.stdout.head, b"texttext\n", "one's own, to read");
        let finished = shown(theirs_lent.clone(), read, "cat open closed 2>/dev/null; echo").unwrap();
        assert_eq!(finished.stdout.head, b"text\n", "another's, as anyone sees it");
        let finished = shown(open(&own.join("open")), read, "cat /task").map(|it| it.receipt.cause);
        assert!(matches!(finished, Ok(Cause::SetUp(_))), "a file is no directory to start in: {finished:?}");
        let refused = |source, access| match refusal(shown(source, access, "true")) {
            Refusal::Source { mount: 0, problem } => problem,
            other => panic!("{other}"),
        };
        assert_eq!(refused(theirs_lent, write), SourceProblem::NotOwned);
        assert_eq!(refused(secret_lent, read), SourceProblem::NotReadable);
        assert_eq!(refused(open(&outside), read), SourceProblem::OutsideRoots);
        assert_eq!(refused(open(&root.join("link")), read), SourceProblem::OutsideRoots);
        assert_eq!(refused(open(&outside.join("open")), read), SourceProblem::OutsideRoots);
        assert_eq!(refused(open(Path::new("/etc")), read), SourceProblem::OutsideRoots);
        assert_eq!(refused(open(Path::new("/dev/null")), read), SourceProblem::Kind);
    });
    let new = fs::metadata(own.join("new")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&new), USER, "what was made is the peer's");
}

fn what_was_opened_elsewhere_is_said_to_be() {
    let roots = Scratch::new("elsewhere");
    let daemon = Daemon::start("namespaces", &format!("root {}\n", roots.0.display()));
    let (client, root) = (daemon.client(), roots.0.clone());
    let shown = move || {
        let mut run = shell("true");
        run.mounts.push(Mount { source: root.clone().into(), target: "/task".into(), access: Access::ReadOnly });
        client.run(&run)
    };
    shown().unwrap();
    // Of this thread alone.
    let elsewhere = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        shown()
    });
    let refused = refusal(elsewhere.join().unwrap());
    assert_eq!(refused, Refusal::Source { mount: 0, problem: SourceProblem::Elsewhere });
}

fn a_key_is_answered_once() {
    let scratch = Scratch::new("once-only");
    let mut daemon = Daemon::start("keys", &format!("root {}\n", scratch.0.display()));
    let mut run = shell("echo once >>count; wc -l <count");
    run.directory = "/task".into();
    run.mounts.push(scratch.mount("/task", Access::ReadWrite));
    run.key = Some(Key([9; 16]));
    let first = daemon.client().run(&run).unwrap();
    let again = daemon.client().run(&run).unwrap();
    daemon.restart();
    let later = daemon.client().run(&run).unwrap();
    for finished in [&first, &again, &later] {
        assert_eq!((&finished.stdout.head[..], finished.signed), (&b"1\n"[..], first.signed));
    }
    run.argv[2] = "echo another".into();
    assert_eq!(refusal(daemon.client().run(&run)), Refusal::KeyReused);
    run.key = None;
    daemon.client().run(&run).unwrap();
    assert_eq!(fs::read_to_string(scratch.0.join("count")).unwrap(), "once\n");
}

fn a_full_disk_is_said_before_anything_is_run() {
    let (asked, refused) = std::thread::spawn(|| {
        // Of this thread alone, and of the daemon that it starts.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let daemon = Daemon::start_with("full", "", |place| {
            fs::create_dir(place.join("state")).unwrap();
            let size = Some("size=256k,mode=0700");
            mount(Some("tmpfs"), &place.join("state"), Some("tmpfs"), MsFlags::empty(), size).unwrap();
        });
        let mut run = shell("echo ran >&3; echo done");
        (run.report, run.key) = (true, Some(Key([1; 16])));
        let mut live = 0;
        let refused = daemon.client().run_live(&run, &mut |_| live += 1);
        assert_eq!(live, 0, "it was run");
        run.limits.kept_bytes = 4 << 10;
        let asked = [(); 2].map(|()| daemon.client().run(&run).map(|it| (it.stdout.head, it.signed)));
        (asked, refused)
    })
    .join()
    .unwrap();
    assert_eq!(refusal(refused), Refusal::NoStore { errno: libc::ENOSPC });
    let [first, again] = asked.map(Result::unwrap);
    assert_eq!((&first.0[..], &first), (&b"done\n"[..], &again), "there is room for a short answer");
}

fn more_than_root_allows_wait_or_are_refused() {
    let daemon = Daemon::start("busy", "runs 1\nqueue 1\n");
    let first = sleeper(&daemon, "tack-marker-busy");
    let mut second = UnixStream::connect(daemon.socket()).unwrap();
    second.write_all(&submission(b"/bin/true\0")).unwrap();
    let refused = within(Duration::from_secs(5), || {
        matches!(daemon.client().run(&shell("true")), Err(ClientError::Refused(Refusal::Busy { running: 1 })))
    });
    assert!(refused, "the third is refused");
    drop(first);
    let answer = read_answer(&mut second);
    assert!(matches!(frame::decode::<Reply>(&answer), Ok(Reply::Signed(_))), "the second had its turn: {answer:?}");
    assert!(gone("tack-marker-busy"));
}

fn a_daemon_without_descriptors_serves_again_when_it_has_some() {
    let daemon = Daemon::start("descriptors", "runs 2\nqueue 512\n");
    let before = daemon.descriptors();
    let limit = |count: &str| {
        let limit = Command::new("prlimit").args(["--pid", &daemon.process.id().to_string(), count]).status().unwrap();
        assert!(limit.success());
    };
    limit(&format!("--nofile={}:4096", before + 8));
    let idle: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(idle);
    limit("--nofile=4096:4096");
    daemon.client().run(&shell("true")).unwrap();
    assert_eq!(daemon.descriptors(), before);
}

fn one_peer_leaves_places_to_the_others() {
    let daemon = Daemon::start("shares", &format!("peer uid {USER}\nruns 2\nqueue 2\n"));
    let held = as_user(|| [sleeper(&daemon, "tack-marker-share"), sleeper(&daemon, "tack-marker-share")]);
    let refused = as_user(|| refusal(daemon.client().run(&shell("true"))));
    assert_eq!(refused, Refusal::Busy { running: 2 }, "half of four places");
    let mut waiting = UnixStream::connect(daemon.socket()).unwrap();
    waiting.write_all(&submission(b"/bin/true\0")).unwrap();
    drop(held);
    let answer = read_answer(&mut waiting);
    assert!(matches!(frame::decode::<Reply>(&answer), Ok(Reply::Signed(_))), "another had a place in the queue");
    assert!(gone("tack-marker-share"));
}

fn nothing_outlives_the_daemon() {
    let host = HostState::now();
    for round in 0..4 {
        let mut daemon = Daemon::start(&format!("killed-{round}"), "");
        let marker = format!("tack-marker-killed-{round}");
        let clients = [sleeper(&daemon, &marker), sleeper(&daemon, &marker)];
        daemon.kill();
        assert!(gone(&marker), "{:?}", processes_with(&marker));
        for mut client in clients {
            assert_eq!(read_answer(&mut client), b"", "no answer is made up");
        }
        // A request that meets the end of the daemon is told so.
        daemon.process = spawn(&daemon.scratch.0);
        assert!(within(Duration::from_secs(20), || UnixStream::connect(daemon.socket()).is_ok()));
        let (socket, pid) = (daemon.socket(), daemon.pid());
        let asked = std::thread::spawn(move || {
            let run = shell("sleep 600; : tack-marker-lost");
            Client::of_daemon(socket, Token([0; 32])).run(&run).map(|it| it.receipt.cause)
        });
        assert!(within(Duration::from_secs(10), || !processes_with("tack-marker-lost").is_empty()));
        kill(pid, Signal::SIGKILL).unwrap();
        let lost = asked.join().unwrap();
        assert!(matches!(lost, Err(ClientError::DaemonLost)), "{lost:?}");
        assert!(gone("tack-marker-lost"));
    }
    host.assert_unchanged();
}

fn a_keeper_or_a_client_that_dies_takes_its_run_along() {
    let daemon = Daemon::start("dying", "");
    let before = daemon.descriptors();
    let mut client = sleeper(&daemon, "tack-marker-keeper");
    kill(daemon.keepers()[0], Signal::SIGKILL).unwrap();
    assert!(gone("tack-marker-keeper"));
    assert_eq!(read_answer(&mut client), b"");
    let client = sleeper(&daemon, "tack-marker-client");
    drop(client);
    assert!(gone("tack-marker-client"));
    daemon.client().run(&shell("true")).unwrap();
    assert_eq!(daemon.descriptors(), before);
}

fn many_clients_leave_nothing_in_the_daemon() {
    let host = HostState::now();
    let daemon = Daemon::start("many", "runs 8\nqueue 512\n");
    daemon.client().run(&shell("true")).unwrap();
    let before = daemon.descriptors();
    std::thread::scope(|scope| {
        for worker in 0..16 {
            let client = daemon.client();
            scope.spawn(move || {
                for round in 0..8 {
                    let finished = client.run(&shell(&format!("echo {worker} {round}"))).unwrap();
                    assert_eq!(finished.stdout.head, format!("{worker} {round}\n").into_bytes());
                }
            });
        }
    });
    assert_eq!(daemon.descriptors(), before);
    host.assert_unchanged();
}

fn a_changed_configuration_holds_for_the_next_request() {
    let daemon = Daemon::start("changed", "");
    let conf = daemon.scratch.0.join("conf");
    let write = |text: &str| {
        let fresh = daemon.scratch.0.join("conf.new");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, &conf).unwrap();
    };
    as_user(|| assert_eq!(refusal(daemon.client().run(&shell("true"))), Refusal::Peer { uid: USER }));
    write(&format!("peer uid {USER}\n"));
    as_user(|| daemon.client().run(&shell("true")).unwrap());
    // Nonsense changes nothing, and neither does a file that others may write.
    write("peers everyone\n");
    as_user(|| daemon.client().run(&shell("true")).unwrap());
    write("");
    as_user(|| assert_eq!(refusal(daemon.client().run(&shell("true"))), Refusal::Peer { uid: USER }));
}

fn what_the_daemon_cannot_use_stops_it() {
    let failed = |prepare: fn(&Path)| {
        let scratch = Scratch::new("unusable");
        fs::write(scratch.0.join("conf"), "").unwrap();
        prepare(&scratch.0);
        let output = spawn(&scratch.0).wait_with_output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap().replace(&scratch.0.display().to_string(), "")
    };
    #[rustfmt::skip]
    let cases: [(Prepare, &str); 6] = [
        (|it| fs::remove_file(it.join("conf")).unwrap(), "tack-sandboxd: cannot read `/conf`: No such file or directory (os error 2)\n"),
        (|it| fs::write(it.join("conf"), "runs many").unwrap(), "tack-sandboxd: `/conf`, line 1: expected 1 to 1024 after `runs`, found \"runs many\"\n"),
        (|it| fs::set_permissions(it.join("conf"), fs::Permissions::from_mode(0o666)).unwrap(),
            "tack-sandboxd: `/conf`: expected a regular file of root's that nobody else may write (nor, with a token, everybody read); found mode 100666, uid 0\n"),
        (|it| { fs::create_dir(it.join("state")).unwrap(); fs::set_permissions(it.join("state"), fs::Permissions::from_mode(0o777)).unwrap(); },
            "tack-sandboxd: `/state`: expected a directory of root's that nobody else may write\n"),
        (|it| { fs::create_dir(it.join("state")).unwrap(); fs::write(it.join("state/receipt.key"), "short").unwrap(); },
            "tack-sandboxd: `/state/receipt.key`: expected 32 bytes that root alone may read; found 5 bytes, mode 100644, uid 0\n"),
        (|it| chown(it.join("conf"), Some(USER), None).unwrap(),
            "tack-sandboxd: `/conf`: expected a regular file of root's that nobody else may write (nor, with a token, everybody read); found mode 100644, uid 12345\n"),
    ];
    for (prepare, message) in cases {
        assert_eq!(failed(prepare), message);
    }
    let daemon = Daemon::start("first", "");
    let second = spawn(&daemon.scratch.0).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("another daemon serves in"));
}
