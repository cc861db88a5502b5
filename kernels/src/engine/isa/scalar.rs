//! The portable table: no intrinsics, and the meaning of every other table.

use super::{CHAINS, Kernels, MR, NR, Tile, rows};

pub(crate) static KERNELS: Kernels = Kernels {
    dot_i16,
    dot_f32,
    burn_i16,
    burn_f32,
    vector: 1,
    normalize: rows::normalize,
    quantize: rows::quantize,
    rotate: rows::rotate,
    silu_mul: rows::silu_mul,
    softmax_block: rows::softmax_block,
    scale: rows::scale,
    scale_outer: rows::scale_outer,
    add_scaled: rows::add_scaled,
    prefetch: |_| {},
};

fn dot_i16(a: &[i32], b: &[i32], mut tile: Tile<'_>) {
    let (a, a_rest) = a.as_chunks::<MR>();
    let (b, b_rest) = b.as_chunks::<NR>();
    assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
    for row in 0..MR {
        let mut sums = [0_i32; NR];
        for (a, b) in a.iter().zip(b) {
            let [low, high] = halves(a[row]);
            for (sum, &b) in sums.iter_mut().zip(b) {
                let b = halves(b);
                *sum = sum.wrapping_add(low * b[0]).wrapping_add(high * b[1]);
            }
        }
        let accumulate = tile.accumulate;
        for (out, sum) in tile.row(row).iter_mut().zip(sums) {
            let sum = sum as f32;
            *out = if accumulate { *out + sum } else { sum };
        }
    }
}

/// The two `i16` of a pair, the one in the low half first.
fn halves(pair: i32) -> [i32; 2] {
    let [a, b, c, d] = pair.to_le_bytes();
    [i32::from(i16::from_le_bytes([a, b])), i32::from(i16::from_le_bytes([c, d]))]
}

fn dot_f32(a: &[f32], b: &[f32], mut tile: Tile<'_>) {
    let (a, a_rest) = a.as_chunks::<MR>();
    let (b, b_rest) = b.as_chunks::<NR>();
    assert!(a.len() == b.len() && a_rest.is_empty() && b_rest.is_empty(), "A and B have the same K");
    for row in 0..MR {
        let mut sums = [0.0_f32; NR];
        for (a, b) in a.iter().zip(b) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = a[row].mul_add(b, *sum);
            }
        }
        let accumulate = tile.accumulate;
        for (out, sum) in tile.row(row).iter_mut().zip(sums) {
            *out = if accumulate { *out + sum } else { sum };
        }
    }
}

fn burn_i16(steps: u32) -> f32 {
    let [a, b] = std::hint::black_box([3_i32, 5]);
    let mut sums = [0_i32; CHAINS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = sum.wrapping_mul(a).wrapping_add(b);
        }
    }
    sums.into_iter().fold(0, i32::wrapping_add) as f32
}

fn burn_f32(steps: u32) -> f32 {
    let [a, b] = std::hint::black_box([0.5_f32, 0.25]);
    let mut sums = [0.0_f32; CHAINS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = *sum * a + b;
        }
    }
    sums.into_iter().sum()
}
