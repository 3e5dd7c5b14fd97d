"""Weights changed without waiting: Hogwild, and a central vector in chunks."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.core import checkpoint
from polyplay.core.errors import Closed
from polyplay.core.shared_memory import RobustLocks
from polyplay.core.worker import Hyperparameters
from polyplay.learning.learner import Learner
from polyplay.weights.hogwild import Chunked, Hogwild
from polyplay.weights.optimizers import optimizer_state
from polyplay.weights.params import SharedArrays, param_sizes
from polyplay.weights.update import Local, OptimizerSpec
from tests.weights.ends import (
    FORK,
    LINE,
    PLAIN,
    POLICY,
    Wide,
    ends_of,
    finish,
    joined,
    line,
    me,
    nine_in_turn,
    some_rows,
    task,
)


def _arrays(update: SharedArrays) -> list[np.ndarray]:
    return [getattr(update, name) for name in update._places]


KINDS = {
    "hogwild": Hogwild,
    "hogwild, no copies": partial(Hogwild, copy=False),
    **{f"{n} chunks": partial(Chunked, chunks=n) for n in (1, 3, 7)},
}
A3C = OptimizerSpec("rmsprop_a3c", eps=0.1)


def push(bound: Any, steps: int = 5) -> int:
    """One whole update and its count; the version that it met."""
    finish(bound(0.1, np.zeros(3)))
    return bound.add(steps)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["rmsprop_a3c", "rmsprop_tf", "adam"])
def test_workers_in_turn_on_shared_weights_and_statistics_are_one_learner(name, kind):
    optim = OptimizerSpec(name, eps=0.1, clip=1.0)
    update = kind(optim, *LINE, 3)
    vectors, bound = ends_of(update)
    alone = nine_in_turn(optim, vectors, lambda i: push(bound[i]))
    assert np.allclose(update.shared, alone.read(), atol=1e-6)
    assert [b.version for b in bound] == [9, 9, 9]
    assert [b.learnt for b in bound] == [45.0, 45.0, 45.0]
    assert update.counters[:, :2].tolist() == [[3, 15]] * 3, "each wrote its own cells"
    if isinstance(update, Chunked):
        assert np.array_equal(vectors[2].read(), update.shared), "who was last leaves with what there is"
        assert update.done.tolist() == [9] * update.chunks


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Hogwild, Chunked])
def test_a_gradient_that_is_not_finite_changes_nothing_that_is_shared(kind, wrong):
    update = kind(A3C, *LINE, 2)
    vectors, bound = ends_of(update)
    before = [x.copy() for x in _arrays(update)]
    vectors[1].grad.fill_(1.0)
    vectors[1].grad[-1] = wrong
    finish(bound[1](0.1, np.zeros(3)))
    assert all(np.array_equal(x, y) for x, y in zip(_arrays(update), before, strict=True))
    if isinstance(update, Chunked):
        assert all(RobustLocks(update.locks).acquire(i) for i in range(3))


# ---------------------------------------------------------------------------------------------------------- Hogwild
def test_a_copy_stays_as_it_is_until_the_next_rollout():
    update = Hogwild(A3C, *LINE, 2)
    vectors, bound = ends_of(update)
    assert torch.equal(vectors[1].flat, vectors[0].flat), "worker 0's first weights are everyone's"
    held = vectors[1].flat.clone()
    vectors[0].grad.fill_(1.0)
    push(bound[0])
    assert torch.equal(vectors[1].flat, held)
    assert torch.equal(vectors[0].flat, held), "its own too: gradients go into the shared ones"
    assert bound[1].newest() == 1
    assert np.array_equal(vectors[1].read(), update.shared)
    assert not torch.equal(vectors[1].flat, held)


def test_a_worker_that_takes_a_lost_ones_place_resets_nothing():
    update = Hogwild(OptimizerSpec("adam", eps=0.1), *LINE, 2)
    vectors, bound = ends_of(update)
    for i in range(4):
        vectors[i % 2].grad.fill_(1.0 + i)
        push(bound[i % 2])
    before = [x.copy() for x in _arrays(update)]
    assert before[1].any()
    vector, again = joined(update, 0, -3.0, incarnation=1)
    assert not again.fresh
    assert all(np.array_equal(x, y) for x, y in zip(_arrays(update), before, strict=True))
    assert again.newest() == 4
    assert np.array_equal(vector.read(), update.shared)
    vector.grad.fill_(1.0)
    assert push(again) == 4
    assert float(optimizer_state(again.optimizer)["step"]) == 5.0, "Adam's count is that of all workers"


def test_modules_in_one_memory_have_their_own_gradients_and_graphs():
    update = Hogwild(A3C, *LINE, 2, copy=False)
    vectors, bound = ends_of(update)
    one, two = (v.module for v in vectors)
    assert torch.equal(one[0].weight, two[0].weight)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    loss = two(x).square().sum()  # its graph holds the weights,
    one(x).sum().backward()
    assert not vectors[1].grad.any()
    finish(bound[0](0.1, np.zeros(3)))  # which another thread changes meanwhile:
    loss.backward()  # no error
    assert vectors[1].grad.any()
    assert np.shares_memory(vectors[0].read(), update.shared)
    assert np.array_equal(vectors[1].read(), update.shared)


def learners(update: Any, total: float = 1e9, **ctx: Any) -> list[Learner]:
    spec = task(update, total)
    found = [Learner(me(i, update.workers, **ctx), spec) for i in range(update.workers)]
    for learner in found:
        learner.update.newest()
    return found


def learn(learner: Learner, seed: int, version: int | None = None) -> None:
    finish(learner.step(some_rows(seed, B=1, version=learner.update.newest() if version is None else version), {}))


def test_lag_annealing_and_the_end_follow_all_workers_together():
    one, two = learners(Hogwild(OptimizerSpec("adam", eps=1e-3), *param_sizes(POLICY()), 2), 40.0)
    for i in range(3):
        learn(one, i, i)
    assert one.ctx.counters.get("lag_max") == 0
    assert one.rate() == pytest.approx(1e-2 * (1 - 12 / 40))
    learn(two, 9, 0)
    assert two.ctx.counters.get("lag_max") == 3, "three updates were made since its weights were copied"
    assert (two.version, two.learnt) == (4, 16.0)
    assert two.ctx.counters.get("updates") == 4
    for i in range(6):
        assert not two.done
        learn(two, i, 4)
    assert two.done
    assert two.rate() == 0.0
    learn(one, 1, 3)
    assert one.done, "though it learnt from 16 of 44 steps itself"


def test_others_wait_for_the_first_weights_and_can_be_told_to_stop():
    update = Hogwild(OptimizerSpec("adam"), *param_sizes(POLICY()), 2)
    spec = replace(task(update), hyperparameters=Hyperparameters(learning_rate=0.0, entropy_cost=0.0))
    ctx = me(1, 2)
    found: list = []
    waits = threading.Thread(target=lambda: found.append(Learner(ctx, spec)))
    waits.start()
    waits.join(0.1)
    assert not found
    first = Learner(me(0, 2, seed=7), spec)
    waits.join(30)
    found[0].update.newest()
    assert torch.equal(found[0].vector.flat, first.vector.flat)
    alone = me(1, 2)
    alone.control.halt()
    with pytest.raises(Closed):
        Learner(alone, replace(spec, update=Hogwild(OptimizerSpec("adam"), *param_sizes(POLICY()), 2)))


@pytest.mark.parametrize("kind", [Hogwild, Chunked])
@pytest.mark.parametrize("name", ["adam", "rmsprop_tf"])
def test_worker_0_saves_for_all_and_what_it_saved_is_loaded_once(name, kind, tmp_path):
    sizes = param_sizes(POLICY())
    update, again = (kind(OptimizerSpec(name, eps=1e-3), *sizes, 2) for _ in range(2))
    one, two = learners(update, directory=tmp_path)
    for i in range(3):
        learn(one, i)
        learn(two, i)
    learn(one, 4)  # the copy of a Chunked one is the central vector then
    two.save()
    assert [p.name for p in checkpoint.partials(tmp_path)] == [".partial-000000000000"]  # worker 0's, of the beginning
    one.save()
    path = checkpoint.complete(tmp_path, one.version, {})
    weights, statistics = update.shared[: sizes[0]].copy(), update.statistics.copy()
    learn(two, 5)
    third, fourth = learners(again, resume=path)
    assert np.array_equal(again.shared[: sizes[0]], weights)
    assert np.array_equal(again.statistics, statistics)
    assert (fourth.version, fourth.learnt, third.ctx.counters.get("updates")) == (7, 28.0, 0.0)
    learn(fourth, 5)
    assert (fourth.version, fourth.ctx.counters.get("updates")) == (8, 1), "updates are those of this run"
    if name == "adam":
        optimizer = fourth.update.optimizers[0] if kind is Chunked else fourth.update.optimizer
        assert float(optimizer_state(optimizer)["step"]) == 8.0
    removed = checkpoint.checkpoints_dir(tmp_path) / checkpoint.directory_name(1, {})  # since a newer one came
    replaced = Learner(me(0, 2, incarnation=1, directory=tmp_path, resume=removed), fourth.spec)
    assert (replaced.version, replaced.update.newest()) == (8, 8)


# A central vector in chunks: whole updates by whoever claims a chunk, counted, outliving who dies in one.


def made(optim: OptimizerSpec, workers: int = 2, chunks: int = 3):
    update = Chunked(optim, *LINE, workers, chunks)
    return update, *ends_of(update)


def test_own_weights_are_renewed_by_an_own_update_only():
    update, vectors, bound = made(OptimizerSpec("rmsprop_a3c", eps=0.1))
    assert torch.equal(vectors[1].flat, vectors[0].flat), "worker 0's first weights are everyone's"
    held = vectors[1].flat.clone()
    for _ in range(3):
        vectors[0].grad.fill_(1.0)
        push(bound[0])
    assert bound[1].newest() == 0
    assert torch.equal(vectors[1].flat, held)
    assert np.array_equal(vectors[0].read(), update.shared)
    vectors[1].grad.fill_(1.0)
    assert push(bound[1]) == 3, "all three came between"
    assert np.array_equal(vectors[1].read(), update.shared), "it has theirs and its own now"
    assert bound[1].newest() == 4
    assert bound[0].newest() == 3


def test_a_chunk_that_another_is_in_is_waited_for_and_the_others_are_done_first():
    update, vectors, bound = made(PLAIN)
    parts, before = update.parts(), update.shared.copy()
    other = RobustLocks(update.locks)
    assert other.acquire(0)
    vectors[0].grad.fill_(1.0)
    held = vectors[0].read().copy()
    steps = bound[0](0.1, np.zeros(3))
    next(steps)
    next(steps)
    central, done = update.shared, update.done
    assert done.tolist() == [0, 1, 1]
    for vector in (central, vectors[0].read()):
        assert np.array_equal(vector[parts[0]], before[parts[0]])
        assert (vector[parts[1]] != held[parts[1]]).all(), "renewed per chunk"
    assert bound[0].waited > 0.0
    other.release(0)
    finish(steps)
    assert done.tolist() == [1, 1, 1]
    assert np.array_equal(vectors[0].read(), central)
    assert (central[: update.weights] != before[: update.weights]).all()


@pytest.mark.parametrize("chunked", [False, True])
def test_the_gradient_is_clipped_by_its_global_norm_not_by_a_chunks(chunked):
    optim = OptimizerSpec("rmsprop_torch", eps=1e6, alpha=0.0, clip=0.5)
    update = Chunked(optim, *LINE, 1) if chunked else Local(optim)
    vector = update.vector(me(), line(0.5))
    bound = update.bind(me(), vector)
    bound.begin(0, 0.0)
    bound.newest()
    before = vector.flat.clone()
    vector.grad[0], vector.grad[-1] = 3.0, 4.0  # in the first and in the last chunk
    steps = bound(1e6, np.zeros(3))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value[0] == 5.0
    moved = before - vector.flat
    assert moved[[0, vector.weights - 1]].tolist() == pytest.approx([0.3, 0.4], abs=1e-4)


def test_lag_counts_the_most_updates_that_a_chunk_had_and_the_least_that_its_copy_has():
    """Of two updates that cross each other: the first waits for chunk 0, and the second is made meanwhile."""
    update, vectors, bound = made(PLAIN)
    other = RobustLocks(update.locks)
    for vector in vectors:
        vector.grad.fill_(1.0)
    assert other.acquire(0)
    steps = bound[0](0.1, np.zeros(3))
    next(steps)
    other.release(0)
    assert update.done.tolist() == [0, 1, 1]
    assert push(bound[1]) == 1, "that met none in chunk 0, and one in the others"
    assert bound[1].newest() == 1, "it has one update of chunk 0, and two of the others"
    finish(steps)
    assert update.done.tolist() == [2, 2, 2]
    assert bound[0].add(5) == 1
    assert bound[0].newest() == 1, "it has two updates of chunk 0, and one of the others"
    assert push(bound[1]) == 2
    assert bound[1].newest() == 3


# A central vector in chunks while several workers really are at it: nothing is lost, nobody is kept waiting.


def _work(update: Chunked, index: int, times: int, control: Any = None) -> float:
    """`times` updates by +1·(index+1)·lr/ε; seconds that it waited for a chunk."""
    ctx = me(index, update.workers)
    vector = update.vector(ctx, Wide())
    bound: Any = update.bind(ctx, vector)
    bound.begin(0, 0.0)
    while not bound.ready:
        time.sleep(0.001)
    bound.newest()
    for _ in range(times):
        vector.grad.fill_(-(index + 1.0))
        finish(bound(1.0, np.zeros(3)))
        bound.add(2)
    return bound.waited


def _all_there(update: Chunked, times: list[int]) -> None:
    central, counters, done = update.shared, update.counters[:, :2], update.done
    assert done.tolist() == [sum(times)] * update.chunks, "every chunk had every update"
    assert counters[:, 0].tolist() == times
    want = sum((i + 1.0) * n for i, n in enumerate(times)) / 1e6
    np.testing.assert_allclose(central, want, rtol=2e-3)


def test_no_update_of_processes_is_lost():
    update = Chunked(PLAIN, *param_sizes(Wide()), 2)
    worker = FORK.Process(target=_work, args=(update, 1, 300))
    worker.start()
    _work(update, 0, 300)
    worker.join(60)
    assert worker.exitcode == 0
    _all_there(update, [300, 300])


def _die(update: Chunked, index: int) -> None:
    """Updates until it is killed in the middle of a chunk."""
    ctx = me(index, update.workers)
    vector = update.vector(ctx, Wide())
    bound: Any = update.bind(ctx, vector)
    bound.newest()
    bound.optimizers[1].step = lambda: time.sleep(600)
    vector.grad.fill_(-1.0)
    finish(bound(1.0, np.zeros(3)))


def test_a_worker_that_is_killed_in_a_chunk_keeps_it_from_nobody():
    update = Chunked(PLAIN, *param_sizes(Wide()), 2)
    _work(update, 0, 5)
    worker = FORK.Process(target=_die, args=(update, 1), daemon=True)
    worker.start()
    try:
        until, mine = time.monotonic() + 60, RobustLocks(update.locks)
        while mine.acquire(1):
            mine.release(1)
            assert time.monotonic() < until
            time.sleep(0.005)
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(60)
    _work(update, 0, 5)
    counters, done = update.counters[:, :2], update.done
    assert done.tolist() == [10, 10, 10], "it was in its first chunk, number 1"
    assert counters[:, 0].tolist() == [10, 0]
    _work(update, 1, 5)  # who takes its place
    assert done.tolist() == [15] * 3
