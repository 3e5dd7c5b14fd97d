"""A process pool whose environments raise, hang, die, or break their word."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.envs import Envs, Greedy
from polyplay.envs import base_pool as pool_faults
from tests import leftovers
from tests.envs import faulty
from tests.envs.faulty import CRASH, DTYPE, EXIT, FINE, HANG, HOLD, KILL, RAISE, SHAPE, SPAWN, acts, gone, pids


def test_an_exception_restarts_its_lane_only(pools):
    pool = pools()
    for action in (acts(), acts(lane2=RAISE)):
        lanes, _ = pool.recv(60)
        pool.send(lanes, action)
    lanes, row = pool.recv(60)
    assert row["obs"][:, 0].tolist() == [2, 2, 0, 2]
    assert row["first"].tolist() == [False, False, True, False]
    assert not (row["terminated"] | row["truncated"] | row["over"]).any()
    assert row["reward"][2] == 0
    assert pool.restarts == 1
    (text,) = pool.faults
    head, *rest = text.split("\n")
    assert "lane 2" in head
    assert "ValueError: boom" in head
    assert f"last action {RAISE}" in head
    assert "seed" in head
    assert any('raise ValueError("boom")' in line for line in rest)
    pool.send(lanes, acts())
    assert pool.recv(60)[1]["obs"][:, 0].tolist() == [3, 3, 1, 3]


def test_sys_exit_in_an_environment_is_a_fault_like_any(pools):
    pool = pools()
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane0=EXIT))
    assert pool.recv(60)[1]["first"].tolist() == [True, False, False, False]
    assert "SystemExit: 3" in pool.faults[0]


def test_too_many_faults_end_the_pool_with_the_traceback(pools):
    pool = pools(max_restarts=2)
    for _ in range(2):
        lanes, _ = pool.recv(60)
        pool.send(lanes, acts(lane1=RAISE))
    lanes, _ = pool.recv(60)
    processes = pids(pool)
    pool.send(lanes, acts(lane1=RAISE))
    with pytest.raises(EnvFailure, match="--max-restarts 2") as e:
        pool.recv(60)
    head, *rest = str(e.value).split("\n")
    assert "lane 1" in head
    assert "boom" in head
    assert any('raise ValueError("boom")' in line for line in rest)
    assert gone(processes)
    with pytest.raises(EnvFailure):
        pool.recv(60)


def test_a_rare_fault_does_not_end_a_long_run(pools, monkeypatch):
    """As 18 faults in 640,000 steps did: here one in every 40, with a limit of two within 50."""
    monkeypatch.setattr(pool_faults, "STEPS", 50)
    pool = pools(max_restarts=2)
    for i in range(102):
        lanes, _ = pool.recv(60)
        pool.send(lanes, acts(lane0=RAISE) if i % 10 == 0 else acts())
    pool.recv(60)
    assert pool.restarts == 11


@pytest.mark.parametrize("inline", [False, True])
def test_a_lane_that_used_up_its_restarts_is_repaired_after_a_resume(inline):
    """A fault is counted by the pool alone: its lanes cannot give up while it goes on, and hand out an old row."""
    how = {"inline": inline, "max_restarts": 1} if inline else {"workers": 1, "max_restarts": 1}
    with contextlib.closing(Envs(Saved, 1, **how).open(0)) as pool:
        lanes, _ = pool.recv(60)
        pool.send(lanes, acts(1, lane0=RAISE))
        pool.recv(60)
        state = pool.state()
    assert state["faults"].tolist() == [1]
    with contextlib.closing(Envs(Saved, 1, **how).open(0)) as pool:
        pool.recv(60)
        pool.load(state)
        pool.send(lanes, acts(1))
        assert pool.recv(60)[1]["obs"][0, 0] == 1
        pool.send(lanes, acts(1, lane0=RAISE))
        row = pool.recv(60)[1]
        assert row["first"].all()
        assert row["obs"][0, 0] == 0, "not the row before"
        assert pool.restarts == 1
        with pytest.raises(EnvFailure, match="failed 2 times in a row, more than --max-restarts 1"):
            _step(pool, lanes)


def _step(pool, lanes):
    """It fails in send() of an inline pool, else in recv()."""
    pool.send(lanes, acts(1, lane0=RAISE))
    pool.recv(60)


class Saved(faulty.Obedient):
    def get_state(self):
        return {"steps": np.array(self.steps), "episodes": np.array(self.episodes)}

    def set_state(self, state):
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])


def test_an_environment_that_never_resets_ends_the_pool(pools):
    pool = pools(faulty.Stillborn, 1, max_restarts=3)
    with pytest.raises(EnvFailure, match="no level left"):
        pool.recv(60)


@pytest.mark.parametrize("how", [HANG, HOLD])
def test_a_hang_is_killed_and_its_process_replaced(pools, how):
    pool = pools(step_timeout=0.8, workers=2)
    lanes, row = pool.recv(60)
    before = row["obs"][:, 2].copy()
    processes = pids(pool)
    pool.send(lanes, acts(lane0=how))
    lanes, row = pool.recv(60)
    assert row["first"].tolist() == [True, True, False, False]
    assert (row["obs"][:2, 2] != before[:2]).all()
    assert (row["obs"][2:, 2] == before[2:]).all()
    assert pool.restarts == 2
    assert "step_timeout=0.8" in pool.faults[0]
    assert "all its lanes were restarted" in pool.faults[0]
    assert "faulty.py" in pool.faults[0], "the report shows where it hung"
    assert gone(processes[:1])
    pool.send(lanes, acts())
    assert pool.recv(60)[1]["obs"][:, 0].tolist() == [1, 1, 2, 2]


def test_a_hang_is_seen_while_others_are_served(pools):
    pool = pools(batching=Greedy(4), step_timeout=0.8)
    firsts, hung = np.zeros(4, int), False
    until = time.monotonic() + 60
    while firsts[0] < 2 and time.monotonic() < until:
        lanes, row = pool.recv(60)
        firsts[lanes] += row["first"] & (row["reward"] == 0)
        pool.send(lanes, np.where((lanes == 0) & (not hung), HANG, FINE))
        hung = hung or 0 in lanes
    assert pool.restarts == 2
    assert "step_timeout" in pool.faults[0]


def test_replacing_processes_leaks_no_descriptors(pools):
    pool = pools(max_restarts=50)
    counts = []
    for _ in range(8):
        lanes, _ = pool.recv(60)
        counts.append(psutil.Process().num_fds())
        pool.send(lanes, acts(lane0=KILL))
    assert max(counts[2:]) == counts[2]


@pytest.mark.parametrize(("how", "name"), [(KILL, "SIGKILL"), (CRASH, "SIGSEGV")])
def test_a_killed_process_is_replaced(pools, how, name, capfd):
    pool = pools()
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane3=how))
    lanes, row = pool.recv(60)
    assert row["first"].tolist() == [False, False, True, True]
    assert pool.restarts == 2
    assert name in pool.faults[0]
    assert how == KILL or "faulty.py" in pool.faults[0]
    pool.send(lanes, acts())
    assert pool.recv(60)[1]["obs"][:, 0].tolist() == [2, 2, 1, 1]


def test_a_process_killed_while_its_rows_are_held_begins_anew_when_answered(pools):
    pool = pools(groups=2)
    held, row = pool.recv(60)
    kept = row["obs"].copy()
    os.kill(pids(pool)[0], signal.SIGKILL)
    other, _ = pool.recv(60)
    while pool.restarts == 0:
        pool.send(other, acts(2))
        other, _ = pool.recv(60)
    assert (row["obs"] == kept).all(), "what was given stays"
    pool.send(held, np.full(2, FINE))
    lanes, row = pool.recv(60)
    assert lanes == held
    assert row["first"].tolist() == [True, False]
    assert pool.restarts == 2


def test_death_in_a_greedy_pool_loses_no_lane(pools):
    pool = pools(batching=Greedy(4), lanes=4, max_restarts=50)
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


@pytest.mark.parametrize(("how", "given"), [(SHAPE, r"given float64 \[3\]"), (DTYPE, r"given complex128 \[4\]")])
def test_an_observation_that_breaks_its_space_fails_at_once(pools, how, given):
    pool = pools(lane=10)
    lanes, _ = pool.recv(60)
    processes = pids(pool)
    pool.send(lanes, acts(lane1=how))
    with pytest.raises(EnvFailure, match=given) as e:
        pool.recv(60)
    assert "Obedient, lane 11" in str(e.value)
    assert "declared float64 [4]" in str(e.value)
    assert "\n" not in str(e.value)
    assert gone(processes)


def test_a_reset_observation_outside_its_bounds_fails_at_once(pools):
    with pytest.raises(EnvFailure, match=r"Liar, lane 0.* at \[2\] is not in \[0, 1\]; widen low .*\(rule bounds;"):
        pools(faulty.Liar, 1).recv(60)


def test_mistakes_are_one_line(pools):
    for name, want in (
        (faulty.Unbuildable, r"Unbuildable: could not be built: RuntimeError: no licence found \(faulty.py:\d+\)"),
        (faulty.Odd, "observation space Text.*supported are Box, Discrete, Multi"),
        (faulty.OddAction, "action space Text.*supported are Discrete"),
        (faulty.not_an_env, "dict, which is no gymnasium.Env"),
        ("CartPoel-v1", "unknown environment 'CartPoel-v1', did you mean 'CartPole-v1'"),
    ):
        with pytest.raises(UserError, match=want) as e:
            pools(name)
        assert "\n" not in str(e.value)


def test_close_leaves_nothing(pools):
    pool = pools(lanes=4)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane0=SPAWN, lane2=HANG))
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


def test_close_by_another_thread_ends_a_recv(pools):
    pool = pools(step_timeout=30)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane0=HANG))
    threading.Timer(0.2, pool.close).start()
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


@pytest.mark.parametrize("action", [FINE, HANG, HOLD])
def test_environments_end_with_a_killed_parent(tmp_path, action):
    """Idle, hanging, or hanging with the GIL held."""
    script = _script(tmp_path, action, "time.sleep(60)")
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
