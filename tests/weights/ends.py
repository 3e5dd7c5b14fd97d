"""Workers' ends of an update, for its tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.weights.params import FlatParams
from polyplay.weights.update import Local, OptimizerSpec

FORK = multiprocessing.get_context("fork")
PLAIN = OptimizerSpec("rmsprop_torch", eps=1e6)  # so large an ε that updates add up in any order: lr·gradient/ε
SIZE = 30_011


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


def line(at: float) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for p in net.parameters():
        nn.init.constant_(p, at)
    return net


def gradients(n: int, size: int) -> list[torch.Tensor]:
    return [torch.randn(size, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def nine_in_turn(optim: OptimizerSpec, vectors: list[FlatParams], push: Callable[[int], int]) -> FlatParams:
    """Three workers in turn `push` nine gradients, each meets the version before; what one alone makes of them."""
    alone = FlatParams(line(0.5))
    local = Local(optim).bind(me(), alone)
    for i, gradient in enumerate(gradients(9, alone.weights)):
        vectors[i % 3].grad.copy_(gradient)
        alone.grad.copy_(gradient)
        assert push(i % 3) == i
        finish(local(0.1, np.zeros(3)))
    assert not np.allclose(alone.read()[: alone.weights], 0.5, atol=0.1)
    return alone
