"""Who steps lanes: the caller's thread, processes, or both; their rows are the same."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure
from polyplay.envs import Envs
from polyplay.envs.base_pool import UnitPool
from polyplay.envs.make import SHARE, split_steps
from polyplay.envs.process_pool import ProcessPool
from polyplay.envs.spaces import action_sampler
from tests.envs import faulty
from tests.envs.faulty import HANG, KILL, RAISE, acts, pids

SIDES = {"thread": (True, 0), "process": (False, 1), "processes": (False, 2), "thread and process": (True, 1)}


def open_pool(envs: Envs, sides: str, seed: int = 3) -> UnitPool:
    here, n = SIDES[sides]
    return ProcessPool(envs, seed, 0, n, here) if n else UnitPool(envs, seed, 0)


def rows(pool, turns: int) -> list:
    """What its lanes show, by random actions."""
    draw, seen = action_sampler(pool.spec.action, 1), []
    for _ in range(turns):
        lanes, row = pool.recv(60)
        seen += [(path, leaf.copy()) for path, leaf in tree.leaves(row)]
        pool.send(lanes, draw(len(row["first"])))
    return seen


def same(one: list, other: list) -> bool:
    return all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(one, other, strict=True))


@pytest.mark.parametrize(("lanes", "groups"), [(6, 1), (6, 2), (2, 1)])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_rows_are_the_same_to_the_bit_whoever_steps(name, lanes, groups):
    envs = Envs(name, lanes, groups)
    seen = []
    for sides in SIDES:
        with closing(open_pool(envs, sides)) as pool:
            seen.append(rows(pool, 120))
    assert all(same(seen[0], other) for other in seen[1:])


@pytest.mark.parametrize("after", SIDES)
@pytest.mark.parametrize("before", ["thread and process", "processes"])
def test_lanes_go_on_elsewhere_to_the_bit(before, after):
    envs = Envs("CartPole-v1", 6)
    with closing(open_pool(envs, before)) as pool:
        rows(pool, 40)
        state = pool.state()
        expected = rows(pool, 60)
    with closing(open_pool(envs, after, seed=1_003)) as pool:
        rows(pool, 2)
        pool.load(state)
        assert same(rows(pool, 60), expected)


# ------------------------------------------------------------------------------------------ who steps


class OfAUser(gymnasium.envs.classic_control.CartPoleEnv):
    pass


def test_only_environments_of_gymnasium_itself_step_in_the_caller_s_thread_unasked():
    assert Envs("CartPole-v1", 4).spec.step_time > 0
    for envs in (
        Envs(OfAUser, 4),
        Envs(lambda: gymnasium.make("CartPole-v1"), 4),  # the function may do anything
        Envs("CartPole-v1", 4, wrappers=("gymnasium.wrappers:NormalizeObservation",)),
    ):
        assert split_steps(envs) == (False, envs.workers or min(4, len(os.sched_getaffinity(0))))
        assert split_steps(replace(envs, inline=True)) == (True, 0)


@pytest.mark.parametrize(
    ("shares", "given", "expected"),
    [
        (0.5, {}, (True, 0)),
        (0.5, {"inline": False}, (False, 4)),
        (0.5, {"at_once": 2}, (False, 4)),  # its lanes come and go
        (2.5, {}, (False, 4)),  # the caller has something else to do
        (2.5, {"helps": True}, (True, 1)),
        (9.0, {"helps": True}, (True, 3)),
        (9.0, {"helps": True, "workers": 1}, (True, 0)),
        (9.0, {"helps": True, "groups": 4}, (True, 1)),  # of two lanes that step together, one each
        (9.0, {"inline": True}, (True, 0)),
    ],
)
def test_cheap_steps_are_made_in_the_caller_s_thread_and_dear_ones_divided(shares, given, expected):
    envs = Envs("CartPole-v1", 8, **{"workers": 4, **given})
    turn = envs.lanes // envs.groups
    envs.__dict__["spec"] = replace(Envs("CartPole-v1", 1, inline=True).spec, step_time=shares * SHARE / turn)
    assert split_steps(envs) == expected


# ---------------------------------------------------------------- faults of a pool that has both


@pytest.fixture
def both():
    """Lanes 0 and 1 are a process's, 2 and 3 the caller's."""
    opened: list[ProcessPool] = []

    def open_both(**given) -> ProcessPool:
        opened.append(ProcessPool(Envs(faulty.Obedient, 4, inline=True, **given), 3, 0, 1, here=True))
        return opened[-1]

    yield open_both
    for pool in opened:
        pool.close()


@pytest.mark.parametrize(("how", "says"), [(KILL, "SIGKILL"), (HANG, "step_timeout=0.8")])
def test_a_process_is_replaced_while_the_caller_s_lanes_go_on(both, how, says):
    pool = both(step_timeout=0.8 if how == HANG else 60.0)
    lanes, row = pool.recv(60)
    assert (row["obs"][:, 2] == os.getpid()).tolist() == [False, False, True, True]
    pool.send(lanes, acts(lane1=how))
    _, row = pool.recv(60)
    assert row["obs"][:, 0].tolist() == [0, 0, 1, 1]
    (text,) = pool.faults
    assert (pool.restarts, says in text) == (2, True)
    pool.send(lanes, acts())
    assert pool.recv(60)[1]["obs"][:, 0].tolist() == [1, 1, 2, 2]


def test_an_environment_that_raises_in_the_caller_s_thread_is_restarted_alone(both):
    pool = both(max_restarts=1)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane3=RAISE))
    _, row = pool.recv(60)
    assert row["obs"][:, 0].tolist() == [1, 1, 1, 0]
    assert pool.restarts == 1
    processes = pids(pool)
    with pytest.raises(EnvFailure, match="more than --max-restarts 1"):
        pool.send(lanes, acts(lane2=RAISE))
    assert faulty.gone(processes)
    with pytest.raises(EnvFailure):
        pool.recv(60)


def test_it_is_closed_by_another_thread(both):
    pool = both(step_timeout=30)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane0=HANG))
    processes, begun = pids(pool), time.monotonic()
    threading.Timer(0.1, pool.close).start()
    with pytest.raises(Closed):
        pool.recv(60)
    assert faulty.gone(processes)
    assert time.monotonic() - begun < 20
