//! Instruction sets: which this processor has, and the table of inner loops written for each.
//!
//! An [`Isa`] is chosen once, when an engine is built, and from then on the engine calls through its [`Kernels`]. Every
//! table computes the same function bit for bit: sums of integers are exact, sums of floats have one written order, and
//! a multiplication is fused with an addition where the body says `mul_add` and nowhere else. So a result does not
//! depend on the processor, and [`scalar`] is the twin that every other table is tested against.
//!
//! # The tile
//!
//! Both products compute a tile of [`MR`] rows by [`NR`] columns, `C += A B`, from operands that were packed for it:
//! - A, `[K][MR]`: the rows of one panel side by side, so that one step along K reads [`MR`] neighbors, each of which is
//!   broadcast;
//! - B, `[K][NR]`: the columns of one panel side by side, two vectors of 512 bits.
//!
//! With integers one step covers two elements of K, which lie side by side in one `i32`: A is `[K/2][MR]` and B is
//! `[K/2][NR]` such pairs, the operands of `vpmaddwd` and of `vpdpwssd`.
//!
//! 8 x 32 on 512 bits holds 16 sums in registers, four times the latency of a multiply-add, and 8 divides every block of
//! rows that is in use here; 6 x 16, which fills the 16 registers of AVX2, does not. On 256 bits the tile is four
//! quarters of 4 x 16, whose eight sums just cover the latency.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows;
mod scalar;

use std::fmt;
use std::str::FromStr;

/// Rows of a tile.
pub(crate) const MR: usize = 8;
/// Columns of a tile.
pub(crate) const NR: usize = 32;

/// Chains of multiply-adds in a measurement of the peak: more than latency times units of any processor here, and with
/// their two operands no more than 16 registers.
pub(crate) const CHAINS: usize = 12;

/// One value for each column of a tile.
pub(crate) type Lanes = [f32; NR];

/// A set of instructions that the engine has inner loops for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every processor has: no intrinsics at all.
    Scalar,
    /// 128-bit vectors of aarch64.
    Neon,
    /// AVX2 with FMA: 256-bit `vpmaddwd`.
    Avx2,
    /// AVX2, FMA and AVX-VNNI: 256-bit `vpdpwssd` without AVX-512.
    AvxVnni,
    /// AVX-512 F, BW and VL: 512-bit `vpmaddwd`.
    Avx512,
    /// The same and VNNI: 512-bit `vpdpwssd`.
    Avx512Vnni,
}

/// What was asked for is not the name of an instruction set, or this processor does not have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// No such name.
    #[error("`{found}` is not an instruction set; expected one of scalar, neon, avx2, avx-vnni, avx512, avx512-vnni")]
    Unknown {
        /// What was given.
        found: String,
    },
    /// This processor, or the architecture that this program was built for, lacks it.
    #[error("this processor does not have {isa}; it has {}", Names(available))]
    Unavailable {
        /// What was asked for.
        isa: Isa,
        /// What is there.
        available: Vec<Isa>,
    },
}

struct Names<'a>(&'a [Isa]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, isa)| write!(f, "{}{isa}", if index == 0 { "" } else { ", " }))
    }
}

impl Isa {
    const ALL: [Self; 6] = [Self::Scalar, Self::Neon, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Every set that this processor can execute, the slowest first; never empty.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest set that this processor can execute.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }

    /// This set, if the processor has it.
    ///
    /// # Errors
    /// [`IsaError::Unavailable`] if it has not.
    pub fn require(self) -> Result<Self, IsaError> {
        if self.is_available() {
            Ok(self)
        } else {
            Err(IsaError::Unavailable { isa: self, available: Self::available() })
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        // Each test names every feature that a `target_feature` of that table's file names.
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        match self {
            Self::Scalar => true,
            Self::Neon => false,
            Self::Avx2 => avx2,
            Self::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            Self::Avx512 => avx512,
            Self::Avx512Vnni => avx512 && is_x86_feature_detected!("avx512vnni"),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_available(self) -> bool {
        self == Self::Scalar
    }

    /// The table of this set; of [`Isa::Scalar`] where the processor lacks it, so that no table is ever called on a
    /// processor that cannot execute it.
    pub(crate) fn kernels(self) -> &'static Kernels {
        if !self.is_available() {
            return &scalar::KERNELS;
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => &avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => &avx2::KERNELS_VNNI,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => &avx512::KERNELS_VNNI,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => &neon::KERNELS,
            _ => &scalar::KERNELS,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;
    fn from_str(name: &str) -> Result<Self, IsaError> {
        let found = Self::ALL.into_iter().find(|isa| isa.name() == name);
        found.ok_or_else(|| IsaError::Unknown { found: name.to_owned() })
    }
}

/// The tile of sums: [`MR`] rows of [`NR`] columns, the rows `stride` elements apart.
pub(crate) struct Tile<'a> {
    /// At least `(MR - 1) * stride + NR` elements.
    pub(crate) sums: &'a mut [f32],
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Whether the tile holds sums to add to; else it is overwritten.
    pub(crate) accumulate: bool,
}

impl Tile<'_> {
    /// Row `row`, which is below [`MR`].
    #[inline]
    pub(crate) fn row(&mut self, row: usize) -> &mut Lanes {
        let start = row * self.stride;
        let Ok(lanes) = (&mut self.sums[start..start + NR]).try_into() else {
            unreachable!("a slice of NR elements is an array of NR elements")
        };
        lanes
    }
}

/// The inner loops of one instruction set. All lengths are checked inside, so that calling one is safe.
pub(crate) struct Kernels {
    /// Integer product: `tile (+)= f32(A B)`. A is `[K/2][MR]`, each element a pair of `i16` with the first in the low
    /// half; B is `[K/2][NR]` such pairs. The sum over this whole K must fit in `i32`: the caller cuts K accordingly.
    pub(crate) dot_i16: fn(a: &[i32], b: &[i32], tile: Tile<'_>),
    /// Float product: `tile (+)= A B` with fused multiply-adds in the order of K. A is `[K][MR]`, B is `[K][NR]`.
    pub(crate) dot_f32: fn(a: &[f32], b: &[f32], tile: Tile<'_>),
    /// Runs `steps` steps of [`CHAINS`] independent integer multiply-adds on registers alone.
    pub(crate) burn_i16: fn(steps: u32) -> f32,
    /// The same with floats.
    pub(crate) burn_f32: fn(steps: u32) -> f32,
    /// Numbers in a vector of 32 bits each.
    pub(crate) vector: usize,
    /// See [`rows::normalize`].
    pub(crate) normalize: fn(row: &mut [f32], gain: &[f32], eps: f32),
    /// See [`rows::quantize`].
    pub(crate) quantize: fn(row: &[f32], greatest: f32, pairs: &mut [i32]) -> f32,
    /// See [`rows::rotate`].
    pub(crate) rotate: fn(head: &mut [f32], cos: &[f32], sin: &[f32]),
    /// See [`rows::silu_mul`].
    pub(crate) silu_mul: fn(gate_up: &Lanes, out: &mut [f32]),
    /// See [`rows::softmax_block`].
    pub(crate) softmax_block: fn(scores: &mut [Lanes], first_key: u32, last_key: &[u32; NR], state: &mut Softmax),
    /// See [`rows::scale`].
    pub(crate) scale: fn(rows: &mut [Lanes], by: &Lanes),
    /// See [`rows::scale_outer`].
    pub(crate) scale_outer: fn(row: &mut [f32], by: f32, columns: &[f32]),
    /// See [`rows::add_scaled`].
    pub(crate) add_scaled: fn(row: &mut [f32], by: f32, other: &[f32]),
    /// Asks for what will be read soon, where the processor takes such hints.
    pub(crate) prefetch: fn(soon: &[f32]),
}

pub(crate) use rows::Softmax;

/// Defines `Kernels` entries that compile the bodies of [`rows`] for one set of features.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_macros))]
macro_rules! row_kernels {
    ($features:literal) => {
        use super::rows;
        use super::{Lanes, NR};
        row_kernels!(@one $features normalize(row: &mut [f32], gain: &[f32], eps: f32));
        row_kernels!(@one $features quantize(row: &[f32], greatest: f32, pairs: &mut [i32]) -> f32);
        row_kernels!(@one $features rotate(head: &mut [f32], cos: &[f32], sin: &[f32]));
        row_kernels!(@one $features silu_mul(gate_up: &Lanes, out: &mut [f32]));
        row_kernels!(@one $features softmax_block(scores: &mut [Lanes], first_key: u32, last_key: &[u32; NR], state: &mut rows::Softmax));
        row_kernels!(@one $features scale(rows: &mut [Lanes], by: &Lanes));
        row_kernels!(@one $features scale_outer(row: &mut [f32], by: f32, columns: &[f32]));
        row_kernels!(@one $features add_scaled(row: &mut [f32], by: f32, other: &[f32]));
    };
    (@one $features:literal $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        fn $name($($argument: $type),*) $(-> $result)? {
            #[target_feature(enable = $features)]
            fn compiled($($argument: $type),*) $(-> $result)? {
                rows::$name($($argument),*)
            }
            // SAFETY: this table is only reached through `Isa::kernels`, which hands it out where these features are.
            unsafe { compiled($($argument),*) }
        }
    };
}
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_imports))]
use row_kernels;

#[cfg(test)]
mod tests;
