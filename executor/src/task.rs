//! A repair task, and what grades it.
//!
//! Two files on purpose: `task.json` is what a repair may see; `grading.json` names the hidden suite and the mutants,
//! and only grading opens it.

use serde::{Deserialize, Serialize};
use tack_core::Digest;

use crate::restore::path::TreePath;
use crate::restore::tree::{Tree, sha256};

/// What is to be done, and within which bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// The issue, as the requester wrote it.
    pub issue: String,
    /// Behavior that must hold afterwards.
    pub acceptance: Vec<String>,
    /// What the task is not about.
    pub exclusions: Vec<String>,
    /// The paths that a patch may touch; every other path is protected.
    pub allowed_paths: Vec<TreePath>,
    /// Wall time of one run of a suite, in seconds.
    pub test_limit_s: u32,
    /// The tests that a repair may see and run.
    pub visible: Suite,
}

/// One suite: where its `test_*.py` files are, and the tests that they are known to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The directory of its files.
    pub directory: TreePath,
    /// The id of each test, as unittest writes it: a run's report is held against this list.
    pub tests: Vec<String>,
}

/// What grades a candidate. A repair never sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grading {
    /// The suite that no candidate had.
    pub hidden: Suite,
    /// Known defects, put back one at a time.
    pub mutants: Vec<Mutant>,
}

/// One known defect: a file as the base has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// The file that is reverted to the base.
    pub reverts: TreePath,
    /// The suite that must notice.
    pub suite: SuiteName,
    /// Its tests that must fail.
    pub killed_by: Vec<String>,
}

/// One of a task's two suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuiteName {
    /// The suite of [`Task::visible`].
    Visible,
    /// The suite of [`Grading::hidden`].
    Hidden,
}

/// A task's files do not say what they must.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No JSON, or not of this form.
    #[error("`{file}` is not a task file")]
    Json {
        /// The file.
        file: String,
        /// Line and column, and what was expected there.
        source: serde_json::Error,
    },
    /// A field has a value that cannot be meant.
    #[error("`{file}`: `{field}`: expected {expected}, found {found}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

impl Task {
    /// Longest test limit that a task may ask for, in seconds: the paper's bound of a whole repair.
    pub const TEST_LIMIT_MAX_S: u32 = 1_200;

    /// Reads `task.json`.
    ///
    /// # Errors
    /// [`TaskError`], with the file's name and place.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, TaskError> {
        let task: Self = json(file, bytes)?;
        if !(1..=Self::TEST_LIMIT_MAX_S).contains(&task.test_limit_s) {
            let found = task.test_limit_s.to_string();
            return Err(field(file, "test_limit_s", "1 to 1200", found));
        }
        known_tests(file, "visible", &task.visible)?;
        Ok(task)
    }

    /// The digest of what is wanted: issue, acceptance, exclusions, and the paths that may be touched.
    #[must_use]
    pub fn intent_digest(&self) -> Digest {
        digest(&(&self.issue, &self.acceptance, &self.exclusions, &self.allowed_paths))
    }
}

impl Grading {
    /// Reads `grading.json` of `task`, whose tree is `base`.
    ///
    /// # Errors
    /// [`TaskError`], with the file's name and place.
    pub fn parse(file: &str, bytes: &[u8], task: &Task, base: &Tree) -> Result<Self, TaskError> {
        let grading: Self = json(file, bytes)?;
        known_tests(file, "hidden", &grading.hidden)?;
        if grading.mutants.is_empty() {
            return Err(field(file, "mutants", "at least one", "none".into()));
        }
        for mutant in &grading.mutants {
            if base.file(&mutant.reverts).is_none() {
                return Err(field(file, "mutants.reverts", "a file of the repository", mutant.reverts.to_string()));
            }
            let suite = grading.suite(task, mutant.suite);
            if let Some(stranger) = mutant.killed_by.iter().find(|it| !suite.tests.contains(it)) {
                return Err(field(file, "mutants.killed_by", "tests of the mutant's suite", stranger.clone()));
            }
            if mutant.killed_by.is_empty() {
                return Err(field(file, "mutants.killed_by", "at least one test", "none".into()));
            }
        }
        Ok(grading)
    }

    /// The suite of that name.
    #[must_use]
    pub const fn suite<'a>(&'a self, task: &'a Task, name: SuiteName) -> &'a Suite {
        match name {
            SuiteName::Visible => &task.visible,
            SuiteName::Hidden => &self.hidden,
        }
    }
}

/// The digest of a value's JSON: fields in the order of their declaration, so one value has one digest.
///
/// Only for values whose serialization cannot fail: no map with keys that are not text, no failing `Serialize`.
pub(crate) fn digest<T: Serialize>(value: &T) -> Digest {
    #[expect(clippy::expect_used, reason = "structures of text, numbers and lists always have a JSON form")]
    let bytes = serde_json::to_vec(value).expect("a JSON form");
    sha256(&bytes)
}

fn json<'de, T: Deserialize<'de>>(file: &str, bytes: &'de [u8]) -> Result<T, TaskError> {
    serde_json::from_slice(bytes).map_err(|source| TaskError::Json { file: file.to_owned(), source })
}

fn field(file: &str, field: &'static str, expected: &'static str, found: String) -> TaskError {
    TaskError::Field { file: file.to_owned(), field, expected, found }
}

fn known_tests(file: &str, name: &'static str, suite: &Suite) -> Result<(), TaskError> {
    if suite.tests.is_empty() {
        return Err(field(file, name, "at least one test", "none".into()));
    }
    match suite.tests.iter().enumerate().find(|(index, it)| suite.tests[..*index].contains(it)) {
        Some((_, twice)) => Err(field(file, name, "each test once", format!("`{twice}` twice"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::tree::{File, Mode};

    const TASK: &str = r#"{"name": "t", "issue": "i", "acceptance": [], "exclusions": [], "allowed_paths": ["a.py"],
        "test_limit_s": 10, "visible": {"directory": "tests", "tests": ["t.A.a", "t.A.b"]}}"#;
    const GRADING: &str = r#"{"hidden": {"directory": "hidden", "tests": ["h.A.a"]},
        "mutants": [{"reverts": "a.py", "suite": "visible", "killed_by": ["t.A.a"]}]}"#;

    #[test]
    fn a_task_that_cannot_be_meant_is_refused_with_its_field() {
        let mut base = Tree::default();
        base.insert(TreePath::new("a.py").unwrap(), File { mode: Mode::Regular, bytes: Vec::new() });
        #[rustfmt::skip]
        let cases = [ // replace, by, error
            ("10",                 "0",             "`f`: `test_limit_s`: expected 1 to 1200, found 0"),
            ("10",                 "1201",          "`f`: `test_limit_s`: expected 1 to 1200, found 1201"),
            (r#""t.A.b""#,         r#""t.A.a""#,    "`f`: `visible`: expected each test once, found `t.A.a` twice"),
            (r#""t.A.a", "t.A.b""#, "",             "`f`: `visible`: expected at least one test, found none"),
            (r#"["a.py"]"#,        r#"["../a"]"#,   "`f` is not a task file"),
            ("issue",              "issues",        "`f` is not a task file"),
            (r#""suite": "visible""#, r#""suite": "hidden""#, "`f`: `mutants.killed_by`: expected tests of the mutant's suite, found t.A.a"),
            (r#""reverts": "a.py""#, r#""reverts": "b.py""#, "`f`: `mutants.reverts`: expected a file of the repository, found b.py"),
            (r#"["t.A.a"]"#,       "[]",            "`f`: `mutants.killed_by`: expected at least one test, found none"),
            (r#""h.A.a""#,         "",              "`f`: `hidden`: expected at least one test, found none"),
        ];
        let parse = |task: &str, grading: &str| {
            let task = Task::parse("f", task.as_bytes())?;
            Grading::parse("f", grading.as_bytes(), &task, &base)
        };
        assert!(parse(TASK, GRADING).is_ok(), "the control");
        for (from, to, error) in cases {
            let found = parse(&TASK.replace(from, to), &GRADING.replace(from, to)).map(|_| ());
            assert_eq!(found.unwrap_err().to_string(), error, "{from} -> {to}");
        }
    }

    #[test]
    fn the_intent_moves_with_what_is_wanted_and_with_nothing_else() {
        let digest = |text: &str| Task::parse("f", text.as_bytes()).unwrap().intent_digest();
        let base = digest(TASK);
        for (from, to) in
            [(r#""i""#, r#""I""#), (r#""acceptance": []"#, r#""acceptance": ["x"]"#), (r#""a.py""#, r#""b.py""#)]
        {
            assert_ne!(digest(&TASK.replace(from, to)), base, "{to}");
        }
        assert_eq!(digest(&TASK.replace(r#""name": "t""#, r#""name": "u""#)), base);
    }
}
