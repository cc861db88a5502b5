//! Every system call of a launch made to fail in turn, and every process of it killed at each: the payload never runs
//! less confined than in a launch without a fault, an error names its step, and nothing is left.
//!
//! The faults come from outside, by ptrace(2), so that what is tested is what ships.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a helper of tests fails by panicking, as they do

mod harness;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use harness::{HostState, Scratch, spawn_helper};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tack_sandbox_client::protocol::frame::{self, HEADER_BYTES};
use tack_sandbox_client::protocol::{
    Access, Cause, Mount, Mounts, Part, Receipt, Reply, Request, RunLimits, RunRequest, Stage, Stream, Strings,
};

/// What the payload sees of its confinement, in lines that are the same in every launch.
const LOOK: &str = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/self/status; cat /proc/self/limits; \
    cut -d' ' -f5- /proc/self/mountinfo | sed -E 's/ (shared|master):[0-9]+//; s/ [^ ]+ rw,.*lowerdir.*//' | wc -l; ls / /dev /etc /proc/sys; \
    cat /proc/net/dev /proc/sys/kernel/hostname; hostname; ls -l /proc/self/fd | grep -c ' -> '; umask; \
    for it in net mnt ipc uts pid user cgroup; do readlink /proc/self/ns/$it >/dev/null && echo $it; done; \
    echo x >/usr/fault 2>/dev/null || echo read-only; cat /etc/shadow 2>/dev/null || echo hidden; pwd; cat /proc/self/oom_score_adj; \
    ls /sys 2>/dev/null || echo nothing";

/// Where in a launch a fault is put: at a process, counted in the order of their forks, and at its system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    process: usize,
    call: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The call does nothing and says this.
    Error(Errno),
    /// The process is killed before it.
    Kill,
}

/// What came of a launch.
struct Launch {
    /// How many calls each process made before it executed the payload.
    calls: Vec<usize>,
    /// The number of the call at the point, if it was reached.
    hit: Option<u64>,
    answer: Option<(Receipt, Vec<u8>)>,
}

/// How long a launch may take, faults and tracing included: the helper gives up a set-up that hangs after ten seconds.
const BOUND: Duration = Duration::from_secs(25);

/// Runs [`LOOK`] with a read-only directory, and puts a fault at `point`.
fn launch(scratch: &Scratch, at: Option<(Point, Fault)>) -> Launch {
    let (mut socket, helper) = spawn_helper();
    let first = Pid::from_raw(helper.id().cast_signed());
    // It waits for its request (`recvmsg`): everything from there on is the launch's.
    let waits = || std::fs::read_to_string(format!("/proc/{first}/syscall")).is_ok_and(|it| it.starts_with("47 "));
    assert!(harness::within(BOUND, waits), "the helper does not ask for its request");
    ptrace::seize(
        first,
        Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL,
    )
    .unwrap();
    ptrace::interrupt(first).unwrap();
    let request = request();
    let source = std::fs::File::open(&scratch.0).unwrap();
    harness::send_with(&socket, &request, &[&source]);
    let traced = trace(first, at);
    let answer = read(&mut socket);
    reap(helper);
    Launch { calls: traced.0, hit: traced.1, answer }
}

fn request() -> Vec<u8> {
    let argv = ["/bin/sh\0-c\0", LOOK, "\0"].concat();
    let mut mounts = Mounts::new();
    mounts.push(Mount { target: b"/task", access: Access::ReadOnly }).unwrap();
    let request = Request::Run(RunRequest {
        argv: Strings::new(argv.as_bytes()).unwrap(),
        environment: Strings::new(b"PATH=/usr/bin:/bin\0").unwrap(),
        directory: b"/task",
        mounts,
        limits: RunLimits::default(),
        report: true,
        live: false,
        egress: tack_sandbox_client::Egress::None,
    });
    let mut buffer = vec![0; frame::MAX_FRAME_BYTES];
    frame::encode(&request, &mut buffer).unwrap().to_vec()
}

/// One traced process.
#[derive(Default)]
struct Traced {
    index: usize,
    calls: usize,
    /// It is in a call: the next stop is that call's end.
    inside: bool,
    /// What that end is made to say.
    answer: Option<Errno>,
}

/// Follows all processes until none is left; the calls of each, and the number of the call at the point.
fn trace(first: Pid, at: Option<(Point, Fault)>) -> (Vec<usize>, Option<u64>) {
    let mut processes: BTreeMap<Pid, Traced> = BTreeMap::from([(first, Traced::default())]);
    let (mut calls, mut hit, mut early) = (vec![0], None, Vec::new());
    let end = Instant::now() + BOUND;
    while !processes.is_empty() {
        let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => break,
            Err(Errno::EINTR) => continue,
            status => status.unwrap(),
        };
        let Some(pid) = status.pid() else {
            let left = || {
                processes
                    .keys()
                    .map(|it| std::fs::read_to_string(format!("/proc/{it}/syscall")).unwrap_or_default())
                    .collect::<Vec<_>>()
            };
            assert!(Instant::now() < end, "a launch hangs: {at:?} (call {hit:?}): {:?}", left());
            std::thread::sleep(Duration::from_micros(50));
            continue;
        };
        let signal = match status {
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                processes.remove(&pid);
                continue;
            }
            WaitStatus::PtraceSyscall(_) => {
                let process = processes.get_mut(&pid).unwrap();
                process.inside = !process.inside;
                if process.inside {
                    let here = Point { process: process.index, call: process.calls };
                    process.calls += 1;
                    calls[process.index] = process.calls;
                    if let Some((point, fault)) = at
                        && point == here
                    {
                        let mut registers = ptrace::getregs(pid).unwrap();
                        hit = Some(registers.orig_rax);
                        match fault {
                            Fault::Kill => drop(kill(pid, Signal::SIGKILL)),
                            Fault::Error(errno) => {
                                // No call has this number: the kernel makes none. A close that fails has closed all the
                                // same (man 2 close), and an exit does not fail.
                                match registers.orig_rax.cast_signed() {
                                    libc::SYS_close | libc::SYS_exit | libc::SYS_exit_group => {}
                                    _ => registers.orig_rax = u64::MAX,
                                }
                                ptrace::setregs(pid, registers).unwrap();
                                process.answer = Some(errno);
                            }
                        }
                    }
                } else if let Some(errno) = process.answer.take() {
                    let mut registers = ptrace::getregs(pid).unwrap();
                    registers.rax = i64::from(-(errno as i32)).cast_unsigned();
                    ptrace::setregs(pid, registers).unwrap();
                }
                None
            }
            WaitStatus::PtraceEvent(_, _, event) if event == ptrace::Event::PTRACE_EVENT_EXEC as i32 => {
                // The payload is on its own, and what it does is no part of the launch.
                processes.remove(&pid);
                ptrace::detach(pid, None).ok();
                continue;
            }
            WaitStatus::PtraceEvent(_, _, event) if event == ptrace::Event::PTRACE_EVENT_STOP as i32 => {
                if !processes.contains_key(&pid) {
                    // Its parent's stop, which says which fork it is, comes after: it waits for that.
                    early.push(pid);
                    continue;
                }
                None
            }
            WaitStatus::PtraceEvent(..) => {
                let child = Pid::from_raw(i32::try_from(ptrace::getevent(pid).unwrap_or(0)).unwrap());
                processes.insert(child, Traced { index: calls.len(), ..Traced::default() });
                calls.push(0);
                if early.contains(&child) {
                    early.retain(|it| *it != child);
                    ptrace::syscall(child, None).ok();
                }
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        // It may have been killed meanwhile: then its end is told next.
        ptrace::syscall(pid, signal).ok();
    }
    (calls, hit)
}

/// The helper's answer, if it gave a whole one.
fn read(socket: &mut UnixStream) -> Option<(Receipt, Vec<u8>)> {
    let mut output = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        match socket.read_exact(&mut header) {
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return None,
            read => read.unwrap(),
        }
        let mut body = vec![0; frame::body_bytes(&header).unwrap()];
        if socket.read_exact(&mut body).is_err() {
            return None;
        }
        match frame::decode_body(&body).unwrap() {
            Reply::Output { stream: Stream::Stdout, part: Part::Head, bytes } => output.extend_from_slice(bytes),
            Reply::Done(receipt) => return Some((receipt, output)),
            Reply::Refused(_) => return None,
            _ => {}
        }
    }
}

fn reap(mut helper: Child) {
    // The tracer has waited for it already.
    drop(helper.wait());
}

/// What a launch without a fault shows, and all the points of it.
fn reference(scratch: &Scratch) -> (String, Vec<Point>) {
    let plain = launch(scratch, None);
    let (receipt, output) = plain.answer.expect("a launch without a fault");
    assert_eq!(receipt.exit_status(), Some(0), "{}", receipt.cause);
    let points = plain.calls.iter().enumerate();
    let points = points.flat_map(|(process, calls)| (0..*calls).map(move |call| Point { process, call }));
    (String::from_utf8(output).unwrap(), points.collect())
}

/// Puts each of `points` under `fault`; how many launches failed by step, were run all the same, or gave no answer.
fn inject(
    fault: Fault,
    scratch: &Scratch,
    expected: &str,
    points: &[Point],
) -> (BTreeMap<&'static str, usize>, usize, usize) {
    let host = HostState::now();
    let (mut failed, mut run, mut silent) = (BTreeMap::new(), 0, 0);
    for point in points {
        let launch = launch(scratch, Some((*point, fault)));
        let what = format!("{fault:?} at call {} of process {} ({:?})", point.call, point.process, launch.hit);
        match launch.answer {
            None => silent += 1,
            Some((receipt, output)) => match receipt.cause {
                Cause::SetUp(failure) => {
                    *failed.entry(failure.stage.name()).or_default() += 1;
                    // A helper that could not hear how the launch went takes it for failed; then it may have run.
                    let found = String::from_utf8_lossy(&output);
                    assert!(expected.starts_with(&*found), "{what}: {failure}\n{found}");
                }
                Cause::CommandNotFound | Cause::CommandNotExecutable { .. } => {
                    *failed.entry(Stage::Exec.name()).or_default() += 1;
                }
                // What a payload that ran has seen of its confinement is as it was. A helper whose reading failed has not
                // heard all of it.
                cause => {
                    run += 1;
                    let found = String::from_utf8_lossy(&output);
                    let same = expected.starts_with(&*found);
                    assert!(same, "{what}: {cause}, {:?}\n{found}\nin place of\n{expected}", receipt.layers);
                }
            },
        }
    }
    host.assert_unchanged();
    (failed, run, silent)
}

fn told(name: &str, count: usize, outcome: &(BTreeMap<&'static str, usize>, usize, usize)) {
    let (failed, run, silent) = outcome;
    let line = format!(
        "{name}: {count} faults; {} launches failed ({failed:?}), {run} ran as confined as ever, {silent} helpers ended\n",
        failed.values().sum::<usize>()
    );
    // On standard error itself: what passes is not shown what it prints.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[test]
fn every_system_call_of_a_launch_may_fail_and_every_process_may_be_killed() {
    if !harness::can_sandbox("faults in a launch") {
        return;
    }
    let scratch = Scratch::new("faults");
    let (expected, points) = reference(&scratch);
    assert!(points.len() > 150, "{} points", points.len());
    assert!(expected.contains("read-only\nhidden\n"), "{expected}");
    // All of them where there is time for it (some ten minutes), else every second of the errors and some of the rest.
    let all = std::env::var_os("TACK_ALL_FAULTS").is_some();
    let some = |step: usize| points.iter().copied().step_by(if all { 1 } else { step }).collect::<Vec<Point>>();
    for (fault, points) in
        [(Fault::Error(Errno::EIO), some(2)), (Fault::Error(Errno::ENOMEM), some(19)), (Fault::Kill, some(11))]
    {
        let outcome = inject(fault, &scratch, &expected, &points);
        told(&format!("{fault:?}"), points.len(), &outcome);
        assert!(!outcome.0.is_empty() && outcome.1 > 0, "some launches fail, some do not");
    }
}
