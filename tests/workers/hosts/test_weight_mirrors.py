"""Mirrors of a parameter server, driven by chance. Replicas on several machines are in test_fleet."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.weights.parameter_server import HOLD, TAKEN, VERSION, WRITTEN, ParameterServer, ParameterShard
from polyplay.weights.params import param_sizes
from polyplay.weights.update import OptimizerSpec
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.weight_mirrors import ServerMirror
from tests.weights.ends import PLAIN, finish, me
from tests.weights.test_parameter_server import whole
from tests.workers.hosts.by_hand import Pair, carry, forget


def learner(w: int) -> RemoteSeat:
    return RemoteSeat(w, w, (w,), "bundle", "update")


def shard(k: int) -> RemoteSeat:
    return RemoteSeat(k, 10 + k, role="serve_parameters", end="server")


class Machines:
    """A server whose learners and shards are on these machines: 0 is home, others have a link each."""

    def __init__(self, learners: list[int], shards: list[int], optim: OptimizerSpec = PLAIN):
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
        self.nets = nets(len(learners))
        self.ends: list[Any] = [self._end(w) for w in range(len(learners))]
        self.shards = list[ParameterShard]()

    def _end(self, w: int) -> Any:
        return self.sides[self.of_learners[w]].open(me(w, len(self.of_learners)), self.nets[w])

    def begin(self) -> None:
        """Learner 0 has statistics, as a run that goes on has, and the first weights."""
        side = self.sides[self.of_learners[0]]
        side.statistics[:] = np.random.default_rng(1).random(side.statistics.shape)
        self.ends[0].begin(3, 70.0, {"shards": [3 + k for k in range(len(self.of_shards))]})
        self.carry()
        assert all(side.counts.ready for side in self.sides)
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


@pytest.fixture(autouse=True)
def _machine():
    forget()


def seat(pair: Pair, of: RemoteSeat) -> None:
    carry(pair.home.begin(of), pair.away)
    for side in (pair.away, pair.home):
        side.sit(of)


def nets(n: int) -> list[nn.Module]:
    """Layers with floating buffers, which are averaged too."""
    made = [nn.BatchNorm1d(37) for _ in range(n)]
    for i, net in enumerate(made):
        net.running_mean.fill_(float(i))
    return made


@pytest.mark.parametrize(("learners", "shards"), [([0, 1], [1, 1]), ([0, 1, 2], [0, 1, 2]), ([1, 2], [2, 0])])
def test_wherever_learners_and_shards_are_the_weights_are_as_on_one_machine(learners, shards):
    """To the bit, with the statistics that they begin with."""
    found = []
    for where in ((learners, shards), ([0] * len(learners), [0] * len(shards))):
        machines, draw = Machines(*where, OptimizerSpec("adam", clip=0.5)), torch.Generator().manual_seed(1)
        machines.begin()
        for i in range(9):
            end = machines.ends[i % len(learners)]
            end.refresh()
            end.vector.grad[: end.vector.weights] = torch.randn(end.vector.weights, generator=draw)
            finish(end.apply(0.1, np.zeros(5)))
            machines.sweep()
        found.append((whole(machines.server).tolist(), machines.server.slot[:, :, :2].tolist()))
    assert found[0] == found[1]


class Chance(Machines):
    """Gradients of -1, each of which adds 1 to every weight, and anything at any time. The last machine may be lost."""

    def __init__(self, seed: int, learners: list[int], shards: list[int]):
        super().__init__(learners, shards)
        self.draw = random.Random(seed)
        self.begin()
        self.first = whole(self.server)

    def push(self, w: int) -> None:
        marks = self.sides[self.of_learners[w]].slot[w]
        if (marks[:, WRITTEN] == marks[:, TAKEN]).all():
            self.ends[w].refresh()
            self.ends[w].vector.grad.fill_(-1.0)
            finish(self.ends[w].apply(1e6, np.zeros(5)))
            self.ends[w].counts.add(4.0)

    def move(self, w: int) -> None:
        """A learner is lost: all of it comes home before that is known."""
        self.pairs[self.of_learners[w] - 1].back()
        self.seat(w, self.draw.randrange(1, len(self.sides)))

    def seat(self, w: int, machine: int) -> None:
        self.of_learners[w] = machine
        seat(self.pairs[machine - 1], learner(w))
        self.ends[w] = self._end(w)

    def lose(self) -> None:
        """A machine without shards is lost, another one joins."""
        forget()
        self.pairs[-1] = Pair(ServerMirror(self.server))
        self.pairs[-1].home.relay = len(self.pairs) - 1
        self.sides[-1] = self.pairs[-1].away.server
        for w, machine in enumerate(self.of_learners):
            if machine == len(self.pairs):
                self.seat(w, self.draw.randrange(1, len(self.sides)))

    def event(self) -> None:
        what, draw = self.draw.random(), self.draw
        if what < 0.3:
            self.push(draw.randrange(len(self.ends)))
        elif what < 0.5:
            draw.choice(self.shards).sweep()
        elif what < 0.73:
            draw.choice(self.pairs).back()
        elif what < 0.96:
            draw.choice(self.pairs).out()
        elif what < 0.99:
            self.move(draw.choice([w for w, machine in enumerate(self.of_learners) if machine and w]))
        else:
            self.lose()

    def hold(self) -> None:
        """Learner 0's side has what shards have, wherever these are."""
        side = self.sides[self.of_learners[0]]
        side.head[HOLD] |= 1
        while not side.held(side.head[HOLD]).all():
            self.event()
        for _ in range(20):
            self.event()
        for k, part in enumerate(side.parts):
            own, there = slice(part.start, min(part.stop, side.weights)), self.sides[self.of_shards[k]]
            assert side.shard[k, VERSION] == there.shard[k, VERSION]
            assert np.array_equal(side.statistics[:, own], there.statistics[:, own])
            assert np.array_equal(whole(side)[part], whole(there)[part])
        self.ends[0]._release()


@pytest.mark.parametrize(
    ("learners", "shards"),
    [([0, 1, 2, 3], [1, 2]), ([0, 1, 2, 3], [0, 1]), ([0, 1, 2, 3], [2, 2]), ([1, 0, 3], [0, 2])],
)
def test_whatever_happens_when_every_gradient_is_applied_once(learners, shards):
    machines = Chance(len(learners) + sum(shards), learners, shards)
    for _ in range(8):
        for _ in range(100):
            machines.event()
        machines.hold()
    for _ in range(3):
        machines.sweep()
    server = machines.server
    assert np.array_equal(server.slot[:, :, WRITTEN], server.slot[:, :, TAKEN])
    applied = server.slot[:, :, WRITTEN].sum(0)
    assert applied.min() > 20
    assert (server.shard[:, VERSION] - [3, 4]).tolist() == applied.tolist() == server.totals()["applied"].tolist()
    for k, part in enumerate(server.parts):
        own = slice(part.start, min(part.stop, server.weights))
        np.testing.assert_allclose(whole(server)[own] - machines.first[own], applied[k], rtol=2e-3)
    assert server.counts.learnt == 70.0 + 4.0 * server.counters[:, 0].sum()
