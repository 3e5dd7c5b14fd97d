"""The portable way, on Linux: forced, or because the platform pretends to lack what Linux has."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from polyplay.core import platform
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedBlock
from polyplay.workers import process
from polyplay.workers.hosts.cluster import fleet_of
from tests.envs.faulty import gone

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "polyplay"
FORCED = {**os.environ, "POLYPLAY_PORTABLE": "1", "PYTHONPATH": str(ROOT)}


# ------------------------------------------------------------------------------------------------- one module

ALONE = r"""\bfcntl\b|\bmsvcrt\b|\bprctl\b|"/proc|"/sys/|/dev/shm|\bsched_|signal\.SIG(KILL|USR|HUP)|memfd|killpg|
os\.p(read|write)\b|os\.nice|setpriority|select\.poll|CDLL\(None\)|register_at_fork|pthread_sigmask|import resource|
os\.(rename|replace|execv|setpgid|getpgrp)\b"""
SERVER = r"os\.fork\b|pipe2|set_wakeup_fd|SIGCHLD|send_fds|recv_fds|waitpid"


class Undocumented(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if text else node


def named(pattern: str, text: str) -> set[str]:
    """What of the pattern the code names, besides its docstrings and comments."""
    if not re.search(pattern, text):
        return set()
    code = ast.unparse(Undocumented().visit(ast.parse(text))).replace("'", '"')
    return {match[0] for match in re.finditer(pattern, code)}


def test_what_only_linux_has_stands_in_one_module_and_the_fork_server_in_one_other():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text, file = path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()
        wrong = set() if file == "core/platform.py" else named(ALONE.replace("\n", ""), text)
        wrong |= set() if file in ("core/platform.py", "core/processes.py") else named(SERVER, text)
        if wrong:
            found[file] = wrong
    assert not found


def opens_text(call: ast.Call) -> bool:
    """Whether a call opens, reads or writes a file as text in the encoding of the user's system."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = any(key.arg in ("encoding", None) for key in call.keywords)
    if named or name not in ("open", "fdopen", "read_text", "write_text"):
        return False
    if name == "read_text":
        return not call.args
    if name == "write_text":
        return len(call.args) < 2
    if name == "open" and isinstance(call.func, ast.Attribute) and not (call.args and is_mode(call.args[0])):
        return False  # a method of ours, or Path.open() of a file that is read as text
    return not any(is_mode(x) and "b" in x.value for arg in call.args for x in ast.walk(arg))


def is_mode(x: ast.AST) -> bool:
    return isinstance(x, ast.Constant) and isinstance(x.value, str) and bool(re.fullmatch("[rwxab+]{1,3}", x.value))


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("open(p)", True),
        ("open(p, 'w')", True),
        ("p.open('a')", True),
        ("p.read_text()", True),
        ("p.write_text(x)", True),
        ("open(p, 'rb')", False),
        ("p.open('wb')", False),
        ("open(p, encoding='utf-8')", False),
        ("p.read_text('utf-8')", False),
        ("envs.open(seed)", False),
    ],
)
def test_the_check_of_encodings_knows_text(code, wrong):
    assert opens_text(ast.parse(code).body[0].value) == wrong


def test_every_text_file_is_opened_with_its_encoding():
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"open\(|_text\(", text):
            found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and opens_text(node))
            calls += [f"{path.relative_to(PACKAGE)}:{node.lineno}" for node in found]
    assert not calls


# ------------------------------------------------------------------------------------------------- the choice

CHOICE = """
import os, signal, sys
import multiprocessing.connection, multiprocessing.popen_forkserver, psutil
exec(sys.argv[1])
from polyplay.core import platform
print(platform.PORTABLE, platform.LACKS, platform.describe())
"""
NO_PROC = "real = os.path.isdir; os.path.isdir = lambda path: not str(path).startswith('/proc') and real(path)"


@pytest.mark.parametrize(
    ("lack", "forced", "shown"),
    [
        ("", "", "False  "),
        ("", "0", "False  "),
        ("", "1", "True  portable (POLYPLAY_PORTABLE=1): processes are spawned, waits poll: slower than on Linux"),
        ("del os.fork", "", "True os.fork portable (linux has no os.fork): "),
        ("del signal.SIGKILL", "", "True signal.SIGKILL portable (linux has no signal.SIGKILL): "),
        (NO_PROC, "", "True /proc portable (linux has no /proc): "),
    ],
)
def test_the_portable_way_is_taken_where_something_lacks_or_if_it_is_forced(lack, forced, shown):
    done = subprocess.run(
        [sys.executable, "-c", CHOICE, lack],
        env={**FORCED, "POLYPLAY_PORTABLE": forced},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(shown)


def test_without_proc_memory_and_processor_are_still_known(monkeypatch):
    real = Path.read_text

    def read(path: Path, *how: str) -> str:
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "no such file", str(path))
        return real(path, *how)

    monkeypatch.setattr(Path, "read_text", read)
    assert platform.memory_limit() == psutil.virtual_memory().total
    assert platform.cpu_name()
    assert platform.cpu_features() == platform.cpu_name()
    assert platform.cpu_limit() == ""


def test_an_option_that_the_platform_cannot_serve_names_itself_and_the_fallback(monkeypatch):
    monkeypatch.setattr(platform, "BINDS", False)
    with pytest.raises(UserError, match=r"--cores 2: .* cannot bind processes to cores; leave it out: the run then"):
        process.keep_to(2)
    monkeypatch.setattr(platform.sys, "platform", "darwin")
    options = SimpleNamespace(hosts="ray:", serial=False, on="process", place=None, ship=None)
    with pytest.raises(UserError, match=r"--hosts ray:: workers .* need Linux, and this is darwin: leave it out: this"):
        fleet_of(options)


# ------------------------------------------------------------------------------------------------- waits


def test_a_polled_semaphore_wakes_once_for_posts_that_came_together_and_misses_none():
    cell = np.zeros(64, np.uint8)
    at, theirs = platform.polled_at(cell), platform.polled_at(cell)
    platform.polled_create(at)
    assert platform.polled_try(at) == -1
    platform.polled_post(theirs)
    platform.polled_post(theirs)
    assert [platform.polled_try(at), platform.polled_try(at)] == [0, -1]
    before = time.monotonic()
    assert not platform.polled_wait(at, 0.05)
    assert time.monotonic() - before >= 0.05
    for _ in range(100):
        thread = threading.Thread(target=platform.polled_post, args=(theirs,))
        thread.start()
        assert platform.polled_wait(at, 60.0)
        thread.join()
    assert platform.polled_try(at) == -1


# ------------------------------------------------------------------------------------------------- processes

PARENT = """
import time
from polyplay.core.processes import ForkedProcess, ForkServer
child = ForkedProcess(ForkServer("polyplay.core.errors"), time.sleep, (1000,), "sleeper")
child.start()
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_spawned_process_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=FORCED)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until = time.monotonic() + 60
    while len(psutil.Process(pid).threads()) < 2:  # the thread that waits for the parent's end
        assert time.monotonic() < until
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone([pid])


WINDOWS = """
import errno, fcntl, os, signal, sys, types
import multiprocessing.connection, multiprocessing.popen_spawn_posix, gymnasium, numba, numpy, psutil, safetensors.numpy
LOCKED = dict(LK_NBLCK=2, LK_UNLCK=0)
def locking(fd, how, n):
    assert os.lseek(fd, 0, os.SEEK_CUR) == 1 << 30, "a lock on text would hide it"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if how else fcntl.LOCK_UN)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "denied") from None
sys.modules |= {"fcntl": None, "resource": None, "msvcrt": types.SimpleNamespace(locking=locking, **LOCKED)}
sys.modules["multiprocessing.popen_spawn_win32"] = multiprocessing.popen_spawn_posix
for name in "fork killpg setpgid getpgrp nice pread pwrite sched_getaffinity memfd_create pipe2 setpriority".split():
    delattr(os, name)
for name in "SIGKILL SIGHUP SIGUSR1 SIGCHLD pthread_sigmask set_wakeup_fd".split():
    delattr(signal, name)
sys.platform = "win32"
from pathlib import Path
from polyplay.core import checkpoint, files, machine, platform, processes
from polyplay.core.shared_memory import RobustLocks, SharedBlock
from polyplay.envs import process_pool
from polyplay.runs import directory
from polyplay.workers.process import prepare
from tests.core.test_platform import fill
assert platform.WINDOWS and platform.PORTABLE and platform.LACKS
assert [n.name for n in platform.ENDING] == ["SIGINT", "SIGTERM"] and platform.KILL == signal.SIGTERM
prepare()
here = Path(sys.argv[1])
lock = directory.DirectoryLock(here)
assert lock.held and lock.in_place and directory.is_locked(here)
try:
    directory.DirectoryLock(here)
except Exception as e:
    print(e)
lock.close()
assert not directory.is_locked(here)
log = files.JsonLines(here / "log.jsonl")
log.write({"frames": 1})
log.close()
files.JsonLines(here / "log.jsonl").write({"frames": 2})
assert (here / "log.jsonl").read_bytes() == b'{"frames": 1}\\n{"frames": 2}\\n'
files.write_json(here / "a.json", {"a": 1})
checkpoint.platform.sync(here)
mail = process_pool.StateMail()
mail.put({"x": numpy.arange(3)})
assert mail.take()["x"].tolist() == [0, 1, 2]
one, two = (RobustLocks(blocks) for blocks in [[SharedBlock(1, named=True)]] * 2)
assert one.acquire(0) and not two.acquire(0)
one.release(0)
assert two.acquire(0)
block = SharedBlock(8)
child = processes.ForkedProcess(processes.ForkServer("polyplay.core.errors"), fill, (block,), "child")
child.start()
child.join(60)
assert block.array(1, numpy.int64)[0] == 7, child.ending()
with processes.handled(processes.stop):
    pass
print(machine.cores() > 0, platform.open_files())
"""


def fill(block: SharedBlock) -> None:
    block.array(1, np.int64)[0] = 7


def test_without_what_windows_lacks_locks_files_memory_and_processes_work(tmp_path):
    """Pretended: Windows' own lock is made of Linux' one, and its way to spawn is that of Linux."""
    run, temporary = tmp_path / "run", tmp_path / "temporary"
    run.mkdir()
    temporary.mkdir()
    environment = {**FORCED, "TMPDIR": str(temporary)}
    words = [sys.executable, "-c", WINDOWS, str(run)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    refused, last = done.stdout.splitlines()
    assert re.match(rf"RUN: {re.escape(str(run))} is being written by process \d+ on ", refused)
    assert last == "True None"


# ------------------------------------------------------------------------------------------------- a whole run

LETTERS = re.compile(r'[<>:"|?*\\]|[. ]$')  # that names of files must not have, or not at their end, on Windows


def test_a_run_of_several_processes_takes_the_portable_way_on_a_terminal_without_utf_8(tmp_path):
    temporary, run = tmp_path / "temporary", tmp_path / "run"
    temporary.mkdir()
    environment = {**FORCED, "TMPDIR": str(temporary), "PYTHONIOENCODING": "ascii"}
    words = ["impala", "--env", "toy:catch", "--actors", "1", "--steps", "600", "--run", str(run)]
    done = subprocess.run([sys.executable, "-m", "polyplay", "train", *words], env=environment, capture_output=True)
    text = done.stdout.decode("ascii")
    assert (done.returncode, done.stderr.decode("ascii")) == (0, ""), text
    assert text.count("platform portable (POLYPLAY_PORTABLE=1): processes are spawned") == 1
    assert text.splitlines()[-1].startswith("done ")
    assert list(temporary.glob("polyplay-*")) == []
    names = [part for path in run.rglob("*") for part in path.relative_to(run).parts]
    assert names
    assert not [name for name in names if LETTERS.search(name)]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("room", ["acting", "learning", "workers", "runs"])
def test_the_default_tests_of_a_room_pass_in_the_portable_way(room):
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"tests/{room}"]
    done = subprocess.run(words, env=FORCED, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:]
