"""PopArt against plain loops in float64, and in the losses, learners and players that use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.core import checkpoint
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import A2C, APPO, PPO, VTrace
from polyplay.learning.learner import Learner
from polyplay.nets import factory
from polyplay.nets.layers import Linear, axis
from polyplay.nets.numpy_player import fast_player
from polyplay.nets.policy import PopArt, TaskValues, task_axis
from polyplay.nets.surgery import NetworkGrowth
from polyplay.weights.update import averaged
from tests.weights import ends

NAMES = ("small", "medium", "large", "odd")
SCALES = np.array([1.0, 30.0, 1e3, 1e4])
SPEC = EnvSpec(Field((5,), "float32"), Discrete(3), tasks=NAMES, order=(0, 1, 2, 3))


class Twin:
    """The statistics and the rescaling as published, one target after the other, in float64."""

    def __init__(self, n: int, rate: float):
        self.rate, self.mean, self.square = rate, np.zeros(n), np.ones(n)

    def deviation(self) -> np.ndarray:
        return np.clip(np.sqrt(np.maximum(self.square - self.mean**2, 0.0)), 1e-4, 1e6)

    def observe(self, targets: np.ndarray, tasks: np.ndarray, valid: np.ndarray) -> None:
        for i in range(len(self.mean)):
            own = [g for g, k, good in zip(targets, tasks, valid, strict=True) if k == i and good]
            if own:
                self.mean[i] += self.rate * (sum(own) / len(own) - self.mean[i])
                self.square[i] += self.rate * (sum(g * g for g in own) / len(own) - self.square[i])


def head_of(values: PopArt, features: int = 8) -> Linear:
    torch.manual_seed(0)
    return Linear.along(task_axis(values.tasks), axis("features", features))


@pytest.mark.parametrize("rate", [3e-4, 1e-2])
def test_statistics_are_those_of_a_plain_loop_and_outputs_stay(rate: float):
    """1,000 updates; each task is absent now and then, and its targets have a mean beside their spread."""
    rng, twin, values = np.random.default_rng(0), Twin(4, rate), PopArt(NAMES, rate)
    head, x = head_of(values), torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    places = torch.arange(4).repeat(4)
    with torch.no_grad():
        for _ in range(1000):
            tasks, valid = rng.integers(0, 4, 24), rng.random(24) < 0.9
            valid &= tasks != rng.integers(0, 8)
            targets = SCALES[tasks] * (0.7 + rng.normal(size=24))
            twin.observe(targets, tasks, valid)
            values.observe(*(torch.from_numpy(a).reshape(6, 4) for a in (targets.astype(np.float32), tasks, valid)))
            before = values(head(x), places)
            values.settle(head)
            size = torch.stack([values.scale[places], values.mean[places].abs(), before.abs()]).amax(0)
            assert ((values(head(x), places) - before).abs() <= 1e-5 * size).all()
    np.testing.assert_allclose(values.mean, twin.mean, rtol=1e-5, atol=1e-5 * 1e-3)
    np.testing.assert_allclose(values.scale, twin.deviation(), rtol=1e-5)


def test_a_deviation_that_is_small_beside_the_mean_keeps_its_digits():
    """As ν − μ² float32 would be off by 0.65 % here."""
    rng, twin, values = np.random.default_rng(0), Twin(1, 1e-2), PopArt((), 1e-2)
    for _ in range(2000):
        targets = 100.0 + rng.normal(size=32)
        twin.observe(targets, np.zeros(32, int), np.ones(32, bool))
        values.observe(torch.from_numpy(targets.astype(np.float32))[:, None], None, torch.ones(32, 1, dtype=torch.bool))
    np.testing.assert_allclose(values.variance().sqrt(), twin.deviation(), rtol=1e-4)


def test_tasks_without_a_row_and_padding_change_nothing():
    values = PopArt(NAMES, 0.5)
    values.observe(torch.full((2, 2), 7.0), torch.tensor([[0, 0], [2, 2]]), torch.tensor([[True, True], [True, False]]))
    assert values.mean.tolist() == [3.5, 0.0, 3.5, 0.0]
    nothing = torch.full((2, 2), torch.nan)
    before = values.variance().clone()
    values.observe(nothing, torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.bool))
    assert values.mean.tolist() == [3.5, 0.0, 3.5, 0.0]
    torch.testing.assert_close(values.variance(), before)


def test_means_over_replicas_are_the_statistics_of_all_their_rows():
    """Their buffers are averaged after each update."""
    rng, whole, parts = np.random.default_rng(0), PopArt(NAMES, 0.1), [PopArt(NAMES, 0.1) for _ in range(2)]
    for _ in range(50):
        tasks = np.tile(np.arange(4), (2, 2, 1))  # [replicas, rows, lanes]
        targets = (SCALES[tasks] * rng.normal(1.0, 0.5, tasks.shape)).astype(np.float32)
        every = torch.ones(2, 8, dtype=torch.bool)
        given = torch.from_numpy(np.concatenate([*targets], 1)), torch.from_numpy(np.concatenate([*tasks], 1))
        whole.observe(*given, every)
        for part, own, number in zip(parts, targets, tasks, strict=True):
            part.observe(torch.from_numpy(own), torch.from_numpy(number), every[:, :4])
        for name, _ in whole.named_buffers():
            mean = torch.stack([part.get_buffer(name) for part in parts]).mean(0)
            for part in parts:
                part.get_buffer(name).copy_(mean)
    torch.testing.assert_close(parts[0].mean, whole.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts[0].variance(), whole.variance(), rtol=1e-4, atol=1e-4)


def rows(T: int = 4, B: int = 8, seed: int = 0) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    first = torch.rand(T + 1, B, generator=g) < 0.1
    return {
        "obs": torch.randn(T + 1, B, 5, generator=g),
        "action": torch.randint(0, 3, (T + 1, B), generator=g),
        "reward": torch.randn(T + 1, B, generator=g) * 100.0,
        "task": torch.arange(B).remainder(4).expand(T + 1, B).clone(),
        "first": first,
        "terminated": torch.zeros(T + 1, B, dtype=torch.bool),
        "logp": torch.full((T + 1, B), -1.1),
        "value": torch.zeros(T + 1, B),
    }


def policy_of(value: str = "popart") -> Any:
    torch.manual_seed(3)
    policy = factory.make("mlp", SPEC, value=value)
    if value == "popart":
        with torch.no_grad():
            policy.values.shift.copy_(torch.tensor([1.0, -2.0, 30.0, 400.0]))
            policy.values.scale.copy_(torch.tensor([0.5, 2.0, 100.0, 1e3]))
    return policy


@pytest.mark.parametrize(
    "loss", [A2C(reward="none"), VTrace(reward="none"), APPO(reward="none", normalize_advantage=False)]
)
def test_a_loss_is_the_mean_over_its_tasks_in_their_own_units(loss: Any):
    """The same rows with a task's unit taken out of advantages and errors, by hand."""
    policy, batch, hyper = policy_of(), rows(), {"entropy_cost": 0.0, "remaining": 1.0}
    if isinstance(loss, A2C | VTrace):
        loss = replace(loss, reduction="mean")
    with torch.no_grad():
        out = policy.unroll(batch, {})
    assert torch.equal(out["value_scale"], policy.values.scale[batch["task"]])
    scored, plain = loss.score(out, batch, hyper), {k: v for k, v in out.items() if k != "value_scale"}
    total, valid = 0.0, ~batch["first"][1:]
    for k in range(4):  # every lane has one task
        own = {name: x[:, k::4] for name, x in plain.items()}
        part = loss.score(own, {name: x[:, k::4] for name, x in batch.items()}, hyper)
        unit, n = float(policy.values.scale[k]), int(valid[:, k::4].sum())
        value_loss = float(part.metrics["value_loss"]) / unit**2
        total += n * (float(part.metrics["policy_loss"]) / unit + loss.value_cost * value_loss)
    assert float(scored.loss) == pytest.approx(total / int(valid.sum()), rel=1e-4)
    assert scored.targets is not None
    assert scored.targets.shape == (4, 8)


def test_ppo_clips_the_change_of_a_value_in_its_unit():
    policy, batch = policy_of(), rows()
    loss = PPO(reward="none", value_clip=True, anneal_clip=False, clip_range=0.1, value_cost=1.0)
    made = loss.prepare(batch)
    out = {k: v[:-1] for k, v in policy.unroll(batch, {}).items()}
    part = {k: v[:-1] for k, v in batch.items()} | made
    scored = loss.score(out, part, {"entropy_cost": 0.0})
    unit, value, before, target = out["value_scale"], out["value"], part["value"], made["target"]
    near = before + ((value - before) / unit).clamp(-0.1, 0.1) * unit
    error = torch.maximum(((target - value) / unit) ** 2, ((target - near) / unit) ** 2)[made["valid"]].mean()
    assert float(scored.metrics["value_loss"]) == pytest.approx(float(error.detach()), rel=1e-5)
    assert scored.targets is None, "statistics have learnt from the rollout's targets before the passes"


def test_a_call_of_the_loss_has_the_statistics_learn():
    policy, batch = policy_of(), rows()
    A2C(reward="none")(policy, None, batch, {}, {"entropy_cost": 0.0})
    assert (policy.values.mean != 0).all()
    assert policy.values.shift.tolist() == [1.0, -2.0, 30.0, 400.0], "until it settles"
    policy.settle()
    torch.testing.assert_close(policy.values.shift, policy.values.mean)


@pytest.mark.parametrize("value", ["popart", "heads"])
def test_the_player_without_torch_gives_the_same_values(value: str):
    policy, batch = policy_of(value), rows()
    step = {k: batch[k][0] for k in ("obs", "reward", "first", "task")}
    with torch.no_grad():
        wanted = policy.act(step, {})[0]
    fast = fast_player(policy)
    assert fast is not None
    found = fast.act({k: x.numpy() for k, x in step.items()}, {})[0]
    np.testing.assert_allclose(found["value"], wanted["value"], rtol=1e-5, atol=1e-4)
    assert type(policy.values) is (PopArt if value == "popart" else TaskValues)


def test_another_task_keeps_what_was_learnt_of_the_others_by_name():
    more = replace(SPEC, tasks=("new", *NAMES[::-1]), order=(0, 1, 2, 3, 4))
    small, large = policy_of(), factory.make("mlp", more, value="popart")
    with torch.no_grad():
        small.values.mean.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    old, new = ({k: v.numpy().copy() for k, v in net.state_dict().items()} for net in (small, large))
    checkpoint.load_into(large, NetworkGrowth(small, large).grow(old, new))
    assert large.values.mean.tolist()[1:] == [4.0, 3.0, 2.0, 1.0]
    assert torch.equal(large.value.weight[1:], small.value.weight.flip(0))
    assert large.values.scale.tolist() == [1.0, 1e3, 100.0, 2.0, 0.5]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_replicas_have_the_same_weights_and_statistics_to_the_bit(n: int):
    """Each learns from rows of its own, with tasks that another lacks."""
    policy = factory.NetworkFactory("mlp", SPEC, {"hidden": (8,), "value": "popart"})
    spec = ends.task(averaged(ends.OPTIM, n), policy=policy, loss=A2C(reward="none"))
    learners = [Learner(ends.me(i, n), spec) for i in range(n)]

    def work(i: int) -> None:
        for k in range(20):
            rows = ends.some_rows(100 * i + k)
            rows["reward"] *= 1e3
            task = np.arange(6) % (4 - i)
            ends.finish(learners[i].step({**rows, "task": np.tile(task, (5, 1))}, {}))

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(work, range(n), timeout=60))
    flats = [learner.update.vector.flat for learner in learners]
    assert all(torch.equal(flat, flats[0]) for flat in flats)
    values = learners[0].policy.values
    assert (values.mean != 0).all()
    torch.testing.assert_close(values.scale, values.variance().sqrt(), rtol=1e-6, atol=0)
