"""Pools driven with random actions: to measure any of them, and to check the rows of Polyplay's own (Atari, toys)."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from polyplay.common import tree
from polyplay.common.shared_memory import SharedBlock
from polyplay.common.tree import Batch, Tree
from polyplay.envs import masks
from polyplay.envs.check.trial import CLOCK, TrialFacts, TrialOrder, random_action
from polyplay.envs.make import factory
from polyplay.envs.pool import Envs, Pool
from polyplay.envs.pools.build import build
from polyplay.envs.pools.lane import START
from polyplay.envs.pools.worker import settle
from polyplay.envs.spaces import Box, Discrete, Leaf, MultiBinary


class SelfPlayingEnv:
    """A Gymnasium environment that draws its actions itself, so that its pool can be driven whatever they look like. It
    reads masks, and does not pass them on.
    """

    def __init__(self, env: gymnasium.Env):
        self.env, self.unwrapped, self.spec = env, getattr(env, "unwrapped", env), getattr(env, "spec", None)
        self.observation_space, self.action_space = masks.without_mask(env.observation_space), gym.Discrete(1)
        self._draws = env.action_space
        self._last: Tree = None

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> object:
        if seed is not None:
            self._draws.seed(seed)
        self._last = self.env.reset(seed=seed)
        return _bare(self._last)

    def step(self, action: int) -> object:
        last = self._last
        self._last = self.env.step(random_action(self._draws, last[0], last[-1]))
        return _bare(self._last)

    def close(self) -> None:
        self.env.close()


def _bare(given: object) -> object:
    """What step or reset gave, without masks."""
    if not isinstance(given, tuple | list):
        return given
    return tuple({k: v for k, v in x.items() if k != masks.KEY} if isinstance(x, Mapping) else x for x in given)


def self_playing(envs: Envs) -> Envs:
    """The same environments, to be answered with zeros."""

    def make() -> SelfPlayingEnv:
        return SelfPlayingEnv(build(factory(envs.name, envs.options), envs.title))

    make.__qualname__ = envs.title  # what messages call it
    return replace(envs, name=make, options={})


def action_sampler(pool: Pool, seed: int) -> Callable[[int], Tree]:
    """A function that draws the actions of some lanes."""
    rng = np.random.default_rng(seed)
    return lambda n: tree.map(lambda leaf: _draw(rng, leaf, n), pool.spec.action)


def _draw(rng: np.random.Generator, space: Leaf, n: int) -> np.ndarray:
    if isinstance(space, Box):
        low, high = np.maximum(space.low, -1e6), np.minimum(space.high, 1e6)
        return rng.uniform(low, high, (n, *space.shape)).astype(np.float32)
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=n)
    each = rng.integers(space.classes, size=(n, len(space.classes))).reshape(n, *space.shape)
    return each.astype(np.int8) if isinstance(space, MultiBinary) else each


def steps_per_second(pool: Pool, seconds: float, seed: int = 0) -> float:
    """Steps per second of all its lanes, measured for about `seconds` after the first rows."""
    draw = action_sampler(pool, seed)
    lanes, row = pool.recv()
    steps, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not steps:
        steps += len(row["first"])
        pool.send(lanes, draw(len(row["first"])))
        lanes, row = pool.recv()
    return steps / max(took, 1e-9)


def measure_pool(answer: Connection, clock: SharedBlock, trace: SharedBlock, envs: Envs, seconds: float) -> None:
    """The pace of a pool of Polyplay's own, in a process for it."""
    settle(trace)
    clock.array(CLOCK, np.float64)[:] = time.monotonic() + START + seconds, 2, 0, START + seconds
    pool = envs.open(0)
    answer.send(("facts", steps_per_second(pool, seconds)))
    pool.close()


def run_pool_trial(answer: Connection, clock: SharedBlock, trace: SharedBlock, order: TrialOrder, envs: Envs) -> None:
    """A trial of one lane of Polyplay's own pools; sends what `trial` sends."""
    settle(trace)
    times = clock.array(CLOCK, np.float64)
    times[:] = time.monotonic() + START, 0, 0, START
    start = time.perf_counter()
    job = order.job
    pool = envs.open(job.seed, job.lane)
    facts = TrialFacts(build=time.perf_counter() - start)
    draw, over, length, until = action_sampler(pool, job.seed), True, 0, time.monotonic() + order.seconds
    lanes, row = pool.recv()
    while True:
        times[:] = time.monotonic() + job.step_timeout, 2, facts.steps, job.step_timeout
        for rule, text in row_flaws(envs, row, over):
            answer.send(("broke", (rule, f"step {facts.steps}: {text}")))
        facts.prints.append(zlib.crc32(b"".join(np.ascontiguousarray(a).tobytes() for _, a in tree.leaves(row))))
        over = bool(row["over"][0])
        facts.resets += int(row["first"][0])
        length = 0 if row["first"][0] else length + 1
        if over:
            facts.ends.append((length, bool(row["terminated"][0])))
        if facts.steps >= order.steps or time.monotonic() > until:
            break
        start = time.perf_counter()
        pool.send(lanes, draw(1))
        lanes, row = pool.recv()
        took = time.perf_counter() - start
        facts.steps += int(not row["first"][0])
        facts.step_sum += took
        facts.step_most = max(facts.step_most, took)
    times[0] = 0.0
    answer.send(("facts", facts))
    pool.close()


def row_flaws(envs: Envs, row: Batch, over: bool) -> list[tuple[str, str]]:
    """(rule, text) of what is wrong with the row of a lane whose row before was `over`."""
    found = []
    for (path, want), (_, have) in zip(tree.leaves(envs.spec.obs), tree.leaves(row["obs"]), strict=True):
        if have.shape[1:] != want.shape:
            found.append(("shape", f"{path} declared {list(want.shape)}, given {list(have.shape[1:])}"))
        if have.dtype != want.dtype:
            found.append(("dtype", f"{path} declared {want.dtype}, given {have.dtype}"))
        if have.dtype.kind == "f" and not np.isfinite(have).all():
            found.append(("finite", f"{path} holds values that are not finite"))
    if not np.isfinite(row["reward"]).all():
        found.append(("reward", f"reward {row['reward'][0]}"))
    if over and not row["first"][0]:
        found.append(("autoreset", "an episode was over, and the next row is not the first of another"))
    return found
