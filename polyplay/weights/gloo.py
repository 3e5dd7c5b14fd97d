"""All-reduce between machines: each replica averages and updates a part of the weights, and gloo sends the data."""

from __future__ import annotations

import contextlib
import ctypes
import math
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from polyplay.core.errors import Leaving, WorkerLost
from polyplay.core.worker import WorkerContext
from polyplay.weights.params import FlatParams, as_doubles
from polyplay.weights.update import LEAVING, Agree, AllReduce, Apply, OpenUpdate, Part, Sums, mean_buffers, root

_SUMS = 16  # float32 cells that hold 8 sums in float64
_MANY = 100_000  # length of a vector from which copies take longer than a few more messages
PARTING = 5.0  # seconds to wait for a halt of the run, which would explain the loss of a replica


def join_group(place: tuple[str, int], name: str, rank: int, replicas: int) -> Any:
    """Join the gloo process group of all replicas, through the TCPStore at `place`. Do not wait for other replicas."""
    with socket.create_connection(place, timeout=60.0) as connection:
        here = connection.getsockname()[0]  # the address of the host name may be unreachable
    kind: Any = dist.ProcessGroupGloo
    options, forever = kind._Options(), timedelta(days=100)
    options._devices, options._timeout = [kind.create_device(hostname=here, lazy_init=True)], forever
    store = dist.TCPStore(*place, is_master=False, timeout=forever)
    return kind(dist.PrefixStore(name, store), rank, replicas, options)


class GlooReplica(OpenUpdate):
    """Update of one replica (learner with the same weights as the others), for replicas on several machines.

    In each update, a replica sends three messages to each other replica: the gradient of the receiver's part of the
    weights, the squared norm of the averaged gradient of the sender's part, and the new weights of the sender's part.
    Replicas exchange optimizer statistics only when all of them save. After a failure, no replica has all statistics,
    so the run cannot save.
    """

    def __init__(self, reduce: AllReduce, ctx: WorkerContext, vector: FlatParams, place: tuple[str, int]):
        super().__init__(reduce, ctx, vector)
        self.rank, self.n, self.patience = ctx.index, reduce.replicas, timedelta(seconds=reduce.patience)
        self.statistics = torch.zeros(len(reduce.optim.statistics), vector.weights)
        self.part = Part(reduce, vector, self.rank, self.statistics)
        self.optimizer, self.slices = self.part.whole, [reduce.part(i) for i in range(self.n)]
        self.head = _SUMS + vector.size - vector.weights  # float32 numbers of a message before the gradient
        sizes = [self.head + at.stop - at.start for at in self.slices]
        self.received = [sizes[self.rank] * (i != self.rank) for i in range(self.n)]  # float32 numbers from each
        self.got = torch.zeros(self.n - 1, sizes[self.rank])
        sizes[self.rank] = 0
        self.message = torch.zeros(sum(sizes))
        self.sent = self.message.split(sizes)
        self.group = join_group(place, str(ctx.incarnation // 1000), self.rank, self.n)

    def agree(self, sums: Sums) -> Agree:
        # short messages: a replica in `apply` accepts them instead of its long ones, and then raises Leaving
        return self._meet(sums, [x[:_SUMS].clone() for x in self.sent])

    def _meet(self, sums: Sums, messages: Sequence[Tensor]) -> Agree:
        """Exchange messages with all replicas, with `sums` at the start of each. Return the totals of `sums`."""
        own = np.zeros(_SUMS, np.float32)
        as_doubles(own)[: len(sums)] = sums
        for message in messages:
            message[:_SUMS] = torch.from_numpy(own)[: len(message)]
        whole = self.message if messages is self.sent else torch.cat(list(messages))
        sizes = [len(message) for message in messages]
        yield from self._wait([self.group.alltoall_base(self.got.view(-1), whole, self.received, sizes)])
        rows = np.stack(self._of_all(own, slice(_SUMS)))
        total: np.ndarray = as_doubles(rows)[:, : len(sums)].sum(0)
        if len(sums) > LEAVING and total[LEAVING]:
            raise Leaving
        return total

    def _of_all(self, own: np.ndarray, at: slice) -> list[np.ndarray]:
        """Return an array per replica, by rank: `own` for this replica, else the part `at` of the received message."""
        got = self.got.numpy()[:, at]
        return [*got[: self.rank], own, *got[self.rank :]]

    def apply(self, rate: float, sums: Sums) -> Apply:
        vector, weights, own = self.vector, self.vector.weights, self.part.at
        buffers, head = vector.flat[weights:], self.head
        for message, at in zip(self.sent, self.slices, strict=True):
            if len(message):  # empty for this replica itself
                message[_SUMS:head] = buffers
                message[head:][: at.stop - at.start] = vector.grad[at]
        total = yield from self._meet(sums, self.sent)
        square = self.part.average(self._of_all(vector.grad[own].numpy(), slice(head, head + own.stop - own.start)))
        brought = self._of_all(buffers.numpy().copy(), slice(_SUMS, head))
        mean_buffers(brought, buffers.numpy(), vector.doubles - weights)
        norm = root(*(yield from self.agree(square)))
        if math.isfinite(norm):
            self.whole = False
            self.part.step(norm, rate)
            yield from self._gather(vector.flat[:weights])
        return norm, total

    def _gather(self, vector: Tensor) -> Generator[None, None, None]:
        """Exchange the replicas' parts of a vector [weights], so that each replica has the whole vector."""
        parts = [vector[at] for at in self.slices]
        if len(vector) < _MANY:
            own, lengths = parts[self.rank], [len(part) for part in parts]
            works = [self.group.alltoall_base(vector, own.repeat(self.n), lengths, [len(own)] * self.n)]
        else:  # broadcasts are slower for few numbers, but need no copies
            works = [self.group.broadcast(part, rank) for rank, part in enumerate(parts)]
        yield from self._wait(works)

    @contextlib.contextmanager
    def writers_paused(self) -> Iterator[None]:
        if not self.whole:  # the same in all replicas, which save after the same updates
            for row in self.statistics:
                for _ in self._gather(row):
                    pass
            self.whole = True
        yield

    def _wait(self, works: Sequence[Any]) -> Generator[None, None, None]:
        """Wait until gloo's threads have finished the operations `works`."""
        before = time.perf_counter()
        try:
            for work in works:
                while not work.is_completed():
                    self.ctx.control.check()
                    with contextlib.suppress(RuntimeError):  # the work is not done yet, or failed
                        work.wait(self.patience)
                    if not work.is_completed():
                        yield
                work.wait()
        except BaseException as e:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))  # the group's destructor would wait for others
            if isinstance(e, RuntimeError):
                self._tell_lost()
            raise
        self.waited += time.perf_counter() - before

    def _tell_lost(self) -> NoReturn:
        """Raise WorkerLost for a lost replica. If the run stops within PARTING seconds, raise Closed instead."""
        until = time.monotonic() + PARTING
        while time.monotonic() < until:
            self.ctx.control.check()
            time.sleep(0.05)
        raise WorkerLost(f"worker {self.ctx.role} {self.rank}: a replica on another machine is gone") from None
