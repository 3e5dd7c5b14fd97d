"""Learners and shards of a parameter server on several machines, for tests that drive their mirrors by hand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from polyplay.weights.parameter_server import ParameterServer, ParameterShard
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import OptimizerSpec
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.weight_mirrors import ServerMirror
from tests.weights.ends import finish, me
from tests.workers.hosts.by_hand import Pair, forget
from tests.workers.hosts.test_weight_mirrors import ADAM, nets, seat


def learner(w: int) -> RemoteSeat:
    return RemoteSeat(w, w, (w,), "bundle", "update")


def shard(k: int) -> RemoteSeat:
    return RemoteSeat(k, 10 + k, role="serve_parameters", end="server")


def actor(index: int) -> RemoteSeat:
    return RemoteSeat(index, 20 + index, role="act", end="params")


class Machines:
    """A server whose learners and shards are on these machines: 0 is home, others have a link each."""

    def __init__(self, learners: list[int], shards: list[int], optim: OptimizerSpec = ADAM):
        self.server = ParameterServer(optim, *param_sizes(nets(1)[0]), len(learners), len(shards))
        self.of_learners, self.of_shards, self.pairs = [*learners], shards, list[Pair]()
        for number in range(max(learners + shards)):
            forget()
            self.pairs.append(Pair(ServerMirror(self.server)))
            self.pairs[number].home.relay = number
        self.sides: list[ParameterServer] = [self.server, *(pair.away.server for pair in self.pairs)]
        for seats, made in ((learners, learner), (shards, shard)):
            for i, machine in enumerate(seats):
                if machine:
                    seat(self.pairs[machine - 1], made(i))
        self.vectors = [FlatParams(net) for net in nets(len(learners))]
        self.ends: list[Any] = [self._end(w) for w in range(len(learners))]
        self.shards = list[ParameterShard]()

    def _end(self, w: int) -> Any:
        return self.sides[self.of_learners[w]].bind(me(w, len(self.of_learners)), self.vectors[w])

    def begin(self) -> None:
        """Learner 0 has statistics, as a run that goes on has, and the first weights."""
        side = self.sides[self.of_learners[0]]
        side.statistics[:] = np.random.default_rng(1).random(side.statistics.shape)
        self.ends[0].counts.saved = [3 + k for k in range(len(self.of_shards))]
        self.ends[0].counts.begin(3, 70.0)
        self.carry()
        assert all(side.ready for side in self.sides)
        self.shards = [ParameterShard(self.sides[machine], k) for k, machine in enumerate(self.of_shards)]

    def carry(self) -> None:
        """Until all has arrived that was written."""
        for _ in range(2):
            for pair in self.pairs:
                pair.back()
            for pair in self.pairs:
                pair.out()

    def sweep(self) -> list[int]:
        self.carry()
        taken = [part.sweep() for part in self.shards]
        self.carry()
        return taken

    def leave(self, w: int, number: int) -> None:
        """A gradient, for which the slots are free."""
        self.ends[w].counts.newest()
        vector, draw = self.vectors[w], torch.Generator().manual_seed(number)
        vector.grad[: vector.weights] = torch.randn(vector.weights, generator=draw)
        finish(self.ends[w](0.1, np.zeros(5)))
        self.ends[w].counts.add(4.0)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Links and shards are at work while learner 0 waits for them, and while it saves."""
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.001):
                self.sweep()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with self.ends[0].still():
                yield
        finally:
            stop.set()
            worker.join(30)
