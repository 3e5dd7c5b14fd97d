"""Replicas that average their gradients: one order, a step in parts, equal weights; who is late, lost or not finite."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.errors import Closed, Leaving
from polyplay.weights import optimizers, update
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import LEAVING, AllReduce, Local, OptimizerSpec, _Whole
from tests.weights.ends import FORK, OPTIM, finish, me


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
    vectors = [reduce.vector(me(i, n), nn.Linear(weights - 1, 1)) for i in range(n)]
    for v in vectors:
        v.flat.fill_(0.5)
    return vectors, [reduce.bind(me(i, n), v) for i, v in enumerate(vectors)]


@pytest.mark.parametrize("n", [1, 2])
def test_replicas_agree_without_an_update_and_go_on_with_one(n):
    """Agreeing changes no weight, and what comes after it is as if it had not been."""
    update = Local(OPTIM) if n == 1 else AllReduce(OPTIM, n, 40)
    vectors, bound = replicas(update, n, 40)

    def work(i: int) -> list:
        heard = []
        for turn in range(4):
            heard.append(ended(bound[i].agree(np.array([i + 1.0, turn]))).tolist())
            assert vectors[i].flat.eq(0.5).all() or turn > 1
            if turn == 1:
                vectors[i].grad.fill_(i + 1.0)
                heard.append(ended(bound[i](0.1, np.array([10.0, 0.0])))[1].tolist())
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
    """Weights, statistics and norm are those of one optimiser of everything."""
    what = OptimizerSpec(name, eps=1e-3, clip=clip)
    vectors, bound = replicas(AllReduce(what, 3, weights), 3, weights)
    [alone], [local] = replicas(Local(what), 1, weights)
    for turn in range(4):
        parts = torch.randn(3, weights, generator=torch.Generator().manual_seed(turn))
        for v, part in zip(vectors, parts, strict=True):
            v.grad.copy_(part)
        norms = [norm for norm, _ in together(3, lambda i: ended(bound[i](0.1, np.zeros(3))))]
        alone.grad.copy_(parts.sum(0) / 3)
        norm, _ = ended(local(0.1, np.zeros(3)))
        assert norms == [pytest.approx(norm, rel=1e-5)] * 3
        assert torch.equal(vectors[0].flat, vectors[1].flat)
        assert torch.equal(vectors[0].flat, vectors[2].flat)
        assert torch.allclose(vectors[0].flat, alone.flat, atol=1e-5)
    held = optimizers.optimizer_state(local.optimizer)
    for b in bound:
        assert held.keys() == optimizers.optimizer_state(b.optimizer).keys()
        assert all(torch.allclose(held[k], v, atol=1e-5) for k, v in optimizers.optimizer_state(b.optimizer).items())


def test_who_comes_late_to_a_resumed_run_leaves_the_weights_that_another_has_loaded(tmp_path):
    reduce = AllReduce(OPTIM, 2, 40)
    early = reduce.vector(me(0, 2, resume=tmp_path), nn.Linear(39, 1))
    early.flat.fill_(0.5)  # as loading does
    late = reduce.vector(me(1, 2, resume=tmp_path), layer := nn.Linear(39, 1))
    assert late.flat.eq(0.5).all()
    assert layer.weight.eq(0.5).all()


def test_a_gradient_that_is_not_finite_anywhere_changes_no_replica():
    vectors, bound = replicas(AllReduce(OptimizerSpec("adam"), 2, 100), 2, 100)
    vectors[1].grad[99] = float("nan")  # of replica 1's part
    together(2, lambda i: ended(bound[i](0.1, np.zeros(3))))
    assert all(v.flat.eq(0.5).all() for v in vectors)


def test_all_reduce_that_waits_can_be_told_to_stop():
    reduce = AllReduce(OPTIM, 2, 40)
    bound = reduce.bind(me(0, 2), reduce.vector(me(0, 2), nn.Linear(39, 1)))
    steps = bound(0.1, np.zeros(3))
    next(steps)
    reduce.close()
    with pytest.raises(Closed):
        finish(steps)


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
    ends, place, children = [], str(tmp_path / "place"), []
    for rank in range(2):
        here, there = FORK.Pipe(duplex=False)
        children.append(FORK.Process(target=_rank, args=(place, rank, there)))
        children[-1].start()
        ends.append(here)
    found = [end.recv() if end.poll(60) else None for end in ends]
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
    ends = [_Whole(reduce, me(i, 2), FlatParams(Net())) for i in range(2)]
    turns = {}
    for i, end in enumerate(ends):
        sums = np.zeros(6)
        sums[0], sums[LEAVING] = i + 1.0, i == leaver
        turns[i] = end.agree(sums) if i == leaver else end(0.1, sums)
    found = dict[int, object]()
    while len(found) < 2:
        for i in turns.keys() - found.keys():
            try:
                next(turns[i])
            except StopIteration as e:
                found[i] = e.value[1].tolist() if leaver is None else e.value.tolist()
            except Leaving:
                found[i] = "leaves"
    if leaver is None:
        assert found == {0: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
    else:
        assert found[1 - leaver] == "leaves"
        assert found[leaver] == [3.0, 0.0, 0.0, 0.0, 0.0, 1.0]
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
