//! The Python interpreter that the sandbox will see.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tack_core::Digest;
use tack_sandbox_client::{Access, Mount};

use crate::restore::tree::sha256;

/// The oldest Python that the harness runs on: the first with audit hooks.
const OLDEST: (u32, u32) = (3, 8);
/// Asks the interpreter where it really lives; a `python3` on `PATH` may be a shim, a link or a virtual environment.
///
/// Its parts are the program, what it imports from where nothing is added (`-I -S`: the standard library), and its
/// shared library where it has one: not its prefix, which may be somebody's home.
const QUESTION: &str = "\
import json, os, sys, sysconfig
program = os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable)
shared = [sysconfig.get_config_var(it) or '' for it in ('LIBDIR', 'INSTSONAME')]
parts = [it for it in [program, os.path.join(*shared)] + sys.path if os.path.exists(it)]
print(json.dumps({'program': program, 'version': list(sys.version_info[:3]), 'build': sys.version, 'parts': parts}))
";
/// Where an interpreter may live without a mount of its own: the sandbox has these of the host.
const SYSTEM: &[&str] = &["/usr", "/bin", "/lib", "/lib64", "/sbin"];

/// A Python interpreter of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interpreter {
    /// The program, without symbolic links.
    pub program: PathBuf,
    /// Major, minor, micro.
    pub version: [u32; 3],
    /// What the interpreter says of its build.
    pub build: String,
    /// SHA-256 of the program file.
    pub sha256: Digest,
    /// The files and directories that it consists of.
    #[serde(skip)]
    parts: Vec<PathBuf>,
}

/// Why there is no interpreter to run tests with. The environment cannot answer: no candidate is to blame.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// No such program.
    #[error("cannot run `{program}`: put a `python3` on PATH that is Python {}.{} or later", OLDEST.0, OLDEST.1)]
    Start {
        /// What was to be run.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ran, and did not answer.
    #[error("`{program}` did not say where it lives: {stderr}")]
    Silent {
        /// What was run.
        program: PathBuf,
        /// The end of its standard error.
        stderr: String,
    },
    /// It answered something else.
    #[error("`{program}` did not say where it lives in the form asked for")]
    Answer {
        /// What was run.
        program: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It is too old.
    #[error("`{program}` is Python {}.{}; expected {}.{} or later", found.0, found.1, OLDEST.0, OLDEST.1)]
    Old {
        /// The program.
        program: PathBuf,
        /// Its version.
        found: (u32, u32),
    },
    /// Its own file cannot be read.
    #[error("cannot read the interpreter `{program}`")]
    Read {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[derive(Deserialize)]
struct Answer {
    program: PathBuf,
    version: [u32; 3],
    build: String,
    parts: Vec<PathBuf>,
}

impl Interpreter {
    /// The interpreter behind `python3` on `PATH`.
    ///
    /// # Errors
    /// [`InterpreterError`], by the step that failed.
    pub fn find() -> Result<Self, InterpreterError> {
        Self::ask(Path::new("python3"))
    }

    /// The interpreter behind one program: a name to be looked up on `PATH`, or an absolute path.
    ///
    /// # Errors
    /// As [`Interpreter::find`].
    pub fn ask(program: &Path) -> Result<Self, InterpreterError> {
        let named = || program.to_owned();
        let output = Command::new(program)
            .args(["-I", "-S", "-B", "-c", QUESTION])
            // A shim reads which version to start from the directory that it is started in.
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| InterpreterError::Start { program: named(), source })?;
        if !output.status.success() {
            let stderr = last_line(&output.stderr);
            return Err(InterpreterError::Silent { program: named(), stderr });
        }
        let Answer { program, version, build, parts } = serde_json::from_slice(&output.stdout)
            .map_err(|source| InterpreterError::Answer { program: named(), source })?;
        let [major, minor, _] = version;
        if (major, minor) < OLDEST {
            return Err(InterpreterError::Old { program, found: (major, minor) });
        }
        let bytes =
            std::fs::read(&program).map_err(|source| InterpreterError::Read { program: program.clone(), source })?;
        Ok(Self { program, version, build, sha256: sha256(&bytes), parts })
    }

    /// What the sandbox needs besides the system directories: the interpreter's parts, read-only, where they are.
    ///
    /// A part may be known by a name with links in it; the interpreter looks for its library by both names.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let mut targets: Vec<PathBuf> = Vec::new();
        for part in &self.parts {
            let resolved = part.canonicalize().unwrap_or_else(|_| part.clone());
            for target in [part.clone(), resolved] {
                let visible = SYSTEM.iter().any(|it| target.starts_with(it));
                if !visible && !targets.iter().any(|it| target.starts_with(it)) {
                    targets.push(target);
                }
            }
        }
        let mount = |target: PathBuf| Mount { source: target.clone().into(), target, access: Access::ReadOnly };
        targets.into_iter().map(mount).collect()
    }
}

/// The last line that says anything, cut: enough for a message.
pub(crate) fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().rev().find(|it| !it.trim().is_empty()).unwrap_or("it said nothing");
    line.trim().chars().filter(|it| !it.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_interpreter_on_path_is_found_behind_its_shims() {
        let python = Interpreter::find().unwrap();
        assert_eq!(python.program, python.program.canonicalize().unwrap(), "no link is left");
        assert!(python.version >= [OLDEST.0, OLDEST.1, 0]);
        for mount in python.mounts() {
            assert_eq!(mount.access, Access::ReadOnly);
            let source = mount.source.name().unwrap();
            assert!(source == python.program || source.to_string_lossy().contains("python"), "{mount:?}");
        }
        // A link to it is the same interpreter.
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("python3");
        std::os::unix::fs::symlink(&python.program, &link).unwrap();
        assert_eq!(Interpreter::ask(&link).unwrap().program, python.program);
    }

    #[test]
    fn what_is_no_interpreter_is_named_and_is_no_candidate_s_failure() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| {
            let program = folder.path().join("python3");
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let error = Interpreter::ask(&program).unwrap_err().to_string();
            error.replace(&folder.path().display().to_string(), "")
        };
        let old = r#"echo '{"program": "/usr/bin/python3.6", "version": [3, 6, 15], "build": "", "parts": []}'"#;
        #[rustfmt::skip]
        let cases = [
            ("echo 'shim: no version is set' >&2; exit 127", "`/python3` did not say where it lives: shim: no version is set"),
            ("exit 1",                                       "`/python3` did not say where it lives: it said nothing"),
            ("echo hello",                                   "`/python3` did not say where it lives in the form asked for"),
            (old,                                            "`/usr/bin/python3.6` is Python 3.6; expected 3.8 or later"),
        ];
        for (script, message) in cases {
            assert_eq!(write(script), message);
        }
        let missing = Interpreter::ask(&folder.path().join("nothing")).unwrap_err().to_string();
        assert!(missing.ends_with("put a `python3` on PATH that is Python 3.8 or later"), "{missing}");
    }
}
