"""The worker of one part of a parameter server: takes the gradients that learners left for it, and publishes its part.

It waits for its bell, then makes a sweep: every gradient that is there, in the order of the learners, each applied or
dropped as a whole. Of its two copies one is read meanwhile: the sweep's first gradient is applied from that one into
the other, which the next ones change in place; then that is the one to read. Only behind that are the slots free again,
so that a learner whose slot is free finds its gradient in what it pulls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from polyplay.common.context import WorkerContext
from polyplay.common.shared_memory import memory_barrier
from polyplay.weights import optimizers
from polyplay.weights import parameter_server as at
from polyplay.weights.flat import buffers_in
from polyplay.weights.parameter_server import ParameterServer


def serve_parameters(ctx: WorkerContext, *, server: ParameterServer) -> Iterator[None]:
    """Part `ctx.index` of a server; ends when the crew does."""
    bell = server.bell(ctx.index)
    while not server.ready:
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
        self.version = int(self.counters[at.VERSION])
        self.averaged = set[int]()  # learners whose floating buffers are in the average

    def sweep(self) -> int:
        """Take what is there; how many gradients that were. None while somebody reads all parts (`_Server.still`)."""
        server, head = self.server, self.server.head
        while self.bell.wait(0.0):
            pass
        self.counters[at.BUSY] = 1
        memory_barrier()  # seen by who wants all to stand still, before we look whether somebody does
        full = self.slots[:, at.WRITTEN] != self.slots[:, at.TAKEN]
        waiting = [] if head[at.HOLD] % 2 else np.flatnonzero(full).tolist()
        memory_barrier()
        before = self.version
        for w in waiting:
            self._take(w, first=self.version == before)
        if self.version > before:
            self.newest.end(self.version)
            self.counters[at.VERSION] = self.version
            memory_barrier()
        for w in waiting:
            self.slots[w, at.TAKEN] = self.slots[w, at.WRITTEN]
        memory_barrier()
        self.counters[at.BUSY] = 0
        memory_barrier()
        for w in waiting:
            server.reply(w).post()
        if head[at.HOLD] % 2:
            server.reply(0).post()
        return len(waiting)

    def _take(self, w: int, first: bool) -> None:
        """Apply learner `w`'s gradient, unless it is too old. first: nothing was applied yet in this sweep."""
        lag = self.version - int(self.slots[w, at.BASE])
        self.lags[min(lag, at.LAGS - 1)] += 1
        self.counters[at.LAG_SUM] += lag
        self.counters[at.LAG_MAX] = max(int(self.counters[at.LAG_MAX]), lag)
        if self.server.stale and lag > self.server.stale:
            self.counters[at.STALE] += 1
            return
        self.weights.grad = self.gradients[w]
        optimizers.set_step(self.optimizer, self.version)  # Adam's count of updates: this part's
        self.optimizer.param_groups[0]["lr"] = float(self.server.rate[w, self.k])
        active = self.newest.active
        if first:
            self.newest.begin(self.version + 1)  # whoever still reads there reads again
            optimizers.step_into(self.optimizer, self.copies[1 - active])
        else:
            self.optimizer.step()
        self._average(w, of=active if first else 1 - active, into=1 - active)
        self.version += 1
        self.counters[at.APPLIED] += 1

    def _average(self, w: int, of: int, into: int) -> None:
        """Floating buffers come nearer to learner `w`'s, by its share: averages of these statistics are statistics too
        (nets.running_stats). The sum of what learners moved is none: each moved them from 0 while its replay filled.
        """
        self.averaged.add(w)
        copies, gradient, n = self.server.copies, self.server.gradient, len(self.averaged)
        if self.tail.start >= self.tail.stop:  # they are another part's
            return
        ends = self.server.weights, int(self.server.head[at.DOUBLES])
        rows = (buffers_in(row, *ends) for row in (copies[of], gradient[w], copies[into]))
        for mean, own, out in zip(*rows, strict=True):
            out[:] = mean + (own - mean) / n
