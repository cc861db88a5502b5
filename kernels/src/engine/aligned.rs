//! Memory that begins on a cache line, so that no vector of it lies across two.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use bytemuck::{Pod, Zeroable};

use crate::bundle::FileBytes;

/// 64 bytes: a cache line, and a vector of AVX-512.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A vector of numbers whose first one begins a cache line.
#[derive(Clone, Default)]
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    length: usize,
    element: PhantomData<T>,
}

impl<T> Aligned<T> {
    /// No elements.
    pub(crate) const EMPTY: Self = Self { lines: Vec::new(), length: 0, element: PhantomData };
}

impl<T: Pod> Aligned<T> {
    /// `length` zeros. Large ones cost nothing until they are touched.
    pub(crate) fn zeroed(length: usize) -> Self {
        let lines = bytemuck::zeroed_vec((length * size_of::<T>()).div_ceil(size_of::<Line>()));
        Self { lines, length, element: PhantomData }
    }

    /// Bytes that it holds, in use or not.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Makes room for `length` elements, whose values are then of no meaning, and returns them.
    pub(crate) fn reserve(&mut self, length: usize) -> &mut [T] {
        if self.lines.len() * size_of::<Line>() < length * size_of::<T>() {
            *self = Self::zeroed(length);
        }
        self.length = length;
        self
    }
}

impl<T: Pod> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

impl<T: Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.length]
    }
}

/// Numbers that were computed here, or that lie in a mapped file.
pub(crate) enum Stored<T> {
    Owned(Aligned<T>),
    /// Bytes of the file, aligned for T: whoever makes one has checked both.
    Mapped(FileBytes, Range<usize>),
}

impl<T: Pod> Deref for Stored<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Owned(elements) => elements,
            Self::Mapped(file, bytes) => bytemuck::cast_slice(&file[bytes.clone()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_on_a_line_and_holds_what_was_asked_for() {
        for length in [0, 1, 15, 16, 17, 1000] {
            let mut floats = Aligned::<f32>::zeroed(length);
            assert_eq!((floats.len(), floats.as_ptr() as usize % 64), (length, 0));
            assert!(floats.iter().all(|&x| x == 0.0));
            floats.fill(1.0);
            let grown = floats.reserve(length + 100);
            assert_eq!((grown.len(), grown.as_ptr() as usize % 64), (length + 100, 0));
            assert_eq!(floats.reserve(1).len(), 1);
        }
    }
}
