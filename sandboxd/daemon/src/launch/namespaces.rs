//! Steps 1 and 2, `Started -> Isolated`: namespaces that hold nothing of the host's.

use std::fs;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::sethostname;
use tack_sandbox_protocol::{SetUpFailure, Stage};

use crate::launch::progress::At;
use crate::launch::{Launch, Started};
use crate::mirror;
use crate::policy::root::HOST_NAME;
use crate::sys::process::{errno_of, join_new_session_keyring, loopback_up, reset_personality, reset_signals};

/// Own mount, network, ipc and uts namespaces; mounts made from here on are seen by no one else.
pub(crate) struct Isolated<'a> {
    pub(super) launch: &'a mut Launch,
}

impl<'a> Started<'a> {
    /// Before: a fork of the helper, with what the helper's client happened to have.
    /// After: it dies with the helper and cannot be traced; signals, umask, personality and session keyring are no
    /// longer the client's. What stays the client's on purpose is its share of the machine: nice value, affinity.
    /// Why first: whatever fails later, nothing outlives the helper; and modes of files made later are exact.
    pub(super) fn begin(launch: &'a mut Launch) -> Result<Self, SetUpFailure> {
        set_pdeathsig(Signal::SIGKILL).at(Stage::Fork)?;
        set_dumpable(false).at(Stage::Fork)?;
        reset_signals().at(Stage::Fork)?;
        reset_personality().at(Stage::Fork)?;
        join_new_session_keyring().at(Stage::Fork)?;
        umask(Mode::empty());
        // When the host runs short of memory, a sandbox goes before anything else does.
        fs::write("/proc/self/oom_score_adj", "1000").map_err(|error| errno_of(&error)).at(Stage::Fork)?;
        Ok(Self { launch })
    }

    /// Before: the helper's namespaces, but for pids.
    /// After: own mount, network, ipc and uts namespaces, owned by the initial user namespace; no mount event passes
    /// between them and the host; loopback is up and is the only interface; the host's name is hidden.
    /// Why here: everything after makes mounts.
    pub(super) fn isolate(self) -> Result<Isolated<'a>, SetUpFailure> {
        let flags =
            CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
        unshare(flags).at(Stage::Namespaces)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).at(Stage::Namespaces)?;
        sethostname(HOST_NAME).at(Stage::Namespaces)?;
        self.launch.progress.took(Stage::Namespaces);
        loopback_up().at(Stage::Loopback)?;
        self.launch.progress.took(Stage::Loopback);
        // By root, before anything of the payload's could take the port.
        if let Some(give) = self.launch.ends.mirror.take() {
            mirror::listen(&give).at(Stage::Egress)?;
            self.launch.progress.took(Stage::Egress);
        }
        Ok(Isolated { launch: self.launch })
    }
}
