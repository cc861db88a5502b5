//! The report of one run: what came out of descriptor 3, read without trust.
//!
//! The first line is written before product code can run, and names a random key. A line without that key was not
//! written by the harness; then the report has a [`Defect`], and no verdict can be had from it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What the harness reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The interpreter's version; `None` if the harness never started.
    pub python: Option<String>,
    /// Files of the suite that do not compile, found before product code ran.
    pub unloadable: Vec<Unloadable>,
    /// Each test, in the order in which they ended.
    pub tests: Vec<TestResult>,
    /// Attempts to write outside the private directories.
    pub writes: Vec<WriteAttempt>,
    /// Whether the harness came to its end.
    pub ended: bool,
    /// The first thing that the harness does not write.
    pub defect: Option<Defect>,
}

/// A file of the suite that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloadable {
    /// Its name.
    pub file: String,
    /// What the compiler said.
    pub detail: String,
}

/// One test and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestResult {
    /// As unittest names it; a path where files are compiled; a module's name where it could not be imported.
    pub id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The exception or the reason, cut.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Errno and path of each `OSError` on the exception's chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub os_errors: Vec<(String, String)>,
}

/// How one test ended, in unittest's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It passed.
    Passed,
    /// An assertion failed.
    Failed,
    /// Another exception ended it.
    Errored,
    /// It was not run, on purpose.
    Skipped,
    /// It failed, and says that it should.
    ExpectedFailure,
    /// It passed, and says that it should not.
    UnexpectedSuccess,
}

impl Outcome {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Errored => "errored",
            Self::Skipped => "skipped",
            Self::ExpectedFailure => "expected_failure",
            Self::UnexpectedSuccess => "unexpected_success",
        }
    }
}

/// An attempt to write outside the private directories, swallowed or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WriteAttempt {
    /// Python's name of the operation: `open`, `os.remove`, ...
    pub operation: String,
    /// What was to be written, without links.
    pub path: String,
    /// How it is denied (`EROFS`, `EACCES`); `None` where it is not.
    pub errno: Option<String>,
}

/// Something in the report that the harness does not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// A line without the key of this run, or no line of the harness at all.
    #[error("line {line} of the report was not written by the test harness")]
    Forged {
        /// Which line, from 1.
        line: usize,
    },
    /// One test, twice.
    #[error("`{id}` is reported twice")]
    Twice {
        /// The test.
        id: String,
    },
    /// A line after the last one.
    #[error("line {line} of the report comes after its end")]
    AfterEnd {
        /// Which line, from 1.
        line: usize,
    },
}

#[derive(Deserialize)]
struct Line {
    key: String,
    #[serde(flatten)]
    event: Event,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Start { python: String },
    Unloadable(Unloadable),
    Test(TestResult),
    Write(WriteAttempt),
    End {},
}

impl Report {
    /// Reads a report to its end or to its first defect. An unfinished last line is one that the end of the run cut.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut report = Self::default();
        let mut key = None::<String>;
        let mut seen = BTreeSet::new();
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if !line.ends_with(b"\n") {
                break;
            }
            report.defect = match (serde_json::from_slice(line), &key) {
                (Ok(Line { key: own, event: Event::Start { python } }), None) => {
                    key = Some(own);
                    report.python = Some(python);
                    continue;
                }
                (Ok(Line { key: own, event }), Some(key)) if own == *key => report.take(event, index + 1, &mut seen),
                _ => Some(Defect::Forged { line: index + 1 }),
            };
            if report.defect.is_some() {
                break;
            }
        }
        report
    }

    fn take(&mut self, event: Event, line: usize, seen: &mut BTreeSet<String>) -> Option<Defect> {
        if self.ended {
            return Some(Defect::AfterEnd { line });
        }
        match event {
            Event::Start { .. } => return Some(Defect::Forged { line }),
            Event::Unloadable(file) => self.unloadable.push(file),
            Event::Write(attempt) => self.writes.push(attempt),
            Event::Test(test) => {
                if !seen.insert(test.id.clone()) {
                    return Some(Defect::Twice { id: test.id });
                }
                self.tests.push(test);
            }
            Event::End {} => self.ended = true,
        }
        None
    }

    /// How one test ended, if it was reported.
    #[must_use]
    pub fn test(&self, id: &str) -> Option<&TestResult> {
        self.tests.iter().find(|it| it.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: &str = r#"{"key": "k", "event": "start", "python": "3.11.2"}"#;
    const PASSED: &str =
        r#"{"key": "k", "event": "test", "id": "t.A.a", "outcome": "passed", "detail": "", "os_errors": []}"#;
    const END: &str = r#"{"key": "k", "event": "end", "tests": 1}"#;

    fn parse(lines: &[&str]) -> Report {
        Report::parse(lines.iter().flat_map(|it| [*it, "\n"]).collect::<String>().as_bytes())
    }

    #[test]
    fn a_whole_report_is_read() {
        let failed =
            r#"{"key": "k", "event": "test", "id": "t.A.b", "outcome": "failed", "detail": "AssertionError: 3 != 0",
            "os_errors": [["EROFS", "/workspace/x"]]}"#
                .replace('\n', "");
        let write = r#"{"key": "k", "event": "write", "operation": "open", "path": "/workspace/x", "errno": "EROFS"}"#;
        let unloadable = r#"{"key": "k", "event": "unloadable", "file": "test_x.py", "detail": "SyntaxError"}"#;
        let report = parse(&[START, unloadable, write, PASSED, &failed, END]);
        assert_eq!(report.python.as_deref(), Some("3.11.2"));
        assert_eq!(report.test("t.A.a").map(|it| it.outcome), Some(Outcome::Passed));
        assert_eq!(report.test("t.A.b").unwrap().os_errors, [("EROFS".to_owned(), "/workspace/x".to_owned())]);
        assert_eq!(report.writes[0].errno.as_deref(), Some("EROFS"));
        assert_eq!(report.unloadable[0].file, "test_x.py");
        assert!(report.ended && report.defect.is_none());
    }

    #[test]
    fn what_the_harness_did_not_write_is_a_defect() {
        let forged = PASSED.replace("\"k\"", "\"x\"");
        let keyless = PASSED.replace("\"key\": \"k\", ", "");
        #[rustfmt::skip]
        let cases: [(&str, &[&str], Option<Defect>); 9] = [
            ("nothing",              &[],                            None),
            ("an honest one",        &[START, PASSED, END],          None),
            ("a foreign key",        &[START, &forged, END],         Some(Defect::Forged { line: 2 })),
            ("no key",               &[START, PASSED, &keyless],     Some(Defect::Forged { line: 3 })),
            ("no JSON",              &[START, "t.A.a ... ok"],       Some(Defect::Forged { line: 2 })),
            ("before the start",     &[PASSED, START, END],          Some(Defect::Forged { line: 1 })),
            ("a second start",       &[START, START],                Some(Defect::Forged { line: 2 })),
            ("a test twice",         &[START, PASSED, PASSED, END],  Some(Defect::Twice { id: "t.A.a".into() })),
            ("after the end",        &[START, END, PASSED],          Some(Defect::AfterEnd { line: 3 })),
        ];
        for (name, lines, defect) in cases {
            assert_eq!(parse(lines).defect, defect, "{name}");
        }
        assert_eq!(parse(&[PASSED]).python, None, "a report without its start is no report");
    }

    #[test]
    fn a_line_that_the_end_of_the_run_cut_is_left_out() {
        let text = format!("{START}\n{PASSED}\n{}", &END[..20]);
        let report = Report::parse(text.as_bytes());
        assert_eq!((report.tests.len(), report.ended, report.defect), (1, false, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_none_but_the_key_s_holder_reports_a_test(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = format!("{START}\n").into_bytes();
            whole.extend(bytes);
            prop_assert!(Report::parse(&whole).tests.is_empty());
        }
    }
}
