//! Who makes the sandbox: the daemon that serves here, or a helper that is started for one run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use tack_sandbox_protocol::{Token, place};

use crate::connection::ClientError;

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
    pub(crate) fn command(&self, mirror: &[String]) -> Command {
        let (program, argument) = match self {
            Self::Installed(program) => (program, "--once".as_ref()),
            Self::Own { program, argument } => (program, argument.as_os_str()),
        };
        let mut command = Command::new(program);
        // The payload's environment is the request's; the helper itself needs none, so nothing can leak.
        command.arg(argument);
        for destination in mirror {
            command.args(["--mirror", destination]);
        }
        command.env_clear().current_dir("/");
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

/// How a client comes by its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The daemon behind this socket: it serves whom root allows, and signs its receipts.
    Daemon(PathBuf),
    /// A helper of this process' own, one a run.
    OneShot(Helper),
}

/// What is shown to a daemon that asks for a token.
#[derive(Clone, Debug)]
enum Secret {
    Known(Token),
    /// Read when it is needed: a token may be changed while a client lives.
    File(PathBuf),
}

/// Asks for runs. It holds no connection: each run has a conversation of its own.
#[derive(Clone, Debug)]
pub struct Client {
    way: Option<Way>,
    token: Secret,
    mirror: Vec<String>,
}

impl Client {
    /// The name of the installed helper.
    pub const HELPER: &str = "tack-sandboxd";

    /// The variable that names a file with the token for the daemon: 64 hexadecimal digits. It is read for each run that
    /// a daemon is asked for.
    pub const TOKEN_FILE: &str = "TACK_SANDBOX_TOKEN_FILE";

    /// A client of the daemon, if its socket is there; else of the first helper on `PATH`, else of `own`.
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
        let socket = Path::new(place::DIRECTORY).join(place::SOCKET);
        let way = if socket.exists() {
            Some(Way::Daemon(socket))
        } else {
            installed.map(Helper::Installed).or(own).map(Way::OneShot)
        };
        let token = env::var_os(Self::TOKEN_FILE).map_or(Secret::Known(Token::default()), |it| Secret::File(it.into()));
        Self { way, token, mirror: Vec::new() }
    }

    /// A client of the daemon behind this socket.
    #[must_use]
    pub const fn of_daemon(socket: PathBuf, token: Token) -> Self {
        Self { way: Some(Way::Daemon(socket)), token: Secret::Known(token), mirror: Vec::new() }
    }

    /// A client of exactly this helper.
    #[must_use]
    pub const fn with(helper: Helper) -> Self {
        Self { way: Some(Way::OneShot(helper)), token: Secret::Known(Token([0; 32])), mirror: Vec::new() }
    }

    /// What runs with a mirror may reach, each as `HOST:PORT`, `HOST:PORT=private` or `HOST:PORT=ADDRESS`. The helper
    /// is spawned by whoever calls this, so it is theirs to say.
    #[must_use]
    pub fn with_mirror(mut self, destinations: impl IntoIterator<Item = String>) -> Self {
        self.mirror.extend(destinations);
        self
    }

    /// The destinations that the helper is told of.
    pub(crate) fn mirror(&self) -> &[String] {
        &self.mirror
    }

    /// How runs will be had; `None` if there is no way.
    #[must_use]
    pub const fn way(&self) -> Option<&Way> {
        self.way.as_ref()
    }

    /// What to show the daemon; zeros where nothing says otherwise, which a daemon without a token takes.
    pub(crate) fn token(&self) -> Result<Token, ClientError> {
        let path = match &self.token {
            Secret::Known(token) => return Ok(*token),
            Secret::File(path) => path,
        };
        // What was found instead may be a secret of another kind, and is not repeated.
        let none = || io::Error::new(io::ErrorKind::InvalidData, "expected 64 hexadecimal digits");
        let token = fs::read(path).and_then(|it| Token::parse(&it).ok_or_else(none));
        token.map_err(|source| ClientError::Token { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_cannot_be_had_is_said_with_its_file_and_not_with_its_content() {
        let directory = env::temp_dir().join(format!("tack-token-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("token");
        let client = Client { way: None, token: Secret::File(path.clone()), mirror: Vec::new() };
        let found = |text: &str| {
            fs::write(&path, text).unwrap();
            client.token().map_err(|error| match error {
                ClientError::Token { path: named, source } => {
                    assert_eq!(named, path);
                    source.to_string()
                }
                other => panic!("{other}"),
            })
        };
        assert_eq!(found(&"0f".repeat(32)), Ok(Token([0x0f; 32])));
        assert_eq!(found("another secret"), Err("expected 64 hexadecimal digits".into()));
        assert_eq!(found(&format!("\n{}\n", "a0".repeat(32))), Ok(Token([0xa0; 32])), "it is read anew");
        fs::remove_dir_all(&directory).unwrap();
        assert!(
            matches!(client.token(), Err(ClientError::Token { source, .. }) if source.kind() == io::ErrorKind::NotFound)
        );
    }
}
