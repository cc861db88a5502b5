//! The system calls that a payload may make.
//!
//! A number that is on no list is `ENOSYS`: a program that probes for a newer call falls back, as it would on an
//! older kernel. A known call that is refused is `EPERM`, as for any process without privileges. A call of another
//! architecture, or of the x32 ABI, kills the process, since its numbers mean other calls.

use std::ffi::c_long;

/// A call's name in `libc`, and its number on this architecture.
pub(crate) type Call = (&'static str, c_long);

/// Calls with one reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) reason: &'static str,
    pub(crate) calls: &'static [Call],
}

/// Calls that are refused when an argument says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) reason: &'static str,
    pub(crate) calls: &'static [Call],
    /// Refused if all of these hold.
    pub(crate) when: &'static [When],
}

/// A condition on one argument, counted from 0. Of a number the kernel reads the low 32 bits: comparing more of it is
/// how filters of `ioctl` requests were got around (CVE-2019-10063).
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Is(u8, u32),
    IsNot(u8, u32),
    /// Any of these bits is set.
    Has(u8, u32),
    /// A pointer, all 64 bits of it, that is not null.
    Given(u8),
}

macro_rules! names {
    ($($name:ident)+) => { &[$((stringify!($name), libc::$name)),+] };
}

macro_rules! calls {
    ($($reason:literal: $($name:ident)+;)+) => { &[$(Calls { reason: $reason, calls: names![$($name)+] }),+] };
}

/// Allowed, whatever their arguments, unless [`REFUSED`] says otherwise.
#[rustfmt::skip]
pub(crate) const ALLOWED: &[Calls] = calls! {
    "reading and writing what is open":
        SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2
        SYS_pwritev2 SYS_lseek SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range SYS_readahead
        SYS_fadvise64 SYS_sync_file_range;
    "descriptors: each is one that the payload opened, or one of its standard streams":
        SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_fcntl SYS_flock SYS_ioctl SYS_pipe2 SYS_eventfd2 SYS_memfd_create
        SYS_pidfd_open SYS_pidfd_getfd SYS_pidfd_send_signal;
    "files and directories: mounts, owners and Landlock say which":
        SYS_openat SYS_faccessat SYS_faccessat2 SYS_newfstatat SYS_fstat SYS_statx SYS_statfs SYS_fstatfs SYS_readlinkat
        SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_renameat2 SYS_linkat
        SYS_symlinkat SYS_truncate SYS_ftruncate SYS_fallocate SYS_fchmod SYS_fchmodat SYS_fchown
        SYS_fchownat SYS_utimensat SYS_umask;
    "durability":
        SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_msync;
    "extended attributes: without capabilities, those of `user.` alone can be set":
        SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_setxattr
        SYS_lsetxattr SYS_fsetxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr;
    "waiting for descriptors":
        SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_signalfd4
        SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_inotify_init1 SYS_inotify_add_watch
        SYS_inotify_rm_watch;
    "memory":
        SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_process_madvise SYS_mincore SYS_mlock
        SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_membarrier SYS_pkey_alloc
        SYS_pkey_free SYS_pkey_mprotect SYS_mbind SYS_get_mempolicy SYS_set_mempolicy SYS_process_mrelease SYS_mseal;
    "processes and threads: the pid namespace, the process limit and the conditions on clone say which":
        SYS_clone SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_set_tid_address SYS_gettid
        SYS_getpid SYS_getppid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_set_robust_list SYS_get_robust_list
        SYS_rseq SYS_prctl SYS_restart_syscall;
    "signals: none leaves the pid namespace":
        SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigpending SYS_rt_sigtimedwait
        SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_rt_sigreturn SYS_sigaltstack;
    "locks between threads":
        SYS_futex SYS_futex_waitv;
    "clocks and timers: reading, and timers of one's own":
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep SYS_getitimer
        SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
        SYS_times;
    "scheduling of one's own, which without capabilities only yields: the conditions keep pid 1's":
        SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getparam SYS_sched_setparam
        SYS_sched_getscheduler SYS_sched_setscheduler SYS_sched_getattr SYS_sched_setattr SYS_sched_get_priority_max
        SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getpriority SYS_setpriority SYS_ioprio_get
        SYS_ioprio_set SYS_getcpu;
    "who one is, and becoming what one is already":
        SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid
        SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups SYS_capget
        SYS_capset;
    "limits of one's own, which only sink: the conditions keep pid 1's":
        SYS_prlimit64 SYS_getrlimit SYS_setrlimit SYS_getrusage;
    "what machine this is":
        SYS_uname SYS_sysinfo SYS_getrandom;
    "sockets: the network namespace has loopback alone, and the conditions say which families":
        SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname
        SYS_getpeername SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_shutdown
        SYS_setsockopt SYS_getsockopt;
    "System V and POSIX communication: the ipc namespace is the run's own":
        SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget SYS_msgsnd
        SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
        SYS_mq_getsetattr;
    "debuggers and profilers of one's own children: Landlock keeps pid 1 out of reach":
        SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev;
    "personality: the conditions say which":
        SYS_personality;
    "confining oneself further":
        SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self;
};

/// Allowed on x86-64: older calls of the same kinds, which other architectures never had.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const ALLOWED_HERE: &[Calls] = calls! {
    "the older forms of calls above":
        SYS_open SYS_creat SYS_access SYS_stat SYS_lstat SYS_readlink SYS_getdents SYS_mkdir SYS_mknod SYS_rmdir
        SYS_unlink SYS_rename SYS_renameat SYS_link SYS_symlink SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes
        SYS_futimesat SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd
        SYS_inotify_init SYS_fork SYS_vfork SYS_getpgrp SYS_pause SYS_alarm SYS_time;
    "thread-local storage and the processor's own state":
        SYS_arch_prctl;
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ALLOWED_HERE: &[Calls] = &[];

/// Known and refused with `EPERM`. Each would do nothing without a capability, or is a door that has been opened before.
#[rustfmt::skip]
pub(crate) const DENIED: &[Calls] = calls! {
    "the mount table is finished":
        SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount
        SYS_fspick SYS_mount_setattr SYS_swapon SYS_swapoff SYS_quotactl SYS_quotactl_fd SYS_acct;
    "namespaces: a user namespace of its own would give the payload capabilities":
        SYS_unshare SYS_setns;
    "io_uring makes sockets and opens files past a filter of system calls":
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register;
    "asynchronous reads of the old kind take from a number that the whole host shares (fs.aio-max-nr)":
        SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents;
    "userfaultfd stops kernel threads at a chosen moment, which exploits are made of":
        SYS_userfaultfd;
    "programs inside the kernel, and its counters":
        SYS_bpf SYS_perf_event_open SYS_fanotify_init SYS_fanotify_mark SYS_lookup_dcookie;
    "keyrings belong to no namespace":
        SYS_add_key SYS_request_key SYS_keyctl;
    "handles open files past the mount table":
        SYS_name_to_handle_at SYS_open_by_handle_at;
    "the kernel itself":
        SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_reboot SYS_syslog SYS_vhangup
        SYS_sethostname SYS_setdomainname;
    "the clock of the machine":
        SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime;
    "other processes' pages and resources":
        SYS_migrate_pages SYS_move_pages SYS_kcmp;
};

/// As [`DENIED`], on x86-64.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const DENIED_HERE: &[Calls] = calls! {
    "ports of the machine, and segments that exploits are made of":
        SYS_iopl SYS_ioperm SYS_modify_ldt;
    "the kernel itself":
        SYS_kexec_file_load;
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const DENIED_HERE: &[Calls] = &[];

/// `CLONE_NEW*` of `linux/sched.h` that `clone` takes.
const CLONE_NEW: u32 = 0x7e02_0000;
/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;
const CREATE: u32 = libc::O_CREAT.cast_unsigned();
/// The bit of `O_TMPFILE` that is not `O_DIRECTORY`.
const TEMPORARY: u32 = 0o20_000_000;

/// Refused with `EPERM` when the conditions hold.
#[rustfmt::skip]
pub(crate) const REFUSED: &[Refused] = &[
    Refused { reason: "namespaces", calls: names![SYS_clone], when: &[When::Has(0, CLONE_NEW)] },
    Refused { reason: "pushes keys into a terminal", calls: names![SYS_ioctl], when: &[When::Is(1, 0x5412)] }, // TIOCSTI
    Refused { reason: "pastes into a console",       calls: names![SYS_ioctl], when: &[When::Is(1, 0x541C)] }, // TIOCLINUX
    Refused { reason: "loads line disciplines",      calls: names![SYS_ioctl], when: &[When::Is(1, 0x5423)] }, // TIOCSETD
    Refused {
        reason: "READ_IMPLIES_EXEC and ADDR_NO_RANDOMIZE weaken memory; 0, 8 (32-bit), UNAME26 and asking do not",
        calls: names![SYS_personality],
        when: &[When::IsNot(0, 0), When::IsNot(0, 8), When::IsNot(0, 0x2_0000), When::IsNot(0, 0x2_0008),
                When::IsNot(0, u32::MAX)],
    },
    // Where core dumps go to a program of the host's, the limit of 1 keeps it from being started; at 0 it would be.
    Refused {
        reason: "a crash must start no program of the host's",
        calls: names![SYS_prlimit64],
        when: &[When::Is(1, libc::RLIMIT_CORE), When::Given(2)],
    },
    Refused {
        reason: "a crash must start no program of the host's",
        calls: names![SYS_setrlimit],
        when: &[When::Is(0, libc::RLIMIT_CORE)],
    },
    // Pid 1 has the payload's uid, so the kernel alone would let the payload starve it or end it by a limit.
    Refused {
        reason: "pid 1's limits are the sandbox's",
        calls: names![SYS_prlimit64],
        when: &[When::Is(0, 1), When::Given(2)],
    },
    Refused {
        reason: "pid 1's share of the processor is the sandbox's",
        calls: names![SYS_sched_setaffinity SYS_sched_setparam SYS_sched_setscheduler SYS_sched_setattr],
        when: &[When::Is(0, 1)],
    },
    Refused {
        reason: "pid 1's share of the processor and of disks is the sandbox's",
        calls: names![SYS_setpriority SYS_ioprio_set],
        when: &[When::Is(1, 1)],
    },
    Refused {
        reason: "all processes of a user (PRIO_USER): pid 1 is among them",
        calls: names![SYS_setpriority],
        when: &[When::Is(0, 2)],
    },
    Refused {
        reason: "all processes of a user (IOPRIO_WHO_USER): pid 1 is among them",
        calls: names![SYS_ioprio_set],
        when: &[When::Is(0, 3)],
    },
    // In a writable mount the payload's files belong to the directory's owner outside, who may be root.
    Refused { reason: "a set-ID file would outlive the run", calls: names![SYS_fchmod], when: &[When::Has(1, SET_ID)] },
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_fchmodat SYS_mknodat],
        when: &[When::Has(2, SET_ID)],
    },
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_openat],
        when: &[When::Has(2, CREATE), When::Has(3, SET_ID)],
    },
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_openat],
        when: &[When::Has(2, TEMPORARY), When::Has(3, SET_ID)],
    },
];

/// As [`REFUSED`], on x86-64.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const REFUSED_HERE: &[Refused] = &[
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_chmod SYS_mknod SYS_creat],
        when: &[When::Has(1, SET_ID)],
    },
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_open],
        when: &[When::Has(1, CREATE), When::Has(2, SET_ID)],
    },
    Refused {
        reason: "a set-ID file would outlive the run",
        calls: names![SYS_open],
        when: &[When::Has(1, TEMPORARY), When::Has(2, SET_ID)],
    },
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const REFUSED_HERE: &[Refused] = &[];

/// Refused with `EAFNOSUPPORT`, as by a kernel without these families.
#[rustfmt::skip]
pub(crate) const FAMILIES_REFUSED: &[Refused] = &[
    Refused {
        reason: "AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK alone: AF_VSOCK reaches the hypervisor from any namespace",
        calls: names![SYS_socket SYS_socketpair],
        when: &[When::IsNot(0, 1), When::IsNot(0, 2), When::IsNot(0, 10), When::IsNot(0, 16)],
    },
    Refused {
        reason: "of netlink, NETLINK_ROUTE alone, which lists interfaces",
        calls: names![SYS_socket],
        when: &[When::Is(0, 16), When::IsNot(2, 0)],
    },
];
