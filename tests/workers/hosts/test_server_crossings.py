"""What crosses of a parameter server, carried by hand: learners and shards on up to four machines, home between."""

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
from tests.weights.ends import PLAIN, finish, me
from tests.weights.test_parameter_server import whole
from tests.workers.hosts.by_hand import Wire, seat_of


class Machines:
    """A server whose learners and shards are on these machines: 0 is home, others have a line each."""

    def __init__(self, learners: list[int], shards: list[int], optim: OptimizerSpec = PLAIN):
        self.server = ParameterServer(optim, *param_sizes(nets(1)[0]), len(learners), len(shards))
        self.of_learners, self.of_shards = [*learners], shards
        self.wires = [Wire(self.server, relay=i) for i in range(max(learners + shards))]
        self.sides: list[ParameterServer] = [self.server, *(wire.twins[0] for wire in self.wires)]
        for end, machines in (("update", learners), ("server", shards)):
            for i, machine in enumerate(machines):
                if machine:
                    self.begin_there(end, i, machine)
        self.nets = nets(len(learners))
        self.ends: list[Any] = [self._end(w) for w in range(len(learners))]
        self.shards = list[ParameterShard]()

    def begin_there(self, end: str, i: int, machine: int) -> None:
        kinds = ("learner",) if end == "update" else ()
        self.wires[machine - 1].seat(end, i, row=i + 10 * (end == "server"), kinds=kinds)

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
            for wire in self.wires:
                wire.back()
            for wire in self.wires:
                wire.out()

    def slots(self) -> np.ndarray:
        """Marks [learners, shards, 16], as each shard's machine has them."""
        return np.stack([self.sides[machine].slot[:, k] for k, machine in enumerate(self.of_shards)], 1)

    def sweep(self) -> list[int]:
        self.carry()
        taken = [part.sweep() for part in self.shards]
        self.carry()
        return taken


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
        found.append((whole(machines.server).tolist(), machines.slots()[:, :, :2].tolist()))
    assert found[0] == found[1]


class Chance(Machines):
    """Gradients of -1, each of which adds 1 to every weight, and anything at any time. The last machine may be lost."""

    def __init__(self, seed: int, learners: list[int], shards: list[int]):
        super().__init__(learners, shards)
        self.draw, self.lost = random.Random(seed), 0
        self.begin()
        self.first = whole(self.server)

    def push(self, w: int) -> None:
        marks = self.sides[self.of_learners[w]].slot[w]
        if (marks[:, WRITTEN] == marks[:, TAKEN]).all():
            self.ends[w].refresh()
            self.ends[w].vector.grad.fill_(-1.0)
            finish(self.ends[w].apply(1e6, np.zeros(5)))
            self.ends[w].counts.add(4.0)

    def lose(self) -> None:
        """A machine without shards is lost, another one joins; its learners go on there, or on others."""
        self.lost += 1
        self.wires[-1] = Wire(self.server, relay=len(self.wires) - 1)
        self.sides[-1] = self.wires[-1].twins[0]
        for w, machine in enumerate(self.of_learners):
            if machine == len(self.wires):
                self.of_learners[w] = new = self.draw.choice([machine, machine, self.draw.randrange(1, machine + 1)])
                self.begin_there("update", w, new)
                self.ends[w] = self._end(w)

    def event(self) -> None:
        what, draw = self.draw.random(), self.draw
        wire = draw.choice(self.wires)
        if what < 0.3:
            self.push(draw.randrange(len(self.ends)))
        elif what < 0.5:
            draw.choice(self.shards).sweep()
        elif what < 0.98 or len(self.wires) in self.of_shards:
            draw.choice([wire.back, wire.out, wire.send, wire.send_back, wire.land_away, wire.land_home])()
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
    ("learners", "shards", "loses"),
    [([0, 1, 2, 3], [1, 2], 1), ([0, 1, 2, 3], [0, 1], 1), ([0, 1, 2], [2, 2], 0), ([1, 0, 3], [0, 2], 1)],
)
def test_whatever_happens_when_every_gradient_is_applied_once(learners, shards, loses):
    machines = Chance(len(learners) + sum(shards), learners, shards)
    for _ in range(8):
        for _ in range(100):
            machines.event()
        machines.hold()
    for _ in range(3):
        machines.sweep()
    server = machines.server
    slots = machines.slots()
    assert np.array_equal(slots[:, :, WRITTEN], slots[:, :, TAKEN])
    applied = slots[:, :, WRITTEN].sum(0)
    assert applied.min() > 20
    assert machines.lost >= 4 * loses
    assert (server.shard[:, VERSION] - [3, 4]).tolist() == applied.tolist() == server.totals()["applied"].tolist()
    for k, part in enumerate(server.parts):
        own = slice(part.start, min(part.stop, server.weights))
        np.testing.assert_allclose(whole(server)[own] - machines.first[own], applied[k], rtol=2e-3)
    assert server.counts.learnt == 70.0 + 4.0 * server.counters[:, 0].sum()


def test_a_shard_elsewhere_begins_with_the_first_weights_also_where_it_was_there_after_them():
    machines = Machines([0, 0], [0, 0])
    machines.begin()
    wire = Wire(machines.server)
    wire.seat(seat_of("server", 1, row=11))
    there, server = wire.twins[0], machines.server
    assert there.counts.ready
    assert there.shard[1, VERSION] == 4
    part = server.parts[1]
    assert np.array_equal(whole(there)[part], whole(server)[part])
    own = slice(part.start, min(part.stop, server.weights))
    assert np.array_equal(there.statistics[:, own], server.statistics[:, own])


def test_where_home_is_between_a_shard_is_held_only_once_it_has_said_so():
    """Learner 0 is on one machine, the shard is at work on another: home cannot know by itself."""
    machines = Machines([1], [2])
    machines.begin()
    learner = machines.sides[1]
    learner.head[HOLD] |= 1
    machines.carry()
    assert not learner.held(learner.head[HOLD]).any()
    machines.sweep()
    assert learner.held(learner.head[HOLD]).all()
