"""A parameter server's mirrors at work: by chance, by threads, and in a run."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time

import numpy as np
import pytest

import polyplay
from polyplay.core.errors import Closed
from polyplay.weights.parameter_server import HOLD, TAKEN, VERSION, WRITTEN, ParameterServer, serve_parameters
from polyplay.workers.hosts.weight_mirrors import ServerMirror
from tests.weights.ends import PLAIN, finish, me
from tests.weights.test_parameter_server import whole
from tests.workers.hosts.by_hand import Pair, forget
from tests.workers.hosts.server_machines import Machines, learner
from tests.workers.hosts.test_weight_mirrors import seat


@pytest.fixture(autouse=True)
def _machine():
    forget()


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
            self.ends[w].counts.newest()
            self.vectors[w].grad.fill_(-1.0)
            finish(self.ends[w](1e6, np.zeros(5)))
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
    for _ in range(15):
        for _ in range(100):
            machines.event()
        machines.hold()
    for _ in range(3):
        machines.sweep()
    server = machines.server
    assert np.array_equal(server.slot[:, :, WRITTEN], server.slot[:, :, TAKEN])
    applied = server.slot[:, :, WRITTEN].sum(0)
    assert applied.min() > 40
    assert (server.shard[:, VERSION] - [3, 4]).tolist() == applied.tolist() == server.totals()["applied"].tolist()
    for k, part in enumerate(server.parts):
        own = slice(part.start, min(part.stop, server.weights))
        np.testing.assert_allclose(whole(server)[own] - machines.first[own], applied[k], rtol=2e-3)
    assert server.learnt == 70.0 + 4.0 * server.counters[:, 0].sum()


def _serve(server: ParameterServer, k: int) -> None:
    with contextlib.suppress(Closed):
        finish(serve_parameters(me(k, server.shards), server=server))


def _carry(machines: Machines, side: str, stop: threading.Event) -> None:
    """As a link's thread does, of one direction."""
    while not stop.wait(0.0003):
        for pair in machines.pairs:
            with contextlib.suppress(Closed):
                getattr(pair, side)()


def _learn(machines: Machines, w: int, times: int) -> None:
    end, vector = machines.ends[w], machines.vectors[w]
    for _ in range(times):
        end.counts.newest()
        vector.grad.fill_(-1.0)
        finish(end(1e6, np.zeros(5)))
        end.counts.add(1.0)


def test_while_all_are_at_work_no_gradient_is_lost_and_who_saves_sees_no_part_between_two():
    machines = Machines([0, 1, 0], [1, 2], PLAIN)
    machines.begin()
    stop, machines.shards = threading.Event(), []
    first = machines.vectors[0].flat.clone()
    works = [threading.Thread(target=_carry, args=(machines, side, stop)) for side in ("out", "back")]
    works += [threading.Thread(target=_serve, args=(machines.sides[m], k)) for k, m in enumerate(machines.of_shards)]
    learners = [threading.Thread(target=_learn, args=(machines, w, 40)) for w in (1, 2)]
    for thread in works + learners:
        thread.start()
    try:
        for _ in range(5):
            _learn(machines, 0, 4)
            with machines.ends[0].still():
                told, flat = machines.server.shard[:, VERSION].copy(), machines.vectors[0].flat
                for k, part in enumerate(machines.server.parts):
                    own = slice(part.start, min(part.stop, machines.server.weights))
                    change = (flat[own] - first[own]).numpy()
                    np.testing.assert_allclose(change, told[k] - 3 - k, rtol=2e-3)
                kept = machines.server.statistics.copy()
                time.sleep(0.01)
                assert np.array_equal(machines.server.statistics, kept)
                assert np.array_equal(machines.server.shard[:, VERSION], told)
        for thread in learners:
            thread.join(60)
        until = time.monotonic() + 60
        while machines.server.counters[:, 0].sum() < 100 or (machines.server.totals()["applied"] < 100).any():
            assert time.monotonic() < until
            time.sleep(0.002)
    finally:
        for side in machines.sides:
            side.close()
        stop.set()
        for thread in works + learners:
            thread.join(30)
    assert machines.server.counters[:, 0].tolist() == [20, 40, 40]
    assert machines.server.totals()["applied"].tolist() == [100, 100]


@pytest.mark.long
@pytest.mark.parametrize(
    "places",
    ["serve_parameters=pretend-1", "serve_parameters[0]=pretend-1,serve_parameters[1]=pretend-2"],
)
def test_a_run_learns_by_shards_elsewhere_and_goes_on_without_them(tmp_path, places):
    settings = {"env": "toy:catch", "network": "mlp", "learners": 2, "start": 300, "capacity": 5000, "quiet": True}
    run = tmp_path / "run"
    polyplay.train("gorila", **settings, steps=2000, hosts="pretend:2", place=places, run=str(run))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["grads_applied"] == 2 * last["shard_updates_max"] > 1500
    saved = sorted((run / "checkpoints").glob("0*"))[-1]
    versions = json.loads((saved / "agents" / "0" / "learner.json").read_text())["shards"]
    assert max(versions) <= last["shard_updates_max"]
    assert min(versions) > last["shard_updates_max"] - 20
    polyplay.resume(str(run), steps=2500, hosts="none")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["shard_updates_min"] >= min(versions)
