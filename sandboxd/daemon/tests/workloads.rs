//! What honest programs do works inside as it does outside.

mod harness;

use harness::{Scratch, output, python_run, shell};
use tack_sandbox_client::Access;

/// Runs a Python script that prints `fine` when all of it worked.
fn python_works(name: &str, script: &str) {
    if !harness::can_sandbox(name) {
        return;
    }
    let Some(run) = python_run(name, script) else { return };
    assert_eq!(output(&run), "fine\n", "{name}");
}

#[test]
fn multiprocessing_in_every_start_method() {
    // From a file, since `spawn` and `forkserver` import the main module again.
    let script = "import os, subprocess, sys\n\
                  open('/tmp/jobs.py', 'w').write('''\n\
                  import multiprocessing as mp\n\
                  def square(x): return x * x\n\
                  if __name__ == \"__main__\":\n\
                  \x20   for method in (\"fork\", \"spawn\", \"forkserver\"):\n\
                  \x20       with mp.get_context(method).Pool(2) as pool:\n\
                  \x20           assert pool.map(square, range(10)) == [x * x for x in range(10)]\n\
                  \x20   lock = mp.Semaphore(1)\n\
                  \x20   with lock: pass\n\
                  \x20   queue = mp.Queue(); queue.put(1); assert queue.get() == 1\n\
                  \x20   from multiprocessing import shared_memory\n\
                  \x20   memory = shared_memory.SharedMemory(create=True, size=4096); memory.unlink(); memory.close()\n\
                  \x20   print(\"fine\")\n''')\n\
                  sys.exit(subprocess.run([sys.executable, '/tmp/jobs.py']).returncode)";
    python_works("multiprocessing", script);
}

#[test]
fn asyncio_subprocesses_servers_and_threads() {
    let script = "import asyncio, concurrent.futures, sys\n\
                  async def main():\n\
                  \x20   process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)\n\
                  \x20   out, _ = await process.communicate(b'x')\n\
                  \x20   assert out == b'x' and process.returncode == 0\n\
                  \x20   async def echo(reader, writer):\n\
                  \x20       writer.write(await reader.readexactly(4)); await writer.drain(); writer.close()\n\
                  \x20   for host in ('127.0.0.1', '::1'):\n\
                  \x20       server = await asyncio.start_server(echo, host, 0)\n\
                  \x20       reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])\n\
                  \x20       writer.write(b'ping'); assert await reader.readexactly(4) == b'ping'\n\
                  \x20       writer.close(); server.close()\n\
                  asyncio.run(main())\n\
                  with concurrent.futures.ThreadPoolExecutor(8) as pool:\n\
                  \x20   assert sum(pool.map(lambda x: x, range(100))) == 4950\n\
                  print('fine')";
    python_works("asyncio", script);
}

#[test]
fn databases_locks_signals_and_terminals() {
    let script = "import fcntl, os, pty, signal, sqlite3, tempfile, time, ctypes, mmap, select\n\
                  base = sqlite3.connect('/tmp/base'); base.execute('pragma journal_mode=wal')\n\
                  base.execute('create table t (x)'); base.execute('insert into t values (1)'); base.commit()\n\
                  assert base.execute('select x from t').fetchall() == [(1,)]\n\
                  with tempfile.TemporaryFile() as file:\n\
                  \x20   fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)\n\
                  signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()\n\
                  pid, fd = pty.fork()\n\
                  if pid == 0:\n\
                  \x20   os.execvp('sh', ['sh', '-c', 'test -t 0 && stty size && echo $((20+22))'])\n\
                  seen = b''\n\
                  while b'42' not in seen: seen += os.read(fd, 100)\n\
                  os.waitpid(pid, 0)\n\
                  os.mkfifo('/tmp/fifo'); os.symlink('fifo', '/tmp/link'); os.link('/tmp/base', '/tmp/hard')\n\
                  poll = select.epoll(); poll.close()\n\
                  mmap.mmap(-1, 4096).close()\n\
                  os.memfd_create('x')\n\
                  os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1)\n\
                  assert os.getuid() == 1000 and __import__('pwd').getpwuid(1000).pw_name == 'tack'\n\
                  assert time.tzname[0] == 'UTC'\n\
                  print('fine')";
    python_works("databases, locks, signals, terminals", script);
}

#[test]
fn unittest_with_temporary_directories_and_child_processes() {
    let script = "import subprocess, sys\n\
                  open('/tmp/test_it.py', 'w').write('''\n\
                  import os, subprocess, sys, tempfile, unittest\n\
                  class It(unittest.TestCase):\n\
                  \x20   def test_directory(self):\n\
                  \x20       with tempfile.TemporaryDirectory() as path: os.mkdir(os.path.join(path, \"x\"))\n\
                  \x20   def test_child(self):\n\
                  \x20       self.assertEqual(subprocess.check_output([sys.executable, \"-c\", \"print(1)\"]), b\"1\\\\n\")\n\
                  \x20   def test_unreadable(self):\n\
                  \x20       path = tempfile.mkdtemp(); os.chmod(path, 0)\n\
                  \x20       with self.assertRaises(PermissionError): os.listdir(path)\n''')\n\
                  done = subprocess.run([sys.executable, '-m', 'unittest', '-q', 'test_it'], cwd='/tmp', capture_output=True, text=True)\n\
                  print('fine' if done.returncode == 0 and 'Ran 3 tests' in done.stderr else done.stderr)";
    python_works("unittest", script);
}

#[test]
fn git_in_a_writable_mount_needs_no_safe_directory() {
    if !harness::can_sandbox("git") {
        return;
    }
    if output(&shell("command -v git >/dev/null && echo there || echo none")) == "none\n" {
        harness::skipped("git", "git under /usr");
        return;
    }
    let scratch = Scratch::new("git");
    let git = |script: &str| {
        let mut run = shell(script);
        run.directory = "/task".into();
        run.mounts.push(scratch.mount("/task", Access::ReadWrite));
        output(&run)
    };
    git(
        "git init -q . && git config user.email a@b && git config user.name a && echo 1 >f && git add f && git commit -qm 1",
    );
    // Another run, another sandbox, another host id: the tree is still the payload's own.
    assert_eq!(git("git status --porcelain; git log --format=%s; git worktree add -q w && cat w/f"), "1\n1\n");
}

#[test]
fn pipelines_substitutions_and_background_jobs() {
    if !harness::can_sandbox("pipelines") {
        return;
    }
    let script = "x=$(seq 1000 | sort -rn | head -1 | tee /tmp/t); (sleep 0.05; echo late) & wait; echo $x; awk 'BEGIN{print 6*7}'; \
                  find /usr/bin -maxdepth 1 -name env; xargs -P4 -n1 echo <<EOF | sort | tr '\\n' ' '\n3\n1\n2\nEOF";
    assert_eq!(output(&shell(script)), "late\n1000\n42\n/usr/bin/env\n1 2 3 ");
}
