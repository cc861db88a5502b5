//! What a backend does: tokens in, the last hidden state and the outputs of two heads out.

use tack_core::transition::ComparatorOutputs;
use tack_core::{Action, Digest, HeadOutputs, PerAction};

use crate::bundle::Config;

/// The value network on some backend.
pub trait Network {
    /// What the heads give: [`HeadOutputs`], or [`ComparatorOutputs`].
    type Outputs;

    /// The shape of the network.
    fn config(&self) -> &Config;

    /// SHA-256 over the files that the network was built from ([`digest_files`](crate::bundle::digest_files)).
    ///
    /// A bundle whose adapter was not loaded has another digest than the same bundle with it.
    fn digest(&self) -> Digest;

    /// The hidden state `[D]` of the last token, after the final norm.
    ///
    /// `tokens` are unpadded: the last one is the last token of the text.
    ///
    /// # Errors
    /// [`ForwardError::Empty`], [`ForwardError::TooLong`] and [`ForwardError::UnknownToken`] for input that has no
    /// hidden state; [`ForwardError::Stopped`] if `stop` said so before the pass was over.
    fn hidden(&mut self, tokens: &[u32], stop: Stop<'_>) -> Result<Vec<f32>, ForwardError>;

    /// Applies both heads to a hidden state that this network gave.
    ///
    /// # Panics
    /// If `hidden` is not `[D]`.
    fn outputs(&self, hidden: &[f32]) -> Self::Outputs;

    /// The whole pass: [`Network::hidden`], then [`Network::outputs`].
    ///
    /// # Errors
    /// As [`Network::hidden`].
    fn forward(&mut self, tokens: &[u32], stop: Stop<'_>) -> Result<Self::Outputs, ForwardError> {
        let hidden = self.hidden(tokens, stop)?;
        Ok(self.outputs(&hidden))
    }
}

/// Asked again and again during a pass, from every thread of it; a pass ends soon after the answer is `true`.
#[derive(Clone, Copy)]
pub struct Stop<'a>(&'a (dyn Fn() -> bool + Sync));

impl<'a> Stop<'a> {
    /// Runs to the end.
    #[must_use]
    pub fn never() -> Stop<'static> {
        Stop(&|| false)
    }

    /// Stops once `condition` holds: a deadline that has passed, a request that was withdrawn.
    pub fn when(condition: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self(condition)
    }

    /// Whether to stop now.
    #[must_use]
    pub fn requested(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for Stop<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stop")
    }
}

/// Why there is no hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// No token has no last token.
    #[error("a forward pass needs at least one token; found none")]
    Empty,
    /// The network has no position for the last token.
    #[error("{found} tokens were given; the network has {most} positions")]
    TooLong {
        /// `max_position_embeddings`.
        most: usize,
        /// Number of tokens.
        found: usize,
    },
    /// A token has no row in the embedding.
    #[error("token {token} at position {position} is not below the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Where it stands, from 0.
        position: usize,
        /// Its number.
        token: u32,
        /// V.
        vocab_size: usize,
    },
    /// [`Stop`] ended the pass. What was computed until then is gone.
    #[error("the forward pass was stopped before its end")]
    Stopped,
}

impl ForwardError {
    /// Checks what every backend needs of its input.
    pub(crate) fn check(tokens: &[u32], config: &Config) -> Result<(), Self> {
        let (most, vocab_size) = (config.max_position_embeddings, config.vocab_size);
        if tokens.is_empty() {
            return Err(Self::Empty);
        }
        if tokens.len() > most {
            return Err(Self::TooLong { most, found: tokens.len() });
        }
        match tokens.iter().position(|&token| token as usize >= vocab_size) {
            Some(position) => Err(Self::UnknownToken { position, token: tokens[position], vocab_size }),
            None => Ok(()),
        }
    }
}

/// Which heads a bundle carries. Sealed: the two kinds are [`ActionHeads`] and [`ComparatorHeads`].
pub trait HeadsKind: sealed::Sealed {
    /// What these heads give.
    type Outputs;
    /// Rows of `success.weight`.
    const SUCCESS_ROWS: usize;
    /// Whose heads these are, for a message.
    const KIND: &'static str;
    /// Names the raw outputs: [`Self::SUCCESS_ROWS`] logits, and five of the cost head.
    fn name(success: &[f32], cost_preactivations: PerAction<f32>) -> Self::Outputs;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ActionHeads {}
    impl Sealed for super::ComparatorHeads {}
}

/// The value network: one success row an action.
#[derive(Clone, Copy, Debug)]
pub enum ActionHeads {}

/// The comparator: one success row for the current patch, and its own cost head.
#[derive(Clone, Copy, Debug)]
pub enum ComparatorHeads {}

impl HeadsKind for ActionHeads {
    type Outputs = HeadOutputs;
    const SUCCESS_ROWS: usize = Action::COUNT;
    const KIND: &'static str = "five actions";
    fn name(success: &[f32], cost_preactivations: PerAction<f32>) -> HeadOutputs {
        HeadOutputs { success_logits: PerAction::from_fn(|action| success[action.index()]), cost_preactivations }
    }
}

impl HeadsKind for ComparatorHeads {
    type Outputs = ComparatorOutputs;
    const SUCCESS_ROWS: usize = 1;
    const KIND: &'static str = "a comparator";
    fn name(success: &[f32], cost_preactivations: PerAction<f32>) -> ComparatorOutputs {
        ComparatorOutputs { success_logit: success[0], cost_preactivations }
    }
}
