//! A file as bytes, without reading it.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// Maps the whole of `file`, read-only and private.
///
/// Whoever shortens the file while it is mapped ends this process with `SIGBUS`, and whoever rewrites it changes the
/// weights of a running network. A bundle is replaced by renaming a new directory over the old, which does neither.
///
/// # Errors
/// The system call's.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and its bytes are only ever read as `u8`, for which every value is legal; that
    // nobody changes the file while it is mapped is what the bundle's owner owes, as said above.
    unsafe { MmapOptions::new().map(file) }
}
