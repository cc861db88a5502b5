//! The frame: eight bytes of header, then one message in postcard's format.
//!
//! ```text
//! 0      2          4             8
//! | "tk" | version  | body bytes  | body ...
//!          u16 LE     u32 LE        postcard
//! ```

use core::fmt;

use serde::{Deserialize, Serialize};

/// The version both sides must speak. It moves with any change that is not an enum's growth at its end.
pub const VERSION: u16 = 2;

/// The bound of every body, both ways. The kernel refuses an argument of 128 KiB and takes 2 MiB of arguments and
/// environment by default; a request of more than 1 MiB is a mistake, and costs nothing but its header to refuse.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// The header's size.
pub const HEADER_BYTES: usize = 8;

/// The bound of a whole frame: a buffer of this size takes any frame.
pub const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_BODY_BYTES;

const MAGIC: [u8; 2] = *b"tk";

/// Why bytes are not a frame, or a message does not fit one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The first two bytes are not a frame's.
    Magic {
        /// They are these.
        found: [u8; 2],
    },
    /// The frame is of a version that this side does not speak.
    Version {
        /// It is this one; [`VERSION`] was expected.
        found: u16,
    },
    /// The body is longer than [`MAX_BODY_BYTES`], or than the buffer it is to be written to.
    TooLong {
        /// How many bytes may be used.
        bound_bytes: usize,
    },
    /// There are fewer or more bytes than the header says.
    Length {
        /// As the header says.
        expected_bytes: usize,
        /// As there are.
        found_bytes: usize,
    },
    /// The body is not a message, or has bytes left over.
    Body,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found } => write!(f, "a frame begins with {MAGIC:?}; found {found:?}"),
            Self::Version { found } => write!(f, "expected protocol version {VERSION}; found {found}"),
            Self::TooLong { bound_bytes } => write!(f, "the message takes more than {bound_bytes} bytes"),
            Self::Length { expected_bytes, found_bytes } => {
                write!(f, "expected a body of {expected_bytes} bytes; found {found_bytes}")
            }
            Self::Body => f.write_str("the body is not a message of this protocol"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Reads a header, and says how many bytes of body follow it: at most [`MAX_BODY_BYTES`].
///
/// # Errors
/// [`FrameError::Magic`], [`FrameError::Version`], [`FrameError::TooLong`].
pub const fn body_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let [m0, m1, v0, v1, l0, l1, l2, l3] = *header;
    if m0 != MAGIC[0] || m1 != MAGIC[1] {
        return Err(FrameError::Magic { found: [m0, m1] });
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION {
        return Err(FrameError::Version { found: version });
    }
    let bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if bytes > MAX_BODY_BYTES {
        return Err(FrameError::TooLong { bound_bytes: MAX_BODY_BYTES });
    }
    Ok(bytes)
}

/// Writes `message` as one frame to the start of `buffer`, and returns the frame.
///
/// # Errors
/// [`FrameError::TooLong`] if it does not fit `buffer` or the bound.
pub fn encode<'b, T: Serialize>(message: &T, buffer: &'b mut [u8]) -> Result<&'b [u8], FrameError> {
    let bound_bytes = buffer.len().min(MAX_FRAME_BYTES);
    let too_long = FrameError::TooLong { bound_bytes: bound_bytes.saturating_sub(HEADER_BYTES) };
    let (header, body) = buffer[..bound_bytes].split_at_mut_checked(HEADER_BYTES).ok_or(too_long)?;
    let body_bytes = postcard::to_slice(message, body).map_err(|_| too_long)?.len();
    header[..2].copy_from_slice(&MAGIC);
    header[2..4].copy_from_slice(&VERSION.to_le_bytes());
    header[4..].copy_from_slice(&u32::try_from(body_bytes).map_err(|_| too_long)?.to_le_bytes());
    Ok(&buffer[..HEADER_BYTES + body_bytes])
}

/// Reads the body that a header announced.
///
/// # Errors
/// [`FrameError::Body`] if it is no `T`, or more than one.
pub fn decode_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Body),
    }
}

/// Reads one whole frame.
///
/// # Errors
/// Any [`FrameError`].
pub fn decode<'a, T: Deserialize<'a>>(frame: &'a [u8]) -> Result<T, FrameError> {
    let (header, body) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(FrameError::Length { expected_bytes: HEADER_BYTES, found_bytes: frame.len() })?;
    let expected_bytes = body_bytes(header)?;
    if body.len() != expected_bytes {
        return Err(FrameError::Length { expected_bytes, found_bytes: body.len() });
    }
    decode_body(body)
}
