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
    ("tack-sandbox-mirror", &["tack-sandbox-protocol"]),
    ("tack-executor", &["tack-core", "tack-sandbox-client"]),
    (
        "tack",
        &[
            "tack-controller",
            "tack-core",
            "tack-executor",
            "tack-sandbox-client",
            "tack-sandbox-mirror",
            "tack-sandboxd",
            "tack-trajectory",
        ],
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
    "ed25519-compact",
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

/// All that the mirror links, which reads what payloads and the Internet send.
const MIRROR_LINKS: &[&str] = &["cobs", "postcard", "serde", "serde_core", "tack-sandbox-protocol", "thiserror"];

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

/// The only places where `unsafe` may stand.
const UNSAFE_PLACES: &[&str] = &[
    "kernels/src/engine/isa/",
    "kernels/src/engine/pool.rs",
    "kernels/src/sys/",
    "sandboxd/daemon/src/sys/",
    "tests/freestanding/",
];

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
    for (room, links) in [
        ("tack-sandboxd", DAEMON_LINKS),
        ("tack-sandbox-mirror", MIRROR_LINKS),
        ("tack-core", CORE_LINKS),
        ("tack-sandbox-protocol", PROTOCOL_LINKS),
    ] {
        assert_eq!(metadata.links_closure(room), links.iter().copied().collect(), "what {room} links");
    }
}

#[test]
fn unsafe_stands_where_it_is_listed_and_nowhere_else() {
    let root = checkout();
    let mut unused: BTreeSet<_> = UNSAFE_PLACES.iter().copied().collect();
    let mut offenders = Vec::new();
    for path in sources(&root) {
        if !speaks_unsafe(&fs::read_to_string(root.join(&path)).unwrap()) {
            continue;
        }
        match UNSAFE_PLACES.iter().find(|place| path.starts_with(place)) {
            Some(place) => {
                unused.remove(place);
            }
            None => offenders.push(path),
        }
    }
    assert_eq!(offenders, Vec::<PathBuf>::new(), "`unsafe` stands outside its places");
    assert!(unused.is_empty(), "no `unsafe` stands in {unused:?}");
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for place in UNSAFE_PLACES {
        assert!(map.contains(&format!("`{place}`")), "ARCHITECTURE.md does not say that `unsafe` stands in {place}");
    }
}

/// Whether a source has the keyword `unsafe`, or lifts the lint on it, outside comments and literals.
fn speaks_unsafe(source: &str) -> bool {
    let code = code_of(source);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = code.match_indices("unsafe").filter(|(at, _)| !code[..*at].ends_with(is_word));
    names.any(|(at, _)| {
        let name = code[at..].split(|c| !is_word(c)).next();
        let forbidden = ["forbid(", "deny("].iter().any(|lint| code[..at].ends_with(lint));
        name == Some("unsafe") || (name == Some("unsafe_code") && !forbidden)
    })
}

/// A source without its comments, strings and characters; a blank stands for each.
fn code_of(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let literal = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment_len(rest),
            '"' => quoted_len(rest, '"'),
            'r' if !code.ends_with(|c: char| c.is_alphanumeric() && !matches!(c, 'b' | 'c')) => raw_string_len(rest),
            // A lifetime has no second quote where a character has one.
            '\'' if rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'') => quoted_len(rest, '\''),
            _ => 0,
        };
        if literal > 0 {
            code.push(' ');
            rest = &rest[literal..];
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

fn block_comment_len(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        match &text.as_bytes()[at..] {
            [] => return at,
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
}

fn quoted_len(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

/// Of `r"..."`, `r#"..."#` and so on; 0 if this is another word that begins with r.
fn raw_string_len(text: &str) -> usize {
    let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
    let opening = 1 + hashes + 1;
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let closing = format!("\"{}", "#".repeat(hashes));
    text[opening..].find(&closing).map_or(text.len(), |end| opening + end + closing.len())
}

#[test]
fn unsafe_is_seen_as_code_and_nowhere_else() {
    for code in [
        "unsafe { f() }",
        "unsafe fn f() {}",
        "unsafe impl Send for T {}",
        "unsafe\nimpl Send for T {}",
        r#"unsafe extern "C" { fn f(); }"#,
        "#[unsafe(no_mangle)] fn f() {}",
        "#![allow(unsafe_code)]",
        "#[expect(unsafe_code)]",
        "#[expect(dead_code, unsafe_code, reason = \"\")]",
        "fn f<'a>(x: &'a u8) { unsafe { g(x) } }",
        "let c = '\"'; unsafe { f() } // \"",
        "let c = '\\''; unsafe { f() }",
        r##"let s = r#"a " b"#; unsafe { f() }"##,
        "/* a /* b */ c */ unsafe { f() }",
    ] {
        assert!(speaks_unsafe(code), "{code}");
    }
    for code in [
        "#![forbid(unsafe_code)]",
        "#![deny(unsafe_code)]",
        "// unsafe { f() }",
        "/// `unsafe` stands in `sys` alone.",
        "/* /* */ unsafe */",
        r#"let s = "unsafe \" unsafe";"#,
        r##"let s = r#"unsafe " unsafe"#;"##,
        r#"let s = br"unsafe";"#,
        "fn unsafely() { not_unsafe(); }",
        "#![deny(unsafe_op_in_unsafe_fn)]",
    ] {
        assert!(!speaks_unsafe(code), "{code}");
    }
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

/// A test or a probe line that `sandboxd/daemon/CONFORMANCE.md` names is there.
#[test]
fn what_is_said_to_be_tried_is_tried() {
    let daemon = checkout().join("sandboxd/daemon");
    let text = fs::read_to_string(daemon.join("CONFORMANCE.md")).unwrap();
    let tests: String = ["isolation", "limits", "once", "workloads", "probe", "serve", "faults"]
        .map(|it| fs::read_to_string(daemon.join(format!("tests/{it}.rs"))).unwrap())
        .concat();
    let probe = fs::read_to_string(daemon.join("src/check/probe.rs")).unwrap();
    let rows: Vec<&str> = text.lines().filter(|it| it.starts_with("| ") && !it.starts_with("| ---")).collect();
    let rows: Vec<&str> = rows.into_iter().filter(|it| !it.starts_with("| line")).collect();
    assert_eq!(rows.len(), 82);
    let (mut tried, mut missing) = (0, Vec::new());
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let last = *cells.last().unwrap();
        tried += usize::from(!row.contains("*not yet*"));
        for named in last.split('`').skip(1).step_by(2).filter(|it| !it.contains('/') && !it.starts_with("clone(")) {
            let is_test = tests.contains(&format!("fn {named}("));
            let is_line = probe.contains(&format!("(\"{named}\""));
            if !(is_test || is_line || named.contains("remount")) {
                missing.push(named.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "CONFORMANCE.md names what is not there: {missing:?}");
    assert!(text.contains(&format!("\n{tried} of 82 lines are tried.")), "{tried} of 82 are");
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
