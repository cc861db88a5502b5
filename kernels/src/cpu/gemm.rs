//! `y = x Wᵀ`, the product that a linear layer is, with weights as they are stored.

use crate::bundle::Tensor;
use crate::cpu::pool::Pool;
use crate::network::ForwardError;
use crate::sys::simd::{Isa, Lanes, TILE_COLUMNS, TILE_ROWS};

/// Length of one chain of sums. A longer K is cut into blocks whose sums are then added up, which keeps the error of
/// a sum of 3,072 near that of one of 256. A panel of this length fills half a first-level cache (16 kB of 32).
const BLOCK_K: usize = 256;

/// Columns of y that one task computes: four panels, 64 kB, which stay in the second-level cache.
const BLOCK_COLUMNS: usize = 4 * TILE_COLUMNS;

/// Rows of x that are multiplied by all panels of a block before the next: 240 kB, beside the panels in that cache.
const BLOCK_ROWS: usize = 40 * TILE_ROWS;

/// What becomes of the old y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// `y = x Wᵀ`.
    Overwrite,
    /// `y = y + x Wᵀ`: a residual, or an adapter beside its base.
    Add,
}

/// `y[t, n] = sum over k of x[t, k] * w[n, k]`: x is `[T, K]`, w `[N, K]`, y `[T, N]`, all row-major.
///
/// Each element is summed in an order that depends on K alone: not on T, on its place, or on the threads.
///
/// # Errors
/// [`ForwardError::Stopped`].
pub(crate) fn gemm(
    isa: Isa,
    pool: &Pool<'_>,
    x: &[f32],
    w: &Tensor,
    y: &mut [f32],
    into: Into,
) -> Result<(), ForwardError> {
    debug_assert_eq!(x.len() / w.columns, y.len() / w.rows);
    let x = blocks_of_k(pool, x, w.columns)?;
    pool.run(column_blocks(y, w.rows, BLOCK_COLUMNS), |(first_column, y)| {
        multiply_block(isa, &x, w, first_column, y, into);
    })
}

/// Copies x `[T, K]` into one matrix `[T, 256]` for each block of K, the last one perhaps narrower.
///
/// In place, the rows of a tile are K floats apart: for a K of 1,024 they all fall into the same few sets of the
/// first-level cache and push each other out. The copy is a thousandth of the product's work.
fn blocks_of_k(pool: &Pool<'_>, x: &[f32], columns: usize) -> Result<Vec<Vec<f32>>, ForwardError> {
    let mut blocks = vec![Vec::new(); columns.div_ceil(BLOCK_K)];
    pool.run(blocks.iter_mut().enumerate().collect(), |(block, out)| {
        let part = block * BLOCK_K..columns.min((block + 1) * BLOCK_K);
        out.reserve_exact(x.len() / columns * part.len());
        for row in x.chunks_exact(columns) {
            out.extend_from_slice(&row[part.clone()]);
        }
    })?;
    Ok(blocks)
}

/// Cuts a row-major matrix of `columns` into vertical strips of `width`: the first column of each, and its part of
/// every row. So threads can write strips of one matrix without sharing a byte.
pub(crate) fn column_blocks(matrix: &mut [f32], columns: usize, width: usize) -> Vec<(usize, Vec<&mut [f32]>)> {
    let mut blocks: Vec<_> = (0..columns).step_by(width).map(|first| (first, Vec::new())).collect();
    for row in matrix.chunks_exact_mut(columns) {
        for ((_, parts), part) in blocks.iter_mut().zip(row.chunks_mut(width)) {
            parts.push(part);
        }
    }
    blocks
}

/// One strip of y: the sums of all rows grow side by side in one buffer, block of K by block, and join y at the end.
fn multiply_block(isa: Isa, x: &[Vec<f32>], w: &Tensor, first_column: usize, y: Vec<&mut [f32]>, into: Into) {
    let Some(width) = y.first().map(|part| part.len()) else { return };
    let offsets = || (0..width).step_by(TILE_COLUMNS);
    let mut panels = vec![[[0.0; TILE_COLUMNS]; BLOCK_K]; width.div_ceil(TILE_COLUMNS)];
    let mut sums = vec![[0.0; BLOCK_COLUMNS]; y.len()];
    for (block, x) in x.iter().enumerate() {
        let depth = x.len() / y.len();
        for (panel, offset) in panels.iter_mut().zip(offsets()) {
            let columns = TILE_COLUMNS.min(width - offset);
            widen_panel(w, first_column + offset, columns, block * BLOCK_K, &mut panel[..depth]);
        }
        for (x, sums) in x.chunks(BLOCK_ROWS * depth).zip(sums.chunks_mut(BLOCK_ROWS)) {
            for (panel, offset) in panels.iter().zip(offsets()) {
                for (x, sums) in x.chunks(TILE_ROWS * depth).zip(sums.chunks_mut(TILE_ROWS)) {
                    add_tile(isa, x, &panel[..depth], sums, offset);
                }
            }
        }
    }
    for (y, sums) in y.into_iter().zip(&sums) {
        match into {
            Into::Overwrite => y.copy_from_slice(&sums[..width]),
            Into::Add => y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum),
        }
    }
}

/// Adds x `[rows, K]` times a panel to 16 columns of the sums.
fn add_tile(isa: Isa, x: &[f32], panel: &[Lanes], sums: &mut [[f32; BLOCK_COLUMNS]], offset: usize) {
    let mut rows = [&[][..]; TILE_ROWS];
    rows.iter_mut().zip(x.chunks_exact(panel.len())).for_each(|(row, x)| *row = x);
    let mut tile = [[0.0; TILE_COLUMNS]; TILE_ROWS];
    isa.tile(&rows[..sums.len()], panel, &mut tile);
    for (sums, tile) in sums.iter_mut().zip(&tile) {
        sums[offset..offset + TILE_COLUMNS].iter_mut().zip(tile).for_each(|(sum, tile)| *sum += tile);
    }
}

/// Reads `columns` rows of w from `first` on, `panel.len()` elements each from `first_k` on, as columns of the panel.
fn widen_panel(w: &Tensor, first: usize, columns: usize, first_k: usize, panel: &mut [Lanes]) {
    let mut row = [0.0; BLOCK_K];
    for column in 0..columns {
        let row = &mut row[..panel.len()];
        w.read(first + column, first_k, row);
        for (lanes, &element) in panel.iter_mut().zip(&*row) {
            lanes[column] = element;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::tensor::Label;
    use crate::cpu::naive;
    use crate::network::Stop;
    use proptest::prelude::*;
    use std::num::NonZeroUsize;

    fn matrix(rows: usize, columns: usize, elements: Vec<f32>) -> Tensor {
        Tensor::owned(Label { file: "f".into(), tensor: "w".into() }, rows, columns, elements)
    }

    fn pool(threads: usize) -> Pool<'static> {
        Pool { threads: NonZeroUsize::new(threads).unwrap(), stop: Stop::never() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_the_triple_loop(
            t in 1..20_usize, n in 1..140_usize, k in prop_oneof![1..40_usize, 250..260_usize, 511..514_usize],
            seed in any::<u64>(), add in any::<bool>(), threads in 1..4_usize,
        ) {
            let x = naive::numbers(seed, t * k);
            let w = naive::numbers(seed ^ 1, n * k);
            let y = naive::numbers(seed ^ 2, t * n);
            let mut expected = naive::gemm(&naive::widen(&x), &naive::widen(&w), t, n, k);
            if add {
                expected.iter_mut().zip(&y).for_each(|(sum, &y)| *sum += f64::from(y));
            }
            let into = if add { Into::Add } else { Into::Overwrite };
            let w = matrix(n, k, w);
            for isa in [Isa::detect(), Isa::PORTABLE] {
                let mut found = y.clone();
                gemm(isa, &pool(threads), &x, &w, &mut found, into).unwrap();
                // Factors up to 1, sums of k products: the error of a chain grows with its length at worst.
                naive::assert_close(&found, &expected, f64::from(f32::EPSILON) * k as f64);
            }
        }

        /// What a row gives does not depend on its company, nor on the threads: not by one bit.
        #[test]
        fn a_row_alone_is_the_row_in_a_batch(t in 1..20_usize, seed in any::<u64>(), threads in 1..5_usize) {
            let (n, k) = (70, 300);
            let x = naive::numbers(seed, t * k);
            let w = matrix(n, k, naive::numbers(seed ^ 1, n * k));
            let mut together = vec![0.0; t * n];
            gemm(Isa::detect(), &pool(threads), &x, &w, &mut together, Into::Overwrite).unwrap();
            for (x, expected) in x.chunks_exact(k).zip(together.chunks_exact(n)) {
                let mut alone = vec![f32::NAN; n];
                gemm(Isa::detect(), &pool(1), x, &w, &mut alone, Into::Overwrite).unwrap();
                prop_assert_eq!(&alone, expected);
            }
        }
    }
}
