"""Hogwild: one vector of weights that several workers change without a lock; and how workers that don't wait count."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.common.shared_memory import Layout, SharedBlock
from polyplay.nets.device import to_device
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams
from polyplay.weights.shared_counts import _READY, _VERSION, SharedCounts
from polyplay.weights.update import Agree, Apply, BoundUpdate, OptimizerSpec, Sums, clipped_step

_making = threading.Lock()  # of a Hogwild's memory on a device


class Hogwild:
    """One vector of weights and one set of optimiser statistics in shared memory, changed by up to `workers` workers
    without any lock (Recht et al. 2011; Mnih et al. 2016): of two that write at once, parts of both remain.

    `weights`, `size`: of the parameters, and of the whole vector (params.sizes). `copy`: every worker has a copy of its
    own, renewed before each rollout (A3C); without it, modules lie in the shared memory itself (threads of one process,
    each with its own module and gradient). Worker 0 brings the first weights; the others wait for them.

    Floating buffers are shared too: a worker's `observe` moves the shared ones by as much as it moved its own, so all
    workers' rows count in them, and what two write at once may lose one of them.
    """

    apart = True

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, copy: bool = True):
        self.optim, self.weights, self.size, self.workers, self.copy = optim, weights, size, workers, copy
        layout = Layout()
        self._fields = (
            layout.add(size, np.float32),
            layout.add((len(optim.statistics), weights), np.float32),
            layout.add(8, np.int64),
            layout.add((workers, 8), np.int64),
        )
        self._block: SharedBlock = layout.block()
        self._attach()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_cells", "_there")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def _attach(self) -> None:
        self._cells = self.arrays()
        self._there: tuple[torch.Tensor, torch.Tensor] | None = None  # see `tensors`

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The vector [size], statistics [n, weights], header, and counters [workers, 2] of updates and agent steps."""
        vector, statistics, head, counters = (self._block.array(*f) for f in self._fields)
        return vector, statistics, head, counters[:, :2]

    def vector(self, ctx: WorkerContext, module: nn.Module) -> FlatParams:
        if self.copy:
            return FlatParams(module)
        memory, _ = self.tensors(next(module.parameters()).device)
        return FlatParams(module, memory, write=ctx.index == 0 and not self.ready)

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The vector and the statistics where they are used, by base tensors of their own each time: on a CPU the
        shared block; on a device, whose users are threads of one process, memory there.
        """
        memory, statistics, _, _ = self.arrays()
        if device.type == "cpu":
            return torch.from_numpy(memory), torch.from_numpy(statistics)
        with _making:
            if self._there is None:
                self._there = to_device(memory, device), to_device(statistics, device)
        return self._there[0].data, self._there[1].data

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Hogwild(self, ctx, vector)

    def reader(self, module: nn.Module) -> FlatParams:
        """Binds a module that only reads to the shared weights, once they are `ready`."""
        return FlatParams(module, self.tensors(next(module.parameters()).device)[0], write=False)

    @property
    def ready(self) -> bool:
        return bool(self._cells[2][_READY])

    @property
    def version(self) -> int:
        """Updates so far, by all workers."""
        _, _, head, counters = self._cells
        return int(head[_VERSION] + counters[:, 0].sum())


class _Hogwild:
    def __init__(self, what: Hogwild, ctx: WorkerContext, vector: FlatParams):
        _, _, head, counters = what.arrays()
        memory, statistics = what.tensors(vector.flat.device)
        self.ctx, self.vector, self.clip, self.waited = ctx, vector, what.optim.clip, 0.0
        shared = memory if what.copy else vector.flat
        self.parameter = nn.Parameter(shared[: what.weights]) if what.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = what.optim.make(self.parameter)
        self.counts = SharedCounts(ctx, vector, shared if what.copy else None, head, counters)
        optimizers.share_statistics(self.optimizer, statistics, fill=self.counts.fresh)
        self.step = optimizers.optimizer_state(self.optimizer).get(
            "step"
        )  # Adam's count of updates: those of all workers

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.counts.observed()
        if self.step is not None:
            self.step.fill_(self.counts.version)
        sums[2] = self.ctx.control.finishing
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums
        yield  # a generator, like its siblings

    def agree(self, sums: Sums) -> Agree:
        sums[2] = self.ctx.control.finishing
        return sums
        yield
