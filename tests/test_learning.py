"""How a gradient reaches the weights, what a learner counts, and what it does when numbers go wrong."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from polyplay import checkpoint, losses, nets
from polyplay.envs import Discrete, EnvSpec
from polyplay.errors import Closed, NotFinite, UserError
from polyplay.learning import Learner, Task
from polyplay.params import Vector, sizes
from polyplay.shared import Control, Knobs, Meter
from polyplay.tree import Field
from polyplay.updates import AllReduce, Local, Optim
from polyplay.worker import Me

SPEC = EnvSpec(obs=Field((5,), "float32"), action=Discrete(3))
POLICY = nets.Factory("mlp", SPEC, {"hidden": (8,)})
OPTIM = Optim("rmsprop_tf", eps=1e-3, clip=0.5)


def _me(index: int = 0, n: int = 1, directory: Path | None = None, resume: Path | None = None) -> Me:
    return Me(
        "learn",
        index,
        n,
        index,
        seed=4,
        meters=Meter(4, ("loss",)),
        control=Control(),
        directory=directory,
        resume=resume,
    )


def _task(update=None, total: float = 1e9, **more) -> Task:
    knobs = Knobs(learning_rate=1e-2, entropy_cost=0.01)
    return Task(POLICY, more.pop("loss", losses.a2c()), update or Local(OPTIM), knobs, total, **more)


def _rows(seed: int, T: int = 4, B: int = 6, version: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    first = np.zeros((T + 1, B), bool)
    first[2, :2] = True
    floats = {k: rng.standard_normal((T + 1, B)).astype(np.float32) for k in ("reward", "value", "logp")}
    return {
        "obs": rng.standard_normal((T + 1, B, 5)).astype(np.float32),
        "action": rng.integers(0, 3, (T + 1, B)),
        "terminated": np.roll(first, -1, 0),
        "truncated": np.zeros((T + 1, B), bool),
        "first": first,
        "version": np.full((T + 1, B), version),
        **floats,
    }


def _finish(steps) -> None:
    for _ in steps:
        pass


def test_all_reduce_gives_every_replica_the_mean_gradient_in_one_order():
    parts = [torch.randn(3, 40, generator=torch.Generator().manual_seed(i)) for i in range(5)]  # update, size
    nets_ = [nn.Linear(39, 1) for _ in range(3)]
    vectors = [Vector(n) for n in nets_]
    for v in vectors:
        v.flat.fill_(0.5)
    reduce = AllReduce(Optim("rmsprop_torch", eps=1.0), 3, sizes(nets_[0])[1])
    bound = [reduce.bind(_me(i, 3), v) for i, v in enumerate(vectors)]
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
        t.join(100)
    assert totals[0] == totals[1] == totals[2] == [[6.0, 3.0 * u, 0.0] for u in range(5)]
    assert torch.equal(vectors[0].flat, vectors[1].flat)
    assert torch.equal(vectors[0].flat, vectors[2].flat)
    alone = Vector(nn.Linear(39, 1))
    alone.flat.fill_(0.5)
    local = Local(Optim("rmsprop_torch", eps=1.0)).bind(_me(), alone)
    for update in range(5):
        alone.grad.copy_(parts[update].sum(0) / 3)
        _finish(local(0.1, np.zeros(3)))
    assert torch.allclose(alone.flat, vectors[0].flat, atol=1e-6)


def test_floating_buffers_are_averaged_with_the_gradient():
    norms = [nn.BatchNorm1d(4) for _ in range(2)]
    vectors = [Vector(n) for n in norms]
    reduce = AllReduce(OPTIM, 2, sizes(norms[0])[1])
    bound = [reduce.bind(_me(i, 2), v) for i, v in enumerate(vectors)]
    norms[0].running_mean.fill_(1.0)
    norms[1].running_mean.fill_(3.0)
    threads = [threading.Thread(target=lambda b=b: _finish(b(0.1, np.zeros(3)))) for b in bound]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert norms[0].running_mean.tolist() == norms[1].running_mean.tolist() == [2.0] * 4


def test_all_reduce_that_waits_can_be_told_to_stop():
    reduce = AllReduce(OPTIM, 2, 40)
    bound = reduce.bind(_me(0, 2), Vector(nn.Linear(39, 1)))
    steps = bound(0.1, np.zeros(3))
    next(steps)
    reduce.close()
    with pytest.raises(Closed):
        _finish(steps)


def test_the_gradient_is_clipped_by_its_global_norm():
    vector = Vector(nn.Linear(3, 1))
    before = vector.flat.clone()
    bound = Local(Optim("rmsprop_torch", eps=1e6, alpha=0.0, clip=0.5)).bind(_me(), vector)
    vector.grad.copy_(torch.tensor([3.0, 0.0, 4.0, 0.0]))
    steps = bound(1e6, np.zeros(3))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value[0] == 5.0
    assert torch.allclose(before - vector.flat, torch.tensor([0.3, 0.0, 0.4, 0.0]), atol=1e-4)


def test_counts_lag_and_annealing():
    me = _me()
    learner = Learner(me, _task(total=220.0))
    for i in range(3):
        _finish(learner.step(_rows(i, version=max(0, i - 1)), {}))
    assert learner.version == 3
    assert learner.learnt == 3 * 22  # 24 transitions, 2 of them void
    assert me.meter.get("lag_sum") == 22 + 22  # lags 0, 1, 1
    assert me.meter.get("lag_max") == 1
    assert learner.rate() == pytest.approx(1e-2 * (1 - 66 / 220))
    assert not learner.done
    for i in range(7):
        _finish(learner.step(_rows(i), {}))
    assert learner.done
    assert Learner(_me(), _task(anneal="constant")).rate() == 1e-2


@dataclass(frozen=True)
class Broken:
    metrics: ClassVar[tuple[str, ...]] = ()

    def __call__(self, out, batch, knobs):
        return losses.Scored((out["value"] * batch["reward"]).sum() * torch.tensor(float("nan")), {})


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved_and_the_weights_untouched(tmp_path):
    learner = Learner(_me(directory=tmp_path), _task(loss=Broken()))
    before = learner.vector.flat.clone()
    with pytest.raises(NotFinite, match=r"update 0: loss nan.*not-finite-0-0\.safetensors"):
        _finish(learner.step(_rows(1), {}))
    assert torch.equal(learner.vector.flat, before)
    from safetensors.numpy import load_file

    kept = load_file(tmp_path / "not-finite-0-0.safetensors")
    assert np.array_equal(kept["reward"], _rows(1)["reward"])


@pytest.mark.parametrize("name", ["rmsprop_tf", "adam"])
def test_a_saved_learner_goes_on_to_the_bit(name, tmp_path):
    task = _task(Local(Optim(name, eps=1e-3, clip=0.5)))
    learner = Learner(_me(directory=tmp_path), task)
    for i in range(3):
        _finish(learner.step(_rows(i), {}))
    task.knobs.set("learning_rate", 2e-3)
    learner.save(lambda part: part.arrays("workers/more", {"x": np.arange(3)}))
    task.knobs.set("learning_rate", 1e-3)
    path = checkpoint.complete(tmp_path, 3, {})
    second = Learner(_me(directory=tmp_path, resume=path), task)
    assert second.version == 3
    assert second.learnt == learner.learnt
    assert task.knobs.learning_rate == 2e-3
    assert checkpoint.open_checkpoint(path).arrays("workers/more")["x"].tolist() == [0, 1, 2]
    for i in range(3, 6):
        _finish(learner.step(_rows(i), {}))
        _finish(second.step(_rows(i), {}))
    assert torch.equal(learner.vector.flat, second.vector.flat)


def test_every_update_can_be_traced(tmp_path):
    me = _me(directory=tmp_path)
    me.trace = True
    learner = Learner(me, _task())
    for i in range(3):
        _finish(learner.step(_rows(i), {}))
    rows = [json.loads(line) for line in (tmp_path / "updates.jsonl").read_text().splitlines()]
    assert [r["update"] for r in rows] == [1, 2, 3]
    assert all(np.isfinite(r["loss"]) for r in rows)


def test_an_unknown_optimiser_is_refused_while_wiring():
    with pytest.raises(UserError, match="adam"):
        Optim("adamm")
