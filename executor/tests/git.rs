//! Our patches beside git's own: over random trees, what `git diff` writes we apply to the same tree, and what we write
//! `git apply` takes to the same tree.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test asserts by panicking, its helpers too")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tack_executor::restore::patch::{Patch, write};
use tack_executor::restore::path::TreePath;
use tack_executor::restore::tree::{Changes, File, Mode, Tree};

/// Git in `directory`, with nothing of the user's or the host's configuration.
fn git(directory: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("git")
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "core.autocrlf=false"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git, which this test needs (Debian package `git`)");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(input)
    );
    output.stdout
}

/// Puts `tree` in the place of whatever is in `directory` beside its repository, and into the index.
fn check_in(directory: &Path, tree: &Tree) -> String {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap).filter(|it| it.file_name() != ".git") {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    tree.write(directory).unwrap();
    git(directory, &["add", "--all", "--force"], b"");
    String::from_utf8(git(directory, &["write-tree"], b"")).unwrap().trim().to_owned()
}

/// Names that a patch has to quote, and names that need care without quoting.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => "[ab]{1,2}".prop_map(String::into_bytes),
        1 => Just(b"a b".to_vec()),
        1 => Just("\u{fc}".as_bytes().to_vec()),
        1 => Just(b"\xff\t\"\\".to_vec()),
        1 => Just(b"n\nm".to_vec()),
        1 => Just(b" b/a".iter().copied().filter(|it| *it != b'/').collect::<Vec<u8>>()),
    ];
    proptest::collection::vec(part, 1..3).prop_map(|it| it.join(&b'/'))
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[xyz+-]{0,2}\n".prop_map(String::into_bytes),
        1 => Just(b"crlf\r\n".to_vec()),
        1 => Just(b"\xfe\xff\n".to_vec()),
        1 => Just(b"@@ -1 +1 @@\n".to_vec()),
    ];
    prop_oneof![
        8 => (proptest::collection::vec(line, 0..12), any::<bool>()).prop_map(|(lines, cut)| {
            let mut bytes = lines.concat();
            if cut {
                bytes.pop();
            }
            bytes
        }),
        2 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => (proptest::collection::vec(any::<u8>(), 64), 1..60_usize).prop_map(|(block, times)| block.repeat(times)),
    ]
}

fn file() -> impl Strategy<Value = File> {
    prop_oneof![
        6 => content().prop_map(|bytes| File { mode: Mode::Regular, bytes }),
        2 => content().prop_map(|bytes| File { mode: Mode::Executable, bytes }),
        1 => "[ab]{1,3}(/[ab])?".prop_map(|it| File { mode: Mode::Symlink, bytes: it.into_bytes() }),
    ]
}

/// A tree in which no file is also a directory.
fn tree(files: &[(Vec<u8>, File)]) -> Tree {
    let mut tree = Tree::default();
    for (name, file) in files {
        let path = TreePath::new(name).unwrap();
        let clash = tree.files().any(|(other, _)| {
            let under = |a: &TreePath, b: &TreePath| a.parents().any(|it| it == b.as_bytes());
            under(other, &path) || under(&path, other)
        });
        if !clash {
            tree.insert(path, file.clone());
        }
    }
    tree
}

/// Two trees that have most of their files in common, some under other names, some edited.
fn trees() -> impl Strategy<Value = (Tree, Tree)> {
    let edit = prop_oneof![
        3 => Just(0_u8),
        1 => Just(1),
        1 => Just(2),
        2 => Just(3),
        1 => Just(4),
    ];
    let files = proptest::collection::vec((name(), file(), edit, file(), name()), 0..7);
    files.prop_map(|files| {
        let base: Vec<_> = files.iter().map(|it| (it.0.clone(), it.1.clone())).collect();
        let after: Vec<_> = files
            .iter()
            .flat_map(|(name, file, edit, other, elsewhere)| match edit {
                0 => vec![(name.clone(), file.clone())],
                // Renamed; copied; rewritten or of another kind; gone.
                1 => vec![(elsewhere.clone(), file.clone())],
                2 => vec![(name.clone(), file.clone()), (elsewhere.clone(), file.clone())],
                3 => {
                    let mut bytes = file.bytes.clone();
                    let at = bytes.len() / 2;
                    bytes.splice(at..at, other.bytes.iter().copied());
                    let plain = file.mode != Mode::Symlink && other.mode != Mode::Symlink;
                    vec![(name.clone(), if plain { File { mode: other.mode, bytes } } else { other.clone() })]
                }
                _ => vec![],
            })
            .collect();
        (tree(&base), tree(&after))
    })
}

/// What makes `after` out of `base`.
fn changes(base: &Tree, after: &Tree) -> Changes {
    let gone = base.files().filter(|(path, _)| after.file(path).is_none()).map(|(path, _)| (path.clone(), None));
    let there = after.files().filter(|(path, file)| base.file(path) != Some(*file));
    gone.chain(there.map(|(path, file)| (path.clone(), Some(file.clone())))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn git_s_patches_and_ours_make_the_same_trees((base, after) in trees()) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        git(root, &["init", "--quiet", "."], b"");
        let base_id = check_in(root, &base);
        let after_id = check_in(root, &after);
        let of_git = |options: &[&str]| {
            let mut arguments = vec!["diff", "--binary", "--full-index"];
            arguments.extend(options);
            arguments.extend([base_id.as_str(), after_id.as_str()]);
            git(root, &arguments, b"")
        };
        for options in [&["--no-renames"][..], &["-M", "-C", "--find-copies-harder"], &["-M10%", "-U0"], &["-U9", "--patience"]] {
            let text = of_git(options);
            let ours = Patch::parse(&text).and_then(|it| it.apply(&base));
            let ours = ours.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&text)));
            prop_assert_eq!(base.with(&ours).digest(), after.digest(), "{}", String::from_utf8_lossy(&text));
        }
        let expected = changes(&base, &after);
        let text = write(&base, &expected).unwrap();
        let back = Patch::parse(&text).and_then(|it| it.apply(&base));
        prop_assert_eq!(back.as_ref(), Ok(&expected), "{}", String::from_utf8_lossy(&text));
        git(root, &["read-tree", &base_id], b"");
        if !text.is_empty() {
            git(root, &["apply", "--cached", "--whitespace=nowarn", "-"], &text);
        }
        let by_git = String::from_utf8(git(root, &["write-tree"], b"")).unwrap();
        prop_assert_eq!(by_git.trim(), &after_id, "{}", String::from_utf8_lossy(&text));
    }
}
