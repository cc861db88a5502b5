//! The sandbox's root: what of the host is in it, what is made for it, what is hidden.

/// Host directories that programs and their libraries live in. On a merged-/usr host all but the first are symbolic
/// links, and are links inside too; a name that the host lacks is left out.
pub(crate) const SYSTEM_DIRECTORIES: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Host files and directories under `/etc` that are visible, read-only, where the host has them.
#[rustfmt::skip]
pub(crate) const ETC_FROM_HOST: [(&str, &str); 5] = [ // name, reason
    ("alternatives",  "links that /usr/bin goes through: awk, cc, java, which"),
    ("ld.so.cache",   "the dynamic loader finds libraries by it"),
    ("mime.types",    "Python's mimetypes and web servers read it; public data"),
    ("protocols",     "getprotobyname; public data"),
    ("services",      "getservbyname; public data"),
];

/// The payload's user and group inside: not 0, since programs behave differently as root.
pub(crate) const PAYLOAD_ID: u32 = 1_000;

/// Files under `/etc` that are made.
#[rustfmt::skip]
pub(crate) const ETC: [(&str, &str); 7] = [ // name, content
    ("passwd",        "root:x:0:0:root:/root:/bin/sh\n\
                       tack:x:1000:1000:tack:/tmp:/bin/sh\n\
                       nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"),
    ("group",         "root:x:0:\ntack:x:1000:\nnogroup:x:65534:\n"),
    ("hosts",         "127.0.0.1 localhost tack\n::1 localhost tack\n"),
    ("hostname",      "tack\n"),
    // Names come from files alone, so that a lookup fails in microseconds instead of waiting for a server.
    ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n"),
    ("resolv.conf",   ""),
    ("shells",        "/bin/sh\n"),
];

/// The host name inside.
pub(crate) const HOST_NAME: &str = "tack";

/// Symbolic links under the root: where they are, where they point.
#[rustfmt::skip]
pub(crate) const LINKS: [(&str, &str); 8] = [
    // One time zone for every host, so that a run gives the same output anywhere.
    ("etc/localtime", "../usr/share/zoneinfo/UTC"),
    ("etc/mtab",      "../proc/self/mounts"),
    ("var/tmp",       "../tmp"),
    ("dev/fd",        "/proc/self/fd"),
    ("dev/stdin",     "/proc/self/fd/0"),
    ("dev/stdout",    "/proc/self/fd/1"),
    ("dev/stderr",    "/proc/self/fd/2"),
    ("dev/ptmx",      "pts/ptmx"),
];

/// Device nodes: name, major, minor (Linux, `devices.txt`).
pub(crate) const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// What of `/proc` stays readable but not writable: settings of the kernel.
pub(crate) const PROC_READ_ONLY: [&str; 5] = ["sys", "bus", "fs", "irq", "scsi"];

/// What of `/proc` reads as empty: it tells of, or reaches into, the whole kernel. Absent names are left out.
#[rustfmt::skip]
pub(crate) const PROC_MASKED: [(&str, &str); 14] = [ // name, reason
    ("kallsyms",      "kernel addresses"),
    ("kcore",         "kernel memory"),
    ("key-users",     "keyrings of every user"),
    ("keys",          "keyrings of every user"),
    ("kmsg",          "the kernel's log"),
    ("kpagecount",    "physical pages"),
    ("kpageflags",    "physical pages"),
    ("latency_stats", "other processes' timing"),
    ("modules",       "what the kernel has loaded"),
    ("mtrr",          "memory types of the machine; writable"),
    ("sched_debug",   "every process of the host"),
    ("sysrq-trigger", "reboots the host"),
    ("timer_list",    "every timer of the host"),
    ("vmallocinfo",   "kernel addresses"),
];

/// Targets that a request's mount may neither be nor be beneath: the sandbox makes these itself.
pub(crate) const RESERVED_TARGETS: [&str; 11] =
    ["/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr"];
