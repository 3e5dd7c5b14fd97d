from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

from polyplay.envs.process_pool import EnvProcess
from tests.envs.faulty import gone


def report(answer, path) -> None:
    main = sys.modules["__main__"]
    answer.send((os.getpid(), "torch" in sys.modules, getattr(main, "__file__", None), sys.path == path))


def sleeper(answer) -> None:
    os.setpgid(0, 0)
    child = subprocess.Popen(["sleep", "1000"])
    answer.send(child.pid)
    child.wait()


def test_children_have_no_torch_and_no_main_of_ours(monkeypatch):
    import torch  # noqa: F401 - the parent has it, the child must not

    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)

    here, there = multiprocessing.Pipe(duplex=False)
    process = EnvProcess(report, (there, sys.path), "a")
    process.start()
    there.close()
    pid, torch_loaded, main, same_path = here.recv()
    process.join(100)
    assert pid == process.pid != os.getpid()
    assert process.exitcode == 0
    assert not torch_loaded
    assert main != getattr(sys.modules["__main__"], "__file__", None)
    assert same_path, "modules are found where the parent finds them"


def test_end_kills_what_the_child_started():
    here, there = multiprocessing.Pipe(duplex=False)
    process = EnvProcess(sleeper, (there,), "b")
    process.start()
    assert here.poll(100)
    child = here.recv()
    process.end()
    assert process.exitcode == -9
    assert gone([child])
    process.end()


def nested(answer) -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    inner = EnvProcess(report, (there, sys.path), "inner")
    inner.start()
    answer.send(here.recv()[0])
    inner.join(100)


def test_a_daemonic_worker_may_have_environments():
    here, there = multiprocessing.Pipe(duplex=False)
    outer = multiprocessing.get_context("forkserver").Process(target=nested, args=(there,), daemon=True)
    outer.start()
    assert here.poll(100)
    assert here.recv() not in (outer.pid, os.getpid())
    outer.join(100)
    assert outer.exitcode == 0
