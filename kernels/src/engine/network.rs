//! The engine as a [`Network`].

use std::marker::PhantomData;
use std::num::NonZeroUsize;

use tack_core::Digest;
use tack_core::action::PerAction;

use crate::bundle::{Bundle, BundleError, BundleSource, Config, HeadWeights};
use crate::cpu::Adapter;
use crate::engine::Threads;
use crate::engine::forward::{Model, Pass, Sequence, Workspace};
use crate::engine::isa::{Isa, IsaError, Kernels};
use crate::engine::kv::{BLOCK, HeadLayout, KvBlock, KvSequence};
use crate::engine::layer::{LayerPrecision, PackedLayer};
use crate::engine::matrix::Precision;
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
    /// How weights are held.
    pub precision: Precision,
}

impl Default for EngineOptions {
    /// The adapter folded, as many threads as affinity and quota allow, the fastest instructions.
    fn default() -> Self {
        Self {
            adapter: Adapter::Folded,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            isa: None,
            precision: Precision::STANDARD,
        }
    }
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
    model: Model,
    heads: HeadWeights,
    digest: Digest,
    isa: Isa,
    kernels: &'static Kernels,
    pool: Threads,
    workspace: Workspace,
    kind: PhantomData<fn() -> H>,
}

impl<H> std::fmt::Debug for Engine<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.model.config)
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
        let precision = LayerPrecision::all(options.precision);
        let layers = weights.layers.iter().map(|layer| PackedLayer::pack(kernels, &pool, &config, layer, precision));
        let model = Model {
            layout: HeadLayout::new(&config),
            layers: layers.collect(),
            embed_tokens: weights.embed_tokens,
            norm: weights.norm.to_vec(),
            config,
        };
        Ok(Self { model, heads, digest, isa, kernels, pool, workspace: Workspace::default(), kind: PhantomData })
    }

    /// The instruction set that runs.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The hidden states of several token sequences, in one pass over the weights. Each is what it would be alone.
    ///
    /// # Errors
    /// As [`Network::hidden`], for the first sequence that has none.
    pub fn hidden_batch(&mut self, batch: &[&[u32]], stop: Stop<'_>) -> Result<Vec<Vec<f32>>, ForwardError> {
        batch.iter().try_for_each(|tokens| ForwardError::check(tokens, &self.model.config))?;
        let mut sequences: Vec<_> = batch
            .iter()
            .map(|&tokens| {
                let own = (0..tokens.len().div_ceil(BLOCK)).map(|_| KvBlock::zeroed(&self.model.layout)).collect();
                Sequence { tokens, start: 0, cache: KvSequence { shared: Vec::new(), own } }
            })
            .collect();
        let pass = Pass { kernels: self.kernels, pool: &self.pool, stop, model: &self.model };
        pass.run(&mut sequences, &mut self.workspace)
    }
}

impl<H: HeadsKind> Network for Engine<H> {
    type Outputs = H::Outputs;

    fn config(&self) -> &Config {
        &self.model.config
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn hidden(&mut self, tokens: &[u32], stop: Stop<'_>) -> Result<Vec<f32>, ForwardError> {
        let mut hidden = self.hidden_batch(&[tokens], stop)?;
        Ok(hidden.swap_remove(0))
    }

    fn outputs(&self, hidden: &[f32]) -> H::Outputs {
        assert_eq!(hidden.len(), self.model.config.hidden_size, "a hidden state of this network");
        let success: Vec<f32> = self.heads.success.apply(hidden).collect();
        let mut cost = self.heads.cost.apply(hidden);
        // The cost head has a row for each action: the bundle's check saw to it.
        H::name(&success, PerAction::from_fn(|_| cost.next().unwrap_or(f32::NAN)))
    }
}
