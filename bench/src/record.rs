//! How rows are shown and kept: a small table, and the raw samples as CSV.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::Row;

/// The table: ours in percentiles, the peer's median, the ratio of the medians, and the bound.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut table =
        String::from("ns a call                           ours p50    p95    p99   peer p50   ours/peer   bound\n");
    for row in rows {
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| row.ours.quantile(share));
        let peer = row.peer.quantile(0.5);
        let bound = match row.bound_ns {
            None => String::from("-"),
            Some(bound) if row.keeps_bound() => format!("{bound:.0} kept"),
            Some(bound) => format!("{bound:.0} BROKEN"),
        };
        // Writing to a `String` does not fail.
        let _infallible = writeln!(
            table,
            "{:<34} {p50:>9.1} {p95:>6.1} {p99:>6.1} {peer:>10.1} {:>11.2}   {bound}",
            row.name,
            p50 / peer,
        );
    }
    table
}

/// Command, commit, machine and its load: what a number is worth nothing without.
#[must_use]
pub fn provenance(command: &str) -> String {
    let commit = answer("git", &["rev-parse", "--short=12", "HEAD"]);
    let dirty =
        if answer("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { ", changed" };
    let rustc = answer("rustc", &["--version"]);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cpu = model.trim_start_matches(['\t', ' ', ':']);
    let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = loadavg.split(' ').next().unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "command: {command}\ncommit: {commit}{dirty}\nmachine: {cpu}, {processors} processors, load {load}\ncompiler: {rustc}\n"
    )
}

/// What a program prints; nothing where it cannot be run.
fn answer(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |it| String::from_utf8_lossy(&it.stdout).trim().to_owned())
}

/// Writes every sample of every row, with its provenance in comment lines.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, provenance: &str, rows: &[Row]) -> io::Result<()> {
    let mut text = provenance.lines().fold(String::new(), |text, line| text + "# " + line + "\n");
    text.push_str("row,implementation,sample,ns_per_call\n");
    for row in rows {
        for (implementation, samples) in [("ours", &row.ours), ("peer", &row.peer)] {
            for (sample, ns) in samples.0.iter().enumerate() {
                let _infallible = writeln!(text, "{},{implementation},{sample},{ns:.2}", row.name);
            }
        }
    }
    std::fs::write(path, text)
}
