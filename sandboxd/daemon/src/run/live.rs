//! Output on its way to a client while the run lasts. A client that reads slowly, or not at all, holds nothing up: what
//! it has not taken waits, up to a bound, and what comes past the bound is left out and said to be.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES};
use tack_sandbox_protocol::{Reply, Stream};

/// Most bytes that wait for the client: a long build log, and far less than a run may write.
const WAITING_MAX: usize = 16 << 20;

/// What a frame takes beside its bytes: an enum, a stream, a count, a length.
const SLACK_BYTES: usize = 32;

/// What a client has still to take.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Whole frames, but for the first, of which a part may have been taken.
    waiting: VecDeque<u8>,
    /// Bytes of each stream that were left out since its last frame.
    skipped: [u64; Stream::COUNT],
}

impl Live {
    /// Takes what was read from a stream.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        for bytes in bytes.chunks(Reply::OUTPUT_CHUNK_BYTES) {
            let skipped = &mut self.skipped[stream as usize];
            let mut buffer = vec![0; HEADER_BYTES + bytes.len() + SLACK_BYTES];
            let reply = Reply::Live { stream, skipped: *skipped, bytes };
            match frame::encode(&reply, &mut buffer) {
                Ok(frame) if self.waiting.len() + frame.len() <= WAITING_MAX => {
                    self.waiting.extend(frame);
                    *skipped = 0;
                }
                _ => *skipped += bytes.len() as u64,
            }
        }
    }

    /// Whether anything waits.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives the client as much as it takes without waiting. That it is gone is told elsewhere.
    pub(crate) fn offer(&mut self, client: &UnixStream) {
        loop {
            let (first, _) = self.waiting.as_slices();
            if first.is_empty() {
                return;
            }
            match send(client.as_raw_fd(), first, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Err(Errno::EINTR) => {}
                Err(_) => return,
                Ok(count) => drop(self.waiting.drain(..count)),
            }
        }
    }

    /// What is left when the run is over, and a last word on what was left out.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        for stream in Stream::ALL {
            let skipped = self.skipped[*stream as usize];
            let mut buffer = [0; HEADER_BYTES + SLACK_BYTES];
            let last = Reply::Live { stream: *stream, skipped, bytes: b"" };
            if let Some(frame) = (skipped > 0).then(|| frame::encode(&last, &mut buffer).ok()).flatten() {
                self.waiting.extend(frame);
            }
        }
        self.waiting.into()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The bytes and the gaps of a stream, as a client sees them.
    fn seen(mut frames: &[u8]) -> Vec<(u64, usize)> {
        let mut seen = Vec::new();
        while let Some((header, rest)) = frames.split_first_chunk::<HEADER_BYTES>() {
            let (body, rest) = rest.split_at(frame::body_bytes(header).unwrap());
            let Reply::Live { skipped, bytes, .. } = frame::decode_body(body).unwrap() else { panic!("another frame") };
            seen.push((skipped, bytes.len()));
            frames = rest;
        }
        seen
    }

    #[test]
    fn a_client_that_reads_gets_all_and_one_that_does_not_hears_of_the_gap() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut live = Live::default();
        live.push(Stream::Stdout, b"first");
        live.offer(&ours);
        assert!(!live.waits());
        let mut taken = [0; HEADER_BYTES + 9];
        theirs.read_exact(&mut taken).unwrap();
        assert_eq!(seen(&taken), [(0, 5)]);

        let chunk = vec![7; Reply::OUTPUT_CHUNK_BYTES];
        let chunks = WAITING_MAX / chunk.len() + 40;
        let mut all = Vec::new();
        for _ in 0..chunks {
            live.push(Stream::Stdout, &chunk);
            live.offer(&ours);
        }
        theirs.set_nonblocking(true).unwrap();
        drop(theirs.read_to_end(&mut all));
        live.offer(&ours);
        live.push(Stream::Stdout, b"last");
        let rest = live.rest();
        theirs.set_nonblocking(false).unwrap();
        drop(ours);
        theirs.read_to_end(&mut all).unwrap();
        all.extend(rest);
        let seen = seen(&all);
        let bytes: u64 = seen.iter().map(|(skipped, bytes)| skipped + *bytes as u64).sum();
        assert_eq!(bytes, (chunks * chunk.len() + 4) as u64, "every byte is there or counted");
        assert!(seen.iter().any(|(skipped, _)| *skipped > 0), "{} frames", seen.len());
    }
}
