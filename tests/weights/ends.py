"""Workers' ends of an update, for its tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.core.tree import Field
from polyplay.core.worker import Counters, Hyperparameters, RunControl, WorkerContext
from polyplay.envs import Discrete, EnvSpec
from polyplay.learning import losses
from polyplay.learning.learner import LearnerSpec
from polyplay.nets import factory
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import Local, OptimizerSpec

FORK = multiprocessing.get_context("fork")
PLAIN = OptimizerSpec("rmsprop_torch", eps=1e6)  # so large an ε that updates add up in any order: lr·gradient/ε
OPTIM = OptimizerSpec("rmsprop_tf", eps=1e-3, clip=0.5)
SIZE = 30_011
SPEC = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3))
POLICY = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,)})


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SIZE))


def me(index: int = 0, n: int = 1, seed: int = 4, **more) -> WorkerContext:
    return WorkerContext(
        "learn", index, n, index, seed=seed, all_counters=Counters(4, ("loss",)), control=RunControl(), **more
    )


def finish(steps: Iterable[None]) -> None:
    for _ in steps:
        pass


def task(
    update: Any = None, total: float = 1e9, policy: Any = POLICY, loss: Any = None, parts: Any = ()
) -> LearnerSpec:
    hyperparameters = Hyperparameters("linear", learning_rate=1e-2, entropy_cost=0.01)
    return LearnerSpec(policy, loss or losses.A2C(), update or Local(OPTIM), hyperparameters, total, parts)


def some_rows(seed: int, T: int = 4, B: int = 6, version: int = 0) -> dict[str, Any]:
    """What a learner of POLICY gets; in a third of the lanes row 2 is an episode's first."""
    rng = np.random.default_rng(seed)
    first = np.zeros((T + 1, B), bool)
    first[2, : B // 3] = True
    floats = {k: rng.standard_normal((T + 1, B)).astype(np.float32) for k in ("reward", "value", "logp")}
    return {
        "obs": rng.standard_normal((T + 1, B, 5)).astype(np.float32),
        "action": rng.integers(0, 3, (T + 1, B)),
        "terminated": np.roll(first, -1, 0),
        "truncated": np.zeros((T + 1, B), bool),
        "first": first,
        "version": np.full((T + 1, B), version),
        **floats,
    }


def line(at: float) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for p in net.parameters():
        nn.init.constant_(p, at)
    return net


LINE = param_sizes(line(0.0))


def joined(update: Any, index: int, at: float, **more: Any) -> tuple[FlatParams, Any]:
    """A worker's vector and the update that is open on it; modules differ, so worker 0's must be everyone's."""
    ctx, module = me(index, update.workers, **more), line(at)
    bound = update.open(ctx, module)
    bound.begin(0, 0.0)
    bound.refresh()
    return bound.vector, bound


def ends_of(update: Any) -> tuple[list[FlatParams], list[Any]]:
    ends = [joined(update, i, 0.5 if i == 0 else 9.0 + i) for i in range(update.workers)]
    return [vector for vector, _ in ends], [bound for _, bound in ends]


def gradients(n: int, size: int) -> list[torch.Tensor]:
    return [torch.randn(size, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def nine_in_turn(optim: OptimizerSpec, vectors: list[FlatParams], push: Callable[[int], int]) -> FlatParams:
    """Three workers in turn `push` nine gradients, each meets the version before; what one alone makes of them."""
    local = Local(optim).open(me(), line(0.5))
    alone = local.vector
    for i, gradient in enumerate(gradients(9, alone.weights)):
        vectors[i % 3].grad.copy_(gradient)
        alone.grad.copy_(gradient)
        assert push(i % 3) == i
        finish(local.apply(0.1, np.zeros(3)))
    assert not np.allclose(alone.read()[: alone.weights], 0.5, atol=0.1)
    return alone


def work(update: Any, index: int, times: int) -> Any:
    """`times` updates, each of which adds (index + 1)/ε to every weight; the worker's end."""
    bound = update.open(me(index, update.workers), Wide())
    bound.begin(0, 0.0)
    while not bound.counts.ready:
        time.sleep(0.001)
    for _ in range(times):
        bound.refresh()
        bound.vector.grad.fill_(-(index + 1.0))
        finish(bound.apply(1.0, np.zeros(3)))
        bound.counts.add(2)
    return bound


def die(update: Any, index: int, into: Callable[[Any], object]) -> None:
    """An update that is made to hang, for a process that is killed in it."""
    bound = work(update, index, 0)
    bound.refresh()
    bound.vector.grad.fill_(7e9)
    into(bound)
    finish(bound.apply(1.0, np.zeros(3)))


@contextlib.contextmanager
def killed(update: Any, index: int, into: Callable[[Any], object]) -> Iterator[None]:
    """A process that hangs in its update meanwhile, and is killed."""
    worker = FORK.Process(target=die, args=(update, index, into), daemon=True)
    worker.start()
    try:
        yield
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(60)
