"""Pools driven with random actions: to measure any of them, and to check the rows of Polyplay's own (Atari, toys)."""

from __future__ import annotations

import time
import zlib
from contextlib import closing
from multiprocessing.connection import Connection

import numpy as np

from polyplay.common import import_guard, tree
from polyplay.common.errors import EnvFailure, UserError
from polyplay.envs import rules
from polyplay.envs.check.trial import TrialFacts, allow
from polyplay.envs.pool import Envs, Pool
from polyplay.envs.pools.turn import START, LaneJob
from polyplay.envs.random_actions import action_sampler


def steps_per_second(pool: Pool, seconds: float, seed: int = 0) -> float:
    """Steps per second of all its lanes, measured for about `seconds` after the first rows."""
    draw = action_sampler(pool.spec.action, seed)
    lanes, row = pool.recv()
    steps, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not steps:
        steps += len(row["first"])
        pool.send(lanes, draw(len(row["first"]), row.get("mask")))
        lanes, row = pool.recv()
    return steps / max(took, 1e-9)


def measure_pool(answer: Connection, clock: np.ndarray, envs: Envs, seconds: float) -> float:
    """The pace of a pool of Polyplay's own, in a process for it."""
    import_guard.lift()  # some of these start processes
    allow(clock, 2, 0, START + seconds)
    with closing(envs.open(0)) as pool:
        return steps_per_second(pool, seconds)


def run_pool_trial(
    answer: Connection, clock: np.ndarray, job: LaneJob, steps: int, seconds: float, envs: Envs
) -> TrialFacts:
    """A trial of one lane of Polyplay's own pools; sends what `trial` sends."""
    import_guard.lift()
    facts = TrialFacts()
    try:
        _play(answer, clock, job, steps, seconds, envs, facts)
    except (EnvFailure, UserError) as e:  # of a vector environment, which ends its pool
        text = str(e).split("\n")[0]
        answer.send(("broke", (rules.rule_of(text) or "step", rules.without_rule(text))))
    return facts


def _play(
    answer: Connection,
    clock: np.ndarray,
    job: LaneJob,
    steps: int,
    seconds: float,
    envs: Envs,
    facts: TrialFacts,
) -> None:
    start = time.perf_counter()
    pool = envs.open(job.seed, job.lane)
    facts.build = time.perf_counter() - start
    draw, over, length, until = action_sampler(pool.spec.action, job.seed), True, 0, time.monotonic() + seconds
    lanes, row = pool.recv()
    while True:
        allow(clock, 2, facts.steps, job.step_timeout)
        for rule, text in row_flaws(envs, row, over):
            answer.send(("broke", (rule, f"step {facts.steps}: {text}")))
        facts.prints.append(zlib.crc32(b"".join(a.tobytes() for _, a in tree.leaves(row))))
        over = bool(row["over"][0])
        facts.resets += int(row["first"][0])
        length = 0 if row["first"][0] else length + 1
        if over:
            facts.ends.append((length, bool(row["terminated"][0])))
        if facts.steps >= steps or time.monotonic() > until:
            pool.close()
            return
        start = time.perf_counter()
        pool.send(lanes, draw(len(row["first"]), row.get("mask")))
        lanes, row = pool.recv()
        took = time.perf_counter() - start
        facts.steps += int(not row["first"][0])
        facts.step_sum += took
        facts.step_most = max(facts.step_most, took)


def row_flaws(envs: Envs, row: tree.Batch, over: bool) -> list[tuple[str, str]]:
    """(rule, text) of what is wrong with the row of a lane whose row before was `over`."""
    found = []
    for (path, want), (_, have) in zip(tree.leaves(envs.spec.obs), tree.leaves(row["obs"]), strict=True):
        pairs = (("shape", list(want.shape), list(have.shape[1:])), ("dtype", want.dtype, have.dtype))
        found += [(rule, f"{path} declared {a}, given {b}") for rule, a, b in pairs if a != b]
        if have.dtype.kind == "f" and not np.isfinite(have).all():
            found.append(("finite", f"{path} holds values that are not finite"))
    if not np.isfinite(row["reward"]).all():
        found.append(("reward", f"reward {row['reward'][0]}"))
    if over and not row["first"][0]:
        found.append(("autoreset", "an episode was over, and the next row is not the first of another"))
    return found
