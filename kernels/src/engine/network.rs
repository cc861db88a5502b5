//! The engine as a [`Network`].

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tack_core::Digest;
use tack_core::action::PerAction;

use crate::bundle::{BundleError, BundleSource, Config, Layer, Parsed, digest_files, is_adapter_file};
use crate::cpu::Adapter;
use crate::engine::Threads;
use crate::engine::apart::{self, ApartLayer};
use crate::engine::calibrate::{PrecisionPolicy, calibrate};
use crate::engine::forward::{Frame, Pass, Sequence, Workspace};
use crate::engine::isa::{Isa, IsaError, Kernels};
use crate::engine::kv::{BLOCK, HeadLayout, KvBlock, KvSequence};
use crate::engine::layer::{LayerPrecision, PackedLayer, pack_attention};
use crate::engine::matrix::{Matrix, Precision};
#[cfg(doc)]
use crate::engine::pack_file::PACKS_KEPT;
use crate::engine::pack_file::{self, Identity, PackFileError, Unchecked};
use crate::engine::prefix_cache::PrefixCache;
use crate::engine::rounding::{self, AdapterLost};
use crate::engine::stamps;
use crate::network::{ActionHeads, ForwardError, HeadsKind, Network, Stop};

/// How an engine is built and run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// What is done with the adapter: folded, computed beside the weights, or left out.
    pub adapter: Adapter,
    /// Threads of one pass. The result does not depend on it.
    pub threads: NonZeroUsize,
    /// The instruction set; `None` takes the fastest that is there. The result does not depend on it.
    pub isa: Option<Isa>,
    /// How weights and inputs are held.
    pub precision: PrecisionPolicy,
    /// Bytes of keys and values that are kept for later passes, at most.
    pub cache_bytes: usize,
    /// Whether packed weights are kept in a file.
    pub pack_file: PackFile,
    /// Where that file lies.
    pub pack_place: PackPlace,
}

/// Where a pack file lies: about 2 bytes a weight, 4 where a matrix is floats. At most [`PACKS_KEPT`] stay in a directory.
///
/// Any number of processes may start from one place at once: a file is written under a name of its own and renamed, and
/// one that was removed lives on for whoever has mapped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackPlace {
    /// Beside the bundle; where that cannot be written, in another directory, if there is one.
    Beside {
        /// Made when it is needed.
        otherwise: Option<PathBuf>,
    },
    /// In this directory alone, which is made when it is needed.
    In(PathBuf),
}

impl PackPlace {
    /// The directories in the order in which they are tried.
    fn directories<'a>(&'a self, bundle: &'a Path) -> Vec<&'a Path> {
        match self {
            Self::Beside { otherwise } => std::iter::once(bundle).chain(otherwise.as_deref()).collect(),
            Self::In(directory) => vec![directory],
        }
    }
}

/// Whether packed weights are kept in a file, for the next start. A bundle in memory has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackFile {
    /// Where packing takes longer than a blink: from [`PACK_LEAST`] weights on.
    #[default]
    Worthwhile,
    /// For every bundle that is a directory.
    Always,
    /// Neither read nor written.
    Never,
}

/// Weights of a network from which on a pack file is worthwhile: a tenth of a second of packing.
pub const PACK_LEAST: usize = 16 << 20;

/// Bytes of keys and values: at the full shape a state of 4,096 tokens takes 940 MB, and a third of another fits beside
/// it. What is not used is not taken.
const CACHE_BYTES: usize = 5 << 28;

/// Names the layout of keys and values and the order of every sum that they come from.
const CACHE_LAYOUT: &[u8] = b"tack engine, keys and values, 1";

impl Default for EngineOptions {
    /// The adapter folded, as many threads as affinity and quota allow, the fastest instructions.
    fn default() -> Self {
        Self {
            adapter: Adapter::Folded,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            isa: None,
            precision: PrecisionPolicy::default(),
            cache_bytes: CACHE_BYTES,
            pack_file: PackFile::default(),
            pack_place: PackPlace::Beside { otherwise: None },
        }
    }
}

/// A step of building an engine, announced as it begins: whoever has a clock can time them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Headers, shapes, heads and adapter are read.
    Read,
    /// Files that were not seen before are hashed.
    Identify,
    /// The pack file is mapped and its header checked.
    OpenPack,
    /// Every weight is looked at.
    Check,
    /// Weights are rounded and packed.
    Pack,
    /// The pack file is written: so many bytes.
    WritePack {
        /// Its size, but for its header.
        bytes: u64,
    },
    /// Nothing is left to do.
    Ready,
}

/// Where the packed weights came from.
#[derive(Debug)]
pub enum PackSource {
    /// From the bundle; no pack file was asked for.
    Bundle,
    /// From the bundle; a pack file was written for the next start.
    Written {
        /// Why there was none to use.
        reason: PackFileError,
        /// Where it is.
        path: PathBuf,
        /// How large it is.
        bytes: u64,
    },
    /// From the bundle; the pack file could not be written.
    NotWritten(PackFileError),
    /// From the pack file.
    File {
        /// Where it is.
        path: PathBuf,
    },
}

/// What a pass had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTokens {
    /// Tokens that went through the network.
    pub computed: usize,
    /// Tokens whose keys and values were there.
    pub cached: usize,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The bundle was refused.
    #[error("the model bundle was refused")]
    Bundle(#[source] BundleError),
    /// Rounding at the precision that was asked for would undo the adapter.
    #[error(
        "folded into `{}` of layer {} and rounded, {:.2} of the adapter's change is there, and the weights are off by {:.1e}; \
         keep the adapter apart, or let the precision be measured",
        .0.projection, .0.layer, .0.kept, .0.rounding
    )]
    AdapterLost(AdapterLost),
    /// The instruction set that was asked for is not there.
    #[error("the engine cannot run on this processor as asked")]
    Isa(#[source] IsaError),
}

/// The value network on the processor, as fast as it gets.
pub struct Engine<H = ActionHeads> {
    frame: Frame,
    /// The originals: mapped, not read, unless a layer must be packed again.
    parsed: Parsed,
    layers: Vec<CheckedLayer>,
    /// Of each file, by name, and of all together.
    file_digests: BTreeMap<String, Digest>,
    digest: Digest,
    isa: Isa,
    kernels: &'static Kernels,
    pool: Threads,
    workspace: Workspace,
    cache: PrefixCache,
    last_pass: PassTokens,
    last_cached: Vec<usize>,
    pack_source: PackSource,
    repacked: usize,
    /// Whether the adapter is beside the weights.
    apart: bool,
    kind: PhantomData<fn() -> H>,
}

/// A layer, and what must hold before it is used for the first time.
struct CheckedLayer {
    packed: PackedLayer,
    unchecked: Option<Unchecked>,
}

impl<H> std::fmt::Debug for Engine<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.frame.config)
            .field("digest", &self.digest)
            .field("isa", &self.isa)
            .field("threads", &self.pool.threads())
            .finish_non_exhaustive()
    }
}

impl<H: HeadsKind> Engine<H> {
    /// Reads a bundle, checks it, and packs it or finds it packed.
    ///
    /// # Errors
    /// [`EngineError::Isa`] if the processor lacks `options.isa`; [`EngineError::Bundle`] for whatever is wrong with the
    /// bundle; [`EngineError::AdapterLost`] at a precision that is fixed and too coarse for the adapter.
    pub fn load(source: &BundleSource, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::load_in_phases(source, options, &mut |_| {})
    }

    /// The same; `phase` hears of each step as it begins.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_in_phases(
        source: &BundleSource,
        options: &EngineOptions,
        phase: &mut dyn FnMut(LoadPhase),
    ) -> Result<Self, EngineError> {
        let isa = options.isa.map_or(Ok(Isa::detect()), Isa::require).map_err(EngineError::Isa)?;
        let kernels = isa.kernels();

        // 1. What there is.
        phase(LoadPhase::Read);
        let mut parsed = Parsed::read::<H>(source, options.adapter != Adapter::None).map_err(EngineError::Bundle)?;
        let config = parsed.config.clone();
        let frame = Frame {
            layout: HeadLayout::new(&config),
            embed_tokens: parsed.weights.embed_tokens.clone(),
            norm: parsed.weights.norm.to_vec(),
            config,
        };
        let pool = Threads::new(options.threads);
        let large = weights_of(&parsed) >= PACK_LEAST;
        let worthwhile = match options.pack_file {
            PackFile::Always => true,
            PackFile::Never => false,
            PackFile::Worthwhile => large,
        };
        let precision = match options.precision {
            PrecisionPolicy::Worthwhile if large => PrecisionPolicy::Measured,
            PrecisionPolicy::Worthwhile => PrecisionPolicy::Fixed(Precision::Float),
            given => given,
        };
        let directory = source.as_directory().filter(|_| worthwhile);
        let places = directory.map(|directory| options.pack_place.directories(directory));

        // 2. Which bundle it is.
        phase(LoadPhase::Identify);
        let digests = match (directory, &places) {
            (Some(directory), Some(places)) => stamps::digests(directory, places, &parsed.files).0,
            _ => parsed.files.iter().map(|(_, bytes)| bytes.digest()).collect(),
        };
        let file_digests: BTreeMap<_, _> = parsed.files.iter().map(|(name, _)| name.clone()).zip(digests).collect();
        let digest = digest_files(file_digests.iter().map(|(name, digest)| (name.as_str(), *digest)));

        // 3. Its packed weights, from the file or anew.
        let policy = precision.to_string();
        let apart = options.adapter == Adapter::Apart;
        let lora =
            if apart { apart::detach(&mut parsed.weights.layers).map_err(EngineError::Bundle)? } else { Vec::new() };
        // Without the adapter the packed weights are the base's, whoever else uses them.
        let of_base = file_digests.iter().filter(|(name, _)| !(apart && is_adapter_file(name)));
        let packed_digest = digest_files(of_base.map(|(name, digest)| (name.as_str(), *digest)));
        let identity =
            places.as_ref().map(|directories| Identity { directories, bundle: packed_digest, policy: &policy });
        let opened = identity.map(|identity| {
            phase(LoadPhase::OpenPack);
            pack_file::open(identity, &frame.config, &parsed.weights.layers)
        });
        let (mut layers, pack_source): (Vec<_>, _) = match opened {
            Some(Ok((path, layers))) => {
                let layers = layers.into_iter().map(|(packed, it)| CheckedLayer { packed, unchecked: Some(it) });
                (layers.collect(), PackSource::File { path })
            }
            not_opened => {
                phase(LoadPhase::Check);
                parsed.weights.check_finite().map_err(EngineError::Bundle)?;
                phase(LoadPhase::Pack);
                let mut packed = calibrate(kernels, &pool, &frame, &parsed.weights.layers, precision);
                check_folded(&packed, &mut parsed).map_err(EngineError::Bundle)?;
                let mut packed_layers: Vec<&mut PackedLayer> = packed.iter_mut().collect();
                let measured = precision == PrecisionPolicy::Measured;
                keep_adapter(kernels, &pool, &frame.config, &parsed.weights.layers, &mut packed_layers, measured)?;
                let pack_source = match (identity, not_opened) {
                    (Some(identity), Some(Err(reason))) => {
                        phase(LoadPhase::WritePack { bytes: pack_file::layer_bytes(&frame.config, &packed) });
                        match pack_file::write(identity, &pool, &frame.config, &packed) {
                            Ok((path, bytes)) => PackSource::Written { reason, path, bytes },
                            Err(error) => PackSource::NotWritten(error),
                        }
                    }
                    _ => PackSource::Bundle,
                };
                (packed.into_iter().map(|packed| CheckedLayer { packed, unchecked: None }).collect(), pack_source)
            }
        };
        for (CheckedLayer { packed, .. }, lora) in layers.iter_mut().zip(&lora) {
            packed.apart = ApartLayer::pack(kernels, &pool, &frame.config, lora);
        }
        phase(LoadPhase::Ready);
        let cache = PrefixCache::new(seed(digest, &layers, apart), options.cache_bytes, frame.layout.block_bytes());
        Ok(Self {
            frame,
            parsed,
            layers,
            file_digests,
            digest,
            isa,
            kernels,
            pool,
            workspace: Workspace::default(),
            cache,
            last_pass: PassTokens::default(),
            last_cached: Vec::new(),
            pack_source,
            repacked: 0,
            apart,
            kind: PhantomData,
        })
    }

    /// Replaces the adapter and the heads by those of another bundle, whose base is not looked at; the packed base stays.
    ///
    /// Weights keep the precision that they have, unless the new adapter would not survive the rounding: then they become finer.
    /// Keys and values of before are forgotten.
    ///
    /// # Errors
    /// [`EngineError::Bundle`] for whatever is wrong with the adapter; then the engine is as before.
    pub fn swap_adapter(&mut self, source: &BundleSource) -> Result<(), EngineError> {
        let replaced = self.parsed.replace_adapter::<H>(source).map_err(EngineError::Bundle)?;
        if self.apart {
            self.swap_apart().map_err(EngineError::Bundle)?;
        } else {
            self.swap_folded()?;
        }
        self.file_digests.retain(|name, _| self.parsed.files.iter().any(|(file, _)| file == name));
        for (name, bytes) in self.parsed.files.iter().filter(|(name, _)| replaced.contains(name)) {
            self.file_digests.insert(name.clone(), bytes.digest());
        }
        self.digest = digest_files(self.file_digests.iter().map(|(name, digest)| (name.as_str(), *digest)));
        self.cache.reset(seed(self.digest, &self.layers, self.apart));
        Ok(())
    }

    fn swap_apart(&mut self) -> Result<(), BundleError> {
        let lora = apart::detach(&mut self.parsed.weights.layers)?;
        for (CheckedLayer { packed, .. }, lora) in self.layers.iter_mut().zip(&lora) {
            packed.apart = ApartLayer::pack(self.kernels, &self.pool, &self.frame.config, lora);
        }
        Ok(())
    }

    fn swap_folded(&mut self) -> Result<(), EngineError> {
        for (layer, checked) in self.parsed.weights.layers.iter().zip(&mut self.layers) {
            let precision = checked.packed.precision();
            // What an unchecked layer keeps must be checked before it is part of a layer that counts as checked.
            if checked.unchecked.take().is_some_and(|unchecked| !unchecked.holds(&self.pool)) {
                checked.packed = PackedLayer::pack(self.kernels, &self.pool, &self.frame.config, layer, precision);
                self.repacked += 1;
            } else {
                let packed = &mut checked.packed;
                let old = [&mut packed.qkv, &mut packed.o_proj].map(|it| Some(std::mem::replace(it, Matrix::EMPTY)));
                (packed.qkv, packed.o_proj) =
                    pack_attention(self.kernels, &self.pool, &self.frame.config, layer, precision, old);
            }
        }
        let mut packed: Vec<&mut PackedLayer> = self.layers.iter_mut().map(|layer| &mut layer.packed).collect();
        let layers = &self.parsed.weights.layers;
        keep_adapter(self.kernels, &self.pool, &self.frame.config, layers, &mut packed, true)
    }

    /// The instruction set that runs.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads of a pass.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// What a receipt calls the precision of this network: single only where no matrix is rounded to integers.
    #[must_use]
    pub fn precision(&self) -> tack_core::Precision {
        let mut matrices = self.layers.iter().flat_map(|layer| layer.packed.precision());
        if matrices.all(|it| it == Precision::Float) { tack_core::Precision::F32 } else { tack_core::Precision::Int12 }
    }

    /// The precision of each matrix of each layer.
    #[must_use]
    pub fn precisions(&self) -> Vec<LayerPrecision> {
        self.layers.iter().map(|layer| layer.packed.precision()).collect()
    }

    /// Where the packed weights came from.
    #[must_use]
    pub fn pack_source(&self) -> &PackSource {
        &self.pack_source
    }

    /// Layers of the pack file that turned out to be damaged, and were packed again from the bundle.
    #[must_use]
    pub fn repacked_layers(&self) -> usize {
        self.repacked
    }

    /// The hidden states of several token sequences, in one pass over the weights. Each is what it would be alone.
    ///
    /// # Errors
    /// As [`Network::hidden`], for the first sequence that has none.
    pub fn hidden_batch(&mut self, batch: &[&[u32]], stop: Stop<'_>) -> Result<Vec<Vec<f32>>, ForwardError> {
        batch.iter().try_for_each(|tokens| ForwardError::check(tokens, &self.frame.config))?;
        let layout = &self.frame.layout;

        // 1. What is there of each sequence; a block that begins alike is copied and written on.
        let mut sequences = Vec::new();
        for &tokens in batch {
            let hit = self.cache.find(tokens);
            let start = hit.tokens();
            let own = tokens.len().div_ceil(BLOCK) - hit.shared.len();
            let copied = hit.partial.map(|(block, _)| KvBlock::clone(&block));
            let own = copied.into_iter().chain(std::iter::repeat_with(|| KvBlock::zeroed(layout))).take(own).collect();
            sequences.push(Sequence { tokens: &tokens[start..], start, cache: KvSequence { shared: hit.shared, own } });
        }
        self.last_cached = sequences.iter().map(|sequence| sequence.start).collect();
        self.last_pass = PassTokens {
            computed: sequences.iter().map(|sequence| sequence.tokens.len()).sum(),
            cached: self.last_cached.iter().sum(),
        };

        // 2. Layer by layer; one that came from a file is checked when it is first touched.
        let pass = Pass { kernels: self.kernels, pool: &self.pool, stop, frame: &self.frame, observe: None };
        let mut rows = pass.begin(&sequences, &mut self.workspace);
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if layer.unchecked.as_ref().is_some_and(|unchecked| !unchecked.holds(&self.pool)) {
                let precision = layer.packed.precision();
                let original = &self.parsed.weights.layers[index];
                let apart = std::mem::take(&mut layer.packed.apart);
                layer.packed = PackedLayer::pack(self.kernels, &self.pool, &self.frame.config, original, precision);
                layer.packed.apart = apart;
                self.repacked += 1;
            }
            layer.unchecked = None;
            pass.layer(index, &layer.packed, &mut sequences, &mut rows, &mut self.workspace)?;
        }
        let hidden = pass.finish(sequences.len(), &self.workspace);

        // 3. What was computed is kept.
        for (Sequence { cache: KvSequence { shared, own }, .. }, tokens) in sequences.into_iter().zip(batch) {
            self.cache.insert(tokens, shared.len(), own);
        }
        Ok(hidden)
    }

    /// What the last pass computed and what it found.
    #[must_use]
    pub fn last_pass(&self) -> PassTokens {
        self.last_pass
    }

    /// The same of each sequence of the last pass: how many of its tokens were there.
    #[must_use]
    pub fn last_cached(&self) -> &[usize] {
        &self.last_cached
    }

    /// Keeps the keys and values that `tokens` begins with, as far as a pass has computed them, until they are unpinned as
    /// often; returns how many tokens those are, a multiple of 64.
    pub fn pin(&mut self, tokens: &[u32]) -> usize {
        self.cache.pin(tokens)
    }

    /// Takes back one [`Engine::pin`] of the same tokens.
    pub fn unpin(&mut self, tokens: &[u32]) -> usize {
        self.cache.unpin(tokens)
    }

    /// Bytes of keys and values that are kept now.
    #[must_use]
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Bytes of activations: what the largest pass so far needed, kept for the next.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        self.workspace.bytes()
    }

    /// Forgets all keys and values, pinned ones too.
    pub fn clear_cache(&mut self) {
        self.cache.reset(seed(self.digest, &self.layers, self.apart));
    }
}

/// Digest of all that keys and values depend on, beside the tokens.
fn seed(bundle: Digest, layers: &[CheckedLayer], apart: bool) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(CACHE_LAYOUT);
    hasher.update([u8::from(apart)]);
    hasher.update(bundle.0);
    for precision in layers.iter().flat_map(|layer| layer.packed.precision()) {
        hasher.update(precision.code());
    }
    Digest(hasher.finalize().into())
}

/// Weights of the layers.
fn weights_of(parsed: &Parsed) -> usize {
    let of_layer = |layer: &Layer| {
        let attention = [&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj];
        attention.map(|projection| projection.weight.len()).iter().sum::<usize>() + 3 * layer.gate_proj.len()
    };
    parsed.weights.layers.iter().map(of_layer).sum()
}

/// Makes those matrices finer in which an adapter would not survive the rounding; refuses it where they may not become so.
fn keep_adapter(
    kernels: &Kernels,
    pool: &Threads,
    config: &Config,
    layers: &[Layer],
    packed: &mut [&mut PackedLayer],
    measured: bool,
) -> Result<(), EngineError> {
    loop {
        let held: Vec<&PackedLayer> = packed.iter().map(|layer| &**layer).collect();
        let lost = rounding::lost(kernels, pool, config, layers, &held);
        let Some(&first) = lost.first() else { return Ok(()) };
        if !measured {
            return Err(EngineError::AdapterLost(first));
        }
        // Each turn makes them finer by a step, and in floats nothing is lost.
        for lost in lost {
            let layer = &mut *packed[lost.layer];
            let mut precision = layer.precision();
            let held = &mut precision[lost.role as usize];
            *held = Precision::LADDER.into_iter().skip_while(|it| it != held).nth(1).unwrap_or(Precision::Float);
            (layer.qkv, layer.o_proj) =
                pack_attention(kernels, pool, config, &layers[lost.layer], precision, [None, None]);
        }
    }
}

/// Weights and adapter are finite; a sum of both may not be.
fn check_folded(packed: &[PackedLayer], parsed: &mut Parsed) -> Result<(), BundleError> {
    for (packed, layer) in packed.iter().zip(&mut parsed.weights.layers) {
        if !(packed.qkv.is_finite() && packed.o_proj.is_finite()) {
            // Folding as the reference does finds which element it is.
            layer.projections_mut().into_iter().try_for_each(|(_, projection)| projection.fold())?;
        }
    }
    Ok(())
}

impl<H: HeadsKind> Network for Engine<H> {
    type Outputs = H::Outputs;

    fn config(&self) -> &Config {
        &self.frame.config
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn hidden(&mut self, tokens: &[u32], stop: Stop<'_>) -> Result<Vec<f32>, ForwardError> {
        let mut hidden = self.hidden_batch(&[tokens], stop)?;
        Ok(hidden.swap_remove(0))
    }

    fn outputs(&self, hidden: &[f32]) -> H::Outputs {
        assert_eq!(hidden.len(), self.frame.config.hidden_size, "a hidden state of this network");
        let success: Vec<f32> = self.parsed.heads.success.apply(hidden).collect();
        let mut cost = self.parsed.heads.cost.apply(hidden);
        // The cost head has a row for each action: the bundle's check saw to it.
        H::name(&success, PerAction::from_fn(|_| cost.next().unwrap_or(f32::NAN)))
    }
}
