//! Before anyone is served: one sandbox, with the probe in it, beside the same probe outside.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES, MAX_FRAME_BYTES};
use tack_sandbox_protocol::{Access, Egress, Mount, Mounts, Reply, Request, RunLimits, RunRequest, Stream, Strings};

use crate::check::{self, ProbeCommand, Report, probe::PROBE_TARGET};

/// This program, whatever became of its file.
const SELF: &str = "/proc/self/exe";

/// What the host offers, and which doors stand open.
pub(crate) fn report() -> Report {
    let probe = ProbeCommand { program: Path::new(SELF), argument: "--probe" };
    check::report(&probe, |argv| inside(&argv))
}

/// Runs the probe in a sandbox of the one-shot helper, which is this program too; its standard output.
fn inside(argv: &[String]) -> Result<String, String> {
    let said = |error: std::io::Error| format!("the self-test did not run: {error}");
    let (mut ours, theirs) = UnixStream::pair().map_err(said)?;
    let mut command = Command::new(SELF);
    command.arg("--once").env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let mut helper = command.spawn().map_err(said)?;
    drop(command);
    let output = ask(&mut ours, argv);
    // It has answered, or is gone.
    helper.wait().map_err(said)?;
    output
}

fn ask(helper: &mut UnixStream, argv: &[String]) -> Result<String, String> {
    let said = |error: &dyn std::fmt::Display| format!("the self-test did not run: {error}");
    let mut packed = Vec::new();
    for argument in argv {
        packed.extend_from_slice(argument.as_bytes());
        packed.push(0);
    }
    let mut mounts = Mounts::new();
    let mount = Mount { target: PROBE_TARGET.as_bytes(), access: Access::ReadOnly };
    mounts.push(mount).map_err(|error| said(&error))?;
    let request = Request::Run(RunRequest {
        argv: Strings::new(&packed).unwrap_or_default(),
        environment: Strings::new(b"PATH=/usr/bin:/bin\0").unwrap_or_default(),
        directory: b"/",
        mounts,
        limits: RunLimits::default(),
        report: false,
        live: false,
        egress: Egress::None,
    });
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    let bytes = frame::encode(&request, &mut buffer).map_err(|error| said(&error))?;
    let program = File::open(SELF).map_err(|error| said(&error))?;
    let rights = [program.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&rights)];
    let sent = sendmsg::<()>(helper.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, None);
    let sent = sent.map_err(|error| said(&error))?;
    helper.write_all(bytes.get(sent..).unwrap_or_default()).map_err(|error| said(&error))?;
    let mut output = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        helper.read_exact(&mut header).map_err(|error| said(&error))?;
        let mut body = vec![0; frame::body_bytes(&header).map_err(|error| said(&error))?];
        helper.read_exact(&mut body).map_err(|error| said(&error))?;
        match frame::decode_body(&body).map_err(|error| said(&error))? {
            Reply::Output { stream: Stream::Stdout, bytes, .. } => output.extend_from_slice(bytes),
            Reply::Output { .. } | Reply::Live { .. } => {}
            Reply::Refused(refusal) => return Err(said(&refusal)),
            Reply::Done(receipt) if receipt.exit_status() == Some(0) => {
                return Ok(String::from_utf8_lossy(&output).into_owned());
            }
            Reply::Done(receipt) => return Err(said(&receipt.cause)),
            Reply::Signed(_) => return Err(said(&"a helper does not sign")),
        }
    }
}
