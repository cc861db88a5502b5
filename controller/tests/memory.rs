//! A state of any size is encoded in bounded memory. Alone in its program, since the figure is the process's.

#![expect(clippy::unwrap_used, reason = "tests assert by panicking")]

mod common;

use common::{NOTHING, encoder, observation};
use tack_core::{CountTokens, DecisionState, Field, Issue, Patch};

/// The most that may be used beside the state itself.
const EXTRA_KIB: u64 = 64 * 1024;

/// The greatest resident size of this process since the last look, in KiB; see `proc_pid_status(5)` for `VmHWM`, and
/// `proc_pid_clear_refs(5)` for how it is reset.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_hundred_megabytes_need_a_few_more() {
    const HUNDRED_MB: usize = 100_000_000;
    let line = b"tests/test_module.py::test_case PASSED [ 42%]\n";
    #[rustfmt::skip]
    let fields: [(&str, Vec<u8>); 4] = [
        ("log lines",      line.repeat(1 + HUNDRED_MB / line.len())[..HUNDRED_MB].to_vec()),
        ("one long word",  vec![b'a'; HUNDRED_MB]),
        ("blanks",         vec![b' '; HUNDRED_MB]),
        ("invalid UTF-8",  vec![0xFF; HUNDRED_MB]),
    ];
    let tokenizer = encoder().tokenizer();
    for (name, bytes) in &fields {
        peak_kib();
        let before = peak_kib(); // what is resident now: nothing happened since the reset
        let seen = [observation(0, bytes, bytes)];
        let state =
            DecisionState { issue: Issue::Known(bytes), patch: Patch::Known(bytes), observations: &seen, ..NOTHING };
        let report = encoder().encode(&state, &mut ()).report;
        let extra = peak_kib() - before;
        println!("{name}: {extra} KiB beside the state");
        assert!(extra <= EXTRA_KIB, "{name}: {extra} KiB");
        for field in [Field::Issue, Field::Patch] {
            assert_eq!(report.fields[field as usize].bytes_in.0, HUNDRED_MB as u64);
        }
        assert_eq!(report.observations[0].output.bytes_in.0, HUNDRED_MB as u64);
    }
    peak_kib();
    let before = peak_kib();
    assert!(tokenizer.count_tokens(&fields[0].1[..2_000_000]).0 > 100_000);
    assert!(peak_kib() - before <= EXTRA_KIB);
}
