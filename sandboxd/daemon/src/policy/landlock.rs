//! What the payload may do with the files of its root: the second wall, beside the mounts.

/// What is allowed beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beneath {
    /// Listing directories.
    List,
    /// Reading files, listing directories.
    Read,
    /// As `Read`, and executing.
    Execute,
    /// As `Read`, and writing files that are there.
    Update,
    /// As `Update`, and control calls on devices.
    Devices,
    /// Everything.
    Own,
}

/// Paths of the sandbox's root, apart from the request's mounts. A path that is not there is left out.
#[rustfmt::skip]
pub(crate) const RULES: [(&str, Beneath, &str); 11] = [ // path, what, reason
    ("/",        Beneath::List,    "the root's own names are no secret"),
    ("/usr",     Beneath::Execute, "programs and libraries"),
    ("/bin",     Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/sbin",    Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/lib",     Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/lib32",   Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/lib64",   Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/etc",     Beneath::Read,    "the made configuration"),
    ("/proc",    Beneath::Update,  "a process writes its own comm, oom_score_adj"),
    ("/dev",     Beneath::Devices, "terminals are driven by control calls"),
    ("/dev/shm", Beneath::Own,     "POSIX shared memory and semaphores"),
];

/// The run's own temporary directory; `/var/tmp` is a link to it.
pub(crate) const TMP: (&str, Beneath) = ("/tmp", Beneath::Own);
