"""Hogwild: one vector of weights that several workers change without a lock."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.nets.device import to_device
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams
from polyplay.weights.shared_arrays import shared_array
from polyplay.weights.shared_weights import CopiedCounts, SharedWeights
from polyplay.weights.update import Apply, BoundUpdate, OptimizerSpec, Sums, clipped_step

_making = threading.Lock()  # of a Hogwild's memory on a device


class Hogwild(SharedWeights):
    """One vector of weights and one set of optimiser statistics in shared memory, changed by up to `workers` workers
    without any lock (Recht et al. 2011; Mnih et al. 2016): of two that write at once, parts of both remain.

    `weights`, `size`: of the parameters, and of the whole vector (flat.param_sizes). `copy`: every worker has a copy of
    its own, renewed before each rollout (A3C); without it, modules lie in the shared memory itself (threads of one
    process, each with its own module and gradient). Worker 0 brings the first weights; the others wait for them.

    Floating buffers are shared too: a worker's `observe` moves the shared ones by as much as it moved its own, so all
    workers' rows count in them, and what two write at once may lose one of them.
    """

    LOCAL = ("_on_device",)
    shared = shared_array(np.float32, lambda h: (h.size,))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, copy: bool = True):
        self.copy = copy
        super().__init__(optim, weights, size, workers)

    def _attach(self) -> None:
        super()._attach()
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None  # see `tensors`

    def title(self) -> str:
        return f"Hogwild({self.optim.name}), no lock"

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        if self.copy:
            return FlatParams(module)
        memory, _ = self.tensors(next(module.parameters()).device)
        return FlatParams(module, memory, write=ctx.index == 0 and not self.ready)

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The vector and the statistics where they are used, by base tensors of their own each time: on a CPU the
        shared block; on a device, whose users are threads of one process, memory there.
        """
        if device.type == "cpu":
            return torch.from_numpy(self.shared), torch.from_numpy(self.statistics)
        with _making:
            if self._on_device is None:
                self._on_device = to_device(self.shared, device), to_device(self.statistics, device)
        return self._on_device[0].data, self._on_device[1].data

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Hogwild(self, ctx, vector)

    def reader(self, module: Network) -> FlatParams:
        """Binds a module that only reads to the shared weights, once they are `ready`."""
        return FlatParams(module, self.tensors(next(module.parameters()).device)[0], write=False)


class _Hogwild(BoundUpdate):
    counts: CopiedCounts

    def __init__(self, hogwild: Hogwild, ctx: WorkerContext, vector: FlatParams):
        super().__init__(hogwild, ctx, vector)
        shared, statistics = hogwild.tensors(vector.flat.device)
        self.parameter = nn.Parameter(shared[: hogwild.weights]) if hogwild.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = hogwild.optim.make(self.parameter)
        self.counts = CopiedCounts(hogwild, ctx, vector, shared if hogwild.copy else None)
        optimizers.share_statistics(self.optimizer, statistics, fill=self.counts.fresh)

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.counts.observed()
        optimizers.set_step(self.optimizer, self.counts.version)  # Adam's, of all workers' updates
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums
