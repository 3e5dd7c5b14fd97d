"""Environments that draw from global generators: lanes differ, and the same seed repeats them, in every pool."""

from __future__ import annotations

import random
import sys
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyplay.envs import Envs
from polyplay.envs.process_state import (
    GlobalGenerators,
    load_generators,
    outside,
    save_generators,
    seed_process,
    seeding_torch,
)
from polyplay.envs.spaces import action_sampler

STEPS = 24


class Draws(gymnasium.Env):
    """Shows numbers of one global generator."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, source: str = "numpy"):
        self.source = source

    def see(self):
        if self.source == "torch":
            import torch

            return np.array([float(torch.rand(()))])
        return np.array([random.random() if self.source == "python" else np.random.random()])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        return self.see(), 0.0, self.steps == 5, False, {}

    def get_state(self):  # what it draws from is not its own
        return {"steps": np.array(self.steps)}

    def set_state(self, state):
        self.steps = int(state["steps"])


def rows(pool, steps=STEPS):
    """float [steps, lanes]: what its lanes show."""
    draw, seen = action_sampler(pool.spec.action, 0), []
    for _ in range(steps):
        lanes, row = pool.recv()
        seen.append(row["obs"][:, 0].copy())
        pool.send(lanes, draw(len(row["first"])))
    return np.array(seen)


def played(seed=3, lane=0, **kw):
    with closing(Envs(**{"name": Draws, "lanes": 1, **kw}).open(seed, lane)) as pool:
        return rows(pool)


SOURCES = [{"inline": True, "options": {"source": source}} for source in ("python", "numpy", "torch")]
KINDS = [*SOURCES, {"workers": 1}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_seed_repeats_a_lane_and_others_play_otherwise(kind):
    first = played(**kind)
    assert np.array_equal(first, played(**kind))
    others = played(lane=1, **kind), played(seed=4, **kind)
    for other in others:
        assert not np.isin(first, other).any(), "two lanes, or two seeds, share a stream"


def test_a_process_that_is_replaced_draws_other_numbers():
    """Else it would run into the same crash again."""
    envs = Envs(Draws, 1, workers=1)
    with closing(envs.open(3)) as pool:
        before = rows(pool, 4)
        for worker in pool._workers.values():
            worker.process.kill()
        after = rows(pool, 8)
        assert pool.restarts == 1
    assert len(np.intersect1d(before, after)) <= 1  # the row that nobody had taken


def test_pools_of_one_process_do_not_disturb_each_other():
    """An evaluation that begins in the midst of a serial run, too."""
    alone = played(inline=True)
    outside = np.random.get_state()[1].copy()
    pool, seen = Envs(Draws, 1, inline=True).open(3), []
    for _ in range(STEPS // 4):
        seen.append(rows(pool, 4))
        played(inline=True)
    pool.close()
    assert np.array_equal(np.concatenate(seen), alone)
    assert np.array_equal(np.random.get_state()[1], outside), "the caller's own generator goes on where it was"


def test_what_an_environment_forks_draws_other_numbers():
    """A vector environment of processes: its lanes differ, and the same seed repeats them."""

    def many(num_envs):
        return gymnasium.vector.AsyncVectorEnv([Draws] * num_envs, context="fork")

    envs = Envs(many, 2)
    seen = []
    for _ in range(2):
        with closing(envs.open(3)) as pool:
            seen.append(rows(pool, 8))
    assert np.array_equal(*seen)
    assert len(np.unique(seen[0])) == seen[0].size


def test_torch_is_seeded_once_it_is_loaded(monkeypatch):
    import torch

    generators = GlobalGenerators(0)
    generators.enter()  # the test's own numbers come back
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        seed_process(5)
        with seeding_torch():
            sys.modules["torch"] = torch
    assert torch.initial_seed() == 5
    torch.manual_seed(0)
    with seeding_torch():
        pass
    assert torch.initial_seed() == 0, "once"
    generators.leave()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pool_goes_on_with_the_numbers_that_come_next(kind):
    envs = Envs(Draws, 3, **kind)
    with closing(envs.open(3)) as pool:
        rows(pool, 4)
        state = pool.state()
        expected = rows(pool)
    with closing(envs.open(1_003)) as pool:  # as resumed lanes have it: of another seed
        assert not np.array_equal(rows(pool, 3), expected[:3])
        pool.load(state)
        assert np.array_equal(rows(pool), expected)


def test_generators_are_saved_to_the_last_bit():
    """Between two numbers of a pair of normal ones, too."""
    random.seed(1)
    np.random.seed(2)
    drawn = []
    for before in (lambda: None, lambda: (random.gauss(0.0, 1.0), np.random.normal())):
        before()
        saved = save_generators()
        for _ in range(2):
            drawn.append([random.random(), random.gauss(0.0, 1.0), np.random.normal(), np.random.random()])
            load_generators(saved)
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]


def test_what_a_process_seeds_itself_is_no_pool_s():
    """A learner's network in the same thread, say."""
    from polyplay.nets import NetworkFactory
    from polyplay.nets.factory import build_network

    alone = played(inline=True, options={"source": "torch"})
    with closing(Envs(Draws, 1, inline=True, options={"source": "torch"}).open(3)) as pool:
        first = rows(pool, 4)
        build_network(NetworkFactory("mlp", pool.spec, {"hidden": (4,)}), 9)
        with outside():
            random.seed(1)
        assert np.array_equal(np.concatenate([first, rows(pool, STEPS - 4)]), alone)
