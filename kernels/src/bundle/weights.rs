//! The weights of the network, under the names of Hugging Face's checkpoint.

use crate::bundle::adapter::Lora;
use crate::bundle::error::BundleError;
use crate::bundle::tensor::{Label, Tensor};

/// All of it, adapter included; each shape follows from the configuration.
pub(crate) struct Weights {
    /// `[V, D]`.
    pub(crate) embed_tokens: Tensor,
    pub(crate) layers: Vec<Layer>,
    /// `[D]`.
    pub(crate) norm: Tensor,
}

/// One layer.
pub(crate) struct Layer {
    /// `[D]`.
    pub(crate) input_layernorm: Tensor,
    /// `[H E, D]`.
    pub(crate) q_proj: Projection,
    /// `[G E, D]`.
    pub(crate) k_proj: Projection,
    /// `[G E, D]`.
    pub(crate) v_proj: Projection,
    /// `[E]`.
    pub(crate) q_norm: Tensor,
    /// `[E]`.
    pub(crate) k_norm: Tensor,
    /// `[D, H E]`.
    pub(crate) o_proj: Projection,
    /// `[D]`.
    pub(crate) post_attention_layernorm: Tensor,
    /// `[F, D]`.
    pub(crate) gate_proj: Tensor,
    /// `[F, D]`.
    pub(crate) up_proj: Tensor,
    /// `[D, F]`.
    pub(crate) down_proj: Tensor,
}

/// A linear layer that an adapter may change: `y = W x + scale B (A x)`.
pub(crate) struct Projection {
    /// W: `[out, in]`.
    pub(crate) weight: Tensor,
    pub(crate) lora: Option<Lora>,
}

impl Projection {
    /// Replaces W by `W + scale B A`, computed in `f32` and kept in `f32`, so that no small change is rounded away.
    ///
    /// # Errors
    /// [`BundleError::FoldNotFinite`] if a sum overflows.
    pub(crate) fn fold(&mut self) -> Result<(), BundleError> {
        let Some(Lora { a, b, scale }) = self.lora.take() else {
            return Ok(());
        };
        let (rows, columns, rank) = (self.weight.rows, self.weight.columns, a.rows);
        let mut folded = self.weight.to_vec();
        let a_elements = a.to_vec();
        let mut b_row = vec![0.0; rank];
        let mut change = vec![0.0_f32; columns];
        for (row, weight) in folded.chunks_exact_mut(columns).enumerate() {
            b.read(row, 0, &mut b_row);
            change.fill(0.0);
            for (&b, a) in b_row.iter().zip(a_elements.chunks_exact(columns)) {
                change.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
            }
            weight.iter_mut().zip(&change).for_each(|(weight, change)| *weight += scale * change);
        }
        let folded = Tensor::owned(self.weight.label.clone(), rows, columns, folded);
        if let Some((index, found)) = folded.first_not_finite() {
            let (Label { file, .. }, Label { tensor, .. }) = (b.label, folded.label);
            return Err(BundleError::FoldNotFinite { file, tensor, index, found });
        }
        self.weight = folded;
        Ok(())
    }
}

impl Weights {
    /// Looks at every number once.
    ///
    /// # Errors
    /// [`BundleError::NotFinite`] names the first that is NaN or infinite.
    pub(crate) fn check_finite(&self) -> Result<(), BundleError> {
        let layers = self.layers.iter().flat_map(Layer::tensors);
        [&self.embed_tokens, &self.norm].into_iter().chain(layers).try_for_each(Tensor::check_finite)
    }
}

impl Layer {
    /// The four that an adapter may change, with PEFT's names for them.
    pub(crate) fn projections_mut(&mut self) -> [(&'static str, &mut Projection); 4] {
        [
            ("q_proj", &mut self.q_proj),
            ("k_proj", &mut self.k_proj),
            ("v_proj", &mut self.v_proj),
            ("o_proj", &mut self.o_proj),
        ]
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let plain = [
            &self.input_layernorm,
            &self.q_norm,
            &self.k_norm,
            &self.post_attention_layernorm,
            &self.gate_proj,
            &self.up_proj,
            &self.down_proj,
        ];
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        let of_projections = projections.into_iter().flat_map(|projection| {
            let lora = projection.lora.iter().flat_map(|lora| [&lora.a, &lora.b]);
            std::iter::once(&projection.weight).chain(lora)
        });
        plain.into_iter().chain(of_projections)
    }
}
