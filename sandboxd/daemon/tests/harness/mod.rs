//! What the tests of this crate share: a client of the helper that was just built, and looks at the host.
#![allow(dead_code)] // each test program uses its part
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a helper of tests fails by panicking, as they do

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tack_sandbox_client::protocol::{self, RunLimits, RunRequest, Strings};
use tack_sandbox_client::{Access, Client, Finished, Helper, Mount, Run};

/// The helper, as cargo built it for these tests.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_tack-sandboxd");

/// Says that a test could not be had here: on standard error itself, since what passes is not shown what it prints.
pub(crate) fn skipped(test: &str, need: &str) {
    let line = format!("SKIPPED: {test} needs {need}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Whether sandboxes can be made here. Says so where they cannot: a test that returns then has been skipped, not passed.
pub(crate) fn can_sandbox(test: &str) -> bool {
    let missing: Vec<_> = tack_sandboxd::check::offers()
        .into_iter()
        .filter(|offer| offer.required)
        .filter_map(|offer| offer.found.err().map(|why| format!("{} ({why})", offer.name)))
        .collect();
    if !missing.is_empty() {
        skipped(test, &missing.join(", "));
    }
    missing.is_empty()
}

/// As [`can_sandbox`], and the host has a controller.
pub(crate) fn has_controller(test: &str, name: &str) -> bool {
    let offers = tack_sandboxd::check::offers();
    let Some(offer) = offers.iter().find(|offer| offer.name == name) else { panic!("no offer named {name}") };
    match &offer.found {
        Ok(_) => can_sandbox(test),
        Err(why) => {
            skipped(test, &format!("{name} ({why})"));
            false
        }
    }
}

pub(crate) fn client() -> Client {
    Client::with(Helper::Installed(HELPER.into()))
}

/// A run of one shell script.
pub(crate) fn shell(script: &str) -> Run {
    Run::new(["/bin/sh", "-c", script], "/tmp")
}

/// Runs it; a run that cannot be had fails the test.
pub(crate) fn finish(run: &Run) -> Finished {
    client().run(run).unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)))
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8 output")
}

/// Runs a script that must exit with 0, and returns what it printed.
pub(crate) fn output(run: &Run) -> String {
    let finished = finish(run);
    let error = String::from_utf8_lossy(&finished.stderr.head).into_owned();
    assert_eq!(finished.receipt.exit_status(), Some(0), "{:?}\n{error}", finished.receipt.cause);
    text(&finished.stdout.head).to_owned()
}

/// A Python that can run in a sandbox, and what must be mounted for it; `None`, with a word on it, if there is none.
pub(crate) fn python(test: &str) -> Option<(PathBuf, Vec<Mount>)> {
    let system = Path::new("/usr/bin/python3");
    if system.exists() {
        return Some((system.into(), Vec::new()));
    }
    let script = "import sys; print(sys.base_prefix); print(sys.executable)";
    let found = Command::new("python3").args(["-c", script]).output().ok();
    let found = found.and_then(|output| String::from_utf8(output.stdout).ok());
    let lines = found.as_deref().and_then(|lines| lines.trim().split_once('\n'));
    let Some((prefix, program)) = lines else {
        skipped(test, "python3");
        return None;
    };
    let mount = Mount { source: prefix.into(), target: prefix.into(), access: Access::ReadOnly };
    Some((program.into(), vec![mount]))
}

/// A run of a Python script; `None`, with a word on it, where there is no Python.
pub(crate) fn python_run(test: &str, script: &str) -> Option<Run> {
    let (program, mounts) = python(test)?;
    let mut run = Run::new([program.into_os_string(), OsString::from("-c"), script.into()], "/tmp");
    run.mounts = mounts;
    Some(run)
}

/// The host's mount table at one time, which no run may change.
#[derive(Debug)]
pub(crate) struct HostState {
    mounts: String,
}

impl HostState {
    pub(crate) fn now() -> Self {
        Self { mounts: fs::read_to_string("/proc/self/mountinfo").unwrap() }
    }

    /// Asserts that the mount table is as it was, and that no control group is left of a helper that is gone. A helper
    /// that was killed cannot remove its own: the next one sweeps them away, so one is run.
    pub(crate) fn assert_unchanged(&self) {
        assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), self.mounts, "the host's mount table");
        // Other tests kill helpers at the same time.
        let swept = within(Duration::from_secs(5), || {
            finish(&shell("true"));
            orphaned_groups().is_empty()
        });
        assert!(swept, "groups are left: {:?}", orphaned_groups());
    }
}

/// Groups that no living helper owns.
pub(crate) fn orphaned_groups() -> Vec<PathBuf> {
    group_directories()
        .into_iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .filter(|path| {
            // A living helper holds the lock.
            let opened = fs::File::open(path);
            opened.is_ok_and(|leaf| leaf.try_lock().is_ok())
        })
        .collect()
}

fn group_directories() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4))
        .map(|mount| Path::new(mount).join("tack"))
        .collect()
}

/// Host processes whose command line contains `marker`, whatever pid namespace they are in.
pub(crate) fn processes_with(marker: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.parse::<u32>().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            (command.contains(marker) && name != std::process::id().to_string()).then(|| format!("{name} {command}"))
        })
        .collect()
}

/// Waits until `condition` holds, at most `bound`.
pub(crate) fn within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory of the host that goes with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tack-sandbox-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn mount(&self, target: &str, access: Access) -> Mount {
        Mount { source: self.0.clone().into(), target: target.into(), access }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A request as one frame: packed arguments, a plain `PATH`, no mounts, the default limits.
pub(crate) fn request_frame(argv: &[u8]) -> Vec<u8> {
    request_frame_with(argv, 0)
}

/// The same with some mounts, whose descriptors are not in it.
pub(crate) fn request_frame_with(argv: &[u8], count: usize) -> Vec<u8> {
    let mut mounts = protocol::Mounts::new();
    for _ in 0..count {
        mounts.push(protocol::Mount { target: b"/task", access: Access::ReadOnly }).unwrap();
    }
    let request = protocol::Request::Run(RunRequest {
        argv: Strings::new(argv).unwrap(),
        environment: Strings::new(b"PATH=/usr/bin:/bin\0").unwrap(),
        directory: b"/tmp",
        mounts,
        limits: RunLimits::default(),
        report: false,
        live: false,
        egress: protocol::Egress::None,
    });
    let mut buffer = vec![0; protocol::frame::MAX_FRAME_BYTES];
    protocol::frame::encode(&request, &mut buffer).unwrap().to_vec()
}

/// Sends bytes, and descriptors with the first of them.
pub(crate) fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[&fs::File]) {
    let numbers: Vec<_> = descriptors.iter().map(|it| it.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { [].as_slice() } else { rights.as_slice() };
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::empty(), None).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Starts a helper and sends it one request, without the client that would wait for it.
pub(crate) fn ask_by_hand(script: &str) -> (UnixStream, Child) {
    let (mut ours, helper) = spawn_helper();
    ours.write_all(&request_frame(&[b"/bin/sh\0-c\0", script.as_bytes(), b"\0"].concat())).unwrap();
    (ours, helper)
}

/// Starts a helper, and returns this end of its socket.
pub(crate) fn spawn_helper() -> (UnixStream, Child) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(HELPER);
    command.arg("--once").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let helper = command.spawn().unwrap();
    (ours, helper)
}

/// Everything a helper sends until it closes its end. One that refuses a request half read resets the connection.
pub(crate) fn read_answer(ours: &mut impl Read) -> Vec<u8> {
    let mut answer = Vec::new();
    let end = ours.read_to_end(&mut answer);
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    answer
}
