"""Mirrors of an all-reduce and of a parameter server, driven by hand, by chance and by threads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.weights.parameter_server import HOLD, TAKEN, VERSION, WRITTEN, ParameterServer, ParameterShard
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.weight_mirrors import AllReduceMirror, ServerMirror
from tests.weights.ends import PLAIN, finish, me
from tests.weights.test_parameter_server import whole
from tests.workers.hosts.by_hand import Pair, carry, forget

ADAM = OptimizerSpec("adam", clip=0.5)


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
        self.ends[0].saved = [3 + k for k in range(len(self.of_shards))]
        self.ends[0].begin(3, 70.0)
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


class Replicas:
    """So many replicas of one AllReduce, `away` of them by its twin; or all by it alone."""

    def __init__(self, n: int, away: tuple[int, ...] = ()):
        modules = nets(n)
        weights, size = param_sizes(modules[0])
        self.reduce, self.pair = AllReduce(ADAM, n, size, weights), None
        sides = [self.reduce] * n
        if away:
            self.pair = Pair(AllReduceMirror(self.reduce))
            twin = self.pair.away.reduce
            assert twin.gradients is not self.reduce.gradients
            seat(self.pair, RemoteSeat(away[0], away[0], away))
            sides = [twin if i in away else self.reduce for i in range(n)]
        self.vectors = [side.vector(me(i, n), net) for i, (side, net) in enumerate(zip(sides, modules, strict=True))]
        for vector in self.vectors:
            vector.flat[: vector.weights] = 0.5
        self.ends = [s.bind(me(i, n), v) for i, (s, v) in enumerate(zip(sides, self.vectors, strict=True))]

    def update(self, k: int) -> list[Any]:
        """One update by all, who take turns; what each returns."""
        for i, vector in enumerate(self.vectors):
            vector.grad[: vector.weights] = torch.randn(
                vector.weights, generator=torch.Generator().manual_seed(10 * k + i)
            )
        running = {i: end(0.1, np.array([i, 1.0, k])) for i, end in enumerate(self.ends)}
        results: list[Any] = [None] * len(self.ends)
        for _ in range(100):
            for i, steps in list(running.items()):
                try:
                    next(steps)
                except StopIteration as end:
                    results[i] = end.value
                    del running[i]
            if self.pair is not None:
                self.pair.out()
                self.pair.back()
            if not running:
                return results
        raise AssertionError("they never met")


@pytest.mark.parametrize(("n", "away"), [(2, (1,)), (3, (1, 2)), (4, (2, 3)), (4, (3,))])
def test_replicas_on_two_machines_get_what_those_on_one_get(n, away):
    here, there = Replicas(n), Replicas(n, away)
    for k in range(6):
        one, two = here.update(k), there.update(k)
        for i in range(n):
            assert one[i][0] == two[i][0]
            assert one[i][1].tolist() == two[i][1].tolist()
            assert torch.equal(here.vectors[i].flat, there.vectors[i].flat)
    assert np.array_equal(here.reduce.state, there.reduce.state)  # statistics too: anyone can save them
    assert not torch.equal(here.vectors[0].flat[:37], torch.full((37,), 0.5))


class Chance(Machines):
    """Gradients of -1, each of which adds 1 to every weight, and anything at any time. The last machine may be lost."""

    def __init__(self, seed: int, learners: list[int], shards: list[int]):
        super().__init__(learners, shards, PLAIN)
        self.draw = random.Random(seed)
        self.begin()
        self.first = whole(self.server)

    def push(self, w: int) -> None:
        marks = self.sides[self.of_learners[w]].slot[w]
        if (marks[:, WRITTEN] == marks[:, TAKEN]).all():
            self.ends[w].newest()
            self.vectors[w].grad.fill_(-1.0)
            finish(self.ends[w](1e6, np.zeros(5)))
            self.ends[w].add(4.0)

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
    assert server.learnt == 70.0 + 4.0 * server.counters[:, 0].sum()
