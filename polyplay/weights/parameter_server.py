"""Gorila's parameter server.

A parameter server (Gorila, Nair et al. 2015): one vector in parts, each with a process of its own that applies what
gradients come, by its own count of updates and its own statistics. Here is its memory, and a learner's end of it.

A learner pulls the parts, each of whatever version it is, makes a gradient, and leaves every part's slice of it in a
slot of its own there, with the version of that part that it was made with; parameter_shard takes it. Nobody waits for
anybody else's rollouts, only for a slot whose last gradient was not taken yet.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.core.errors import UserError
from polyplay.core.flows import ANY, EVERYONE, VECTOR, Cells, Crossing, End, Flow, Piece
from polyplay.core.shared_memory import Semaphore, memory_barrier, shared_array
from polyplay.core.worker import Arrow, WorkerContext
from polyplay.nets.device import HostCopy
from polyplay.weights import optimizers, update
from polyplay.weights.params import FlatParams, TwoCopies, buffers_in

# cells of the header, int64, behind those of all shared weights. HOLD: odd while shards are to stand still; DOUBLES:
# where in the vector numbers of float64 begin
HOLD, DOUBLES = 3, 4
# of a shard; those of its two copies begin at ACTIVE. HELD: the last HOLD in which it stood still; FILLED: by worker 0,
# whether its first weights are there
VERSION, BUSY, APPLIED, STALE, LAG_SUM, LAG_MAX, HELD, FILLED, ACTIVE = range(9)
# of a slot: the learner writes the first two, the shard the last, a cache line away
WRITTEN, BASE, TAKEN = 0, 1, 8
LAGS = 64  # histogram of gradients' staleness; the last bin holds everything beyond


class ParameterServer(update.SharedWeights):
    """One vector and one set of optimizer statistics in `shards` parts, one worker (`serve_parameters`) for each.

    `weights`, `size`: of the parameters, and of the whole vector (params.param_sizes); floating buffers are the last
    part's, which averages those of the learners. workers: learners at most. stale: a shard drops a gradient that was
    made with weights more than so many of *its* updates ago; 0: none. The gradient is clipped by its own global norm.
    Worker 0 of the learners brings the first weights.

    It stands in Params' place for those who act (`wait`, `pull`, `publish`), but has no rounds: they run free.
    Raises UserError: as many shards cannot be.
    """

    pauses = True
    LOCAL = (*update.SharedWeights.LOCAL, "parts", "newest")
    # a worker writes where it is named, and reads everywhere; statistics: of each part its shard, in place
    shard = shared_array(np.int64, lambda s: (s.shards, 16))  # that shard
    lags = shared_array(np.int64, lambda s: (s.shards, LAGS))  # that shard
    slot = shared_array(np.int64, lambda s: (s.workers, s.shards, 16))  # both
    rate = shared_array(np.float64, lambda s: (s.workers, s.shards))  # of learning: that learner
    gradient = shared_array(np.float32, lambda s: (s.workers, s.size))  # that learner; behind the weights: its buffers
    copies = shared_array(np.float32, lambda s: (2, s.size))  # of each part its shard

    def __init__(
        self, optim: optimizers.OptimizerSpec, weights: int, size: int, workers: int, shards: int = 1, stale: int = 0
    ):
        if not 1 <= shards <= weights:
            raise UserError(f"--shards: {shards} given, allowed: 1 to {weights}, a weight for each at least")
        self.shards, self.stale, self.detail = shards, stale, f", {shards} shards"
        super().__init__(optim, weights, size, workers, bells=shards + workers)

    def _attach(self) -> None:
        super()._attach()
        edges = np.linspace(0, self.weights, self.shards + 1).astype(int).tolist()
        self.parts = [slice(a, b) for a, b in pairwise([*edges[:-1], self.size])]  # of the vector
        self.counts = update.Counts(self.head, self.counters, parts=self.shard[:, VERSION])
        shards = zip(self.shard, self.parts, strict=True)
        self.newest = [TwoCopies(cells[ACTIVE:], self.copies[:, part]) for cells, part in shards]

    def label(self) -> str:
        return f"{self.weights:,} weights, in {self.shards} parts of a version each"

    def describe(self) -> list[str]:
        """What one worker that serves it has, a line each for the diagram."""
        most = max(p.stop - p.start for p in self.parts)
        rows = [f"part    {most:,} weights, {self.optim.title}'s {', '.join(self.optim.statistics)}"]
        return rows + [f"drops   gradients more than {self.stale} of its updates old"] * bool(self.stale)

    def arrows(self) -> list[Arrow]:
        gradients = "gradients, a slice for each part, with the version it was made with"
        down = Arrow(self.label(), ("server",), ("update", "params"))
        return [Arrow(gradients, ("update",), ("server",)), down]

    def open(self, ctx: WorkerContext, module: nn.Module) -> update.OpenUpdate:
        return _Server(self, ctx, FlatParams(module))

    # ------------------------------------------------------------------------------------- in Params' place

    def wait(self, atleast: int, reader: int, timeout: float) -> bool:
        """Whether there are weights, after at most `timeout` seconds. Raises Closed. There are no rounds."""
        self.check()
        if not self.counts.ready:
            time.sleep(min(timeout, 0.005))
        return self.counts.ready

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        """Copy the newest weights into `vector` unless `have` is their version; their version."""
        self.check()
        if self.counts.version == have:
            return have
        return int(self.fetch(vector, np.full(self.shards, -1)).sum()) // self.shards

    def publish(self, vector: FlatParams, version: int, round: int) -> None:  # noqa: A002 - as Params has it
        """Nothing: shards publish their parts themselves."""

    # ------------------------------------------------------------------------------------------------ parts

    def fetch(self, vector: FlatParams, versions: np.ndarray) -> np.ndarray:
        """Copy into `vector` every part whose version is not in `versions` [shards] yet, which is changed in place."""
        for k in np.flatnonzero(self.shard[:, VERSION] != versions):
            versions[k] = self.newest[k].read(vector.flat[self.parts[k]], self.check)
        return versions

    def fill(self, vector: FlatParams, versions: list[int], version: int, learnt: float) -> None:
        """The first weights, by worker 0; shards begin behind it, with statistics that are there already."""
        for part, newest, of_part in zip(self.parts, self.newest, versions, strict=True):
            newest.write(vector.flat[part], of_part)
        self.shard[:, VERSION], self.shard[:, FILLED] = versions, 1
        self.head[DOUBLES] = vector.doubles
        self.counts.begin(version, learnt)
        self.ring()

    def ring(self) -> None:
        for k in range(self.shards):
            self._bells[k].post()

    def bell(self, shard: int) -> Semaphore:
        return self._bells[shard]

    def reply(self, worker: int) -> Semaphore:
        """The bell of a learner."""
        return self._bells[self.shards + worker]

    def held(self, number: int) -> np.ndarray:
        """Which parts [shards] change no more while HOLD is `number`: those on this machine that are at nothing, and
        those elsewhere of which all has come since.
        """
        elsewhere = [self.bell(k).relayed is not None for k in range(self.shards)]
        return np.where(elsewhere, self.shard[:, HELD] == number, self.shard[:, BUSY] == 0)

    def crossing(self) -> Crossing:
        """Return the flows: slices of gradients to shards, parts of weights to learners, and, between learner 0 and
        each shard, the initial state and the state for checkpoints. The head comes last, because shards obey it.
        """
        flows: list[Flow] = []
        learners = [End("update", w) for w in range(self.workers)]
        for k, (cells, part) in enumerate(zip(self.shard, self.parts, strict=True)):
            shard, own = End("server", k), self.statistics[:, part.start : min(part.stop, self.weights)]
            for w, learner in enumerate(learners):
                mark, gradient = self.slot[w, k], [self.gradient[w, part]]
                slot = [self.rate[w, k : k + 1], mark[BASE : BASE + 1], mark[WRITTEN : WRITTEN + 1]]
                flows.append(Cells(learner, [shard], slot, [self.bell(k)], whole=gradient))
                flows.append(Cells(shard, [learner], [mark[TAKEN : TAKEN + 1]], [self.reply(w)]))
            first = [cells[VERSION : VERSION + 1], cells[ACTIVE:], self.copies[:, part], own]
            flows += [
                Cells(shard, [EVERYONE], [cells[APPLIED : LAG_MAX + 1], self.lags[k]]),
                Cells(learners[0], [shard], [cells[FILLED : FILLED + 1]], whole=first),
                PartFlow(self, k),
                Cells(shard, learners[:1], [cells[HELD : HELD + 1]], [self.reply(0)], whole=[own]),
            ]
        flows += [Cells(end, [EVERYONE], [self.counters[end.i]]) for end in learners]
        flows.append(Cells(learners[0], [EVERYONE], [self.head], [self.bell(k) for k in range(self.shards)]))
        bells = [(self.bell(k), End("server", k)) for k in range(self.shards)]
        return Crossing(flows, bells + [(self.reply(end.i), end) for end in learners], self.close)

    def totals(self) -> dict[str, np.ndarray]:
        """For reports: gradients that shards applied, dropped and had [shards], how stale [LAGS], losses refused."""
        columns = {"applied": APPLIED, "stale": STALE, "versions": VERSION}
        return {
            **{name: self.shard[:, column].copy() for name, column in columns.items()},
            "lag_sum": self.shard[:, LAG_SUM].sum(),
            "lags": self.lags.sum(0),
            "lag_max": self.shard[:, LAG_MAX].max(),
            "outlier": self.counters[:, update.REFUSED].sum(),
        }


class PartFlow(Flow):
    """Newest version of a shard's part of the weights."""

    def __init__(self, server: ParameterServer, k: int):
        super().__init__(End("server", k), [End("update", ANY), End("params", ANY)])
        self.server, self.cells, self.newest = server, server.shard[k], server.newest[k]
        self.vector = torch.empty(server.parts[k].stop - server.parts[k].start)

    def token(self, gives: bool) -> int:
        return int(self.cells[VERSION]) if self.server.counts.ready else -1

    def pieces(self, old: Any, new: int, gives: bool) -> Iterator[Piece]:
        if self.server.counts.ready:
            version = self.newest.read(self.vector, self.server.check)
            yield VECTOR, version, [self.vector.numpy()]

    def land(self, part: int, i: int, arrays: list[np.ndarray], gives: bool) -> None:
        self.newest.write(torch.from_numpy(arrays[0]), i)
        memory_barrier()
        self.cells[VERSION] = i


class _Server(update.OpenUpdate):
    """A learner's end: what it pulls, and its slots."""

    def __init__(self, server: ParameterServer, ctx: WorkerContext, vector: FlatParams):
        super().__init__(server, ctx, vector, server.counts.of(ctx.index))
        self.server, self.gradient, self.bell = server, HostCopy(vector.grad), server.reply(ctx.index)
        self.versions = np.full(server.shards, -1)  # the version of each part that was pulled
        self.at = -1  # the version of all parts of this learner's weights
        self.tail = vector.flat[vector.weights :]
        self.synced = self.tail.clone()  # as the server last had them from here, or this learner from the server
        # all parts' at once: for checkpoints, it makes no step
        self.optimizer = server.optim.make(nn.Parameter(torch.from_numpy(server.copies[0])[: server.weights]))
        optimizers.share_statistics(self.optimizer, torch.from_numpy(server.statistics), fill=self.counts.fresh)
        self.marks, self.rate, self.slots = server.slot[ctx.index], server.rate[ctx.index], server.gradient[ctx.index]
        if ctx.index == 0:
            self._release()  # whoever was here before may have been killed while shards stood still

    def apply(self, rate: float, sums: update.Sums) -> update.Apply:
        norm = update.clip_gradient(self.vector.grad, self.clip)
        if math.isfinite(norm):
            self.applied_to = self.counts.version
            yield from self._push(rate)
            yield  # shards that share this thread take their turns
        return norm, sums

    def _push(self, rate: float) -> Iterator[None]:
        """Leave every part's slice in its slot, in the order in which these come free."""
        self.synced.copy_(self.tail)  # floating buffers are sent to the server now
        gradient, buffers = self.gradient.fetch(), self.synced.cpu().numpy().copy()
        n, left = self.server.shards, list(range(self.server.shards))
        left = left[self.ctx.index % n :] + left[: self.ctx.index % n]
        while left:
            while self.bell.wait(0.0):
                pass
            left = [k for k in left if not self._write(k, gradient, buffers, rate)]
            if left:
                before = time.perf_counter()
                yield
                self.server.check()
                self.bell.wait(self.server.patience)
                self.waited += time.perf_counter() - before

    def _write(self, k: int, gradient: np.ndarray, buffers: np.ndarray, rate: float) -> bool:
        """False where the last one was not taken yet. Who is killed in it has changed nothing: the mark comes last."""
        marks, part = self.marks[k], self.server.parts[k]
        if marks[WRITTEN] != marks[TAKEN]:
            return False
        memory_barrier()
        end = min(part.stop, self.server.weights)
        self.slots[part.start : end] = gradient[part.start : end]
        self.slots[end : part.stop] = buffers[: part.stop - end]
        self.rate[k], marks[BASE] = rate, self.versions[k]
        memory_barrier()
        marks[WRITTEN] += 1
        self.server.bell(k).post()
        return True

    @contextlib.contextmanager
    def writers_paused(self) -> Iterator[None]:
        """No shard changes anything meanwhile, and this worker's weights are what they all have."""
        head, server = self.server.head, self.server
        head[HOLD] |= 1  # also within another one
        memory_barrier()
        try:
            if not server.held(head[HOLD]).all():
                server.ring()  # links to machines of shards hear it too
            while not server.held(head[HOLD]).all():
                self.ctx.control.check()
                self.bell.wait(0.02)
            self._pull()
            optimizers.set_step(self.optimizer, self.at)
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self.server.head[HOLD] += self.server.head[HOLD] % 2  # never a number twice: an answer may be late
        memory_barrier()
        self.server.ring()

    def begin(self, version: int, learnt: float, saved: Mapping[str, list[int]] | None = None) -> None:
        if self.counts.fresh:
            n, versions = self.server.shards, [int(v) for v in (saved or {}).get("shards", [])]
            self.synced.copy_(self.tail)
            versions = versions if len(versions) == n else [version] * n
            self.server.fill(self.vector, versions, sum(versions) // n, learnt)

    def refresh(self) -> int:
        """Pulls once there is an update's worth of new weights; the version of this learner's weights then."""
        if self.counts.version != self.at:
            self._pull()
        return self.at

    def _pull(self) -> None:
        own, unsent = self.tail.clone(), not torch.equal(self.tail.view(torch.int32), self.synced.view(torch.int32))
        self.at = int(self.server.fetch(self.vector, self.versions).sum()) // self.server.shards
        if unsent:
            self.tail.copy_(own)  # until they are sent: both are averages, their sum is not
        else:
            self.synced.copy_(self.tail)

    def state(self) -> dict[str, list[int]]:
        return {"shards": self.versions.tolist()}


# The worker of one part of a parameter server: takes the gradients that learners left for it, and publishes its part.
#
# It waits for its bell, then makes a sweep: every gradient that is there, in the order of the learners, each applied or
# dropped as a whole. Of its two copies one is read meanwhile: the sweep's first gradient is applied from that one into
# the other, which the next ones change in place; then that is the one to read. Only behind that are the slots free
# again, so that a learner whose slot is free finds its gradient in what it pulls.


def serve_parameters(ctx: WorkerContext, *, server: ParameterServer) -> Iterator[None]:
    """Part `ctx.index` of a server; ends when the crew does."""
    bell = server.bell(ctx.index)
    while not server.counts.ready:
        bell.wait(ctx.patience)
        yield
    part = ParameterShard(server, ctx.index)
    while True:
        before = time.perf_counter()
        taken = part.sweep()
        after = time.perf_counter()
        ctx.counters.add("learn", after - before)
        yield
        server.check()
        if not taken:
            bell.wait(ctx.patience)
            ctx.counters.add("wait", time.perf_counter() - after)


class ParameterShard:
    """Weights, statistics and count of updates of one part, which nobody else writes."""

    def __init__(self, server: ParameterServer, k: int):
        part, self.newest = server.parts[k], server.newest[k]
        self.server, self.k, self.bell = server, k, server.bell(k)
        self.counters, self.lags, self.slots = server.shard[k], server.lags[k], server.slot[:, k]
        own, self.tail = slice(part.start, min(part.stop, server.weights)), slice(server.weights, part.stop)
        self.copies = [torch.from_numpy(copy)[own] for copy in server.copies]
        self.weights = nn.Parameter(self.copies[self.newest.active])
        self.gradients = [torch.from_numpy(row[own]) for row in server.gradient]
        self.weights.grad = self.gradients[0]
        self.optimizer = server.optim.make(self.weights)
        optimizers.share_statistics(self.optimizer, torch.from_numpy(server.statistics)[:, own], fill=False)
        self.version = int(self.counters[VERSION])
        self.averaged = set[int]()  # learners whose floating buffers are in the average

    def sweep(self) -> int:
        """Take what is there; how many gradients that were. None while somebody reads all parts (writers_paused)."""
        server, head = self.server, self.server.head
        while self.bell.wait(0.0):
            pass
        self.counters[BUSY] = 1
        memory_barrier()  # seen by who wants all to stand still, before we look whether somebody does
        full = self.slots[:, WRITTEN] != self.slots[:, TAKEN]
        waiting = [] if head[HOLD] % 2 else np.flatnonzero(full).tolist()
        memory_barrier()
        before = self.version
        for w in waiting:
            self._take(w, first=self.version == before)
        if self.version > before:
            self.newest.end(self.version)
            self.counters[VERSION] = self.version
            memory_barrier()
        for w in waiting:
            self.slots[w, TAKEN] = self.slots[w, WRITTEN]
        memory_barrier()
        self.counters[BUSY] = 0
        memory_barrier()
        for w in waiting:
            server.reply(w).post()
        if (hold := int(head[HOLD])) % 2:
            self.counters[HELD] = hold
            server.reply(0).post()
        return len(waiting)

    def _take(self, w: int, first: bool) -> None:
        """Apply learner `w`'s gradient, unless it is too old. first: nothing was applied yet in this sweep."""
        lag = self.version - int(self.slots[w, BASE])
        self.lags[min(lag, LAGS - 1)] += 1
        self.counters[LAG_SUM] += lag
        self.counters[LAG_MAX] = max(int(self.counters[LAG_MAX]), lag)
        if self.server.stale and lag > self.server.stale:
            self.counters[STALE] += 1
            return
        self.weights.grad = self.gradients[w]
        optimizers.set_step(self.optimizer, self.version)  # Adam's count of updates: this part's
        self.optimizer.param_groups[0]["lr"] = float(self.server.rate[w, self.k])
        active = self.newest.active
        if first:
            self.newest.begin(self.version + 1)  # whoever still reads there reads again
            self.weights.data = self.copies[1 - active].copy_(self.copies[active])
        self.optimizer.step()
        self._average(w, of=active if first else 1 - active, into=1 - active)
        self.version += 1
        self.counters[APPLIED] += 1

    def _average(self, w: int, of: int, into: int) -> None:
        """Floating buffers come nearer to learner `w`'s, by its share: averages of these statistics are statistics too
        (nets.policy). The sum of what learners moved is none: each moved them from 0 while its replay filled.
        """
        self.averaged.add(w)
        copies, gradient, n = self.server.copies, self.server.gradient, len(self.averaged)
        if self.tail.start >= self.tail.stop:  # they are another part's
            return
        ends = self.server.weights, int(self.server.head[DOUBLES])
        rows = (buffers_in(row, *ends) for row in (copies[of], gradient[w], copies[into]))
        for mean, own, out in zip(*rows, strict=True):
            out[:] = mean + (own - mean) / n
