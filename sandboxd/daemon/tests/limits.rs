//! What a run may use up, how it ends when it has, and what is left of it.

mod harness;

use std::io::Read;
use std::time::Duration;

use harness::{HostState, ask_by_hand, client, finish, output, processes_with, python_run, shell, within};
use sha2::{Digest, Sha256};
use tack_sandbox_client::protocol::{Cause, End, Figure, Reason, Stage, Stream};
use tack_sandbox_client::{Access, Run, RunLimits};

const MIB: u64 = 1 << 20;

#[test]
fn exit_statuses_and_signals_are_exact() {
    if !harness::can_sandbox("exit statuses") {
        return;
    }
    for status in [0, 1, 2, 125, 126, 127, 128, 255] {
        let receipt = finish(&shell(&format!("exit {status}"))).receipt;
        assert_eq!((receipt.cause, receipt.end), (Cause::Exited, Some(End::Exited { status })), "exit {status}");
        assert_eq!((receipt.exit_status(), receipt.shell_status()), (Some(status), Some(status)));
    }
    for signal in [1, 2, 3, 6, 8, 9, 11, 13, 15, 31] {
        let receipt = finish(&shell(&format!("kill -{signal} $$"))).receipt;
        // The kernel's own answer to a foreign system call cannot be told from the signal.
        let cause = if signal == 31 { Cause::SeccompKill } else { Cause::Signalled };
        assert_eq!((receipt.cause, receipt.end), (cause, Some(End::Signalled { signal })), "signal {signal}");
        assert_eq!((receipt.exit_status(), receipt.shell_status()), (None, Some(128 + signal)));
    }
}

#[test]
fn a_run_that_falls_silent_is_ended_and_one_that_speaks_is_not() {
    if !harness::can_sandbox("the idle limit") {
        return;
    }
    let with = |script: &str| {
        let mut run = shell(script);
        run.limits.idle_us = Some(1_000_000);
        run.limits.wall_us = 20_000_000;
        finish(&run).receipt
    };
    assert_eq!(with("sleep 600").cause, Cause::Idle);
    assert_eq!(with("echo a; sleep 600").cause, Cause::Idle);
    let spoken = with("for i in 1 2 3 4 5; do sleep 0.3; echo $i >&2; done");
    assert_eq!((spoken.cause, spoken.exit_status()), (Cause::Exited, Some(0)), "1.5 seconds, never silent for one");
}

#[test]
fn output_comes_while_the_run_lasts_and_a_slow_reader_holds_nothing_up() {
    if !harness::can_sandbox("live output") {
        return;
    }
    // The second line is written when the first was seen outside.
    let scratch = harness::Scratch::new("live");
    let mut run = shell("echo first; until [ -e seen ]; do sleep 0.01; done; echo second >&2");
    run.directory = "/task".into();
    run.mounts.push(scratch.mount("/task", Access::ReadOnly));
    let mut pieces = Vec::new();
    let finished = client().run_live(&run, &mut |piece| {
        pieces.push((piece.stream, piece.bytes.to_vec()));
        if piece.bytes == b"first\n" {
            std::fs::write(scratch.0.join("seen"), "").unwrap();
        }
    });
    let finished = finished.unwrap();
    assert_eq!(finished.receipt.exit_status(), Some(0), "{}", finished.receipt.cause);
    assert_eq!(pieces, [(Stream::Stdout, b"first\n".to_vec()), (Stream::Stderr, b"second\n".to_vec())]);
    assert_eq!(finished.stdout.head, b"first\n", "what is kept comes back all the same");

    // Four times what may wait for a reader that begins when the run has ended.
    let mut run = shell("head -c 67000000 /dev/zero; echo >done");
    run.directory = "/task".into();
    run.mounts.push(scratch.mount("/task", Access::ReadWrite));
    run.limits.output_bytes = 1 << 30;
    run.limits.kept_bytes = 0;
    let (mut taken, mut skipped) = (0, 0);
    let finished = client().run_live(&run, &mut |piece| {
        assert!(within(Duration::from_mins(1), || scratch.0.join("done").exists()), "the run was held up");
        taken += piece.bytes.len() as u64;
        skipped += piece.skipped;
    });
    let total = finished.unwrap().stdout.bytes_total;
    assert_eq!((total, taken + skipped), (67_000_000, 67_000_000));
    assert!(skipped > 0 && taken > 0, "{taken} taken, {skipped} told to be left out");
}

#[test]
fn a_kill_from_outside_is_not_the_payload_s_signal() {
    if !harness::can_sandbox("a kill from outside") {
        return;
    }
    let finished = std::thread::scope(|scope| {
        let run = scope.spawn(|| finish(&shell("exec sleep 4791")));
        let payload = || processes_with("sleep 4791").into_iter().find(|it| it.ends_with(" sleep 4791 "));
        assert!(within(Duration::from_secs(5), || payload().is_some()));
        let process: i32 = payload().unwrap().split(' ').next().unwrap().parse().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let pid1: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid1), nix::sys::signal::Signal::SIGKILL).unwrap();
        run.join().unwrap()
    });
    let receipt = finished.receipt;
    assert_eq!((receipt.cause, receipt.exit_status(), receipt.shell_status()), (Cause::Killed, None, Some(137)));
}

#[test]
fn pid_1_cannot_be_starved_or_limited_from_inside() {
    let test = "pid 1 and the payload";
    if !harness::can_sandbox(test) {
        return;
    }
    let script = "import ctypes, errno, os, resource\n\
                  libc = ctypes.CDLL(None, use_errno=True)\n\
                  def attempt(name, what):\n\
                  \x20   try: what(); print(name, 'works')\n\
                  \x20   except (OSError, ValueError) as error: print(name, 'refused')\n\
                  def call(*arguments):\n\
                  \x20   if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), '')\n\
                  for pid in (0, 1):\n\
                  \x20   attempt('limit', lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (100, 100)))\n\
                  \x20   attempt('affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))\n\
                  \x20   attempt('policy', lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))\n\
                  \x20   attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))\n\
                  \x20   attempt('disk', lambda: call(251, 1, pid, 0x4004))\n\
                  attempt('nice of all', lambda: os.setpriority(os.PRIO_USER, 0, 19))\n\
                  attempt('disk of all', lambda: call(251, 3, 0, 0x4004))\n\
                  attempt('io_setup', lambda: call(206, 64, ctypes.byref(ctypes.c_ulong(0))))\n";
    let Some(run) = python_run(test, script) else { return };
    let expected = "limit works\naffinity works\npolicy works\nnice works\ndisk works\n\
                    limit refused\naffinity refused\npolicy refused\nnice refused\ndisk refused\n\
                    nice of all refused\ndisk of all refused\nio_setup refused\n";
    // Numbers of system calls are those of x86-64.
    if cfg!(target_arch = "x86_64") {
        assert_eq!(output(&run), expected);
    }
}

#[test]
fn a_command_that_is_not_there_or_cannot_run_is_no_failure_of_the_sandbox() {
    if !harness::can_sandbox("missing commands") {
        return;
    }
    #[rustfmt::skip]
    let cases = [ // program, cause, shell status
        ("/nowhere/at/all",  Cause::CommandNotFound,                                  127),
        ("no-such-command",  Cause::CommandNotFound,                                  127),
        ("/etc/passwd",      Cause::CommandNotExecutable { errno: libc::EACCES },     126),
        ("/usr",             Cause::CommandNotExecutable { errno: libc::EACCES },     126),
    ];
    for (program, cause, status) in cases {
        let receipt = finish(&Run::new([program], "/")).receipt;
        assert_eq!((receipt.cause, receipt.end, receipt.shell_status()), (cause, None, Some(status)), "{program}");
    }
    assert_eq!(output(&Run::new(["true"], "/")), "", "the control, found on PATH");
}

#[test]
fn too_many_or_too_long_arguments_are_an_error_and_not_a_crash() {
    if !harness::can_sandbox("long arguments") {
        return;
    }
    let with = |extra: Vec<String>| {
        let mut run = Run::new(["/bin/true"], "/");
        run.argv.extend(extra.into_iter().map(Into::into));
        finish(&run).receipt.cause
    };
    for (name, extra) in [("10,000 arguments", vec!["x".to_owned(); 10_000]), ("128 KiB", vec!["x".repeat(128 << 10)])]
    {
        let Cause::SetUp(failure) = with(extra) else { panic!("{name} ran") };
        assert_eq!(failure.errno, libc::E2BIG, "{name}: {failure}");
    }
    assert_eq!(with(vec!["x".repeat(1_000); 100]), Cause::Exited, "the control");
}

#[test]
fn limits_that_make_no_sense_are_refused_before_anything_is_made() {
    type Change = fn(&mut RunLimits);
    if !harness::can_sandbox("senseless limits") {
        return;
    }
    #[rustfmt::skip]
    let cases: [(&str, Change); 10] = [
        ("no time",               |limits| limits.wall_us = 0),
        ("no CPU time",           |limits| limits.cpu_us = 0),
        ("no memory",             |limits| limits.memory_bytes = 0),
        ("no process",            |limits| limits.processes = 0),
        ("no output",             |limits| limits.output_bytes = 0),
        ("no temporary space",    |limits| limits.tmp_bytes = 0),
        ("too few descriptors",   |limits| limits.open_files = 8),
        ("a negative size",       |limits| limits.file_bytes = (-1_i64).cast_unsigned()),
        ("a negative time",       |limits| limits.wall_us = (-1_i64).cast_unsigned()),
        ("too much to keep",      |limits| limits.kept_bytes = u32::MAX),
    ];
    for (name, change) in cases {
        let mut run = shell("true");
        change(&mut run.limits);
        let Cause::SetUp(failure) = finish(&run).receipt.cause else { panic!("{name} was taken") };
        assert_eq!((failure.stage, failure.errno), (Stage::Request, libc::EINVAL), "{name}");
    }
}

#[test]
fn too_little_memory_to_begin_with_is_said_to_be_that() {
    if !harness::has_controller("too little memory", "memory_controller") {
        return;
    }
    let mut run = shell("true");
    run.limits.memory_bytes = 100_000;
    let receipt = finish(&run).receipt;
    let refused = matches!(receipt.cause, Cause::SetUp(failure) if failure.errno == libc::ENOMEM);
    assert!(receipt.cause == Cause::OutOfMemory || refused, "{:?}", receipt.cause);
}

#[test]
fn the_wall_limit_takes_the_whole_tree() {
    if !harness::can_sandbox("the wall limit") {
        return;
    }
    // Detached grandchildren that ignore every polite signal and hold the output open.
    let mut run = shell(
        "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP; sleep 4721 & sleep 4722' & \
         (setsid sleep 4723 &) ; echo up; sleep 4724",
    );
    run.limits.wall_us = 400_000;
    let finished = finish(&run);
    assert_eq!(finished.receipt.cause, Cause::Wall);
    assert_eq!(finished.receipt.shell_status(), Some(137));
    assert_eq!(finished.stdout.head, b"up\n", "output until then is kept");
    let wall_us = finished.receipt.usage.wall_us;
    assert!(wall_us >= 400_000, "{wall_us} us: not before its time");
    assert_eq!(processes_with("sleep 472"), Vec::<String>::new(), "the receipt comes when nothing is left");
}

#[test]
fn what_a_payload_leaves_running_dies_with_it() {
    if !harness::can_sandbox("left-over processes") {
        return;
    }
    // Both hold the output open for far longer than the wall limit: a run that waited for them would end by it.
    assert_eq!(output(&shell("sleep 4731 & setsid sleep 4732 & echo done")), "done\n");
    assert_eq!(processes_with("sleep 473"), Vec::<String>::new());
}

#[test]
fn orphans_are_reaped() {
    if !harness::can_sandbox("orphans") {
        return;
    }
    let mut run = shell(
        "i=0; while [ $i -lt 200 ]; do (sh -c ': &' &) ; i=$((i+1)); done; sleep 0.2; ls /proc | grep -cE '^[0-9]+$'",
    );
    run.limits.processes = 64;
    let count: u32 = output(&run).trim().parse().unwrap();
    assert!(count <= 6, "{count} processes are left of 400");
}

#[test]
fn a_fork_bomb_meets_the_process_limit_and_then_the_wall() {
    if !harness::has_controller("the process limit", "pids_controller") {
        return;
    }
    let script = "import os, time\n\
                  refused = 0\n\
                  while not refused:\n\
                  \x20   try:\n\
                  \x20       if os.fork() == 0: time.sleep(4741)\n\
                  \x20   except BlockingIOError as error:\n\
                  \x20       refused = error.errno\n\
                  print(refused, flush=True)\n\
                  while True:\n\
                  \x20   try: os.fork()\n\
                  \x20   except BlockingIOError: pass\n";
    let Some(mut run) = python_run("the process limit", script) else { return };
    run.limits.processes = 20;
    run.limits.wall_us = 500_000;
    let finished = finish(&run);
    assert_eq!(finished.receipt.cause, Cause::Wall);
    assert_eq!(finished.stdout.head, format!("{}\n", libc::EAGAIN).into_bytes());
    assert_eq!(finished.receipt.usage.processes_peak, Figure::Measured(20));
    assert!(finished.receipt.usage.forks_refused.value().is_some_and(|count| count > 0));
    assert_eq!(processes_with("sleep(4741)"), Vec::<String>::new());
    // The control: below the limit it works.
    assert_eq!(output(&shell("for i in 1 2 3 4 5; do sleep 0.01 & done; wait; echo fine")), "fine\n");
}

#[test]
fn the_memory_limit_ends_the_run_and_only_this_one() {
    if !harness::has_controller("the memory limit", "memory_controller") {
        return;
    }
    let script = "data = bytearray(200 << 20)\nprint(len(data))";
    let Some(mut run) = python_run("the memory limit", script) else { return };
    run.limits.memory_bytes = 64 * MIB;
    let finished = finish(&run);
    assert_eq!(finished.receipt.cause, Cause::OutOfMemory);
    // The second version kills the whole group, and counts each of it.
    let Figure::Measured(kills) = finished.receipt.usage.oom_kills else { panic!("{:?}", finished.receipt.usage) };
    assert!(kills >= 1, "{kills}");
    let peak = finished.receipt.usage.memory_peak_bytes.value().unwrap();
    assert!((60 * MIB..=64 * MIB).contains(&peak), "{peak}");
    assert_eq!(finished.stdout.head, b"");
    // The control, and the next run: the limit was that run's alone.
    run.limits.memory_bytes = 400 * MIB;
    let finished = finish(&run);
    assert_eq!(finished.receipt.exit_status(), Some(0));
    assert!(finished.receipt.usage.memory_peak_bytes.value().is_some_and(|peak| peak > 200 * MIB));
    assert!(finished.receipt.usage.max_rss_bytes.value().is_some_and(|peak| peak > 200 * MIB));
}

#[test]
fn a_child_lost_to_the_memory_limit_ends_the_run_too() {
    if !harness::has_controller("the memory limit of a child", "memory_controller") {
        return;
    }
    let script = "import subprocess, sys, time\n\
                  subprocess.run([sys.executable, '-c', 'bytearray(200 << 20)'])\n\
                  time.sleep(4751)";
    let Some(mut run) = python_run("the memory limit of a child", script) else { return };
    run.limits.memory_bytes = 64 * MIB;
    assert_eq!(finish(&run).receipt.cause, Cause::OutOfMemory);
}

#[test]
fn the_cpu_limit_is_of_all_processes_together() {
    if !harness::has_controller("the CPU limit", "cpu_accounting") {
        return;
    }
    let mut run = shell("(while :; do :; done) & while :; do :; done");
    run.limits.cpu_us = 300_000;
    let finished = finish(&run);
    assert_eq!(finished.receipt.cause, Cause::Cpu);
    let Figure::Measured(cpu_us) = finished.receipt.usage.cpu_us else { panic!("not measured") };
    // Two processes are looked at every 20 ms: at most 40 ms too much, and the time it takes to kill on a busy host.
    assert!((300_000..450_000).contains(&cpu_us), "{cpu_us}");
    // The parts are sampled by the clock tick, for each of two processes.
    let user_us = finished.receipt.usage.user_us.value().unwrap();
    let system_us = finished.receipt.usage.system_us.value().unwrap();
    assert!((user_us + system_us).abs_diff(cpu_us) < 100_000, "{user_us} + {system_us} is not {cpu_us}");
    assert_eq!(finished.receipt.usage.max_rss_bytes, Figure::Unavailable(Reason::Killed));
    // The control: the same work within the limit, in a process that ends by itself.
    let receipt = finish(&shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")).receipt;
    assert_eq!(receipt.exit_status(), Some(0));
    let cpu_us = receipt.usage.cpu_us.value().unwrap();
    assert!((10_000..receipt.usage.wall_us + 20_000).contains(&cpu_us), "{cpu_us} of {}", receipt.usage.wall_us);
}

#[test]
fn files_descriptors_and_temporary_space_are_bounded() {
    if !harness::can_sandbox("file limits") {
        return;
    }
    let script = "import errno, os, signal\n\
                  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n\
                  def attempt(what):\n\
                  \x20   try: what()\n\
                  \x20   except OSError as error: print(errno.errorcode[error.errno])\n\
                  \x20   else: print('fine')\n\
                  def write(path, size):\n\
                  \x20   with open(path, 'wb', buffering=0) as file:\n\
                  \x20       while size > 0: size -= file.write(bytes(min(size, 65536)))\n\
                  def descriptors(count): os.closerange(3, 4096) or [os.dup(0) for _ in range(count)]\n\
                  attempt(lambda: write('/tmp/small', 1 << 20))\n\
                  attempt(lambda: write('/tmp/large', 3 << 20))\n\
                  os.unlink('/tmp/large')\n\
                  attempt(lambda: write('/tmp/second', 2 << 20))\n\
                  attempt(lambda: write('/tmp/third', 2 << 20))\n\
                  attempt(lambda: [open(f'/tmp/n{n}', 'w').close() for n in range(5000)])\n\
                  attempt(lambda: descriptors(20))\n\
                  attempt(lambda: descriptors(60))\n";
    let Some(mut run) = python_run("file limits", script) else { return };
    run.limits.file_bytes = 2 * MIB;
    run.limits.tmp_bytes = 4 * MIB;
    run.limits.open_files = 48;
    assert_eq!(output(&run), "fine\nEFBIG\nfine\nENOSPC\nENOSPC\nfine\nEMFILE\n");
}

#[test]
fn temporary_files_have_bounded_names_and_count_as_memory() {
    if !harness::can_sandbox("temporary files") {
        return;
    }
    let script = "import errno\n\
                  count = 0\n\
                  try:\n\
                  \x20   while True: open(f'/tmp/{count}', 'w').close(); count += 1\n\
                  except OSError as error: print(errno.errorcode[error.errno], 900 < count <= 1024)\n";
    if let Some(mut run) = python_run("the inodes of /tmp", script) {
        run.limits.tmp_bytes = 4 * MIB;
        assert_eq!(output(&run), "ENOSPC True\n", "one for each page");
    }
    if !harness::has_controller("memory of /tmp", "memory_controller") {
        return;
    }
    let mut run = shell("head -c 50000000 /dev/zero >/tmp/x; echo written");
    run.limits.memory_bytes = 32 * MIB;
    assert_eq!(finish(&run).receipt.cause, Cause::OutOfMemory, "its pages are the run's memory");
    run.limits.memory_bytes = 256 * MIB;
    assert_eq!(finish(&run).receipt.exit_status(), Some(0), "the control");
}

#[test]
fn four_hundred_processes_that_ignore_everything_are_gone_before_the_receipt() {
    if !harness::can_sandbox("four hundred processes") {
        return;
    }
    let script = "import os, signal, sys, time\n\
                  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                  for _ in range(400):\n\
                  \x20   if os.fork() == 0: os.setsid(); sys.argv[0] = 'x'; time.sleep(600)\n\
                  print('forked', flush=True); time.sleep(600)\n";
    let Some(mut run) = python_run("four hundred processes", script) else { return };
    run.argv.push("tack-marker-four-hundred".into());
    run.limits.processes = 500;
    run.limits.wall_us = 5_000_000;
    let finished = finish(&run);
    let receipt = finished.receipt;
    assert_eq!((receipt.cause, &finished.stdout.head[..]), (Cause::Wall, &b"forked\n"[..]));
    assert_eq!(processes_with("tack-marker-four-hundred"), Vec::<String>::new());
    assert!(receipt.usage.processes_peak.value().is_none_or(|peak| peak >= 401), "{:?}", receipt.usage);
    let line = format!("400 processes were dead and proven so {} us after the wall\n", receipt.times.tear_down_us);
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
}

#[test]
fn a_core_dump_is_never_written() {
    if !harness::can_sandbox("core dumps") {
        return;
    }
    let mut run = shell("ulimit -c; sh -c 'kill -SEGV $$'; echo $?; ls -A /tmp | wc -l");
    assert_eq!(output(&run), "0\n139\n0\n");
    // Where core dumps go to a program of the host's, a limit of 1 keeps it from being started; it can be made neither
    // 0 nor more.
    let piped = std::fs::read("/proc/sys/kernel/core_pattern").unwrap().starts_with(b"|");
    let script = "import resource as r\n\
                  print(r.getrlimit(r.RLIMIT_CORE))\n\
                  for limit in (0, 1), (1, 1), (0, 0):\n\
                  \x20   try: r.setrlimit(r.RLIMIT_CORE, limit)\n\
                  \x20   except (OSError, ValueError) as error: print(error)\n\
                  r.setrlimit(r.RLIMIT_NOFILE, (64, 64))";
    if let Some(run) = python_run("core limits", script) {
        let denied = "not allowed to raise maximum limit\n".repeat(3);
        assert_eq!(output(&run), format!("({0}, {0})\n{denied}", u8::from(piped)), "Python's words for EPERM");
    }
    // Nor is there a helper program to hand it to that the payload could name: the pattern is the host's, read-only.
    run = shell("echo '|/tmp/x' >/proc/sys/kernel/core_pattern; echo $?");
    assert_eq!(output(&run), "2\n");
}

#[test]
fn a_flood_is_counted_hashed_bounded_and_ended() {
    if !harness::can_sandbox("output limits") {
        return;
    }
    for (stream, script) in [(Stream::Stdout, "exec cat /dev/zero"), (Stream::Stderr, "exec cat /dev/zero >&2")] {
        let mut run = shell(script);
        run.limits.output_bytes = 8 * MIB;
        run.limits.kept_bytes = 1_000;
        let finished = finish(&run);
        assert_eq!(finished.receipt.cause, Cause::OutputLimit(stream));
        let captured = if stream == Stream::Stdout { &finished.stdout } else { &finished.stderr };
        // Over the limit by at most what the pipe holds.
        assert!((8 * MIB..8 * MIB + (256 << 10)).contains(&captured.bytes_total), "{}", captured.bytes_total);
        assert_eq!((captured.head.len(), captured.tail.len()), (500, 500));
    }
}

#[test]
fn output_below_the_limit_is_exact_whatever_it_is() {
    if !harness::can_sandbox("exact output") {
        return;
    }
    // 3 MB of every byte value, so that head, tail and digest can be computed here.
    let script = "import os, sys\n\
                  data = bytes(range(256)) * 12000\n\
                  for start in range(0, len(data), 7777): os.write(1, data[start:start + 7777])\n\
                  os.write(2, b'\\xff\\x00\\x1b[31m no newline')\n\
                  os.write(3, b'report')";
    let Some(mut run) = python_run("exact output", script) else { return };
    run.report = true;
    run.limits.kept_bytes = 100_000;
    let finished = finish(&run);
    assert_eq!(finished.receipt.exit_status(), Some(0));
    let data: Vec<u8> = (0..=255).cycle().take(256 * 12_000).collect();
    assert_eq!(finished.stdout.bytes_total, data.len() as u64);
    assert_eq!(finished.stdout.head, data[..50_000]);
    assert_eq!(finished.stdout.tail, data[data.len() - 50_000..]);
    assert_eq!(finished.stdout.bytes_dropped(), data.len() as u64 - 100_000);
    assert_eq!(finished.stdout.sha256, <[u8; 32]>::from(Sha256::digest(&data)));
    assert_eq!(finished.stderr.head, b"\xff\x00\x1b[31m no newline");
    assert_eq!(finished.report.head, b"report");
    assert_eq!((finished.stderr.tail.len(), finished.report.tail.len()), (0, 0));
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    if !harness::can_sandbox("a client's death") {
        return;
    }
    let before = HostState::now();
    let (mut ours, helper) = ask_by_hand("sleep 4761 & exec sleep 4762");
    assert!(within(Duration::from_mins(1), || processes_with("sleep 476").len() == 2), "it runs");
    ours.shutdown(std::net::Shutdown::Both).unwrap();
    drop(ours.read(&mut [0]));
    drop(ours);
    let status = helper.wait_with_output().unwrap().status;
    assert!(status.success(), "the helper ends by itself: {status}");
    assert_eq!(processes_with("sleep 476"), Vec::<String>::new());
    before.assert_unchanged();
}

#[test]
fn a_killed_helper_leaves_nothing_behind() {
    if !harness::can_sandbox("a helper's death") {
        return;
    }
    let before = HostState::now();
    let (ours, mut helper) = ask_by_hand("setsid sleep 4771 & exec sleep 4772");
    assert!(within(Duration::from_mins(1), || processes_with("sleep 477").len() == 2), "it runs");
    helper.kill().unwrap();
    helper.wait().unwrap();
    assert!(within(Duration::from_mins(1), || processes_with("sleep 477").is_empty()), "its tree dies with it");
    drop(ours);
    before.assert_unchanged();
}

#[test]
fn the_streams_can_be_opened_by_name_and_taking_from_one_delays_nobody() {
    if !harness::can_sandbox("streams by name") {
        return;
    }
    let finished = finish(&shell("echo out > /dev/stdout; echo err > /dev/stderr; echo more >> /proc/self/fd/1"));
    assert_eq!(
        (finished.stdout.head.as_slice(), finished.stderr.head.as_slice()),
        (&b"out\nmore\n"[..], &b"err\n"[..])
    );
    // A payload that reads its own output back races with the helper for it, and the wall limit still ends it.
    let mut run = shell("(while :; do echo x >&2; done) & exec cat /dev/stderr > /dev/null");
    run.limits.wall_us = 500_000;
    assert!(matches!(finish(&run).receipt.cause, Cause::Wall | Cause::OutputLimit(_)));
}
