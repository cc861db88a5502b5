//! Every door tried from inside, beside a control that goes through outside.

mod harness;

use std::path::Path;
use std::process::Command;

use harness::{HELPER, client, text};
use tack_sandbox_client::{Access, Mount, Run};
use tack_sandboxd::check::{self, ProbeCommand, probe::PROBE_TARGET};

/// Attempts whose control may fail for reasons of the host's: no route to anywhere, a kernel without the feature.
/// Their denial proves less there, and the test says so.
const CONTROL_MAY_FAIL: [&str; 11] = [
    "connect to another host",
    "a socket to the hypervisor",
    "io_uring",
    "push a key into a terminal",
    "push a key, high bits set",
    "a call of the x32 architecture",
    "open /dev/mem",
    "open /dev/loop-control",
    "use the machine's ports",
    "use one of the machine's ports",
    "a socket to the kernel's ciphers",
];

/// Attempts that fail everywhere: they ask for what does not exist, and show with which number.
const NO_CONTROL: [&str; 1] = ["a call that no kernel has"];

#[test]
fn every_denial_names_its_errno_beside_a_control_that_succeeds() {
    if !harness::can_sandbox("the probe") {
        return;
    }
    let probe = ProbeCommand { program: Path::new(HELPER), argument: "--probe" };
    let report = check::report(&probe, |argv| {
        let mut run = Run::new(argv, "/tmp");
        run.mounts.push(Mount { source: HELPER.into(), target: PROBE_TARGET.into(), access: Access::ReadOnly });
        let finished = client().run(&run).map_err(|error| error.to_string())?;
        let error = String::from_utf8_lossy(&finished.stderr.head);
        assert_eq!(finished.receipt.exit_status(), Some(0), "{:?} {error}", finished.receipt.cause);
        Ok(text(&finished.stdout.head).to_owned())
    });
    let lines = report.probe.as_ref().unwrap();
    let dangers = lines.iter().filter(|it| it.expected != check::Outcome::Worked).count();
    assert!(dangers >= 60, "{dangers}");
    let mut faults = Vec::new();
    for line in lines {
        println!("{:36} inside {:14} outside {}", line.name, line.inside.to_string(), line.outside);
        if !line.holds() {
            faults.push(format!("{}: expected {}, found {}", line.name, line.expected, line.inside));
        }
        if !line.has_control() && !NO_CONTROL.contains(&line.name) {
            if CONTROL_MAY_FAIL.contains(&line.name) {
                harness::skipped(&format!("the control of `{}`", line.name), "a host where it works");
            } else {
                faults.push(format!("{}: the control outside failed with {}", line.name, line.outside));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(report.holds());
}

#[test]
fn the_probe_outside_finds_doors_open_so_its_findings_inside_mean_something() {
    if !harness::can_sandbox("the probe's control") {
        return;
    }
    let before = harness::HostState::now();
    let output = Command::new(HELPER).args(["--probe", "outside", "1"]).output().unwrap();
    let open = text(&output.stdout).lines().filter(|line| line.contains("\tworked\t")).count();
    assert!(open >= 55, "{open} of\n{}", text(&output.stdout));
    before.assert_unchanged();
}
