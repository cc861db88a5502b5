//! The key that receipts are signed with: made at the first start, read by root alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ed25519_compact::{KeyPair, Noise, SecretKey, Seed};
use tack_sandbox_protocol::{SignedReceipt, Statement};

/// The name of the secret key's file in the state directory: 32 bytes, the seed of RFC 8032.
const SECRET: &str = "receipt.key";

/// The daemon's key.
pub(crate) struct SigningKey(KeyPair);

/// There is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read or written.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The secret is not root's alone, or not a secret.
    #[error("`{}`: expected 32 bytes that root alone may read; found {bytes} bytes, mode {mode:o}, uid {uid}", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
        /// Its mode.
        mode: u32,
        /// Its owner.
        uid: u32,
    },
}

impl SigningKey {
    /// The key in `state`, made there if there is none; its public half is written to `public`.
    pub(crate) fn open(state: &Path, public: &Path) -> Result<Self, KeyError> {
        let path = state.join(SECRET);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| KeyError::File { path, source }
        };
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(state, &path).map_err(failed(&path))?,
            Err(error) => return Err(failed(&path)(error)),
            Ok(_) => {}
        }
        let mut file = File::open(&path).map_err(failed(&path))?;
        let found = file.metadata().map_err(failed(&path))?;
        if found.uid() != 0 || found.mode() & 0o077 != 0 || found.len() != Seed::BYTES as u64 || !found.is_file() {
            let (bytes, mode, uid) = (found.len(), found.mode(), found.uid());
            return Err(KeyError::Secret { path, bytes, mode, uid });
        }
        let mut seed = [0; Seed::BYTES];
        file.read_exact(&mut seed).map_err(failed(&path))?;
        let key = Self(KeyPair::from_seed(Seed::new(seed)));
        put(public, &*key.0.pk, 0o644).map_err(failed(public))?;
        Ok(key)
    }

    /// A statement with the daemon's word on it; `None` if it is longer than any.
    pub(crate) fn sign(&self, statement: &Statement) -> Option<SignedReceipt> {
        let mut buffer = [0; Statement::MAX_BYTES];
        let signature = self.0.sk.sign(statement.to_be_signed(&mut buffer)?, None::<Noise>);
        let (r, s) = signature.split_first_chunk::<32>()?;
        Some(SignedReceipt { statement: *statement, signature: [*r, s.try_into().ok()?] })
    }

    /// Overwrites the secret: a process that goes on to make a sandbox has no use for it.
    pub(crate) fn forget(&mut self) {
        self.0.sk = std::hint::black_box(SecretKey::new([0; SecretKey::BYTES]));
    }
}

/// A new secret from the kernel's generator, whole or not at all.
fn make(state: &Path, path: &Path) -> io::Result<()> {
    let mut seed = [0; Seed::BYTES];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    put(path, &seed, 0o600)?;
    // The name is there for good only when the directory is.
    File::open(state)?.sync_all()
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::remove_file(&fresh)
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}
