//! The pack file: packed weights beside the bundle that they were made from, mapped at the next start.
//!
//! ```text
//! layer 0 | layer 1 | ... | header (JSON) | header's length | SHA-256 of the header | magic
//! ```
//!
//! A layer is its matrices' pairs and scales, or floats, one after the other, each from a cache line on; layers begin on
//! pages. The file's name holds the digest of the bundle, and its header that digest, the layout, the policy and the
//! precision of every matrix, and the SHA-256 of every [`BLOCK_BYTES`] of every layer. The header is checked when the file
//! is opened, a layer when a pass first touches it: reading all of it beforehand would double the time of a start.
//!
//! Whatever is wrong with a file, down to one bit, the weights are packed again from the bundle: a pack file can make a
//! start slower, never a result another one. It is written under a temporary name and renamed, so that it is whole or
//! absent.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tack_core::Digest;

use crate::bundle::{Config, FileBytes, Layer};
use crate::engine::Threads;
use crate::engine::aligned::Stored;
use crate::engine::isa::NR;
use crate::engine::layer::{LayerPrecision, PackedLayer, Role, shapes};
use crate::engine::matrix::{Body, Matrix, Precision};

/// Names the layout of panels, which all instruction sets share, and of this file. Another layout, another name.
const LAYOUT: &str = "tack pack 1: pairs of i16 [N/32][K/2][32], little-endian";

/// How the name of a pack file begins and ends.
const PREFIX: &str = "tack-engine.";
const SUFFIX: &str = ".pack";
/// How the name of a file that is being written ends.
const PARTIAL: &str = ".partial";

/// Pack files that stay in one directory: a bundle with its adapter and without, by two policies. Beyond them the oldest
/// are removed when one is written.
pub const PACKS_KEPT: usize = 4;

/// Age in seconds from which on a file that is being written counts as left behind by a process that died.
const ABANDONED_S: u64 = 3600;

const MAGIC: [u8; 8] = *b"tackpack";
/// Length of the header, its digest, the magic.
const TRAILER_BYTES: usize = 8 + 32 + 8;
/// Bytes of a header, at most; that of the full shape has 90,000.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// What is checked at once: small enough to share a layer among threads.
const BLOCK_BYTES: usize = 1 << 20;
/// Where a layer begins.
const PAGE_BYTES: usize = 4096;
/// Where an array begins.
const LINE_BYTES: usize = 64;

#[derive(Serialize, Deserialize)]
struct Header {
    layout: String,
    bundle: Digest,
    policy: String,
    layers: Vec<LayerHeader>,
}

#[derive(Serialize, Deserialize)]
struct LayerHeader {
    begin: usize,
    end: usize,
    /// Bits of weights and inputs, by role.
    precision: [[u8; 2]; Role::ALL.len()],
    blocks: Vec<Digest>,
}

/// Why a pack file is of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackFileError {
    /// There is none, or it may not be read.
    #[error("cannot open `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It may not be written.
    #[error("cannot write `{path}`")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is truncated, damaged, or of another layout, bundle or policy.
    #[error("`{path}`: {what}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was expected, and what was found.
        what: String,
    },
}

/// What a pack file is for.
#[derive(Clone, Copy)]
pub(crate) struct Identity<'a> {
    /// Where it may lie; never empty.
    pub(crate) directories: &'a [&'a Path],
    /// Of the bundle.
    pub(crate) bundle: Digest,
    /// The policy by which precisions were chosen.
    pub(crate) policy: &'a str,
}

impl Identity<'_> {
    /// The file's paths, in the order in which they are tried: the first half of the digest names it, the whole of it is
    /// inside.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let name = format!("{PREFIX}{}.{}{SUFFIX}", &self.bundle.to_string()[..16], self.policy);
        self.directories.iter().map(move |directory| directory.join(&name))
    }
}

/// What must hold before a layer of a pack file is used.
pub(crate) struct Unchecked {
    file: FileBytes,
    bytes: Range<usize>,
    blocks: Vec<Digest>,
    path: PathBuf,
}

impl Unchecked {
    /// Whether every byte of the layer is what was written. If not, the file is removed, so that the next start packs anew.
    pub(crate) fn holds(&self, pool: &Threads) -> bool {
        let damaged = std::sync::atomic::AtomicBool::new(false);
        let blocks = self.file[self.bytes.clone()].chunks(BLOCK_BYTES).zip(&self.blocks);
        pool.for_each(blocks, &|| false, |_, (bytes, expected)| {
            if digest(bytes) != *expected {
                damaged.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let holds = !damaged.into_inner();
        if !holds {
            // Where it cannot be removed, the next start finds the same damage again.
            drop(fs::remove_file(&self.path));
        }
        holds
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Byte ranges of the arrays of a layer, from its beginning, and its length.
fn arrays(config: &Config, precision: LayerPrecision) -> Option<(Vec<[Range<usize>; 2]>, usize)> {
    let mut end = 0_usize;
    let mut take = |bytes: usize| {
        let begin = end.next_multiple_of(LINE_BYTES);
        end = begin.checked_add(bytes)?;
        Some(begin..end)
    };
    let mut all = Vec::new();
    for (shape, precision) in shapes(config).into_iter().zip(precision) {
        let (columns, depth) = (shape.columns.next_multiple_of(NR), shape.depth.next_multiple_of(NR));
        let elements = columns.checked_mul(depth)?;
        all.push(match precision {
            Precision::Float => [take(elements.checked_mul(4)?)?, 0..0],
            Precision::Integer { .. } => [take(elements.checked_mul(2)?)?, take(columns * 4)?],
        });
    }
    Some((all, end))
}

/// The layers of a pack file, each with what must hold before it is used.
type MappedLayers = Vec<(PackedLayer, Unchecked)>;

/// Maps the pack file of a bundle, from the first place where it is and sound as far as its header goes.
///
/// # Errors
/// Why the file in the last place is of no use; of the first that is there, where there is one.
pub(crate) fn open(
    identity: Identity<'_>,
    config: &Config,
    layers: &[Layer],
) -> Result<(PathBuf, MappedLayers), PackFileError> {
    let mut why = None;
    for path in identity.paths() {
        match open_at(&path, identity, config, layers) {
            Ok(layers) => return Ok((path, layers)),
            Err(error @ PackFileError::Refused { .. }) => why = Some(error),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.unwrap_or_else(|| no_place(identity)))
}

fn no_place(identity: Identity<'_>) -> PackFileError {
    let what = format!("has no directory to lie in, of {}", identity.directories.len());
    PackFileError::Refused { path: PathBuf::new(), what }
}

fn open_at(
    path: &Path,
    identity: Identity<'_>,
    config: &Config,
    layers: &[Layer],
) -> Result<MappedLayers, PackFileError> {
    let refused = |what: String| PackFileError::Refused { path: path.to_owned(), what };
    let opened = File::open(path).and_then(|file| FileBytes::map(&file));
    let file = opened.map_err(|source| PackFileError::Open { path: path.to_owned(), source })?;

    // 1. The trailer, and the header that it vouches for.
    let body = file.len().checked_sub(TRAILER_BYTES).ok_or_else(|| refused("has no room for a trailer".into()))?;
    let trailer = &file[body..];
    if cfg!(target_endian = "big") || trailer[40..] != MAGIC {
        return Err(refused("does not end like a pack file: it is truncated, or none".into()));
    }
    let length = trailer[..8].iter().rev().fold(0_u64, |length, &byte| length << 8 | u64::from(byte));
    let begin = usize::try_from(length).ok().filter(|&length| length <= HEADER_BYTES_MAX);
    let begin = begin.and_then(|length| body.checked_sub(length));
    let begin = begin.ok_or_else(|| refused(format!("says that its header has {length} bytes")))?;
    let header = &file[begin..body];
    if digest(header).0 != trailer[8..40] {
        return Err(refused("has a damaged header".into()));
    }
    let header: Header =
        serde_json::from_slice(header).map_err(|error| refused(format!("has a header that is no header: {error}")))?;

    // 2. It is of this layout, bundle and policy, and each layer has the size that follows from them.
    let Header { layout, bundle, policy, layers: headers } = header;
    if (&*layout, bundle, &*policy, headers.len()) != (LAYOUT, identity.bundle, identity.policy, layers.len()) {
        return Err(refused(format!("is `{layout}` of bundle {bundle} by policy {policy}, {} layers", headers.len())));
    }
    let mut packed = Vec::new();
    for (index, (header, layer)) in headers.into_iter().zip(layers).enumerate() {
        let precision = header.precision.map(Precision::from_code);
        let expected =
            precision.iter().all(Option::is_some).then(|| arrays(config, precision.map(Option::unwrap_or_default)));
        let bytes = header.begin..header.end;
        let sound = match &expected {
            Some(Some((_, size))) => {
                bytes.start.is_multiple_of(PAGE_BYTES)
                    && bytes.end <= begin
                    && bytes.start.checked_add(*size) == Some(bytes.end)
                    && header.blocks.len() == size.div_ceil(BLOCK_BYTES)
            }
            _ => false,
        };
        let Some(Some((arrays, _))) = expected.filter(|_| sound) else {
            return Err(refused(format!("has a layer {index} of the wrong size")));
        };

        // 3. Its matrices, where they lie.
        let place = |range: &Range<usize>| bytes.start + range.start..bytes.start + range.end;
        let mut matrices =
            shapes(config).into_iter().zip(arrays.iter().zip(header.precision)).map(|(shape, (arrays, code))| {
                let body = match Precision::from_code(code).unwrap_or_default() {
                    Precision::Float => Body::Float(Stored::Mapped(file.clone(), place(&arrays[0]))),
                    Precision::Integer { weight_bits, activation_bits } => Body::Integer {
                        pairs: Stored::Mapped(file.clone(), place(&arrays[0])),
                        scales: Stored::Mapped(file.clone(), place(&arrays[1])),
                        weight_bits,
                        activation_bits,
                    },
                };
                Matrix { columns: shape.columns.next_multiple_of(NR), depth: shape.depth.next_multiple_of(NR), body }
            });
        let (Some(qkv), Some(o), Some(gate_up), Some(down)) =
            (matrices.next(), matrices.next(), matrices.next(), matrices.next())
        else {
            return Err(refused(format!("has a layer {index} without four matrices")));
        };
        drop(matrices);
        let unchecked = Unchecked { file: file.clone(), bytes, blocks: header.blocks, path: path.to_owned() };
        packed.push((PackedLayer::assemble(layer, [qkv, o, gate_up, down]), unchecked));
    }
    Ok(packed)
}

/// Bytes of a pack file, but for its header.
pub(crate) fn layer_bytes(config: &Config, layers: &[PackedLayer]) -> u64 {
    let size = |layer: &PackedLayer| arrays(config, layer.precision()).map_or(0, |(_, size)| size as u64);
    layers.iter().map(size).sum()
}

/// Writes the pack file of a bundle to the first place that takes it, under a temporary name until it is whole; returns
/// where it is, and its size.
///
/// # Errors
/// Why the last place did not take it.
pub(crate) fn write(
    identity: Identity<'_>,
    pool: &Threads,
    config: &Config,
    layers: &[PackedLayer],
) -> Result<(PathBuf, u64), PackFileError> {
    let mut why = None;
    for path in identity.paths() {
        match write_at(&path, identity, pool, config, layers) {
            Ok(bytes) => {
                path.parent().into_iter().for_each(|directory| tidy(directory, &path));
                return Ok((path, bytes));
            }
            Err(source) => why = Some(PackFileError::Write { path, source }),
        }
    }
    Err(why.unwrap_or_else(|| no_place(identity)))
}

fn write_at(
    path: &Path,
    identity: Identity<'_>,
    pool: &Threads,
    config: &Config,
    layers: &[PackedLayer],
) -> io::Result<u64> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    // The number of a process is its own in its own pid namespace alone, so the name must be new as well.
    let partial = |attempt: u32| path.with_extension(format!("{}.{attempt}{PARTIAL}", std::process::id()));
    let (partial, file) = (0..100)
        .map(partial)
        .find_map(|partial| match File::create_new(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            created => Some(created.map(|file| (partial, file))),
        })
        .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    let written = write_to(file, identity, pool, config, layers).and_then(|bytes| {
        fs::rename(&partial, path)?;
        Ok(bytes)
    });
    // A part of a file is of no use to anybody.
    written.inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// Removes what a directory has beyond [`PACKS_KEPT`] pack files, the oldest first, and what dead processes left behind.
/// A directory that cannot be tidied is left as it is: the next file that is written tries again.
fn tidy(directory: &Path, newest: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut packs = Vec::new();
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Ok(modified) = entry.metadata().and_then(|it| it.modified()) else { continue };
        if name.ends_with(SUFFIX) && path != newest {
            packs.push((modified, path));
        } else if name.ends_with(PARTIAL) && modified.elapsed().is_ok_and(|age| age.as_secs() > ABANDONED_S) {
            drop(fs::remove_file(path));
        }
    }
    packs.sort();
    let surplus = packs.len().saturating_sub(PACKS_KEPT - 1);
    packs.drain(..surplus).for_each(|(_, path)| drop(fs::remove_file(path)));
}

fn write_to(
    file: File,
    identity: Identity<'_>,
    pool: &Threads,
    config: &Config,
    layers: &[PackedLayer],
) -> io::Result<u64> {
    let mut file = BufWriter::new(file);
    let mut headers = Vec::new();
    let mut end = 0_usize;
    for layer in layers {
        let precision = layer.precision();
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let (arrays, size) = arrays(config, precision).ok_or_else(too_large)?;
        let mut bytes = vec![0_u8; size];
        for (role, [first, second]) in Role::ALL.into_iter().zip(arrays) {
            match &layer.matrix(role).body {
                Body::Float(elements) => bytes[first].copy_from_slice(bytemuck::cast_slice(elements)),
                Body::Integer { pairs, scales, .. } => {
                    bytes[first].copy_from_slice(bytemuck::cast_slice(pairs));
                    bytes[second].copy_from_slice(bytemuck::cast_slice(scales));
                }
            }
        }
        let mut blocks = vec![Digest([0; 32]); size.div_ceil(BLOCK_BYTES)];
        pool.for_each(blocks.iter_mut().zip(bytes.chunks(BLOCK_BYTES)), &|| false, |_, (to, bytes)| {
            *to = digest(bytes);
        });
        let begin = end.next_multiple_of(PAGE_BYTES);
        file.write_all(&vec![0; begin - end])?;
        file.write_all(&bytes)?;
        end = begin + size;
        headers.push(LayerHeader { begin, end, precision: precision.map(Precision::code), blocks });
    }
    let (layout, policy) = (LAYOUT.to_owned(), identity.policy.to_owned());
    let header = serde_json::to_vec(&Header { layout, bundle: identity.bundle, policy, layers: headers })?;
    file.write_all(&header)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&digest(&header).0)?;
    file.write_all(&MAGIC)?;
    // Renamed before its bytes are safe, it could be whole in name and empty after a power cut.
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    file.metadata().map(|it| it.len())
}
