//! The privileged helper: which program it is, and how it is started.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that makes the sandbox. It is spawned as this process' own user: without root it refuses, and says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Helper {
    /// The installed helper, started as `tack-sandboxd --once`.
    Installed(PathBuf),
    /// A command that has the helper built in, started with its hidden argument alone.
    Own {
        /// The command, usually [`env::current_exe`].
        program: PathBuf,
        /// The argument that makes it the helper.
        argument: OsString,
    },
}

impl Helper {
    /// The command to spawn, without its standard streams.
    pub(crate) fn command(&self) -> Command {
        let (program, argument) = match self {
            Self::Installed(program) => (program, "--once".as_ref()),
            Self::Own { program, argument } => (program, argument.as_os_str()),
        };
        let mut command = Command::new(program);
        // The payload's environment is the request's; the helper itself needs none, so nothing can leak.
        command.arg(argument).env_clear().current_dir("/");
        command
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        match self {
            Self::Installed(program) | Self::Own { program, .. } => program,
        }
    }
}

/// Asks for runs. It holds no connection: each run has a helper process of its own.
#[derive(Clone, Debug)]
pub struct Client {
    helper: Option<Helper>,
}

impl Client {
    /// The name of the installed helper.
    pub const HELPER: &str = "tack-sandboxd";

    /// A client of the first helper on `PATH`, else of `own`.
    ///
    /// What merely lies beside the current executable is not looked at: in a build folder that is whatever was built
    /// last, and an old helper would isolate by old rules.
    ///
    /// Without any of them the client is made all the same, and each run fails with
    /// [`NoHelper`](crate::ClientError::NoHelper).
    #[must_use]
    pub fn find(own: Option<Helper>) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let installed = env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(Self::HELPER))
            .find(|program| program.is_file());
        Self { helper: installed.map(Helper::Installed).or(own) }
    }

    /// A client of exactly this helper.
    #[must_use]
    pub const fn with(helper: Helper) -> Self {
        Self { helper: Some(helper) }
    }

    /// The helper that runs will use.
    #[must_use]
    pub const fn helper(&self) -> Option<&Helper> {
        self.helper.as_ref()
    }
}
