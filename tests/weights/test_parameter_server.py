"""A parameter server: parts that apply whole gradients by their own counts, what is dropped, what is never torn."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import Closed, UserError
from polyplay.weights import parameter_server
from polyplay.weights.parameter_server import (
    ACTIVE,
    BASE,
    BUSY,
    HOLD,
    TAKEN,
    WRITTEN,
    ParameterServer,
    ParameterShard,
    serve_parameters,
)
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import OptimizerSpec
from tests import twins
from tests.weights import ends


def made(optim: OptimizerSpec, workers: int = 2, shards: int = 2, **more: Any):
    server = ParameterServer(optim, *ends.LINE, workers, shards, **more)
    return server, *ends.ends_of(server), [ParameterShard(server, k) for k in range(shards)]


def whole(server: ParameterServer) -> np.ndarray:
    """A copy of every part as it was published last."""
    newest = server.shard[:, ACTIVE].tolist()
    return np.concatenate([server.copies[k, part] for k, part in zip(newest, server.parts, strict=True)])


def leave(bound: Any) -> None:
    """Push into free slots, with no shard at work."""
    steps = bound.apply(1.0, np.zeros(3))
    next(steps)
    ends.finish(steps)


def push(bound: Any, parts: list[ParameterShard], rate: float = 0.1) -> int:
    """A whole update while shards are at work, and its count; the version that was told."""
    bound.refresh()
    for _ in bound.apply(rate, np.zeros(3)):
        for part in parts:
            part.sweep()
    bound.counts.add(5)
    return bound.applied_to


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("name", ["adagrad", "rmsprop_tf", "adam"])
def test_learners_in_turn_are_one_local_optimizer_however_many_shards(name, shards):
    optim = OptimizerSpec(name, eps=0.1, clip=1.0)
    server, vectors, bound, parts = made(optim, 3, shards)
    alone = ends.nine_in_turn(optim, vectors, lambda i: push(bound[i], parts))
    assert np.allclose(whole(server)[: server.weights], alone.read()[: alone.weights], atol=1e-6)
    assert server.shard[:, 0].tolist() == [9] * shards
    assert [b.counts.version for b in bound] == [9, 9, 9]
    assert [b.counts.learnt for b in bound] == [45.0] * 3
    told = server.totals()
    assert told["applied"].tolist() == [9] * shards
    assert told["lags"][0] == 9 * shards
    assert bound[1].refresh() == 9
    assert np.array_equal(vectors[1].read(), whole(server))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("pgs"), st.integers(0, 5)), max_size=60)
)
def test_staleness_and_discards_are_those_of_a_plain_twin(stale, shards, events):
    """Learners pull (p) and leave gradients (g), shards sweep (s), in any order."""
    learners = 2
    server, vectors, bound, parts = made(ends.PLAIN, learners, shards, stale=stale)
    twin = twins.Shards(learners, shards, stale)
    for what, number in events:
        i, k = number % learners, number % shards
        if what == "p":
            bound[i]._pull()
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
    assert [list(b.versions) for b in bound] == twin.held


def test_a_slot_that_is_full_is_waited_for_and_the_others_are_filled_first():
    server, vectors, bound, parts = made(ends.PLAIN, 1, 3)
    vectors[0].grad.fill_(1.0)
    leave(bound[0])
    parts[1].sweep()
    steps = bound[0].apply(0.1, np.zeros(3))
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
    server, vectors, bound, parts = made(ends.PLAIN, 2, 2)
    before = whole(server)
    server.gradient[1, :11] = 7e9  # as a learner leaves it that is ends.killed before its mark
    server.slot[1, :, BASE] = 0
    assert [part.sweep() for part in parts] == [0, 0]
    assert np.array_equal(whole(server), before)
    vectors[1], bound[1] = ends.joined(server, 1, 3.0, incarnation=1)
    assert np.array_equal(vectors[1].read(), before), "it has the server's weights, not its own"
    vectors[1].grad.fill_(-1.0)
    push(bound[1], parts, 1e6)
    np.testing.assert_allclose(whole(server)[:21], 1.5, rtol=1e-3)


def test_nobody_sees_a_torn_part():
    """A gradient of all ones again and again: whoever reads must find every part even, and of its version."""
    server, vectors, bound, parts = made(ends.PLAIN, 1, 2)
    stop, seen = threading.Event(), []

    def read() -> None:
        vector = FlatParams(ends.line(0.0))
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
    server, vectors, bound, parts = made(ends.PLAIN, 2, 2)
    vectors[0].flat[21:] += 1.0
    vectors[1].flat[21:] += 10.0
    bound[1]._pull()
    for i in (0, 1, 0, 1):
        vectors[i].grad.zero_()
        push(bound[i], parts)
    assert whole(server)[21:].tolist() == [5.5] * 3 + [6.5] * 3  # a running mean from 0, a variance from 1
    bound[0].refresh()
    vectors[0].flat[21:] += 5.0  # not told yet
    vectors[1].grad.zero_()
    push(bound[1], parts)
    bound[0].refresh()
    assert vectors[0].flat[21:].tolist() == [10.5] * 3 + [11.5] * 3, "a pull forgets nothing of it"
    push(bound[0], parts)
    assert whole(server)[21:].tolist() == [8.0] * 3 + [9.0] * 3


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
    with bound[0].writers_paused():
        assert not server.shard[:, BUSY].any(), "it was waited for"
        assert [part.sweep() for part in parts] == [0, 0]
        assert np.array_equal(vectors[0].read(), kept[0])
        assert np.array_equal(server.statistics, kept[1])
    assert [part.sweep() for part in parts] == [1, 1]
    later.join()


def test_who_takes_a_lost_savers_place_lets_the_shards_go_on():
    server, vectors, bound, parts = made(ends.PLAIN, 2, 2)
    server.head[HOLD] = 1  # as one leaves it that is ends.killed while it saves
    vectors[1].grad.fill_(1.0)
    leave(bound[1])
    assert [part.sweep() for part in parts] == [0, 0]
    ends.joined(server, 0, 3.0, incarnation=1)
    assert [part.sweep() for part in parts] == [1, 1]


def test_it_stands_in_params_place_for_who_acts():
    server = ParameterServer(ends.PLAIN, *param_sizes(ends.line(0.0)), 1, 3)
    assert not server.wait(0, 0, 0.0)
    _, bound = ends.joined(server, 0, 0.5)
    parts = [ParameterShard(server, k) for k in range(3)]
    assert server.wait(0, 0, 0.0)
    actor = FlatParams(ends.line(3.0))
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
    assert server.counts.version == 1


@pytest.mark.parametrize(("given", "said"), [({"shards": 0}, "--shards: 0"), ({"shards": 22}, "1 to 21")])
def test_what_cannot_be_is_one_line(given: Any, said):
    with pytest.raises(UserError, match=said) as e:
        ParameterServer(ends.PLAIN, 21, 27, 2, **given)
    assert "\n" not in str(e.value)


# A parameter server while learners and shards really are at it, as threads and processes, and one is killed.


def _serve(server: ParameterServer, k: int) -> None:
    """A shard until the server is closed."""
    try:
        for _ in serve_parameters(ends.me(k, server.shards), server=server):
            pass
    except Closed:
        pass


def _all_there(server: ParameterServer, times: list[int]) -> None:
    until = time.monotonic() + 300
    while (server.slot[:, :, WRITTEN] != server.slot[:, :, TAKEN]).any():
        assert time.monotonic() < until
        time.sleep(0.002)
    assert server.shard[:, 0].tolist() == [sum(times)] * server.shards, "every part had every gradient"
    assert server.counters[:, 0].tolist() == times
    want = sum((i + 1.0) * n for i, n in enumerate(times)) / 1e6
    np.testing.assert_allclose(whole(server), want, rtol=2e-3)
    assert int(server.lags.sum()) == sum(times) * server.shards


def _run(server: ParameterServer, kind: Any, times: list[int]) -> None:
    shards = [kind(target=_serve, args=(server, k), daemon=True) for k in range(server.shards)]
    works = [kind(target=ends.work, args=(server, i, n), daemon=True) for i, n in enumerate(times)]
    for worker in (*shards, *works):
        worker.start()
    try:
        for worker in works:
            worker.join(300)
            assert not worker.is_alive()
        _all_there(server, times)
    finally:
        server.close()
        for worker in shards:
            worker.join(60)
    assert not any(worker.is_alive() for worker in shards)


def test_no_gradient_is_lost_and_none_comes_twice():
    server = ParameterServer(ends.PLAIN, *param_sizes(ends.Wide()), 2, shards=2)
    _run(server, ends.FORK.Process, [40, 40])
    assert server.shard[:, 0].tolist() == [80, 80]


def hang(_: Any) -> None:
    """It writes a slice, and does not say so."""
    left = iter((lambda: None, lambda: time.sleep(600)))
    parameter_server.memory_barrier = lambda: next(left)()


def test_what_a_learner_that_is_killed_was_writing_is_never_applied():
    server = ParameterServer(ends.PLAIN, *param_sizes(ends.Wide()), 2, shards=2)
    ends.work(server, 0, 0)
    with ends.killed(server, 1, hang):
        until = time.monotonic() + 300
        while not server.gradient[1].any():
            assert time.monotonic() < until
            time.sleep(0.005)
    assert server.gradient[1].max() > 1e9, "it was in the middle of it"
    _run(server, threading.Thread, [20, 20])  # one takes its place
