//! What the cross-crate tests share: where the checkout is.

use std::path::PathBuf;

/// The root of the checkout these tests were built from.
#[must_use]
pub fn checkout() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
