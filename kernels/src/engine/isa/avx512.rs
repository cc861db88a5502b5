//! 512-bit tiles: `vpmaddwd` with `vpaddd`, or `vpdpwssd` where VNNI is; `vfmadd231ps`.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps,
};

use super::{CHAINS, Kernels, MR, Tile, row_kernels};

row_kernels!("avx2,fma,avx512f,avx512bw,avx512vl");

pub(crate) static KERNELS: Kernels = table(dot_i16_madd, burn_i16_madd);
pub(crate) static KERNELS_VNNI: Kernels = table(dot_i16_vnni, burn_i16_vnni);

const fn table(dot_i16: fn(&[i32], &[i32], Tile<'_>), burn_i16: fn(u32) -> f32) -> Kernels {
    Kernels {
        dot_i16,
        dot_f32,
        burn_i16,
        burn_f32,
        vector: 16,
        normalize,
        quantize,
        rotate,
        silu_mul,
        softmax_block,
        scale,
        scale_outer,
        add_scaled,
        prefetch: super::avx2::prefetch,
    }
}

macro_rules! dot_i16 {
    ($name:ident, $burn:ident, $features:literal, |$sum:ident, $a:ident, $b:ident| $dot:expr) => {
        fn $name(a: &[i32], b: &[i32], tile: Tile<'_>) {
            #[target_feature(enable = $features)]
            fn compiled(a: &[i32], b: &[i32], mut tile: Tile<'_>) {
                let (a, a_rest) = a.as_chunks::<MR>();
                let (b, b_rest) = b.as_chunks::<NR>();
                assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
                let mut sums = [[_mm512_setzero_si512(); 2]; MR];
                for (a, b) in a.iter().zip(b) {
                    let b = [load_pairs(&b[..16]), load_pairs(&b[16..])];
                    for (sums, &a) in sums.iter_mut().zip(a) {
                        let $a = _mm512_set1_epi32(a);
                        for ($sum, $b) in sums.iter_mut().zip(b) {
                            *$sum = $dot;
                        }
                    }
                }
                for (row, sums) in sums.into_iter().enumerate() {
                    store(&mut tile, row, sums.map(|sum| _mm512_cvtepi32_ps(sum)));
                }
            }
            // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
            unsafe { compiled(a, b, tile) }
        }

        fn $burn(steps: u32) -> f32 {
            #[target_feature(enable = $features)]
            fn compiled(steps: u32) -> f32 {
                let $b = _mm512_set1_epi32(std::hint::black_box(0x0002_0003));
                // Not zero, which the compiler could carry through to the end.
                let mut sums = [_mm512_set1_epi32(std::hint::black_box(1)); CHAINS];
                for _ in 0..steps {
                    for $sum in &mut sums {
                        // The sum is an operand too, so that no product is loop-invariant.
                        let $a = *$sum;
                        *$sum = $dot;
                    }
                }
                let total = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi32(a, b));
                let mut lanes = [0.0; 16];
                store_f32(&mut lanes, _mm512_cvtepi32_ps(total));
                lanes[0]
            }
            // SAFETY: as above.
            unsafe { compiled(steps) }
        }
    };
}

dot_i16!(dot_i16_madd, burn_i16_madd, "avx2,fma,avx512f,avx512bw,avx512vl", |sum, a, b| {
    _mm512_add_epi32(*sum, _mm512_madd_epi16(a, b))
});
dot_i16!(dot_i16_vnni, burn_i16_vnni, "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni", |sum, a, b| {
    _mm512_dpwssd_epi32(*sum, a, b)
});

fn dot_f32(a: &[f32], b: &[f32], tile: Tile<'_>) {
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    fn compiled(a: &[f32], b: &[f32], mut tile: Tile<'_>) {
        let (a, a_rest) = a.as_chunks::<MR>();
        let (b, b_rest) = b.as_chunks::<NR>();
        assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
        let mut sums = [[_mm512_setzero_ps(); 2]; MR];
        for (a, b) in a.iter().zip(b) {
            let b = [load_f32(&b[..16]), load_f32(&b[16..])];
            for (sums, &a) in sums.iter_mut().zip(a) {
                let a = _mm512_set1_ps(a);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_fmadd_ps(a, b, *sum);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            store(&mut tile, row, sums);
        }
    }
    // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
    unsafe { compiled(a, b, tile) }
}

fn burn_f32(steps: u32) -> f32 {
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    fn compiled(steps: u32) -> f32 {
        let [a, b] = std::hint::black_box([0.5, 0.25]).map(|x| _mm512_set1_ps(x));
        let mut sums = [_mm512_set1_ps(std::hint::black_box(1.0)); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        let total = sums.into_iter().fold(_mm512_setzero_ps(), |a, b| _mm512_add_ps(a, b));
        let mut lanes = [0.0; 16];
        store_f32(&mut lanes, total);
        lanes[0]
    }
    // SAFETY: as above.
    unsafe { compiled(steps) }
}

/// Writes or adds one row of sums.
#[target_feature(enable = "avx512f")]
fn store(tile: &mut Tile<'_>, row: usize, sums: [__m512; 2]) {
    let accumulate = tile.accumulate;
    for (out, mut sum) in tile.row(row).as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        if accumulate {
            sum = _mm512_add_ps(load_f32(out), sum);
        }
        store_f32(out, sum);
    }
}

#[target_feature(enable = "avx512f")]
fn store_f32(out: &mut [f32; 16], x: __m512) {
    // SAFETY: `out` is 16 floats, 64 bytes, which may be written; no alignment is asked for.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
}

#[target_feature(enable = "avx512f")]
fn load_pairs(from: &[i32]) -> __m512i {
    assert!(from.len() == 16);
    // SAFETY: `from` is 16 pairs, 64 bytes, which may be read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn load_f32(from: &[f32]) -> __m512 {
    assert!(from.len() == 16);
    // SAFETY: `from` is 16 floats, 64 bytes, which may be read; no alignment is asked for.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}
