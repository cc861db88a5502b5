//! Where the host has its controllers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::process::errno_of;

/// What a run needs of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Pids,
    /// CPU time: `cpuacct` of the first version, part of every group of the second.
    Cpu,
}

impl Controller {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The name in mount options of the first version.
    const fn first_version_name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpuacct",
        }
    }
}

/// A hierarchy's version: its files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    First,
    Second,
}

/// One place that has controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory `tack` in it.
    pub(crate) directory: PathBuf,
    pub(crate) version: Version,
    pub(crate) controllers: Vec<Controller>,
}

/// The hierarchies that have what a run needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchies(pub(crate) Vec<Place>);

impl Hierarchies {
    /// Reads the host's mount table.
    pub(crate) fn find() -> Result<Self, nix::errno::Errno> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| errno_of(&error))?;
        Ok(Self::parse(&mounts, |directory| fs::read_to_string(directory.join("cgroup.controllers"))))
    }

    /// Finds the hierarchies in a mount table. `unified_controllers` reads what a unified hierarchy offers.
    pub(crate) fn parse(mounts: &str, unified_controllers: impl Fn(&Path) -> io::Result<String>) -> Self {
        let mut places: Vec<Place> = Vec::new();
        let mut missing = Controller::ALL.to_vec();
        let mut add = |directory: &str, version, has: &dyn Fn(Controller) -> bool| {
            let controllers: Vec<_> = missing.iter().copied().filter(|controller| has(*controller)).collect();
            missing.retain(|controller| !controllers.contains(controller));
            if !controllers.is_empty() {
                places.push(Place { directory: Path::new(directory).join("tack"), version, controllers });
            }
        };
        // man 5 proc: id, parent, device, root, mount point, options, optional fields, "-", type, source, super options.
        let entries = mounts.lines().filter_map(|line| {
            let (fields, filesystem) = line.split_once(" - ")?;
            let directory = fields.split(' ').nth(4)?;
            let mut filesystem = filesystem.split(' ');
            Some((directory, filesystem.next()?, filesystem.nth(1).unwrap_or_default()))
        });
        let (first, second): (Vec<_>, Vec<_>) =
            entries.filter(|entry| entry.1.starts_with("cgroup")).partition(|entry| entry.1 == "cgroup");
        for (directory, _, options) in first {
            let has = |controller: Controller| options.split(',').any(|it| it == controller.first_version_name());
            add(directory, Version::First, &has);
        }
        for (directory, _, _) in second {
            let Ok(offered) = unified_controllers(Path::new(directory)) else { continue };
            let has = |controller| match controller {
                Controller::Memory => offered.split_whitespace().any(|it| it == "memory"),
                Controller::Pids => offered.split_whitespace().any(|it| it == "pids"),
                Controller::Cpu => true,
            };
            add(directory, Version::Second, &has);
        }
        Self(places)
    }
}

impl Hierarchies {
    /// Where a controller is, by its name in the first version, in words; `None` if it is nowhere.
    pub(crate) fn describe(&self, name: &str) -> Option<String> {
        let has = |place: &&Place| place.controllers.iter().any(|controller| controller.first_version_name() == name);
        let place = self.0.iter().find(has)?;
        let version = match place.version {
            Version::First => "first version",
            Version::Second => "unified",
        };
        Some(format!("{version}, at `{}`", place.directory.parent()?.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::Controller::{Cpu, Memory, Pids};
    use super::Version::{First, Second};
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UNIFIED: &str = "26 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn controllers_are_found_in_either_version() {
        let place = |directory: &str, version, controllers: &[Controller]| Place {
            directory: directory.into(),
            version,
            controllers: controllers.to_vec(),
        };
        let cases = [
            (
                "hybrid",
                HYBRID,
                "hugetlb",
                vec![
                    place("/sys/fs/cgroup/cpu,cpuacct/tack", First, &[Cpu]),
                    place("/sys/fs/cgroup/memory/tack", First, &[Memory]),
                    place("/sys/fs/cgroup/pids/tack", First, &[Pids]),
                ],
            ),
            (
                "unified",
                UNIFIED,
                "cpuset cpu io memory hugetlb pids rdma misc",
                vec![place("/sys/fs/cgroup/tack", Second, &[Memory, Pids, Cpu])],
            ),
            ("unified without memory", UNIFIED, "cpu pids", vec![place("/sys/fs/cgroup/tack", Second, &[Pids, Cpu])]),
            ("none", "22 27 0:21 / /proc rw,relatime - proc proc rw\n", "", vec![]),
            ("garbage", "x\n - \n1 2 3\n", "", vec![]),
        ];
        for (name, mounts, offered, expected) in cases {
            let found = Hierarchies::parse(mounts, |_| Ok(offered.into()));
            assert_eq!(found, Hierarchies(expected), "{name}");
        }
    }
}
