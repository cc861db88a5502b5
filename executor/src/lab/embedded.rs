//! `examples/retrykit`, as it is in the program: the lab works from any folder.

use crate::restore::path::TreePath;
use crate::restore::tree::{File, Mode, Tree};

/// Files under `examples/retrykit`, each with its path there.
macro_rules! files {
    ($directory:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../examples/retrykit/", $directory, $name)))),+]
    };
}

pub(crate) type Files = &'static [(&'static str, &'static str)];

/// The repository before any patch.
const REPOSITORY: Files = files!["repository/":
    "ci/pipeline.yml",
    "retrykit/__init__.py",
    "retrykit/config.py",
    "retrykit/worker.py",
    "tests/test_config.py",
    "tests/test_unrelated.py",
];
/// The suite that no candidate had.
const HIDDEN: Files = files!["hidden/": "test_contract.py"];
/// The article's three candidates.
pub(crate) const CANDIDATES: Files =
    files!["candidates/": "local_only.patch", "repository_fix.patch", "scope_escape.patch"];
/// Candidates that attack the lab.
pub(crate) const HOSTILE: Files = files!["hostile/":
    "writes_outside_scope.patch",
    "hangs.patch",
    "forks_without_end.patch",
    "deletes_hidden_tests.patch",
    "prints_a_gigabyte.patch",
    "exits_during_import.patch",
    "conftest_forges_passes.patch",
    "sitecustomize_forges_passes.patch",
    "package_forges_passes.patch",
    "config_forges_passes.patch",
    "worker_forges_passes.patch",
    "config_forges_and_breaks_mutants.patch",
    "forges_standard_output.patch",
    "forges_every_descriptor.patch",
    "forges_through_the_harness.patch",
    "weakens_visible_test.patch",
];

/// What a repair may see.
pub(crate) const TASK: &str = include_str!("../../../examples/retrykit/task.json");
/// What grades it.
pub(crate) const GRADING: &str = include_str!("../../../examples/retrykit/grading.json");
/// How each candidate must end.
pub(crate) const EXPECTED: &str = include_str!("../../../examples/retrykit/expected.json");

/// The repository before any patch.
pub(crate) fn repository() -> Tree {
    tree(REPOSITORY)
}

/// The suite that no candidate had.
pub(crate) fn hidden() -> Tree {
    tree(HIDDEN)
}

fn tree(files: Files) -> Tree {
    let mut tree = Tree::default();
    for (name, text) in files {
        #[expect(clippy::expect_used, reason = "constants of this file; a test reads every one")]
        let path = TreePath::new(name).expect("a path inside the example");
        tree.insert(path, File { mode: Mode::Regular, bytes: text.as_bytes().to_vec() });
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn under(root: &Path, directory: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(root.join(directory)).unwrap().map(Result::unwrap) {
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() { under(root, &path, found) } else { assert!(found.insert(path)) }
        }
    }

    #[test]
    fn the_program_holds_every_file_of_the_example() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/retrykit");
        let mut found = BTreeSet::new();
        for directory in ["repository", "hidden", "candidates", "hostile"] {
            under(&root, Path::new(directory), &mut found);
        }
        found.retain(|it| it.extension().is_none_or(|it| it != "pyc"));
        let embedded =
            [("repository", REPOSITORY), ("hidden", HIDDEN), ("candidates", CANDIDATES), ("hostile", HOSTILE)];
        let embedded: BTreeSet<PathBuf> = embedded
            .iter()
            .flat_map(|(directory, files)| files.iter().map(move |(name, _)| Path::new(directory).join(name)))
            .collect();
        assert_eq!(embedded, found);
        assert_eq!((repository().files().count(), hidden().files().count()), (6, 1));
    }
}
