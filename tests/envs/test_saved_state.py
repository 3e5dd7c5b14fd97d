"""Environments that go on from what was saved, and those that must not."""

from __future__ import annotations

import os
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from polyplay.core import tree
from polyplay.core.errors import Closed, UserError
from polyplay.envs import Envs, saved_state
from polyplay.envs.saved_state import Unsaveable, generator_state, set_generator_state

CLASSIC = {  # steps that reach an end, of most the time limit
    "CartPole-v1": 100,
    "Acrobot-v1": 500,
    "MountainCar-v0": 250,
    "MountainCarContinuous-v0": 1000,
    "Pendulum-v1": 250,
}
SAVES, RAISES, HANGS, ENDS, LIES = range(5)


class Walk(gymnasium.Env):
    """Walks at random; says what its state is, or doesn't."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: int = SAVES, length: int = 7):
        self.how, self.length = how, length

    def _see(self):
        return np.array([self.at, self.age], np.float32), {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.age = 0.0, 0
        return self._see()

    def step(self, action):
        self.at += self.np_random.normal() * (1 + action)
        self.age += 1
        return self._see()[0], self.at, self.age == self.length, False, {}

    def get_state(self):
        if self.how == RAISES:
            raise ValueError("not now")
        if self.how == HANGS:
            time.sleep(1000)
        if self.how == ENDS:
            os._exit(3)
        if self.how == LIES:
            return {"a": {"b": "text"}}
        random = generator_state(self.np_random)
        return {"at": np.float64(self.at), "more": {"age": np.array(self.age)}, "random": random}

    def set_state(self, state):
        self.at, self.age = float(state["at"]), int(state["more"]["age"])
        set_generator_state(self.np_random, state["random"])


def step(pool, rng) -> dict:
    lanes, row = pool.recv(60)
    row = tree.map(np.array, row)
    n = len(row["reward"])
    action = rng.integers(0, 2, n) if hasattr(pool.spec.action, "n") else rng.normal(size=(n, 1)).astype(np.float32)
    pool.send(lanes, action)
    return row


def goes_on(pool, other, steps: int, before: int) -> int:
    """Both go on alike from the first one's state; ends of episodes meanwhile."""
    rng = np.random.default_rng(0)
    for _ in range(before):
        step(pool, rng)
    pool.recv(60)
    kept = tree.nest({k: np.array(v) for k, v in tree.leaves(pool.state())})
    assert pool.unsaved == ""
    other.load(kept)
    start = np.zeros(pool.lanes // pool.groups, np.int64)
    lanes = slice(before % pool.groups * len(start), (before % pool.groups + 1) * len(start))
    action = start if hasattr(pool.spec.action, "n") else np.ones((len(start), 1), np.float32)
    for p in (pool, other):
        p.send(lanes, action)
    ends = 0
    for t in range(steps):
        a, b = (step(p, np.random.default_rng(t)) for p in (pool, other))
        assert all((a[k] == b[k]).all() for k in a), t
        ends += int(a["over"].sum())
    return ends


@pytest.mark.parametrize("env", CLASSIC)
def test_classic_control_goes_on_to_the_bit(env):
    first, second = (Envs(env, 2, inline=True).open(seed) for seed in (3, 99))
    assert goes_on(first, second, steps=CLASSIC[env], before=30) >= 1
    first.close()


@pytest.mark.parametrize("groups", [1, 2])
def test_in_processes_too_and_from_there_in_this_one(groups, pools):
    first = pools("CartPole-v1", 4, groups=groups)
    assert goes_on(first, pools("CartPole-v1", 4, seed=50, groups=groups, workers=1), steps=60, before=31) >= 1
    second = pools(Walk, 4, groups=groups)
    assert goes_on(second, Envs(Walk, 4, groups=groups, inline=True).open(8), steps=40, before=20) >= 1


def test_rows_that_are_awaited_are_part_of_it(pools):
    pool, other = (pools(Walk, 3, seed=s, workers=2) for s in (1, 2))
    lanes, _ = pool.recv(60)
    pool.send(lanes, np.ones(3, np.int64))
    other.load(pool.state())
    a, b = pool.recv(60)[1], other.recv(60)[1]
    assert not a["first"].any()
    assert all((a[k] == b[k]).all() for k in a)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (RAISES, "ValueError: not now"),
        (LIES, "must give a dict of arrays, gave str under 'b'"),
        (HANGS, "took longer than step_timeout"),
        (ENDS, "ended by itself"),
    ],
)
def test_one_that_cannot_be_saved_is_told_and_the_pool_goes_on(how, said, pools):
    pool = pools(Walk, 2, workers=1, step_timeout=0.7 if how == HANGS else 60.0, options={"how": how})
    pool.recv(60)
    assert pool.state() is None
    assert said in pool.unsaved
    pool.send(slice(0, 2), np.zeros(2, np.int64))
    row = step(pool, np.random.default_rng(0))
    assert row["first"].all() == (how in (HANGS, ENDS))


def test_layers_that_are_not_known_are_named():
    class Own(gymnasium.Wrapper):
        pass

    class Quiet(Own):
        def get_state(self):
            return {}

        def set_state(self, state):
            assert state == {}

    def save(env):
        env.reset(seed=1)
        return saved_state.save_env(env)

    limited = type("Limit", (wrappers.TimeLimit,), {})(Walk(), 5)
    for env, name in ((Own(Walk()), "Own"), (gymnasium.make("FrozenLake-v1"), "FrozenLakeEnv"), (limited, "Limit")):
        with pytest.raises(Unsaveable, match=f"{name} has no get_state"):
            save(env)
    env = Quiet(wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(Walk(), 5)))
    save(env)
    other = Quiet(wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(Walk(), 5)))
    other.reset()
    for _ in range(3):
        env.step(0)
    kept = tree.nest(dict(tree.leaves(saved_state.save_env(env))))
    saved_state.load_env(other, kept)
    assert [other.step(1)[3] for _ in range(2)] == [False, True]


def test_another_environment_does_not_take_it():
    pool = Envs(Walk, 1, inline=True).open(0)
    kept = pool.state()
    other = Envs(lambda: wrappers.TimeLimit(Walk(), 5), 1, inline=True).open(0)
    with pytest.raises(UserError, match="lane 0: cannot restore its saved state: the environment was Walk and is"):
        other.load(kept)
    pool.close()
    with pytest.raises(Closed):
        pool.state()


def test_only_the_generator_that_is_known():
    one, other = np.random.default_rng(3), np.random.default_rng(4)
    one.integers(0, 5, dtype=np.int32)  # half of a draw is kept for the next
    set_generator_state(other, generator_state(one))
    assert one.integers(0, 9, 5, dtype=np.int32).tolist() == other.integers(0, 9, 5, dtype=np.int32).tolist()
    with pytest.raises(Unsaveable, match="MT19937"):
        generator_state(np.random.Generator(np.random.MT19937(1)))
