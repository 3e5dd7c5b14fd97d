"""Measurement of the costs of a system: an environment step, a forward pass, and an update.

Each cost is measured with one compute thread, and the cost of an update also with two. Queues, copies between processes
and bootstrap values are not included.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter, process_time

import numpy as np
import torch

from polyplay.buffers.rollout_queue import rows_of
from polyplay.core import tree
from polyplay.core.errors import EnvFailure
from polyplay.core.tree import Batch
from polyplay.envs.pool import Envs
from polyplay.envs.spaces import action_sampler
from polyplay.learning.learner import LearnerSpec, Minibatches, Runner, run_epochs
from polyplay.learning.losses import LossOutput
from polyplay.nets.factory import build_network
from polyplay.weights.params import FlatParams
from polyplay.workers.sizing import LANES, ROWS, SECONDS, RowCosts

BLOCK = 0.02  # seconds of a block of calls that is measured as a whole
DRAWN = 64  # number of batches of random actions, which are used in rotation


def measure_costs(envs: Envs, spec: LearnerSpec, T: int, B: int, precision: str) -> RowCosts:
    """Measure the wall time per row (one step of one environment), on a machine that runs nothing else. `T`: rows per
    trajectory. `B`: trajectories per batch.
    """
    before, lanes, B = torch.get_num_threads(), min(envs.lanes, LANES), max(1, min(B, ROWS // T))
    try:
        parts = CostProfile(envs, spec, precision)
        parts.clock = time.perf_counter
        act = parts.env(SECONDS, lanes, inline=None) + parts.infer(lanes, SECONDS)
        one = parts.learn(T, B, 0.0)
        torch.set_num_threads(2)
        return RowCosts(act / lanes * 1e-6, one / (T * B) * 1e-6, one / parts.learn(T, B, 0.0))
    finally:
        torch.set_num_threads(before)


def cpu_cost(turn: Callable[[], object], seconds: float, clock: Callable[[], float] = process_time) -> float:
    """Return the median µs per call of `turn`, by default in CPU time of all threads of this process."""
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
    """Measures the µs that a system's environments, policy and learner take."""

    def __init__(self, envs: Envs, spec: LearnerSpec, precision: str = "float32"):
        self.clock: Callable[[], float] = process_time
        torch.set_num_threads(1)
        self.envs, self.spec = envs, spec
        self.policy = build_network(spec.policy, 0, precision)
        self.vector = FlatParams(self.policy)
        self.run = Runner(self.policy, None, spec.loss, self.vector)
        self.run.hyper = spec.hyperparameters.all()
        self.optimizer = spec.update.optim.make(self.vector.parameter)
        self.optimizer.param_groups[0]["lr"] = 1e-6

    def env(self, seconds: float, lanes: int = 1, inline: bool | None = True) -> float:
        """Return the µs of one step of `lanes` parallel environments in total, with random actions."""
        patience = self.envs.step_timeout
        few = Envs(self.envs.name, lanes, options=self.envs.options, workers=1, step_timeout=patience)
        few = few.share(inline=inline, helps=True)
        pool, turns = few.open(0), iter(range(1 << 40))

        def step() -> None:
            at, _ = pool.recv()
            pool.send(at, drawn[next(turns) % DRAWN])

        try:
            draw = action_sampler(pool.spec.action, 0)
            at, rows = pool.recv()
            mask = rows["mask"] if pool.spec.tasks and pool.spec.mask is not None else None  # a task's mask is fixed
            drawn = [draw(lanes, mask) for _ in range(DRAWN)]
            pool.send(at, drawn[0])
            return cpu_cost(step, seconds, self.clock)
        finally:
            with contextlib.suppress(EnvFailure):
                pool.recv()
            pool.close()

    def infer(self, n: int, seconds: float) -> float:
        """Return the µs of the forward pass that chooses actions for `n` environments."""
        row = tree.map(torch.from_numpy, self._rows((n,)))
        row["noise"] = torch.rand(n, self.policy.noise)
        state = self.policy.initial(n)
        self.policy.cache_weights()

        def act() -> None:
            with torch.no_grad():
                self.policy.act(row, state)

        return cpu_cost(act, seconds, self.clock)

    def learn(self, T: int, B: int, seconds: float) -> float:
        """Return the µs of learning from B trajectories of T rows, with all passes over them."""
        several = self.spec.passes is not None
        rows = self._rows((T + several, B))  # with several passes, the last row gives only a bootstrap value
        batch, state = tree.map(torch.from_numpy, rows), self.policy.initial(B)

        def update() -> None:
            if several:
                deque(run_epochs(self, batch, state, rows["version"], (0, 0, 0)), 0)
            else:
                deque(self.apply_gradient(self.run(batch, state, 0)), 0)

        return cpu_cost(update, seconds, self.clock)

    def score_part(self, parts: Minibatches, order: np.ndarray, at: slice) -> LossOutput:
        """See Learner.score_part."""
        return self.run.part(parts, order, at, 0)

    def apply_gradient(self, scored: LossOutput, *_: object) -> Generator[None, None, float]:
        """See Learner.apply_gradient. Compute only the norm of the gradient and the optimizer's step."""
        torch.linalg.vector_norm(self.vector.grad)
        self.optimizer.step()
        yield
        return 0.0

    def _rows(self, shape: tuple[int, ...]) -> Batch:
        """Return a batch with random images, zeros as other numbers, and all actions legal."""
        spec, rng = self.envs.spec, np.random.default_rng(0)
        rows = tree.zeros(rows_of(spec, self.policy.spec()), shape)
        for _, x in tree.leaves(rows["obs"]):
            x[...] = rng.integers(0, 256, x.shape, np.uint8) if x.dtype == np.uint8 else 0
        for _, x in tree.leaves(rows.get("mask", {})):
            x[...] = True
        return rows
