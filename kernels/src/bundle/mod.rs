//! A model bundle: one directory, or the same files embedded in a program, checked before anything is computed.
//!
//! | file | what | needed |
//! | --- | --- | --- |
//! | `config.json` | the shape of the network, as Hugging Face writes it | yes |
//! | `model.safetensors`, or `model.safetensors.index.json` and its shards | the weights, F32, F16 or BF16 | yes |
//! | `adapter_config.json`, `adapter_model.safetensors` | a LoRA adapter, as PEFT writes it | unless not asked for |
//! | `heads.safetensors` | `success.weight [5, D]` (a comparator: `[1, D]`), `success.bias`, `cost.weight [5, D]`, `cost.bias [5]` | yes |
//!
//! Other files (`tokenizer.json`, `controller.json`) are for others to read, through [`BundleSource::open`].

mod adapter;
mod checkpoint;
mod config;
mod error;
mod heads;
mod source;
pub(crate) mod tensor;
mod tensor_file;
mod weights;

pub use config::Config;
pub use error::BundleError;
pub use source::{BundleSource, FileBytes, digest_files};

pub(crate) use adapter::{Lora, is_file as is_adapter_file};
pub(crate) use heads::HeadWeights;
pub(crate) use tensor::Tensor;
pub(crate) use weights::{Layer, Projection, Weights};

use tack_core::Digest;

use crate::network::HeadsKind;

/// A bundle that passed every check.
pub(crate) struct Bundle {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) heads: HeadWeights,
    /// Over the files that were read: see [`digest_files`].
    pub(crate) digest: Digest,
}

/// A bundle whose headers, shapes and heads were checked, but none of its weights looked at.
pub(crate) struct Parsed {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) heads: HeadWeights,
    /// Name and bytes of every file that was read.
    pub(crate) files: Vec<(String, FileBytes)>,
}

impl Bundle {
    /// Reads and checks everything; the adapter only if `with_adapter`.
    pub(crate) fn read<H: HeadsKind>(source: &BundleSource, with_adapter: bool) -> Result<Self, BundleError> {
        Parsed::read::<H>(source, with_adapter)?.check()
    }
}

impl Parsed {
    /// Reads headers, shapes and heads; the adapter only if `with_adapter`.
    pub(crate) fn read<H: HeadsKind>(source: &BundleSource, with_adapter: bool) -> Result<Self, BundleError> {
        let mut opened = Opened { source, files: Vec::new() };
        let config = Config::read(source)?;
        opened.open(config::CONFIG_FILE)?;
        let mut weights = checkpoint::Checkpoint::open(&mut opened)?.weights(&config)?;
        if with_adapter {
            adapter::attach(&mut opened, &config, &mut weights)?;
        }
        let heads = HeadWeights::read::<H>(&mut opened, &config)?;
        Ok(Self { config, weights, heads, files: opened.files })
    }

    /// Replaces the adapter and the heads by those of another bundle; returns the names of the files that were read.
    ///
    /// # Errors
    /// [`BundleError`] for whatever is wrong with them; then nothing was replaced.
    pub(crate) fn replace_adapter<H: HeadsKind>(&mut self, source: &BundleSource) -> Result<Vec<String>, BundleError> {
        let before: Vec<_> = self.projections_mut().map(|projection| projection.lora.take()).collect();
        let mut opened = Opened { source, files: Vec::new() };
        match self.read_adapter::<H>(&mut opened) {
            Ok(heads) => {
                self.heads = heads;
                let replaced: Vec<_> = opened.files.iter().map(|(name, _)| name.clone()).collect();
                self.files.retain(|(name, _)| !adapter::is_file(name) && !replaced.contains(name));
                self.files.extend(opened.files);
                Ok(replaced)
            }
            Err(error) => {
                self.projections_mut().zip(before).for_each(|(projection, lora)| projection.lora = lora);
                Err(error)
            }
        }
    }

    fn read_adapter<H: HeadsKind>(&mut self, opened: &mut Opened<'_>) -> Result<HeadWeights, BundleError> {
        adapter::attach(opened, &self.config, &mut self.weights)?;
        for lora in self.projections_mut().filter_map(|projection| projection.lora.as_ref()) {
            lora.a.check_finite()?;
            lora.b.check_finite()?;
        }
        HeadWeights::read::<H>(opened, &self.config)
    }

    fn projections_mut(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.weights.layers.iter_mut().flat_map(Layer::projections_mut).map(|(_, projection)| projection)
    }

    /// Looks at every weight.
    pub(crate) fn check(self) -> Result<Bundle, BundleError> {
        // Hashing and looking at every weight each read the whole bundle, so they do it side by side.
        let (digest, finite) = std::thread::scope(|scope| {
            let hashing = std::thread::Builder::new().spawn_scoped(scope, || digest_of(&self.files));
            let finite = self.weights.check_finite();
            let digest = match hashing {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => digest_of(&self.files), // no second thread to be had
            };
            (digest, finite)
        });
        finite?;
        let Self { config, weights, heads, .. } = self;
        Ok(Bundle { config, weights, heads, digest })
    }
}

fn digest_of(files: &[(String, FileBytes)]) -> Digest {
    digest_files(files.iter().map(|(name, bytes)| (name.as_str(), bytes.digest())))
}

/// The files that a network is built from, each remembered for the digest.
pub(crate) struct Opened<'a> {
    pub(crate) source: &'a BundleSource,
    files: Vec<(String, FileBytes)>,
}

impl Opened<'_> {
    /// Opens a file and remembers it.
    pub(crate) fn open(&mut self, file: &str) -> Result<FileBytes, BundleError> {
        let bytes = self.source.open(file)?;
        self.files.push((file.to_owned(), bytes.clone()));
        Ok(bytes)
    }
}
