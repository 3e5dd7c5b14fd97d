"""Replicas that average their gradients; weights changed without waiting: Hogwild, and a central vector in chunks."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core import checkpoint
from polyplay.core.errors import Closed, Leaving
from polyplay.core.shared_memory import RobustLocks
from polyplay.core.worker import Hyperparameters
from polyplay.learning.learner import Learner
from polyplay.weights import optimizers, update
from polyplay.weights.optimizers import optimizer_state
from polyplay.weights.params import FlatParams, SharedArrays, param_sizes
from polyplay.weights.update import LEAVING, AllReduce, Chunked, Hogwild, Local, OptimizerSpec, _Whole
from tests.weights import ends


def ended(steps: Any) -> Any:
    """What it gives at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def together(n: int, work: Callable[[int], object]) -> list[Any]:
    """What work(0) … work(n - 1) give, each in a thread of its own."""
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n), timeout=30))


def replicas(reduce: Any, n: int, weights: int) -> tuple[list[FlatParams], list[Any]]:
    """Vectors, all 0.5, and their ends."""
    bound = [reduce.open(ends.me(i, n), nn.Linear(weights - 1, 1)) for i in range(n)]
    for one in bound:
        one.vector.flat.fill_(0.5)
    return [one.vector for one in bound], bound


@pytest.mark.parametrize("n", [1, 2])
def test_replicas_agree_without_an_update_and_go_on_with_one(n):
    """Agreeing changes no weight, and what comes after it is as if it had not been."""
    update = Local(ends.OPTIM) if n == 1 else AllReduce(ends.OPTIM, n, 40)
    vectors, bound = replicas(update, n, 40)

    def work(i: int) -> list:
        heard = []
        for turn in range(4):
            heard.append(ended(bound[i].agree(np.array([i + 1.0, turn]))).tolist())
            assert vectors[i].flat.eq(0.5).all() or turn > 1
            if turn == 1:
                vectors[i].grad.fill_(i + 1.0)
                heard.append(ended(bound[i].apply(0.1, np.array([10.0, 0.0])))[1].tolist())
        return heard

    heard = together(n, work)
    rows = sum(range(1, n + 1))
    turns = [[float(rows), float(n * turn)] for turn in range(4)]
    assert heard[0] == heard[n - 1] == [*turns[:2], [10.0 * n, 0.0], *turns[2:]]
    assert not vectors[0].flat.eq(0.5).any()
    assert torch.equal(vectors[0].flat, vectors[-1].flat)


@pytest.mark.parametrize("name", ["adam", "adam_clipped", "rmsprop_tf", "rmsprop_dqn"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("weights", [5001, 41])  # of 41 the first replica has none
def test_each_replica_s_part_of_the_step_makes_the_whole_one(name, clip, weights):
    """Weights, statistics and norm are those of one optimizer of everything."""
    what = OptimizerSpec(name, eps=1e-3, clip=clip)
    vectors, bound = replicas(AllReduce(what, 3, weights), 3, weights)
    [alone], [local] = replicas(Local(what), 1, weights)
    for turn in range(4):
        parts = torch.randn(3, weights, generator=torch.Generator().manual_seed(turn))
        for v, part in zip(vectors, parts, strict=True):
            v.grad.copy_(part)
        norms = [norm for norm, _ in together(3, lambda i: ended(bound[i].apply(0.1, np.zeros(3))))]
        alone.grad.copy_(parts.sum(0) / 3)
        norm, _ = ended(local.apply(0.1, np.zeros(3)))
        assert norms == [pytest.approx(norm, rel=1e-5)] * 3
        assert torch.equal(vectors[0].flat, vectors[1].flat)
        assert torch.equal(vectors[0].flat, vectors[2].flat)
        assert torch.allclose(vectors[0].flat, alone.flat, atol=1e-5)
    held = optimizers.optimizer_state(local.optimizer)
    for b in bound:
        assert held.keys() == optimizers.optimizer_state(b.optimizer).keys()
        assert all(torch.allclose(held[k], v, atol=1e-5) for k, v in optimizers.optimizer_state(b.optimizer).items())


def test_who_comes_late_to_a_resumed_run_leaves_the_weights_that_another_has_loaded(tmp_path):
    reduce = AllReduce(ends.OPTIM, 2, 40)
    early = reduce.open(ends.me(0, 2, resume=tmp_path), nn.Linear(39, 1))
    early.vector.flat.fill_(0.5)  # as loading does
    late = reduce.open(ends.me(1, 2, resume=tmp_path), layer := nn.Linear(39, 1))
    assert late.vector.flat.eq(0.5).all()
    assert layer.weight.eq(0.5).all()


def test_a_gradient_that_is_not_finite_anywhere_changes_no_replica():
    vectors, bound = replicas(AllReduce(OptimizerSpec("adam"), 2, 100), 2, 100)
    vectors[1].grad[99] = float("nan")  # of replica 1's part
    together(2, lambda i: ended(bound[i].apply(0.1, np.zeros(3))))
    assert all(v.flat.eq(0.5).all() for v in vectors)


def test_all_reduce_that_waits_can_be_told_to_stop():
    reduce = AllReduce(ends.OPTIM, 2, 40)
    bound = reduce.open(ends.me(0, 2), nn.Linear(39, 1))
    steps = bound.apply(0.1, np.zeros(3))
    next(steps)
    reduce.close()
    with pytest.raises(Closed):
        ends.finish(steps)


# What NCCL does between GPUs, done by gloo between processes; and who takes it.


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5))
        self.register_buffer("seen", torch.zeros(2))


def _rank(place: str, rank: int, pipe) -> None:
    vector = FlatParams(Net())
    vector.grad.fill_(float(rank + 1))
    vector.flat[5:] = 10.0 * rank
    end = update.NcclGroup(place, rank, 2, vector, "gloo")
    waited = end.average()
    pipe.send((vector.grad.tolist(), vector.flat.tolist(), waited > 0.0))
    torch.distributed.destroy_process_group()


def test_means_of_gradients_and_buffers(tmp_path):
    pipes, place, children = [], str(tmp_path / "place"), []
    for rank in range(2):
        here, there = ends.FORK.Pipe(duplex=False)
        children.append(ends.FORK.Process(target=_rank, args=(place, rank, there)))
        children[-1].start()
        pipes.append(here)
    found = [end.recv() if end.poll(60) else None for end in pipes]
    for child in children:
        child.join(30)
    assert found[0] == found[1]
    gradient, flat, waited = found[0]
    assert waited
    assert gradient == [1.5] * 5
    assert flat == [0.0] * 5 + [5.0] * 2


class Averages:
    """A group without GPUs: it counts who has entered it."""

    entered = 0

    def average(self) -> float:
        Averages.entered += 1
        return 0.0


@pytest.mark.parametrize("leaver", [None, 0, 1], ids=["nobody", "the first", "the second"])
def test_nobody_enters_it_to_wait_for_a_replica_that_leaves(leaver, monkeypatch):
    """A stop in a slow rollout: who is in it has no gradient, the other one has, and neither waits for the other."""
    monkeypatch.setattr(update, "fits", lambda device, replicas: True)
    monkeypatch.setattr(update, "NcclGroup", lambda *about: Averages())
    monkeypatch.setattr(Averages, "entered", 0)
    reduce = AllReduce(OptimizerSpec("adam"), 2, param_sizes(Net())[1])
    both = [_Whole(reduce, ends.me(i, 2), FlatParams(Net())) for i in range(2)]
    turns = {}
    for i, end in enumerate(both):
        sums = np.zeros(6)
        sums[0], sums[LEAVING] = i + 1.0, i == leaver
        turns[i] = end.agree(sums) if i == leaver else end.apply(0.1, sums)
    found = dict[int, object]()
    while len(found) < 2:
        for i in turns.keys() - found.keys():
            try:
                next(turns[i])
            except StopIteration as e:
                found[i] = e.value[1].tolist()
            except Leaving:
                found[i] = "leaves"
    if leaver is None:
        assert found == {0: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
    else:
        assert found == {0: "leaves", 1: "leaves"}
    assert Averages.entered == (2 if leaver is None else 0)


@pytest.mark.parametrize(("device", "gpus", "process", "takes"), [
    ("cuda:0", 2, True, True),
    ("cuda:0", 1, True, False),  # two on one GPU
    ("cuda:0", 2, False, False),  # threads are all on the first
    ("cpu", 2, True, False),
])  # fmt: skip
def test_replicas_with_a_gpu_each_take_it(device, gpus, process, takes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if process else None)
    assert update.fits(torch.device(device), 2) is takes


# Weights changed without waiting: Hogwild, and a central vector in chunks.


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
    ends.finish(bound.apply(0.1, np.zeros(3)))
    met = bound.counts.version if bound.applied_to is None else bound.applied_to
    bound.counts.add(steps)
    return met


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["rmsprop_a3c", "rmsprop_tf", "adam"])
def test_workers_in_turn_on_shared_weights_and_statistics_are_one_learner(name, kind):
    optim = OptimizerSpec(name, eps=0.1, clip=1.0)
    update = kind(optim, *ends.LINE, 3)
    vectors, bound = ends.ends_of(update)
    alone = ends.nine_in_turn(optim, vectors, lambda i: push(bound[i]))
    assert np.allclose(update.shared, alone.read(), atol=1e-6)
    assert [b.counts.version for b in bound] == [9, 9, 9]
    assert [b.counts.learnt for b in bound] == [45.0, 45.0, 45.0]
    assert update.counters[:, :2].tolist() == [[3, 15]] * 3, "each wrote its own cells"
    if isinstance(update, Chunked):
        assert np.array_equal(vectors[2].read(), update.shared), "who was last leaves with what there is"
        assert update.done.tolist() == [9] * update.chunks


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Hogwild, Chunked])
def test_a_gradient_that_is_not_finite_changes_nothing_that_is_shared(kind, wrong):
    update = kind(A3C, *ends.LINE, 2)
    vectors, bound = ends.ends_of(update)
    before = [x.copy() for x in _arrays(update)]
    vectors[1].grad.fill_(1.0)
    vectors[1].grad[-1] = wrong
    ends.finish(bound[1].apply(0.1, np.zeros(3)))
    assert all(np.array_equal(x, y) for x, y in zip(_arrays(update), before, strict=True))
    if isinstance(update, Chunked):
        assert all(RobustLocks(update.locks).acquire(i) for i in range(3))


# ---------------------------------------------------------------------------------------------------------- Hogwild
def test_a_copy_stays_as_it_is_until_the_next_rollout():
    update = Hogwild(A3C, *ends.LINE, 2)
    vectors, bound = ends.ends_of(update)
    assert torch.equal(vectors[1].flat, vectors[0].flat), "worker 0's first weights are everyone's"
    held = vectors[1].flat.clone()
    vectors[0].grad.fill_(1.0)
    push(bound[0])
    assert torch.equal(vectors[1].flat, held)
    assert torch.equal(vectors[0].flat, held), "its own too: gradients go into the shared ones"
    assert bound[1].refresh() == 1
    assert np.array_equal(vectors[1].read(), update.shared)
    assert not torch.equal(vectors[1].flat, held)


def test_a_worker_that_takes_a_lost_ones_place_resets_nothing():
    update = Hogwild(OptimizerSpec("adam", eps=0.1), *ends.LINE, 2)
    vectors, bound = ends.ends_of(update)
    for i in range(4):
        vectors[i % 2].grad.fill_(1.0 + i)
        push(bound[i % 2])
    before = [x.copy() for x in _arrays(update)]
    assert before[1].any()
    vector, again = ends.joined(update, 0, -3.0, incarnation=1)
    assert not again.counts.fresh
    assert all(np.array_equal(x, y) for x, y in zip(_arrays(update), before, strict=True))
    assert again.refresh() == 4
    assert np.array_equal(vector.read(), update.shared)
    vector.grad.fill_(1.0)
    assert push(again) == 4
    assert float(optimizer_state(again.optimizer)["step"]) == 5.0, "Adam's count is that of all workers"


def test_modules_in_one_memory_have_their_own_gradients_and_graphs():
    update = Hogwild(A3C, *ends.LINE, 2, copy=False)
    vectors, bound = ends.ends_of(update)
    one, two = (v.module for v in vectors)
    assert torch.equal(one[0].weight, two[0].weight)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    loss = two(x).square().sum()  # its graph holds the weights,
    one(x).sum().backward()
    assert not vectors[1].grad.any()
    ends.finish(bound[0].apply(0.1, np.zeros(3)))  # which another thread changes meanwhile:
    loss.backward()  # no error
    assert vectors[1].grad.any()
    assert np.shares_memory(vectors[0].read(), update.shared)
    assert np.array_equal(vectors[1].read(), update.shared)


def learners(update: Any, total: float = 1e9, **ctx: Any) -> list[Learner]:
    spec = ends.task(update, total)
    found = [Learner(ends.me(i, update.workers, **ctx), spec) for i in range(update.workers)]
    for learner in found:
        learner.update.refresh()
    return found


def learn(learner: Learner, seed: int, version: int | None = None) -> None:
    ends.finish(
        learner.step(ends.some_rows(seed, B=1, version=learner.update.refresh() if version is None else version), {})
    )


def test_lag_annealing_and_the_end_follow_all_workers_together():
    one, two = learners(Hogwild(OptimizerSpec("adam", eps=1e-3), *param_sizes(ends.POLICY()), 2), 40.0)
    for i in range(3):
        learn(one, i, i)
    assert one.ctx.counters.get("lag_max") == 0
    one.adjust()
    assert one.run.hyper["learning_rate"] == pytest.approx(1e-2 * (1 - 12 / 40))
    learn(two, 9, 0)
    assert two.ctx.counters.get("lag_max") == 3, "three updates were made since its weights were copied"
    assert (two.version, two.learnt) == (4, 16.0)
    assert two.ctx.counters.get("updates") == 4
    for i in range(6):
        assert not two.done
        learn(two, i, 4)
    assert two.done
    two.adjust()
    assert two.run.hyper["learning_rate"] == 0.0
    learn(one, 1, 3)
    assert one.done, "though it learnt from 16 of 44 steps itself"


def test_others_wait_for_the_first_weights_and_can_be_told_to_stop():
    update = Hogwild(OptimizerSpec("adam"), *param_sizes(ends.POLICY()), 2)
    spec = replace(ends.task(update), hyperparameters=Hyperparameters(learning_rate=0.0, entropy_cost=0.0))
    ctx = ends.me(1, 2)
    found: list = []
    waits = threading.Thread(target=lambda: found.append(Learner(ctx, spec)))
    waits.start()
    waits.join(0.1)
    assert not found
    first = Learner(ends.me(0, 2, seed=7), spec)
    waits.join(30)
    found[0].update.refresh()
    assert torch.equal(found[0].update.vector.flat, first.update.vector.flat)
    alone = ends.me(1, 2)
    alone.control.halt()
    with pytest.raises(Closed):
        Learner(alone, replace(spec, update=Hogwild(OptimizerSpec("adam"), *param_sizes(ends.POLICY()), 2)))


@pytest.mark.parametrize("kind", [Hogwild, Chunked])
@pytest.mark.parametrize("name", ["adam", "rmsprop_tf"])
def test_worker_0_saves_for_all_and_what_it_saved_is_loaded_once(name, kind, tmp_path):
    sizes = param_sizes(ends.POLICY())
    update, again = (kind(OptimizerSpec(name, eps=1e-3), *sizes, 2) for _ in range(2))
    one, two = learners(update, directory=tmp_path)
    for i in range(3):
        learn(one, i)
        learn(two, i)
    learn(one, 4)  # the copy of a Chunked one is the central vector then
    two.checkpoints.save()
    assert [p.name for p in checkpoint.partials(tmp_path)] == [".partial-000000000000"]  # worker 0's, of the beginning
    one.checkpoints.save()
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
    replaced = Learner(ends.me(0, 2, incarnation=1, directory=tmp_path, resume=removed), fourth.spec)
    assert (replaced.version, replaced.update.refresh()) == (8, 8)


# A central vector in chunks: whole updates by whoever claims a chunk, counted, outliving who dies in one.


def made(optim: OptimizerSpec, workers: int = 2, chunks: int = 3):
    update = Chunked(optim, *ends.LINE, workers, chunks)
    return update, *ends.ends_of(update)


def test_a_chunk_that_another_is_in_is_waited_for_and_the_others_are_done_first():
    update, vectors, bound = made(ends.PLAIN)
    parts, before = update.parts(), update.shared.copy()
    other = RobustLocks(update.locks)
    assert other.acquire(0)
    vectors[0].grad.fill_(1.0)
    held = vectors[0].read().copy()
    steps = bound[0].apply(0.1, np.zeros(3))
    next(steps)
    next(steps)
    central, done = update.shared, update.done
    assert done.tolist() == [0, 1, 1]
    for vector in (central, vectors[0].read()):
        assert np.array_equal(vector[parts[0]], before[parts[0]])
        assert (vector[parts[1]] != held[parts[1]]).all(), "renewed per chunk"
    assert bound[0].waited > 0.0
    other.release(0)
    ends.finish(steps)
    assert done.tolist() == [1, 1, 1]
    assert np.array_equal(vectors[0].read(), central)
    assert (central[: update.weights] != before[: update.weights]).all()


def test_lag_counts_the_most_updates_that_a_chunk_had_and_the_least_that_its_copy_has():
    """Of two updates that cross each other: the first waits for chunk 0, and the second is made meanwhile."""
    update, vectors, bound = made(ends.PLAIN)
    other = RobustLocks(update.locks)
    for vector in vectors:
        vector.grad.fill_(1.0)
    assert other.acquire(0)
    steps = bound[0].apply(0.1, np.zeros(3))
    next(steps)
    other.release(0)
    assert update.done.tolist() == [0, 1, 1]
    assert push(bound[1]) == 1, "that met none in chunk 0, and one in the others"
    assert bound[1].refresh() == 1, "it has one update of chunk 0, and two of the others"
    ends.finish(steps)
    assert update.done.tolist() == [2, 2, 2]
    assert bound[0].applied_to == 1
    bound[0].counts.add(5)
    assert bound[0].refresh() == 1, "it has two updates of chunk 0, and one of the others"
    assert push(bound[1]) == 2
    assert bound[1].refresh() == 3


# A central vector in chunks while several workers really are at it: nothing is lost, nobody is kept waiting.


def _all_there(update: Chunked, times: list[int]) -> None:
    central, counters, done = update.shared, update.counters[:, :2], update.done
    assert done.tolist() == [sum(times)] * update.chunks, "every chunk had every update"
    assert counters[:, 0].tolist() == times
    want = sum((i + 1.0) * n for i, n in enumerate(times)) / 1e6
    np.testing.assert_allclose(central, want, rtol=2e-3)


def test_no_update_of_processes_is_lost():
    update = Chunked(ends.PLAIN, *param_sizes(ends.Wide()), 2)
    worker = ends.FORK.Process(target=ends.work, args=(update, 1, 300))
    worker.start()
    ends.work(update, 0, 300)
    worker.join(60)
    assert worker.exitcode == 0
    _all_there(update, [300, 300])


def hang(bound: Any) -> None:
    """Its first chunk is number 1."""
    bound.optimizers[1].step = lambda: time.sleep(600)


def test_a_worker_that_is_killed_in_a_chunk_keeps_it_from_nobody():
    update = Chunked(ends.PLAIN, *param_sizes(ends.Wide()), 2)
    ends.work(update, 0, 5)
    with ends.killed(update, 1, hang):
        until, mine = time.monotonic() + 60, RobustLocks(update.locks)
        while mine.acquire(1):
            mine.release(1)
            assert time.monotonic() < until
            time.sleep(0.005)
    ends.work(update, 0, 5)
    assert update.done[1] == 10  # while this test held it, the other chunks may have come first
    assert update.counters[:, 0].tolist() == [10, 0]
    ends.work(update, 1, 5)  # who takes its place
    assert update.done[1] == 15
