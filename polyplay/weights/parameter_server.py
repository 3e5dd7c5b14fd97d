"""Gorila's parameter server (Nair et al. 2015): workers hold parts of the weights, and apply the learners' gradients.

The weights are one vector, divided into parts ("shards"). Each part has a worker process (ParameterShard), which counts
the part's updates and holds the part's optimizer statistics.

A learner pulls the weights, computes a gradient, and writes each part's slice of the gradient to a slot. A slot is
shared memory of one learner and one part. The part's worker applies the slice, which makes the slot free again. A
learner waits only for free slots, never for the rollouts of other learners. Parts may have different versions, so each
slice is sent with the version of its part.
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

# int64 cells of the header, after those of SharedWeights. HOLD: odd while shards must pause; DOUBLES: index in the
# vector at which float64 numbers begin
HOLD, DOUBLES = 3, 4
# cells of a shard; those of its two copies begin at ACTIVE. HELD: the last value of HOLD for which the shard paused;
# FILLED: 1 once worker 0 has written the shard's first weights
VERSION, BUSY, APPLIED, STALE, LAG_SUM, LAG_MAX, HELD, FILLED, ACTIVE = range(9)
# cells of a slot: the learner writes the first two, the shard the last, a cache line away
WRITTEN, BASE, TAKEN = 0, 1, 8
LAGS = 64  # bins of the histogram of gradients' staleness; the last bin also counts larger values


class ParameterServer(update.SharedWeights):
    """Shared weights in `shards` parts. Each part has a worker (`serve_parameters`) that applies gradients to it.

    `weights`, `size`: number of parameters, and length of the whole vector (params.param_sizes). Floating buffers
        belong to the last part, whose worker averages the learners' buffers.
    `workers`: largest number of learners. Learner 0 provides the first weights.
    `stale`: a gradient is dropped if its part had more than `stale` updates since the learner's pull. 0: drop none.

    Learners clip a gradient by its global norm. Actors use this class like Params (`wait`, `pull`, `publish`). Raises
    UserError if `shards` is not from 1 to `weights`.
    """

    pauses = True
    LOCAL = (*update.SharedWeights.LOCAL, "parts", "newest")
    # comments name the worker that writes; all workers read. Each shard also updates its part of `statistics` in place
    shard = shared_array(np.int64, lambda s: (s.shards, 16))  # written by the shard
    lags = shared_array(np.int64, lambda s: (s.shards, LAGS))  # written by the shard
    slot = shared_array(np.int64, lambda s: (s.workers, s.shards, 16))  # written by learner and shard
    rate = shared_array(np.float64, lambda s: (s.workers, s.shards))  # learning rates, written by the learner
    gradient = shared_array(np.float32, lambda s: (s.workers, s.size))  # gradient and buffers, written by the learner
    copies = shared_array(np.float32, lambda s: (2, s.size))  # each part is written by its shard

    def __init__(
        self, optim: optimizers.OptimizerSpec, weights: int, size: int, workers: int, shards: int = 1, stale: int = 0
    ):
        if not 1 <= shards <= weights:
            raise UserError(f"--shards: {shards} given, allowed: 1 to {weights}, so that each has a weight")
        self.shards, self.stale, self.detail = shards, stale, f", {shards} shards"
        super().__init__(optim, weights, size, workers, bells=shards + workers)

    def _attach(self) -> None:
        super()._attach()
        edges = np.linspace(0, self.weights, self.shards + 1).astype(int).tolist()
        self.parts = [slice(a, b) for a, b in pairwise([*edges[:-1], self.size])]  # slices of the vector
        self.counts = update.Counts(self.head, self.counters, parts=self.shard[:, VERSION])
        shards = zip(self.shard, self.parts, strict=True)
        self.newest = [TwoCopies(cells[ACTIVE:], self.copies[:, part]) for cells, part in shards]

    def label(self) -> str:
        return f"{self.weights:,} weights, in {self.shards} parts, each with its version"

    def describe(self) -> list[str]:
        """Return the lines about one part's worker, for its box in a diagram."""
        most = max(p.stop - p.start for p in self.parts)
        rows = [f"part    {most:,} weights, {self.optim.title}'s {', '.join(self.optim.statistics)}"]
        return rows + [f"drops   gradients more than {self.stale} of its updates old"] * bool(self.stale)

    def arrows(self) -> list[Arrow]:
        gradients = "gradients, a slice per part, with the version it was made with"
        down = Arrow(self.label(), ("server",), ("update", "params"))
        return [Arrow(gradients, ("update",), ("server",)), down]

    def open(self, ctx: WorkerContext, module: nn.Module) -> update.OpenUpdate:
        return _Server(self, ctx, FlatParams(module))

    # ------------------------------------------------------------------------------------- like Params

    def wait(self, atleast: int, reader: int, timeout: float) -> bool:
        """Tell whether weights exist. If not, first wait at most `timeout` seconds. Raises Closed if the run ends."""
        self.check()
        if not self.counts.ready:
            time.sleep(min(timeout, 0.005))
        return self.counts.ready

    def pull(self, vector: FlatParams, have: int = -1) -> int:
        """Copy the newest weights into `vector`, and return their version. If `have` is that version, copy nothing."""
        self.check()
        if self.counts.version == have:
            return have
        return int(self.fetch(vector, np.full(self.shards, -1)).sum()) // self.shards

    def publish(self, vector: FlatParams, version: int, round: int) -> None:  # noqa: A002 - as Params has it
        """Do nothing, because shards publish their parts themselves."""

    # ------------------------------------------------------------------------------------------------ parts

    def fetch(self, vector: FlatParams, versions: np.ndarray) -> np.ndarray:
        """Copy parts into `vector` if their version differs from `versions` [shards]. Return the updated `versions`."""
        for k in np.flatnonzero(self.shard[:, VERSION] != versions):
            versions[k] = self.newest[k].read(vector.flat[self.parts[k]], self.check)
        return versions

    def fill(self, vector: FlatParams, versions: list[int], version: int, learnt: float) -> None:
        """Write the first weights and let the parts' workers begin. Learner 0 calls this after it has set the
        statistics.
        """
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
        """Return the semaphore by which the parts' workers wake a learner."""
        return self._bells[self.shards + worker]

    def held(self, number: int) -> np.ndarray:
        """Return for each part, as bool [shards], whether it cannot change now. `number`: present value of HOLD."""
        # a worker elsewhere has paused once it says so: its last changes have arrived here before
        elsewhere = [self.bell(k).relayed is not None for k in range(self.shards)]
        return np.where(elsewhere, self.shard[:, HELD] == number, self.shard[:, BUSY] == 0)

    def crossing(self) -> Crossing:
        """Return the flows of data between machines: gradients, new weights, and the parts' state for checkpoints."""
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
        # the header is last, because shards react to its changes
        flows.append(Cells(learners[0], [EVERYONE], [self.head], [self.bell(k) for k in range(self.shards)]))
        bells = [(self.bell(k), End("server", k)) for k in range(self.shards)]
        return Crossing(flows, bells + [(self.reply(end.i), end) for end in learners], self.close)

    def totals(self) -> dict[str, np.ndarray]:
        """Return counts for reports: gradients applied and dropped, versions, staleness, losses without update."""
        columns = {"applied": APPLIED, "stale": STALE, "versions": VERSION}
        return {
            **{name: self.shard[:, column].copy() for name, column in columns.items()},
            "lag_sum": self.shard[:, LAG_SUM].sum(),
            "lags": self.lags.sum(0),
            "lag_max": self.shard[:, LAG_MAX].max(),
            "outlier": self.counters[:, update.REFUSED].sum(),
        }


class PartFlow(Flow):
    """Sends the newest version of one part of the weights to other machines."""

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
    """A learner's access to a parameter server: pulls weights, and writes gradients to the learner's slots."""

    def __init__(self, server: ParameterServer, ctx: WorkerContext, vector: FlatParams):
        super().__init__(server, ctx, vector, server.counts.of(ctx.index))
        self.server, self.gradient, self.bell = server, HostCopy(vector.grad), server.reply(ctx.index)
        self.versions = np.full(server.shards, -1)  # the pulled version of each part
        self.at = -1  # the version of this learner's weights: the mean of `versions`
        self.tail = vector.flat[vector.weights :]
        self.synced = self.tail.clone()  # buffers as last sent to the server or pulled from it
        # optimizer of all parts, for checkpoints only: it takes no step
        self.optimizer = server.optim.make(nn.Parameter(torch.from_numpy(server.copies[0])[: server.weights]))
        optimizers.share_statistics(self.optimizer, torch.from_numpy(server.statistics), fill=self.counts.fresh)
        self.marks, self.rate, self.slots = server.slot[ctx.index], server.rate[ctx.index], server.gradient[ctx.index]
        if ctx.index == 0:
            self._release()  # a predecessor may have been killed while it paused the shards

    def apply(self, rate: float, sums: update.Sums) -> update.Apply:
        norm = update.clip_gradient(self.vector.grad, self.clip)
        if math.isfinite(norm):
            self.applied_to = self.counts.version
            yield from self._push(rate)
            yield  # shards that share this thread take their turns
        return norm, sums

    def _push(self, rate: float) -> Iterator[None]:
        """Write each part's slice of the gradient to a slot, in the order in which slots become free."""
        self.synced.copy_(self.tail)  # the floating buffers are sent with the gradient
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
        """If the slot of part `k` is free, write the part's slice of the gradient to it. Return whether it was free."""
        marks, part = self.marks[k], self.server.parts[k]
        if marks[WRITTEN] != marks[TAKEN]:
            return False
        memory_barrier()
        end = min(part.stop, self.server.weights)
        self.slots[part.start : end] = gradient[part.start : end]
        self.slots[end : part.stop] = buffers[: part.stop - end]
        self.rate[k], marks[BASE] = rate, self.versions[k]
        memory_barrier()
        marks[WRITTEN] += 1  # last, so that a learner that is killed before has no effect
        self.server.bell(k).post()
        return True

    @contextlib.contextmanager
    def writers_paused(self) -> Iterator[None]:
        """Pull the weights of all parts while the parts' workers pause. The pause ends with the context."""
        head, server = self.server.head, self.server
        head[HOLD] |= 1  # an odd number stays odd, in a nested context
        memory_barrier()
        try:
            if not server.held(head[HOLD]).all():
                server.ring()  # also wakes the lines to the shards' machines
            while not server.held(head[HOLD]).all():
                self.ctx.control.check()
                self.bell.wait(0.02)
            self._pull()
            optimizers.set_step(self.optimizer, self.at)
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self.server.head[HOLD] += self.server.head[HOLD] % 2  # numbers never repeat, since an answer may be late
        memory_barrier()
        self.server.ring()

    def begin(self, version: int, learnt: float, saved: Mapping[str, list[int]] | None = None) -> None:
        if self.counts.fresh:
            n, versions = self.server.shards, [int(v) for v in (saved or {}).get("shards", [])]
            self.synced.copy_(self.tail)
            versions = versions if len(versions) == n else [version] * n
            self.server.fill(self.vector, versions, sum(versions) // n, learnt)

    def refresh(self) -> int:
        """Pull weights if the server's version has changed. Return the version of this learner's weights."""
        if self.counts.version != self.at:
            self._pull()
        return self.at

    def _pull(self) -> None:
        own, unsent = self.tail.clone(), not torch.equal(self.tail.view(torch.int32), self.synced.view(torch.int32))
        self.at = int(self.server.fetch(self.vector, self.versions).sum()) // self.server.shards
        if unsent:
            self.tail.copy_(own)  # keep unsent buffers: both are averages, but their sum is not
        else:
            self.synced.copy_(self.tail)

    def state(self) -> dict[str, list[int]]:
        return {"shards": self.versions.tolist()}


# Worker of one part of a parameter server ("shard"): applies learners' gradients for this part, and publishes the part.
#
# The worker waits for its semaphore, then makes a sweep: it applies or drops every pending gradient as a whole, in the
# order of the learners. During a sweep, learners read one of the part's two copies. The first gradient's step reads
# that copy and writes the other copy, which further gradients change in place. Then learners read the other copy. Only
# after that are the slots free again, so a learner with a free slot pulls weights that include its gradient.


def serve_parameters(ctx: WorkerContext, *, server: ParameterServer) -> Iterator[None]:
    """Run the worker of part `ctx.index` of a parameter server until the run ends."""
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
    """Applies gradients to one part of the weights. After the start, only the part's worker changes that part."""

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
        self.averaged = set[int]()  # learners whose floating buffers were averaged so far

    def sweep(self) -> int:
        """Apply or drop all pending gradients, and return their number. While a learner saves, return 0."""
        server, head = self.server, self.server.head
        while self.bell.wait(0.0):
            pass
        self.counters[BUSY] = 1
        memory_barrier()  # a learner that pauses all shards sees this before HOLD is read here
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
        """Apply learner `w`'s gradient, unless it is too old. `first`: whether this sweep has applied none before."""
        lag = self.version - int(self.slots[w, BASE])
        self.lags[min(lag, LAGS - 1)] += 1
        self.counters[LAG_SUM] += lag
        self.counters[LAG_MAX] = max(int(self.counters[LAG_MAX]), lag)
        if self.server.stale and lag > self.server.stale:
            self.counters[STALE] += 1
            return
        self.weights.grad = self.gradients[w]
        optimizers.set_step(self.optimizer, self.version)  # Adam counts this part's updates
        self.optimizer.param_groups[0]["lr"] = float(self.server.rate[w, self.k])
        active = self.newest.active
        if first:
            self.newest.begin(self.version + 1)  # learners that still read that copy read again
            self.weights.data = self.copies[1 - active].copy_(self.copies[active])
        self.optimizer.step()
        self._average(w, of=active if first else 1 - active, into=1 - active)
        self.version += 1
        self.counters[APPLIED] += 1

    def _average(self, w: int, of: int, into: int) -> None:
        """Average the floating buffers of learner `w` with the server's."""
        self.averaged.add(w)
        copies, gradient, n = self.server.copies, self.server.gradient, len(self.averaged)
        if self.tail.start >= self.tail.stop:  # the buffers belong to another part
            return
        ends = self.server.weights, int(self.server.head[DOUBLES])
        rows = (buffers_in(row, *ends) for row in (copies[of], gradient[w], copies[into]))
        for mean, own, out in zip(*rows, strict=True):
            # not a sum of the learners' changes, because each learner began at 0 while its replay filled
            out[:] = mean + (own - mean) / n
