//! Where a daemon is found: what both sides must call by one name.

/// The runtime directory, gone with the next boot.
pub const DIRECTORY: &str = "/run/tack";

/// The socket's name in it.
pub const SOCKET: &str = "sandboxd.sock";

/// The name, beside the socket, of the public key that receipts are held against: 32 bytes (RFC 8032).
pub const PUBLIC_KEY: &str = "receipt.pub";
