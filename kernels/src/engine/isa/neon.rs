//! 128-bit tiles of aarch64: `smlal` on even and odd elements of K, and `fmla`.
//!
//! 32 registers hold half a tile in width: 8 rows of 8 columns are 16 sums, with two vectors of B and the broadcast beside
//! them. A tile is four such quarters.
#![allow(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int16x4_t, int32x4_t, vaddq_f32, vaddq_s32, vcvtq_f32_s32, vdup_n_s16, vdupq_n_f32, vdupq_n_s32,
    vfmaq_f32, vld1q_f32, vld1q_s32, vmlal_s16, vmovn_s32, vshrn_n_s32, vst1q_f32,
};

use super::{CHAINS, Kernels, MR, Tile, row_kernels};

row_kernels!("neon");

pub(crate) static KERNELS: Kernels = Kernels {
    dot_i16,
    dot_f32,
    burn_i16,
    burn_f32,
    vector: 4,
    normalize,
    quantize,
    rotate,
    silu_mul,
    softmax_block,
    scale,
    scale_outer,
    add_scaled,
    // Its hint is not to be had in stable Rust.
    prefetch: |_| {},
};

/// Columns of a quarter tile: two vectors.
const COLUMNS: usize = 8;

fn dot_i16(a: &[i32], b: &[i32], tile: Tile<'_>) {
    #[target_feature(enable = "neon")]
    fn compiled(a: &[i32], b: &[i32], mut tile: Tile<'_>) {
        let (a, a_rest) = a.as_chunks::<MR>();
        let (b, b_rest) = b.as_chunks::<NR>();
        assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
        for column in (0..NR).step_by(COLUMNS) {
            let mut sums = [[vdupq_n_s32(0); 2]; MR];
            for (a, b) in a.iter().zip(b) {
                // Low halves are the even elements of K, high halves the odd ones.
                let pairs = [load_pairs(&b[column..column + 4]), load_pairs(&b[column + 4..column + 8])];
                let even: [int16x4_t; 2] = pairs.map(|pairs| vmovn_s32(pairs));
                let odd: [int16x4_t; 2] = pairs.map(|pairs| vshrn_n_s32::<16>(pairs));
                for (sums, &a) in sums.iter_mut().zip(a) {
                    let [a_even, a_odd] = halves(a).map(|half| vdup_n_s16(half));
                    for ((sum, even), odd) in sums.iter_mut().zip(even).zip(odd) {
                        *sum = vmlal_s16(vmlal_s16(*sum, a_even, even), a_odd, odd);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                store(&mut tile, row, column, sums.map(|sum| vcvtq_f32_s32(sum)));
            }
        }
    }
    // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
    unsafe { compiled(a, b, tile) }
}

/// The two `i16` of a pair, the one in the low half first.
#[inline(always)]
fn halves(pair: i32) -> [i16; 2] {
    let [a, b, c, d] = pair.to_le_bytes();
    [i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]
}

fn dot_f32(a: &[f32], b: &[f32], tile: Tile<'_>) {
    #[target_feature(enable = "neon")]
    fn compiled(a: &[f32], b: &[f32], mut tile: Tile<'_>) {
        let (a, a_rest) = a.as_chunks::<MR>();
        let (b, b_rest) = b.as_chunks::<NR>();
        assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
        for column in (0..NR).step_by(COLUMNS) {
            let mut sums = [[vdupq_n_f32(0.0); 2]; MR];
            for (a, b) in a.iter().zip(b) {
                let b = [load_f32(&b[column..column + 4]), load_f32(&b[column + 4..column + 8])];
                for (sums, &a) in sums.iter_mut().zip(a) {
                    let a = vdupq_n_f32(a);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = vfmaq_f32(*sum, a, b);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                store(&mut tile, row, column, sums);
            }
        }
    }
    // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
    unsafe { compiled(a, b, tile) }
}

fn burn_i16(steps: u32) -> f32 {
    #[target_feature(enable = "neon")]
    fn compiled(steps: u32) -> f32 {
        let b = vdup_n_s16(std::hint::black_box(3));
        // Not zero, which the compiler could carry through to the end.
        let mut sums = [vdupq_n_s32(std::hint::black_box(1)); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                // Two instructions make the products of a pair; the sum is an operand, so that none is loop-invariant.
                let a = vmovn_s32(*sum);
                *sum = vmlal_s16(vmlal_s16(*sum, a, b), a, b);
            }
        }
        let total = sums.into_iter().fold(vdupq_n_s32(0), |a, b| vaddq_s32(a, b));
        let mut lanes = [0.0; 4];
        store_f32(&mut lanes, vcvtq_f32_s32(total));
        lanes[0]
    }
    // SAFETY: as above.
    unsafe { compiled(steps) }
}

fn burn_f32(steps: u32) -> f32 {
    #[target_feature(enable = "neon")]
    fn compiled(steps: u32) -> f32 {
        let [a, b] = std::hint::black_box([0.5, 0.25]).map(|x| vdupq_n_f32(x));
        let mut sums = [vdupq_n_f32(std::hint::black_box(1.0)); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = vfmaq_f32(b, *sum, a);
            }
        }
        let total = sums.into_iter().fold(vdupq_n_f32(0.0), |a, b| vaddq_f32(a, b));
        let mut lanes = [0.0; 4];
        store_f32(&mut lanes, total);
        lanes[0]
    }
    // SAFETY: as above.
    unsafe { compiled(steps) }
}

/// Writes or adds eight sums of one row.
#[target_feature(enable = "neon")]
fn store(tile: &mut Tile<'_>, row: usize, column: usize, sums: [float32x4_t; 2]) {
    let accumulate = tile.accumulate;
    for (out, mut sum) in tile.row(row)[column..].as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        if accumulate {
            sum = vaddq_f32(load_f32(out), sum);
        }
        store_f32(out, sum);
    }
}

#[target_feature(enable = "neon")]
fn store_f32(out: &mut [f32; 4], x: float32x4_t) {
    // SAFETY: `out` is 4 floats, 16 bytes, which may be written; no alignment is asked for.
    unsafe { vst1q_f32(out.as_mut_ptr(), x) };
}

#[target_feature(enable = "neon")]
fn load_pairs(from: &[i32]) -> int32x4_t {
    assert!(from.len() == 4);
    // SAFETY: `from` is 4 pairs, 16 bytes, which may be read; no alignment is asked for.
    unsafe { vld1q_s32(from.as_ptr()) }
}

#[target_feature(enable = "neon")]
fn load_f32(from: &[f32]) -> float32x4_t {
    assert!(from.len() == 4);
    // SAFETY: `from` is 4 floats, 16 bytes, which may be read; no alignment is asked for.
    unsafe { vld1q_f32(from.as_ptr()) }
}
