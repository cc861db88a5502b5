//! What a payload sees of the host, what it is, and what it may do with what it was given.

mod harness;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Scratch, finish, output, processes_with, python_run, shell, text};
use tack_sandbox_client::protocol::{Cause, Layer, LayerState, Reason, Stage};
use tack_sandbox_client::{Access, Mount, Run, Source};

#[test]
fn the_root_holds_what_is_listed_and_nothing_else_of_the_host() {
    if !harness::can_sandbox("the root") {
        return;
    }
    let names = output(&shell("ls -A /"));
    let listed = [
        "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "tmp", "usr",
        "var",
    ];
    for name in names.lines() {
        assert!(listed.contains(&name), "`/{name}` is on no list");
    }
    let empty = output(&shell("ls -A /home /root /run /tmp /var/tmp /dev/shm | grep -v : ; echo end"));
    assert_eq!(empty.trim(), "end", "private directories begin empty");
    let devices = output(&shell("ls -A /dev"));
    let expected = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(devices.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    // The control: what is missing inside is there outside.
    assert!(fs::exists("/etc/shadow").unwrap());
    assert!(!fs::read_dir("/sys").unwrap().next().unwrap().unwrap().file_name().is_empty());
}

#[test]
fn a_host_file_under_a_temporary_directory_is_not_there_inside() {
    if !harness::can_sandbox("the host's files") {
        return;
    }
    let scratch = Scratch::new("secret");
    let secret = scratch.0.join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let script = format!("cat {0}; ls /proc/1/root{0}; ls -d /..{0}; echo end", secret.display());
    let finished = finish(&shell(&script));
    let error = String::from_utf8_lossy(&finished.stderr.head).into_owned();
    assert_eq!(error.matches("No such file").count(), 2, "{error}");
    assert_eq!(error.matches("Permission denied").count(), 1, "pid 1's root cannot be followed: {error}");
    assert_eq!(finished.stdout.head, b"end\n");
    assert_eq!(fs::read(&secret).unwrap(), b"secret", "the control");
}

#[test]
fn a_payload_is_nobody_with_nothing() {
    if !harness::can_sandbox("the payload's identity") {
        return;
    }
    let status = output(&shell("cat /proc/self/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    assert_eq!(field("Uid"), "1000 1000 1000 1000");
    assert_eq!(field("Gid"), "1000 1000 1000 1000");
    assert_eq!(field("Groups"), "");
    for signals in ["SigBlk", "SigIgn", "SigCgt"] {
        // The shell itself catches SIGINT and SIGCHLD at most; nothing is ignored or blocked.
        let set = u64::from_str_radix(&field(signals), 16).unwrap();
        assert!(signals == "SigCgt" || set == 0, "{signals} {set:x}");
    }
    // The control: this process has what the payload lacks.
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert!(own.contains("NoNewPrivs:\t0") && !own.contains("CapEff:\t0000000000000000"));

    let maps = output(&shell("cat /proc/self/uid_map /proc/self/gid_map"));
    for line in maps.lines() {
        let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!((ids[0], ids[2]), (1_000, 1), "{line}");
        assert!(ids[1] >= 0x7000_0000, "a host id of its own, and never 0: {line}");
    }
}

#[test]
fn a_payload_sees_its_own_processes_and_descriptors_alone() {
    if !harness::can_sandbox("the payload's surroundings") {
        return;
    }
    // A descriptor that a careless client lets its children inherit.
    let script = "ls /proc | grep -E '^[0-9]+$' | tr '\\n' ' '; echo; exec ls -l /proc/self/fd";
    let seen = output(&shell(script));
    let (processes, descriptors) = seen.split_once('\n').unwrap();
    assert!(processes.split_whitespace().count() <= 6, "{processes}");
    assert!(processes.starts_with("1 "), "{processes}");
    let descriptors: Vec<_> = descriptors.lines().filter(|line| line.contains("->")).collect();
    // Standard streams, and the directory that `ls` has open.
    assert_eq!(descriptors.len(), 4, "{descriptors:?}");
    assert!(descriptors[0].ends_with("/dev/null"), "{}", descriptors[0]);
    assert!(descriptors[1].contains("pipe:") && descriptors[2].contains("pipe:"), "{descriptors:?}");

    let mut run = shell("ls /proc/self/fd | tr '\\n' ' '");
    run.report = true;
    assert_eq!(output(&run), "0 1 2 3 4 ", "the report at 3, and the directory");
}

#[test]
fn standard_input_is_empty_and_the_session_is_its_own() {
    if !harness::can_sandbox("standard input") {
        return;
    }
    let seen = output(&shell("cat; wc -c </dev/stdin; umask; pwd; hostname; cut -d' ' -f6 /proc/self/stat; echo $$"));
    let lines: Vec<_> = seen.split_whitespace().collect();
    assert_eq!(lines[..4], ["0", "0022", "/tmp", "tack"]);
    assert_eq!(lines[4], lines[5], "the shell leads a session");
    assert_ne!(lines[5], "1", "the payload is not pid 1");
}

#[test]
fn the_environment_is_the_request_s_and_no_more() {
    if !harness::can_sandbox("the environment") {
        return;
    }
    let mut run = Run::new(["/usr/bin/env"], "/tmp");
    assert_eq!(
        output(&run),
        "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\nHOME=/tmp\nTMPDIR=/tmp\nLANG=C.UTF-8\n"
    );
    run.environment = vec![("ONLY".into(), "this = one".into())];
    assert_eq!(output(&run), "ONLY=this = one\n");
    // The control: there is something to inherit.
    assert!(std::env::vars_os().count() > 4);
}

#[test]
fn a_writable_mount_belongs_to_the_payload_inside_and_to_its_owner_outside() {
    if !harness::can_sandbox("writable mounts") {
        return;
    }
    let scratch = Scratch::new("writable");
    let own = scratch.0.join("own");
    fs::write(&own, "before").unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).unwrap();
    let mut run = shell("cat own && echo after >own && mkdir d && echo new >d/new && stat -c '%u %g' own d/new");
    run.directory = "/task/tree".into();
    run.mounts.push(scratch.mount("/task/tree", Access::ReadWrite));
    let finished = finish(&run);
    assert_eq!(finished.stdout.head, b"before1000 1000\n1000 1000\n", "{:?}", finished.receipt.cause);
    assert_eq!(finished.receipt.layers.state(Layer::OwnedMounts), LayerState::Active);
    assert_eq!(fs::read(&own).unwrap(), b"after\n");
    let made = fs::metadata(scratch.0.join("d/new")).unwrap();
    let owner = fs::metadata(&scratch.0).unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (owner.uid(), owner.gid(), 0o644));
}

#[test]
fn no_set_id_file_is_made_where_files_belong_to_root_outside() {
    if !harness::can_sandbox("set-ID files") {
        return;
    }
    let scratch = Scratch::new("set-id");
    let script = "import ctypes, errno, os, stat\n\
                  libc = ctypes.CDLL(None, use_errno=True)\n\
                  def attempt(name, what):\n\
                  \x20   try: what(); print(name, 'works')\n\
                  \x20   except OSError as error: print(name, errno.errorcode[error.errno])\n\
                  os.close(os.open('f', os.O_CREAT | os.O_WRONLY, 0o755))\n\
                  for mode in (0o4755, 0o2755, 0o6755, 0o1755):\n\
                  \x20   attempt(f'chmod {mode:o}', lambda: os.chmod('f', mode))\n\
                  \x20   attempt(f'fchmod {mode:o}', lambda: os.fchmod(os.open('f', 0), mode))\n\
                  \x20   attempt(f'open {mode:o}', lambda: os.close(os.open(f'o{mode:o}', os.O_CREAT | os.O_WRONLY, mode)))\n\
                  \x20   attempt(f'tmpfile {mode:o}', lambda: os.close(os.open('.', os.O_TMPFILE | os.O_WRONLY, mode)))\n\
                  \x20   attempt(f'mknod {mode:o}', lambda: os.mknod(f'n{mode:o}', stat.S_IFREG | mode))\n\
                  \x20   attempt(f'mkfifo {mode:o}', lambda: os.mkfifo(f'p{mode:o}', mode))\n\
                  # openat2 hides its mode behind a pointer.\n\
                  how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)\n\
                  done = libc.syscall(437, -100, b'z', how, 24)\n\
                  print('openat2', errno.errorcode[ctypes.get_errno()] if done < 0 else 'works')\n\
                  # A plain open that leaves junk in the mode is no creation.\n\
                  print('read', libc.syscall(2, b'f', 0, 0o4755) > 2)\n";
    let Some(mut run) = python_run("set-ID files", script) else { return };
    run.directory = "/task".into();
    run.mounts.push(scratch.mount("/task", Access::ReadWrite));
    let seen = output(&run);
    for line in seen.lines() {
        let expected = match line.split(' ').collect::<Vec<_>>()[..] {
            ["openat2", _] => "openat2 ENOSYS".to_owned(),
            ["read", _] => "read True".to_owned(),
            [how, "1755", _] => format!("{how} 1755 works"),
            [how, mode, _] => format!("{how} {mode} EPERM"),
            _ => panic!("{line}"),
        };
        assert_eq!(line, expected);
    }
    assert_eq!(seen.lines().count(), 26);
    for entry in fs::read_dir(&scratch.0).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o6000, 0, "{mode:o}");
    }
}

#[test]
fn a_set_user_id_program_gives_nothing() {
    if !harness::can_sandbox("set-user-ID programs") {
        return;
    }
    let scratch = Scratch::new("set-user-id");
    let program = scratch.0.join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
    let mut run = shell("/task/id -u; /task/id -ru");
    run.mounts.push(scratch.mount("/task", Access::ReadOnly));
    assert_eq!(output(&run), "1000\n1000\n");
    // The control: outside, somebody else becomes its owner by it, unless the directory's mount forbids that too.
    let control = Command::new(&program).arg("-u").uid(65_534).gid(65_534).output().unwrap();
    let owner = fs::metadata(&program).unwrap().uid();
    if text(&control.stdout).trim() != owner.to_string() {
        harness::skipped("the control of set-user-ID programs", "a temporary directory without `nosuid`");
    }
}

#[test]
fn a_read_only_mount_is_read_even_where_only_its_owner_may_and_never_written() {
    if !harness::can_sandbox("read-only mounts") {
        return;
    }
    let scratch = Scratch::new("read-only");
    let file = scratch.0.join("file");
    fs::write(&file, "content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).unwrap();
    let mut run = shell(
        "cat file; echo x >file; echo x >new; rm file; chmod 644 file; mv file other; ln file link; test -w file || echo read-only",
    );
    run.directory = "/task".into();
    run.mounts.push(scratch.mount("/task", Access::ReadOnly));
    let finished = finish(&run);
    assert_eq!(finished.stdout.head, b"contentread-only\n", "access(2) agrees with open(2)");
    let error = String::from_utf8_lossy(&finished.stderr.head);
    assert_eq!(error.matches("Read-only file system").count(), 6, "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn a_mount_inside_a_mount_needs_its_place_there_and_leaves_no_stub() {
    if !harness::can_sandbox("nested mounts") {
        return;
    }
    let (outer, inner) = (Scratch::new("outer"), Scratch::new("inner"));
    fs::create_dir(outer.0.join("protected")).unwrap();
    fs::write(inner.0.join("rule"), "rule").unwrap();
    let nested = |target: &str| {
        let mut run = shell("cat protected/rule && echo x >protected/rule; echo x >free && cat free");
        run.directory = "/task".into();
        run.mounts = vec![outer.mount("/task", Access::ReadWrite), inner.mount(target, Access::ReadOnly)];
        finish(&run)
    };
    let finished = nested("/task/protected");
    assert_eq!(finished.stdout.head, b"rulex\n");
    assert!(String::from_utf8_lossy(&finished.stderr.head).contains("Read-only file system"));
    let Cause::SetUp(failure) = nested("/task/absent").receipt.cause else { panic!("a missing place is an error") };
    assert_eq!((failure.stage, failure.errno, failure.mount), (Stage::Mounts, libc::ENOENT, Some(1)));
    let mut names: Vec<_> = fs::read_dir(&outer.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["free", "protected"], "no mount point was made in the workspace");
}

#[test]
fn a_mount_inside_a_mount_is_seen_in_whichever_order_they_are_asked_for() {
    if !harness::can_sandbox("the order of mounts") {
        return;
    }
    let outer = Scratch::new("order");
    fs::create_dir(outer.0.join("inner")).unwrap();
    let mut inner = outer.mount("/task/inner", Access::ReadWrite);
    inner.source = outer.0.join("inner").into();
    for turned in [false, true] {
        let mut run = shell("echo x >inner/file && cat inner/file && rm inner/file; echo x >file");
        run.directory = "/task".into();
        run.mounts = vec![outer.mount("/task", Access::ReadOnly), inner.clone()];
        if turned {
            run.mounts.reverse();
        }
        let finished = finish(&run);
        assert_eq!(finished.stdout.head, b"x\n", "turned: {turned}");
        assert!(String::from_utf8_lossy(&finished.stderr.head).contains("Read-only file system"), "turned: {turned}");
    }
}

#[test]
fn a_scratch_is_changed_inside_and_never_outside() {
    if !harness::can_sandbox("scratch directories") {
        return;
    }
    let host = Scratch::new("scratch");
    let tree = host.0.join("tree");
    fs::create_dir_all(tree.join("lower/deep")).unwrap();
    for (name, mode) in [("file", 0o600), ("tool", 0o755), ("lower/deep/x", 0o644), ("odd\nname: ,\\", 0o644)] {
        fs::write(tree.join(name), "text").unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o750)).unwrap();
    let look = || {
        let list = Command::new("find").arg(&tree).args(["-printf", "%p %y %m %u %s %T@ %i\\n"]).output().unwrap();
        (list.stdout, fs::read(tree.join("file")).unwrap())
    };
    let before = look();
    let with = |script: &str| {
        let mut run = shell(script);
        run.directory = "/task".into();
        run.mounts = vec![Mount { source: tree.clone().into(), target: "/task".into(), access: Access::Scratch }];
        run.limits.tmp_bytes = 8 << 20;
        finish(&run)
    };
    let script = "set -e; stat -c '%a %u' . file tool; echo more >>file; ln tool hard; echo changed >hard; mv lower moved; \
                  rm moved/deep/x; mkdir -p new/deep; echo n >new/deep/n; chmod 700 tool; ln -s ../file new/link; \
                  cat file hard new/link; ls -A | wc -l; rm -r moved; mv 'odd\nname: ,\\' odd 2>/dev/null || ls odd*";
    for _ in 0..2 {
        let finished = with(script);
        let error = String::from_utf8_lossy(&finished.stderr.head);
        let seen = String::from_utf8_lossy(&finished.stdout.head);
        assert!(seen.starts_with("750 1000\n600 1000\n755 1000\ntextmore\nchanged\ntextmore\n7\n"), "{seen}{error}");
        assert_eq!(finished.receipt.exit_status(), Some(0), "{error}");
    }
    assert_eq!(look(), before, "what was given is as it was, and the second run saw it so");

    let finished = with("head -c 20000000 /dev/zero >big; rm -f big; echo still here >small && cat small");
    assert_eq!(finished.stdout.head, b"still here\n");
    assert!(String::from_utf8_lossy(&finished.stderr.head).contains("No space left"), "a scratch has its size");
    let Some(mut run) = python_run(
        "locks and watches on a scratch",
        "import ctypes, fcntl, os, struct\n\
         libc = ctypes.CDLL(None)\n\
         watch = libc.inotify_init()\n\
         assert libc.inotify_add_watch(watch, b'/task', 0x2) >= 0, 'IN_MODIFY'\n\
         with open('/task/file', 'a') as file:\n\
         \x20   fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX); file.write('x')\n\
         event = os.read(watch, 4096)\n\
         print(event[16:16 + struct.unpack('iIII', event[:16])[3]].rstrip(b'\\0').decode())\n",
    ) else {
        return;
    };
    run.mounts.push(Mount { source: tree.clone().into(), target: "/task".into(), access: Access::Scratch });
    assert_eq!(output(&run), "file\n");
    assert_eq!(look(), before);
}

#[test]
fn what_was_opened_is_what_is_seen_whatever_becomes_of_its_name() {
    if !harness::can_sandbox("sources by descriptor") {
        return;
    }
    let scratch = Scratch::new("swapped");
    let (name, away, secret) = (scratch.0.join("given"), scratch.0.join("away"), scratch.0.join("secret"));
    for (directory, text) in [(&name, "given"), (&secret, "secret")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("text"), text).unwrap();
    }
    let mut run = shell("cat text");
    run.directory = "/task".into();
    run.mounts = vec![Mount { source: Source::open(&name).unwrap(), target: "/task".into(), access: Access::ReadOnly }];
    assert_eq!(finish(&run).stdout.head, b"given", "the control");
    fs::rename(&name, away).unwrap();
    std::os::unix::fs::symlink(&secret, &name).unwrap();
    assert_eq!(finish(&run).stdout.head, b"given", "the name leads elsewhere now");
}

/// A client whose name for a directory is swapped for a link to another, over and over, shows one of the two as a whole
/// and never anything else; a source that was opened stays what it was.
#[test]
fn a_name_that_is_swapped_while_it_is_opened_never_shows_a_third_thing() {
    const OPENINGS: usize = 2_000;
    if !harness::can_sandbox("the swap of a directory for a link") {
        return;
    }
    let scratch = Scratch::new("race");
    let (name, held, link) = (scratch.0.join("given"), scratch.0.join("held"), scratch.0.join("link"));
    fs::create_dir(&name).unwrap();
    fs::write(name.join("text"), "given").unwrap();
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut whole, mut swapped) = (0_u32, 0_u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::rename(&name, &held).unwrap();
                fs::rename(&link, &name).unwrap();
                fs::rename(&name, &link).unwrap();
                fs::rename(&held, &name).unwrap();
            }
        });
        let end = Instant::now() + Duration::from_secs(30);
        // Longer where the other thread was not let run: both sides of the swap are to be met.
        for round in 0.. {
            let met = whole > 0 && swapped > 0;
            if round >= OPENINGS && (met || Instant::now() > end) {
                break;
            }
            // For a moment there is nothing of that name.
            let Ok(source) = Source::open(&name) else { continue };
            let before = source.name().unwrap();
            if before.starts_with("/etc") {
                swapped += 1;
            } else {
                whole += 1;
            }
            if round % 100 == 0 {
                let mut run = shell("cat text 2>/dev/null || echo other");
                run.directory = "/task".into();
                run.mounts = vec![Mount { source, target: "/task".into(), access: Access::ReadOnly }];
                let expected: &[u8] = if before.starts_with("/etc") { b"other\n" } else { b"given" };
                assert_eq!(finish(&run).stdout.head, expected, "{}", before.display());
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(whole > 0 && swapped > 0, "both were met: {whole} and {swapped}");
}

#[test]
fn a_symbolic_link_planted_at_a_mount_s_place_is_not_followed() {
    if !harness::can_sandbox("planted links") {
        return;
    }
    let (outer, inner) = (Scratch::new("planted"), Scratch::new("bound"));
    std::os::unix::fs::symlink("/etc", outer.0.join("link")).unwrap();
    for target in ["/task/link", "/task/link/ssl"] {
        let mut run = shell("true");
        run.mounts = vec![outer.mount("/task", Access::ReadWrite), inner.mount(target, Access::ReadOnly)];
        let Cause::SetUp(failure) = finish(&run).receipt.cause else { panic!("{target} was followed") };
        assert_eq!((failure.stage, failure.errno, failure.mount), (Stage::Mounts, libc::ENOTDIR, Some(1)), "{target}");
    }
}

#[test]
fn what_must_not_be_mounted_is_refused() {
    if !harness::can_sandbox("refused mounts") {
        return;
    }
    #[rustfmt::skip]
    let cases = [ // source, target, errno
        ("/",              "/task",      libc::EACCES), // the whole host
        ("/proc",          "/task",      libc::EACCES), // windows into the kernel
        ("/proc/self",     "/task",      libc::EACCES),
        ("/sys",           "/task",      libc::EACCES),
        ("/dev/null",      "/task",      libc::ENODEV), // neither file nor directory
        ("/tmp",           "/usr/local", libc::EINVAL), // the sandbox's own
        ("/tmp",           "/proc",      libc::EINVAL),
        ("/tmp",           "/",          libc::EINVAL),
        ("/tmp",           "work",       libc::EINVAL),
        ("/tmp",           "/a/../b",    libc::EINVAL),
    ];
    for (source, target, errno) in cases {
        let mut run = shell("true");
        let mount = |source: &str, target: &str| Mount {
            source: source.into(),
            target: target.into(),
            access: Access::ReadOnly,
        };
        run.mounts = vec![mount("/usr/bin", "/fine"), mount(source, target)];
        let Cause::SetUp(failure) = finish(&run).receipt.cause else { panic!("{source} on {target} was mounted") };
        assert_eq!((failure.stage, failure.errno, failure.mount), (Stage::Mounts, errno, Some(1)), "{source} {target}");
    }
}

#[test]
fn the_host_s_sockets_are_out_of_reach() {
    if !harness::can_sandbox("the host's sockets") {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let script = format!(
        "import socket, errno\n\
         s = socket.socket()\n\
         print(errno.errorcode[s.connect_ex(('127.0.0.1', {port}))])\n\
         u = socket.socket(socket.AF_INET6)\n\
         print(errno.errorcode[u.connect_ex(('2001:db8::1', 9))])\n\
         try: socket.getaddrinfo('example.org', 80)\n\
         except socket.gaierror as e: print(e.errno == socket.EAI_AGAIN or e.errno == socket.EAI_NONAME)\n\
         print(socket.gethostbyname('localhost'), [name for _, name in socket.if_nameindex()])"
    );
    let Some(run) = python_run("the host's sockets", &script) else { return };
    assert_eq!(output(&run), "ECONNREFUSED\nENETUNREACH\nTrue\n127.0.0.1 ['lo']\n");
    // The control: outside, the same address answers.
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
}

#[test]
fn two_sandboxes_serve_on_one_port_and_share_no_memory() {
    const MEMORY_KEY: i32 = 0x7ac_0de;
    if !harness::can_sandbox("neighbors") {
        return;
    }
    // Both hold the port and the names until both have said so; each then looks for what the other has.
    let scratch = Scratch::new("neighbors");
    let script = format!(
        "import ctypes, os, socket, sys, time\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         me, other = sys.argv[1:]\n\
         server = socket.socket(); server.bind(('127.0.0.1', 4711)); server.listen()\n\
         named = socket.socket(socket.AF_UNIX); named.bind('\\0tack-' + me)\n\
         assert libc.shmget({MEMORY_KEY}, 4096, 0o1666) >= 0, 'its own segment, new with IPC_CREAT'\n\
         open('/dev/shm/' + me, 'w').close(); open('/tmp/' + me, 'w').close()\n\
         open('/task/' + me, 'w').close()\n\
         while not os.path.exists('/task/' + other): time.sleep(0.01)\n\
         client = socket.create_connection(('127.0.0.1', 4711)); server.accept()[0].send(me.encode())\n\
         stranger = socket.socket(socket.AF_UNIX)\n\
         print(client.recv(9).decode(), stranger.connect_ex('\\0tack-' + other), os.listdir('/dev/shm'), os.listdir('/tmp'))\n\
         open('/task/' + me + '-done', 'w').close()\n\
         while not os.path.exists('/task/' + other + '-done'): time.sleep(0.01)\n"
    );
    let Some(first) = python_run("neighbors", &script) else { return };
    let run = |me: &str, other: &str| {
        let mut run = first.clone();
        run.argv.extend([me.into(), other.into()]);
        run.mounts.push(scratch.mount("/task", Access::ReadWrite));
        run
    };
    let (a, b) = (run("a", "b"), run("b", "a"));
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(|| output(&a));
        (output(&b), a.join().unwrap())
    });
    let refused = libc::ECONNREFUSED;
    assert_eq!(b, format!("a {refused} ['a'] ['a']\n"));
    assert_eq!(a, format!("b {refused} ['b'] ['b']\n"));
    // Nor does the host see a segment of that key.
    let listed = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    assert!(!listed.contains(&MEMORY_KEY.to_string()), "{listed}");
}

#[test]
fn every_thread_is_confined() {
    if !harness::can_sandbox("threads") {
        return;
    }
    let script = "import os, threading, time\n\
                  threads = [threading.Thread(target=time.sleep, args=(0.3,)) for _ in range(8)]\n\
                  for thread in threads: thread.start()\n\
                  seen = set()\n\
                  for task in os.listdir('/proc/self/task'):\n\
                  \x20   lines = open(f'/proc/self/task/{task}/status').read().splitlines()\n\
                  \x20   seen.add(tuple(line for line in lines if line.startswith(('NoNewPrivs', 'Seccomp', 'CapEff', 'CapBnd'))))\n\
                  print(len(os.listdir('/proc/self/task')), len(seen), *[line.split()[1] for line in seen.pop()])\n";
    let Some(run) = python_run("threads", script) else { return };
    let zero = "0000000000000000";
    let seen = output(&run);
    assert!(seen.starts_with(&format!("9 1 {zero} {zero} 1 2 ")), "{seen}");
}

#[test]
fn the_kernel_s_files_are_masked() {
    if !harness::can_sandbox("masked files") {
        return;
    }
    let seen = output(&shell(
        "for name in kallsyms keys key-users modules timer_list; do wc -c </proc/$name 2>&1; done; \
         grep -E ' /proc/sys .*ro,' /proc/mounts | wc -l; cat /proc/cpuinfo | wc -l",
    ));
    let lines: Vec<_> = seen.lines().collect();
    let (cpu_lines, rest) = lines.split_last().unwrap();
    let (read_only, masked) = rest.split_last().unwrap();
    assert!(masked.iter().all(|line| *line == "0" || line.contains("No such file")), "{masked:?}");
    assert_eq!(*read_only, "1", "/proc/sys is read-only");
    assert_ne!(*cpu_lines, "0", "what programs need is there");
    // The control: outside it is not empty.
    assert!(!fs::read("/proc/kallsyms").unwrap().is_empty());
}

#[test]
fn receipts_say_which_layers_held() {
    if !harness::can_sandbox("layers") {
        return;
    }
    let receipt = finish(&shell("true")).receipt;
    let always = [
        Layer::UserNamespace,
        Layer::MountNamespace,
        Layer::PidNamespace,
        Layer::NetworkNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::CgroupNamespace,
        Layer::AllowListedRoot,
        Layer::MaskedProc,
        Layer::PrivateDev,
        Layer::PrivateTmp,
        Layer::NoCapabilities,
        Layer::NoNewPrivs,
        Layer::LandlockFiles,
        Layer::Seccomp,
        Layer::ResourceLimits,
    ];
    for layer in always {
        assert_eq!(receipt.layers.state(layer), LayerState::Active, "{layer}");
    }
    assert_eq!(receipt.layers.state(Layer::OwnedMounts), LayerState::Inactive(Reason::NotAsked));
    assert!(receipt.landlock_abi >= 3);
    assert_ne!(receipt.policy_digest, [0; 32]);
    assert_eq!(
        receipt.policy_digest,
        finish(&shell("false")).receipt.policy_digest,
        "of the policy, not of the command"
    );
    let mut other = shell("true");
    other.limits.processes += 1;
    assert_ne!(receipt.policy_digest, finish(&other).receipt.policy_digest, "a limit is part of it");

    let mut nowhere = shell("true");
    nowhere.directory = "/nowhere".into();
    let receipt = finish(&nowhere).receipt;
    let Cause::SetUp(failure) = receipt.cause else { panic!("{:?}", receipt.cause) };
    assert_eq!((failure.stage, failure.errno, failure.mount), (Stage::Directory, libc::ENOENT, None));
    assert_eq!(receipt.layers.active().count(), 0, "nothing ran, nothing held");
    assert!(receipt.layers.inactive().all(|(_, reason)| reason == Reason::NotReached));
}

#[test]
fn the_host_s_mount_table_and_processes_are_as_before() {
    if !harness::can_sandbox("the host's state") {
        return;
    }
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let scratch = Scratch::new("state");
    let mut run = shell("sleep 4711 & setsid sleep 4712 & echo started");
    run.mounts.push(scratch.mount("/task", Access::ReadWrite));
    assert_eq!(output(&run), "started\n");
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
    assert_eq!(processes_with("sleep 471"), Vec::<String>::new());
}
