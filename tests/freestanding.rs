//! `core` and the sandbox protocol need no standard library, no C library and no heap: a program that has none of them
//! links, decodes a frame, makes a choice, and ends with the action's number.
//!
//! The stock toolchain is enough: the program is built for the host's own target, with no start files, no libraries
//! and no dynamic linker.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test assert as the test does")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use tack_core::{Action, ActionSet, Estimates, HeadOutputs, Lambda, PerAction, select};
use tack_sandbox_protocol::{Egress, Mounts, Request, RunLimits, RunRequest, Strings, frame};
use tack_tests::checkout;

/// The package is written where the build goes: a manifest in the tree would need a lock file of its own, which would
/// drift from the workspace's.
fn manifest() -> String {
    let tree = checkout();
    let tree = tree.display();
    format!(
        r#"[package]
name = "freestanding"
version = "0.0.0"
edition = "2024"

[[bin]]
name = "freestanding"
path = "{tree}/tests/freestanding/main.rs"
test = false

[dependencies]
tack-core = {{ path = "{tree}/core" }}
tack-sandbox-protocol = {{ path = "{tree}/sandboxd/protocol" }}

[profile.release]
panic = "abort"

[workspace]
"#
    )
}

/// Builds the program and returns its path.
fn build() -> PathBuf {
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest()).unwrap();
    fs::copy(checkout().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = package.join("target");
    let output = Command::new(cargo)
        .args(["rustc", "--release", "--offline", "--bin", "freestanding", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .arg("--")
        .args(["-C", "relocation-model=static"])
        .args(["nostartfiles", "nostdlib", "static", "no-pie"].map(|flag| format!("-Clink-arg=-{flag}")))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("release/freestanding")
}

/// Runs the program on `input`; a signal is a failure.
fn run(program: &Path, input: &[u8]) -> i32 {
    let mut child = Command::new(program).env_clear().stdin(Stdio::piped()).spawn().unwrap();
    // It may end before it has read everything: its status is what is asked for.
    drop(child.stdin.take().unwrap().write_all(input));
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| panic!("ended by a signal: {status}"))
}

/// One frame of each kind: a request with `argv`, and what a decision needs.
fn frames(argv: &[u8], outputs: HeadOutputs, available: ActionSet, lambda: f32) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 17];
    let request = Request::Run(RunRequest {
        argv: Strings::new(argv).unwrap(),
        environment: Strings::default(),
        directory: b"/",
        mounts: Mounts::new(),
        limits: RunLimits::default(),
        report: false,
        live: false,
        egress: Egress::None,
    });
    let mut bytes = frame::encode(&request, &mut buffer).unwrap().to_vec();
    let asked = (outputs, available, Lambda::new(lambda).unwrap());
    bytes.extend_from_slice(frame::encode(&asked, &mut buffer).unwrap());
    bytes
}

/// Types of program header that name an interpreter or a dynamic section (elf(5)).
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// The types of an ELF64 file's program headers.
fn program_header_types(elf: &[u8]) -> Vec<u32> {
    assert_eq!(elf[..6], *b"\x7fELF\x02\x01", "a little-endian ELF64");
    let word = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
    let offset = usize::try_from(u64::from_le_bytes(elf[32..40].try_into().unwrap())).unwrap();
    let (size, count) = (word(54), word(56));
    let header = |index: usize| elf[offset + index * size..][..4].try_into().unwrap();
    (0..count).map(|index| u32::from_le_bytes(header(index))).collect()
}

#[test]
fn a_program_without_std_decodes_a_frame_and_chooses() {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        println!("SKIPPED: the entry point is written for x86-64 Linux");
        return;
    }
    let program = build();
    let types = program_header_types(&fs::read(&program).unwrap());
    assert!(!types.contains(&PT_INTERP) && !types.contains(&PT_DYNAMIC), "it links nothing at run time: {types:?}");

    let (all, none) = (ActionSet::ALL, ActionSet::EMPTY);
    let untested = all.without(Action::TestTargeted).without(Action::TestRegression);
    let only = |action| none.with(action);
    #[rustfmt::skip]
    let choices = [ // z                          v . h + b                    available                     lambda  action
        ([3.0, 1.0, 0.0, 2.0, -1.0],              [-9.0; 5],                   all,                          0.0,    0),
        ([0.0, 1.0, 0.0, 0.5, -1.0],              [-9.0; 5],                   all,                          0.0,    1),
        ([0.0, 1.0, 1.5, 0.5, -1.0],              [-9.0; 5],                   all,                          0.0,    2),
        ([0.0, 1.0, 1.5, 2.5, -1.0],              [-9.0; 5],                   all,                          0.0,    3),
        ([0.0, 1.0, 1.5, 2.5, 1e4],               [-9.0; 5],                   all,                          0.0,    4),
        ([0.0, 1.0, 1.5, 2.5, 1e4],               [-9.0; 5],                   untested,                     0.0,    2),
        ([0.0, 1.0, 1.5, 2.5, 1e4],               [-9.0, -9.0, 1.0, 2.0, 1e4], all,                          0.2,    1),
        ([1.0; 5],                                [0.5, 0.5, 0.5, 0.0, 0.5],   all,                          0.0,    3),
        ([1.0; 5],                                [0.5; 5],                    all,                          0.1,    0),
        ([-1e4, 0.0, 0.0, 0.0, 0.0],              [0.0; 5],                    only(Action::Submit),         0.0,    0),
        ([9.0; 5],                                [0.0; 5],                    none,                         0.0,    5),
    ];
    for (row, (z, x, available, lambda, action)) in choices.into_iter().enumerate() {
        let outputs = HeadOutputs { success_logits: PerAction(z), cost_preactivations: PerAction(x) };
        let here = select(&Estimates::from_heads(&outputs).unwrap(), available, Lambda::new(lambda).unwrap());
        assert_eq!(here.map_or(5, |choice| choice.action as i32), action, "row {row}, here");
        assert_eq!(run(&program, &frames(b"true\0", outputs, available, lambda)), action, "row {row}");
    }

    let heads = |z: f32| HeadOutputs { success_logits: PerAction([z; 5]), cost_preactivations: PerAction([0.0; 5]) };
    let good = frames(b"true\0", heads(1.0), all, 0.0);
    let (mut version, mut bits) = (good.clone(), good.clone());
    version[2] = 99;
    let bits_at = bits.len() - 5;
    bits[bits_at] = 0xff;
    let mut trailing = good.clone();
    trailing.push(0);
    #[rustfmt::skip]
    let ends = [ // name                              input                                                  status
        ("10,000 arguments are one frame",            frames(&b"a\0".repeat(10_000), heads(1.0), all, 0.0),  0),
        ("a 100 kB argument too",                     frames(&[vec![b'x'; 100_000], vec![0]].concat(), heads(1.0), all, 0.0), 0),
        ("no program named",                          frames(b"", heads(1.0), all, 0.0),                     101),
        ("no input",                                  Vec::new(),                                            101),
        ("cut off",                                   good[..good.len() - 1].to_vec(),                       101),
        ("followed by something",                     trailing,                                              101),
        ("of another version",                        version,                                               101),
        ("a sixth action",                            bits,                                                  101),
        ("a head that is not finite",                 frames(b"true\0", heads(f32::NAN), all, 0.0),          102),
        ("more than the buffer",                      vec![0; 1 << 19],                                      103),
    ];
    for (name, input, status) in ends {
        assert_eq!(run(&program, &input), status, "{name}");
    }
}
