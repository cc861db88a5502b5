//! The value network: tokens in, the last hidden state and the outputs of two heads out.
//!
//! A *model bundle* ([`BundleSource`]) is one directory, or the same files embedded in a program. It holds a Qwen3
//! checkpoint as Hugging Face writes it, optionally a LoRA adapter as PEFT writes it, and two heads.
//!
//! Three networks run it on the processor. [`CpuNetwork`] reads plainly, in 32-bit floats, with the adapter folded or
//! apart. [`Engine`] is the fast one, and what the controller runs: packed weights, in integers whose precision is
//! measured or in floats, a prefix cache, several states at once. [`mod@reference`] computes in 64-bit floats and shares no
//! code with either: both are judged by it, and it by transformers.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use tack_kernels::{BundleSource, CpuNetwork, Network, Options, Stop};
//!
//! let mut network: CpuNetwork = CpuNetwork::load(&BundleSource::directory("models/mini"), Options::default())?;
//! let deadline = Instant::now() + Duration::from_millis(500);
//! let outputs = network.forward(&[1, 2, 3], Stop::when(&|| Instant::now() >= deadline))?;
//! println!("{:?} from {}", outputs.success_logits, network.digest());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What this crate does not do: it knows nothing of repair, tokenizers or decisions, and it reads no
//! `controller.json`. It has no clock either: whoever has a deadline hands in a [`Stop`].
//!
//! Invariants:
//! - a network that loaded has only finite weights of the shapes that `config.json` implies ([`BundleError`]);
//! - no bundle and no token sequence panics, and memory is bounded by the sizes of files that exist;
//! - one token sequence has one result, bit for bit: not a function of thread count, and a row's hidden state is not
//!   a function of the tokens after it.
//!
//! Letters in shapes: T tokens, D hidden, H query heads, G kv heads, E head dim, F intermediate, R rank, V vocabulary.

pub mod bundle;
pub mod cpu;
pub mod engine;
pub mod network;
pub mod reference;
mod sys;

pub use bundle::{BundleError, BundleSource, Config};
pub use cpu::{Adapter, CpuNetwork, Options};
pub use engine::{Engine, EngineError, EngineOptions, Isa, IsaError, Precision, PrecisionPolicy};
pub use network::{ActionHeads, ComparatorHeads, ForwardError, Network, Stop};
