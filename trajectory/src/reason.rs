//! Why an answer is in the context, from the kind of the call that it answers.
//!
//! | recorded call | reason |
//! | --- | --- |
//! | a shell command, one part of which runs tests: `pytest`, `tox`, `python -m unittest`, `runtests.py`, `manage.py test`, `bin/test`, `make test`, `go test`, `cargo test`, ... | agent test |
//! | else one part of which changes files: `>` into a file, `sed -i`, `patch`, `rm`, `mv`, `git apply`, `git checkout`, ... | edit |
//! | else all parts of which only look: `ls`, `cat`, `grep`, `find`, `git diff`, `git log`, ... | inspection |
//! | any other shell command: `python reproduce.py`, `make`, `pip install`, ... | tool call |
//! | a tool named for reading or searching (`read`, `view`, `open`, `search_dir`, `Grep`, ...), an editor's `view` | inspection |
//! | a tool named for writing (`edit`, `create`, `str_replace`, `Write`, ...), an editor's other commands | edit |
//! | any other tool | tool call |
//! | no call at all: a format error, a limit, a time-out, a word of the user or the harness | harness |
//!
//! `pretest` never comes from a foreign recording: only tack runs prescribed tests.

use tack_core::ContextReason;

use crate::shell::{Simple, simple_commands};

/// Tools that only look.
#[rustfmt::skip]
const READERS: &[&str] = &[
    "Glob", "Grep", "LS", "NotebookRead", "Read", "codebase_search", "filemap", "find_file", "glob", "goto", "grep",
    "grep_search", "list_dir", "list_files", "open", "read", "read_file", "scroll_down", "scroll_up", "search_dir",
    "search_file", "search_files", "view", "view_file",
];
/// Tools that change files.
#[rustfmt::skip]
const WRITERS: &[&str] = &[
    "Edit", "MultiEdit", "NotebookEdit", "Write", "apply_patch", "create", "edit", "edit_file", "insert",
    "replace_in_file", "str_replace", "undo_edit", "write", "write_file",
];
/// Editors with a command of their own, of which `view` only looks.
const EDITORS: &[&str] = &["file_editor", "str_replace_based_edit_tool", "str_replace_editor"];
/// Tools whose argument is a shell command.
const SHELLS: &[&str] = &["Bash", "bash", "execute_bash", "execute_command", "run", "run_command", "shell", "terminal"];

/// Programs that only look, whatever their arguments.
#[rustfmt::skip]
const LOOKING: &[&str] = &[
    "[", "ag", "cat", "cd", "cmp", "cut", "diff", "du", "echo", "egrep", "fd", "fgrep", "file", "grep", "head",
    "less", "ls", "more", "nl", "od", "printf", "pwd", "rg", "sort", "stat", "strings", "tail", "test", "tr",
    "tree", "true", "type", "uniq", "wc", "which", "xxd",
];
/// Programs that change files, whatever their arguments.
#[rustfmt::skip]
const CHANGING: &[&str] = &[
    "chmod", "cp", "dd", "ln", "mkdir", "mv", "patch", "rm", "rmdir", "rsync", "tee", "touch", "truncate", "unzip",
];
/// Programs that run tests, whatever their arguments.
#[rustfmt::skip]
const TESTING: &[&str] = &[
    "ctest", "gotestsum", "jest", "mocha", "nosetests", "nox", "phpunit", "py.test", "pytest", "rspec",
    "runtests.py", "tox", "vitest",
];

/// Whether `tool` takes a shell command.
pub(crate) fn is_shell(tool: &str) -> bool {
    SHELLS.contains(&tool)
}

/// Why the answer to a call of `tool` is in the context. `command` is its `command` argument, where it has one.
pub(crate) fn of_tool(tool: &str, command: Option<&str>) -> ContextReason {
    if is_shell(tool) {
        command.map_or(ContextReason::ToolCall, of_command)
    } else if READERS.contains(&tool) || (EDITORS.contains(&tool) && command == Some("view")) {
        ContextReason::Inspection
    } else if WRITERS.contains(&tool) || EDITORS.contains(&tool) {
        ContextReason::Edit
    } else {
        ContextReason::ToolCall
    }
}

/// Why the answer to a line typed into SWE-agent's shell is in the context: its tools are commands there.
pub(crate) fn of_typed(line: &str) -> ContextReason {
    let mut words = line.split_whitespace();
    let tool = words.next().unwrap_or_default();
    if tool.is_empty() {
        ContextReason::Harness
    } else if READERS.contains(&tool) && !LOOKING.contains(&tool) || WRITERS.contains(&tool) || EDITORS.contains(&tool)
    {
        of_tool(tool, words.next())
    } else {
        of_command(line)
    }
}

/// Why the answer to a shell command is in the context.
pub(crate) fn of_command(command: &str) -> ContextReason {
    let parts = simple_commands(command);
    if parts.iter().any(tests) {
        ContextReason::AgentTest
    } else if parts.iter().any(changes) {
        ContextReason::Edit
    } else if !parts.is_empty() && parts.iter().all(looks) {
        ContextReason::Inspection
    } else {
        ContextReason::ToolCall
    }
}

fn tests(part: &Simple) -> bool {
    let program = part.program();
    let (first, second) = (part.word(1), part.word(2));
    let script = first.rsplit('/').next().unwrap_or(first);
    TESTING.contains(&program)
        || part.word(0).ends_with("bin/test")
        || match program {
            "python" | "python2" | "python3" | "coverage" => {
                let module = if first == "-m" { second } else { "" };
                matches!(module, "pytest" | "unittest" | "tox" | "nox" | "nose")
                    || script == "runtests.py"
                    || first.ends_with("bin/test")
                    || (matches!(script, "manage.py" | "setup.py") && second == "test")
            }
            "make" | "ninja" | "just" | "mvn" | "gradle" | "gradlew" | "rake" => {
                part.words[1..].iter().any(|word| word.starts_with("test") || word == "check")
            }
            "go" | "cargo" | "npm" | "yarn" | "pnpm" | "bun" | "dotnet" | "bazel" => {
                matches!(first, "test" | "nextest") || (first == "run" && second.starts_with("test"))
            }
            _ => false,
        }
}

fn changes(part: &Simple) -> bool {
    let edits_in_place = |word: &String| word == "--in-place" || (word.starts_with('-') && word.contains('i'));
    let program = part.program();
    part.writes_file
        || CHANGING.contains(&program)
        || match program {
            "sed" | "perl" => part.words[1..].iter().take_while(|word| word.starts_with('-')).any(edits_in_place),
            "find" => part.words.iter().any(|word| word == "-delete"),
            "git" => matches!(
                git_command(part),
                "am" | "apply"
                    | "checkout"
                    | "cherry-pick"
                    | "clean"
                    | "merge"
                    | "mv"
                    | "pull"
                    | "rebase"
                    | "reset"
                    | "restore"
                    | "revert"
                    | "rm"
                    | "stash"
                    | "switch"
            ),
            _ => false,
        }
}

fn looks(part: &Simple) -> bool {
    let program = part.program();
    LOOKING.contains(&program)
        || match program {
            "sed" | "awk" => true,
            "find" => !part.words.iter().any(|word| word.starts_with("-exec")),
            "git" => matches!(
                git_command(part),
                "blame"
                    | "branch"
                    | "cat-file"
                    | "diff"
                    | "grep"
                    | "log"
                    | "ls-files"
                    | "rev-parse"
                    | "show"
                    | "status"
            ),
            _ => false,
        }
}

fn git_command(part: &Simple) -> &str {
    let mut words = part.words[1..].iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            // The two options that take their value as a word of its own.
            "-C" | "-c" => _ = words.next(),
            option if option.starts_with('-') => {}
            command => return command,
        }
    }
    ""
}

/// Whether `command` prints the whole patch against the commit that is checked out, new files included, and does
/// nothing else: `git add -A && git diff --cached`, after a `cd` at most.
///
/// A plain `git diff` leaves new files out, so it is no whole patch; nor is one that is cut by `head` or to a path.
pub(crate) fn prints_whole_patch(command: &str) -> bool {
    let parts = simple_commands(command);
    let parts = match parts.as_slice() {
        [first, rest @ ..] if first.program() == "cd" && rest.first().is_some_and(|it| it.joined_by == "&&") => rest,
        all => all,
    };
    let [add, diff] = parts else { return false };
    let words = |part: &Simple, ignored: &[&str]| -> Vec<String> {
        part.words.iter().filter(|word| !ignored.contains(&word.as_str())).cloned().collect()
    };
    let adds_all = matches!(words(add, &[]).join(" ").as_str(), "git add -A" | "git add --all");
    let diff_words = words(diff, &["--no-pager", "--no-color", "--no-ext-diff", "--binary", "HEAD"]).join(" ");
    adds_all
        && matches!(diff_words.as_str(), "git diff --cached" | "git diff --staged")
        && matches!(diff.joined_by, "&&" | ";")
        && !add.writes_file
        && !diff.writes_file
}

/// Whether `command` may move the commit that is checked out: from then on a diff against it is not one against the
/// base.
pub(crate) fn may_move_head(command: &str) -> bool {
    simple_commands(command).iter().any(|part| {
        part.program() == "git"
            && matches!(
                git_command(part),
                "am" | "checkout"
                    | "cherry-pick"
                    | "commit"
                    | "merge"
                    | "pull"
                    | "rebase"
                    | "reset"
                    | "revert"
                    | "switch"
            )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContextReason::{AgentTest, Edit, Harness, Inspection, ToolCall};

    #[test]
    fn commands_by_kind() {
        #[rustfmt::skip]
        let cases = [
            ("ls -F",                                               Inspection),
            ("cd /testbed && grep -rn x src | head -n 20",          Inspection),
            ("sed -n '397,450p' a.py",                              Inspection),
            ("git --no-pager log -5",                               Inspection),
            ("git -C /x diff",                                      Inspection),
            ("find . -name '*.py'",                                 Inspection),
            ("find . -exec rm {} +",                                ToolCall),
            ("find . -delete",                                      Edit),
            ("sed -i 's/a/b/' a.py",                                Edit),
            ("sed -e i -n p a.py",                                  Inspection),
            ("perl -pi -e s/a/b/ a.py",                             Edit),
            ("cat <<'EOF' > new.py\npytest\nEOF",                   Edit),
            ("echo x >> a.py",                                      Edit),
            ("git checkout a.py",                                   Edit),
            ("rm reproduce.py",                                     Edit),
            ("python reproduce.py",                                 ToolCall),
            ("pip install -e .",                                    ToolCall),
            ("make",                                                ToolCall),
            ("git add -A",                                          ToolCall),
            ("pytest -q a.py 2>&1 | tail -5",                       AgentTest),
            ("cd /x && python3 -m pytest",                          AgentTest),
            ("./tests/runtests.py aggregation",                     AgentTest),
            ("python tests/runtests.py a",                          AgentTest),
            ("python manage.py test",                               AgentTest),
            ("bin/test sympy/sets",                                 AgentTest),
            ("test -f x",                                           Inspection),
            ("make -C a test 2>&1 | tail -60",                      AgentTest),
            ("go test ./... && rm x",                               AgentTest),
            ("cargo nextest run",                                   AgentTest),
            ("npm run test:unit",                                   AgentTest),
            ("",                                                    ToolCall),
        ];
        for (command, reason) in cases {
            assert_eq!(of_command(command), reason, "{command}");
        }
    }

    #[test]
    fn tools_by_name() {
        #[rustfmt::skip]
        let cases = [
            ("Read",               None,          Inspection),
            ("str_replace_editor", Some("view"),  Inspection),
            ("str_replace_editor", Some("create"), Edit),
            ("Write",              None,          Edit),
            ("Bash",               Some("ls"),    Inspection),
            ("terminal",           Some("tox"),   AgentTest),
            ("bash",               None,          ToolCall),
            ("think",              None,          ToolCall),
        ];
        for (tool, command, reason) in cases {
            assert_eq!(of_tool(tool, command), reason, "{tool}");
        }
        #[rustfmt::skip]
        let typed = [
            ("open \"a.py\" 12",                   Inspection),
            ("edit 1:1\nimport os\nend_of_edit\n", Edit),
            ("create a.py",                        Edit),
            ("str_replace_editor view /x",         Inspection),
            ("str_replace_editor create /x",       Edit),
            ("python a.py",                        ToolCall),
            ("grep x a.py > b",                    Edit),
            ("",                                   Harness),
            (" \n",                                Harness),
        ];
        for (line, reason) in typed {
            assert_eq!(of_typed(line), reason, "{line}");
        }
    }

    #[test]
    fn only_a_whole_patch_counts() {
        #[rustfmt::skip]
        let cases = [
            ("git add -A && git diff --cached",                              true),
            ("cd /testbed && git add --all; git --no-pager diff --staged HEAD", true),
            ("git add -A && git diff --cached --binary",                     true),
            ("git diff",                                                     false),
            ("git diff HEAD",                                                false),
            ("git add . && git diff --cached",                               false),
            ("git add -A && git diff --cached -- src",                       false),
            ("git add -A && git diff --cached | head",                       false),
            ("git add -A && git diff --cached > p.txt",                      false),
            ("git add -A || git diff --cached",                              false),
            ("sed -i s/a/b/ x && git add -A && git diff --cached",           false),
            ("git add -A && git diff",                                       false),
        ];
        for (command, whole) in cases {
            assert_eq!(prints_whole_patch(command), whole, "{command}");
        }
        assert!(may_move_head("git add -A && git commit -m x") && !may_move_head("git diff HEAD"));
    }
}
