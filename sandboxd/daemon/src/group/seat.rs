//! How pid 1 gets into the groups of the first version: by itself.
//!
//! Whoever writes a process id to `cgroup.procs` takes a lock that waits for an RCU grace period first, 6 to 10 ms
//! here, since that process could be forking or executing meanwhile. A thread that writes 0 to `tasks` moves itself,
//! does neither meanwhile, and waits for nothing: 0.1 ms (`cgroup_procs_write_start` in `kernel/cgroup/cgroup.c`).
//! The unified hierarchy has no such file; there the helper moves pid 1.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::write;

use crate::group::hierarchy::{Controller, Hierarchies, Version};
use crate::group::leaf::{leaf_name, make};
use crate::sys::process::errno_of;

/// Where one run's groups will be: known, and opened where pid 1 needs it, before anything is forked, while the
/// groups themselves are made beside the launch.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(super) hierarchies: Result<Hierarchies, Errno>,
    pub(super) name: String,
}

/// What pid 1 keeps of it: for each place, by its index, the directory and the file in it. Other places have none.
#[derive(Debug)]
pub(crate) struct Seats(Vec<Option<Result<Seat, Errno>>>);

#[derive(Debug)]
struct Seat {
    directory: OwnedFd,
    tasks: CString,
}

/// What came of taking them, by a place's index: 0, or the error number. There are no more places than controllers.
pub(crate) type Taken = [u16; Controller::ALL.len()];

impl Reserved {
    /// Finds the places, and opens them for pid 1.
    pub(crate) fn new() -> (Self, Seats) {
        let hierarchies = Hierarchies::find();
        let name = leaf_name();
        let places = hierarchies.as_ref().map_or([].as_slice(), |found| &found.0);
        let seats = places.iter().map(|place| {
            (place.version == Version::First).then(|| {
                make(&place.directory).map_err(|error| errno_of(&error))?;
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                let directory = openat(AT_FDCWD, &place.directory, flags, Mode::empty())?;
                let tasks = CString::new(format!("{name}/tasks")).map_err(|_| Errno::EINVAL)?;
                Ok(Seat { directory, tasks })
            })
        });
        let seats = Seats(seats.collect());
        (Self { hierarchies, name }, seats)
    }
}

impl Seats {
    /// Moves the calling thread, which must be its process's only one, into every group that it has a seat in. The
    /// directories are closed: nothing that comes after may reach them.
    pub(crate) fn take(&mut self) -> Taken {
        let mut taken = Taken::default();
        for (errno, seat) in taken.iter_mut().zip(self.0.drain(..)) {
            let took = match seat {
                None => Ok(()),
                Some(Err(errno)) => Err(errno),
                Some(Ok(seat)) => seat.take(),
            };
            *errno = took.map_or_else(|errno| u16::try_from(errno as i32).unwrap_or(u16::MAX), |()| 0);
        }
        taken
    }
}

impl Seat {
    fn take(self) -> Result<(), Errno> {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let tasks = openat(&self.directory, self.tasks.as_c_str(), flags, Mode::empty())?;
        write(&tasks, b"0").map(drop)
    }
}
