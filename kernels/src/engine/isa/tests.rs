#![expect(clippy::cast_possible_truncation, reason = "numbers that were made small enough")]

use super::rows::{self, exp, round};
use super::*;

/// Reproducible floats in [-1, 1).
fn noise(seed: u32, length: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs `body` for every table but the scalar one, which it may compare with.
fn for_each_isa(body: impl Fn(Isa, &Kernels)) {
    // Read by `tests/emulated`, which says what was executed.
    println!("instruction sets: {}", Names(&Isa::available()));
    for isa in Isa::available() {
        body(isa, isa.kernels());
    }
}

#[test]
fn an_integer_tile_is_the_exact_sum() {
    for_each_isa(|isa, kernels| {
        for (steps, stride, accumulate) in [(1, NR, false), (3, NR + 7, true), (128, 128, true), (128, NR, false)] {
            // The greatest sums that the precisions in use can make: 2047 x 4095 x 256 < 2^31.
            let value = |x: f32, most: f32| round((x * 1.5).clamp(-1.0, 1.0) * most) as i16;
            let a: Vec<[i16; 2]> =
                noise(1, 2 * steps * MR).chunks(2).map(|x| [value(x[0], 4095.0), value(x[1], 4095.0)]).collect();
            let b: Vec<i16> = noise(2, 2 * steps * NR).into_iter().map(|x| value(x, 2047.0)).collect();
            let pairs: Vec<i32> =
                a.iter().map(|&[low, high]| i32::from(low) & 0xffff | i32::from(high) << 16).collect();
            let b_pairs: Vec<i32> = b
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&[low, high]| i32::from(low) & 0xffff | i32::from(high) << 16)
                .collect();
            let before = noise(3, MR * stride);
            let mut sums = before.clone();
            (kernels.dot_i16)(&pairs, &b_pairs, Tile { sums: &mut sums, stride, accumulate });
            for row in 0..MR {
                for column in 0..stride {
                    let at = row * stride + column;
                    let expected = if column < NR {
                        let dot: i64 = (0..2 * steps)
                            .map(|k| {
                                i64::from(a[k / 2 * MR + row][k % 2]) * i64::from(b[(k / 2 * NR + column) * 2 + k % 2])
                            })
                            .sum();
                        dot as f32 + if accumulate { before[at] } else { 0.0 }
                    } else {
                        before[at]
                    };
                    assert_eq!(
                        sums[at].to_bits(),
                        expected.to_bits(),
                        "{isa} {steps} steps, row {row} column {column}"
                    );
                }
            }
        }
    });
}

#[test]
fn an_integer_tile_holds_the_greatest_sum() {
    for_each_isa(|isa, kernels| {
        for (a, b) in [(4095, 2047), (-4095, 2047), (-4095, -2047)] {
            let pairs = vec![a & 0xffff | a << 16; 128 * MR];
            let mut sums = vec![0.0; MR * NR];
            let b_pairs = vec![b & 0xffff | b << 16; 128 * NR];
            (kernels.dot_i16)(&pairs, &b_pairs, Tile { sums: &mut sums, stride: NR, accumulate: false });
            assert_eq!(sums, vec![(a * b * 256) as f32; MR * NR], "{isa}");
        }
    });
}

#[test]
fn a_float_tile_is_the_scalar_one_bit_for_bit() {
    for_each_isa(|isa, kernels| {
        for (steps, stride, accumulate) in [(1, NR, false), (5, NR + 3, true), (256, 64, true)] {
            let (a, b) = (noise(1, steps * MR), noise(2, steps * NR));
            let before = noise(3, MR * stride);
            let [ours, twin] = [kernels, Isa::Scalar.kernels()].map(|kernels| {
                let mut sums = before.clone();
                (kernels.dot_f32)(&a, &b, Tile { sums: &mut sums, stride, accumulate });
                sums
            });
            assert_eq!(bits(&ours), bits(&twin), "{isa}");
            for row in 0..MR {
                for column in 0..NR {
                    let at = row * stride + column;
                    let dot: f64 = (0..steps).map(|k| f64::from(a[k * MR + row]) * f64::from(b[k * NR + column])).sum();
                    let expected = dot + if accumulate { f64::from(before[at]) } else { 0.0 };
                    assert!((f64::from(ours[at]) - expected).abs() < 1e-5, "{isa} row {row} column {column}");
                }
            }
        }
    });
}

#[test]
fn rows_are_the_scalar_ones_bit_for_bit() {
    let twin = Isa::Scalar.kernels();
    for_each_isa(|isa, kernels| {
        for length in [2, 6, 32, 64, 100, 1024] {
            let (row, gain) = (noise(4, length), noise(5, length));
            let both = |run: &dyn Fn(&Kernels) -> Vec<f32>, name: &str| {
                assert_eq!(bits(&run(kernels)), bits(&run(twin)), "{isa} {name} {length}");
            };
            both(
                &|k| {
                    let mut x = row.clone();
                    (k.normalize)(&mut x, &gain, 1e-6);
                    x
                },
                "normalize",
            );
            both(
                &|k| {
                    let mut x = row.clone();
                    (k.scale_outer)(&mut x, 0.3, &gain);
                    x
                },
                "scale_outer",
            );
            both(
                &|k| {
                    let mut x = row.clone();
                    (k.add_scaled)(&mut x, 0.3, &gain);
                    x
                },
                "add_scaled",
            );
            both(
                &|k| {
                    let mut x = row.clone();
                    (k.rotate)(&mut x, &gain[..length / 2], &gain[length / 2..]);
                    x
                },
                "rotate",
            );
            both(
                &|k| {
                    let mut pairs = vec![0; length / 2];
                    let scale = (k.quantize)(&row, 4095.0, &mut pairs);
                    pairs.into_iter().map(|pair| pair as f32).chain([scale]).collect()
                },
                "quantize",
            );
            let mut lanes = [[0.0; NR]; 9];
            lanes.as_flattened_mut().copy_from_slice(&noise(6, 9 * NR));
            both(
                &|k| {
                    let mut x = lanes;
                    (k.scale)(&mut x, &lanes[3]);
                    x.concat()
                },
                "scale",
            );
            both(
                &|k| {
                    let mut out = [0.0; NR / 2];
                    (k.silu_mul)(&lanes[1], &mut out);
                    out.to_vec()
                },
                "silu_mul",
            );
            both(
                &|k| {
                    let (mut x, mut state) = (lanes, Softmax::START);
                    (k.softmax_block)(&mut x, 0, &std::array::from_fn(|lane| lane as u32), &mut state);
                    (k.softmax_block)(&mut x, 9, &std::array::from_fn(|lane| lane as u32), &mut state);
                    [x.concat(), state.most.to_vec(), state.sum.to_vec(), state.correction.to_vec()].concat()
                },
                "softmax_block",
            );
        }
    });
}

#[test]
fn normalize_is_its_formula_and_clears_the_padding() {
    let mut row = noise(1, 40);
    let expected: Vec<f64> = {
        let mean = row[..36].iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / 36.0;
        row[..36].iter().map(|&x| f64::from(x) / (mean + 1e-6).sqrt() * 3.0).collect()
    };
    rows::normalize(&mut row, &[3.0; 36], 1e-6);
    for (ours, expected) in row.iter().zip(&expected) {
        assert!((f64::from(*ours) - expected).abs() < 1e-5);
    }
    assert_eq!(row[36..], [0.0; 4]);
}

#[test]
fn quantize_rounds_to_half_a_step_and_lets_no_nan_pass() {
    for greatest in [2047.0, 4095.0, 8191.0, 16383.0] {
        let row: Vec<f32> = noise(9, 66).into_iter().map(|x| x * 123.0).collect();
        let mut pairs = vec![0; 33];
        let scale = rows::quantize(&row, greatest, &mut pairs);
        for (k, &x) in row.iter().enumerate() {
            let half = pairs[k / 2] >> (16 * (k % 2)) << 16 >> 16;
            assert!((scale * half as f32 - x).abs() <= scale * 0.5001, "{x} became {half} of {scale}");
            assert!(half.abs() <= greatest as i32);
        }
    }
    for (name, bad) in [("NaN", f32::NAN), ("infinity", f32::INFINITY)] {
        for place in [0, 33, 65] {
            let mut row = noise(9, 66);
            row[place] = bad;
            assert!(rows::quantize(&row, 2047.0, &mut [0; 33]).is_nan(), "{name} at {place}");
        }
    }
    let mut pairs = [7; 2];
    assert_eq!((rows::quantize(&[0.0; 4], 2047.0, &mut pairs), pairs), (0.0, [0; 2]));
    assert!(rows::quantize(&[1e-44, 0.0, 0.0, 0.0], 2047.0, &mut pairs) < 1e-40);
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut worst = 0.0_f64;
    for step in 0..1_750_000 {
        let x = -87.0 + 1e-4 * step as f32;
        let expected = f64::from(x).exp();
        worst = worst.max((f64::from(exp(x)) - expected).abs() / expected);
    }
    assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst:e}");
    #[rustfmt::skip]
    let cases = [(0.0, 1.0), (-88.0, 0.0), (f32::NEG_INFINITY, 0.0), (89.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)];
    for (x, expected) in cases {
        assert_eq!(exp(x).to_bits(), expected.to_bits(), "{x}");
    }
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn softmax_over_blocks_is_the_softmax_of_the_whole() {
    let scores: Vec<Lanes> =
        noise(8, 24 * NR).as_chunks::<NR>().0.iter().map(|lanes| lanes.map(|x| 20.0 * x)).collect();
    let last_key = std::array::from_fn(|lane| [0, 5, 7, 8, 15, 16, 23][lane % 7]);
    let mut state = Softmax::START;
    let mut sums = [[0.0; NR]; 1];
    for (index, block) in scores.chunks(8).enumerate() {
        let mut weights = block.to_vec();
        rows::softmax_block(&mut weights, index as u32 * 8, &last_key, &mut state);
        rows::scale(&mut sums, &state.correction);
        for (key, weights) in weights.iter().enumerate() {
            // The value of a key is its number.
            sums[0].iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight * (index * 8 + key) as f32);
        }
    }
    for lane in 0..NR {
        let seen = last_key[lane] as usize + 1;
        let weights: Vec<f64> = scores[..seen].iter().map(|scores| f64::from(scores[lane]).exp()).collect();
        let mean = weights.iter().enumerate().map(|(key, weight)| key as f64 * weight).sum::<f64>()
            / weights.iter().sum::<f64>();
        let ours = f64::from(sums[0][lane] / state.sum[lane]);
        assert!((ours - mean).abs() < 1e-5 * mean.max(1.0), "lane {lane}: {ours} is not {mean}");
    }
}

#[test]
fn names_parse_and_an_absent_set_is_refused_by_name() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
    }
    let error = "sse9".parse::<Isa>().unwrap_err().to_string();
    assert!(error.contains("sse9") && error.contains("avx512-vnni"), "{error}");
    let absent = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
    assert!(absent.require().unwrap_err().to_string().contains("scalar"));
    assert!(Isa::detect().require().is_ok());
}
