//! The engine as a [`Network`].

use std::marker::PhantomData;
use std::num::NonZeroUsize;

use sha2::{Digest as _, Sha256};
use tack_core::Digest;
use tack_core::action::PerAction;

use crate::bundle::{Bundle, BundleError, BundleSource, Config, HeadWeights};
use crate::cpu::Adapter;
use crate::engine::Threads;
use crate::engine::calibrate::{PrecisionPolicy, calibrate};
use crate::engine::forward::{Frame, Pass, Sequence, Workspace};
use crate::engine::isa::{Isa, IsaError, Kernels};
use crate::engine::kv::{BLOCK, HeadLayout, KvBlock, KvSequence};
use crate::engine::layer::{LayerPrecision, PackedLayer};
use crate::engine::prefix_cache::PrefixCache;
use crate::network::{ActionHeads, ForwardError, HeadsKind, Network, Stop};

/// How an engine is built and run.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// What is done with the adapter: folded, or left out. [`Adapter::Apart`] is the reference's alone.
    pub adapter: Adapter,
    /// Threads of one pass. The result does not depend on it.
    pub threads: NonZeroUsize,
    /// The instruction set; `None` takes the fastest that is there. The result does not depend on it.
    pub isa: Option<Isa>,
    /// How weights and inputs are held.
    pub precision: PrecisionPolicy,
    /// Bytes of keys and values that are kept for later passes, at most.
    pub cache_bytes: usize,
}

/// Bytes of keys and values: at the full shape a state of 4,096 tokens takes 963 MB, and a third of another fits beside
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
        }
    }
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
pub enum EngineError {
    /// The bundle was refused.
    #[error("the model bundle was refused")]
    Bundle(#[source] BundleError),
    /// The instruction set that was asked for is not there.
    #[error("the engine cannot run on this processor as asked")]
    Isa(#[source] IsaError),
}

/// The value network on the processor, as fast as it gets.
pub struct Engine<H = ActionHeads> {
    frame: Frame,
    layers: Vec<PackedLayer>,
    heads: HeadWeights,
    digest: Digest,
    isa: Isa,
    kernels: &'static Kernels,
    pool: Threads,
    workspace: Workspace,
    cache: PrefixCache,
    last_pass: PassTokens,
    kind: PhantomData<fn() -> H>,
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
    /// Reads a bundle, checks all of it, and packs it.
    ///
    /// # Errors
    /// [`EngineError::Isa`] if the processor lacks `options.isa`; [`EngineError::Bundle`] for whatever is wrong with the
    /// bundle.
    pub fn load(source: &BundleSource, options: EngineOptions) -> Result<Self, EngineError> {
        let isa = options.isa.map_or(Ok(Isa::detect()), Isa::require).map_err(EngineError::Isa)?;
        let bundle = Bundle::read::<H>(source, options.adapter != Adapter::None).map_err(EngineError::Bundle)?;
        let Bundle { config, weights, heads, digest } = bundle;
        let pool = Threads::new(options.threads);
        let kernels = isa.kernels();
        let frame = Frame {
            layout: HeadLayout::new(&config),
            embed_tokens: weights.embed_tokens,
            norm: weights.norm.to_vec(),
            config,
        };
        let layers = calibrate(kernels, &pool, &frame, &weights.layers, options.precision);
        let cache = PrefixCache::new(seed(digest, &layers), options.cache_bytes, frame.layout.block_bytes());
        let (workspace, last_pass) = (Workspace::default(), PassTokens::default());
        Ok(Self { frame, layers, heads, digest, isa, kernels, pool, workspace, cache, last_pass, kind: PhantomData })
    }

    /// The instruction set that runs.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The precision of each matrix of each layer.
    #[must_use]
    pub fn precisions(&self) -> Vec<LayerPrecision> {
        self.layers.iter().map(PackedLayer::precision).collect()
    }

    /// The hidden states of several token sequences, in one pass over the weights. Each is what it would be alone.
    ///
    /// # Errors
    /// As [`Network::hidden`], for the first sequence that has none.
    pub fn hidden_batch(&mut self, batch: &[&[u32]], stop: Stop<'_>) -> Result<Vec<Vec<f32>>, ForwardError> {
        batch.iter().try_for_each(|tokens| ForwardError::check(tokens, &self.frame.config))?;
        let layout = &self.frame.layout;
        let mut sequences = Vec::new();
        for &tokens in batch {
            let hit = self.cache.find(tokens);
            let start = hit.tokens();
            let own = tokens.len().div_ceil(BLOCK) - hit.shared.len();
            // A block that two sequences begin alike is copied: it belongs to both until here.
            let copied = hit.partial.map(|(block, _)| KvBlock::clone(&block));
            let own = copied.into_iter().chain(std::iter::repeat_with(|| KvBlock::zeroed(layout))).take(own).collect();
            sequences.push(Sequence { tokens: &tokens[start..], start, cache: KvSequence { shared: hit.shared, own } });
        }
        self.last_pass = PassTokens {
            computed: sequences.iter().map(|sequence| sequence.tokens.len()).sum(),
            cached: sequences.iter().map(|sequence| sequence.start).sum(),
        };
        let pass = Pass { kernels: self.kernels, pool: &self.pool, stop, frame: &self.frame, observe: None };
        let hidden = pass.run(&self.layers, &mut sequences, &mut self.workspace)?;
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

    /// Forgets all keys and values, pinned ones too.
    pub fn clear_cache(&mut self) {
        self.cache.reset(seed(self.digest, &self.layers));
    }
}

/// Digest of all that keys and values depend on, beside the tokens.
fn seed(bundle: Digest, layers: &[PackedLayer]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(CACHE_LAYOUT);
    hasher.update(bundle.0);
    for precision in layers.iter().flat_map(PackedLayer::precision) {
        hasher.update(precision.code());
    }
    Digest(hasher.finalize().into())
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
        let success: Vec<f32> = self.heads.success.apply(hidden).collect();
        let mut cost = self.heads.cost.apply(hidden);
        // The cost head has a row for each action: the bundle's check saw to it.
        H::name(&success, PerAction::from_fn(|_| cost.next().unwrap_or(f32::NAN)))
    }
}
