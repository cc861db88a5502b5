//! The house: which room may know which, what the privileged and the heap-free rooms link, where `unsafe` may stand,
//! and that the map and the README are true of the tree.

#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use tack_tests::checkout;

/// Every arrow that may be drawn. `cli` names types of `core` when it prints a decision.
const ARROWS: &[(&str, &[&str])] = &[
    ("tack-core", &[]),
    ("tack-kernels", &["tack-core"]),
    ("tack-controller", &["tack-core", "tack-kernels"]),
    ("tack-trajectory", &["tack-core"]),
    ("tack-sandbox-protocol", &[]),
    ("tack-sandbox-client", &["tack-sandbox-protocol"]),
    ("tack-sandboxd", &["tack-sandbox-protocol"]),
    ("tack-executor", &["tack-core", "tack-sandbox-client"]),
    (
        "tack",
        &["tack-controller", "tack-core", "tack-executor", "tack-sandbox-client", "tack-sandboxd", "tack-trajectory"],
    ),
];

/// Rooms outside the product: they look at all of it, and nothing of it knows them.
const OUTSIDE: &[&str] = &["tack-tests", "tack-bench"];

/// All that is linked into the privileged daemon, the house's own crates included. A new name here is argued in the
/// commit that adds it.
const DAEMON_LINKS: &[&str] = &[
    "bitflags",
    "block-buffer",
    "caps",
    "cfg-if",
    "cobs",
    "cpufeatures",
    "crypto-common",
    "digest",
    "enumflags2",
    "hybrid-array",
    "landlock",
    "libc",
    "memoffset",
    "nix",
    "postcard",
    "seccompiler",
    "serde",
    "serde_core",
    "sha2",
    "tack-sandbox-protocol",
    "thiserror",
    "typenum",
];

/// All that `core` links.
const CORE_LINKS: &[&str] = &[
    "byteorder",
    "cobs",
    "hash32",
    "heapless",
    "libm",
    "postcard",
    "serde",
    "serde_core",
    "stable_deref_trait",
    "thiserror",
];

/// All that the sandbox protocol links.
const PROTOCOL_LINKS: &[&str] = &["cobs", "postcard", "serde", "serde_core", "thiserror"];

/// The only folders where `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] = &["kernels/", "sandboxd/daemon/", "tests/freestanding/"];

struct Metadata(Value);

impl Metadata {
    fn read() -> Self {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(checkout())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn name_of(&self, id: &str) -> &str {
        let package = self.0["packages"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap();
        package["name"].as_str().unwrap()
    }

    fn members(&self) -> BTreeSet<&str> {
        let members = self.0["workspace_members"].as_array().unwrap();
        members.iter().map(|id| self.name_of(id.as_str().unwrap())).collect()
    }

    /// What `name` links directly: normal dependencies, as resolved; no build scripts, macros' hosts or tests.
    fn links(&self, name: &str) -> BTreeSet<&str> {
        let nodes = self.0["resolve"]["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|it| self.name_of(it["id"].as_str().unwrap()) == name).unwrap();
        let normal = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(|it| it["kind"].is_null());
        let deps = node["deps"].as_array().unwrap().iter().filter(normal);
        deps.map(|it| self.name_of(it["pkg"].as_str().unwrap())).filter(|it| !self.is_macro(it)).collect()
    }

    fn is_macro(&self, name: &str) -> bool {
        let package = self.0["packages"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
        package["targets"].as_array().unwrap().iter().any(|it| it["kind"][0] == "proc-macro")
    }

    fn links_closure(&self, name: &str) -> BTreeSet<&str> {
        let (mut seen, mut open) = (BTreeSet::new(), self.links(name).into_iter().collect::<Vec<_>>());
        while let Some(next) = open.pop() {
            if seen.insert(next) {
                open.extend(self.links(next));
            }
        }
        seen
    }
}

#[test]
fn every_arrow_is_on_the_plan() {
    let metadata = Metadata::read();
    let plan: BTreeMap<_, _> =
        ARROWS.iter().map(|&(from, to)| (from, to.iter().copied().collect::<BTreeSet<_>>())).collect();
    let known: BTreeSet<_> = plan.keys().copied().chain(OUTSIDE.iter().copied()).collect();
    assert_eq!(metadata.members(), known, "a room stands outside the plan, or the plan names one that is gone");
    for (from, to) in plan {
        let found: BTreeSet<_> = metadata.links(from).into_iter().filter(|it| known.contains(it)).collect();
        assert_eq!(found, to, "arrows from {from}");
    }
}

#[test]
fn no_dependency_of_a_guarded_room_is_a_surprise() {
    let metadata = Metadata::read();
    for (room, links) in
        [("tack-sandboxd", DAEMON_LINKS), ("tack-core", CORE_LINKS), ("tack-sandbox-protocol", PROTOCOL_LINKS)]
    {
        assert_eq!(metadata.links_closure(room), links.iter().copied().collect(), "what {room} links");
    }
}

#[test]
fn unsafe_stands_in_two_rooms_alone() {
    let root = checkout();
    let offenders: Vec<_> = sources(&root)
        .into_iter()
        .filter(|path| !UNSAFE_ROOMS.iter().any(|room| path.starts_with(room)) && path != Path::new("tests/house.rs"))
        .filter(|path| {
            let text = fs::read_to_string(root.join(path)).unwrap();
            text.contains("unsafe {") || text.contains("unsafe fn") || text.contains("allow(unsafe_code)")
        })
        .collect();
    assert_eq!(offenders, Vec::<PathBuf>::new());
}

#[test]
fn the_map_names_what_stands() {
    let root = checkout();
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    // Every `path/with/slash` or `file.rs` in backticks that looks like a place in this tree.
    let missing: Vec<_> = map
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|quoted| {
            quoted.contains('/') && !quoted.contains([' ', '*', '<', '(', '{']) && !quoted.starts_with('/')
        })
        .filter(|quoted| !root.join(quoted).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names places that are not there: {missing:?}");
    for (room, _) in ARROWS {
        assert!(map.contains(&format!("`{room}`")), "ARCHITECTURE.md does not mention {room}");
    }
}

#[test]
fn ci_calls_the_command_that_the_readme_gives() {
    let root = checkout();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let ci = fs::read_to_string(root.join(".ci/run")).unwrap();
    let test_command = "cargo test --workspace";
    assert!(readme.lines().any(|line| line.trim() == test_command), "README.md must give `{test_command}` on a line");
    assert!(ci.lines().any(|line| line.trim().ends_with(test_command)), ".ci/run must call `{test_command}`");
    assert!(readme.lines().any(|line| line.trim() == "cargo run --release -- lab"));
}

/// Every Rust source that git tracks or would track, relative to the checkout.
fn sources(root: &Path) -> Vec<PathBuf> {
    fn walk(root: &Path, folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type().unwrap().is_dir() && !hidden && entry.file_name() != "target" {
                walk(root, &path, into);
            } else if path.extension().is_some_and(|it| it == "rs") {
                into.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, Path::new(""), &mut found);
    assert!(found.len() > 20, "the walk found only {} sources", found.len());
    found
}
