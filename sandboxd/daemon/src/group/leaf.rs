//! One run's groups: made, limited, joined, read, removed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tack_sandbox_protocol::{Cause, Figure, Layer, LayerState, Layers, Reason, RunLimits};

use crate::group::hierarchy::{Controller, Place, Version};
use crate::group::seat::{Reserved, Taken};
use crate::sys::process::{errno_of, pid_namespace};

/// The groups of one run. Dropped, they are removed.
#[derive(Debug)]
pub(crate) struct Groups {
    memory: Membership,
    pids: Membership,
    cpu: Membership,
    /// Everything that was made, to be removed.
    made: Vec<Leaf>,
    /// The controllers of each place, by its index.
    places: Vec<Vec<Controller>>,
    swap: LayerState,
    sockets: LayerState,
    /// What the groups had counted when the payload was about to be forked, by [`CpuTime`]'s order.
    cpu_before_ns: [u64; 3],
}

/// Which CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuTime {
    Total,
    User,
    System,
}

/// A directory that this helper has made. As long as it holds the lock, no other helper sweeps it away.
#[derive(Debug)]
struct Leaf {
    directory: PathBuf,
    lock: Flock<File>,
}

/// The largest single charge of a process on x86-64.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// One controller's group, or why there is none.
type Membership = Result<Member, Reason>;

#[derive(Clone, Debug)]
struct Member {
    directory: PathBuf,
    version: Version,
}

impl Groups {
    /// No group at all, for this reason.
    pub(crate) const fn none(reason: Reason) -> Self {
        Self {
            memory: Err(reason),
            pids: Err(reason),
            cpu: Err(reason),
            made: Vec::new(),
            places: Vec::new(),
            swap: LayerState::Inactive(reason),
            sockets: LayerState::Inactive(reason),
            cpu_before_ns: [0; 3],
        }
    }

    /// Makes one leaf in each hierarchy and sets the limits. In the unified one it moves `pid1` into its leaf; in the
    /// others pid 1 does so by itself, and what came of it is for [`joined`](Self::joined).
    pub(crate) fn make(reserved: &Reserved, limits: &RunLimits, pid1: Pid) -> Self {
        let hierarchies = match &reserved.hierarchies {
            Ok(hierarchies) => hierarchies,
            Err(errno) => return Self::none(Reason::Unreadable { errno: *errno as i32 }),
        };
        let mut groups = Self::none(Reason::NoController);
        for place in &hierarchies.0 {
            sweep(&place.directory);
            let joined = groups.make_in(place, &reserved.name, limits, pid1);
            groups.places.push(place.controllers.clone());
            for controller in &place.controllers {
                let slot = match controller {
                    Controller::Memory => &mut groups.memory,
                    Controller::Pids => &mut groups.pids,
                    Controller::Cpu => &mut groups.cpu,
                };
                *slot = match &joined {
                    Ok(directory) => Ok(Member { directory: directory.clone(), version: place.version }),
                    Err(error) => Err(Reason::GroupRefused { errno: errno_of(error) as i32 }),
                };
            }
        }
        groups
    }

    /// What came of pid 1's own moves: a group that it is not in limits nothing and counts nothing.
    pub(crate) fn joined(&mut self, taken: Taken) {
        for (errno, controllers) in taken.into_iter().zip(std::mem::take(&mut self.places)) {
            for controller in controllers.iter().filter(|_| errno != 0) {
                let refused = Reason::GroupRefused { errno: errno.into() };
                // Where it could not be made, the reason is known already.
                let membership = match controller {
                    Controller::Memory => {
                        (self.swap, self.sockets) = (LayerState::Inactive(refused), LayerState::Inactive(refused));
                        &mut self.memory
                    }
                    Controller::Pids => &mut self.pids,
                    Controller::Cpu => &mut self.cpu,
                };
                if membership.is_ok() {
                    *membership = Err(refused);
                }
            }
        }
    }

    fn make_in(&mut self, place: &Place, name: &str, limits: &RunLimits, pid1: Pid) -> io::Result<PathBuf> {
        if place.version == Version::Second {
            enable_controllers(place)?;
        }
        make(&place.directory)?;
        let made = Leaf::make(place.directory.join(name))?;
        let leaf = made.directory.clone();
        self.made.push(made);
        for controller in &place.controllers {
            match (controller, place.version) {
                (Controller::Memory, Version::First) => {
                    put(&leaf, "memory.limit_in_bytes", limits.memory_bytes)?;
                    // Memory and swap together get the same limit, so there is no swap. Order matters to the kernel:
                    // this limit may not be below the other.
                    self.swap = optional(put(&leaf, "memory.memsw.limit_in_bytes", limits.memory_bytes))?;
                    // What waits in sockets is counted apart here, that of UDP with that of TCP, whatever the name.
                    self.sockets = optional(put(&leaf, "memory.kmem.tcp.limit_in_bytes", limits.memory_bytes))?;
                }
                (Controller::Memory, Version::Second) => {
                    put(&leaf, "memory.max", limits.memory_bytes)?;
                    put(&leaf, "memory.oom.group", 1)?;
                    self.swap = optional(put(&leaf, "memory.swap.max", 0))?;
                    // Sockets are charged to the same limit.
                    self.sockets = LayerState::Active;
                }
                // Pid 1 is in the group too.
                (Controller::Pids, _) => put(&leaf, "pids.max", u64::from(limits.processes) + 1)?,
                (Controller::Cpu, _) => {}
            }
        }
        if place.version == Version::Second {
            put(&leaf, "cgroup.procs", pid1.as_raw().cast_unsigned().into())?;
        }
        Ok(leaf)
    }

    /// Says of each limit whether it holds.
    pub(crate) fn report(&self, layers: &mut Layers) {
        let state = |membership: &Membership| match membership {
            Ok(_) => LayerState::Active,
            Err(reason) => LayerState::Inactive(*reason),
        };
        layers.set(Layer::MemoryLimit, state(&self.memory));
        layers.set(Layer::ProcessLimit, state(&self.pids));
        layers.set(Layer::CpuLimit, state(&self.cpu));
        layers.set(Layer::SwapLimit, self.swap);
        layers.set(Layer::SocketMemoryLimit, self.sockets);
    }

    /// What has been used until now is the launch's, not the payload's.
    pub(crate) fn start_counting(&mut self) {
        for time in [CpuTime::Total, CpuTime::User, CpuTime::System] {
            self.cpu_before_ns[time as usize] = self.cpu_ns(time).unwrap_or(0);
        }
    }

    /// CPU time of all processes since [`start_counting`](Self::start_counting), in microseconds. The total is exact;
    /// its parts are told apart by sampling.
    pub(crate) fn cpu_us(&self, time: CpuTime) -> Figure {
        let us = self.cpu_ns(time).map(|ns| ns.saturating_sub(self.cpu_before_ns[time as usize]) / 1_000);
        figure(us, if time == CpuTime::Total { Figure::Measured } else { Figure::Sampled })
    }

    fn cpu_ns(&self, time: CpuTime) -> Result<u64, Reason> {
        let member = self.cpu.as_ref().map_err(|reason| *reason)?;
        let (first, second) = match time {
            CpuTime::Total => ("cpuacct.usage", "usage_usec"),
            CpuTime::User => ("cpuacct.usage_user", "user_usec"),
            CpuTime::System => ("cpuacct.usage_sys", "system_usec"),
        };
        match member.version {
            Version::First => number(member, first),
            Version::Second => keyed(member, "cpu.stat", second).map(|us| us.saturating_mul(1_000)),
        }
    }

    /// How many processes the kernel has killed at the memory limit.
    pub(crate) fn oom_kills(&self) -> Figure {
        let count = self.memory.as_ref().map_err(|reason| *reason).and_then(|member| match member.version {
            Version::First => keyed(member, "memory.oom_control", "oom_kill"),
            Version::Second => keyed(member, "memory.events", "oom_kill"),
        });
        figure(count, Figure::Measured)
    }

    /// The cause of a run of which the kernel has killed a process for memory: its own limit, if that was ever reached,
    /// else the host's shortage. The kernel counts a process that it killed in its group, whoever was short.
    pub(crate) fn killed_for_memory(&self) -> Option<Cause> {
        let killed = self.oom_kills().value().is_some_and(|kills| kills > 0);
        let reached = |member: &Member| match member.version {
            // Newer kernels leave its `failcnt` at 0. Charges are of whole batches, up to a huge page.
            Version::First => {
                let bytes = |file| number(member, file).unwrap_or(u64::MAX);
                bytes("memory.max_usage_in_bytes").saturating_add(HUGE_PAGE_BYTES) >= bytes("memory.limit_in_bytes")
            }
            // A kernel that does not tell is taken to mean the limit.
            Version::Second => keyed(member, "memory.events", "oom").map_or(true, |count| count > 0),
        };
        killed.then(|| if self.memory.as_ref().is_ok_and(reached) { Cause::OutOfMemory } else { Cause::Killed })
    }

    /// Most memory at one time, in bytes. The kernel charges in batches of pages, so it is near, not exact.
    pub(crate) fn memory_peak_bytes(&self) -> Figure {
        let peak = self.memory.as_ref().map_err(|reason| *reason).and_then(|member| match member.version {
            Version::First => number(member, "memory.max_usage_in_bytes"),
            Version::Second => number(member, "memory.peak"),
        });
        figure(peak, Figure::Sampled)
    }

    /// Most processes at one time, without pid 1.
    pub(crate) fn processes_peak(&self) -> Figure {
        let peak = self.pids.as_ref().map_err(|reason| *reason).and_then(|member| number(member, "pids.peak"));
        figure(peak.map(|count| count.saturating_sub(1)), Figure::Measured)
    }

    /// How often a process could not be made at the limit.
    pub(crate) fn forks_refused(&self) -> Figure {
        let count = self.pids.as_ref().map_err(|reason| *reason);
        figure(count.and_then(|member| keyed(member, "pids.events", "max")), Figure::Measured)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for leaf in self.made.drain(..) {
            remove(&leaf.directory);
            // The lock goes after the directory: until then it is ours.
            drop(leaf.lock);
        }
    }
}

fn figure(count: Result<u64, Reason>, kind: fn(u64) -> Figure) -> Figure {
    count.map_or_else(Figure::Unavailable, kind)
}

impl Leaf {
    /// Makes and locks a leaf.
    ///
    /// Between the two another helper may take it for one that is left over, and remove it: then it is made again.
    fn make(directory: PathBuf) -> io::Result<Self> {
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            fs::create_dir(&directory)?;
            let opened = match File::open(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let lock = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
            let locked = lock.metadata()?;
            match fs::metadata(&directory) {
                Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => {
                    return Ok(Self { directory, lock });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EAGAIN.into())
    }
}

/// `run-<pid namespace>-<process id>-<start time>`: names one process, in whatever pid namespace. The name only has to
/// be no other's; whether its helper lives is told by the lock.
pub(super) fn leaf_name() -> String {
    let start = start_time().unwrap_or_default();
    format!("run-{}-{}-{start}", pid_namespace().unwrap_or_default(), Pid::this())
}

/// When this process started, in clock ticks since boot (man 5 proc, `stat`, field 22).
fn start_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The command in parentheses may hold anything; what follows its last one is plain.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Removes the leaves of helpers that are gone, which no one holds the lock of. It is best effort: what cannot be
/// removed is tried again by the next.
///
/// Not by process ids: those of a helper in another pid namespace mean other processes here, or none.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| is_leaf(&entry.file_name())) {
        let Ok(leaf) = File::open(entry.path()) else { continue };
        let Ok(_lock) = Flock::lock(leaf, FlockArg::LockExclusiveNonblock) else { continue };
        // A helper's death kills its processes, so there is none, unless its pid 1 is still dying.
        let processes = fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1) {
            kill(Pid::from_raw(process), Signal::SIGKILL).ok();
        }
        fs::remove_dir(entry.path()).ok();
    }
}

/// Whether a directory's name is one of [`leaf_name`]'s.
fn is_leaf(name: &OsStr) -> bool {
    let numbers = name.to_str().and_then(|name| name.strip_prefix("run-"));
    numbers.is_some_and(|numbers| {
        let numbers: Vec<_> = numbers.split('-').collect();
        numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u64>().is_ok())
    })
}

/// In the unified hierarchy a group has the controllers that all its parents pass on.
fn enable_controllers(place: &Place) -> io::Result<()> {
    make(&place.directory)?;
    let parent = place.directory.parent().ok_or(io::ErrorKind::NotFound)?;
    for directory in [parent, &place.directory] {
        let file = directory.join("cgroup.subtree_control");
        let passed_on = fs::read_to_string(&file)?;
        for controller in &place.controllers {
            let name = match controller {
                Controller::Memory => "memory",
                Controller::Pids => "pids",
                // Every group counts CPU time, whether or not it has the controller.
                Controller::Cpu => continue,
            };
            // Most hosts pass them on already. Asking again could be refused, where the parent has processes.
            if !passed_on.split_whitespace().any(|it| it == name) {
                fs::write(&file, format!("+{name}"))?;
            }
        }
    }
    Ok(())
}

pub(super) fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn put(leaf: &Path, file: &str, value: u64) -> io::Result<()> {
    fs::write(leaf.join(file), value.to_string())
}

/// A kernel without accounting of swap, or of sockets, has no such file.
fn optional(put: io::Result<()>) -> io::Result<LayerState> {
    match put {
        Ok(()) => Ok(LayerState::Active),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LayerState::Inactive(Reason::NoController)),
        Err(error) => Err(error),
    }
}

fn read(member: &Member, file: &str) -> Result<String, Reason> {
    fs::read_to_string(member.directory.join(file))
        .map_err(|error| Reason::Unreadable { errno: errno_of(&error) as i32 })
}

fn number(member: &Member, file: &str) -> Result<u64, Reason> {
    read(member, file)?.trim().parse().map_err(|_| Reason::Unreadable { errno: Errno::EINVAL as i32 })
}

/// The number behind a key in a file of lines `key number`.
fn keyed(member: &Member, file: &str, key: &str) -> Result<u64, Reason> {
    let text = read(member, file)?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    value.ok_or(Reason::Unreadable { errno: Errno::ENODATA as i32 })
}

/// Removes one leaf. The first version may call a group busy for a moment after its last process was reaped.
fn remove(leaf: &Path) {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match fs::remove_dir(leaf) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(Duration::from_micros(100)),
            // Removed, or for the next helper's sweep.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Hierarchies;

    #[test]
    fn groups_are_made_joined_counted_and_removed_in_either_version() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let offers = |directory: &Path| fs::read_to_string(directory.join("cgroup.controllers"));
        for version in ["cgroup", "cgroup2"] {
            let lines = mounts.lines().filter(|line| line.contains(&format!(" - {version} ")));
            let hierarchies = Hierarchies::parse(&lines.collect::<Vec<_>>().join("\n"), offers);
            if !nix::unistd::geteuid().is_root() || hierarchies.0.is_empty() {
                let line = format!("SKIPPED: groups need root and a hierarchy of type {version}\n");
                io::Write::write_all(&mut io::stderr(), line.as_bytes()).unwrap();
                continue;
            }
            let script = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; read line";
            let mut command = std::process::Command::new("/bin/sh");
            let mut child = command.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let pid = Pid::from_raw(child.id().cast_signed());
            let mut groups = Groups::none(Reason::NotAsked);
            let limits = RunLimits::default();
            for (place, name) in hierarchies.0.iter().zip(["test-0", "test-1", "test-2"]) {
                let leaf = groups.make_in(place, name, &limits, pid).unwrap();
                if place.version == Version::First {
                    // Pid 1's own move is in the tests of whole runs.
                    put(&leaf, "cgroup.procs", child.id().into()).unwrap();
                }
                for controller in &place.controllers {
                    let member = Ok(Member { directory: leaf.clone(), version: place.version });
                    match controller {
                        Controller::Memory => groups.memory = member,
                        Controller::Pids => groups.pids = member,
                        Controller::Cpu => groups.cpu = member,
                    }
                }
                assert_eq!(fs::read_to_string(leaf.join("cgroup.procs")).unwrap(), format!("{pid}\n"));
            }
            drop(child.stdin.take());
            child.wait().unwrap();
            let has = |controller| hierarchies.0.iter().any(|place| place.controllers.contains(&controller));
            let Figure::Measured(cpu_us) = groups.cpu_us(CpuTime::Total) else { panic!("{version}: no CPU time") };
            assert!((1_000..10_000_000).contains(&cpu_us), "{version}: {cpu_us}");
            assert_eq!(groups.memory_peak_bytes().value().is_some(), has(Controller::Memory), "{version}");
            assert_eq!(groups.processes_peak().value().is_some(), has(Controller::Pids), "{version}");
            let leaves: Vec<_> = groups.made.iter().map(|leaf| leaf.directory.clone()).collect();
            drop(groups);
            assert!(leaves.iter().all(|leaf| !leaf.exists()), "{version}: {leaves:?}");
        }
    }

    #[test]
    fn a_sweep_takes_what_no_one_holds_and_nothing_else() {
        // Locks are of directories of any kind; the real hierarchies are in the tests of whole runs.
        let directory = std::env::temp_dir().join(format!("tack-sweep-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let held = Leaf::make(directory.join("run-1-2-3")).unwrap();
        assert!(Leaf::make(directory.join("run-1-2-3")).is_err(), "a name is one helper's");
        for left in ["run-1-2-4", "other", "run-1-2"] {
            fs::create_dir(directory.join(left)).unwrap();
        }
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        sweep(&directory);
        assert_eq!(names(), ["other", "run-1-2", "run-1-2-3"]);
        // Its helper is gone: the kernel drops the lock with the last descriptor.
        drop(held.lock);
        sweep(&directory);
        assert_eq!(names(), ["other", "run-1-2"]);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_leaf_s_name_is_told_from_others() {
        let name = leaf_name();
        assert!(is_leaf(OsStr::new(&name)), "{name}");
        assert!(name.contains(&format!("-{}-", Pid::this())), "{name}");
        for other in ["", "run", "run-1-2", "run-1-2-3-4", "run-a-2-3", "process_api", "1-2-3", "run--1-2"] {
            assert!(!is_leaf(OsStr::new(other)), "{other}");
        }
    }
}
