//! The paths that decide which tests are found and what their results mean.
//!
//! A candidate that changes one of them changes its own examiner, so the path rule stops it: these are outside every
//! task's allowed paths unless the task names them one by one.

use crate::restore::path::TreePath;

/// File names that a runner, an interpreter or a CI service obeys wherever they are.
const NAMES: [&str; 17] = [
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "noxfile.py",
    ".coveragerc",
    "sitecustomize.py",
    "usercustomize.py",
    "runtests.py",
    ".gitlab-ci.yml",
    ".travis.yml",
    "azure-pipelines.yml",
    "appveyor.yml",
    "Jenkinsfile",
];

/// Directories that a CI service or a runner obeys.
const DIRECTORIES: [&str; 6] = [".github/", ".circleci/", ".buildkite/", "sympy/testing/", "bin/test", "src/_pytest/"];

/// Why a path decides about tests; `None` if it does not, as far as its name says.
#[must_use]
pub fn decides_about_tests(path: &TreePath) -> Option<&'static str> {
    let bytes = path.as_bytes();
    let name = bytes.rsplit(|it| *it == b'/').next().unwrap_or_default();
    let is_python = |stem: &[u8]| name == [stem, b".py"].concat();
    if NAMES.iter().any(|it| it.as_bytes() == name) {
        return Some("a runner, the interpreter or a CI service reads it");
    }
    if name.ends_with(b".pth") {
        return Some("the interpreter runs it when it starts");
    }
    if DIRECTORIES.iter().any(|it| bytes.starts_with(it.as_bytes())) {
        return Some("it is part of a test runner or of a CI service's configuration");
    }
    if name.starts_with(b"pytest_") && name.ends_with(b".py") {
        return Some("its name is that of a pytest plugin");
    }
    let in_tests = path
        .parents()
        .any(|it| matches!(it.rsplit(|it| *it == b'/').next().unwrap_or_default(), b"test" | b"tests" | b"testing"));
    (in_tests && is_python(b"__init__")).then_some("it is run before the tests of its package")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_about_tests_is_known_by_its_path() {
        #[rustfmt::skip]
        let cases = [
            ("conftest.py", true), ("tests/a/conftest.py", true), ("pytest.ini", true), ("pyproject.toml", true),
            ("sitecustomize.py", true), ("lib/x.pth", true), ("tests/__init__.py", true), ("p/tests/a/__init__.py", true),
            (".github/workflows/ci.yml", true), ("pytest_forge.py", true), ("tests/runtests.py", true), ("bin/test", true),
            ("p/__init__.py", false), ("p/conftest.pyx", false), ("tests/test_a.py", false), ("p/config.py", false),
            ("docs/pytest.rst", false), ("bin/tester/x", true), ("p/testing.py", false),
        ];
        for (path, expected) in cases {
            assert_eq!(decides_about_tests(&TreePath::new(path).unwrap()).is_some(), expected, "{path}");
        }
    }
}
