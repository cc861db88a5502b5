//! The forward pass, from tokens to the last hidden state, as numbered paragraphs.

use std::marker::PhantomData;
use std::num::NonZeroUsize;

use tack_core::Digest;
use tack_core::action::PerAction;

use crate::bundle::{Bundle, BundleError, BundleSource, Config, HeadWeights, Layer, Projection, Tensor, Weights};
use crate::cpu::attention::{HeadShape, KeysValues, attention};
use crate::cpu::gemm::{Into, gemm};
use crate::cpu::pool::Pool;
use crate::cpu::rms_norm::rms_norm;
use crate::cpu::rope::Rope;
use crate::network::{ActionHeads, ForwardError, HeadsKind, Network, Stop};
use crate::sys::simd::Isa;

/// What is done with the adapter of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// Added to the weights once, at load: `W + scale B A`, in `f32`. Costs 4 bytes for each weight that it changes.
    Folded,
    /// Computed beside the weights in every pass: `W x + scale B (A x)`. About 1 % more work.
    Apart,
    /// Not read; the bundle need not have one. For training and comparison: the estimates are those of the base.
    None,
}

/// How a network is loaded and run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is done with the adapter.
    pub adapter: Adapter,
    /// Threads of one pass. The result does not depend on it.
    pub threads: NonZeroUsize,
}

impl Default for Options {
    /// The adapter folded, as many threads as the process may use.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { adapter: Adapter::Folded, threads }
    }
}

/// The value network on the processor; a comparator is `CpuNetwork<ComparatorHeads>`.
pub struct CpuNetwork<H = ActionHeads> {
    config: Config,
    weights: Weights,
    heads: HeadWeights,
    digest: Digest,
    threads: NonZeroUsize,
    isa: Isa,
    kind: PhantomData<fn() -> H>,
}

impl<H> std::fmt::Debug for CpuNetwork<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, digest, threads, isa, .. } = self;
        f.debug_struct("CpuNetwork")
            .field("config", config)
            .field("digest", digest)
            .field("threads", threads)
            .field("isa", isa)
            .finish_non_exhaustive()
    }
}

impl<H: HeadsKind> CpuNetwork<H> {
    /// Reads a bundle, checks all of it, and folds its adapter if asked to.
    ///
    /// # Errors
    /// [`BundleError`] names the file, the tensor or field, what was expected and what was found.
    pub fn load(source: &BundleSource, options: Options) -> Result<Self, BundleError> {
        let Options { adapter, threads } = options;
        let mut bundle = Bundle::read::<H>(source, adapter != Adapter::None)?;
        if adapter == Adapter::Folded {
            for layer in &mut bundle.weights.layers {
                layer.projections_mut().into_iter().try_for_each(|(_, projection)| projection.fold())?;
            }
        }
        let Bundle { config, weights, heads, digest } = bundle;
        Ok(Self { config, weights, heads, digest, threads, isa: Isa::detect(), kind: PhantomData })
    }

    /// The instruction set that the inner loop was compiled for: `avx2+fma` or `portable`.
    #[must_use]
    pub fn isa(&self) -> &'static str {
        self.isa.name()
    }
}

impl<H: HeadsKind> Network for CpuNetwork<H> {
    type Outputs = H::Outputs;

    fn config(&self) -> &Config {
        &self.config
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn hidden(&mut self, tokens: &[u32], stop: Stop<'_>) -> Result<Vec<f32>, ForwardError> {
        let Self { config, weights, threads, isa, .. } = self;
        ForwardError::check(tokens, config)?;
        let pass = Pass {
            config,
            isa: *isa,
            pool: Pool { threads: *threads, stop },
            rope: Rope::new(tokens.len(), config.head_dim, config.rope_theta),
        };

        // 1. The residual stream [T, D] begins as the embedding of each token.
        let width = config.hidden_size;
        let mut residual = vec![0.0; tokens.len() * width];
        for (row, &token) in residual.chunks_exact_mut(width).zip(tokens) {
            weights.embed_tokens.read(token as usize, 0, row);
        }

        // 2. Each layer adds to it. The last is asked for its last row alone, since nothing reads the others.
        let last = weights.layers.len() - 1;
        for (index, layer) in weights.layers.iter().enumerate() {
            let rows = if index == last { 1 } else { tokens.len() };
            residual = pass.layer(layer, residual, rows)?;
        }

        // 3. The final norm.
        rms_norm(&mut residual, &weights.norm.to_vec(), config.rms_norm_eps);
        Ok(residual)
    }

    fn outputs(&self, hidden: &[f32]) -> H::Outputs {
        assert_eq!(hidden.len(), self.config.hidden_size, "a hidden state of this network");
        let success: Vec<f32> = self.heads.success.apply(hidden).collect();
        let mut cost = self.heads.cost.apply(hidden);
        // The cost head has a row for each action: the bundle's check saw to it.
        H::name(&success, PerAction::from_fn(|_| cost.next().unwrap_or(f32::NAN)))
    }
}

/// What every layer of one pass shares.
struct Pass<'a> {
    config: &'a Config,
    isa: Isa,
    pool: Pool<'a>,
    rope: Rope,
}

impl Pass<'_> {
    /// One layer: the residual stream `[T, D]` in, its last `rows` rows `[rows, D]` out.
    fn layer(&self, layer: &Layer, residual: Vec<f32>, rows: usize) -> Result<Vec<f32>, ForwardError> {
        let config = self.config;
        let width = config.hidden_size;
        let tokens = residual.len() / width;
        let first_row = tokens - rows;

        // 1. Norm. Keys and values of every token, queries of the wanted rows.
        let mut x = residual.clone();
        rms_norm(&mut x, &layer.input_layernorm.to_vec(), config.rms_norm_eps);
        let mut k = self.project(&x, &layer.k_proj)?;
        let v = self.project(&x, &layer.v_proj)?;
        let mut q = self.project(&x[first_row * width..], &layer.q_proj)?;

        // 2. Norm of each head of q and k, then the rotation by its position.
        rms_norm(&mut q, &layer.q_norm.to_vec(), config.rms_norm_eps);
        rms_norm(&mut k, &layer.k_norm.to_vec(), config.rms_norm_eps);
        let turn = |row: (usize, &mut [f32])| self.rope.turn(row.0, row.1);
        (first_row..).zip(q.chunks_exact_mut(config.query_size())).for_each(turn);
        (0..).zip(k.chunks_exact_mut(config.key_value_size())).for_each(turn);

        // 3. Attention.
        let shape = HeadShape {
            query_heads: config.num_attention_heads,
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        let mut attended = vec![0.0; q.len()];
        attention(self.isa, &self.pool, &q, &KeysValues::new(&k, &v, shape), &mut attended)?;

        // 4. Its projection joins the residual stream.
        let mut residual = residual;
        residual.drain(..first_row * width);
        self.project_into(&attended, &layer.o_proj, &mut residual, Into::Add)?;

        // 5. Norm, then SwiGLU: down(silu(gate(x)) * up(x)) joins the residual stream.
        let mut x = residual.clone();
        rms_norm(&mut x, &layer.post_attention_layernorm.to_vec(), config.rms_norm_eps);
        let mut gate = self.multiply(&x, &layer.gate_proj)?;
        let up = self.multiply(&x, &layer.up_proj)?;
        gate.iter_mut().zip(&up).for_each(|(gate, up)| *gate = silu(*gate) * up);
        gemm(self.isa, &self.pool, &gate, &layer.down_proj, &mut residual, Into::Add)?;
        Ok(residual)
    }

    /// `x Wᵀ` in a matrix of its own.
    fn multiply(&self, x: &[f32], weight: &Tensor) -> Result<Vec<f32>, ForwardError> {
        let mut y = vec![0.0; x.len() / weight.columns * weight.rows];
        gemm(self.isa, &self.pool, x, weight, &mut y, Into::Overwrite)?;
        Ok(y)
    }

    /// A projection with its adapter, in a matrix of its own.
    fn project(&self, x: &[f32], projection: &Projection) -> Result<Vec<f32>, ForwardError> {
        let mut y = vec![0.0; x.len() / projection.weight.columns * projection.weight.rows];
        self.project_into(x, projection, &mut y, Into::Overwrite)?;
        Ok(y)
    }

    /// `y (+)= x Wᵀ + scale (x Aᵀ) Bᵀ`.
    fn project_into(&self, x: &[f32], projection: &Projection, y: &mut [f32], into: Into) -> Result<(), ForwardError> {
        gemm(self.isa, &self.pool, x, &projection.weight, y, into)?;
        if let Some(lora) = &projection.lora {
            let mut low = self.multiply(x, &lora.a)?;
            for low in &mut low {
                *low *= lora.scale;
            }
            gemm(self.isa, &self.pool, &low, &lora.b, y, Into::Add)?;
        }
        Ok(())
    }
}

/// `x * sigmoid(x)`. For x below -88 the exponential is infinite and the quotient -0, its limit.
fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
