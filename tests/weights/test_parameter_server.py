"""A parameter server: parts that apply whole gradients by their own counts, what is dropped, what is never torn."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyplay.core.errors import Closed, UserError
from polyplay.nets.policy import RunningMoments
from polyplay.weights.parameter_server import ACTIVE, BASE, BUSY, HOLD, TAKEN, WRITTEN, ParameterServer, ParameterShard
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import Local, OptimizerSpec
from tests import twins
from tests.weights.ends import PLAIN, finish, gradients, line, me


def joined(server: ParameterServer, index: int, at: float, **more: Any):
    """A learner's vector and its end; modules differ, so learner 0's must be everyone's."""
    ctx, module = me(index, server.workers, **more), line(at)
    vector = server.vector(ctx, module)
    bound: Any = server.bind(ctx, vector)
    bound.counts.begin(0, 0.0)
    bound.counts.newest()
    return vector, bound


def made(optim: OptimizerSpec, workers: int = 2, shards: int = 2, **more: Any):
    server = ParameterServer(optim, *param_sizes(line(0.0)), workers, shards, **more)
    ends = [joined(server, i, 0.5 if i == 0 else 9.0 + i) for i in range(workers)]
    return server, [v for v, _ in ends], [b for _, b in ends], [ParameterShard(server, k) for k in range(shards)]


def whole(server: ParameterServer) -> np.ndarray:
    """A copy of every part as it was published last."""
    newest = server.shard[:, ACTIVE].tolist()
    return np.concatenate([server.copies[k, part] for k, part in zip(newest, server.parts, strict=True)])


def leave(bound: Any) -> None:
    """Push into free slots, with no shard at work."""
    steps = bound(1.0, np.zeros(3))
    next(steps)
    finish(steps)


def push(bound: Any, parts: list[ParameterShard], rate: float = 0.1) -> int:
    """A whole update while shards are at work, and its count; the version that was told."""
    bound.counts.newest()
    for _ in bound(rate, np.zeros(3)):
        for part in parts:
            part.sweep()
    return bound.counts.add(5)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("name", ["adagrad", "rmsprop_tf", "adam"])
def test_learners_in_turn_are_one_local_optimiser_however_many_shards(name, shards):
    optim = OptimizerSpec(name, eps=0.1, clip=1.0)
    server, vectors, bound, parts = made(optim, 3, shards)
    alone = FlatParams(line(0.5))
    local = Local(optim).bind(me(), alone)
    for i, gradient in enumerate(gradients(9, alone.weights)):
        vectors[i % 3].grad.copy_(gradient)
        alone.grad.copy_(gradient)
        assert push(bound[i % 3], parts) == i, "no staleness: it was made with all before it"
        finish(local(0.1, np.zeros(3)))
    assert np.allclose(whole(server)[: server.weights], alone.read()[: alone.weights], atol=1e-6)
    assert not np.allclose(alone.read()[: alone.weights], 0.5, atol=0.1)
    assert server.shard[:, 0].tolist() == [9] * shards
    assert [b.counts.version for b in bound] == [9, 9, 9]
    assert [b.counts.learnt for b in bound] == [45.0] * 3
    told = server.totals()
    assert told["applied"].tolist() == [9] * shards
    assert told["lags"][0] == 9 * shards
    assert bound[1].counts.newest() == 9
    assert np.array_equal(vectors[1].read(), whole(server))


def test_parts_are_all_of_the_vector_the_last_with_the_buffers():
    for shards in (1, 2, 5, 21):
        parts = ParameterServer(PLAIN, 21, 27, 2, shards).parts
        assert [i for p in parts for i in range(p.start, p.stop)] == list(range(27))
        assert {p.stop - p.start for p in parts[:-1]} <= {21 // shards, -(-21 // shards)}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("pgs"), st.integers(0, 5)), max_size=60)
)
def test_staleness_and_discards_are_those_of_a_plain_twin(stale, shards, events):
    """Learners pull (p) and leave gradients (g), shards sweep (s), in any order."""
    learners = 2
    server, vectors, bound, parts = made(PLAIN, learners, shards, stale=stale)
    twin = twins.Shards(learners, shards, stale)
    for what, number in events:
        i, k = number % learners, number % shards
        if what == "p":
            bound[i].counts.pull()
            twin.pull(i)
        elif what == "g":
            vectors[i].grad.fill_(-1.0)
            for j in range(shards):
                if bound[i]._write(j, bound[i].gradient.fetch(), np.zeros(6, np.float32), 1e6):
                    twin.push(i, j)
        else:
            parts[k].sweep()
            twin.sweep(k)
    told = server.totals()
    assert told["versions"].tolist() == twin.version
    assert told["stale"].tolist() == twin.dropped
    assert told["applied"].tolist() == twin.version
    lags = [lag for row in twin.lags for lag in row]
    assert told["lags"].tolist() == np.bincount(lags, minlength=64).tolist()
    assert int(told["lag_sum"]) == sum(lags)
    for part, n in zip(server.parts, twin.version, strict=True):
        own = whole(server)[part.start : min(part.stop, 21)]
        np.testing.assert_allclose(own, 0.5 + n, rtol=1e-3)
    assert [list(b.counts.versions) for b in bound] == twin.held


def test_a_gradient_can_be_too_old_for_one_shard_alone():
    _, vectors, bound, parts = made(PLAIN, 2, 2, stale=1)
    for _ in range(2):
        vectors[0].grad.fill_(1.0)
        bound[0].counts.pull()
        for k in range(2):
            bound[0]._write(k, bound[0].gradient.fetch(), np.zeros(6, np.float32), 0.1)
            parts[0].sweep()
    vectors[1].grad.fill_(1.0)
    leave(bound[1])  # made with nothing of that
    for part in parts:
        part.sweep()
    told = bound[0].server.totals()
    assert told["stale"].tolist() == [1, 0]
    assert told["versions"].tolist() == [2, 2]
    assert told["lag_max"] == 2


def test_a_slot_that_is_full_is_waited_for_and_the_others_are_filled_first():
    server, vectors, bound, parts = made(PLAIN, 1, 3)
    vectors[0].grad.fill_(1.0)
    leave(bound[0])
    parts[1].sweep()
    steps = bound[0](0.1, np.zeros(3))
    next(steps)
    next(steps)
    assert (server.slot[0, :, WRITTEN] - server.slot[0, :, TAKEN]).tolist() == [1, 1, 1]
    assert server.slot[0, :, WRITTEN].tolist() == [1, 2, 1]
    assert bound[0].waited > 0.0
    for _ in steps:
        for part in parts:
            part.sweep()
    assert server.shard[:, 0].tolist() == [2, 2, 2]


def test_what_is_half_written_is_never_applied_and_whoever_comes_next_writes_over_it():
    server, vectors, bound, parts = made(PLAIN, 2, 2)
    before = whole(server)
    server.gradient[1, :11] = 7e9  # as a learner leaves it that is killed before its mark
    server.slot[1, :, BASE] = 0
    assert [part.sweep() for part in parts] == [0, 0]
    assert np.array_equal(whole(server), before)
    vectors[1], bound[1] = joined(server, 1, 3.0, incarnation=1)
    assert np.array_equal(vectors[1].read(), before), "it has the server's weights, not its own"
    vectors[1].grad.fill_(-1.0)
    push(bound[1], parts, 1e6)
    np.testing.assert_allclose(whole(server)[:21], 1.5, rtol=1e-3)


def test_nobody_sees_a_torn_part():
    """A gradient of all ones again and again: whoever reads must find every part even, and of its version."""
    server, vectors, bound, parts = made(PLAIN, 1, 2)
    stop, seen = threading.Event(), []

    def read() -> None:
        vector = FlatParams(line(0.0))
        while not stop.is_set():
            held = server.fetch(vector, np.full(2, -1))
            flat = vector.read()
            for part, version in zip(server.parts, held, strict=True):
                own = flat[part.start : min(part.stop, 21)]
                seen.append((int(version), float(own.min()), float(own.max())))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(200):
            vectors[0].grad.fill_(-1.0)
            push(bound[0], parts, 1e6)
    finally:
        stop.set()
        reader.join(30)
    assert len({version for version, *_ in seen}) > 1
    assert all(low == high for _, low, high in seen)
    assert all(low == pytest.approx(0.5 + version, rel=1e-3) for version, low, _ in seen)


def test_floating_buffers_are_the_average_of_the_learners():
    server, vectors, bound, parts = made(PLAIN, 2, 2)
    vectors[0].flat[21:] += 1.0
    vectors[1].flat[21:] += 10.0
    bound[1].counts.pull()
    for i in (0, 1, 0, 1):
        vectors[i].grad.zero_()
        push(bound[i], parts)
    assert whole(server)[21:].tolist() == [5.5] * 3 + [6.5] * 3  # a running mean from 0, a variance from 1
    bound[0].counts.newest()
    vectors[0].flat[21:] += 5.0  # not told yet
    vectors[1].grad.zero_()
    push(bound[1], parts)
    bound[0].counts.newest()
    assert vectors[0].flat[21:].tolist() == [10.5] * 3 + [11.5] * 3, "a pull forgets nothing of it"
    push(bound[0], parts)
    assert whole(server)[21:].tolist() == [8.0] * 3 + [9.0] * 3


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_statistics_of_inputs_are_those_of_all_learners_rows(learners):
    """Each sees many rows before its first gradient, as with a replay that fills; their sum would be far too much."""

    def net() -> Any:
        return nn.Sequential(RunningMoments((2,)), nn.Linear(2, 1))

    server, draw = ParameterServer(PLAIN, *param_sizes(net()), learners), np.random.default_rng(1)
    ends = []
    for i in range(learners):
        ctx, module = me(i, learners), net()
        bound: Any = server.bind(ctx, server.vector(ctx, module))
        bound.counts.begin(0, 0.0)
        ends.append((module[0], bound))
    parts = [ParameterShard(server, 0)]
    for batches in (20, 1, 1, 1):
        for moments, bound in ends:
            bound.counts.newest()
            for _ in range(batches):
                moments.observe(torch.from_numpy(draw.normal(5.0, 2.0, (50, 2)).astype(np.float32)))
        for _, bound in ends:
            bound.vector.grad.zero_()
            push(bound, parts)
    bound.counts.newest()
    mean, deviation = moments.mean.numpy(), moments.variance().sqrt().numpy()
    assert mean == pytest.approx(5.0, abs=0.3)
    assert deviation == pytest.approx(2.0, abs=0.3)
    assert 500 < float(moments.count) < 1_200 * learners


def test_while_somebody_saves_no_shard_changes_anything():
    server, vectors, bound, parts = made(OptimizerSpec("adam", eps=0.1), 2, 2)
    vectors[1].grad.fill_(1.0)
    push(bound[1], parts)
    vectors[1].grad.fill_(1.0)
    leave(bound[1])
    kept = [x.copy() for x in (whole(server), server.statistics)]
    server.shard[1, BUSY] = 1  # one is at it
    later = threading.Timer(0.05, lambda: server.shard[:, BUSY].fill(0))
    later.start()
    with bound[0].still():
        assert not server.shard[:, BUSY].any(), "it was waited for"
        assert [part.sweep() for part in parts] == [0, 0]
        assert np.array_equal(vectors[0].read(), kept[0])
        assert np.array_equal(server.statistics, kept[1])
    assert [part.sweep() for part in parts] == [1, 1]
    later.join()


def test_who_stands_still_does_so_also_within_another_one_and_every_time_has_a_number():
    server, vectors, bound, parts = made(PLAIN, 2, 2)
    numbers = []
    for _ in range(3):
        with bound[0].still():
            numbers.append(int(server.head[HOLD]))
            with bound[0].still():
                vectors[1].grad.fill_(1.0)
                leave(bound[1])
                assert server.head[HOLD] == numbers[-1]
                assert [part.sweep() for part in parts] == [0, 0]
        assert [part.sweep() for part in parts] == [1, 1]
    assert numbers == [1, 3, 5]


def test_who_takes_a_lost_savers_place_lets_the_shards_go_on():
    server, vectors, bound, parts = made(PLAIN, 2, 2)
    server.head[HOLD] = 1  # as one leaves it that is killed while it saves
    vectors[1].grad.fill_(1.0)
    leave(bound[1])
    assert [part.sweep() for part in parts] == [0, 0]
    joined(server, 0, 3.0, incarnation=1)
    assert [part.sweep() for part in parts] == [1, 1]


def test_a_gradient_that_is_not_finite_reaches_no_shard():
    _, vectors, bound, parts = made(PLAIN)
    vectors[0].grad.fill_(float("nan"))
    steps = bound[0](0.1, np.zeros(3))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert np.isnan(end.value.value[0])
    assert [part.sweep() for part in parts] == [0, 0]


def test_it_stands_in_params_place_for_who_acts():
    server = ParameterServer(PLAIN, *param_sizes(line(0.0)), 1, 3)
    assert not server.wait(0, 0, 0.0)
    _, bound = joined(server, 0, 0.5)
    parts = [ParameterShard(server, k) for k in range(3)]
    assert server.wait(0, 0, 0.0)
    actor = FlatParams(line(3.0))
    held = server.pull(actor)
    assert held == 0
    assert np.array_equal(actor.read(), whole(server))
    bound.vector.grad.fill_(1.0)
    push(bound, parts)
    actor.flat.zero_()
    assert server.pull(actor, have=1) == 1
    assert not actor.flat.any(), "nothing is copied where nothing is new"
    assert server.pull(actor, have=0) == 1
    assert np.array_equal(actor.read(), whole(server))
    server.publish(actor, 9, 9)
    assert server.version == 1
    with pytest.raises(ValueError, match="no rounds that a lag could be bound to"):
        server.wait(1, 0, 0.0)


def test_whoever_waits_is_told_that_all_is_over():
    server, vectors, bound, _ = made(PLAIN, 1, 2)
    leave(bound[0])
    server.close()
    steps = bound[0](0.1, np.zeros(3))
    with pytest.raises(Closed):
        finish(steps)
    with pytest.raises(Closed):
        server.pull(vectors[0])


@pytest.mark.parametrize(("given", "said"), [({"shards": 0}, "--shards: 0"), ({"shards": 22}, "1 to 21")])
def test_what_cannot_be_is_one_line(given: Any, said):
    with pytest.raises(UserError, match=said) as e:
        ParameterServer(PLAIN, 21, 27, 2, **given)
    assert "\n" not in str(e.value)
