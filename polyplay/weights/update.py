"""How a gradient reaches the weights: Local, AllReduce.

How a gradient reaches the weights: what every update has, and the one of a learner alone.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from polyplay.core.errors import Leaving
from polyplay.core.shared_memory import memory_barrier, shared_array
from polyplay.core.worker import WorkerContext
from polyplay.nets.device import HostCopy
from polyplay.nets.policy import Network
from polyplay.weights import optimizers
from polyplay.weights.params import FlatParams, SharedArrays, as_doubles, module_nbytes, param_sizes

Sums = np.ndarray  # float64, at most 8: agent steps learnt, save number, finish, …; summed over replicas
LEAVING = 5  # of sums: replicas that have no gradient, because the run ends in the middle of their rollouts
Apply = Generator[None, None, tuple[float, Sums]]
Agree = Generator[None, None, Sums]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser by name (optimizers.NAMES); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    clip: float = 0.0
    momentum: float = 0.9  # SGD's
    decay: float = 0.0  # SGD's: L2 regularisation c‖θ‖² is a decay of 2c

    def __post_init__(self) -> None:
        optimizers.check_optimizer(self.name)

    @property
    def statistics(self) -> tuple[str, ...]:
        return optimizers.statistics(self.name)

    def make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        more = {"momentum": self.momentum, "decay": self.decay}
        return optimizers.make_optimizer(self.name, [parameter], lr=0.0, eps=self.eps, alpha=self.alpha, **more)


def check_leaving(sums: Sums) -> None:
    """Raises Leaving: some replica has no gradient any more, so nobody's is applied."""
    if len(sums) > LEAVING and sums[LEAVING]:
        raise Leaving


READY, BEGUN, LEARNT = 0, 1, 2  # cells of Counts.head: whether the first weights are there; updates, steps before
UPDATES, STEPS = 0, 1  # of a worker: its updates, and the agent steps it learnt from


class Counts:
    """Updates that weights have had, and agent steps learnt from."""

    head: np.ndarray  # of the runs before this one
    counters: np.ndarray  # [workers, …]: each row by its worker
    ready = property(lambda self: bool(self.head[READY]))  # the first weights are there
    begun = property(lambda self: int(self.head[BEGUN]))  # the version that this run began with
    version = property(lambda self: int(self.head[BEGUN] + self.counters[:, UPDATES].sum()))
    learnt = property(lambda self: float(self.head[LEARNT] + self.counters[:, STEPS].sum()))


class BoundUpdate(Counts, ABC):
    """An update at work on one worker's vector, with its counts. This base is of a worker that waits for no other and
    shares nothing. shared: the counts of all workers, where they are changed without waiting.
    """

    optimizer: torch.optim.Optimizer
    gate: Callable[[float], bool] | None = None  # whether a gradient is to be made of this loss; None: of all

    def __init__(self, update: Update, ctx: WorkerContext, vector: FlatParams, shared: Counts | None = None):
        self.ctx, self.vector, self.clip = ctx, vector, update.optim.clip
        # this learner begins with initial weights, or those of a checkpoint
        self.fresh = shared is None or (ctx.index == 0 and not shared.ready)
        self.head, self.counters = np.array([1.0, 0.0, 0.0]), np.zeros((1, 2))
        if shared is not None:
            self.head, self.counters = shared.head, shared.counters
        self.own = self.counters[0 if shared is None else ctx.index]
        self.waited = 0.0  # seconds spent waiting for others, so far
        self.whole = True  # whether all weights have had the same updates

    def begin(self, version: int, learnt: float) -> None:
        """Once a checkpoint was loaded, if there is one."""
        self.head[BEGUN], self.head[LEARNT] = version, learnt

    def newest(self) -> int:
        """Version of the weights to act with next, which are in the vector then."""
        return self.version

    def add(self, rows: float, updates: int = 1) -> int:
        """Count an update, of `rows` agent steps, or steps without one; the version it was applied to."""
        at = self.version
        np.add(self.own[: STEPS + 1], (updates, rows), out=self.own[: STEPS + 1], casting="unsafe")
        return at

    def state(self) -> dict[str, list[int]]:
        """For a checkpoint, beyond `version` and `learnt`. Most have nothing."""
        return {}

    def load_state(self, saved: Mapping[str, list[int]]) -> None:
        """What `state` gave."""

    @abstractmethod
    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        """Apply the vector's gradient: its norm, and the sums over all replicas. Others take their turns meanwhile."""

    def agree(self, sums: Sums) -> Agree:
        """The sums over all replicas, without an update."""
        yield from ()
        return sums

    def writers_paused(self) -> AbstractContextManager[None]:
        """While in it, nobody changes the weights that this worker saves."""
        return contextlib.nullcontext()


class Update(ABC):
    """A description made while wiring; `bind` makes it act on one worker's vector.

    `asynchronous`: workers don't wait for each other; each counts for itself, and worker 0 saves for all.
    """

    optim: OptimizerSpec
    asynchronous: ClassVar[bool] = False

    detail: str = ""  # in its title

    def title(self) -> str:
        """The line of a learner's box in a diagram."""
        return f"{type(self).__name__}({self.optim.name}){self.detail}"

    @abstractmethod
    def worker_nbytes(self, module: Network) -> float:
        """A worker's own weights, gradient and statistics."""

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        """The module where this update wants it."""
        return FlatParams(module)

    @abstractmethod
    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate: ...


def clip_gradient(vector: FlatParams, clip: float) -> float:
    """Shrink the gradient to a global norm of at most `clip` (0: leave it); its norm before."""
    norm = float(torch.linalg.vector_norm(vector.grad))
    if clip and norm > clip and math.isfinite(norm):
        vector.grad.mul_(clip / (norm + 1e-6))
    return norm


def clipped_step(vector: FlatParams, optimizer: torch.optim.Optimizer, clip: float, learning_rate: float) -> float:
    """Clip by global norm and step; the norm before clipping. A gradient that isn't finite changes nothing."""
    norm = clip_gradient(vector, clip)
    if math.isfinite(norm):
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    return norm


@dataclass(frozen=True)
class Local(Update):
    """This worker's gradient, applied by this worker."""

    optim: OptimizerSpec

    def worker_nbytes(self, module: Network) -> float:
        return (2.0 + len(self.optim.statistics)) * module_nbytes(module)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        return _Local(self, ctx, vector)


class _Local(BoundUpdate):
    def __init__(self, local: Local, ctx: WorkerContext, vector: FlatParams):
        super().__init__(local, ctx, vector)
        self.optimizer = local.optim.make(vector.parameter)

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        yield from ()
        return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), sums


# Replicas with a GPU each: gradients and floating buffers are averaged by NCCL, from GPU to GPU, in its own order.


def fits(device: torch.device, replicas: int) -> bool:
    """Whether this worker is one of several processes with a GPU each. NCCL takes no two on one."""
    if device.type != "cuda" or multiprocessing.parent_process() is None:
        return False
    return torch.cuda.device_count() >= replicas and torch.distributed.is_nccl_available()


class NcclGroup:
    """This process's end. Every replica makes one, with its own rank."""

    def __init__(self, place: str, rank: int, replicas: int, vector: FlatParams, backend: str = "nccl"):
        import torch.distributed as dist

        self.vector, self.n, self._all_reduce = vector, replicas, dist.all_reduce
        store = dist.FileStore(place, replicas)
        dist.init_process_group(backend, store=store, rank=rank, world_size=replicas)
        self.flat = torch.empty(vector.size, device=vector.flat.device)

    def average(self) -> float:
        """Gradients and buffers become means over the replicas. Gives the seconds waited."""
        at, flat = self.vector.weights, self.flat
        flat[:at], flat[at:] = self.vector.grad, self.vector.flat[at:]
        doubles = as_doubles(self.vector.flat[self.vector.doubles :])
        flat[self.vector.doubles :] = 0.0
        before = time.perf_counter()
        self._all_reduce(flat)
        if len(doubles):
            self._all_reduce(doubles)
            doubles.mul_(1.0 / self.n)
        flat.mul_(1.0 / self.n)
        self.vector.grad.copy_(flat[:at])
        self.vector.flat[at : self.vector.doubles] = flat[at : self.vector.doubles]
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)
        return time.perf_counter() - before


# AllReduce: replicas that average their gradients and so stay equal.
#
# Applying an update is a generator, so that a run in one thread can let others take their turn while a replica waits.


_LINE = 16  # float32 of a cache line
NUMBERS, GRADIENT, WEIGHTS = 0, 1, 2  # what a replica has written before it arrives at a turn


class AllReduce(SharedArrays, Update):
    """Replicas of one machine stay equal: gradients and floating buffers are averaged in shared memory, in fixed order;
    by NCCL, in its own, where each replica is a process with a GPU of its own (weights.nccl).

    On CPUs each replica averages its own part of the gradient and takes the optimiser's step there: statistics, as
    large as the weights each, are read and written once, not by everyone. Networks without buffers all lie in one
    memory: nobody computes while it is written. With buffers each replica copies the others' parts to its own.
    `size`: of the whole vector, of which `weights` come first (flat.param_sizes).
    """

    gradients = shared_array(np.float32, lambda r: (r.replicas, r.size))  # each replica's vector has its own here
    state = shared_array(np.float32, lambda r: (1 + len(r.optim.statistics), r.size))  # new weights, statistics
    sums = shared_array(np.float64, lambda r: (2, r.replicas, 8))  # of two turns
    arrived = shared_array(np.int64, lambda r: (r.replicas, 8))  # its turn, and what came with this and the last one

    def __init__(self, optim: OptimizerSpec, replicas: int, size: int, weights: int | None = None):
        self.optim, self.replicas, self.size, self.detail = optim, replicas, size, f" of {replicas}"
        self.weights = size if weights is None else weights
        # a file that doesn't exist yet, by which processes find each other; the last one removes it
        self._place = str(Path(tempfile.gettempdir()) / f"polyplay-{uuid.uuid4().hex}")
        super().__init__(bells=replicas)

    def label(self) -> str:
        return f"gradients: their mean over {self.replicas}"

    def part(self, rank: int) -> slice:
        """The weights that are this replica's to change."""
        edges = [self.weights * i // self.replicas // _LINE * _LINE for i in (rank, rank + 1)]
        return slice(edges[0], edges[1] if rank + 1 < self.replicas else self.weights)

    def worker_nbytes(self, module: Network) -> float:
        """Gradients and statistics are shared, and weights too where there are no buffers."""
        weights, size = param_sizes(module)
        return ((weights < size) + 1.0 / self.replicas) * module_nbytes(module)

    def vector(self, ctx: WorkerContext, module: Network) -> FlatParams:
        grad, (weights, size) = self.gradients[ctx.index], param_sizes(module)
        if weights < size or next(module.parameters()).device.type != "cpu":
            return FlatParams(module, grad=grad)
        # written only in a new run: another replica may have loaded a checkpoint there already
        return FlatParams(module, memory=self.state[0], write=ctx.resume is None, grad=grad)

    def bind(self, ctx: WorkerContext, vector: FlatParams) -> BoundUpdate:
        if vector.flat.device.type == "cpu":
            return _Parts(self, ctx, vector)
        return _Whole(self, ctx, vector)


class _Meeting(BoundUpdate):
    """A replica's end of an AllReduce: it waits for the others, and adds numbers up with them."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        self.reduce, self.rank, self.n, self.turn = reduce, ctx.index, reduce.replicas, 0
        self.gradients, self.sums, self.arrived = reduce.gradients, reduce.sums, reduce.arrived[:, 0]
        self.bells, self.buffers = reduce._bells, HostCopy(vector.flat[vector.weights :])

    def agree(self, sums: Sums, brings: int = NUMBERS) -> Agree:
        """In fixed order. All have arrived when one goes on. brings: what else this replica has written for others."""
        # Two rows of sums in turn: whoever writes turn k + 2 has seen everyone arrive at k + 1, so all have read k.
        self.turn += 1
        row = self.turn % 2
        self.sums[row, self.rank, : len(sums)] = sums
        self.reduce.arrived[self.rank, 1 + row] = brings
        memory_barrier()  # what others read from now on is there
        self.arrived[self.rank] = self.turn
        memory_barrier()
        for other in range(self.n):
            if other != self.rank:
                self.bells[other].post()
        before = time.perf_counter()
        while self.arrived.min() < self.turn:
            self.reduce.check()
            if not self.bells[self.rank].wait(0.0):
                self.ctx.meeting = self.turn
                yield
                self.bells[self.rank].wait(self.reduce.patience)
        self.ctx.meeting = 0
        self.waited += time.perf_counter() - before
        memory_barrier()
        total: np.ndarray = self.sums[row, :, : len(sums)].sum(0)
        return total

    def _buffers(self) -> None:
        """The buffers' mean, after everyone's were written."""
        at, doubles = self.vector.weights, self.vector.doubles
        _mean(self.gradients[:, at:doubles], self.buffers.array[: doubles - at])
        if doubles < self.vector.size:
            _mean(as_doubles(self.gradients[:, doubles:]), as_doubles(self.buffers.array[doubles - at :]))
        self.buffers.put()


class _Parts(_Meeting):
    """On a CPU: a part of the weights is this replica's to change."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        rank, make = self.rank, reduce.optim.make
        self.own = own = reduce.part(rank)
        self.others = [slice(own.start), slice(own.stop, None)]
        self.weights = torch.from_numpy(reduce.state[0, : vector.weights])
        if vector.flat.data_ptr() == self.weights.data_ptr():  # everyone's weights are there
            self.others = []
        self.optimizer = make(vector.parameter)  # of all weights, for checkpoints; it makes no step
        statistics = torch.from_numpy(reduce.state[1:, : vector.weights])
        optimizers.share_statistics(self.optimizer, statistics, fill=True)  # nobody reads them before the first meeting
        self.part = optimizers.slice_statistics(self.optimizer, make, self.own)
        self.mean = np.zeros(self.own.stop - self.own.start, np.float32)
        self.gradient = torch.from_numpy(self.mean)
        self.part.param_groups[0]["params"][0].grad = self.gradient

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        flat, weights = self.vector.flat[: self.vector.weights], self.vector.weights
        self.gradients[self.rank, weights:] = self.buffers.array
        total = yield from self.agree(sums, GRADIENT)
        check_leaving(total)
        _mean(self.gradients[:, self.own], self.mean)
        self._buffers()
        square = yield from self.agree(np.array([float(torch.dot(self.gradient, self.gradient))]))
        norm = math.sqrt(square[0]) if math.isfinite(square[0]) else float(square[0])
        if math.isfinite(norm):
            if self.clip and norm > self.clip:
                self.mean *= np.float32(self.clip / (norm + 1e-6))
            self.whole = False
            self.part.param_groups[0]["lr"] = learning_rate
            self.part.step()
        if self.others:
            self.weights[self.own] = flat[self.own]
        yield from self.agree(np.zeros(0), WEIGHTS)
        for part in self.others:
            flat[part] = self.weights[part]
        self.whole = True
        return norm, total


class _Whole(_Meeting):
    """On a device: everyone's gradients are averaged there, and each replica takes the whole step."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        self.optimizer, self.gradient = reduce.optim.make(vector.parameter), HostCopy(vector.grad)
        alone = fits(vector.flat.device, self.n)  # on its GPU
        self.group = NcclGroup(reduce._place, self.rank, self.n, vector) if alone else None

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        weights = self.vector.weights
        if self.group is None:
            self.gradients[self.rank, :weights] = self.gradient.fetch()
            self.gradients[self.rank, weights:] = self.buffers.fetch()
        total = yield from self.agree(sums)
        check_leaving(total)
        if self.group is not None:  # nobody enters it who would wait there for one that leaves
            self.waited += self.group.average()
            return clipped_step(self.vector, self.optimizer, self.clip, learning_rate), total
        _mean(self.gradients[:, :weights], self.gradient.array)
        self.gradient.put()
        self._buffers()
        norm = clipped_step(self.vector, self.optimizer, self.clip, learning_rate)
        yield from self.agree(np.zeros(0))  # nobody writes gradients that another still reads
        return norm, total


def _mean(parts: np.ndarray, out: np.ndarray) -> None:
    """Mean of [replicas, size] over the replicas, added in their order."""
    np.add(parts[0], parts[min(1, len(parts) - 1)], out=out)
    for part in parts[2:]:
        out += part
    out *= 1.0 / len(parts) if len(parts) > 1 else 0.5  # one alone was added to itself


def averaged(optim: OptimizerSpec, replicas: int, net: Network) -> AllReduce | Local:
    """The update of so many replicas that average their gradients; one alone applies its own."""
    if replicas == 1:
        return Local(optim)
    weights, size = param_sizes(net)
    return AllReduce(optim, replicas, size, weights)
