"""A parameter server's mirrors, driven by hand in one process: learners and shards on up to three machines."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.weights.parameter_server import BUSY, HELD, HOLD, TAKEN, VERSION, WRITTEN, ParameterServer, ParameterShard
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.workers.hosts.mirrors import FrameError
from polyplay.workers.hosts.weight_mirrors import ServerMirror, _Kind
from tests.weights.test_parameter_server import whole
from tests.workers.hosts.by_hand import Pair, carry, forget
from tests.workers.hosts.server_machines import Machines, actor, learner, shard
from tests.workers.hosts.test_weight_mirrors import ADAM, nets, seat


@pytest.fixture(autouse=True)
def _machine():
    forget()


LAYOUTS = [
    ([0, 0], [1, 1]),  # shards elsewhere
    ([0, 1], [0, 0]),  # a learner
    ([0, 1], [1, 1]),  # beside its shards
    ([0, 1], [0, 1]),
    ([0, 1], [2, 2]),  # two links from each other
    ([0, 1, 2], [0, 1, 2]),
    ([1, 0], [0, 1]),  # learner 0 elsewhere
    ([1, 2], [2, 0]),
]


@pytest.mark.parametrize(("learners", "shards"), LAYOUTS)
def test_wherever_learners_and_shards_are_all_is_as_on_one_machine(learners, shards):
    n = len(learners)
    here, there = Machines([0] * n, [0] * len(shards)), Machines(learners, shards)
    for machines in (here, there):
        machines.begin()
    for i in range(9):
        told = []
        for machines in (here, there):
            machines.leave(i % n, i)
            if i % 4:  # else it waits for the next one's
                assert set(machines.sweep()) <= {1, 2}
            told.append([machines.ends[w].counts.newest() for w in range(n)])
        assert told[0] == told[1]
        for one, two in zip(here.vectors, there.vectors, strict=True):
            assert torch.equal(one.flat, two.flat)
    here.sweep()
    there.sweep()
    assert there.server.shard[:, VERSION].tolist() == [12 + k for k in range(len(shards))]
    one, two = here.server.totals(), there.server.totals()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert [there.sides[machine].learnt for machine in learners] == [70.0 + 36.0] * n
    assert np.array_equal(here.server.slot[:, :, :2], there.server.slot[:, :, :2])
    assert np.array_equal(here.server.slot[:, :, TAKEN], there.server.slot[:, :, TAKEN])
    assert np.array_equal(whole(here.server), whole(there.server))


@pytest.mark.parametrize(("learners", "shards"), LAYOUTS)
def test_who_saves_has_exact_weights_and_statistics_while_shards_elsewhere_stand_still(learners, shards):
    n = len(learners)
    here, there = Machines([0] * n, [0] * len(shards)), Machines(learners, shards)
    for machines in (here, there):
        machines.begin()
        for i in range(5):
            machines.leave(i % n, i)
            machines.sweep()
    for again in range(2):
        with there.still(), here.ends[0].still():
            there.leave(1, 7 + again)
            mine, side = there.ends[0].counts, there.sides[learners[0]]
            kept = side.statistics.copy()
            assert np.array_equal(kept, here.server.statistics)
            assert torch.equal(there.vectors[0].flat, here.vectors[0].flat)
            assert mine.state() == here.ends[0].counts.state()
            assert np.array_equal(side.totals()["applied"], here.server.totals()["applied"])
            time.sleep(0.02)
            assert np.array_equal(side.statistics, kept)
            assert mine.state()["shards"] == side.shard[:, VERSION].tolist(), "no shard went on"
        here.leave(1, 7 + again)
        here.sweep()
        there.sweep()
        assert np.array_equal(whole(here.server), whole(there.server))


def kinds(frames: Any) -> list[str]:
    made = ServerMirror(ParameterServer(ADAM, *param_sizes(nets(1)[0]), 2, 2))
    found = [made._kind(item) for item, _ in frames]
    return [f"{kind.name} {i}" for kind, i in found]


class TestFrames:
    def test_of_a_learner_beside_its_shard_only_counts_and_parts_cross(self):
        machines = Machines([0, 1], [0, 1])
        machines.begin()
        machines.leave(1, 0)
        assert kinds(machines.pairs[0].away.changes(0.0)) == ["SLICE 2", "LEARNER 1"]
        machines.leave(0, 1)
        assert kinds(machines.pairs[0].home.changes(0.0)) == ["SLICE 1", "LEARNER 0"]

    def test_a_machine_where_nobody_reads_gets_no_other_shards_parts(self):
        machines = Machines([0, 0], [0, 1])
        machines.begin()
        machines.leave(1, 0)
        machines.shards[0].sweep()
        assert kinds(machines.pairs[0].home.changes(0.0)) == ["SLICE 3"]

    def test_who_only_reads_gets_weights_and_counts(self):
        machines = Machines([0, 0], [0, 0])
        pair = Pair(ServerMirror(machines.server))
        seat(pair, actor(0))
        machines.begin()
        machines.server.counters[1, :2] = 2, 8
        pair.out()
        theirs, ours = FlatParams(nets(1)[0]), FlatParams(nets(1)[0])
        assert pair.away.server.pull(theirs) == machines.server.pull(ours)
        assert torch.equal(theirs.flat, ours.flat)
        assert pair.away.server.learnt == 78.0
        assert not list(pair.home.changes(0.0))
        machines.server.shard[0, VERSION] += 1
        assert kinds(pair.home.changes(0.0)) == ["VERSION 0", "PART 0"]  # of the first part alone

    @pytest.mark.parametrize(
        ("kind", "i"), [("THERE", 0), ("HEAD", 0), ("SHARD", 0), ("VERSION", 0), ("PART", 0), ("STATISTICS", 0)]
    )
    def test_what_is_written_at_home_is_refused_from_elsewhere(self, kind, i):
        machines = Machines([0, 1], [0, 1])
        machines.begin()
        home = machines.pairs[0].home
        for item in (home._item(_Kind[kind], i), home._item(_Kind.SEAT, 1), home._item(_Kind.LEARNER, 0), -1, 999):
            with pytest.raises(FrameError):
                home.places(item)

    def test_a_shards_machine_takes_nothing_of_what_its_shard_writes(self):
        machines = Machines([0, 0], [0, 1])
        machines.begin()
        away = machines.pairs[0].away
        assert away.places(away._item(_Kind.SHARD, 0))
        for kind in (_Kind.SHARD, _Kind.VERSION, _Kind.PART, _Kind.STATISTICS):
            with pytest.raises(FrameError):
                away.places(away._item(kind, 1))

    def test_a_slot_that_is_full_takes_no_other_slice(self):
        machines = Machines([0, 1], [0, 0])
        machines.begin()
        home = machines.pairs[0].home
        mark = home.places(home._item(_Kind.SLICE, 2))[1]
        machines.server.slot[1, 0, WRITTEN] = 1
        with pytest.raises(FrameError, match="SLICE 2"):
            home.places(home._item(_Kind.SLICE, 2))
        with pytest.raises(FrameError, match="SLICE 0"):  # learner 0 is here
            home.places(home._item(_Kind.SLICE, 0))
        mark[:] = 3, 0
        with pytest.raises(FrameError, match="slice 3 of learner 1 after 1"):
            home.arrived(home._item(_Kind.SLICE, 2))


class TestBegin:
    def test_a_shard_that_begins_late_has_the_first_weights_and_the_gradients_so_far(self):
        here, machines = Machines([0, 0], [0, 0]), Machines([0, 0], [0, 0])
        for which in (here, machines):
            which.begin()
            which.leave(0, 5)
        forget()
        pair = Pair(ServerMirror(machines.server))
        seat(pair, actor(0))  # that machine has had all but what shards need
        pair.out()
        carry(pair.home.begin(shard(1)), pair.away)
        twin = pair.away.server
        assert twin.ready
        assert twin.shard[1, VERSION] == 4
        part = machines.server.parts[1]
        weights = slice(part.start, machines.server.weights)
        assert np.array_equal(twin.statistics[:, weights], machines.server.statistics[:, weights])
        for side in (pair.away, pair.home):
            side.sit(shard(1))
        machines.pairs, machines.shards[1] = [pair], ParameterShard(twin, 1)
        assert here.sweep() == machines.sweep() == [1, 1]
        assert np.array_equal(whole(here.server), whole(machines.server))

    def test_it_has_them_too_where_they_come_after_it(self):
        machines = Machines([0, 0], [1, 1])
        twin = machines.pairs[0].away.server
        assert not twin.ready
        assert kinds(machines.pairs[0].home.changes(0.0)) == []
        machines.begin()
        assert twin.shard[:, VERSION].tolist() == [3, 4]
        assert np.array_equal(twin.statistics, machines.server.statistics)
        assert np.array_equal(whole(twin), whole(machines.server))

    def test_a_new_learner_begins_with_what_is_there_of_its_seat(self):
        server = ParameterServer(ADAM, *param_sizes(nets(1)[0]), 2, 1)
        server.fill(FlatParams(nets(1)[0]), [0], 0, 0.0)
        server.slot[1, 0, WRITTEN], server.slot[1, 0, TAKEN], server.counters[1, :2] = 3, 2, (7, 28)
        pair = Pair(ServerMirror(server))
        seat(pair, learner(1))
        assert pair.away.server.slot[1, 0, [WRITTEN, TAKEN]].tolist() == [3, 2]
        assert pair.away.server.counters[1, :2].tolist() == [7, 28]
        assert [pair.away._kind(item)[0].name for item, _ in pair.away.changes(0.0)] == ["LEARNER"]  # no slice again

    @pytest.mark.parametrize("w", [0, 1])
    @pytest.mark.parametrize("shards", [[0, 1], [1, 1], [0, 2], [1, 2]])
    def test_a_learner_that_is_lost_may_be_replaced_on_another_machine_and_come_back(self, shards, w):
        here, there = Machines([0, 0], [0, 0]), Machines([1 - w, w], shards)
        for machines in (here, there):
            machines.begin()
        if len(there.pairs) < 2:  # it has joined
            forget()
            there.pairs.append(Pair(ServerMirror(there.server)))
            there.pairs[1].home.relay = 1
            there.sides.append(there.pairs[1].away.server)
        for i, machine in enumerate((2, 1, 2)):
            for machines in (here, there):
                machines.leave(w, 10 * i)  # not taken yet when it is lost
                machines.carry()
            there.of_learners[w] = machine
            seat(there.pairs[machine - 1], learner(w))
            for machines in (here, there):
                machines.ends[w] = machines._end(w)
                assert machines.sweep() == [1, 1]
                for n in (1, 2):
                    machines.leave(w, 10 * i + n)
                    machines.leave(1 - w, 50 + 10 * i + n)
                    assert machines.sweep() == [2, 2]
            assert np.array_equal(whole(here.server), whole(there.server))
            assert here.server.learnt == there.server.learnt
            with there.still():
                statistics = there.sides[there.of_learners[0]].statistics
                assert np.array_equal(statistics, here.server.statistics)


class TestHold:
    def test_a_late_answer_is_none_to_the_next_question(self):
        machines = Machines([0, 0], [0, 1])
        machines.begin()
        pair, server = machines.pairs[0], machines.server
        server.head[HOLD] = 1
        pair.out()
        assert server.held(1).tolist() == [True, False]
        late = [(item, [np.array(x) for x in arrays]) for item, arrays in pair.away.changes(0.0)]
        assert kinds(late) == ["STATISTICS 1", "SHARD 1"]
        server.head[HOLD] = 3
        carry(late, pair.home)
        assert server.shard[1, HELD] == 1
        assert server.held(3).tolist() == [True, False]
        pair.out()
        pair.back()
        assert server.held(3).all()
        assert not list(pair.away.changes(0.0)), "it is said once"

    def test_a_shard_in_the_middle_of_a_gradient_is_waited_for(self):
        machines = Machines([0, 0], [0, 1])
        machines.begin()
        pair, server = machines.pairs[0], machines.server
        pair.away.server.shard[1, BUSY] = 1
        server.head[HOLD] = 1
        machines.carry()
        assert not server.held(1)[1]
        assert pair.away.server.head[HOLD] == 1
        pair.away.server.shard[1, BUSY] = 0
        machines.carry()
        assert server.held(1).all()


def rings(bell: Any) -> bool:
    rang = False
    while bell.wait(0.0):
        rang = True
    return rang


def test_bells_ring_on_the_machine_of_whom_they_wake():
    machines = Machines([0, 1], [2, 0])
    machines.begin()
    server, (first, second) = machines.server, machines.pairs
    links = server._bells.relays
    a, b = (pair.away.server._bells.relays[0] for pair in machines.pairs)
    bells = [links[0], links[1], a, b, server.bell(1), first.away.server.reply(1), second.away.server.bell(0)]

    def which() -> list[int]:
        return [i for i, bell in enumerate(bells) if rings(bell)]

    which()
    machines.leave(1, 0)
    assert which() == [2]  # there it wakes the link
    first.back()
    assert which() == [1, 4]  # at home the other link, and the shard that is here
    second.out()
    assert which() == [6]
    machines.shards[0].sweep()
    assert which() == [3]
    second.back()
    assert which() == [0]
    first.out()
    assert which() == [5]
