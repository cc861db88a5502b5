//! The conversation with a helper: what it refuses, and that it outlives no client.

mod harness;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{
    HELPER, HostState, Scratch, ask_by_hand, client, output, processes_with, read_answer, request_frame, shell,
    spawn_helper, within,
};
use tack_sandbox_client::protocol::{Cause, Refusal, Reply, Stage, frame};
use tack_sandbox_client::{Client, ClientError, Helper};

#[test]
fn what_is_no_request_is_refused_with_a_reason() {
    let frame_of = |body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        [b"tk".as_slice(), &frame::VERSION.to_le_bytes(), &length, body].concat()
    };
    let mut wrong_version = frame_of(b"");
    wrong_version[2] = 99;
    let mut too_long = frame_of(b"");
    too_long[4..].copy_from_slice(&u32::MAX.to_le_bytes());
    #[rustfmt::skip]
    let cases: [(&str, Vec<u8>); 6] = [
        ("not a frame",                  b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("another version",              wrong_version),
        ("a body past the bound",        too_long),
        ("an empty body",                frame_of(b"")),
        ("an unknown request",           frame_of(b"\x7f")),
        ("a request with bytes left",    frame_of(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")),
    ];
    for (name, bytes) in cases {
        let (mut ours, helper) = spawn_helper();
        ours.write_all(&bytes).unwrap();
        let answer = read_answer(&mut ours);
        helper.wait_with_output().unwrap();
        let reply = frame::decode::<Reply>(&answer);
        assert_eq!(reply, Ok(Reply::Refused(Refusal::Malformed)), "{name}");
    }
}

#[test]
fn descriptors_that_do_not_fit_the_request_are_refused() {
    if !harness::can_sandbox("descriptors beside the request") {
        return;
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    // None for one mount, one for none, two for one; then more than any request has.
    for (mounts, descriptors) in [(1, 0), (0, 1), (1, 2), (0, 200)] {
        let (ours, helper) = spawn_helper();
        let frame = harness::request_frame_with(b"true\0", mounts);
        harness::send_with(&ours, &frame, &vec![&null; descriptors]);
        let answer = read_answer(&mut &ours);
        helper.wait_with_output().unwrap();
        match frame::decode::<Reply>(&answer) {
            Ok(Reply::Refused(refusal)) => assert_eq!((refusal, descriptors), (Refusal::Malformed, 200)),
            Ok(Reply::Done(receipt)) => {
                let Cause::SetUp(failure) = receipt.cause else { panic!("{mounts} {descriptors}: {}", receipt.cause) };
                assert_eq!((failure.stage, failure.errno), (Stage::Request, libc::EBADF), "{mounts} {descriptors}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_that_says_nothing_or_half_gets_no_helper_that_lingers() {
    for bytes in [b"".as_slice(), b"tk\x01", &request_frame(b"true\0")[..20]] {
        let (mut ours, mut helper) = spawn_helper();
        ours.write_all(bytes).unwrap();
        drop(ours);
        assert!(within(Duration::from_secs(2), || helper.try_wait().unwrap().is_some()), "{bytes:?}");
    }
}

#[test]
fn standard_input_that_is_no_socket_is_an_error() {
    let output = Command::new(HELPER).arg("--once").stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("tack-sandboxd: standard input is not a socket to a client"), "{error}");
    let output = Command::new(HELPER).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: tack-sandboxd --once"));
}

#[test]
fn without_root_there_is_an_error_that_says_what_is_needed() {
    if !harness::can_sandbox("running without root") {
        return;
    }
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    // A copy that uid 65534 may execute, wherever the build's own directory is.
    let scratch = Scratch::new("without-root");
    let copy = scratch.0.join("helper");
    std::fs::copy(HELPER, &copy).unwrap();
    let mut command = Command::new(copy);
    command.arg("--once").uid(65_534).gid(65_534).stdin(std::os::fd::OwnedFd::from(theirs));
    let helper = command.spawn().unwrap();
    drop(command);
    ours.write_all(&request_frame(b"true\0")).unwrap();
    let answer = read_answer(&mut ours);
    helper.wait_with_output().unwrap();
    let Ok(Reply::Refused(refusal)) = frame::decode::<Reply>(&answer) else { panic!("{answer:?}") };
    assert_eq!(refusal, Refusal::NotRoot { uid: 65_534 });
    assert!(refusal.to_string().contains("must start as root"), "{refusal}");
}

#[test]
fn a_client_without_a_helper_says_so() {
    let error = Client::with(Helper::Installed("/nowhere/tack-sandboxd".into())).run(&shell("true")).unwrap_err();
    assert!(matches!(error, ClientError::Spawn { .. }), "{error}");
    let error = Client::with(Helper::Installed("/bin/true".into())).run(&shell("true")).unwrap_err();
    assert!(matches!(error, ClientError::HelperDied { status: Some(status) } if status.success()), "{error}");
    let error = Client::with(Helper::Installed("/bin/echo".into())).run(&shell("true")).unwrap_err();
    assert!(matches!(error, ClientError::HelperDied { .. }), "{error}");
}

#[test]
fn what_a_client_happens_to_have_is_not_the_payload_s() {
    if !harness::can_sandbox("what the helper holds") {
        return;
    }
    // A file of the host that this process leaves open for whatever it spawns.
    let scratch = Scratch::new("leak");
    let path = scratch.0.join("secret");
    std::fs::write(&path, "secret").unwrap();
    let script = format!("exec 9<{}; umask 077; exec setarch -R {HELPER} --once", path.display());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).env("SECRET", "secret").stdin(std::os::fd::OwnedFd::from(theirs));
    let helper = command.spawn().unwrap();
    drop(command);
    let argv = b"/bin/sh\0-c\0/bin/cat <&9; echo $?; echo \"<$SECRET>\"; ls /proc/self/fd; \
          ls -ld /etc /etc/passwd /dev/null | cut -c1-10; umask; cat /proc/self/personality\0";
    ours.write_all(&request_frame(argv)).unwrap();
    let answer = read_answer(&mut ours);
    helper.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    let expected = "2\n<>\n0\n1\n2\n3\ncrw-rw-rw-\ndrwxr-xr-x\n-rw-r--r--\n0022\n00000000\n";
    assert!(answer.contains(expected), "EBADF, no variable, four descriptors, own modes: {answer:?}");
    assert!(!answer.contains("secret"), "{answer:?}");
}

#[test]
fn a_helper_killed_at_any_moment_leaves_nothing_behind() {
    if !harness::can_sandbox("a helper killed at any moment") {
        return;
    }
    let before = HostState::now();
    for step in 0..40 {
        let (ours, mut helper) = ask_by_hand("setsid sleep 4781 & exec sleep 4782");
        std::thread::sleep(Duration::from_micros(step * 500));
        helper.kill().unwrap();
        helper.wait().unwrap();
        drop(ours);
    }
    let gone = within(Duration::from_secs(5), || processes_with("sleep 478").is_empty());
    assert!(gone, "{:?}", processes_with("sleep 478"));
    before.assert_unchanged();
}

#[test]
fn many_runs_one_after_another_and_side_by_side_leave_nothing_behind() {
    if !harness::can_sandbox("many runs") {
        return;
    }
    let before = HostState::now();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(output(&shell("echo $((6 * 7))")), "42\n");
                }
            });
        }
    });
    println!("40 runs, 4 at a time: {:?}", began.elapsed());
    before.assert_unchanged();
    let digests: Vec<_> = (0..2).map(|_| client().run(&shell("true")).unwrap().receipt.policy_digest).collect();
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn a_run_of_another_pid_namespace_is_no_leftover() {
    let test = "runs of two pid namespaces";
    if !harness::has_controller(test, "memory_controller") {
        return;
    }
    // The other helper's process ids mean nothing here: only its lock says that it lives.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", HELPER, "--once"]);
    let other = command.stdin(std::os::fd::OwnedFd::from(theirs)).stdout(Stdio::null()).spawn();
    drop(command);
    let Ok(other) = other else { return harness::skipped(test, "unshare(1)") };
    ours.write_all(&request_frame(b"/bin/sh\0-c\0sleep 1; echo survived\0")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..3 {
        assert_eq!(output(&shell("echo swept")), "swept\n");
    }
    let answer = read_answer(&mut ours);
    other.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("survived\n"), "{answer:?}");
}
