"""polyplay/learning/value_losses.py:
the loss and its gradients against plain sums and by hand; what the networks are asked.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box
from polyplay.learning import value_losses
from polyplay.learning.value_losses import DPGLoss
from polyplay.nets import factory

QUICK = settings(max_examples=60, deadline=None)
BOX = Box((2,), np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
SPEC = EnvSpec(Field((3,), "float32"), BOX)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def drawn(lanes: int, seed: int, size: float = 2.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs over 2 numbers and a batch, float64."""
    draw = np.random.default_rng(seed)
    out = {k: torch.tensor(draw.normal(size=lanes) * size) for k in ("q", "target", "value")}
    out |= {k: torch.tensor(draw.normal(size=(lanes, 2)) * size) for k in ("slope", "best", "raw")}
    batch = {"return": torch.tensor(draw.normal(size=lanes)), "weight": torch.tensor(draw.random(lanes))}
    return out, batch | {"discount": torch.tensor(draw.choice([0.0, 0.9], size=lanes))}


@QUICK
@given(
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 0.25]),
    st.booleans(),
    st.sampled_from([0, 0.3]),
)
def test_the_gradients_are_the_weighted_error_the_limited_slope_and_the_rein(
    lanes: int, seed: int, clip: float, weights: bool, rein: float
) -> None:
    out, batch = drawn(lanes, seed)
    if not weights:
        batch.pop("weight")
    q, best, raw = (out[k].clone().requires_grad_() for k in ("q", "best", "raw"))
    result = DPGLoss(clip, rein)({**out, "q": q, "best": best, "raw": raw}, batch, None)
    result.loss.backward()
    bound, critic = clip or float("inf"), 0.0
    for b in range(lanes):
        w = float(batch["weight"][b]) if weights else 1.0
        error = float(batch["return"][b] + batch["discount"][b] * out["target"][b] - out["q"][b])
        critic += w * error**2 / 2 / lanes
        assert float(q.grad[b]) == pytest.approx(-w * error / lanes, rel=1e-9, abs=1e-12)
        assert float(result.priority[b]) == pytest.approx(abs(error), rel=1e-9)
        limited = [max(-bound, min(bound, float(x))) for x in out["slope"][b]]
        assert best.grad[b].tolist() == pytest.approx([-x / lanes for x in limited], rel=1e-9), "not weighted"
        pulled = [rein * 2.0 * (x - max(-2.0, min(2.0, x))) / lanes for x in out["raw"][b].tolist()]
        assert raw.grad[b].tolist() == pytest.approx(pulled, rel=1e-9, abs=1e-12)
    assert not result.priority.requires_grad
    assert set(result.metrics) == set(DPGLoss.metrics)
    assert float(result.metrics["critic_loss"]) == pytest.approx(critic, rel=1e-9)
    assert float(result.metrics["policy_value"]) == pytest.approx(float(out["value"].mean()))
    beyond = (out["slope"].abs() > bound).double().mean()
    assert float(result.metrics["slope_clipped"]) == pytest.approx(float(beyond))
    assert float(result.metrics["at_ends"]) == pytest.approx(float((out["best"].abs() > 0.99).double().mean()))


def test_what_lies_beyond_a_termination_is_not_used_even_if_it_is_no_number() -> None:
    ret, discount = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.5])
    made = value_losses.targeted(ret, discount, torch.tensor([torch.nan, 4.0]))
    assert made.tolist() == [1.0, 4.0]
    with pytest.raises(ValueError, match=r"must be one \[B\]; got \[2\], \[2\], \[2, 1\]"):
        value_losses.targeted(ret, discount, torch.zeros(2, 1))


def networks() -> tuple[Any, Any]:
    sizes: Any = {"actor": (8, 6), "critic": (9, 7)}
    return factory.make_deterministic("mlp", SPEC, **sizes), factory.make_deterministic("mlp", SPEC, **sizes)


def transitions(lanes: int) -> dict[str, Any]:
    action = torch.rand(lanes, 2) * torch.tensor([4.0, 1.0]) - torch.tensor([2.0, 0.0])
    batch = {"obs": torch.randn(2, lanes, 3), "action": action, "return": torch.randn(lanes)}
    return batch | {"discount": torch.full((lanes,), 0.9), "weight": torch.rand(lanes)}


def test_targets_are_the_target_networks_own_actor_and_critic() -> None:
    policy, target = networks()
    batch = transitions(5)
    out = value_losses.dpg_outputs(policy, target, batch, {}, key=3)
    best = target.act({"obs": batch["obs"][1]}, {})[0]["action"]
    twin = target.unroll({"obs": batch["obs"][1:], "action": best[None]}, {})["chosen"][0]
    torch.testing.assert_close(out["target"], twin, atol=1e-6, rtol=1e-5)
    assert not out["target"].requires_grad
    now = policy.unroll({"obs": batch["obs"][:1], "action": batch["action"][None]}, {})
    torch.testing.assert_close(out["q"], now["chosen"][0])
    torch.testing.assert_close(out["value"], now["value"][0])


@pytest.mark.parametrize("limited", [False, True])
def test_the_actor_goes_up_q_and_the_critic_towards_its_target_by_finite_differences(limited: bool) -> None:
    """The actor's gradient is −d/dθ mean Q(s, μ(s)) where nothing is clipped, the critic's its error's."""
    policy, target = networks()
    batch = transitions(6)
    out = value_losses.dpg_outputs(policy, target, batch)
    clip = float(out["slope"].abs().median()) if limited else 0.0
    if clip:
        assert 0.0 < float(DPGLoss(clip)(out, batch, None).metrics["slope_clipped"]) < 1.0
    DPGLoss(clip)(out, batch, None).loss.backward()
    goal = (batch["return"] + 0.9 * out["target"]).detach()
    bound = clip or torch.inf
    slope = out["slope"].clamp(-bound, bound)

    def ascent() -> torch.Tensor:
        if not clip:
            return -policy.value(batch["obs"][0]).mean()
        return -(slope * policy.learnt(batch["obs"][0], batch["action"])["best"]).sum(1).mean()

    def descent() -> torch.Tensor:
        now = policy.learnt(batch["obs"][0], batch["action"])["q"]
        return (batch["weight"] * 0.5 * (goal - now).square()).mean()

    for name, p in policy.named_parameters():
        of = ascent if name.startswith(("actor", "steer")) else descent
        grad = p.grad.flatten()
        most = int(grad.abs().argmax())
        found = []
        for h in (1e-2, -1e-2):
            with torch.no_grad():
                kept = p.flatten()[most].item()
                p.view(-1)[most] = kept + h
            found.append(float(of().detach()))
            with torch.no_grad():
                p.view(-1)[most] = kept
        assert float(grad[most]) == pytest.approx((found[0] - found[1]) / 2e-2, rel=2e-2, abs=2e-6), name
        torch.testing.assert_close(torch.autograd.grad(of(), p, retain_graph=True)[0], p.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("rein", "back"), [(0.0, False), (0.05, True)])
def test_an_actor_that_was_driven_to_an_end_comes_back_with_a_rein_alone(rein: float, back: bool) -> None:
    """A young critic says "more" for long, as Pendulum's does, then "less": without a rein tanh has no slope left."""
    policy = networks()[0]
    batch, loss = transitions(16), DPGLoss(1.0, rein)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def led(slope: float, updates: int) -> torch.Tensor:
        for _ in range(updates):
            out = value_losses.dpg_outputs(policy, policy, batch)
            optimizer.zero_grad()
            loss({**out, "slope": torch.full_like(out["slope"], slope)}, batch, None).loss.backward()
            optimizer.step()
        return policy.learnt(batch["obs"][0], batch["action"])["best"].detach()

    assert (led(1.0, 300) > 0.9).all()
    after = led(-1.0, 200)
    assert (after < -0.9).all() if back else (after > 0.9).all()


def test_it_is_plain_values() -> None:
    assert pickle.loads(pickle.dumps(DPGLoss(0.5))) == DPGLoss(0.5)
