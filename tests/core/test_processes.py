"""Servers that processes are forked from: they end with their main process, and what is lost says so."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe, parent_process
from pathlib import Path

import pytest

from polyplay.core import platform, processes, user_modules
from polyplay.core.errors import Closed, UserError
from polyplay.core.processes import ForkedProcess, ForkServer
from polyplay.envs.process_pool import EnvProcess
from tests.envs.faulty import gone

pytestmark = pytest.mark.skipif(platform.PORTABLE, reason="the portable way, in test_platform, has no fork server")

MAIN = """
import os, sys, time
from polyplay.core.processes import ForkedProcess, ForkServer
server = ForkServer("{preload}", tied={tied})
server.ensure_running()
child = ForkedProcess(server, time.sleep, (1000,), "sleeper") if {tied} else None
if child:
    child.start()
print(server._pid, child.pid if child else 0, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def server():
    made = ForkServer("polyplay.core.errors", tied=True)
    yield made
    if made._pid:
        os.kill(made._pid, signal.SIGKILL)
        made.fate()


@pytest.mark.parametrize("preload", ["polyplay.core.errors", "tests.core.slow_to_import"])
def test_a_server_and_its_children_end_with_the_main_process_and_leave_no_file(tmp_path, preload):
    """Also in the midst of an import."""
    code = MAIN.format(preload=preload, tied="slow" not in preload)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split() if int(pid)]
    if "slow" in preload:
        time.sleep(0.5)
    main.kill()
    main.wait()
    before = time.monotonic()
    assert gone(pids)
    assert time.monotonic() - before < 10.0
    assert list(tmp_path.iterdir()) == []


def test_who_is_lost_with_the_server_says_so(server):
    process = ForkedProcess(server, time.sleep, (1000,), "sleeper")
    process.start()
    os.kill(server._pid, signal.SIGKILL)
    process.join(10)
    assert process.ending() == "is lost, because the fork server was killed by SIGKILL"
    again = ForkedProcess(server, sys.exit, (3,), "another")  # the server is started anew
    again.start()
    again.join(10)
    assert again.ending() == "ended with exit status 3"


def test_processes_are_called_what_they_are(server, monkeypatch):
    monkeypatch.setattr(processes, "label", " [run]")
    process = ForkedProcess(server, time.sleep, (1000,), f"act 1{processes.label}")
    process.start()
    until, titles = time.monotonic() + 30, []
    while titles != [b"polyplay: fork server [run]", b"polyplay: act 1 [run]"]:
        assert time.monotonic() < until, titles
        time.sleep(0.01)
        titles = [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") for pid in (server._pid, process.pid)]
    assert Path(f"/proc/{process.pid}/comm").read_text() == "polyplay: act 1\n"
    process.end()


def live_until_the_parent_ends(answer):
    """As an environment's process does."""
    platform.kill_when_closed(parent_process().sentinel, os.getpid())
    answer.send(True)
    time.sleep(1000)


def test_only_the_end_of_the_parent_kills_a_child_and_not_the_data_that_it_came_with(server, monkeypatch):
    """The kernel signals that data came after it let them be read, on a busy machine milliseconds later."""
    pipes = []

    def fork(*args):
        made = ForkServer.fork(server, *args)
        pipes.append(os.dup(made[2]))
        return made

    monkeypatch.setattr(server, "fork", fork)
    here, there = Pipe(duplex=False)
    process = ForkedProcess(server, live_until_the_parent_ends, (there,), "child")
    process.start()
    assert here.recv()
    with contextlib.suppress(BrokenPipeError):
        os.write(pipes[0], b"x")
    process.join(0.3)
    assert process.is_alive()
    process._popen.finalizer()
    assert gone([process.pid])
    os.close(pipes[0])


def test_the_wait_for_a_server_can_be_broken_off():
    slow = ForkServer("tests.core.slow_to_import")
    asked = []

    def check():
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise Closed

    with pytest.raises(Closed):
        ForkedProcess(slow, time.sleep, (0,), "never").start(check)
    os.kill(slow._pid, signal.SIGKILL)
    assert slow.fate() == "was killed by SIGKILL"


def test_a_server_that_cannot_get_ready_says_why(capfd):
    broken = ForkServer("tests.core.fails_to_import")
    with pytest.raises(OSError, match=r"^the fork server ended with exit status 1$"):
        ForkedProcess(broken, time.sleep, (0,), "never").start()
    assert capfd.readouterr().err == "polyplay: fork server: RuntimeError: no place for its files\n"


# Who may start processes: nobody while a module is imported, and nobody who only steps environments.


def tell(answer):
    try:
        user_modules.refuse("a run")
    except UserError as e:
        answer.send(str(e))
    else:
        answer.send("it may")


class AsksWhenRead:
    """Answers while it is unpickled, as a module that is imported for it would."""

    def __init__(self, answer):
        self.answer = answer

    def __reduce__(self):
        return tell, (self.answer,)


def heard(process, here, there):
    process.start()
    there.close()
    said = [here.recv(), here.recv()]
    process.join(30)
    return said


def nothing_then_tell(read, answer):
    tell(answer)


@pytest.mark.parametrize("worker", [True, False])
def test_a_worker_may_once_it_has_read_what_it_was_sent_an_environment_never(worker):
    server = ForkServer("polyplay.core.errors", tied=True)
    here, there = multiprocessing.Pipe(duplex=False)
    args = nothing_then_tell, (AsksWhenRead(there), there)
    process = ForkedProcess(server, *args, "guarded") if worker else EnvProcess(*args, "guarded", server)
    early, late = heard(process, here, there)
    assert early.startswith("a run was started ")
    assert late == ("it may" if worker else late)
    assert worker or late.startswith("a run was started in a process that only steps environments")


def test_the_order_of_sets_is_the_same_in_every_run(monkeypatch):
    for env, other, seed in ((None, 0, "0"), ("random", 0, "0"), ("7", 0, "7"), (None, 1, "3"), ("3", 1, "0")):
        with monkeypatch.context() as patch:
            patch.delenv(processes.HASH_SEED, raising=False)
            if env is not None:
                patch.setenv(processes.HASH_SEED, env)
            with processes.hash_seed(bool(other)):
                assert os.environ[processes.HASH_SEED] == seed
            assert os.environ.get(processes.HASH_SEED) == env


# What ends a command before a run has begun, and what does not.


EARLY = """
import signal, subprocess, sys, time
from polyplay.core import processes as signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the process that runs the tests may ignore it
signals.install(signals.end_at_once)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print(child.pid, flush=True)
try:
    time.sleep(1000)
finally:
    print("not reached")
"""


@pytest.mark.parametrize("number", processes.ENDING)
def test_before_a_run_begins_a_command_ends_at_once_with_all_it_started(number):
    main = subprocess.Popen([sys.executable, "-c", EARLY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert main.stdout is not None
    child = int(main.stdout.readline())
    main.send_signal(number)
    out, err = main.communicate(timeout=30)
    line = f"polyplay: {number.name}: ended before anything had begun\n"
    assert (main.returncode, out, err) == (128 + number, "", line)
    assert gone([child])


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.handled(processes.stop):
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(processes.Stopped) as raised:
                signal.raise_signal(signal.SIGTERM)
        assert raised.value.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


IMPORTING = """
import builtins, os, sys
from polyplay.core import processes as signals
signals.install(getattr(signals, sys.argv[1]))
real = builtins.__import__
def hook(name, *args, **more):
    if name == sys.argv[2] and sys.argv[3] in sys.modules:
        builtins.__import__ = real
        os.kill(os.getpid(), int(sys.argv[4]))
    return real(name, *args, **more)
assert sys.argv[3] not in sys.modules
builtins.__import__ = hook
try:
    __import__(sys.argv[3])
except BaseException as e:  # as a library that takes whatever is wrong with an import for its absence
    print("caught", type(e).__name__)
print("went on")
"""


@pytest.mark.parametrize(
    ("handler", "inner", "module"), [("end_at_once", "xml.parsers.expat", "plistlib"), ("stop", "_decimal", "decimal")]
)
def test_a_signal_while_a_module_is_imported_ends_the_command_with_one_line(handler, inner, module):
    words = [sys.executable, "-c", IMPORTING, handler, inner, module, str(int(signal.SIGTERM))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    line = {"end_at_once": "SIGTERM: ended before anything had begun", "stop": "ended by SIGTERM"}[handler]
    assert (done.returncode, done.stdout, done.stderr) == (143, "", f"polyplay: {line}\n")


FIRST = """
import builtins, os, signal
real = builtins.__import__
def hook(name, *args, **more):
    if name == "polyplay.core":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *args, **more)
builtins.__import__ = hook
import polyplay.__main__
"""


def test_ctrl_c_before_a_command_has_loaded_anything_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
