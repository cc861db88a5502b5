//! Who makes the sandbox: the daemon that serves here, or a helper that is started for one run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use tack_sandbox_protocol::Token;

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

/// Asks for runs. It holds no connection: each run has a conversation of its own.
#[derive(Clone, Debug)]
pub struct Client {
    way: Option<Way>,
    token: Token,
    mirror: Vec<String>,
}

impl Client {
    /// The name of the installed helper.
    pub const HELPER: &str = "tack-sandboxd";

    /// Where the daemon listens, if it runs.
    pub const SOCKET: &str = "/run/tack/sandboxd.sock";

    /// The variable that names a file with the token for the daemon: 64 hexadecimal digits.
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
        let socket = Path::new(Self::SOCKET);
        let way = if socket.exists() {
            Some(Way::Daemon(socket.to_owned()))
        } else {
            installed.map(Helper::Installed).or(own).map(Way::OneShot)
        };
        Self { way, token: token().unwrap_or_default(), mirror: Vec::new() }
    }

    /// A client of the daemon behind this socket.
    #[must_use]
    pub const fn of_daemon(socket: PathBuf, token: Token) -> Self {
        Self { way: Some(Way::Daemon(socket)), token, mirror: Vec::new() }
    }

    /// A client of exactly this helper.
    #[must_use]
    pub const fn with(helper: Helper) -> Self {
        Self { way: Some(Way::OneShot(helper)), token: Token([0; 32]), mirror: Vec::new() }
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

    pub(crate) const fn token(&self) -> Token {
        self.token
    }
}

/// The token in the file that the environment names. One that is not there, or none, is left to the daemon to refuse.
fn token() -> Option<Token> {
    let text = fs::read_to_string(env::var_os(Client::TOKEN_FILE)?).ok()?;
    let (pairs, []) = text.trim().as_bytes().as_chunks::<2>() else { return None };
    let mut token = [0; 32];
    if pairs.len() != token.len() {
        return None;
    }
    for (byte, pair) in token.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Token(token))
}
