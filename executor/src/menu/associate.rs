//! Which test files belong to a changed file, by their paths alone.

use std::cmp::Reverse;

use crate::restore::path::TreePath;

/// How near a test file is to a changed file, nearest first. Names are compared in lower case, without a leading
/// underscore, without `test` and `tests` before or behind, and in the singular; directories named for tests alone
/// (`test`, `tests`, `testing`) and `src` count for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One name, and the test file's directories are the last of the changed file's: `p/core/a.py` and
    /// `p/core/tests/test_a.py`, `tests/core/test_a.py`.
    Mirror,
    /// One name, or the names of the changed file and of directories above it joined: `tests/test_a.py`,
    /// `tests/test_core_a.py`.
    Name,
    /// The changed file's name is the test file's directory, or some of its words: `tests/a/test_x.py`,
    /// `tests/test_a_errors.py`.
    Topic,
    /// The test file or a directory above it is named for a directory of the changed file: `tests/test_core.py`.
    Package,
}

/// The place of a test file in the order of one changed file; the smaller, the nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Association {
    kind: Kind,
    /// Directories that both have.
    shared: Reverse<usize>,
    /// Parts of the test file's path.
    length: usize,
}

impl Association {
    /// How near.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }
}

/// The place of `test` in the order of `source`; `None` where nothing speaks for it.
#[must_use]
pub fn associate(source: &TreePath, test: &TreePath) -> Option<Association> {
    let (source, test) = (Names::of(source), Names::of(test));
    let shared = test.directories.iter().filter(|it| source.directories.contains(it)).count();
    let kind = source.kind(&test)?;
    Some(Association { kind, shared: Reverse(shared), length: test.length })
}

/// A path as its normalized names.
struct Names {
    directories: Vec<String>,
    /// Empty for a `tests.py` at the top.
    stem: String,
    length: usize,
}

impl Names {
    fn of(path: &TreePath) -> Self {
        let text = String::from_utf8_lossy(path.as_bytes());
        let mut parts: Vec<&str> = text.strip_suffix(".py").unwrap_or(&text).split('/').collect();
        let length = parts.len();
        let stem = parts.pop().unwrap_or_default();
        let mut directories: Vec<String> = parts.into_iter().map(normal).filter(|it| !it.is_empty()).collect();
        let mut stem = if stem == "__init__" { String::new() } else { normal(stem) };
        // `p/__init__.py` and `tests/p/tests.py` are about `p`.
        if stem.is_empty() {
            stem = directories.pop().unwrap_or_default();
        }
        Self { directories, stem, length }
    }

    /// How near `test` is to this changed file.
    fn kind(&self, test: &Self) -> Option<Kind> {
        if self.stem.is_empty() || test.stem.is_empty() {
            return None;
        }
        let same = self.stem == test.stem;
        if same && !test.directories.is_empty() && self.directories.ends_with(&test.directories) {
            return Some(Kind::Mirror);
        }
        if same || self.joined().any(|it| it == test.stem) {
            return Some(Kind::Name);
        }
        if test.directories.last() == Some(&self.stem) || has_words(&test.stem, &self.stem) {
            return Some(Kind::Topic);
        }
        let of_package = |it: &String| *it == test.stem || test.directories.contains(it);
        self.directories.iter().any(of_package).then_some(Kind::Package)
    }

    /// The name with one, two, ... of the directories above it before it.
    fn joined(&self) -> impl Iterator<Item = String> {
        (0..self.directories.len()).map(|from| format!("{}_{}", self.directories[from..].join("_"), self.stem))
    }
}

/// A name as it is compared; empty if it says no more than that tests are here, or sources.
fn normal(name: &str) -> String {
    let lower = name.to_lowercase();
    let name = lower.trim_start_matches('_');
    if matches!(name, "test" | "tests" | "testing" | "src" | "lib") {
        return String::new();
    }
    let name = name.strip_prefix("test_").or_else(|| name.strip_prefix("tests_")).unwrap_or(name);
    let name = name.strip_suffix("_tests").or_else(|| name.strip_suffix("_test")).unwrap_or(name);
    singular(name)
}

fn singular(name: &str) -> String {
    match (name.strip_suffix("ies"), name.strip_suffix('s')) {
        (Some(stem), _) if stem.len() > 1 => format!("{stem}y"),
        (_, Some(stem)) if stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => name.to_owned(),
    }
}

/// Whether `words` stands in `name` as whole words between underscores.
fn has_words(name: &str, words: &str) -> bool {
    // Two letters are a word of too many names.
    words.len() > 2 && format!("_{name}_").contains(&format!("_{words}_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_near_a_test_file_is() {
        use Kind::{Mirror, Name, Package, Topic};
        #[rustfmt::skip]
        let cases = [ // changed file, test file, kind; those of real repairs first
            ("sympy/sets/contains.py",            "sympy/sets/tests/test_contains.py",     Some(Mirror)),
            ("seaborn/_stats/regression.py",      "tests/_stats/test_regression.py",       Some(Mirror)),
            ("src/flask/blueprints.py",           "tests/test_blueprints.py",              Some(Name)),
            ("sphinx/util/rst.py",                "tests/test_util_rst.py",                Some(Name)),
            ("xarray/core/variable.py",           "xarray/tests/test_variable.py",         Some(Name)),
            ("src/_pytest/logging.py",            "testing/logging/test_fixture.py",       Some(Topic)),
            ("django/http/response.py",           "tests/responses/test_fileresponse.py",  Some(Topic)),
            ("django/db/models/sql/query.py",     "tests/queries/test_query.py",           Some(Name)),
            ("django/apps/registry.py",           "tests/apps/tests.py",                   Some(Package)),
            ("requests/models.py",                "tests/test_requests.py",                Some(Package)),
            ("sympy/physics/units/unitsystem.py", "sympy/physics/units/tests/test_quantities.py", Some(Package)),
            ("django/db/models/sql/query.py",     "tests/aggregation/tests.py",            None),
            ("p/__init__.py",                     "tests/p/tests.py",                      Some(Name)),
            ("p/class.py",                        "tests/test_class_errors.py",            Some(Topic)),
            ("p/class.py",                        "tests/test_classes.py",                 None),
            ("p/io.py",                           "tests/test_io_errors.py",               None),
            ("setup.py",                          "tests/test_p.py",                       None),
        ];
        for (source, test, kind) in cases {
            let path = |it: &str| TreePath::new(it).unwrap();
            assert_eq!(associate(&path(source), &path(test)).map(|it| it.kind()), kind, "{source} {test}");
        }
    }

    #[test]
    fn nearer_comes_first() {
        let source = TreePath::new("p/core/abc.py").unwrap();
        let order = [
            "p/core/tests/test_abc.py",
            "tests/core/x/test_abc.py",
            "tests/test_abc.py",
            "tests/x/test_abc.py",
            "tests/test_abc_b.py",
            "tests/core/test_z.py",
        ];
        let places: Vec<_> = order.iter().map(|it| associate(&source, &TreePath::new(it).unwrap()).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?}");
    }
}
