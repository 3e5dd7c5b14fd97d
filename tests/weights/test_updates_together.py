"""Replicas that average their gradients: one order, a step in parts, equal weights; who is late, lost or not finite."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.errors import Closed
from polyplay.weights import optimizers
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import AllReduce, Local, OptimizerSpec
from tests.weights.ends import finish, me
from tests.weights.test_allreduce import OPTIM


def test_all_reduce_gives_every_replica_the_mean_gradient_in_one_order():
    parts = [torch.randn(3, 40, generator=torch.Generator().manual_seed(i)) for i in range(5)]  # update, size
    nets_ = [nn.Linear(39, 1) for _ in range(3)]
    reduce = AllReduce(OptimizerSpec("rmsprop_torch", eps=1.0), 3, param_sizes(nets_[0])[1])
    vectors = [reduce.vector(me(i, 3), n) for i, n in enumerate(nets_)]
    for v in vectors:
        v.flat.fill_(0.5)
    bound = [reduce.bind(me(i, 3), v) for i, v in enumerate(vectors)]
    totals: dict[int, list] = {i: [] for i in range(3)}

    def work(i: int) -> None:
        for update in range(5):
            vectors[i].grad.copy_(parts[update][i])
            steps = bound[i](0.1, np.array([i + 1.0, update, 0.0]))
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    totals[i].append(end.value[1].tolist())
                    break

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert totals[0] == totals[1] == totals[2] == [[6.0, 3.0 * u, 0.0] for u in range(5)]
    assert torch.equal(vectors[0].flat, vectors[1].flat)
    assert torch.equal(vectors[0].flat, vectors[2].flat)
    alone = FlatParams(nn.Linear(39, 1))
    alone.flat.fill_(0.5)
    local = Local(OptimizerSpec("rmsprop_torch", eps=1.0)).bind(me(), alone)
    for update in range(5):
        alone.grad.copy_(parts[update].sum(0) / 3)
        finish(local(0.1, np.zeros(3)))
    assert torch.allclose(alone.flat, vectors[0].flat, atol=1e-6)


def test_floating_buffers_are_averaged_with_the_gradient():
    norms = [nn.BatchNorm1d(4) for _ in range(2)]
    reduce = AllReduce(OPTIM, 2, *reversed(param_sizes(norms[0])))
    vectors = [reduce.vector(me(i, 2), n) for i, n in enumerate(norms)]
    bound = [reduce.bind(me(i, 2), v) for i, v in enumerate(vectors)]
    norms[0].running_mean.fill_(1.0)
    norms[1].running_mean.fill_(3.0)
    for v in vectors:
        v.grad.copy_(torch.arange(8.0))
    threads = [threading.Thread(target=lambda b=b: finish(b(0.1, np.zeros(3)))) for b in bound]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert norms[0].running_mean.tolist() == norms[1].running_mean.tolist() == [2.0] * 4
    assert torch.equal(vectors[0].flat, vectors[1].flat)
    assert norms[0].weight.tolist() != [1.0] * 4


@pytest.mark.parametrize("n", [1, 2])
def test_replicas_agree_without_an_update_and_go_on_with_one(n):
    """Agreeing changes no weight, and what comes after it is as if it had not been."""
    update = Local(OPTIM) if n == 1 else AllReduce(OPTIM, n, 40)
    vectors = [update.vector(me(i, n), nn.Linear(39, 1)) for i in range(n)]
    for v in vectors:
        v.flat.fill_(0.5)
    bound = [update.bind(me(i, n), v) for i, v in enumerate(vectors)]
    heard: dict[int, list] = {i: [] for i in range(n)}

    def ended(steps):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    def work(i: int) -> None:
        for turn in range(4):
            heard[i].append(ended(bound[i].agree(np.array([i + 1.0, turn]))).tolist())
            assert vectors[i].flat.eq(0.5).all() or turn > 1
            if turn == 1:
                vectors[i].grad.fill_(i + 1.0)
                heard[i].append(ended(bound[i](0.1, np.array([10.0, 0.0])))[1].tolist())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
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
    reduce, layers = AllReduce(what, 3, weights), [nn.Linear(weights - 1, 1) for _ in range(3)]
    vectors = [reduce.vector(me(i, 3), n) for i, n in enumerate(layers)]
    alone = FlatParams(nn.Linear(weights - 1, 1))
    for v in (*vectors, alone):
        v.flat.fill_(0.5)
    bound, local = [reduce.bind(me(i, 3), v) for i, v in enumerate(vectors)], Local(what).bind(me(), alone)
    ends: dict[int, float] = {}

    def work(i: int, gradient: torch.Tensor) -> None:
        vectors[i].grad.copy_(gradient)
        steps = bound[i](0.1, np.zeros(3))
        while i not in ends:
            try:
                next(steps)
            except StopIteration as end:
                ends[i] = end.value[0]

    for update in range(4):
        ends.clear()
        parts = torch.randn(3, weights, generator=torch.Generator().manual_seed(update))
        threads = [threading.Thread(target=work, args=(i, parts[i])) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
        alone.grad.copy_(parts.sum(0) / 3)
        with pytest.raises(StopIteration) as one:
            next(local(0.1, np.zeros(3)))
        assert list(ends.values()) == [pytest.approx(one.value.value[0], rel=1e-5)] * 3
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


def test_a_vector_that_another_made_is_refused():
    reduce = AllReduce(OPTIM, 2, 40)
    with pytest.raises(ValueError, match="not one that this AllReduce made"):
        reduce.bind(me(0, 2), FlatParams(nn.Linear(39, 1)))


def test_a_gradient_that_is_not_finite_anywhere_changes_no_replica():
    reduce = AllReduce(OptimizerSpec("adam"), 2, 100)
    vectors = [reduce.vector(me(i, 2), nn.Linear(99, 1)) for i in range(2)]
    for v in vectors:
        v.flat.fill_(0.5)
    bound = [reduce.bind(me(i, 2), v) for i, v in enumerate(vectors)]
    vectors[1].grad[99] = float("nan")  # of replica 1's part
    threads = [threading.Thread(target=lambda b=b: finish(b(0.1, np.zeros(3)))) for b in bound]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert all(v.flat.eq(0.5).all() for v in vectors)


def test_all_reduce_that_waits_can_be_told_to_stop():
    reduce = AllReduce(OPTIM, 2, 40)
    bound = reduce.bind(me(0, 2), reduce.vector(me(0, 2), nn.Linear(39, 1)))
    steps = bound(0.1, np.zeros(3))
    next(steps)
    reduce.close()
    with pytest.raises(Closed):
        finish(steps)
