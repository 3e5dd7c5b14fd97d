"""Hogwild: one vector of weights that several workers change without a lock."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.common.edges import Arrow
from polyplay.nets.device import to_device
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.flat import FlatParams, module_nbytes
from polyplay.weights.shared_arrays import SharedArrays
from polyplay.weights.shared_counts import _READY, _VERSION, SharedCounts
from polyplay.weights.update import Apply, BoundUpdate, OptimizerSpec, Sums, clipped_step

_making = threading.Lock()  # of a Hogwild's memory on a device


class Hogwild(SharedArrays):
    """One vector of weights and one set of optimiser statistics in shared memory, changed by up to `workers` workers
    without any lock (Recht et al. 2011; Mnih et al. 2016): of two that write at once, parts of both remain.

    `weights`, `size`: of the parameters, and of the whole vector (flat.param_sizes). `copy`: every worker has a copy of
    its own, renewed before each rollout (A3C); without it, modules lie in the shared memory itself (threads of one
    process, each with its own module and gradient). Worker 0 brings the first weights; the others wait for them.

    Floating buffers are shared too: a worker's `observe` moves the shared ones by as much as it moved its own, so all
    workers' rows count in them, and what two write at once may lose one of them.
    """

    apart = True
    _local = ("_cells", "_on_device")

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, copy: bool = True):
        self.optim, self.weights, self.size, self.workers, self.copy = optim, weights, size, workers, copy
        statistics = (len(optim.statistics), weights)
        super().__init__((size, np.float32), (statistics, np.float32), (8, np.int64), ((workers, 8), np.int64))

    def _attach(self) -> None:
        self._cells = self.arrays()
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None  # see `tensors`

    def label(self) -> str:
        return f"shared: {self.weights:,} weights and {self.optim.name}'s {', '.join(self.optim.statistics)}"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("update",), ("update", "params"))]

    def title(self) -> str:
        return f"Hogwild({self.optim.name}), no lock"

    def worker_nbytes(self, module: Network) -> float:
        return (1.0 + self.copy) * module_nbytes(module)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The vector [size], statistics [n, weights], header, and counters [workers, 2] of updates and agent steps."""
        vector, statistics, head, counters = self._arrays()
        return vector, statistics, head, counters[:, :2]

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
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
            if self._on_device is None:
                self._on_device = to_device(memory, device), to_device(statistics, device)
        return self._on_device[0].data, self._on_device[1].data

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Hogwild(self, ctx, vector)

    def reader(self, module: Network) -> FlatParams:
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


class _Hogwild(BoundUpdate):
    counts: SharedCounts

    def __init__(self, hogwild: Hogwild, ctx: WorkerContext, vector: FlatParams):
        super().__init__(ctx, vector, hogwild.optim.clip)
        _, _, head, counters = hogwild.arrays()
        memory, statistics = hogwild.tensors(vector.flat.device)
        shared = memory if hogwild.copy else vector.flat
        self.parameter = nn.Parameter(shared[: hogwild.weights]) if hogwild.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = hogwild.optim.make(self.parameter)
        self.counts = SharedCounts(ctx, vector, shared if hogwild.copy else None, head, counters)
        optimizers.share_statistics(self.optimizer, statistics, fill=self.counts.fresh)
        self.step = optimizers.optimizer_state(self.optimizer).get("step")  # Adam's, of all workers' updates

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.counts.observed()
        if self.step is not None:
            self.step.fill_(self.counts.version)
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums
