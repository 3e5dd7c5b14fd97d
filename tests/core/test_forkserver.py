"""Servers that processes are forked from: they end with their main process, and what is lost says so."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe, parent_process
from multiprocessing import forkserver as theirs
from pathlib import Path

import pytest

from polyplay.core import processes
from polyplay.core.errors import Closed
from polyplay.core.processes import ForkedProcess, ForkServer
from tests.envs.faulty import gone

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
    sentinel = parent_process().sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
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


def test_a_server_that_cannot_get_ready_says_why():
    broken = ForkServer("tests.core.fails_to_import")
    with pytest.raises(
        OSError, match=r"^the fork server ended with exit status 1: RuntimeError: no place for its files$"
    ):
        ForkedProcess(broken, time.sleep, (0,), "never").start()
    assert not processes.is_limit(OSError("the fork server ended with exit status 1: RuntimeError: Too many"))


def test_a_system_that_lets_no_more_be_started_gives_its_own_error(monkeypatch):
    """In the server, a fork that fails, and descriptors that did not all arrive."""
    inside = processes._Server.__new__(processes._Server)
    inside.statuses, inside.tied = {}, False
    said: list[str] = []
    monkeypatch.setattr(processes, "set_title", said.append)

    def full():
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", full)
    there, status = os.pipe()
    null = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    inside._take([status, *null[:2]], 0, "act 0", "")
    assert theirs.read_signed(there) == -errno.EAGAIN
    there, status = os.pipe()
    inside._take([status, null[2]], 3, "act 0", "")
    assert os.read(there, 1) == b""


def test_descriptors_may_have_large_numbers():
    """ga3c holds six for each of its agents."""
    processes.raise_open_files()
    there, here = os.pipe()
    high = fcntl.fcntl(there, fcntl.F_DUPFD, 1200)
    assert processes.readable([high], 0.01) == set()
    os.write(here, b"x")
    assert processes.readable([high], 1.0) == {high}
    for fd in (there, here, high):
        os.close(fd)
