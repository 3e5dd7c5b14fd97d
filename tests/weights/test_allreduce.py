"""How a gradient reaches the weights: clipped, averaged over replicas, or without a lock."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core import checkpoint
from polyplay.core.errors import Closed, UserError
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.envs import Discrete, EnvSpec
from polyplay.learning import policy_losses
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.nets import factory
from polyplay.weights.hogwild import Hogwild
from polyplay.weights.optimizers import optimizer_state
from polyplay.weights.params import FlatParams, SharedArrays, param_sizes
from polyplay.weights.update import Local, OptimizerSpec
from tests.weights.ends import finish, line, me, nine_in_turn

OPTIM = OptimizerSpec("rmsprop_tf", eps=1e-3, clip=0.5)


def _arrays(update: SharedArrays) -> list[np.ndarray]:
    return [getattr(update, name) for name in update._places]


def test_the_gradient_is_clipped_by_its_global_norm():
    vector = FlatParams(nn.Linear(3, 1))
    before = vector.flat.clone()
    bound = Local(OptimizerSpec("rmsprop_torch", eps=1e6, alpha=0.0, clip=0.5)).bind(me(), vector)
    vector.grad.copy_(torch.tensor([3.0, 0.0, 4.0, 0.0]))
    steps = bound(1e6, np.zeros(3))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value[0] == 5.0
    assert torch.allclose(before - vector.flat, torch.tensor([0.3, 0.0, 0.4, 0.0]), atol=1e-4)


def test_an_unknown_optimiser_is_refused_while_wiring():
    with pytest.raises(UserError, match="adam"):
        OptimizerSpec("adamm")


# ---------------------------------------------------------------------------------------------------------- Hogwild


def _hogwild(optim: OptimizerSpec, workers: int = 2, copy: bool = True, net: nn.Module | None = None):
    """The update, its workers' vectors and what is bound to them; modules differ, so worker 0's must be everyone's."""
    update = Hogwild(optim, *param_sizes(net or line(0.0)), workers, copy)
    modules = [net or line(0.5), *(line(9.0 + i) for i in range(1, workers))]
    made = [_join(update, me(i, workers), module) for i, module in enumerate(modules)]
    return update, [m[0] for m in made], [m[1] for m in made]


def _join(update: Hogwild, ctx: WorkerContext, module: nn.Module):
    vector = update.vector(ctx, module)
    bound = update.bind(ctx, vector)
    bound.counts.begin(0, 0.0)
    return vector, bound


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", ["rmsprop_a3c", "rmsprop_tf", "adam"])
def test_workers_in_turn_on_shared_weights_and_statistics_are_one_learner(name, copy):
    optim = OptimizerSpec(name, eps=0.1, clip=1.0)
    update, vectors, bound = _hogwild(optim, 3, copy)

    def push(i: int) -> int:
        finish(bound[i](0.1, np.zeros(3)))
        return bound[i].counts.add(5)

    alone = nine_in_turn(optim, vectors, push)
    assert np.allclose(update.shared, alone.read(), atol=1e-6)
    assert [b.counts.version for b in bound] == [9, 9, 9]
    assert [b.counts.learnt for b in bound] == [45.0, 45.0, 45.0]
    assert update.counters[:, :2].tolist() == [[3, 15]] * 3, "each wrote its own cells"


def test_a_copy_stays_as_it_is_until_the_next_rollout():
    update, vectors, bound = _hogwild(OptimizerSpec("rmsprop_a3c", eps=0.1))
    assert bound[1].counts.newest() == 0
    assert torch.equal(vectors[1].flat, vectors[0].flat), "worker 0's first weights are everyone's"
    held = vectors[1].flat.clone()
    vectors[0].grad.fill_(1.0)
    finish(bound[0](0.1, np.zeros(3)))
    bound[0].counts.add(5)
    assert torch.equal(vectors[1].flat, held)
    assert torch.equal(vectors[0].flat, held), "its own too: gradients go into the shared ones"
    assert bound[1].counts.newest() == 1
    assert np.array_equal(vectors[1].read(), update.shared)
    assert not torch.equal(vectors[1].flat, held)


def test_a_worker_that_takes_a_lost_ones_place_resets_nothing():
    update, vectors, bound = _hogwild(OptimizerSpec("adam", eps=0.1))
    for i in range(4):
        vectors[i % 2].grad.fill_(1.0 + i)
        finish(bound[i % 2](0.1, np.zeros(3)))
        bound[i % 2].counts.add(5)
    before = [x.copy() for x in _arrays(update)]
    assert before[1].any()
    vector, again = _join(update, me(0, 2, incarnation=1), line(-3.0))
    assert not again.counts.fresh
    assert all(np.array_equal(x, y) for x, y in zip(_arrays(update), before, strict=True))
    assert again.counts.newest() == 4
    assert np.array_equal(vector.read(), update.shared)
    vector.grad.fill_(1.0)
    finish(again(0.1, np.zeros(3)))
    assert again.counts.add(5) == 4
    assert float(optimizer_state(again.optimizer)["step"]) == 5.0, "Adam's count is that of all workers"


def test_modules_in_one_memory_have_their_own_gradients_and_graphs():
    update, vectors, bound = _hogwild(OptimizerSpec("rmsprop_a3c", eps=0.1), copy=False)
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


def test_what_every_worker_observed_is_in_the_shared_buffers():
    update, vectors, bound = _hogwild(OptimizerSpec("rmsprop_a3c", eps=0.1))
    mean = slice(vectors[0].weights, vectors[0].weights + 3)  # BatchNorm's running mean, 0 at first
    for i, by in enumerate((1.0, 3.0)):
        bound[i].counts.newest()
        vectors[i].module[1].running_mean += by
    for b in bound:
        finish(b(0.0, np.zeros(3)))
    assert update.shared[mean].tolist() == [4.0] * 3
    finish(bound[0](0.0, np.zeros(3)))
    assert update.shared[mean].tolist() == [4.0] * 3, "counted once"


def test_a_gradient_that_is_not_finite_changes_nothing_that_is_shared():
    update, vectors, bound = _hogwild(OptimizerSpec("rmsprop_a3c", eps=0.1))
    before = [x.copy() for x in (update.shared, update.statistics)]
    vectors[1].grad.fill_(float("nan"))
    finish(bound[1](0.1, np.zeros(3)))
    assert all(np.array_equal(x, y) for x, y in zip((update.shared, update.statistics), before, strict=True))


SPEC = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3))
POLICY = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,)})


def _learners(total: float, n: int = 2, update: Hogwild | None = None, **ctx) -> tuple[list[Learner], LearnerSpec]:
    update = update or Hogwild(OptimizerSpec("adam", eps=1e-3), *param_sizes(POLICY()), n)
    hyperparameters = Hyperparameters(learning_rate=1e-2, entropy_cost=0.01)
    spec = LearnerSpec(POLICY, policy_losses.A2C(), update, hyperparameters, total)
    return [Learner(me(i, n, **ctx), spec) for i in range(n)], spec


def _rows(seed: int, version: int, T: int = 4) -> dict:
    rng = np.random.default_rng(seed)
    floats = {k: rng.standard_normal((T + 1, 1)).astype(np.float32) for k in ("reward", "value", "logp")}
    flags = {k: np.zeros((T + 1, 1), bool) for k in ("terminated", "truncated", "first")}
    obs = rng.standard_normal((T + 1, 1, 5)).astype(np.float32)
    return {
        "obs": obs,
        "action": rng.integers(0, 3, (T + 1, 1)),
        "version": np.full((T + 1, 1), version),
        **floats,
        **flags,
    }


def test_lag_annealing_and_the_end_follow_all_workers_together():
    (one, two), _ = _learners(total=40.0)
    held = [learner.counts.newest() for learner in (one, two)]
    assert held == [0, 0]
    for i in range(3):
        finish(one.step(_rows(i, version=i), {}))
    assert one.ctx.counters.get("lag_max") == 0
    assert one.rate() == pytest.approx(1e-2 * (1 - 12 / 40))
    finish(two.step(_rows(9, version=0), {}))
    assert two.ctx.counters.get("lag_max") == 3, "three updates were made since its weights were copied"
    assert (two.version, two.learnt) == (4, 16.0)
    assert two.ctx.counters.get("updates") == 4
    for i in range(6):
        assert not two.done
        finish(two.step(_rows(i, version=4), {}))
    assert two.done
    assert two.rate() == 0.0
    finish(one.step(_rows(1, version=3), {}))
    assert one.done, "though it learnt from 16 of 44 steps itself"


def test_others_wait_for_the_first_weights_and_can_be_told_to_stop():
    update = Hogwild(OptimizerSpec("adam"), *param_sizes(POLICY()), 2)
    spec = LearnerSpec(POLICY, policy_losses.A2C(), update, Hyperparameters(learning_rate=0.0, entropy_cost=0.0), 1.0)
    ctx = me(1, 2)
    found: list = []
    waits = threading.Thread(target=lambda: found.append(Learner(ctx, spec)))
    waits.start()
    waits.join(0.1)
    assert not found
    first = Learner(me(0, 2, seed=7), spec)
    waits.join(30)
    found[0].counts.newest()
    assert torch.equal(found[0].vector.flat, first.vector.flat)
    alone = me(1, 2)
    alone.control.halt()
    with pytest.raises(Closed):
        Learner(
            alone,
            LearnerSpec(
                POLICY,
                policy_losses.A2C(),
                Hogwild(OptimizerSpec("adam"), *param_sizes(POLICY()), 2),
                spec.hyperparameters,
                1.0,
            ),
        )


def test_worker_0_saves_for_all_and_what_it_saved_is_loaded_once(tmp_path):
    (one, two), spec = _learners(total=1e9, directory=tmp_path)
    for i in range(3):
        for learner in (one, two):
            finish(learner.step(_rows(i, version=learner.counts.newest()), {}))
    two.save()
    assert [p.name for p in checkpoint.partials(tmp_path)] == [".partial-000000000000"]  # worker 0's, of the beginning
    one.save()
    path = checkpoint.complete(tmp_path, one.version, {})
    kept = [x.copy() for x in (spec.update.shared, spec.update.statistics)]
    finish(two.step(_rows(5, version=6), {}))
    again = Hogwild(OptimizerSpec("adam", eps=1e-3), *param_sizes(POLICY()), 2)
    (third, fourth), _ = _learners(1e9, update=again, resume=path)
    assert np.array_equal(again.shared[: param_sizes(POLICY())[0]], one.vector.read()[: param_sizes(POLICY())[0]])
    assert np.array_equal(again.statistics, kept[1])
    assert (fourth.version, fourth.learnt, third.ctx.counters.get("updates")) == (6, 24.0, 0.0)
    finish(fourth.step(_rows(5, version=6), {}))
    assert fourth.version == 7
    assert fourth.ctx.counters.get("updates") == 1, "of this run"
    removed = checkpoint.checkpoints_dir(tmp_path) / checkpoint.directory_name(1, {})  # since a newer one came
    replaced = Learner(me(0, 2, incarnation=1, directory=tmp_path, resume=removed), fourth.spec)
    assert replaced.version == 7
    assert replaced.counts.newest() == 7
