"""Runs inside the sandbox: compiles a tree, or runs one suite of unittest, and reports on descriptor 3.

    python3 -I -S -B unittest_harness.py compile ROOT
    python3 -I -S -B unittest_harness.py suite ROOT DIRECTORY

ROOT is the repository; DIRECTORY holds the suite's `test_*.py` files. Standard library alone, Python 3.8 or later.

The report is one JSON object a line. The first line is written before any product code can run and carries a random
key; every later line repeats it. The reader drops the whole report if a line lacks the key, so that bytes written
blindly to every descriptor can spoil a verdict and never make one. Code in this process that knows this file can
still find the key: what catches that is the mutation layer, outside.

    {"key": K, "event": "start", "python": "3.11.7"}
    {"key": K, "event": "unloadable", "file": F, "detail": D}                  a suite's file that does not compile
    {"key": K, "event": "test", "id": I, "outcome": O, "detail": D, "os_errors": [[ERRNO, PATH], ...]}
    {"key": K, "event": "write", "operation": E, "path": P, "errno": ERRNO}    outside /tmp; errno null if it may
    {"key": K, "event": "end", "tests": N}

In `compile` the ids are paths, and an outcome is `passed` or `failed`. In `suite` an outcome is one of unittest's:
`passed`, `failed`, `errored`, `skipped`, `expected_failure`, `unexpected_success`; a module that cannot be imported
is reported `errored` under its own name.
"""

import errno
import fcntl
import json
import os
import sys
import traceback
import types
import unittest

REPORT = 3
# Away from the low numbers, which programs close and reuse by habit.
PRIVATE_REPORT = 200
DETAIL_CHARACTERS = 2000
# Enough to name what was tried; a loop of attempts must not fill the report.
WRITES_MOST = 32
PRIVATE_DIRECTORIES = ("/tmp", "/dev", "/proc")


class Reporter:
    """Writes the report. Only the first process of the sandbox does: a child that was forked stays silent."""

    def __init__(self):
        self._descriptor = fcntl.fcntl(REPORT, fcntl.F_DUPFD_CLOEXEC, PRIVATE_REPORT)
        os.close(REPORT)
        self._key = os.urandom(16).hex()
        self._process = os.getpid()
        os.register_at_fork(after_in_child=lambda: os.close(self._descriptor))

    def send(self, event, **fields):
        if os.getpid() != self._process:
            return
        line = json.dumps({"key": self._key, "event": event, **fields}).encode() + b"\n"
        while line:
            line = line[os.write(self._descriptor, line):]


def cut(text):
    """Bounded, and free of lone surrogates, which JSON readers refuse."""
    return text[:DETAIL_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def describe(error):
    return cut("".join(traceback.format_exception_only(type(error), error)).strip())


def os_errors(error):
    """Errno and path of each OSError on the chain of causes, so that a denial is named and not only failed."""
    found = []
    while error is not None and len(found) < 8:
        if isinstance(error, OSError) and error.errno is not None:
            found.append([errno_name(error), path_text(error.filename)])
        error = error.__cause__ or error.__context__
    return found


def errno_name(error):
    return errno.errorcode.get(error.errno, str(error.errno))


def path_text(path):
    return cut(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""


class WriteWatch:
    """An audit hook: reports attempts to write outside the private directories, swallowed ones too.

    It watches and does not guard: the mounts are what denies. The errno comes from trying the door at once, by an
    open that changes nothing: the file itself for writing, or an unnamed file in the directory.
    """

    DIRECTORY_EVENTS = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink")
    FILE_EVENTS = ("os.truncate", "os.chmod", "os.chown", "os.utime")
    FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

    def __init__(self, reporter):
        self._reporter = reporter
        self._seen = set()
        self._busy = False

    def __call__(self, event, arguments):
        # The hook runs for everything, and what it does itself raises events again.
        if self._busy or len(self._seen) >= WRITES_MOST:
            return
        self._busy = True
        try:
            self._watch(event, arguments)
        except Exception:
            # A failing hook would turn the program's own call into an exception.
            pass
        finally:
            self._busy = False

    def _watch(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & self.FLAGS:
                return
            paths = [path]
        elif event in self.FILE_EVENTS:
            paths = arguments[:1]
        elif event in self.DIRECTORY_EVENTS:
            # `rename` and `link` have two; the source of a symbolic link is text, and not written.
            count = 2 if event in ("os.rename", "os.link") else 1
            paths = arguments[1:2] if event == "os.symlink" else arguments[:count]
        else:
            return
        # The last arguments of every one but `open`: the directories that relative names are meant in, or -1.
        bases = [-1] if event == "open" else arguments[-len(paths):]
        for path, base in zip(paths, bases):
            if isinstance(path, int):
                continue
            path = os.fsdecode(path)
            if isinstance(base, int) and base >= 0:
                path = os.path.join(os.readlink("/proc/self/fd/%d" % base), path)
            # The directory is resolved and the name is not: a link is what is removed, not what it points to.
            parent, name = os.path.split(os.path.abspath(path))
            resolved = os.path.join(os.path.realpath(parent), name)
            if event == "open":
                resolved = os.path.realpath(resolved)
            if any(resolved == it or resolved.startswith(it + "/") for it in PRIVATE_DIRECTORIES):
                continue
            if (event, resolved) not in self._seen:
                self._seen.add((event, resolved))
                self._reporter.send("write", operation=event, path=cut(resolved), errno=self._try(resolved, event))

    def _try(self, path, event):
        directory = os.path.dirname(path) if event in self.DIRECTORY_EVENTS or not os.path.lexists(path) else path
        unnamed = os.O_TMPFILE if os.path.isdir(directory) else 0
        try:
            os.close(os.open(directory, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | unnamed))
        except OSError as error:
            return errno_name(error)
        return None


class Result(unittest.TestResult):
    """Reports each test once, when it stops, with the worst thing that happened in it."""

    def __init__(self, reporter):
        super().__init__()
        self._reporter = reporter
        self._outcome = None

    def startTest(self, test):
        super().startTest(test)
        self._outcome = None

    def stopTest(self, test):
        super().stopTest(test)
        outcome, detail, errors = self._outcome or ("errored", "it ended without an outcome", [])
        self._reporter.send("test", id=cut(test.id()), outcome=outcome, detail=detail, os_errors=errors)

    def _record(self, outcome, error=None, detail=""):
        if self._outcome is None or self._outcome[0] == "passed":
            if error is not None:
                detail = describe(error)
            self._outcome = (outcome, detail, os_errors(error))

    def addSuccess(self, test):
        super().addSuccess(test)
        self._record("passed")

    def addError(self, test, err):
        super().addError(test, err)
        self._record("errored", err[1])
        if not isinstance(test, unittest.TestCase):
            # A class or module fixture: no test starts or stops around it.
            self.stopTest(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._record("failed", err[1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._record("skipped", detail=cut(str(reason)))

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._record("expected_failure", err[1])

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._record("unexpected_success")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._record("failed" if issubclass(err[0], test.failureException) else "errored", err[1])


def compile_tree(reporter, root):
    """Compiles every Python file; nothing is run and nothing is written."""
    count, well = 0, True
    for directory, names, files in os.walk(root):
        names.sort()
        for path in (os.path.join(directory, it) for it in sorted(files) if it.endswith(".py")):
            outcome, detail = "passed", ""
            try:
                with open(path, "rb") as file:
                    compile(file.read(), path, "exec", dont_inherit=True)
            except Exception as error:
                outcome, detail, well = "failed", describe(error), False
            count += 1
            reporter.send("test", id=cut(os.path.relpath(path, root)), outcome=outcome, detail=detail, os_errors=[])
    reporter.send("end", tests=count)
    return well


def run_suite(reporter, root, directory):
    """Runs every `test_*.py` of a directory, each as a module of its own name."""
    # Read and compiled before product code loads: what it does to the files later does not change what runs.
    modules, well = [], True
    for name in sorted(it for it in os.listdir(directory) if it.startswith("test_") and it.endswith(".py")):
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                modules.append((name[:-3], path, compile(file.read(), path, "exec", dont_inherit=True)))
        except Exception as error:
            reporter.send("unloadable", file=name, detail=describe(error))
            well = False

    sys.path.insert(0, root)
    sys.addaudithook(WriteWatch(reporter))
    suite = unittest.TestSuite()
    for name, path, code in modules:
        module = types.ModuleType(name)
        module.__file__ = path
        sys.modules[name] = module
        try:
            exec(code, module.__dict__)
            suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
        # SystemExit too: a module that exits has not been loaded.
        except BaseException as error:
            reporter.send("test", id=name, outcome="errored", detail=describe(error), os_errors=os_errors(error))
            well = False
    result = Result(reporter)
    suite.run(result)
    reporter.send("end", tests=result.testsRun)
    return well and result.wasSuccessful()


def main():
    reporter = Reporter()
    reporter.send("start", python=sys.version.split()[0])
    mode, root = sys.argv[1], sys.argv[2]
    if mode == "compile":
        well = compile_tree(reporter, root)
    else:
        well = run_suite(reporter, root, sys.argv[3])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Not `sys.exit`: exit handlers and threads of the product have no say in the status.
        os._exit(0 if well else 1)


main()
