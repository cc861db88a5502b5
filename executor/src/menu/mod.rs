//! The public-test menu: which of a repository's own tests a test action runs.
//!
//! A pure function of the initial tree and of the set of paths that the patch changes: no label, no content of the
//! patch, no run. The whole rule:
//!
//! 1. **Project.** `django/__init__.py` and `tests/runtests.py`: Django's runner. `sympy/__init__.py` and
//!    `sympy/testing/runtests.py`: `SymPy`'s. Anything else: pytest.
//! 2. **Test files.** pytest: `test_*.py` and `*_test.py`. Django: `test*.py` and `*_tests.py` under `tests/`. `SymPy`:
//!    `test_*.py` in a directory `tests` under `sympy/`. A file that the patch changes is out, and so is one of more
//!    than [`FILE_BYTES_MAX`].
//! 3. **Association** of a changed file with a test file, by their paths alone: [`associate::Kind`], nearest first. A
//!    changed file that is itself a test file, or no Python, is associated with nothing.
//! 4. **Order** of test files for one changed file: kind, then more directories in common, then the shorter path, then
//!    the path's bytes. Changed files are taken in byte order of their paths.
//! 5. **Test functions** of a file, in the order of its text: [`functions::test_functions`].
//! 6. **Targeted**: in turns over the changed files, the functions of each one's first test file that has any; at most
//!    [`Menu::TARGETED_MAX`].
//! 7. **Broader**: every associated test file in order of its best place in rule 4, one function a file and a turn, so
//!    that twenty functions look at as many files as there are; without the targeted ones; at most
//!    [`Menu::BROADER_MAX`].
//!
//! An empty patch, or one whose files are associated with nothing, has an empty menu, and an empty part makes its
//! action unavailable. The rule misses tests whose names say nothing of what they test; it never looks for them by
//! running anything.

pub mod associate;
pub mod collection;
pub mod functions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use tack_core::Menu;

use crate::menu::associate::{Association, associate};
use crate::menu::functions::{TestFunction, test_functions};
use crate::restore::path::TreePath;
use crate::restore::tree::{Base, ReadError};

/// Largest file that is parsed, in bytes: the largest test file of the twelve public repositories has a tenth of it.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Which runner a repository's tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Project {
    /// pytest, also for unittest classes.
    Pytest,
    /// Django's `tests/runtests.py`.
    Django,
    /// `SymPy`'s own runner.
    Sympy,
}

/// What the two test actions would run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestMenu {
    /// The runner.
    pub project: Project,
    /// For `test_targeted`.
    pub targeted: Vec<TestFunction>,
    /// For `test_regression`.
    pub broader: Vec<TestFunction>,
    /// Test files that were out because the patch changes them, in byte order.
    pub excluded: Vec<TreePath>,
}

impl Project {
    /// The project of a tree.
    #[must_use]
    pub fn of(base: &impl Base) -> Self {
        let has = |paths: [&str; 2]| paths.iter().all(|it| base.has(it.as_bytes()));
        if has(["django/__init__.py", "tests/runtests.py"]) {
            Self::Django
        } else if has(["sympy/__init__.py", "sympy/testing/runtests.py"]) {
            Self::Sympy
        } else {
            Self::Pytest
        }
    }

    /// Whether a path is one of its test files.
    #[must_use]
    pub fn is_test_file(self, path: &TreePath) -> bool {
        let path = path.as_bytes();
        let name = path.rsplit(|it| *it == b'/').next().unwrap_or_default();
        let Some(stem) = name.strip_suffix(b".py") else { return false };
        match self {
            Self::Pytest => stem.starts_with(b"test_") || stem.ends_with(b"_test"),
            Self::Django => path.starts_with(b"tests/") && (stem.starts_with(b"test") || stem.ends_with(b"_tests")),
            Self::Sympy => {
                let in_tests = path.split(|it| *it == b'/').rev().nth(1) == Some(b"tests");
                path.starts_with(b"sympy/") && in_tests && stem.starts_with(b"test_")
            }
        }
    }

    /// The id of a test function, as the project's runner takes it.
    #[must_use]
    pub fn id(self, test: &TestFunction) -> String {
        let file = test.file.to_string();
        match self {
            Self::Pytest | Self::Sympy => {
                let class = test.class.as_ref().map_or(String::new(), |it| format!("{it}::"));
                format!("{file}::{class}{}", test.name)
            }
            Self::Django => {
                let module = file.strip_prefix("tests/").unwrap_or(&file);
                let module = module.strip_suffix(".py").unwrap_or(module).replace('/', ".");
                let class = test.class.as_ref().map_or(String::new(), |it| format!("{it}."));
                format!("{module}.{class}{}", test.name)
            }
        }
    }
}

impl fmt::Display for Project {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pytest => "pytest",
            Self::Django => "django",
            Self::Sympy => "sympy",
        })
    }
}

impl TestMenu {
    /// The menu of a patch that changes `changed` of `base`.
    ///
    /// # Errors
    /// [`ReadError`] where a test file is there and cannot be had.
    pub fn choose(base: &impl Base, changed: &BTreeSet<TreePath>) -> Result<Self, ReadError> {
        let project = Project::of(base);
        let mut files = Files { base, project, parsed: BTreeMap::new() };
        let (tests, excluded): (Vec<_>, Vec<_>) =
            paths(base).filter(|it| project.is_test_file(it)).partition(|it| !changed.contains(*it));
        let sources = changed.iter().filter(|it| it.as_bytes().ends_with(b".py") && !project.is_test_file(it));
        let ranked: Vec<Vec<(Association, &TreePath)>> = sources.map(|source| ranked(source, &tests)).collect();

        let mut targeted: Vec<TestFunction> = Vec::new();
        let mut first = Vec::new();
        for files_of_one in &ranked {
            for (_, file) in files_of_one {
                let functions = files.functions(file)?;
                if !functions.is_empty() {
                    first.push(functions);
                    break;
                }
            }
        }
        take_turns(&first, Menu::TARGETED_MAX, &mut targeted);

        // Each file at its best place.
        let mut best: BTreeMap<&TreePath, Association> = BTreeMap::new();
        for (association, file) in ranked.into_iter().flatten() {
            let place = best.entry(file).or_insert(association);
            *place = association.min(*place);
        }
        let mut order: Vec<(Association, &TreePath)> = best.into_iter().map(|(file, place)| (place, file)).collect();
        order.sort();
        let mut others: Vec<Vec<TestFunction>> = Vec::new();
        for (_, file) in order {
            let functions = files.functions(file)?.into_iter().filter(|it| !targeted.contains(it)).collect::<Vec<_>>();
            if !functions.is_empty() {
                others.push(functions);
            }
            // One function of each is enough already.
            if others.len() == Menu::BROADER_MAX {
                break;
            }
        }
        let mut broader = Vec::new();
        take_turns(&others, Menu::BROADER_MAX, &mut broader);
        Ok(Self { project, targeted, broader, excluded: excluded.into_iter().cloned().collect() })
    }

    /// The ids of a part, as the runner takes them.
    pub fn ids<'a>(&'a self, part: &'a [TestFunction]) -> impl Iterator<Item = String> + 'a {
        part.iter().map(|it| self.project.id(it))
    }
}

/// The associated test files of one changed file, nearest first.
fn ranked<'a>(source: &TreePath, tests: &[&'a TreePath]) -> Vec<(Association, &'a TreePath)> {
    let mut ranked: Vec<_> = tests.iter().filter_map(|test| Some((associate(source, test)?, *test))).collect();
    ranked.sort();
    ranked
}

/// One of each in turn, until there are `most` or none is left; nothing twice.
fn take_turns(lists: &[Vec<TestFunction>], most: usize, taken: &mut Vec<TestFunction>) {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    for turn in 0..longest {
        for function in lists.iter().filter_map(|it| it.get(turn)) {
            if taken.len() == most {
                return;
            }
            if !taken.contains(function) {
                taken.push(function.clone());
            }
        }
    }
}

/// Every path of a tree, in byte order.
fn paths(base: &impl Base) -> impl Iterator<Item = &TreePath> {
    let after = |it: &&TreePath| base.first_from(&[it.as_bytes(), b"\0"].concat());
    std::iter::successors(base.first_from(b""), after)
}

/// The test functions of files, each parsed once.
struct Files<'a, B> {
    base: &'a B,
    project: Project,
    parsed: BTreeMap<TreePath, Vec<TestFunction>>,
}

impl<B: Base> Files<'_, B> {
    fn functions(&mut self, path: &TreePath) -> Result<Vec<TestFunction>, ReadError> {
        if let Some(functions) = self.parsed.get(path) {
            return Ok(functions.clone());
        }
        let file = self.base.read(path)?;
        let text = file.as_ref().map(|it| it.bytes.as_slice()).filter(|it| it.len() <= FILE_BYTES_MAX);
        let functions = text.map_or_else(Vec::new, |it| test_functions(self.project, path, it));
        self.parsed.insert(path.clone(), functions.clone());
        Ok(functions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::tree::{File, Mode, Tree};

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.insert(TreePath::new(path).unwrap(), File { mode: Mode::Regular, bytes: text.as_bytes().to_vec() });
        }
        tree
    }

    fn changed(paths: &[&str]) -> BTreeSet<TreePath> {
        paths.iter().map(|it| TreePath::new(it).unwrap()).collect()
    }

    fn menu(base: &Tree, paths: &[&str]) -> (Vec<String>, Vec<String>) {
        let menu = TestMenu::choose(base, &changed(paths)).unwrap();
        (menu.ids(&menu.targeted).collect(), menu.ids(&menu.broader).collect())
    }

    fn functions(prefix: &str, count: usize) -> String {
        (0..count).map(|it| ["def test_", prefix, &it.to_string(), "(): pass\n"].concat()).collect()
    }

    #[test]
    fn the_nearest_file_is_targeted_and_the_rest_is_broader() {
        let base = tree(&[
            ("src/p/a.py", ""),
            ("src/p/b.py", ""),
            ("tests/test_a.py", &functions("a", 7)),
            ("tests/test_b.py", &functions("b", 2)),
            ("tests/p/test_other.py", &functions("other", 3)),
            ("tests/test_far.py", &functions("far", 3)),
        ]);
        let (targeted, broader) = menu(&base, &["src/p/a.py"]);
        assert_eq!(targeted, (0..5).map(|it| format!("tests/test_a.py::test_a{it}")).collect::<Vec<_>>());
        assert_eq!(
            broader,
            [
                "tests/test_a.py::test_a5",
                "tests/p/test_other.py::test_other0",
                "tests/test_a.py::test_a6",
                "tests/p/test_other.py::test_other1",
                "tests/p/test_other.py::test_other2",
            ]
        );
        // Two changed files take turns.
        let (targeted, _) = menu(&base, &["src/p/b.py", "src/p/a.py"]);
        assert_eq!(
            targeted,
            [
                "tests/test_a.py::test_a0",
                "tests/test_b.py::test_b0",
                "tests/test_a.py::test_a1",
                "tests/test_b.py::test_b1",
                "tests/test_a.py::test_a2"
            ]
        );
    }

    #[test]
    fn what_the_patch_changes_is_out_and_nothing_changed_means_nothing_chosen() {
        let base =
            tree(&[("p/a.py", ""), ("tests/test_a.py", &functions("a", 2)), ("tests/a/test_x.py", &functions("x", 1))]);
        let none = (Vec::<String>::new(), Vec::<String>::new());
        assert_eq!(menu(&base, &[]), none, "an empty patch");
        assert_eq!(menu(&base, &["README.md"]), none, "nothing in Python");
        assert_eq!(menu(&base, &["tests/test_a.py"]), none, "a test alone");
        assert_eq!(menu(&base, &["zzz/unheard_of.py"]), none, "associated with nothing");
        let (targeted, broader) = menu(&base, &["p/a.py", "tests/test_a.py"]);
        assert_eq!((targeted, broader), (vec!["tests/a/test_x.py::test_x0".to_owned()], vec![]));
        let excluded = TestMenu::choose(&base, &changed(&["p/a.py", "tests/test_a.py"])).unwrap().excluded;
        assert_eq!(excluded, [TreePath::new("tests/test_a.py").unwrap()]);
    }

    #[test]
    fn the_bounds_hold_and_twenty_files_are_looked_at_rather_than_one() {
        let many: Vec<(String, String)> =
            (0..30).map(|it| (format!("tests/a/test_{it:02}.py"), functions(&format!("{it}_"), 3))).collect();
        let mut files: Vec<(&str, &str)> = many.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        files.push(("p/a.py", ""));
        let (targeted, broader) = menu(&tree(&files), &["p/a.py"]);
        assert_eq!((targeted.len(), broader.len()), (3, 20), "{targeted:?} {broader:?}");
        assert!(broader.iter().all(|it| it.ends_with("_0") || it.contains("test_00")), "{broader:?}");
    }

    #[test]
    fn each_project_has_its_own_files_and_its_own_ids() {
        let suite = "class T(TestCase):\n    def test_x(self): pass\n";
        let django = tree(&[
            ("django/__init__.py", ""),
            ("tests/runtests.py", "def test_no(): pass\n"),
            ("django/http/response.py", ""),
            ("tests/responses/test_fileresponse.py", suite),
            ("tests/responses/tests.py", suite),
            ("django/test/test_client.py", suite),
        ]);
        let (targeted, broader) = menu(&django, &["django/http/response.py"]);
        assert_eq!(targeted, ["responses.tests.T.test_x"]);
        assert_eq!(broader, ["responses.test_fileresponse.T.test_x"]);
        let sympy = tree(&[
            ("sympy/__init__.py", ""),
            ("sympy/testing/runtests.py", ""),
            ("sympy/sets/contains.py", ""),
            ("sympy/sets/tests/test_contains.py", "def test_as_set(): pass\n"),
            ("other/tests/test_contains.py", "def test_no(): pass\n"),
        ]);
        let (targeted, broader) = menu(&sympy, &["sympy/sets/contains.py"]);
        assert_eq!((targeted, broader), (vec!["sympy/sets/tests/test_contains.py::test_as_set".to_owned()], vec![]));
    }
}
