//! What the mirror's process may do.

use nix::sys::resource::Resource;

use crate::policy::landlock::Beneath;

/// Ids of mirrors, as the host sees them: past those of payloads and of their mounts' files (`launch::plan`,
/// `launch::id_map`), below the kernel's sign bit. Two mirrors that share one are kept apart by Landlock.
pub(crate) const FIRST_ID: u32 = 0x7fd0_0000;
/// How many there are.
pub(crate) const IDS: u32 = 0x20_0000;

/// Its resource limits.
#[rustfmt::skip]
pub(crate) const LIMITS: [(Resource, u64, &str); 7] = [
    (Resource::RLIMIT_CORE,     1,        "below the least size of a dump, and starts no program of the host's for them"),
    (Resource::RLIMIT_FSIZE,    0,        "it writes no file"),
    (Resource::RLIMIT_NOFILE,   256,      "two for each connection, and what a resolver opens"),
    (Resource::RLIMIT_NPROC,    128,      "two threads for each connection"),
    (Resource::RLIMIT_AS,       1 << 30,  "its threads' stacks and two heaps take a tenth"),
    (Resource::RLIMIT_MEMLOCK,  0,        "it locks no memory"),
    (Resource::RLIMIT_MSGQUEUE, 0,        "it has no message queues"),
];

/// What of the host's files it may open: what resolving a name takes. A path that is not there is left out.
#[rustfmt::skip]
pub(crate) const RULES: [(&str, Beneath, &str); 7] = [
    ("/usr",                 Beneath::Execute, "the loader and the resolver's libraries"),
    ("/lib",                 Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/lib64",               Beneath::Execute, "as /usr, on hosts where it is no link"),
    ("/etc",                 Beneath::Read,    "how names are resolved; what others may read of it"),
    ("/run/systemd/resolve", Beneath::Read,    "where /etc/resolv.conf leads to"),
    ("/run/resolvconf",      Beneath::Read,    "where /etc/resolv.conf leads to"),
    ("/run/NetworkManager",  Beneath::Read,    "where /etc/resolv.conf leads to"),
];

/// The port of the domain name system, to which a resolver connects when an answer is too long for a datagram.
pub(crate) const DNS_PORT: u16 = 53;
