//! Why a bundle was refused: the file, the place, what was expected, what was found.

use std::io;

/// Why a model bundle was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The bundle has no such file.
    #[error("`{file}` is missing")]
    Missing {
        /// The file.
        file: String,
    },
    /// The file is there, but may not be opened or mapped.
    #[error("cannot open `{file}`")]
    Open {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The name leads to a directory, a pipe, or out of the bundle.
    #[error("`{file}` is not a regular file of the bundle")]
    NotAFile {
        /// The file.
        file: String,
    },
    /// A file that is read whole is larger than it can be.
    #[error("`{file}` has {found} bytes; at most {most} were expected")]
    TooLarge {
        /// The file.
        file: String,
        /// The bound.
        most: usize,
        /// The file's size.
        found: usize,
    },
    /// The file is not the JSON that its name promises; the source names line, column and field.
    #[error("`{file}` cannot be read as JSON of its kind")]
    Json {
        /// The file.
        file: String,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A field of `config.json` or `adapter_config.json` has a value that cannot be, or that is not implemented.
    #[error("`{file}`: `{field}` is {found}; expected {expected}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What may stand there, in words.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A safetensors file ends before its header or its tensors do.
    #[error("`{file}` is truncated: {what} needs {expected} bytes; found {found}")]
    Truncated {
        /// The file.
        file: String,
        /// The header, or the tensor that ends last.
        what: String,
        /// Bytes that the file should have, at least.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A tensor's place in a safetensors file contradicts its shape or its neighbors.
    #[error("`{file}`: tensor `{tensor}` spans bytes {found:?}; {expected} was expected")]
    Offsets {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What was expected, in words.
        expected: String,
        /// Begin and end, counted from the end of the header.
        found: [u64; 2],
    },
    /// Bytes at the end of a safetensors file that belong to no tensor.
    #[error("`{file}` has {found} bytes of tensors; its header describes {expected}")]
    TrailingBytes {
        /// The file.
        file: String,
        /// Bytes that the header describes.
        expected: u64,
        /// Bytes after the header.
        found: u64,
    },
    /// The tensor's element type is not one that this crate reads.
    #[error("`{file}`: tensor `{tensor}` is stored as `{found}`; expected one of F32, F16, BF16")]
    Dtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// A tensor that the network needs is not there.
    #[error("`{file}`: tensor `{tensor}` is missing; {implied_by} implies {expected:?}")]
    MissingTensor {
        /// The file that should hold it.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shape that it should have.
        expected: Vec<usize>,
        /// The file from which that shape follows.
        implied_by: &'static str,
    },
    /// A tensor that no part of the network would read: computing without it would be computing something else.
    #[error("`{file}`: tensor `{tensor}` {found:?} belongs to no part of the network; expected {expected}")]
    UnexpectedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// What may stand there, in words.
        expected: &'static str,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error("`{file}`: tensor `{tensor}` is {found:?}; {implied_by} implies {expected:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
        /// The file that implies it.
        implied_by: &'static str,
    },
    /// A weight is NaN or infinite.
    #[error("`{file}`: tensor `{tensor}` holds {found} at element {index}; a finite number was expected")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The element, row-major.
        index: usize,
        /// The number.
        found: f32,
    },
    /// The index of a sharded checkpoint names a tensor that its shard does not hold.
    #[error("`{file}` places tensor `{tensor}` in `{shard}`, which does not hold it")]
    Index {
        /// The index file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// A shard holds a tensor that the index does not place there.
    #[error("`{shard}` holds tensor `{tensor}`, which `{file}` does not place there")]
    NotInIndex {
        /// The index file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// The heads are of the other kind: a comparator where five actions were expected, or the other way round.
    #[error(
        "`{file}`: `success.weight` is {found:?}, the heads of {found_kind}; expected {expected:?}, the heads of {expected_kind}"
    )]
    HeadsKind {
        /// The file.
        file: String,
        /// Shape of the kind that was asked for.
        expected: Vec<usize>,
        /// That kind, in words.
        expected_kind: &'static str,
        /// Shape in the file.
        found: Vec<usize>,
        /// That kind, in words.
        found_kind: &'static str,
    },
    /// The merged weight of an adapter is not finite.
    #[error(
        "`{file}`: folding the adapter into `{tensor}` gives {found} at element {index}; a finite number was expected"
    )]
    FoldNotFinite {
        /// The adapter's file.
        file: String,
        /// The base tensor.
        tensor: String,
        /// The element, row-major.
        index: usize,
        /// The number.
        found: f32,
    },
}
