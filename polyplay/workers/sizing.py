"""Cores, divided between acting and learning by what each costs, measured before the workers of a run are started.

A row costs acting `act` seconds of a core: a step of its environment, its share of a forward pass. Learning takes
`learn` seconds a row with one compute thread, and learn / t^log2(gain) with t: `gain` is what a second thread brings.
Then n actors of one thread and learners of t handle at most

    min( n / act,  learners / learning(t),  cores / (act + learn) )   rows a second; n + learners · t ≤ cores, or t = 1

and the fewest actors that come near the best of that are taken. Actors on other machines have the cores there, and
learners all of this one's: then n ≤ the cores there, learners · t ≤ those here.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from polyplay.acting.rows import policy_inputs
from polyplay.buffers.rollout_queue import rows_of
from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.envs.pool import Envs
from polyplay.envs.spaces import action_sampler
from polyplay.learning.learner import LearnerSpec, run_epochs, unroll_before_last
from polyplay.learning.returns import LossOutput
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Tape, join_tapes
from polyplay.nets.policy import TapedPolicy
from polyplay.weights.params import FlatParams

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew
    from polyplay.workers.role import Role

FEW, MOST = 2, 960  # actors: at least, and where nothing is measured; that there is room for
NEAR = 0.97  # of the best rate
SECONDS = 0.2  # for each part of acting
LANES, ROWS = 64, 128  # that are measured with, at most
SMALL = 200_000  # parameters: up to here two compute threads wait for each other longer than they save


@dataclass(frozen=True)
class RowCosts:
    """Of a row, in seconds of one core; gain: how many times as fast learning is with two threads."""

    act: float
    learn: float
    gain: float

    def learning(self, threads: int) -> float:
        return self.learn / threads ** math.log2(min(max(self.gain, 1.0), 2.0))


def threads_beside(n: int, among: int, learners: int = 1) -> int:
    """Compute threads of each learner, where n actors have one each."""
    return max(1, (among - n) // learners)


def actor_rate(costs: RowCosts, n: int, among: int, learners: int = 1, away: int = 0) -> float:
    """Rows a second of n actors at most. away: cores of other machines, if they are there."""
    learning = costs.learning(threads_beside(0 if away else n, among, learners))
    all_work = away / costs.act if away else among / (costs.act + costs.learn)
    return min(n / costs.act, learners / learning, all_work)


def fewest_actors(learners: int) -> int:
    """The fewest actors: two, and as many for each learner."""
    return learners * -(-FEW // max(1, learners))


def best_actors(costs: RowCosts, among: int, learners: int = 1, away: int = 0) -> int:
    """Actors, a multiple of the learners."""
    least = fewest_actors(learners)
    rates = {
        n: actor_rate(costs, n, among, learners, away)
        for n in range(least, max(min(away or among, MOST), least) + 1, learners)
    }
    return next(n for n, rate in rates.items() if rate >= NEAR * max(rates.values()))


def choose_actors(crew: Crew, envs: Envs, spec: LearnerSpec, T: int, batch: int, learners: int) -> int:
    """How many a crew whose workers run freely shall have, for updates of `batch` trajectories of T rows by all
    learners together. Only where a run begins (crew.measures); elsewhere, as in threads, the fewest. Two cores are not
    divided: two actors and a learner that share them were the fastest (bench/results/compare).
    """
    away = 0 if crew.fleet is None else crew.fleet.cores_for("act")
    free, least = away or cores() - learners, fewest_actors(learners)
    if not crew.measures or crew.serial or crew.on == "thread" or free < FEW:
        return least
    if not crew.where.on_cpu:
        return least if crew.where.actors_on == "device" else max(least, min(free, MOST))
    try:
        found = measure_costs(envs, spec, T, batch // learners, crew.precision)
    except (UserError, EnvFailure):
        raise
    except Exception as e:  # the worker whose network it is will raise it
        crew.divided = f"not measured, {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
        return least
    learning = f"learning {found.learn * 1e3:.2f} ms, {found.gain:.2f} times as fast with two threads"
    crew.divided = f"measured: acting {found.act * 1e3:.2f} ms a row, {learning}"
    return best_actors(found, cores(), learners, away)


def measure_costs(envs: Envs, spec: LearnerSpec, T: int, B: int, precision: str) -> RowCosts:
    """By the clock, on a machine that does nothing else yet, with small batches: the costs of a row are wanted."""
    before, lanes, B = torch.get_num_threads(), min(envs.lanes, LANES), max(1, min(B, ROWS // T))
    try:
        parts = CostProfile(envs, spec, precision)
        parts.clock = time.perf_counter
        act = parts.env(SECONDS, lanes, inline=False) + parts.infer(lanes, SECONDS)
        one = parts.learn(T, B, 0.0)
        torch.set_num_threads(2)
        return RowCosts(act / lanes * 1e-6, one / (T * B) * 1e-6, one / parts.learn(T, B, 0.0))
    finally:
        torch.set_num_threads(before)


def threads_of(role: Role, crew: Crew) -> int:
    """Compute threads of each of a role's workers: never more runnable than cores; two threads on one forward pass give
    only 1.5 times, and less than one where the networks are small. Roles with a number of their own have it, the others
    share what is left; but all have the same where the run is traced, so that one thread can repeat it to the bit.
    """
    roles = [r for r in crew.roles if r.name != "evaluator"]  # that one rests mostly
    wanted = {r.name: 0 if crew.trace else r.threads for r in crew.roles}
    if wanted[role.name] or max((r.parameters for r in roles), default=0) < SMALL:
        return wanted[role.name] or 1
    sides = [(cores(), {r.name: r.n for r in roles})]
    if crew.fleet is not None and not crew.trace and (away := crew.fleet.cores()):
        there = crew.fleet.elsewhere(roles)
        sides = [(cores(), {name: n - there[name] for name, n in sides[0][1].items()}), (away, there)]
        if role.n == there.get(role.name) == 1:  # a machine that --place names may be all that it has
            sides.append((crew.fleet.cores_for(role.name), {role.name: 1}))
    mine = [(among, n) for among, n in sides if n.get(role.name)] or sides[:1]
    return min(_share(among, n, wanted) for among, n in mine)


def _share(among: int, counts: dict[str, int], wanted: dict[str, int]) -> int:
    """Threads of each worker that says no number."""
    left = among - sum(n * wanted[name] for name, n in counts.items())
    return max(1, left // max(1, sum(n for name, n in counts.items() if not wanted[name])))


# What each part of a system costs with one compute thread: a step of the environments, a forward pass, an update. No
# queue, no copy between processes, no bootstrap value.


BLOCK = 0.02  # CPU seconds measured at once
DRAWN = 64  # batches of random actions, again and again


def cpu_cost(turn: Callable[[], object], seconds: float, clock: Callable[[], float] = process_time) -> float:
    """CPU microseconds of one turn, all threads of this process: the median of many blocks of turns."""
    began = perf_counter()
    for warm in range(5):
        if warm >= 2 and perf_counter() - began > seconds:
            break
        turn()
    before = clock()
    turn()
    times = max(1, round(BLOCK / max(clock() - before, 1e-6)))
    found: list[float] = []
    until = perf_counter() + seconds
    while (now := perf_counter()) < until or len(found) < (5 if now < until + seconds else 3):
        before = clock()
        for _ in range(times):
            turn()
        found.append((clock() - before) / times * 1e6)
    return statistics.median(found)


class CostProfile:
    """Of a system with these environments, policy and learner."""

    def __init__(self, envs: Envs, spec: LearnerSpec, precision: str = "float32", reuse: bool = False):
        """reuse: what was computed while acting is not computed again while learning (nets.activation_reuse)."""
        self.clock: Callable[[], float] = process_time
        torch.set_num_threads(1)
        self.envs, self.spec = envs, spec
        self.policy = build_network(spec.policy, 0, precision)
        self.reuse = reuse and spec.acted and spec.passes is None and getattr(self.policy, "recalls", False)
        self.vector = FlatParams(self.policy)
        self.optimizer = spec.update.optim.make(self.vector.parameter)
        self.optimizer.param_groups[0]["lr"] = 1e-6

    def env(self, seconds: float, lanes: int = 1, inline: bool = True) -> float:
        """µs of a step of `lanes` lanes together, random actions."""
        patience = self.envs.step_timeout
        few = Envs(self.envs.name, lanes, workers=1, options=self.envs.options, inline=inline, step_timeout=patience)
        pool, turns = few.open(0), iter(range(1 << 40))

        def step() -> None:
            at, _ = pool.recv()
            pool.send(at, drawn[next(turns) % DRAWN])

        try:
            drawn = [action_sampler(pool.spec.action, seed)(lanes) for seed in range(DRAWN)]
            return cpu_cost(step, seconds, self.clock)
        finally:
            with contextlib.suppress(EnvFailure):
                pool.recv()
            pool.close()

    def infer(self, n: int, seconds: float) -> float:
        """µs of an acting forward pass for n lanes."""
        row = tree.map(torch.from_numpy, self._rows((n,)))
        row["noise"] = torch.rand(n, self.policy.noise)
        state = self.policy.initial(n)
        if hasattr(self.policy, "hold"):
            self.policy.hold()

        def act() -> None:
            with torch.no_grad():
                self.policy.act(row, state)

        return cpu_cost(act, seconds, self.clock)

    def learn(self, T: int, B: int, seconds: float) -> float:
        """µs of learning from [T, B] rows: one update, or all passes over them."""
        passes = self.spec.passes is not None
        rows = self._rows((T + (passes or self.reuse), B))  # there the last row is for its value alone
        batch, state = tree.map(torch.from_numpy, rows), self.policy.initial(B)
        tape = self._tape(batch, state, T) if self.reuse else None

        def update() -> None:
            if passes:
                deque(run_epochs(self, batch, state, rows["version"], (0, 0, 0)), 0)
            else:
                deque(self.apply_gradient(self.score(batch, state, tape)), 0)

        return cpu_cost(update, seconds, self.clock)

    def _tape(self, batch: Batch, state: Batch, T: int) -> Tape:
        """What acting in rows 0..T-1 leaves to learning."""
        tapes: list[Tape] = [[] for _ in range(T)]
        with torch.no_grad():
            for t, tape in enumerate(tapes):
                row = tree.map(lambda x, t=t: x[t], policy_inputs(batch))
                _, state = cast("TapedPolicy", self.policy).act(row, state, tape)
        return join_tapes(tapes)

    def score(self, rows: Batch, state: Batch, tape: Tape | None = None) -> LossOutput:
        """See Learner.score."""
        out = unroll_before_last(self.policy, rows, state, tape) if tape else self.policy.unroll(rows, state)
        return self.spec.loss(out, rows, self.spec.hyperparameters)

    def apply_gradient(self, scored: LossOutput, *_: object) -> Generator[None, None, float]:
        """An update as `run_epochs` asks its learner for one, of nothing but what must be computed."""
        self.vector.zero_grad()
        scored.loss.backward()
        torch.linalg.vector_norm(self.vector.grad)
        self.optimizer.step()
        yield
        return 0.0

    def _rows(self, shape: tuple[int, ...]) -> Batch:
        """Rows of noise; every action is legal."""
        spec, rng = self.envs.spec, np.random.default_rng(0)
        rows = tree.zeros(rows_of(spec, self.policy.spec()), shape)
        for _, x in tree.leaves(rows["obs"]):
            x[...] = rng.integers(0, 256, x.shape, np.uint8) if x.dtype == np.uint8 else 0
        for _, x in tree.leaves(rows.get("mask", {})):
            x[...] = True
        return rows
