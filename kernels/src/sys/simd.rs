//! The one inner loop, compiled twice: for AVX2 with FMA where the processor has them, and for any processor.

/// Output columns of a tile: two AVX registers.
pub(crate) const TILE_COLUMNS: usize = 16;

/// Output rows of a tile, at most: 6 x 2 accumulators, 2 columns of the panel and 1 broadcast fill 15 of the 16 AVX
/// registers.
pub(crate) const TILE_ROWS: usize = 6;

/// `TILE_COLUMNS` numbers for one step of the reduction.
pub(crate) type Lanes = [f32; TILE_COLUMNS];

/// Whether fused multiply-add is one instruction on every processor that this is compiled for.
const FUSED_BASE: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Which compilation of the loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa {
    /// True only where AVX2 and FMA were both detected.
    avx2_fma: bool,
}

impl Isa {
    /// The best that this processor has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let avx2_fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2_fma = false;
        Self { avx2_fma }
    }

    /// What every processor has.
    #[cfg(test)]
    pub(crate) const PORTABLE: Self = Self { avx2_fma: false };

    /// The name in reports.
    pub(crate) const fn name(self) -> &'static str {
        if self.avx2_fma { "avx2+fma" } else { "portable" }
    }

    /// `out[i][j] = sum over k of rows[i][k] * panel[k][j]`, for 1 to [`TILE_ROWS`] rows.
    ///
    /// Each sum is one chain over k in ascending order, so it depends on nothing but its own row and column.
    ///
    /// # Panics
    /// If there are more than [`TILE_ROWS`] rows, or one is shorter than the panel.
    pub(crate) fn tile(self, rows: &[&[f32]], panel: &[Lanes], out: &mut [Lanes; TILE_ROWS]) {
        #[cfg(target_arch = "x86_64")]
        if self.avx2_fma {
            // SAFETY: `avx2_fma` is private and `detect` alone sets it, after the processor said that it has both.
            unsafe { tile_avx2_fma(rows, panel, out) };
            return;
        }
        dispatch::<FUSED_BASE>(rows, panel, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn tile_avx2_fma(rows: &[&[f32]], panel: &[Lanes], out: &mut [Lanes; TILE_ROWS]) {
    dispatch::<true>(rows, panel, out);
}

#[expect(clippy::inline_always, reason = "a function of its own would not be compiled for its caller's instructions")]
#[inline(always)]
fn dispatch<const FUSED: bool>(rows: &[&[f32]], panel: &[Lanes], out: &mut [Lanes; TILE_ROWS]) {
    match *rows {
        [] => {}
        [a] => sum::<1, FUSED>([a], panel, out),
        [a, b] => sum::<2, FUSED>([a, b], panel, out),
        [a, b, c] => sum::<3, FUSED>([a, b, c], panel, out),
        [a, b, c, d] => sum::<4, FUSED>([a, b, c, d], panel, out),
        [a, b, c, d, e] => sum::<5, FUSED>([a, b, c, d, e], panel, out),
        [a, b, c, d, e, f] => sum::<6, FUSED>([a, b, c, d, e, f], panel, out),
        [..] => unreachable!("a tile has at most {TILE_ROWS} rows"),
    }
}

#[expect(clippy::inline_always, reason = "a function of its own would not be compiled for its caller's instructions")]
#[inline(always)]
fn sum<const ROWS: usize, const FUSED: bool>(rows: [&[f32]; ROWS], panel: &[Lanes], out: &mut [Lanes; TILE_ROWS]) {
    let rows = rows.map(|row| &row[..panel.len()]); // so that the loop need not check
    let mut sums = [[0.0; TILE_COLUMNS]; ROWS];
    // `lanes` by value: loaded once a step, instead of once a row.
    for (k, &lanes) in panel.iter().enumerate() {
        for (row, sums) in rows.iter().zip(&mut sums) {
            let x = row[k];
            for (sum, w) in sums.iter_mut().zip(lanes) {
                *sum = if FUSED { x.mul_add(w, *sum) } else { x * w + *sum };
            }
        }
    }
    out[..ROWS].copy_from_slice(&sums);
}
