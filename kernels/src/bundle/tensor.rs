//! A tensor of a bundle: its elements stay where and as they are stored, and become `f32` when they are read.

use std::ops::Range;

use half::{bf16, f16};

use crate::bundle::error::BundleError;
use crate::bundle::source::FileBytes;
use crate::bundle::tensor_file::{Dtype, Entry};

/// A matrix `[rows, columns]`, row-major; a vector is a matrix of one row. Its elements may lie in a mapped file, so
/// holding one costs nothing.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    elements: Elements,
    /// What a message calls it: file and name.
    pub(crate) label: Label,
}

/// The file and the name of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) file: String,
    pub(crate) tensor: String,
}

#[derive(Clone)]
enum Elements {
    /// Little-endian, not necessarily aligned.
    Stored { file: FileBytes, bytes: Range<usize>, dtype: Dtype },
    /// Computed at load.
    Owned(Vec<f32>),
}

impl Tensor {
    /// The tensor that `entry` describes; the caller has compared its shape.
    pub(crate) fn stored(label: Label, file: FileBytes, entry: Entry) -> Self {
        let columns = entry.shape.last().copied().unwrap_or(1);
        let rows = entry.shape.iter().rev().skip(1).product();
        Self { rows, columns, elements: Elements::Stored { file, bytes: entry.bytes, dtype: entry.dtype }, label }
    }

    /// A matrix that was computed: `elements` is `[rows, columns]`.
    pub(crate) fn owned(label: Label, rows: usize, columns: usize, elements: Vec<f32>) -> Self {
        debug_assert_eq!(elements.len(), rows * columns);
        Self { rows, columns, elements: Elements::Owned(elements), label }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Reads `out.len()` elements of `row`, from column `column` on.
    pub(crate) fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        let start = row * self.columns + column;
        match &self.elements {
            Elements::Owned(elements) => out.copy_from_slice(&elements[start..start + out.len()]),
            Elements::Stored { file, bytes, dtype } => {
                let size = dtype.size();
                let stored = &file[bytes.clone()][start * size..(start + out.len()) * size];
                widen(*dtype, stored, out);
            }
        }
    }

    /// Every element, row-major.
    pub(crate) fn to_vec(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.read(0, 0, &mut out);
        out
    }

    /// # Errors
    /// [`BundleError::NotFinite`] names the first element that is NaN or infinite.
    pub(crate) fn check_finite(&self) -> Result<(), BundleError> {
        match self.first_not_finite() {
            None => Ok(()),
            Some((index, found)) => {
                let Label { file, tensor } = self.label.clone();
                Err(BundleError::NotFinite { file, tensor, index, found })
            }
        }
    }

    /// The first element that is NaN or infinite, row-major.
    pub(crate) fn first_not_finite(&self) -> Option<(usize, f32)> {
        // A few pages at a time: small enough for the first cache, large enough to vectorize.
        const CHUNK: usize = 2048;
        let mut chunk = [0.0; CHUNK];
        let mut start = 0;
        while start < self.len() {
            let chunk = &mut chunk[..CHUNK.min(self.len() - start)];
            self.read(0, start, chunk);
            // One pass without a branch, which vectorizes; only a chunk that fails it is searched.
            if !chunk.iter().fold(true, |all, x| all & x.is_finite()) {
                let place = chunk.iter().position(|x| !x.is_finite())?;
                return Some((start + place, chunk[place]));
            }
            start += chunk.len();
        }
        None
    }
}

/// Each of the three types is a subset of `f32`, so nothing is rounded.
fn widen(dtype: Dtype, stored: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            let (words, _) = stored.as_chunks::<4>();
            out.iter_mut().zip(words).for_each(|(out, word)| *out = f32::from_le_bytes(*word));
        }
        Dtype::Bf16 => {
            let (words, _) = stored.as_chunks::<2>();
            out.iter_mut().zip(words).for_each(|(out, word)| {
                // `bf16::to_f32` also quiets signaling NaN, a branch that no weight that loaded can take.
                *out = f32::from_bits(u32::from(bf16::from_le_bytes(*word).to_bits()) << 16);
            });
        }
        Dtype::F16 => {
            let (words, _) = stored.as_chunks::<2>();
            out.iter_mut().zip(words).for_each(|(out, word)| *out = f16::from_le_bytes(*word).to_f32());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn stored(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Tensor {
        let entry = Entry { dtype, shape: shape.to_vec(), bytes: 1..1 + bytes.len() };
        let file = [&[0xee][..], bytes].concat(); // one byte before it, so that nothing is aligned
        let label = Label { file: "f".into(), tensor: "t".into() };
        Tensor::stored(label, FileBytes::from(Cow::Owned(file)), entry)
    }

    #[test]
    fn every_half_precision_number_widens_exactly() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for (dtype, to_f32) in [
            (Dtype::Bf16, (|bits| bf16::from_bits(bits).to_f32()) as fn(u16) -> f32),
            (Dtype::F16, |bits| f16::from_bits(bits).to_f32()),
        ] {
            let tensor = stored(dtype, &[256, 256], &all);
            for (bits, found) in (0..=u16::MAX).zip(tensor.to_vec()) {
                let expected = to_f32(bits);
                assert!(
                    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                    "{dtype:?} {bits:#x}"
                );
            }
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 1, 2047, 2048, 4999] {
                let mut elements = vec![1.5_f32; 5000];
                elements[place] = bad;
                elements[4999] = f32::INFINITY;
                let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
                let tensor = stored(Dtype::F32, &[50, 100], &bytes);
                assert_eq!(tensor.first_not_finite().unwrap().0, place, "{bad}");
                let error = tensor.check_finite().unwrap_err();
                assert!(matches!(error, BundleError::NotFinite { index, .. } if index == place));
            }
        }
        let large = f32::MAX.to_le_bytes().repeat(5000);
        assert!(stored(Dtype::F32, &[50, 100], &large).check_finite().is_ok());
    }

    #[test]
    fn reads_part_of_a_row() {
        let bytes = (0..12_u8).flat_map(|x| f32::from(x).to_le_bytes()).collect::<Vec<_>>();
        let tensor = stored(Dtype::F32, &[3, 4], &bytes);
        let mut part = [0.0; 2];
        tensor.read(1, 2, &mut part);
        assert_eq!(part.map(f32::to_bits), [6.0, 7.0].map(f32::to_bits));
    }
}
