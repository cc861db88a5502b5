//! 256-bit tiles: `vpmaddwd` with `vpaddd`, or `vpdpwssd` where AVX-VNNI is; `vfmadd231ps`.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T1, _mm_prefetch, _mm256_add_epi32, _mm256_add_ps, _mm256_cvtepi32_ps,
    _mm256_dpwssd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps,
};

use super::{CHAINS, Kernels, MR, Tile, row_kernels};

row_kernels!("avx2,fma");

pub(crate) static KERNELS: Kernels = table(dot_i16_madd, burn_i16_madd);
pub(crate) static KERNELS_VNNI: Kernels = table(dot_i16_vnni, burn_i16_vnni);

const fn table(dot_i16: fn(&[i32], &[i32], Tile<'_>), burn_i16: fn(u32) -> f32) -> Kernels {
    Kernels {
        dot_i16,
        dot_f32,
        burn_i16,
        burn_f32,
        vector: 8,
        normalize,
        quantize,
        rotate,
        silu_mul,
        softmax_block,
        scale,
        scale_outer,
        add_scaled,
        prefetch,
    }
}

/// Columns of a quarter tile: two vectors. [`ROWS`] times two sums and two vectors of B fit in 16 registers.
const COLUMNS: usize = 16;
/// Rows of a quarter tile.
const ROWS: usize = 4;

macro_rules! dot_i16 {
    ($name:ident, $burn:ident, $features:literal, |$sum:ident, $a:ident, $b:ident| $dot:expr) => {
        fn $name(a: &[i32], b: &[i32], tile: Tile<'_>) {
            #[target_feature(enable = $features)]
            fn compiled(a: &[i32], b: &[i32], mut tile: Tile<'_>) {
                let (a, a_rest) = a.as_chunks::<MR>();
                let (b, b_rest) = b.as_chunks::<NR>();
                assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
                for column in (0..NR).step_by(COLUMNS) {
                    for row in (0..MR).step_by(ROWS) {
                        let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
                        for (a, b) in a.iter().zip(b) {
                            let b = &b[column..column + COLUMNS];
                            let b = [load_pairs(&b[..8]), load_pairs(&b[8..])];
                            for (sums, &a) in sums.iter_mut().zip(&a[row..row + ROWS]) {
                                let $a = _mm256_set1_epi32(a);
                                for ($sum, $b) in sums.iter_mut().zip(b) {
                                    *$sum = $dot;
                                }
                            }
                        }
                        for (index, sums) in sums.into_iter().enumerate() {
                            store(&mut tile, row + index, column, sums.map(|sum| _mm256_cvtepi32_ps(sum)));
                        }
                    }
                }
            }
            // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
            unsafe { compiled(a, b, tile) }
        }

        fn $burn(steps: u32) -> f32 {
            #[target_feature(enable = $features)]
            fn compiled(steps: u32) -> f32 {
                let $b = _mm256_set1_epi32(std::hint::black_box(0x0002_0003));
                // Not zero, which the compiler could carry through to the end.
                let mut sums = [_mm256_set1_epi32(std::hint::black_box(1)); CHAINS];
                for _ in 0..steps {
                    for $sum in &mut sums {
                        // The sum is an operand too, so that no product is loop-invariant.
                        let $a = *$sum;
                        *$sum = $dot;
                    }
                }
                let total = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi32(a, b));
                let mut lanes = [0.0; 8];
                store_f32(&mut lanes, _mm256_cvtepi32_ps(total));
                lanes[0]
            }
            // SAFETY: as above.
            unsafe { compiled(steps) }
        }
    };
}

dot_i16!(dot_i16_madd, burn_i16_madd, "avx2,fma", |sum, a, b| _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b)));
dot_i16!(dot_i16_vnni, burn_i16_vnni, "avx2,fma,avxvnni", |sum, a, b| _mm256_dpwssd_avx_epi32(*sum, a, b));

fn dot_f32(a: &[f32], b: &[f32], tile: Tile<'_>) {
    #[target_feature(enable = "avx2,fma")]
    fn compiled(a: &[f32], b: &[f32], mut tile: Tile<'_>) {
        let (a, a_rest) = a.as_chunks::<MR>();
        let (b, b_rest) = b.as_chunks::<NR>();
        assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
        for column in (0..NR).step_by(COLUMNS) {
            for row in (0..MR).step_by(ROWS) {
                let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
                for (a, b) in a.iter().zip(b) {
                    let b = &b[column..column + COLUMNS];
                    let b = [load_f32(&b[..8]), load_f32(&b[8..])];
                    for (sums, &a) in sums.iter_mut().zip(&a[row..row + ROWS]) {
                        let a = _mm256_set1_ps(a);
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = _mm256_fmadd_ps(a, b, *sum);
                        }
                    }
                }
                for (index, sums) in sums.into_iter().enumerate() {
                    store(&mut tile, row + index, column, sums);
                }
            }
        }
    }
    // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
    unsafe { compiled(a, b, tile) }
}

fn burn_f32(steps: u32) -> f32 {
    #[target_feature(enable = "avx2,fma")]
    fn compiled(steps: u32) -> f32 {
        let [a, b] = std::hint::black_box([0.5, 0.25]).map(|x| _mm256_set1_ps(x));
        let mut sums = [_mm256_set1_ps(std::hint::black_box(1.0)); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        let total = sums.into_iter().fold(_mm256_setzero_ps(), |a, b| _mm256_add_ps(a, b));
        let mut lanes = [0.0; 8];
        store_f32(&mut lanes, total);
        lanes[0]
    }
    // SAFETY: as above.
    unsafe { compiled(steps) }
}

/// Asks for what will be read soon, a cache line at a time.
pub(super) fn prefetch(soon: &[f32]) {
    for line in soon.chunks(16) {
        // SAFETY: a hint, which no address makes fail; SSE, which it needs, is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// Writes or adds sixteen sums of one row.
#[target_feature(enable = "avx2")]
fn store(tile: &mut Tile<'_>, row: usize, column: usize, sums: [__m256; 2]) {
    let accumulate = tile.accumulate;
    for (out, mut sum) in tile.row(row)[column..].as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        if accumulate {
            sum = _mm256_add_ps(load_f32(out), sum);
        }
        store_f32(out, sum);
    }
}

#[target_feature(enable = "avx2")]
fn store_f32(out: &mut [f32; 8], x: __m256) {
    // SAFETY: `out` is 8 floats, 32 bytes, which may be written; no alignment is asked for.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) };
}

#[target_feature(enable = "avx2")]
fn load_pairs(from: &[i32]) -> __m256i {
    assert!(from.len() == 8);
    // SAFETY: `from` is 8 pairs, 32 bytes, which may be read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn load_f32(from: &[f32]) -> __m256 {
    assert!(from.len() == 8);
    // SAFETY: `from` is 8 floats, 32 bytes, which may be read; no alignment is asked for.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}
