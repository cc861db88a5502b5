//! `heads.safetensors`: the two linear maps from the last hidden state.

use tack_core::Action;

use crate::bundle::Opened;
use crate::bundle::checkpoint::Checkpoint;
use crate::bundle::config::{CONFIG_FILE, Config};
use crate::bundle::error::BundleError;
use crate::bundle::tensor::Tensor;
use crate::network::HeadsKind;

const HEADS_FILE: &str = "heads.safetensors";

/// Both heads, widened to `f32`.
pub(crate) struct HeadWeights {
    pub(crate) success: Head,
    pub(crate) cost: Head,
}

/// `y = W h + b`.
pub(crate) struct Head {
    /// `[rows, D]`.
    weight: Vec<f32>,
    /// `[rows]`.
    bias: Vec<f32>,
}

impl Head {
    /// One output a row, summed in `f64`: at most ten rows, so the exact sum costs nothing.
    pub(crate) fn apply(&self, hidden: &[f32]) -> impl Iterator<Item = f32> {
        self.weight.chunks_exact(hidden.len()).zip(&self.bias).map(move |(weight, &bias)| {
            let products = weight.iter().zip(hidden).map(|(&w, &h)| f64::from(w) * f64::from(h));
            // The one rounding of an output.
            #[expect(clippy::cast_possible_truncation)]
            let output = (products.sum::<f64>() + f64::from(bias)) as f32;
            output
        })
    }
}

impl HeadWeights {
    /// Reads heads of the kind `H`.
    pub(crate) fn read<H: HeadsKind>(opened: &mut Opened<'_>, config: &Config) -> Result<Self, BundleError> {
        let mut tensors = Checkpoint::open_single(opened, HEADS_FILE)?;
        let width = config.hidden_size;
        let expected = [H::SUCCESS_ROWS, width];
        // A file of the other kind is sound in itself, so it gets a better answer than a wrong shape.
        if let Some(found) = tensors.shape("success.weight")
            && let Some(found_kind) = kind_of(found, width)
            && found != expected
        {
            return Err(BundleError::HeadsKind {
                file: opened.source.display(HEADS_FILE),
                expected: expected.to_vec(),
                expected_kind: H::KIND,
                found: found.to_vec(),
                found_kind,
            });
        }
        let mut head = |name: &str, rows| {
            let weight = tensors.take(&format!("{name}.weight"), &[rows, width], CONFIG_FILE)?;
            let bias = tensors.take(&format!("{name}.bias"), &[rows], CONFIG_FILE)?;
            [&weight, &bias].into_iter().try_for_each(Tensor::check_finite)?;
            Ok(Head { weight: weight.to_vec(), bias: bias.to_vec() })
        };
        let success = head("success", H::SUCCESS_ROWS)?;
        let cost = head("cost", Action::COUNT)?;
        tensors.finish("success.weight, success.bias, cost.weight, cost.bias", |_| false)?;
        Ok(Self { success, cost })
    }
}

/// Whose success head has this shape.
fn kind_of(success_weight: &[usize], width: usize) -> Option<&'static str> {
    match success_weight {
        [Action::COUNT, columns] if *columns == width => Some(crate::network::ActionHeads::KIND),
        [1, columns] if *columns == width => Some(crate::network::ComparatorHeads::KIND),
        _ => None,
    }
}
