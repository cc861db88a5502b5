//! One output stream: every byte counted and hashed, its two ends kept.

use sha2::{Digest, Sha256};
use tack_sandbox_protocol::StreamSummary;

/// What came out of one stream so far, in bounded memory.
#[derive(Debug)]
pub(crate) struct Output {
    hash: Sha256,
    bytes_total: u64,
    head: Vec<u8>,
    head_bytes: usize,
    /// A ring: the oldest byte is at `oldest`, once it is full.
    tail: Vec<u8>,
    tail_bytes: usize,
    oldest: usize,
}

impl Output {
    /// Keeps at most `kept_bytes`: the first half of them from the head.
    pub(crate) fn new(kept_bytes: u32) -> Self {
        let kept_bytes = kept_bytes as usize;
        let head_bytes = kept_bytes / 2;
        Self {
            hash: Sha256::new(),
            bytes_total: 0,
            head: Vec::new(),
            head_bytes,
            tail: Vec::new(),
            tail_bytes: kept_bytes - head_bytes,
            oldest: 0,
        }
    }

    /// Takes what was read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes_total += bytes.len() as u64;
        let to_head = bytes.len().min(self.head_bytes - self.head.len());
        let (head, mut rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        // Of more than the ring holds, only the end can stay.
        rest = &rest[rest.len().saturating_sub(self.tail_bytes)..];
        let to_end = rest.len().min(self.tail_bytes - self.tail.len());
        let (end, over) = rest.split_at(to_end);
        self.tail.extend_from_slice(end);
        // The ring is full where anything is left: it takes the place of the oldest.
        let (before_wrap, after_wrap) = over.split_at(over.len().min(self.tail.len() - self.oldest));
        self.tail[self.oldest..self.oldest + before_wrap.len()].copy_from_slice(before_wrap);
        self.tail[..after_wrap.len()].copy_from_slice(after_wrap);
        self.oldest = (self.oldest + over.len()) % self.tail.len().max(1);
    }

    pub(crate) const fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// The summary, the head, and the tail in order. A stream that was kept whole is all head.
    pub(crate) fn finish(mut self) -> (StreamSummary, Vec<u8>, Vec<u8>) {
        self.tail.rotate_left(self.oldest);
        if self.bytes_total == (self.head.len() + self.tail.len()) as u64 {
            self.head.append(&mut self.tail);
        }
        let summary = StreamSummary { bytes_total: self.bytes_total, sha256: self.hash.finalize().into() };
        (summary, self.head, self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The obvious twin: keep everything, cut at the end.
    fn naive(stream: &[u8], kept_bytes: usize) -> (Vec<u8>, Vec<u8>) {
        if stream.len() <= kept_bytes {
            return (stream.to_vec(), Vec::new());
        }
        let head = kept_bytes / 2;
        (stream[..head].to_vec(), stream[stream.len() - (kept_bytes - head)..].to_vec())
    }

    #[test]
    fn keeps_both_ends_of_any_stream_in_any_pieces() {
        let stream: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        for kept_bytes in [0, 1, 2, 3, 7, 64, 999, 1_000, 1_001] {
            for piece in [1, 2, 3, 5, 64, 333, 1_000] {
                for length in [0, 1, 2, 3, 6, 7, 8, 63, 64, 65, 500, 999, 1_000] {
                    let mut output = Output::new(kept_bytes);
                    stream[..length].chunks(piece).for_each(|chunk| output.push(chunk));
                    let (summary, head, tail) = output.finish();
                    let case = format!("kept {kept_bytes}, piece {piece}, length {length}");
                    assert_eq!((head, tail), naive(&stream[..length], kept_bytes as usize), "{case}");
                    assert_eq!(summary.bytes_total, length as u64, "{case}");
                    assert_eq!(summary.sha256, <[u8; 32]>::from(Sha256::digest(&stream[..length])), "{case}");
                }
            }
        }
    }
}
