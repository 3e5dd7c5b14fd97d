"""Updates of weights by gradients. Local is for a single learner, and AllReduce averages the gradients of several
learners. In Hogwild and Chunked, workers change shared weights without waiting for each other.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import socket
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core.errors import Leaving, UserError
from polyplay.core.flows import Crossing
from polyplay.core.shared_memory import RobustLocks, SharedBlock, memory_barrier, shared_array
from polyplay.core.worker import Arrow, Edge, WorkerContext
from polyplay.nets.device import HostCopy, to_device
from polyplay.weights import optimizers, params
from polyplay.weights.optimizers import OptimizerSpec
from polyplay.weights.params import FlatParams, SharedArrays, as_doubles, buffers_in, module_nbytes, param_sizes

Sums = np.ndarray  # at most 8 float64, to sum over replicas: agent steps trained on, save number, finish, …
LEAVING = 5  # index in sums: number of replicas without a gradient, because the run ends during their rollouts
Apply = Generator[None, None, tuple[float, Sums]]
Agree = Generator[None, None, Sums]


READY, BEGUN, LEARNT = 0, 1, 2  # cells of Counts.head: whether first weights exist; updates and steps of earlier runs
UPDATES, STEPS, REFUSED = 0, 1, 2  # cells of a worker: updates, agent steps trained on, losses without an update


class Counts:
    """Number of updates, and of agent steps trained on, by all workers that change the same weights.

    `head`: int64 [3 or more], the counts with which the run began. None: a new array.
    `cells`: int64 [workers, 3 or more], a row of counts for each worker. None: a new array with one row.
    `worker`: index of the row that `add` changes.
    `parts`: int64 [n], the number of updates of each part of the weights, if parts are updated separately.
    """

    def __init__(
        self,
        head: np.ndarray | None = None,
        cells: np.ndarray | None = None,
        worker: int = 0,
        parts: np.ndarray | None = None,
    ):
        self.head = np.zeros(3, np.int64) if head is None else head
        self.cells = np.zeros((1, 3), np.int64) if cells is None else cells
        self.own, self.parts, self.alone = self.cells[worker], parts, len(self.cells) == 1
        # whether this worker provides the first weights, initial or from a checkpoint
        self.fresh = worker == 0 and not self.ready

    def of(self, worker: int) -> Counts:
        """Return the same counts for the given worker, whose row `add` then changes."""
        return Counts(self.head, self.cells, worker, self.parts)

    @property
    def ready(self) -> bool:
        """Whether the first weights exist."""
        return bool(self.head[READY])

    @cached_property
    def begun(self) -> int:
        """Version of the weights at the start of this run. The number is valid once the first weights exist."""
        return int(self.head[BEGUN])

    @property
    def version(self) -> int:
        """Number of updates of the weights, or the mean over the parts if each part has a separate number."""
        if self.parts is not None:
            return int(self.parts.sum()) // len(self.parts)
        return int(self.head[BEGUN]) + self._sum(UPDATES)

    @property
    def learnt(self) -> float:
        """Number of agent steps trained on. Steps of earlier runs are included."""
        return float(int(self.head[LEARNT]) + self._sum(STEPS))

    def _sum(self, column: int) -> int:
        # NumPy's sum takes ten times as long as one number
        return int(self.own[column] if self.alone else self.cells[:, column].sum())

    def begin(self, version: int, learnt: float) -> None:
        """Announce that the first weights exist, after `version` updates and `learnt` agent steps of training."""
        self.head[BEGUN], self.head[LEARNT] = version, int(learnt)
        memory_barrier()
        self.head[READY] = 1

    def add(self, steps: float, updates: int = 1) -> None:
        """Count `updates` updates, which trained on `steps` agent steps in total."""
        self.own[UPDATES] += updates
        self.own[STEPS] += int(steps)

    def refuse(self) -> None:
        """Count a loss that led to no update."""
        self.own[REFUSED] += 1


class OpenUpdate:
    """Applies gradients to one worker's vector of weights. The default methods suit a worker that shares no weights.
    `apply` and `agree` are generators. Each `yield` gives other workers in the same thread a turn. Both methods may
    raise Closed (the run ends) and Leaving (a replica has no more gradients).
    """

    optimizer: torch.optim.Optimizer  # optimizer with the statistics of all weights, for checkpoints

    def __init__(self, update: Update, ctx: WorkerContext, vector: FlatParams, counts: Counts | None = None):
        self.ctx, self.vector, self.clip = ctx, vector, update.optim.clip
        self.counts = Counts() if counts is None else counts
        self.waited = 0.0  # seconds spent so far in waiting for other workers
        self.whole = True  # whether all parts of the weights have had the same updates
        self.applied_to: int | None = None  # version to which the last gradient was applied; None: counts.version

    def begin(self, version: int, learnt: float, saved: Mapping[str, list[int]] | None = None) -> None:
        """Share the vector's weights with all workers, as the first weights of the run.
        `saved`: data of `state` from the checkpoint, if the run resumes.
        """
        self.counts.begin(version, learnt)

    def refresh(self) -> int:
        """Bring the newest weights into the vector. Return their version."""
        return self.counts.version

    def apply(self, rate: float, sums: Sums) -> Apply:
        """Apply the vector's gradient at learning rate `rate`. A gradient that is not finite changes nothing. Return
        the gradient's norm before clipping, and the totals of `sums` over all replicas. The caller counts the update.
        `sums`: numbers of this replica, such as agent steps trained on.
        """
        yield from ()
        norm = clip_gradient(self.vector.grad, self.clip)
        if math.isfinite(norm):
            self.optimizer.param_groups[0]["lr"] = rate
            self.optimizer.step()
        return norm, sums

    def agree(self, sums: Sums) -> Agree:
        """Return the totals of `sums` over all replicas (see `apply`), without an update of the weights."""
        yield from ()
        return sums

    def writers_paused(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no other worker changes the weights, so that this worker can save them."""
        return contextlib.nullcontext()

    def state(self) -> dict[str, list[int]]:
        """Return the data that a checkpoint stores besides `version` and `learnt`, or {} by default."""
        return {}


class Update(Edge, ABC):
    """Description of how gradients update weights. It exists before the workers start. In a worker, `open` returns an
    OpenUpdate, which applies gradients to the worker's network.
    """

    optim: OptimizerSpec
    weights: int = 0  # number of trainable numbers of the network; 0: the network is not known yet
    size: int = 0  # length of the network's whole vector (param_sizes)
    replicas: int = 1  # number of replicas that average their gradients
    asynchronous: ClassVar[bool] = False  # workers don't wait for each other; all count, and worker 0 saves for all
    pauses: ClassVar[bool] = False  # workers that change weights pause while worker 0 saves
    detail: str = ""  # end of `title()`

    def title(self) -> str:
        """Return the name of this update and of its optimizer, for diagrams."""
        return f"{type(self).__name__}({self.optim.title}){self.detail}"

    def fit(self, network: params.NetworkOrFactory) -> None:
        """Set `weights` and `size` to those of a network. Raises UserError if the network cannot be made."""
        if not self.size:
            self.weights, self.size = param_sizes(network)

    @abstractmethod
    def worker_nbytes(self, module: nn.Module) -> float:
        """Return how many bytes a worker's own weights, gradient and statistics take."""

    @abstractmethod
    def open(self, ctx: WorkerContext, module: nn.Module) -> OpenUpdate:
        """Move a network's weights into one vector, in this update's memory. Return the OpenUpdate of this vector."""


def clip_gradient(gradient: Tensor, clip: float) -> float:
    """Shrink the gradient to a global norm of at most `clip` (0: do not shrink). Return the norm before clipping."""
    norm = float(torch.linalg.vector_norm(gradient))
    if clip and norm > clip and math.isfinite(norm):
        gradient.mul_(clip / (norm + 1e-6))
    return norm


@dataclass(eq=False)
class Local(Update):
    """Update for a single worker, which applies its own gradient to its own weights."""

    optim: OptimizerSpec

    def worker_nbytes(self, module: nn.Module) -> float:
        return (2.0 + len(self.optim.statistics)) * module_nbytes(module)

    def open(self, ctx: WorkerContext, module: nn.Module) -> OpenUpdate:
        opened = OpenUpdate(self, ctx, FlatParams(module))
        opened.optimizer = self.optim.make(opened.vector.parameter)
        return opened


# Replicas with a GPU each: NCCL averages gradients and floating buffers from GPU to GPU, in its own order.


def fits(device: torch.device, replicas: int) -> bool:
    """Tell whether NCCL can average the replicas' gradients. Each replica must be a process with its own GPU."""
    if device.type != "cuda" or multiprocessing.parent_process() is None:
        return False
    return torch.cuda.device_count() >= replicas and torch.distributed.is_nccl_available()


class NcclGroup:
    """One replica's membership in a group of replicas that NCCL connects."""

    def __init__(self, place: str, rank: int, replicas: int, vector: FlatParams, backend: str = "nccl"):
        import torch.distributed as dist

        self.vector, self.n, self._all_reduce = vector, replicas, dist.all_reduce
        store = dist.FileStore(place, replicas)
        dist.init_process_group(backend, store=store, rank=rank, world_size=replicas)
        self.flat = torch.empty(vector.size, device=vector.flat.device)

    def average(self) -> float:
        """Replace gradients and buffers by their means over the replicas. Return how many seconds this took."""
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


# AllReduce: replicas average their gradients, and so stay equal.
#
# `apply` is a generator: in a run in one thread, other workers take their turns while a replica waits.


_LINE = 16  # float32 numbers per cache line
NUMBERS, GRADIENT, WEIGHTS = 0, 1, 2  # kind of data that a replica has written before it meets the others


class AllReduce(SharedArrays, Update):
    """Update of several replicas (learners with equal weights), which average their gradients and floating buffers.

    Replicas on one machine average in shared memory. Replicas on several machines average by gloo (`spread`). In both
    cases, the order of addition is fixed. If each replica is a process with its own GPU, NCCL averages, in NCCL's order
    (NcclGroup). On CPUs, each replica averages one part of the gradient, and takes the optimizer's step for this part.

    `size`: length of the whole vector, whose first `weights` numbers are parameters (param_sizes). 0: `fit` sets it.
    """

    LOCAL = ("_store",)
    _store: Any = None  # TCPStore in the main process, by which replicas on several machines find each other
    meets_at: tuple[str, int] | None = None  # address and port of `_store`; None: all replicas are on one machine
    gradients = shared_array(np.float32, lambda r: (r.replicas, r.size))  # memory of each vector's gradient
    state = shared_array(np.float32, lambda r: (1 + len(r.optim.statistics), r.size))  # new weights, statistics
    sums = shared_array(np.float64, lambda r: (2, r.replicas, 8))  # sums of the last two calls of `agree`
    arrived = shared_array(np.int64, lambda r: (r.replicas, 8))  # number of the last call, and `brings` of the last two

    def __init__(self, optim: OptimizerSpec, replicas: int, size: int = 0, weights: int | None = None):
        self.optim, self.replicas, self.size, self.detail = optim, replicas, size, f" of {replicas}"
        self.weights = size if weights is None else weights
        # a file that doesn't exist yet, by which processes find each other; the last process removes the file
        self._place = str(Path(tempfile.gettempdir()) / f"polyplay-{uuid.uuid4().hex}")
        if size:
            super().__init__(bells=replicas)

    def crossing(self) -> Crossing:
        """Return no flows (data that the run sends between machines), because replicas use torch.distributed."""
        return Crossing()

    def fit(self, network: params.NetworkOrFactory) -> None:
        """See Update.fit. If `size` was 0, also make the shared memory."""
        if not self.size:
            super().fit(network)
            super().__init__(bells=self.replicas)

    def spread(self, address: str) -> None:
        """Let replicas run on several machines. They meet through a store in the main process, at this address."""
        from torch.distributed import TCPStore

        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.meets_at = (address, port := listener.getsockname()[1])
        self._store = TCPStore(
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def label(self) -> str:
        return f"gradients: their mean over {self.replicas}"

    def part(self, rank: int) -> slice:
        """Return the slice of the weights that replica `rank` changes."""
        edges = [self.weights * i // self.replicas // _LINE * _LINE for i in (rank, rank + 1)]
        return slice(edges[0], edges[1] if rank + 1 < self.replicas else self.weights)

    def worker_nbytes(self, module: nn.Module) -> float:
        weights, size = param_sizes(module)
        if self.meets_at is not None:  # weights, gradient, and a message in each direction
            return (4.0 + len(self.optim.statistics)) * module_nbytes(module)
        # replicas share gradients, statistics, and the weights of a network without buffers
        return ((weights < size) + 1.0 / self.replicas) * module_nbytes(module)

    def open(self, ctx: WorkerContext, module: nn.Module) -> OpenUpdate:
        device = next(module.parameters()).device
        if self.meets_at is not None:
            if device.type != "cpu":
                raise UserError("--hosts: replicas on several machines compute on CPUs; take --device cpu")
            from polyplay.weights.gloo import GlooReplica

            return GlooReplica(self, ctx, FlatParams(module), self.meets_at)
        grad, (weights, size) = self.gradients[ctx.index], param_sizes(module)
        if device.type != "cpu":
            return _Whole(self, ctx, FlatParams(module, grad=grad))
        if weights < size:
            return _Parts(self, ctx, FlatParams(module, grad=grad))
        # write only in a new run: in a resumed run, another replica may have loaded the checkpoint there already
        return _Parts(self, ctx, FlatParams(module, memory=self.state[0], write=ctx.resume is None, grad=grad))


class _Meeting(OpenUpdate):
    """Base of AllReduce's updates in shared memory: waits for the other replicas and sums numbers with them."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        self.reduce, self.rank, self.n, self.turn = reduce, ctx.index, reduce.replicas, 0
        self.gradients, self.sums, self.arrived = reduce.gradients, reduce.sums, reduce.arrived[:, 0]
        self.bells, self.buffers = reduce._bells, HostCopy(vector.flat[vector.weights :])

    def agree(self, sums: Sums, brings: int = NUMBERS) -> Agree:
        """See OpenUpdate.agree. Wait for all replicas, then add up their `sums` in a fixed order.
        `brings`: kind of data that this replica has written for the other replicas: NUMBERS, GRADIENT or WEIGHTS.
        Raises Leaving in all replicas if a replica will have no more gradients.
        """
        # two rows of sums alternate: a replica that writes in call k + 2 saw all arrive at k + 1, so all have read k
        self.turn += 1
        row = self.turn % 2
        self.sums[row, self.rank, : len(sums)] = sums
        self.reduce.arrived[self.rank, 1 + row] = brings
        memory_barrier()  # all data for other replicas are written before the call's number
        self.arrived[self.rank] = self.turn
        memory_barrier()
        for other in range(self.n):
            if other != self.rank:
                self.bells[other].post()
        before = time.perf_counter()
        while self.arrived.min() < self.turn:
            self.reduce.check()
            if not self.bells[self.rank].wait(0.0):
                self.ctx.hooks.meeting = self.turn
                yield
                self.bells[self.rank].wait(self.reduce.patience)
        self.ctx.hooks.meeting = 0
        self.waited += time.perf_counter() - before
        memory_barrier()
        total: np.ndarray = self.sums[row, :, : len(sums)].sum(0)
        if len(sums) > LEAVING and total[LEAVING]:
            raise Leaving
        return total

    def _buffers(self) -> None:
        """Average the floating buffers. All replicas must have written their buffers."""
        at = self.vector.weights
        mean_buffers(self.gradients[:, at:], self.buffers.array, self.vector.doubles - at)
        self.buffers.put()


class Part:
    """Updates one part of the weights for a replica: averages the gradients, and takes the optimizer's step.
    `statistics`: memory for the statistics of all weights, [n, weights].
    """

    def __init__(self, reduce: AllReduce, vector: FlatParams, rank: int, statistics: Tensor):
        self.at, make, self.clip = reduce.part(rank), reduce.optim.make, reduce.optim.clip
        self.whole = make(vector.parameter)  # optimizer of all weights, for checkpoints; takes no step
        optimizers.share_statistics(self.whole, statistics, fill=True)  # not read before all replicas meet
        self.optimizer = optimizers.slice_statistics(self.whole, make, self.at)
        self.gradient = torch.zeros(self.at.stop - self.at.start)
        self.mean = self.gradient.numpy()
        self.optimizer.param_groups[0]["params"][0].grad = self.gradient

    def average(self, parts: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Average all replicas' gradients of this part. Return the squared norm [1] of the mean."""
        _mean(parts, self.mean)
        return np.array([float(torch.dot(self.gradient, self.gradient))])

    def step(self, norm: float, rate: float) -> None:
        """Clip the mean gradient, and take the optimizer's step. `norm`: norm of the gradient over all parts."""
        if self.clip and norm > self.clip:
            self.mean *= np.float32(self.clip / (norm + 1e-6))
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()


class _Parts(_Meeting):
    """Update on CPUs: each replica changes one part of the weights."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        self.part = Part(reduce, vector, self.rank, torch.from_numpy(reduce.state[1:, : vector.weights]))
        self.optimizer, own = self.part.whole, self.part.at
        self.others = [slice(own.start), slice(own.stop, None)]
        self.weights = torch.from_numpy(reduce.state[0, : vector.weights])
        if vector.flat.data_ptr() == self.weights.data_ptr():  # all replicas share these weights
            self.others = []

    def apply(self, rate: float, sums: Sums) -> Apply:
        flat, weights, own = self.vector.flat[: self.vector.weights], self.vector.weights, self.part.at
        self.gradients[self.rank, weights:] = self.buffers.array
        total = yield from self.agree(sums, GRADIENT)
        square = self.part.average(self.gradients[:, own])
        self._buffers()
        norm = root(*(yield from self.agree(square)))
        if math.isfinite(norm):
            self.whole = False
            self.part.step(norm, rate)
        if self.others:
            self.weights[own] = flat[own]
        yield from self.agree(np.zeros(0), WEIGHTS)
        for part in self.others:
            flat[part] = self.weights[part]
        self.whole = True
        return norm, total


class _Whole(_Meeting):
    """Update on GPUs: replicas average all gradients, and each takes the optimizer's step for all weights."""

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams):
        super().__init__(reduce, ctx, vector)
        self.optimizer, self.gradient = reduce.optim.make(vector.parameter), HostCopy(vector.grad)
        alone = fits(vector.flat.device, self.n)  # whether each replica has its own GPU
        self.group = NcclGroup(reduce._place, self.rank, self.n, vector) if alone else None

    def apply(self, rate: float, sums: Sums) -> Apply:
        weights = self.vector.weights
        if self.group is None:
            self.gradients[self.rank, :weights] = self.gradient.fetch()
            self.gradients[self.rank, weights:] = self.buffers.fetch()
        total = yield from self.agree(sums)
        if self.group is not None:  # all have agreed, so no replica waits here for a replica that leaves
            self.waited += self.group.average()
            return (yield from super().apply(rate, total))
        _mean(self.gradients[:, :weights], self.gradient.array)
        self.gradient.put()
        self._buffers()
        norm, _ = yield from super().apply(rate, total)
        yield from self.agree(np.zeros(0))  # before this, no replica writes gradients that another still reads
        return norm, total


def root(square: float) -> float:
    """Return the square root of a squared norm, or the same number if it is not finite."""
    return math.sqrt(square) if math.isfinite(square) else float(square)


def mean_buffers(parts: Sequence[np.ndarray] | np.ndarray, out: np.ndarray, singles: int) -> None:
    """Average the replicas' buffers [replicas, size] into `out`. The first `singles` numbers are float32. The rest
    holds float64 numbers, each of which takes the place of two float32 numbers.
    """
    _mean([x[:singles] for x in parts], out[:singles])
    if singles < len(out):
        _mean([as_doubles(x[singles:]) for x in parts], as_doubles(out[singles:]))


def _mean(parts: Sequence[np.ndarray] | np.ndarray, out: np.ndarray) -> None:
    """Average arrays [replicas, size] over the replicas, added in their order."""
    np.add(parts[0], parts[min(1, len(parts) - 1)], out=out)
    for part in parts[2:]:
        out += part
    out *= 1.0 / len(parts) if len(parts) > 1 else 0.5  # a single array was added to itself


def averaged(optim: OptimizerSpec, replicas: int) -> AllReduce | Local:
    """Return the update of replicas that apply the mean of their gradients: AllReduce, or Local for one replica."""
    return Local(optim) if replicas == 1 else AllReduce(optim, replicas)


# Weights that workers change without waiting for each other: one vector in shared memory, and all workers' counts.


class SharedWeights(SharedArrays, Update):
    """One set of weights and of optimizer statistics in shared memory, which up to `workers` workers change.

    `weights`, `size`: number of parameters, and length of the whole vector (param_sizes).
    `copy`: whether each worker computes with its own copy of the weights.
    """

    asynchronous, copy = True, True
    LOCAL: tuple[str, ...] = ("counts",)
    head = shared_array(np.int64, lambda _: (8,))  # `head` of Counts, written by worker 0
    counters = shared_array(np.int64, lambda w: (w.workers, 8))  # each row is written by its worker
    statistics = shared_array(np.float32, lambda w: (len(w.optim.statistics), w.weights))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, bells: int = 1):
        self.optim, self.weights, self.size, self.workers = optim, weights, size, workers
        super().__init__(bells)

    @classmethod
    def of(cls, optim: OptimizerSpec, network: params.NetworkOrFactory, **options: Any) -> Self:
        """Return this update for the weights of a network. `options`: further arguments of the class."""
        return cls(optim, *param_sizes(network), **options)

    def _attach(self) -> None:
        super()._attach()
        self.counts = Counts(self.head, self.counters)

    def label(self) -> str:
        return f"shared: {self.weights:,} weights and {self.optim.title}'s {', '.join(self.optim.statistics)}"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("update",), ("update", "params"))]

    def worker_nbytes(self, module: nn.Module) -> float:
        return (1.0 + self.copy) * module_nbytes(module)


class CopiedUpdate(OpenUpdate):
    """Update of shared weights by one worker.
    `shared`: the shared vector, if the worker computes with a copy. None: it computes with the shared vector itself.
    """

    def __init__(self, weights: SharedWeights, ctx: WorkerContext, vector: FlatParams, shared: Tensor | None):
        super().__init__(weights, ctx, vector, weights.counts.of(ctx.index))
        self.shared = shared
        self.copied = -1  # lower bound of the version of this worker's copy
        self.buffers = [part.clone() for part in vector.buffers()]  # the buffers as they were copied

    def begin(self, version: int, learnt: float, saved: Mapping[str, list[int]] | None = None) -> None:
        """Share the weights of worker 0 with all workers. In other workers, do nothing."""
        if self.counts.fresh:
            if self.shared is not None:
                self.shared.copy_(self.vector.flat)
            super().begin(version, learnt)

    def refresh(self) -> int:
        """Copy the shared weights, which others may change at the same time. Return the version before the copy."""
        version = self.copied = self.counts.version
        if self.shared is not None:
            self.vector.flat.copy_(self.shared)
            self._copied()
        return version

    def _share_buffers(self) -> None:
        """Add the changes of this worker's floating buffers since the last copy to the shared buffers."""
        vector, at = self.vector, self.vector.weights
        if self.shared is None or vector.size == at:
            return
        parts = zip(buffers_in(self.shared, at, vector.doubles), vector.buffers(), self.buffers, strict=True)
        # while they are 0, only worker 0 adds: a sum of several workers' first means is not a mean
        if self.ctx.index == 0 or any(bool(before.any()) for before in self.buffers):
            for shared, own, before in parts:
                shared += (own - before).to(shared.device)
        self._copied()

    def _copied(self) -> None:
        for before, own in zip(self.buffers, self.vector.buffers(), strict=True):
            before.copy_(own)


_making = threading.Lock()  # held while the memory of a Hogwild on a GPU is made


class Hogwild(SharedWeights):
    """Update of shared weights without any lock, by up to `workers` workers (Recht et al. 2011; Mnih et al. 2016).

    The weights are one vector, with one set of optimizer statistics, in shared memory. If two workers write at once,
    the result mixes both updates. Worker 0 provides the first weights, and other workers wait for these weights.

    `weights`, `size`: number of parameters, and length of the whole vector (param_sizes).
    `copy`: whether each worker computes with its own copy of the weights, made before each rollout (A3C). Otherwise,
        workers compute with the shared memory itself, as threads of one process.

    Workers also add the changes of their floating buffers to shared buffers. If two workers add at once, one of the
    changes may be lost.
    """

    LOCAL, detail = (*SharedWeights.LOCAL, "_on_device"), ", no lock"
    shared = shared_array(np.float32, lambda h: (h.size,))

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, copy: bool = True):
        self.copy = copy
        super().__init__(optim, weights, size, workers)

    def _attach(self) -> None:
        super()._attach()
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None  # see `tensors`

    def open(self, ctx: WorkerContext, module: nn.Module) -> OpenUpdate:
        if self.copy:
            return _Hogwild(self, ctx, FlatParams(module))
        memory, _ = self.tensors(next(module.parameters()).device)
        return _Hogwild(self, ctx, FlatParams(module, memory, write=self.counts.of(ctx.index).fresh))

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shared vector and statistics, as new tensors. Only threads of one process share them on a GPU."""
        if device.type == "cpu":
            return torch.from_numpy(self.shared), torch.from_numpy(self.statistics)
        with _making:
            if self._on_device is None:
                self._on_device = to_device(self.shared, device), to_device(self.statistics, device)
        return self._on_device[0].data, self._on_device[1].data

    def reader(self, module: nn.Module) -> FlatParams:
        """Bind a module that only reads weights, such as an actor's, to the shared weights, which must exist."""
        return FlatParams(module, self.tensors(next(module.parameters()).device)[0], write=False)


class _Hogwild(CopiedUpdate):
    def __init__(self, hogwild: Hogwild, ctx: WorkerContext, vector: FlatParams):
        shared, statistics = hogwild.tensors(vector.flat.device)
        super().__init__(hogwild, ctx, vector, shared if hogwild.copy else None)
        self.parameter = nn.Parameter(shared[: hogwild.weights]) if hogwild.copy else vector.parameter
        self.parameter.grad = vector.grad
        self.optimizer = hogwild.optim.make(self.parameter)
        optimizers.share_statistics(self.optimizer, statistics, fill=self.counts.fresh)

    def apply(self, rate: float, sums: Sums) -> Apply:
        self._share_buffers()
        optimizers.set_step(self.optimizer, self.counts.version)  # Adam counts all workers' updates
        return super().apply(rate, sums)


# Accel RL's asynchronous update (Stooke & Abbeel 2018): a shared vector in chunks, each with its own lock.
#
# Workers don't wait for each other's rollouts, only briefly for a chunk that another worker has locked. Unlike in
# Hogwild, no other worker interferes with a chunk's update, and the worker copies the weights that result from it.


POLL = 0.001  # seconds between two tries while all remaining chunks are locked, as in accel_rl


class Chunked(SharedWeights):
    """Update of shared weights in parts ("chunks"), each with its own lock, as in accel_rl.

    A worker locks a chunk, applies its gradient to the shared weights and statistics of the chunk, copies the new
    weights, and unlocks the chunk. It visits the chunks in the order in which they become free. If a worker dies while
    it holds a lock, the chunk is unlocked, but may be only partly updated. Each worker clips its gradient by the global
    norm.

    `weights`, `size`: number of parameters, and length of the whole vector (param_sizes).
    `chunks`: number of parts, 3 in accel_rl.
    """

    shared = shared_array(np.float32, lambda c: (c.size,))
    done = shared_array(np.int64, lambda c: (c.chunks,))  # number of updates of each chunk

    def __init__(self, optim: OptimizerSpec, weights: int, size: int, workers: int, chunks: int = 3):
        self.chunks, self.locks = chunks, [SharedBlock(1, named=True) for _ in range(chunks)]
        self.detail = f", {chunks} parts"
        super().__init__(optim, weights, size, workers)

    def open(self, ctx: WorkerContext, module: nn.Module) -> OpenUpdate:
        return _Chunked(self, ctx, FlatParams(module))

    def parts(self) -> list[slice]:
        edges = np.linspace(0, self.weights, self.chunks + 1).astype(int).tolist()
        return [slice(a, b) for a, b in pairwise(edges)]


class _Chunked(CopiedUpdate):
    """Update in chunks by one worker, which copies each chunk after its own update of the chunk."""

    shared: Tensor

    def __init__(self, chunked: Chunked, ctx: WorkerContext, vector: FlatParams):
        super().__init__(chunked, ctx, vector, torch.from_numpy(chunked.shared))
        self.done, self.gradient = chunked.done, HostCopy(vector.grad)
        self.optimizer = self._make(chunked, slice(0, chunked.weights), self.counts.fresh)
        self.parts = chunked.parts()
        self.optimizers = [self._make(chunked, part, fill=False) for part in self.parts]
        self.lock, self.before = RobustLocks(chunked.locks), np.zeros(chunked.chunks, np.int64)

    def _make(self, chunked: Chunked, part: slice, fill: bool) -> torch.optim.Optimizer:
        parameter = nn.Parameter(self.shared[part])
        parameter.grad = torch.from_numpy(self.gradient.array)[part]
        made = chunked.optim.make(parameter)
        optimizers.share_statistics(made, torch.from_numpy(chunked.statistics)[:, part], fill=fill)
        return made

    def refresh(self) -> int:
        """Copy the shared weights at the first call only. Return the version of the copy."""
        return self.copied if self.copied >= 0 else super().refresh()

    def _share_buffers(self) -> None:
        super()._share_buffers()
        self.vector.flat[self.vector.weights :] = self.shared[self.vector.weights :]
        self._copied()

    def apply(self, rate: float, sums: Sums) -> Apply:
        self._share_buffers()
        norm = clip_gradient(self.vector.grad, self.clip)
        self.gradient.fetch()
        n = len(self.parts)
        left = [(self.ctx.index + i) % n for i in range(n)] if math.isfinite(norm) else []
        while left:
            taken = [chunk for chunk in left if self._visit(chunk, rate)]
            left = [chunk for chunk in left if chunk not in taken]
            if left and not taken:
                yield
                time.sleep(POLL)
                self.waited += POLL
        optimizers.set_step(self.optimizer, int(self.done.max()) + self.counts.begun)
        if math.isfinite(norm):
            # other workers may be within an update, so applied_to is the largest count of a chunk before this update,
            # and the copy's version is the smallest count after it: no row's lag is reported too small
            begun = self.counts.begun
            self.applied_to, self.copied = begun + int(self.before.max()), begun + int(self.before.min()) + 1
        return norm, sums

    def _visit(self, chunk: int, rate: float) -> bool:
        """Update a chunk and copy the chunk's new weights. Return False if another worker holds the chunk's lock."""
        if not self.lock.acquire(chunk):
            return False
        optimizer = self.optimizers[chunk]
        self.before[chunk] = self.done[chunk]
        optimizers.set_step(optimizer, int(self.done[chunk]) + self.counts.begun)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        self.done[chunk] += 1
        part = self.parts[chunk]
        self.vector.flat[part] = self.shared[part]
        self.lock.release(chunk)
        return True
