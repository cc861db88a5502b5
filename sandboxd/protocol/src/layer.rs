//! The layers of isolation, and which of them held during a run.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text;

/// Declares an enum without data whose variants have a name and an order, and the list of them.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")] // for text formats; postcard writes the index
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl crate::text::Key for $name {
            const ALL: &'static [Self] = Self::ALL;

            fn index(self) -> usize {
                self as usize
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named;

named! {
    /// One layer of isolation or of limits. Every receipt says of each whether it held.
    Layer {
        /// The payload's uid is a host uid of its own that owns nothing; host uid 0 does not exist inside.
        UserNamespace = "user_namespace",
        /// The payload has its own mount table, and cannot change it.
        MountNamespace = "mount_namespace",
        /// The payload sees and signals its own processes alone, and all of them die with its pid 1.
        PidNamespace = "pid_namespace",
        /// The payload has its own network with loopback up, and no other interface.
        NetworkNamespace = "network_namespace",
        /// System V and POSIX message queues, semaphores and shared memory are the run's own.
        IpcNamespace = "ipc_namespace",
        /// The host's name is hidden and cannot be changed.
        UtsNamespace = "uts_namespace",
        /// The host's control groups are hidden.
        CgroupNamespace = "cgroup_namespace",
        /// The root holds the listed system directories, a made `/etc` and the request's mounts, read-only but
        /// where the request says otherwise.
        AllowListedRoot = "allow_listed_root",
        /// Files of a mount's owner belong to the payload inside (id-mapped mounts).
        OwnedMounts = "owned_mounts",
        /// `/proc` shows the run's processes; `/proc/sys` is read-only, kernel internals are masked.
        MaskedProc = "masked_proc",
        /// `/dev` holds six devices, its own pseudo-terminals and its own shared memory.
        PrivateDev = "private_dev",
        /// `/tmp` is the run's own, and bounded.
        PrivateTmp = "private_tmp",
        /// No capability in any set, none to be had by execution.
        NoCapabilities = "no_capabilities",
        /// `no_new_privs`: set-user-ID programs give nothing.
        NoNewPrivs = "no_new_privs",
        /// A second wall over files and devices, by Landlock.
        LandlockFiles = "landlock_files",
        /// No signal and no abstract socket leaves the payload's Landlock domain.
        LandlockScopes = "landlock_scopes",
        /// System calls on the allow-list alone.
        Seccomp = "seccomp",
        /// `RLIMIT_*`: core, file size, open files, processes, locked memory, message queues.
        ResourceLimits = "resource_limits",
        /// The memory of all processes together is limited.
        MemoryLimit = "memory_limit",
        /// The run cannot swap.
        SwapLimit = "swap_limit",
        /// The number of processes is limited by their control group, not by `RLIMIT_NPROC` alone.
        ProcessLimit = "process_limit",
        /// The CPU time of all processes together is limited, not that of each process alone.
        CpuLimit = "cpu_limit",
        /// What the run's sockets hold is limited as its memory is.
        SocketMemoryLimit = "socket_memory_limit",
    }
}

/// Why a layer did not hold, or a figure could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The request did not ask for it.
    NotAsked,
    /// The run ended before this was reached.
    NotReached,
    /// The host mounts no control-group hierarchy with this controller.
    NoController,
    /// The control group could not be made, limited or joined.
    GroupRefused {
        /// The kernel's error number.
        errno: i32,
    },
    /// The kernel is older than the feature.
    KernelTooOld,
    /// A mounted file system does not support it.
    FilesystemUnsupported,
    /// The processes were killed at the end, and the kernel adds up those alone that were waited for.
    Killed,
    /// The kernel's record could not be read.
    Unreadable {
        /// The kernel's error number.
        errno: i32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("the request did not ask for it"),
            Self::NotReached => f.write_str("the run ended before it was reached"),
            Self::NoController => f.write_str("the host mounts no such control-group controller"),
            Self::GroupRefused { errno } => write!(f, "the control group was refused (errno {errno})"),
            Self::Killed => f.write_str("the kernel adds up no process that was killed at the end"),
            Self::KernelTooOld => f.write_str("the kernel is older than the feature"),
            Self::FilesystemUnsupported => f.write_str("a mounted file system does not support it"),
            Self::Unreadable { errno } => write!(f, "the kernel's record could not be read (errno {errno})"),
        }
    }
}

/// Whether a layer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// In force for the whole life of the payload.
    Active,
    /// Not in force, because of this.
    Inactive(Reason),
}

/// The state of every layer; in text formats a map by the layer's name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layers([LayerState; Layer::COUNT]);

impl Serialize for Layers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            text::by_key::serialize::<Layer, _, _>(&self.0, serializer)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            text::by_key::deserialize::<Layer, _, _, { Layer::COUNT }>(deserializer).map(Self)
        } else {
            <[LayerState; Layer::COUNT]>::deserialize(deserializer).map(Self)
        }
    }
}

impl Layers {
    /// Every layer in the same state.
    #[must_use]
    pub const fn all(state: LayerState) -> Self {
        Self([state; Layer::COUNT])
    }

    /// Whether, or why not, `layer` held.
    #[must_use]
    pub const fn state(&self, layer: Layer) -> LayerState {
        self.0[layer as usize]
    }

    /// Records the state of `layer`.
    pub const fn set(&mut self, layer: Layer, state: LayerState) {
        self.0[layer as usize] = state;
    }

    /// Each layer with its state, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Layer, LayerState)> {
        Layer::ALL.iter().copied().zip(self.0)
    }

    /// The layers that held.
    pub fn active(&self) -> impl Iterator<Item = Layer> {
        self.iter().filter_map(|(layer, state)| matches!(state, LayerState::Active).then_some(layer))
    }

    /// The layers that did not hold, each with its reason.
    pub fn inactive(&self) -> impl Iterator<Item = (Layer, Reason)> {
        self.iter().filter_map(|(layer, state)| match state {
            LayerState::Active => None,
            LayerState::Inactive(reason) => Some((layer, reason)),
        })
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
