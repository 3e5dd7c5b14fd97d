"""A process pool whose environments raise, hang, die, or break their word."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from polyplay.core.errors import Closed, EnvFailure
from polyplay.envs import Envs
from tests import leftovers
from tests.envs import faulty
from tests.envs.faulty import CRASH, FINE, HANG, HOLD, KILL, RAISE, SPAWN, acts, gone, pids


def answer(pool, lanes=4, **special) -> np.ndarray:
    """Answer what recv gives, as acts() says; which lanes these are."""
    given, _ = pool.recv(60)
    pool.send(given, acts(lanes, **special))
    return given


def test_greedy_serves_whoever_is_ready(pools):
    """A slow lane does not stop the others; no lane is lost or given twice."""
    pool = pools(at_once=2, lanes=4, step_timeout=30)
    counts = np.zeros(4, int)
    after = 0  # rows since lane 3 was given away
    while after < 30:
        lanes, row = pool.recv(60)
        after += counts[3]
        assert isinstance(lanes, np.ndarray)
        assert 1 <= len(lanes) <= 2
        assert row["obs"][:, 0].tolist() == (counts[lanes] % 6).tolist()
        counts[lanes] += 1
        pool.send(lanes, np.where(lanes == 3, HANG, FINE))  # lane 3 and its process are busy for ever
    assert counts[3] == 1
    assert counts[:2].min() >= 10


def test_several_threads_serve_one_pool(pools):
    pool = pools(at_once=3, lanes=6)
    counts, failed = np.zeros(6, int), []

    def serve() -> None:
        try:
            while (counts < 20).any():
                lanes, _ = pool.recv(60)
                counts[lanes] += 1
                pool.send(lanes, np.zeros(len(lanes), int))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failed
    assert (counts >= 20).all()


# --------------------------------------------------------------------------------------- failures


def test_an_exception_restarts_its_lane_only_until_there_are_too_many(pools):
    pool = pools(max_restarts=1)
    answer(pool)
    answer(pool, lane2=RAISE)
    lanes, row = pool.recv(60)
    assert row["obs"][:, 0].tolist() == [2, 2, 0, 2]
    assert row["first"].tolist() == [False, False, True, False]
    assert not (row["terminated"] | row["truncated"] | row["over"]).any()
    assert (row["reward"][2], pool.restarts) == (0, 1)
    processes, (text,) = pids(pool), pool.faults
    pool.send(lanes, acts(lane1=RAISE))
    with pytest.raises(EnvFailure, match="more than --max-restarts 1") as e:
        pool.recv(60)
    for told, lane in ((text, "lane 2"), (str(e.value), "lane 1")):
        head, *rest = told.split("\n")
        assert all(word in head for word in (lane, "ValueError: boom", f"last action {RAISE}", "seed")), head
        assert any('raise ValueError("boom")' in line for line in rest)
    assert gone(processes)
    with pytest.raises(EnvFailure):
        pool.recv(60)


class Saved(faulty.Obedient):
    def get_state(self):
        return {"steps": np.array(self.steps), "episodes": np.array(self.episodes)}

    def set_state(self, state):
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])


def test_a_lane_that_used_up_its_restarts_is_repaired_after_a_resume():
    """A fault is counted by the pool alone: its lanes cannot give up while it goes on, and hand out an old row."""
    envs = Envs(Saved, 1, inline=True, max_restarts=1)
    pool = envs.open(0)
    lanes = answer(pool, 1, lane0=RAISE)
    pool.recv()
    state = pool.state()
    assert state["faults"].tolist() == [1]
    pool = envs.open(0)
    pool.recv()
    pool.load(state)
    pool.send(lanes, acts(1))
    assert pool.recv()[1]["obs"][0, 0] == 1
    pool.send(lanes, acts(1, lane0=RAISE))
    row = pool.recv()[1]
    assert (row["first"].all(), row["obs"][0, 0], pool.restarts) == (True, 0, 1), "not the row before"
    with pytest.raises(EnvFailure, match="failed 2 times in a row, more than --max-restarts 1"):
        pool.send(lanes, acts(1, lane0=RAISE))


ENDS = [(HANG, "step_timeout=0.8"), (HOLD, "step_timeout=0.8"), (KILL, "SIGKILL"), (CRASH, "SIGSEGV")]


@pytest.mark.parametrize(("how", "says"), ENDS)
def test_a_process_that_hangs_or_dies_is_replaced(pools, how, says):
    pool = pools(step_timeout=0.8 if how in (HANG, HOLD) else 60.0)
    lanes, row = pool.recv(60)
    before, processes = row["obs"][:, 2].copy(), pids(pool)
    pool.send(lanes, acts(lane0=how))
    lanes, row = pool.recv(60)
    assert row["first"].tolist() == [True, True, False, False]
    assert (row["obs"][:, 2] != before).tolist() == [True, True, False, False]
    (text,) = pool.faults
    assert (pool.restarts, says in text, "all its lanes were restarted" in text) == (2, True, True)
    assert how == KILL or "faulty.py" in text, "the report shows where it was"
    assert gone(processes[:1])
    pool.send(lanes, acts())
    assert pool.recv(60)[1]["obs"][:, 0].tolist() == [1, 1, 2, 2]


def test_replacing_processes_leaks_no_descriptors(pools):
    pool = pools(max_restarts=50)
    counts = []
    for _ in range(8):
        lanes, _ = pool.recv(60)
        counts.append(psutil.Process().num_fds())
        pool.send(lanes, acts(lane0=KILL))
    assert max(counts[2:]) == counts[2]


def test_death_in_a_greedy_pool_loses_no_lane(pools):
    pool = pools(at_once=4, lanes=4, max_restarts=50)
    rng = np.random.default_rng(0)
    counts = np.zeros(4, int)
    for _ in range(60):
        lanes, _ = pool.recv(60)
        counts[lanes] += 1
        pool.send(lanes, np.where(rng.random(len(lanes)) < 0.05, KILL, FINE))
    assert pool.restarts > 0
    end = counts + 5
    until = time.monotonic() + 100
    while (counts < end).any():
        lanes, _ = pool.recv(60)
        counts[lanes] += 1
        pool.send(lanes, acts(len(lanes)))
        assert time.monotonic() < until


def test_close_leaves_nothing(pools):
    pool = pools(lanes=4)
    answer(pool, lane0=SPAWN, lane2=HANG)
    with pytest.raises(TimeoutError):
        pool.recv(0.3)
    processes, family, until = pids(pool), [], time.monotonic() + 60
    while not family and time.monotonic() < until:
        family = [c.pid for p in processes for c in psutil.Process(p).children(recursive=True)]
    assert family, "the environment started a program of its own"
    pool.close()
    pool.close()
    assert gone(processes + family)
    with pytest.raises(Closed):
        pool.recv(1)


def test_a_timeout_keeps_the_pool_usable_and_close_by_another_thread_ends_a_recv(pools):
    pool = pools(step_timeout=30)
    answer(pool, lane0=HANG)
    for seconds in (0.2, 0):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            pool.recv(seconds)
        assert time.monotonic() - start >= seconds
    threading.Timer(0.1, pool.close).start()
    with pytest.raises(Closed):
        pool.recv(60)


SCRIPT = """
    import os, sys, time
    import numpy as np
    from polyplay.envs import Envs
    sys.path.insert(0, {tests!r})
    from tests.envs import faulty
    print("imported", flush=True)              # twice if a child ran this script again
    pool = Envs(lambda: faulty.Obedient(), 2, workers=2).open(0)
    lanes, _ = pool.recv(60)
    print(*[w.process.pid for w in pool._workers.values()], flush=True)
    pool.send(lanes, np.array([{action}, 0]))
    {end}
"""


def _script(tmp_path, action, end) -> subprocess.Popen:
    path = tmp_path / "script.py"
    tests = str(Path(__file__).parents[2])
    path.write_text(textwrap.dedent(SCRIPT).format(tests=tests, action=action, end=end))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_environments_end_with_a_killed_parent(tmp_path):
    """One hangs with the GIL held, the other idles."""
    script = _script(tmp_path, HOLD, "time.sleep(60)")
    assert script.stdout.readline() == "imported\n"
    numbers = [int(n) for n in script.stdout.readline().split()]
    assert len(numbers) == 2
    time.sleep(0.2)
    script.kill()
    assert gone(numbers)
    script.communicate()


def test_a_script_without_main_guard_or_close_ends_by_itself(tmp_path):
    before = leftovers.names()
    script = _script(tmp_path, FINE, "")
    out, err = script.communicate(timeout=150)
    first, second = out.splitlines()
    assert first == "imported"
    assert script.returncode == 0
    assert err == ""
    assert gone([int(n) for n in second.split()])
    assert not leftovers.since(before)
