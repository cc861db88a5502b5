//! A 100 MB observation: read, and within the memory that the crate's documentation states.

use tack_trajectory::{Options, read};

const OUTPUT_BYTES: usize = 100 * 1024 * 1024;

/// The most memory that this process has held, in bytes; `None` where the kernel does not say.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? * 1024)
}

#[test]
fn an_observation_of_100_mb_is_read_within_the_stated_memory() {
    let head =
        br#"{"trajectory_format": "mini-swe-agent-1.1", "info": {"submission": "diff --git a/a b/a\n"}, "messages": [
        {"role": "user", "content": "the task"},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "yes"}]}},
        {"role": "user", "content": "cut", "extra": {"returncode": 0, "raw_output": ""#;
    let mut file = Vec::with_capacity(OUTPUT_BYTES + 1_000);
    file.extend_from_slice(head);
    // An escape, so that the text cannot be borrowed from the file: the worst case.
    file.extend_from_slice(br"\n");
    file.resize(head.len() + 1 + OUTPUT_BYTES, b'y');
    file.extend_from_slice(br#""}}]}"#);

    let before = peak_bytes();
    let read = read(&file, "large.traj.json", &Options::default()).unwrap();
    assert_eq!(read.state.observations.len(), 1);
    assert_eq!(read.state.observations[0].output.len(), OUTPUT_BYTES);
    match before.zip(peak_bytes()) {
        Some((before, after)) => {
            let extra = (after - before) / (1024 * 1024);
            println!("peak beyond the file: {extra} MiB for a text of 100 MiB");
            assert!(
                extra <= 250,
                "the text is held twice beside the file, and once more while it is unescaped; {extra} MiB"
            );
        }
        None => println!("SKIPPED: the kernel does not state the peak memory"),
    }
}
