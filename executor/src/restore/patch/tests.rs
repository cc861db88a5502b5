//! The patch as a specification: what is applied, what is refused and how it is said, and that a tree survives the way
//! through a patch, ours or git's own.

use std::str;

use proptest::prelude::*;

use super::*;
use crate::restore::tree::{File, Tree};

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (name, text) in files {
        tree.insert(path(name), File { mode: Mode::Regular, bytes: text.as_bytes().to_vec() });
    }
    tree
}

fn base() -> Tree {
    tree(&[("a.py", "one\ntwo\nthree\nfour\nfive\n"), ("bare", "no newline"), ("crlf", "x\r\ny\r\n"), ("empty", "")])
}

fn onto(base: &Tree, patch: &[u8]) -> Result<Tree, PatchError> {
    Ok(base.with(&Patch::parse(patch)?.apply(base)?))
}

fn apply(patch: &str) -> Result<Tree, PatchError> {
    onto(&base(), patch.as_bytes())
}

/// A new file of three bytes, 0 to 2.
const BINARY_HEAD: &str = "diff --git a/b b/b\nnew file mode 100644\nindex 0000000000000000000000000000000000000000..8352675d67aed6625ece79af41c27fdb4ee2e867\n";
const HEAD: &str = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n";

#[test]
fn what_fits_is_applied_byte_for_byte() {
    #[rustfmt::skip]
    let cases = [ // name, patch, file, its bytes after (`None`: gone)
        ("the empty patch",        String::new(), "a.py", Some("one\ntwo\nthree\nfour\nfive\n")),
        ("a line in the middle",   format!("{HEAD}@@ -2,3 +2,3 @@ def f():\n two\n-three\n+THREE\n four\n"),
                                   "a.py", Some("one\ntwo\nTHREE\nfour\nfive\n")),
        ("two hunks that shift",   format!("{HEAD}@@ -1 +1,2 @@\n+zero\n one\n@@ -5 +6 @@\n-five\n+FIVE\n"),
                                   "a.py", Some("zero\none\ntwo\nthree\nfour\nFIVE\n")),
        ("an insertion, no context", format!("{HEAD}@@ -2,0 +3 @@\n+two and a half\n"),
                                   "a.py", Some("one\ntwo\ntwo and a half\nthree\nfour\nfive\n")),
        ("every line removed",     format!("{HEAD}@@ -1,5 +0,0 @@\n-one\n-two\n-three\n-four\n-five\n"), "a.py", Some("")),
        ("the last newline removed", format!("{HEAD}@@ -5 +5 @@\n-five\n+five\n\\ No newline at end of file\n"),
                                   "a.py", Some("one\ntwo\nthree\nfour\nfive")),
        ("a last newline added",   "diff --git a/bare b/bare\nindex 1..2 100644\n--- a/bare\n+++ b/bare\n@@ -1 +1 @@\n-no newline\n\
                                   \\ No newline at end of file\n+no newline\n".into(), "bare", Some("no newline\n")),
        ("carriage returns kept",  "diff --git a/crlf b/crlf\n--- a/crlf\n+++ b/crlf\n@@ -1,2 +1,2 @@\n x\r\n-y\r\n+z\r\n".into(),
                                   "crlf", Some("x\r\nz\r\n")),
        ("a new file",             "diff --git a/d/n b/d/n\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/d/n\n@@ -0,0 +1 @@\n+new\n".into(),
                                   "d/n", Some("new\n")),
        ("a new empty file",       "diff --git a/n b/n\nnew file mode 100644\nindex 0..1\n".into(), "n", Some("")),
        ("a name with spaces",     "diff --git a/a b c b/a b c\nnew file mode 100644\n--- /dev/null\n+++ b/a b c\t\n@@ -0,0 +1 @@\n+new\n".into(),
                                   "a b c", Some("new\n")),
        ("a deletion",             "diff --git a/crlf b/crlf\ndeleted file mode 100644\n--- a/crlf\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\r\n-y\r\n".into(),
                                   "crlf", None),
        ("an empty file deleted",  "diff --git a/empty b/empty\ndeleted file mode 100644\nindex 1..0\n".into(), "empty", None),
        ("one file in two parts",  format!("{HEAD}@@ -1 +1 @@\n-one\n+1\n{HEAD}@@ -1,2 +1,2 @@\n 1\n-two\n+2\n"), "a.py", Some("1\n2\nthree\nfour\nfive\n")),
        ("created, then deleted",  "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n\
                                   diff --git a/n b/n\ndeleted file mode 100644\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n".into(), "n", None),
        ("a rename",               "diff --git a/bare b/d/moved\nsimilarity index 100%\nrename from bare\nrename to d/moved\n".into(), "d/moved", Some("no newline")),
        ("its source",             "diff --git a/bare b/d/moved\nsimilarity index 100%\nrename from bare\nrename to d/moved\n".into(), "bare", None),
        ("a rename with an edit",  "diff --git a/crlf b/c d\nsimilarity index 50%\nrename from crlf\nrename to c d\n--- a/crlf\n+++ b/c d\t\n@@ -2 +2 @@\n-y\r\n+z\r\n".into(),
                                   "c d", Some("x\r\nz\r\n")),
        ("two names exchanged",    "diff --git a/bare b/crlf\nrename from bare\nrename to crlf\ndiff --git a/crlf b/bare\nrename from crlf\nrename to bare\n".into(),
                                   "bare", Some("x\r\ny\r\n")),
        ("a copy of what was",     format!("{HEAD}@@ -1 +1 @@\n-one\n+1\ndiff --git a/a.py b/b.py\nsimilarity index 100%\ncopy from a.py\ncopy to b.py\n"),
                                   "b.py", Some("one\ntwo\nthree\nfour\nfive\n")),
        ("a symbolic link",        "diff --git a/d/l b/d/l\nnew file mode 120000\n--- /dev/null\n+++ b/d/l\n@@ -0,0 +1 @@\n+../bare\n\\ No newline at end of file\n".into(),
                                   "d/l", Some("../bare")),
        ("a file for a link",      "diff --git a/empty b/empty\ndeleted file mode 100644\nindex 1..0\ndiff --git a/empty b/empty\nnew file mode 120000\n\
                                   --- /dev/null\n+++ b/empty\n@@ -0,0 +1 @@\n+bare\n\\ No newline at end of file\n".into(), "empty", Some("bare")),
        ("a quoted name",          "diff --git \"a/\\303\\274\" \"b/\\303\\274\"\nnew file mode 100644\n--- /dev/null\n+++ \"b/\\303\\274\"\n@@ -0,0 +1 @@\n+x\n".into(), "ü", Some("x\n")),
        ("a binary literal",       format!("{BINARY_HEAD}GIT binary patch\nliteral 3\nKcmZQzWC8#H2LJ>B\n\nliteral 0\nHcmV?d00001\n\n"), "b", Some("\u{0}\u{1}\u{2}")),
        ("a line like a header",   format!("{HEAD}@@ -1 +1 @@\n-one\n+++ b/a.py\n"), "a.py", Some("++ b/a.py\ntwo\nthree\nfour\nfive\n")),
    ];
    for (name, patch, file, expected) in cases {
        let found = apply(&patch).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = found.file(&path(file)).map(|it| str::from_utf8(&it.bytes).unwrap());
        assert_eq!(text, expected, "{name}");
    }
}

#[test]
fn a_mode_is_applied_and_has_to_be_the_one_named() {
    let patch = "diff --git a/bare b/bare\nold mode 100644\nnew mode 100755\n";
    let after = apply(patch).unwrap();
    assert_eq!(after.file(&path("bare")).unwrap().mode, Mode::Executable);
    let again = Patch::parse(patch.as_bytes()).unwrap().apply(&after);
    assert_eq!(again, Err(PatchError::Mode { path: path("bare"), expected: "100644", found: "100755" }));
}

#[test]
fn what_does_not_fit_is_refused_with_file_place_expected_and_found() {
    #[rustfmt::skip]
    let cases = [
        ("another line there",     format!("{HEAD}@@ -2,2 +2,2 @@\n two\n-3\n+4\n"),
                                   "`a.py`, hunk 1: line 3 should be \"3\\n\"; found \"three\\n\""),
        ("one line off",           format!("{HEAD}@@ -1 +1 @@\n-two\n+2\n"), "`a.py`, hunk 1: line 1 should be \"two\\n\"; found \"one\\n\""),
        ("beyond the end",         format!("{HEAD}@@ -6 +6 @@\n-six\n+6\n"), "`a.py`, hunk 1: line 6 should be \"six\\n\"; found the end"),
        ("far beyond the end",     format!("{HEAD}@@ -60 +60 @@\n-six\n+6\n"), "`a.py`, hunk 1: expected to start at new line 6, found 60"),
        ("a newline too many",     "diff --git a/bare b/bare\n--- a/bare\n+++ b/bare\n@@ -1 +1 @@\n-no newline\n+x\n".into(),
                                   "`bare`, hunk 1: line 1 should be \"no newline\\n\"; found \"no newline\""),
        ("hunks out of order",     format!("{HEAD}@@ -4 +4 @@\n-four\n+4\n@@ -1 +1 @@\n-one\n+1\n"), "`a.py`, hunk 2: expected to start at new line 5, found 1"),
        ("a wrong new position",   format!("{HEAD}@@ -4 +5 @@\n-four\n+4\n"), "`a.py`, hunk 1: expected to start at new line 4, found 5"),
        ("no such file",           "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n".into(), "`x`: expected a file to change; found none"),
        ("a file that is there",   "diff --git a/bare b/bare\nnew file mode 100644\n".into(), "`bare`: expected no file, since the patch creates it; found one"),
        ("a partial deletion",     "diff --git a/crlf b/crlf\ndeleted file mode 100644\n--- a/crlf\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\r\n".into(),
                                   "`crlf`: expected the deletion to cover the file; 3 bytes are left"),
        ("a file under a file",    "diff --git a/bare/x b/bare/x\nnew file mode 100644\n".into(), "`bare` is a file, and `bare/x` needs it as a directory"),
        ("one file renamed twice", "diff --git a/bare b/x\nrename from bare\nrename to x\ndiff --git a/bare b/y\nrename from bare\nrename to y\n".into(),
                                   "`bare` is renamed or deleted twice"),
        ("a rename onto a file",   "diff --git a/bare b/crlf\nrename from bare\nrename to crlf\n".into(), "`crlf`: expected no file, since the patch creates it; found one"),
        ("a rename of nothing",    "diff --git a/x b/y\nrename from x\nrename to y\n".into(), "`x`: expected a file to change; found none"),
        ("a header that says another name", "diff --git a/x b/y\nrename from bare\nrename to y\n".into(),
                                   "line 1 of the patch: expected the names of the lines below, found \"diff --git a/x b/y\""),
        ("a rename and a new file", "diff --git a/x b/x\nnew file mode 100644\nrename from x\nrename to x\n".into(),
                                   "line 1 of the patch: expected one of: a new file, a deleted file, new modes, a rename, a copy, found \"diff --git a/x b/x\""),
        ("half of a rename",       "diff --git a/bare b/y\nrename from bare\n".into(),
                                   "line 1 of the patch: expected one of: a new file, a deleted file, new modes, a rename, a copy, found \"diff --git a/bare b/y\""),
        ("a line twice",           "diff --git a/bare b/bare\nold mode 100644\nnew mode 100755\nold mode 100644\n".into(),
                                   "line 4 of the patch: expected each line of a header once, found \"old mode 100644\""),
        ("another object",         "diff --git a/bare b/bare\nindex 0000000000000000000000000000000000000001..8352675d67aed6625ece79af41c27fdb4ee2e867 100644\n\
                                    GIT binary patch\nliteral 3\nKcmZQzWC8#H2LJ>B\n\n".into(),
                                   "`bare`: expected object 0000000000000000000000000000000000000001 before the binary hunk, found 20cbb4d89224e1ed724b7feaf5c4f4479e25212a"),
        ("another content",        format!("{BINARY_HEAD}GIT binary patch\nliteral 0\nHcmV?d00001\n\n"),
                                   "`b`: expected object 8352675d67aed6625ece79af41c27fdb4ee2e867 after the binary hunk, found e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        ("a size that is not so",  format!("{BINARY_HEAD}GIT binary patch\nliteral 4\nKcmZQzWC8#H2LJ>B\n\n"),
                                   "line 5 of the patch: expected a hunk that inflates to as many bytes as it counts, at most 64 MiB, found \"literal 4\""),
        ("a line of no base85",    format!("{BINARY_HEAD}GIT binary patch\nliteral 3\nKcmZQzWC8#H2LJ\n\n"),
                                   "line 6 of the patch: expected a line of base85, or an empty one, found \"KcmZQzWC8#H2LJ\""),
        ("a cut binary hunk",      format!("{BINARY_HEAD}GIT binary patch\nliteral 3\nKcmZQzWC8#H2LJ>B\n"),
                                   "line 7 of the patch: expected an empty line after the binary hunk, found the end"),
        ("abbreviated objects",    "diff --git a/b b/b\nnew file mode 100644\nindex 0..8352675\nGIT binary patch\nliteral 3\nKcmZQzWC8#H2LJ>B\n\n".into(),
                                   "line 4 of the patch: expected a line `index OLD..NEW` with whole object names above a binary hunk, found \"GIT binary patch\""),
        ("a link out of the tree", "diff --git a/d/l b/d/l\nnew file mode 120000\n--- /dev/null\n+++ b/d/l\n@@ -0,0 +1 @@\n+../../etc\n\\ No newline at end of file\n".into(),
                                   "`d/l`: a symbolic link to `../../etc` is refused: it may leave the repository"),
        ("a file made a link out", "diff --git a/bare b/bare\nold mode 100644\nnew mode 120000\n--- a/bare\n+++ b/bare\n@@ -1 +1 @@\n-no newline\n\\ No newline at end of file\n+/etc\n\\ No newline at end of file\n".into(),
                                   "`bare`: a symbolic link to `/etc` is refused: it may leave the repository"),
        ("a file that is no link", "diff --git a/bare b/bare\nindex 1..2 120000\n--- a/bare\n+++ b/bare\n@@ -1 +1 @@\n-no newline\n\\ No newline at end of file\n+x\n\\ No newline at end of file\n".into(),
                                   "`bare`: expected mode 120000, found 100644"),
        ("another old mode",       "diff --git a/bare b/bare\nold mode 100755\nnew mode 100644\n".into(), "`bare`: expected mode 100755, found 100644"),
        ("prose above",            format!("Fix it.\n\n{HEAD}@@ -1 +1 @@\n-one\n+1\n"),
                                   "line 1 of the patch: expected `diff --git a/PATH b/PATH`, found \"Fix it.\""),
        ("no git header",          "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+1\n".into(),
                                   "line 1 of the patch: expected `diff --git a/PATH b/PATH`, found \"--- a/a.py\""),
        ("another name below",     "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/bare\n@@ -1 +1 @@\n-one\n+1\n".into(),
                                   "line 3 of the patch: expected `+++ b/PATH` with the path of the header, found \"+++ b/bare\""),
        ("a header without change", "diff --git a/a.py b/a.py\nindex 1..2 100644\n".into(),
                                   "line 3 of the patch: expected a change of the file that the lines above name, found the end"),
        ("no hunk",                HEAD.to_owned(), "line 4 of the patch: expected a hunk (`@@ -l,n +l,n @@`), found the end"),
        ("a stripped space",       format!("{HEAD}@@ -1,2 +1,2 @@\none\n-two\n+2\n"),
                                   "line 5 of the patch: expected a line of the hunk, starting with ` `, `-` or `+`, found \"one\""),
        ("a cut hunk",             format!("{HEAD}@@ -1,2 +1,2 @@\n one\n"), "line 6 of the patch: expected the rest of the hunk, found the end"),
        ("more than was counted",  format!("{HEAD}@@ -1,1 +1,2 @@\n-one\n-two\n"),
                                   "line 6 of the patch: expected as many lines as the hunk's header counts, found \"-two\""),
        ("a count out of range",   format!("{HEAD}@@ -1,99999999999 +1 @@\n"), "line 4 of the patch: expected a hunk header (`@@ -l,n +l,n @@`), found \"@@ -1,99999999999 +1 @@\""),
        ("a signed count",         format!("{HEAD}@@ -1,+1 +1 @@\n-one\n+1\n"), "line 4 of the patch: expected a hunk header (`@@ -l,n +l,n @@`), found \"@@ -1,+1 +1 @@\""),
        ("terminal escapes",       "\u{1b}[2J".into(), "line 1 of the patch: expected `diff --git a/PATH b/PATH`, found \"\\u{1b}[2J\""),
    ];
    for (name, patch, message) in cases {
        assert_eq!(apply(&patch).unwrap_err().to_string(), message, "{name}");
    }
}

#[test]
fn what_could_leave_the_tree_or_means_more_than_text_is_refused_by_name() {
    let new = |name: &str| format!("diff --git a/{name} b/{name}\nnew file mode 100644\n");
    #[rustfmt::skip]
    let cases = [
        (new("../up"),          "line 1 of the patch: the path `../up` is refused"),
        (new("x/../../up"),     "line 1 of the patch: the path `x/../../up` is refused"),
        (new("/etc/passwd"),    "line 1 of the patch: the path `/etc/passwd` is refused"),
        (new(".git/hooks/pre-commit"), "line 1 of the patch: the path `.git/hooks/pre-commit` is refused"),
        (new("sub/.Git/config"), "line 1 of the patch: the path `sub/.Git/config` is refused"),
        (new("a\0b"),            "line 1 of the patch: the path `\"a\\000b\"` is refused"),
        ("diff --git a/x b/../x\nrename from x\nrename to ../x\n".into(), "line 3 of the patch: the path `../x` is refused"),
        ("diff --git \"a/.git/h\\303\\274\" \"b/.git/h\\303\\274\"\nnew file mode 100644\n".into(), "line 1 of the patch: the path `\".git/h\\303\\274\"` is refused"),
        ("diff --git a/s b/s\nnew file mode 160000\n".into(), "line 2 of the patch: a submodule (its commit is not in the patch, so no tree can be made of it) is refused"),
        ("diff --git a/s b/s\nindex 1..2 160000\n".into(), "line 2 of the patch: a submodule (its commit is not in the patch, so no tree can be made of it) is refused"),
        ("diff --git a/b b/b\nindex 1..2\nBinary files a/b and b/b differ\n".into(), "line 3 of the patch: a binary change without its content (`git diff --binary` writes it) is refused"),
        ("diff --git a/bare b/moved\nold mode 100644\nnew mode 100755\n".into(), "line 1 of the patch: expected `diff --git a/PATH b/PATH`, twice the same path (two only in a rename or a copy), found \"diff --git a/bare b/moved\""),
        ("diff --git a/x b/x\nnew file mode 100600\n".into(), "line 2 of the patch: expected a mode: 100644, 100755 or 120000, found \"new file mode 100600\""),
    ];
    for (patch, message) in cases {
        assert_eq!(apply(&patch).unwrap_err().to_string(), message, "{patch:?}");
    }
    let large = vec![b'x'; PATCH_BYTES_MAX + 1];
    assert_eq!(Patch::parse(&large), Err(PatchError::Size { found: large.len() }));
}

/// An edit script: for each old line, whether it is kept, removed, or gets new lines above it.
#[derive(Clone, Debug)]
struct Edit {
    removed: bool,
    above: Vec<String>,
}

fn ended(line: &str) -> String {
    format!("{line}\n")
}

/// The obvious twin of `diff`: one hunk a run of changed lines, with up to `context` lines around, never merged into
/// overlap, built from the script itself.
fn diff(old: &[String], edits: &[Edit], context: usize) -> (String, String) {
    let mut script: Vec<(char, &str)> = Vec::new();
    for (line, edit) in old.iter().zip(edits) {
        script.extend(edit.above.iter().map(|it| ('+', it.as_str())));
        script.push((if edit.removed { '-' } else { ' ' }, line));
    }
    let near = |at: usize| {
        let from = at.saturating_sub(context);
        script[from..(at + context + 1).min(script.len())].iter().any(|it| it.0 != ' ')
    };
    let (mut hunks, mut open) = (String::new(), None::<(usize, usize, String, usize, usize)>);
    let (mut old_at, mut new_at) = (0, 0);
    let mut close = |open: &mut Option<(usize, usize, String, usize, usize)>| {
        if let Some((old_start, new_start, body, old_count, new_count)) = open.take() {
            let start = |start: usize, count: usize| if count == 0 { start } else { start + 1 };
            let (old_start, new_start) = (start(old_start, old_count), start(new_start, new_count));
            let header = format!("@@ -{old_start},{old_count} +{new_start},{new_count} @@\n");
            hunks.extend([header, body]);
        }
    };
    for (at, (kind, text)) in script.iter().enumerate() {
        let (is_old, is_new) = (usize::from(*kind != '+'), usize::from(*kind != '-'));
        if near(at) {
            let hunk = open.get_or_insert((old_at, new_at, String::new(), 0, 0));
            hunk.2.extend([String::from(*kind), ended(text)]);
            hunk.3 += is_old;
            hunk.4 += is_new;
        } else {
            close(&mut open);
        }
        old_at += is_old;
        new_at += is_new;
    }
    close(&mut open);
    let new = script.iter().filter(|it| it.0 != '-').map(|it| ended(it.1)).collect();
    (if hunks.is_empty() { hunks } else { format!("diff --git a/f b/f\n--- a/f\n+++ b/f\n{hunks}") }, new)
}

proptest! {
    #[test]
    fn tree_to_patch_to_tree_is_the_identity(
        lines in proptest::collection::vec(("[ab+-]{0,3}", any::<bool>(), proptest::collection::vec("[ab@]{0,2}", 0..2)), 1..24),
        context in 0usize..4,
    ) {
        let old: Vec<String> = lines.iter().map(|it| it.0.clone()).collect();
        let edits: Vec<Edit> =
            lines.iter().map(|it| Edit { removed: it.1, above: it.2.clone() }).collect();
        let (patch, new) = diff(&old, &edits, context);
        let base = tree(&[("f", &old.iter().map(|it| ended(it)).collect::<String>())]);
        prop_assert_eq!(onto(&base, patch.as_bytes()).unwrap(), tree(&[("f", &new)]));
    }

    /// Bytes that resemble a patch parse or are refused; nothing panics, and a parsed patch applies or is refused.
    #[test]
    fn no_bytes_panic(
        pieces in proptest::collection::vec(prop_oneof![
            Just("diff --git a/a.py b/a.py\n".to_owned()), Just("--- a/a.py\n".to_owned()), Just("+++ b/a.py\n".to_owned()),
            Just("--- /dev/null\n".to_owned()), Just("new file mode 100644\n".to_owned()), Just("old mode 100644\n".to_owned()),
            Just("@@ -1,2 +1,2 @@\n".to_owned()), Just("@@ -0,0 +1 @@\n".to_owned()), Just("\\ No newline\n".to_owned()),
            Just("rename from a.py\n".to_owned()), Just("rename to b.py\n".to_owned()), Just("copy from bare\n".to_owned()), Just("copy to b\n".to_owned()),
            Just("diff --git a/a.py b/b.py\n".to_owned()), Just("GIT binary patch\n".to_owned()), Just("literal 3\nKcmZQzWC8#H2LJ>B\n\n".to_owned()), Just("delta 9\n".to_owned()),
            Just("index 0000000000000000000000000000000000000000..8352675d67aed6625ece79af41c27fdb4ee2e867 100644\n".to_owned()),
            Just("@@ -4294967295,4294967295 +1 @@\n".to_owned()), " [a-z]{0,3}\n", "-[a-z]{0,3}\n", "\\+[a-z]{0,3}\n", ".{0,6}",
        ], 0..12),
    ) {
        if let Ok(patch) = Patch::parse(pieces.concat().as_bytes()) {
            drop(patch.apply(&base()));
        }
    }
}
