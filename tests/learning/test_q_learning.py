"""polyplay/learning/value_losses.py:
losses, their gradients and priorities against plain sums; what the two networks are asked.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.core.errors import UserError
from polyplay.core.numbers import unscale
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import value_losses
from polyplay.nets import factory, q_heads
from tests import twins

QUICK = settings(max_examples=60, deadline=None)
SPEC = EnvSpec(Field((5,), "float32"), Discrete(3))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def transitions(lanes: int, seed: int = 0, size: float = 3.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs over 3 actions and a batch, float64."""
    draw = np.random.default_rng(seed)
    out = {k: torch.tensor(draw.normal(size=(lanes, 3)) * size) for k in ("q", "target", "online")}
    batch = {"action": torch.tensor(draw.integers(3, size=lanes)), "return": torch.tensor(draw.normal(size=lanes))}
    batch |= {"discount": torch.tensor(draw.choice([0.0, 0.9], size=lanes)), "weight": torch.tensor(draw.random(lanes))}
    return out, batch


def scored(loss: Any, out: dict[str, Tensor], batch: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """The result and its gradient for out["q"]."""
    q = out["q"].clone().requires_grad_()
    result = loss({**out, "q": q}, batch, None)
    result.loss.backward()
    return result, q.grad


# ------------------------------------------------------------------------------------------------ Q


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_replicas_average_is_the_gradient_of_their_whole_batch(reduction: str) -> None:
    out, batch = transitions(8)
    _, whole = scored(value_losses.QLoss(reduction), out, batch)
    for half in (slice(4), slice(4, 8)):
        mine, theirs = ({k: v[half] for k, v in some.items()} for some in (out, batch))
        _, part = scored(value_losses.QLoss(reduction, replicas=2), mine, theirs)
        torch.testing.assert_close(part / 2, whole[half])


@QUICK
@given(
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([0.0, 1.0, 0.25]),
    st.sampled_from(["loss", "error"]),
    st.booleans(),
    st.booleans(),
)
def test_the_gradient_of_q_is_the_limited_error(
    lanes: int, seed: int, reduction: str, clip: float, weighted: str, double: bool, weights: bool
) -> None:
    out, batch = transitions(lanes, seed)
    if not double:
        out.pop("online")
    if not weights:
        batch.pop("weight")
    result, grad = scored(value_losses.QLoss(reduction, clip, weighted), out, batch)
    judge = out["online"] if double else out["target"]
    bound = clip or float("inf")
    for b in range(lanes):
        a, w = int(batch["action"][b]), float(batch["weight"][b]) if weights else 1.0
        goal = batch["return"][b] + batch["discount"][b] * out["target"][b, judge[b].argmax()]
        error = float(goal - out["q"][b, a])
        inside, outside = (1.0, w) if weighted == "loss" else (w, 1.0)
        expected = -outside * max(-bound, min(bound, inside * error))
        row = [0.0] * 3
        row[a] = expected / (lanes if reduction == "mean" else 1)
        assert grad[b].tolist() == pytest.approx(row, rel=1e-9, abs=1e-12)
        assert float(result.priority[b]) == pytest.approx(abs(error), rel=1e-9)
    assert not result.priority.requires_grad
    assert set(result.metrics) == set(value_losses.QLoss.metrics)


def test_a_sum_is_the_mean_times_the_batch() -> None:
    out, batch = transitions(32)
    (whole, by_sum), (mean, by_mean) = (scored(value_losses.QLoss(how), out, batch) for how in ("sum", "mean"))
    torch.testing.assert_close(whole.loss, 32 * mean.loss)
    torch.testing.assert_close(by_sum, 32 * by_mean)


def test_the_loss_itself_is_huber_or_squared() -> None:
    error = torch.tensor([-3.0, -1.0, 0.5, 0.0, 7.0], requires_grad=True)
    made = value_losses.huber(error, torch.ones(5))
    torch.testing.assert_close(made, torch.nn.functional.huber_loss(error, torch.zeros(5), reduction="none"))
    torch.testing.assert_close(value_losses.huber(error, torch.tensor(torch.inf)), 0.5 * error.square())
    made.sum().backward()
    assert error.grad.tolist() == [-1.0, -1.0, 0.5, 0.0, 1.0]


def test_clipping_after_weighting_is_not_weighting_after_clipping() -> None:
    out = {"q": torch.zeros(2, 1), "target": torch.zeros(2, 1)}
    batch = {"action": torch.zeros(2, dtype=torch.int64), "return": torch.tensor([10.0, 10.0])}
    batch |= {"discount": torch.zeros(2), "weight": torch.tensor([0.5, 0.01])}
    assert scored(value_losses.QLoss("sum", weighted="loss"), out, batch)[1][:, 0].tolist() == pytest.approx(
        [-0.5, -0.01]
    )
    assert scored(value_losses.QLoss("sum", weighted="error"), out, batch)[1][:, 0].tolist() == pytest.approx(
        [-1.0, -0.1]
    )
    batch["weight"][:] = 0.0
    for how in value_losses.WEIGHTED:
        result, grad = scored(value_losses.QLoss("sum", weighted=how), out, batch)
        assert result.loss.item() == 0.0
        assert grad.tolist() == [[0.0], [0.0]]


def test_masks_of_the_second_observation_bound_what_is_looked_for() -> None:
    out, batch = transitions(4)
    batch["discount"][:] = 0.9
    legal = torch.zeros(2, 4, 3, dtype=torch.bool)
    legal[1, :, 2] = True
    result = value_losses.QLoss(clip=0.0)(out, {**batch, "mask": legal}, None)
    goal = batch["return"] + 0.9 * out["target"][:, 2]
    assert float(result.metrics["target_mean"]) == pytest.approx(float(goal.mean()))


def test_what_is_not_finite_is_shown() -> None:
    out, batch = transitions(3)
    batch["return"][1] = torch.nan
    for loss, more in ((value_losses.QLoss(), ()), (value_losses.CategoricalLoss(), (7,))):
        wide = {k: v.reshape(3, 3, *[1] * len(more)).repeat(1, 1, *more).float() for k, v in out.items()}
        result = loss(wide, {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}, None)
        assert result.loss.isnan()
        assert result.priority.isnan().tolist() == [False, True, False]


# ------------------------------------------------------------------------------------------------ categorical


@QUICK
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["sum", "mean"]), st.booleans())
def test_the_gradient_of_the_categorical_loss_is_the_difference_of_distributions(
    lanes: int, seed: int, reduction: str, double: bool
) -> None:
    rng = np.random.default_rng(seed)
    out = {k: torch.tensor(rng.normal(size=(lanes, 3, 5))) for k in ("q", "target", "online")}
    _, batch = transitions(lanes, seed)
    if not double:
        out.pop("online")
    result, grad = scored(value_losses.CategoricalLoss(-2.0, 2.0, reduction, "ce"), out, batch)
    _, floors = scored(value_losses.CategoricalLoss(-2.0, 2.0, reduction, "kl"), out, batch)
    assert torch.equal(grad, floors)
    z = np.linspace(-2.0, 2.0, 5)
    total = 0.0
    for b in range(lanes):
        a, w = int(batch["action"][b]), float(batch["weight"][b])
        judge = (out["online"] if double else out["target"])[b].softmax(-1).numpy() @ z
        ahead = out["target"][b, judge.argmax()].softmax(-1).tolist()
        m = np.array(twins.project(ahead, float(batch["return"][b]), float(batch["discount"][b]), -2.0, 2.0))
        p = out["q"][b, a].softmax(-1).numpy()
        scale = w / (lanes if reduction == "mean" else 1)
        expected = np.zeros((3, 5))
        expected[a] = scale * (p - m)
        np.testing.assert_allclose(grad[b].numpy(), expected, atol=1e-6)
        assert float(result.priority[b]) == pytest.approx(-(m * np.log(p)).sum(), rel=1e-4)
        total -= scale * (m * np.log(p)).sum()
    assert float(result.loss.detach()) == pytest.approx(total, rel=1e-4)
    assert set(result.metrics) == set(value_losses.CategoricalLoss.metrics)


def test_only_the_divergence_is_nothing_where_all_is_learnt() -> None:
    logits = torch.randn(4, 2, 11)
    out = {"q": logits.clone(), "target": logits}
    batch = {"action": q_heads.expected_value(logits, -10.0, 10.0).argmax(1), "return": torch.zeros(4)}
    batch["discount"] = torch.ones(4)
    kl, ce = (value_losses.CategoricalLoss(priority=how)(out, batch, None).priority for how in ("kl", "ce"))
    assert (kl < 1e-4).all()
    assert (ce > 0.5).all()


# ------------------------------------------------------------------------------------------------ sequences


def rows(length: int, width: int, seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    batch = {k: torch.tensor(draw.random((length, width)) < 0.15) for k in ("terminated", "first")}
    batch["first"][1:] |= batch["terminated"][:-1]
    batch["valid"] = torch.ones(length, width, dtype=torch.bool)
    batch["valid"][length - int(draw.integers(3)) :, 0] = False
    reward, action = draw.normal(size=(length, width)) * 2, draw.integers(3, size=(length, width))
    return {**batch, "reward": torch.tensor(reward), "action": torch.tensor(action)}


@QUICK
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from(["extra", "short"]),
    st.sampled_from([1e-3, 0.0]),
    st.sampled_from(["sum", "mean"]),
)
def test_sequences_equal_the_plain_twin(seed: int, n: int, tail: str, rescale: float, time: str) -> None:
    burn, length, width = seed % 3, 8, 3
    batch = rows(burn + length, width, seed)
    batch["weight"] = torch.tensor(np.random.default_rng(seed).random(width))
    draw = np.random.default_rng(seed + 1)
    out = {k: torch.tensor(draw.normal(size=(length, width, 3)) * 2) for k in ("q", "target", "online")}
    loss = value_losses.SequenceLoss(gamma=0.9, n=n, tail=tail, rescale=rescale, time=time, reward="clip")
    result, grad = scored(loss, out, batch)
    best = out["online"].argmax(-1)
    ahead = q_heads.take_action(out["target"], best).numpy()
    total = 0.0
    for b in range(width):
        keys = ("terminated", "first", "valid")
        lane: dict[str, Any] = {k: batch[k][burn:, b].tolist() for k in keys}
        lane |= {"reward": batch["reward"][burn:, b].clamp(-1, 1).tolist(), "ahead": ahead[:, b].tolist()}
        goal, learnt = twins.sequence(lane, 0.9, n, rescale or None, tail)
        actions = batch["action"][burn:, b]
        errors = [goal[i] - float(out["q"][i, b, actions[i]]) for i in range(length - 1) if learnt[i]]
        weight = float(batch["weight"][b])
        share = 1.0 if time == "sum" else 1.0 / max(1, len(errors))
        total += weight * share * sum(0.5 * e * e for e in errors) / width
        size = [abs(e) for e in errors]
        priority = 0.9 * max(size) + 0.1 * sum(size) / len(size) if size else 0.0
        assert float(result.priority[b]) == pytest.approx(priority, rel=1e-6)
        expected = np.zeros((length, 3))
        for i, e in zip([i for i in range(length - 1) if learnt[i]], errors, strict=True):
            expected[i, actions[i]] = -weight * share * e / width
        np.testing.assert_allclose(grad[:, b].numpy(), expected, rtol=1e-6, atol=1e-9)
    assert float(result.loss.detach()) == pytest.approx(total, rel=1e-6)
    assert set(result.metrics) == set(value_losses.SequenceLoss.metrics)
    learnt = [(i, b) for i in range(length - 1) for b in range(width) if grad[i, b].any()]
    own = np.array([float(out["q"][i, b, batch["action"][burn + i, b]]) for i, b in learnt])
    if len(learnt) == round(float(result.metrics["rows_mean"]) * width) > 0:  # no error happened to be 0
        own = unscale(own, rescale) if rescale else own
        assert float(result.metrics["q_mean"]) == pytest.approx(own.mean()), "without h"


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: value_losses.QLoss("total"), "reduction is 'total'; use one of mean, sum"),
        (lambda: value_losses.QLoss(clip=-1.0), "clip is -1.0; it must be 0 or more"),
        (lambda: value_losses.QLoss(weighted="both"), "weighted is 'both'; use one of loss, error"),
        (lambda: value_losses.CategoricalLoss(3.0, 3.0), "low is 3.0 and high 3.0; low must be below high"),
        (lambda: value_losses.CategoricalLoss(priority="td"), "priority is 'td'; use one of ce, kl"),
        (lambda: value_losses.SequenceLoss(tail="repeat"), "tail is 'repeat'; use one of extra, short"),
        (lambda: value_losses.SequenceLoss(n=0), "n is 0; it must be a whole number from 1 up"),
        (lambda: value_losses.SequenceLoss(eta=1.5), "eta is 1.5; it must be between 0 and 1"),
        (lambda: value_losses.SequenceLoss(rescale=-0.1), "rescale is -0.1; it must be 0 or more"),
        (lambda: value_losses.SequenceLoss(time="max"), "time is 'max'; use one of sum, mean"),
    ],
)
def test_settings_out_of_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_losses_travel() -> None:
    for loss in (
        value_losses.QLoss("sum", weighted="error"),
        value_losses.CategoricalLoss(),
        value_losses.SequenceLoss(tail="short"),
    ):
        assert pickle.loads(pickle.dumps(loss)) == loss


# ------------------------------------------------------------------------------------------------ outputs


def pair(**options: Any) -> tuple[Any, Any]:
    return tuple(factory.make_values("mlp", SPEC, hidden=(16,), **options) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("options", [{}, {"dueling": True, "atoms": 5}])
def test_each_network_is_asked_once_and_only_the_first_pass_has_a_gradient(options: Any) -> None:
    policy, target = pair(**options)
    obs = torch.randn(2, 7, 5)
    calls: list[tuple[str, int, bool]] = []
    for name, net in (("policy", policy), ("target", target)):
        net.torso.register_forward_hook(
            lambda _m, given, _out, name=name: calls.append((name, len(given[0]), torch.is_grad_enabled()))
        )
    out = value_losses.q_outputs(policy, target, {"obs": obs}, double=True)
    assert sorted(calls) == [("policy", 7, False), ("policy", 7, True), ("target", 7, False)]
    assert [out[k].requires_grad for k in ("q", "target", "online")] == [True, False, False]
    shape = (7, 3, 5) if options else (7, 3)
    assert all(v.shape == shape for v in out.values())
    torch.testing.assert_close(out["online"], policy.scores({"obs": obs}, {})[1])
    torch.testing.assert_close(out["target"], target.scores({"obs": obs}, {})[1])
    calls.clear()
    assert set(value_losses.q_outputs(policy, target, {"obs": obs}, double=False)) == {"q", "target"}
    assert len(calls) == 2


def test_burn_in_is_walked_by_both_without_gradient() -> None:
    policy, target = pair(core="lstm", core_size=6, previous=True, dueling=True)
    batch = {"obs": torch.randn(9, 4, 5), "reward": torch.randn(9, 4), "action": torch.randint(3, (9, 4))}
    batch["first"] = torch.rand(9, 4) < 0.2
    state = {"h": torch.randn(4, 6), "c": torch.randn(4, 6), "action": torch.randint(3, (4,))}
    whole = value_losses.q_outputs(policy, target, batch, state, double=True, burn_in=0)
    late = value_losses.q_outputs(policy, target, batch, state, double=True, burn_in=3)
    for k in ("q", "target", "online"):
        assert late[k].shape == (6, 4, 3)
        torch.testing.assert_close(late[k], whole[k][3:])
    gradients = []
    for out, weight in ((whole["q"][3:], 1.0), (late["q"], 1.0)):
        policy.zero_grad()
        (weight * out.square().sum()).backward()
        gradients.append(policy.core.cell.recurrent.weight.grad.clone())
    assert not torch.allclose(*gradients), "the burn-in is behind a wall"
    assert all(p.grad is None for p in target.parameters())
    with pytest.raises(ValueError, match="a network with memory learns from sequences"):
        value_losses.q_outputs(policy, target, {"obs": batch["obs"][:2]})


def test_every_pass_has_noise_of_its_own_by_the_key() -> None:
    policy, target = pair(noisy="fortunato")
    target.load_state_dict(policy.state_dict())
    obs = torch.randn(1, 6, 5).repeat(2, 1, 1)
    one, same, other = (value_losses.q_outputs(policy, target, {"obs": obs}, double=True, key=k) for k in (7, 7, 8))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one)
    assert not torch.equal(one["q"], one["online"])
    assert not torch.equal(one["target"], one["online"])
    quiet = value_losses.q_outputs(policy, target, {"obs": obs}, double=True)
    assert torch.equal(quiet["q"], quiet["online"])
    assert torch.equal(quiet["q"], quiet["target"])


@pytest.mark.parametrize("options", [{}, {"atoms": 11, "dueling": True}, {"noisy": "zoo"}])
def test_a_known_target_is_learnt(options: Any) -> None:
    """Rewards by state and action alone: Q becomes them, whatever the head."""
    policy, target = pair(**options)
    obs, worth = torch.randn(64, 5), torch.randn(5, 3).clamp(-1, 1)
    loss = value_losses.CategoricalLoss(-10.0, 10.0) if "atoms" in options else value_losses.QLoss()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    errors = []
    for update in range(120):
        at, action = torch.randint(64, (32,)), torch.randint(3, (32,))
        batch = {"obs": obs[at].repeat(2, 1, 1), "action": action, "discount": torch.zeros(32)}
        batch["return"] = (obs[at] @ worth)[torch.arange(32), action]
        result = loss(value_losses.q_outputs(policy, target, batch, double=True, key=update), batch, None)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        errors.append(float(result.metrics["td_abs"]))
    assert np.mean(errors[-20:]) < 0.35 * np.mean(errors[:20])
