"""Mirrors of an all-reduce, and of what learners elsewhere set, driven by hand in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.worker import Counters, Hyperparameters
from polyplay.weights.params import param_sizes
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.hosts.mirrors import CountersMirror, FrameError, HyperparametersMirror, RemoteSeat
from polyplay.workers.hosts.weight_mirrors import AllReduceMirror
from tests.weights.ends import me
from tests.workers.hosts.by_hand import Pair, carry, forget

ADAM = OptimizerSpec("adam", clip=0.5)


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


def test_a_turn_that_cannot_be_is_refused():
    pair = Replicas(2, (1,)).pair
    assert pair is not None
    for item in (0, 4, 6, 8, -1):  # replica 0's, which is here; none
        with pytest.raises(FrameError):
            pair.home.places(item)
    head, sums = pair.home.places(3)
    head[:], sums[:] = (5, 0), 1.0
    with pytest.raises(FrameError, match="turn 5 of replica 1 after 0"):
        pair.home.arrived(3)
    assert not pair.home.reduce.sums.any()


def test_who_learns_elsewhere_keeps_its_own_part_of_the_run_that_is_left():
    pair = Pair(HyperparametersMirror(Hyperparameters(learning_rate=1.0, left=1.0)))
    seat(pair, RemoteSeat(1, 1, (1,), "bundle", "update"))
    pair.home.thing.set("learning_rate", 2.0)
    pair.home.thing.set("left", 0.7)
    pair.away.thing.set("left", 0.3)
    pair.out()
    assert pair.away.thing.all() == {"learning_rate": 2.0, "left": 0.3}


def test_counters_that_say_a_part_is_written_name_whose():
    counters = Counters(2, ())
    pair = Pair(CountersMirror(counters))
    seat(pair, RemoteSeat(5, 1, role="replica"))
    theirs = pair.away.counters.row(1)
    theirs.set("learnt", 3.0)
    assert [pair.away.answers(item) for item, _ in pair.away.changes(np.inf)] == [None]
    theirs.set("saved", 7.0)
    assert [pair.away.answers(item) for item, _ in pair.away.changes(np.inf)] == ["replica-5"]
