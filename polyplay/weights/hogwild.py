"""Hogwild: one vector of weights that several workers change without a lock; and how workers that don't wait count."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.common.context import Me
from polyplay.common.shared_memory import Block, Layout
from polyplay.nets.device import put
from polyplay.weights import optimizers
from polyplay.weights.allreduce import Agree, Apply, Bound, Optim, Sums, step_
from polyplay.weights.params import Vector

# cells of the header, int64; of a worker: its updates, and the agent steps it learnt from
_READY, _VERSION, _LEARNT = 0, 1, 2


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

    def __init__(self, optim: Optim, weights: int, size: int, workers: int, copy: bool = True):
        self.optim, self.weights, self.size, self.workers, self.copy = optim, weights, size, workers, copy
        layout = Layout()
        self._fields = (
            layout.add(size, np.float32),
            layout.add((len(optim.statistics), weights), np.float32),
            layout.add(8, np.int64),
            layout.add((workers, 8), np.int64),
        )
        self._block: Block = layout.block()
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

    def vector(self, me: Me, module: nn.Module) -> Vector:
        if self.copy:
            return Vector(module)
        memory, _ = self.tensors(next(module.parameters()).device)
        return Vector(module, memory, write=me.index == 0 and not self.ready)

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The vector and the statistics where they are used, by base tensors of their own each time: on a CPU the
        shared block; on a device, whose users are threads of one process, memory there.
        """
        memory, statistics, _, _ = self.arrays()
        if device.type == "cpu":
            return torch.from_numpy(memory), torch.from_numpy(statistics)
        with _making:
            if self._there is None:
                self._there = put(memory, device), put(statistics, device)
        return self._there[0].data, self._there[1].data

    def bind(self, me: Me, vector: Vector) -> Bound:
        return _Hogwild(self, me, vector)

    def reader(self, module: nn.Module) -> Vector:
        """Binds a module that only reads to the shared weights, once they are `ready`."""
        return Vector(module, self.tensors(next(module.parameters()).device)[0], write=False)

    @property
    def ready(self) -> bool:
        return bool(self._cells[2][_READY])

    @property
    def version(self) -> int:
        """Updates so far, by all workers."""
        _, _, head, counters = self._cells
        return int(head[_VERSION] + counters[:, 0].sum())


class _Hogwild:
    def __init__(self, what: Hogwild, me: Me, vector: Vector):
        _, _, head, counters = what.arrays()
        memory, statistics = what.tensors(vector.flat.device)
        self.me, self.vector, self.clip, self.waited = me, vector, what.optim.clip, 0.0
        shared = memory if what.copy else vector.flat
        self.parameter = nn.Parameter(shared[: what.weights]) if what.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = what.optim.make(self.parameter)
        self.counts = Central(me, vector, shared if what.copy else None, head, counters)
        optimizers.share(self.optimizer, statistics, fill=self.counts.fresh)
        self.step = optimizers.state(self.optimizer).get("step")  # Adam's count of updates: those of all workers

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        self.counts.observed()
        if self.step is not None:
            self.step.fill_(self.counts.version)
        sums[2] = self.me.control.finishing
        return step_(self.vector, self.optimizer, self.clip, learning_rate), sums
        yield  # a generator, like its siblings

    def agree(self, sums: Sums) -> Agree:
        sums[2] = self.me.control.finishing
        return sums
        yield


class Central:
    """Counts of all workers on shared weights, from cells that one worker each writes; and the way of the weights.

    `shared`: the vector, where the worker's own is a copy of it. `pushed`: a copy that its own updates renew, part by
    part, and that is told so by `renewed`.
    """

    def __init__(
        self,
        me: Me,
        vector: Vector,
        shared: torch.Tensor | None,
        head: np.ndarray,
        counters: np.ndarray,
        pushed: bool = False,
    ):
        self.me, self.vector, self.shared, self.head, self.counters = me, vector, shared, head, counters
        self.pushed, self.held, self.met = pushed, -1, -1  # versions that its copy is of, and the update met, at least
        self.fresh = me.index == 0 and not head[_READY]
        self.buffers = vector.flat[vector.weights :].clone()  # as they were when the weights were copied

    begun = property(lambda self: int(self.head[_VERSION]))
    version = property(lambda self: int(self.head[_VERSION] + self.counters[:, 0].sum()))
    learnt = property(lambda self: float(self.head[_LEARNT] + self.counters[:, 1].sum()))

    def begin(self, version: int, learnt: float) -> None:
        """Worker 0 gives its weights to all."""
        if self.fresh:
            if self.shared is not None:
                self.shared.copy_(self.vector.flat)
            self.head[_VERSION], self.head[_LEARNT] = version, learnt
            self.head[_READY] = 1

    @property
    def ready(self) -> bool:
        return bool(self.head[_READY])

    def renewed(self, before: np.ndarray) -> None:
        """An update has renewed the copy. before: how many each part had had then; others may be in mid-update, so what
        it met is the most, and what the copy has now the least of them: no row's lag is told too small.
        """
        self.met, self.held = self.begun + int(before.max()), self.begun + int(before.min()) + 1

    def newest(self) -> int:
        """Copies the shared weights, which others may be changing meanwhile; their version. Where updates renew the
        copy, that is done once, at the beginning.
        """
        if self.pushed and self.held >= 0:
            return self.held
        version = self.held = self.version
        if self.shared is not None:
            self.vector.flat.copy_(self.shared)
            self.buffers.copy_(self.vector.flat[self.vector.weights :])
        return version

    def observed(self) -> None:
        """What the worker's rows moved in its own floating buffers moves the shared ones as much."""
        at = self.vector.weights
        if self.shared is not None and self.vector.size > at:
            self.shared[at:] += (self.vector.flat[at:] - self.buffers).to(self.shared.device)
            if self.pushed:
                self.vector.flat[at:] = self.shared[at:]
            self.buffers.copy_(self.vector.flat[at:])

    def add(self, rows: float) -> int:
        at = self.met if self.pushed else self.version
        self.counters[self.me.index] += (1, int(rows))
        return at

    def rest(self, rows: float) -> None:
        self.counters[self.me.index, 1] += int(rows)

    def kept(self) -> dict[str, Any]:
        return {}

    def know(self, kept: dict[str, Any]) -> None:
        pass
