"""What replicas' averaging of gradients costs, in processes; and how long the rollouts of one replica take."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.nets import factory
from polyplay.weights import update
from polyplay.weights.params import param_sizes
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.process import tune

SPEC = EnvSpec(Field((4, 84, 84), "uint8"), Discrete(6))
OPTIM = OptimizerSpec("rmsprop_tf", eps=1e-5, clip=0.5)
PARTS = ("copy", "wait", "mean", "step")  # of an update; step: the optimiser's, of a replica's part of the weights
SCRATCH = 4_000_000  # float32 that are touched between updates, as a rollout would
WARM = 20  # updates that don't count


def clocks() -> np.ndarray:
    """Wall and CPU seconds of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


class Watched:
    """A function, or an object with `wait`, whose calls are timed: `spent` is wall and CPU seconds."""

    def __init__(self, call: Callable[..., Any]):
        self.call, self.spent = call, np.zeros(2)

    def __call__(self, *given: Any) -> Any:
        before = clocks()
        try:
            return self.call(*given)
        finally:
            self.spent += clocks() - before


class Bells:
    """Semaphores whose waits are timed."""

    def __init__(self, bells: Any):
        self.bells, self.wait = bells, Watched(lambda bell, seconds: bell.wait(seconds))

    def __getitem__(self, i: int) -> Any:
        bell = self.bells[i]
        return SimpleNamespace(post=bell.post, wait=lambda seconds: self.wait(bell, seconds))


def _replica(rank: int, reduces: dict[str, AllReduce], turns: int, block: SharedBlock) -> None:
    """Fills block [networks, replicas, turns, parts, wall and CPU]."""
    tune(1)
    mean = Watched(update._mean)
    update._mean = mean  # type: ignore[assignment]
    n = next(iter(reduces.values())).replicas
    found = block.array((len(reduces), n, turns, len(PARTS), 2), np.float64)
    scratch = np.ones(SCRATCH, np.float32)
    for i, (network, reduce) in enumerate(reduces.items()):
        ctx: Any = SimpleNamespace(index=rank, resume=None)
        vector = reduce.vector(ctx, factory.make(network, SPEC))
        vector.grad.fill_(1e-4 * (1 + rank))
        bound: Any = reduce.bind(ctx, vector)
        bound.bells, bound.part.step = bells, step = Bells(bound.bells), Watched(bound.part.step)
        timed = (bells.wait, mean, step)
        for k in range(-WARM, turns):
            scratch *= 1.0
            for watched in timed:
                watched.spent[:] = 0.0
            before = clocks()
            for _ in bound(1e-4, np.zeros(3)):
                pass
            whole = clocks() - before
            waits, means, steps = (w.spent for w in timed)
            if k >= 0:
                found[i, rank, k] = [whole - waits - means - steps, waits, means, steps]


def exchange(networks: list[str], replicas: int, turns: int) -> dict[str, np.ndarray]:
    """Seconds that each part of an update takes, {network: [parts, wall and CPU]}: medians over updates and replicas;
    of the wait the mean, for its tail is what costs. Raises RuntimeError: a replica failed.
    """
    lengths = {network: param_sizes(factory.make(network, SPEC))[1] for network in networks}
    reduces = {network: AllReduce(OPTIM, replicas, size) for network, size in lengths.items()}
    shape = (len(networks), replicas, turns, len(PARTS), 2)
    block = SharedBlock(8 * int(np.prod(shape)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_replica, args=(i, reduces, turns, block)) for i in range(replicas)]
    for p in processes:
        p.start()
    try:
        for p in processes:
            p.join(300)
    finally:
        for reduce in reduces.values():
            reduce.close()
        for p in processes:
            p.kill()
    if any(p.exitcode for p in processes):
        raise RuntimeError(f"exchange: exit statuses {[p.exitcode for p in processes]}")
    found = block.array(shape, np.float64).copy()
    middle, mean = np.median(found, axis=(1, 2)), found.mean((1, 2))
    middle[:, PARTS.index("wait")] = mean[:, PARTS.index("wait")]
    return {network: middle[i] for i, network in enumerate(networks)}


def parameters(network: str) -> int:
    return param_sizes(factory.make(network, SPEC))[0]


# ------------------------------------------------------------------------------------------------- rollouts' times


def _rollouts(options: dict[str, Any], seconds: float, core: int, pipe: Any) -> None:
    import polyplay

    os.sched_setaffinity(0, {core})
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the panel of the run
    at: list[float] = []
    step = update.clipped_step

    def stamped(*given: Any) -> float:
        norm = step(*given)
        at.append(time.perf_counter())
        return norm

    update.clipped_step = stamped
    with tempfile.TemporaryDirectory() as place:
        quiet = {"serial": True, "tensorboard": False, "report_every": 1e4, "checkpoint_every": 1e4}
        polyplay.train("a2c", minutes=seconds / 60.0, run=f"{place}/run", **quiet, **options)
    pipe.send(np.diff(at)[WARM:].tolist())


def rollouts(options: dict[str, Any], seconds: float) -> list[float]:
    """Seconds from update to update of one replica of a2c on a core of its own. Raises RuntimeError: it failed."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    core = max(os.sched_getaffinity(0))
    child = context.Process(target=_rollouts, args=(options, seconds, core, theirs))
    child.start()
    theirs.close()
    try:
        return mine.recv()
    except EOFError:
        raise RuntimeError("rollouts: the run failed") from None
    finally:
        child.join(30)
        child.kill()
