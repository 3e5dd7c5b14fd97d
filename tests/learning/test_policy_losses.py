"""Losses of policy gradients against plain twins: A2C, V-trace, PPO, APPO, GA3C's chunks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.learning import losses
from tests import twins

QUICK = settings(max_examples=80, deadline=None)
KNOBS = {"entropy_cost": 0.01}
HEADS = ("logp", "value", "entropy")
GA3C = losses.A2C(reduction="sum", value_half=True, value_cost=1.0, baseline="present")
Case = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


@st.composite
def cases(draw: Any) -> Case:
    """Learner's outputs and rows [T+1, B] in float64, with lag, rewards beyond ±1, episodes of all kinds."""
    horizon, width = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    flags = []
    for _ in range(width):
        events = draw(st.lists(st.sampled_from(twins.EVENTS), min_size=horizon, max_size=horizon))
        flags.append(twins.lane_flags(events, draw(st.sampled_from(["first", *twins.EVENTS]))))
    return numbers(flags, draw(st.integers(0, 2**32 - 1)))


def numbers(flags: list[dict[str, list[bool]]], seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batch = {k: np.array([f[k] for f in flags]).T.copy() for k in flags[0]}
    shape = batch["first"].shape
    batch |= {"reward": rng.normal(size=shape) * 2, "value": rng.normal(size=shape)}
    batch["logp"] = -rng.exponential(size=shape)
    out = {"logp": -rng.exponential(size=shape), "value": rng.normal(size=shape), "entropy": rng.random(shape)}
    return out, batch


def example(seed: int = 0) -> Case:
    """8 steps of 3 lanes with terminations, a truncation, an episode of length 1 and a restart."""
    kinds = [
        ("first", ["go", "terminate", "first", "terminate", "first", "go", "go", "truncate"]),
        ("go", ["go", "truncate", "first", "go", "go", "restart", "go", "go"]),
        ("terminate", ["first", "go", "both", "first", "go", "go", "go", "go"]),
    ]
    return numbers([twins.lane_flags(events, begin) for begin, events in kinds], seed)


def tensors(arrays: dict[str, np.ndarray], grad: bool = False) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, requires_grad=grad) for k, v in arrays.items()}


def test_metrics_are_measured_once_when_one_is_read() -> None:
    calls, weight = [], torch.ones((), requires_grad=True)

    def measure() -> Any:
        calls.append(torch.is_grad_enabled())
        return [("loss", weight * 2), ("other", weight)]

    metrics = losses.metrics_of(measure)
    assert not calls
    assert ({**metrics}, len(metrics), metrics["other"].requires_grad) == ({"loss": 2.0, "other": 1.0}, 2, False)
    assert calls == [False]


def lane_of(batch: dict[str, np.ndarray], b: int, **more: np.ndarray) -> twins.Lane:
    return {k: v[:, b].tolist() for k, v in (batch | more).items()}


def targets(loss: Any, out: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and targets [T, B] by the twins."""
    squashed = [[twins.squash(r, loss.reward, loss.reward_scale) for r in row] for row in batch["reward"]]
    pairs = []
    for b in range(batch["reward"].shape[1]):
        if isinstance(loss, losses.A2C | losses.PPO):
            lane = lane_of(batch, b, reward=np.array(squashed))
            goal = twins.lambda_return(lane, loss.gamma, loss.lam)
            base = out["value"][:, b] if getattr(loss, "baseline", "acted") == "present" else lane["value"]
            pairs.append(([t - v for t, v in zip(goal, base, strict=False)], goal))
            continue
        log_rho = out["logp"] - batch["logp"]
        lane = lane_of(batch, b, reward=np.array(squashed), value=out["value"], log_rho=log_rho)
        if isinstance(loss, losses.VTrace):
            pairs.append(twins.vtrace(lane, loss.gamma, loss.rho, loss.c, loss.rho_pg, loss.lam)[::-1])
        else:  # APPO: A = r + γ·v' − V, whose only ratio is the surrogate's own
            goal, advantage = twins.vtrace(lane, loss.gamma, 1.0, 1.0, None, loss.lam)
            pairs.append((np.array(advantage) / np.exp(log_rho[:-1, b]), goal))
    advantage, target = (np.array([pair[i] for pair in pairs]).T for i in range(2))
    if getattr(loss, "normalize_advantage", False):
        real = advantage[~batch["first"][1:]]
        if real.size:
            advantage = (advantage - real.mean()) / (real.std() + 1e-8)
    return advantage, target


def gradients(loss: Any, out: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
    """What the loss returns, and its gradient for each head [T+1, B]."""
    heads = tensors(out, grad=True)
    scored = loss.score(heads, tensors(batch), KNOBS)
    scored.loss.backward()
    return scored, {k: heads[k].grad for k in HEADS}


@QUICK
@given(
    cases(),
    st.sampled_from(
        [
            losses.A2C(),
            losses.A2C(gamma=0.9, lam=0.5, value_cost=0.25, reduction="sum", value_half=True, reward="sign"),
            losses.A2C(lam=0.95, normalize_advantage=True, reward="none", reward_scale=0.1),
            GA3C,
            losses.VTrace(),
            losses.VTrace(gamma=0.9, rho=2.0, c=0.7, rho_pg=math.inf, lam=0.9, reduction="mean", value_half=False),
            losses.VTrace(rho=math.inf, c=math.inf, reward="none", value_cost=1.0),
        ]
    ),
)
def test_terms_and_gradients_equal_the_plain_twin(case: Any, loss: Any) -> None:
    out, batch = case
    scored, grads = gradients(loss, out, batch)
    terms, expected = twins.actor_critic(
        out | {"first": batch["first"]},
        *targets(loss, out, batch),
        reduction=loss.reduction,
        value_cost=loss.value_cost,
        value_half=loss.value_half,
        entropy_cost=KNOBS["entropy_cost"],
    )
    assert scored.loss.item() == pytest.approx(terms["loss"], rel=1e-6, abs=1e-8)
    assert tuple(scored.metrics) == loss.metrics
    assert all(v.ndim == 0 and not v.requires_grad for v in scored.metrics.values())
    for name, value in terms.items():
        assert scored.metrics[name].item() == pytest.approx(value, rel=1e-6, abs=1e-8), name
    for name in HEADS:
        np.testing.assert_allclose(grads[name].numpy(), expected[name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("make", [losses.A2C, losses.VTrace])
def test_a_batch_without_any_transition_scores_zero(make: Any) -> None:
    out, batch = numbers([twins.lane_flags(["restart", "restart"], "first")], seed=1)
    for reduction in ("mean", "sum"):
        scored, grads = gradients(make(reduction=reduction), out, batch)
        assert scored.loss.item() == 0.0
        assert all(v.item() == 0.0 for v in scored.metrics.values())
        assert not any(grads[k].any() for k in HEADS)


def test_lag_shows_in_the_metrics() -> None:
    out, batch = example()
    shift = np.full_like(out["logp"], np.log(3.0))
    shift[:4] = -shift[:4]
    batch["logp"] = out["logp"] - shift
    valid = ~batch["first"][1:]
    metrics = losses.VTrace().score(tensors(out), tensors(batch), KNOBS).metrics
    assert metrics["rho_mean"].item() == pytest.approx(np.exp(shift[:-1])[valid].mean())
    assert metrics["rho_clipped"].item() == pytest.approx((shift[:-1] > 0)[valid].mean())
    assert metrics["approx_kl"].item() == pytest.approx(0.5 * np.log(3.0) ** 2)
    open_ended = losses.VTrace(rho=math.inf, c=math.inf).score(tensors(out), tensors(batch), KNOBS)
    assert open_ended.metrics["rho_clipped"].item() == 0.0


def test_explained_variance_is_1_for_perfect_values_and_0_for_constant_targets() -> None:
    out, batch = example()
    _, target = targets(losses.A2C(), out, batch)
    out["value"][:-1] = target
    assert losses.A2C().score(tensors(out), tensors(batch), KNOBS).metrics["explained_variance"].item() == 1.0
    batch |= {"reward": np.zeros_like(batch["reward"]), "value": np.zeros_like(batch["value"])}
    assert losses.A2C().score(tensors(out), tensors(batch), KNOBS).metrics["explained_variance"].item() == 0.0


@pytest.mark.parametrize("make", [losses.A2C, losses.VTrace])
def test_bf16_outputs_are_summed_in_fp32(make: Any) -> None:
    out, batch = example()
    low = {k: v.bfloat16().requires_grad_() for k, v in tensors(out).items()}
    rows = {k: v.float() if v.is_floating_point() else v for k, v in tensors(batch).items()}
    hyperparameters = {"entropy_cost": 10.0}
    scored = make().score(low, rows, hyperparameters)
    scored.loss.backward()
    exact = make().score({k: v.detach().float() for k, v in low.items()}, rows, hyperparameters)
    assert scored.loss.dtype == torch.float32
    torch.testing.assert_close(scored.loss, exact.loss, rtol=1e-6, atol=1e-6)
    assert all(v.grad is not None and v.grad.dtype == torch.bfloat16 for v in low.values())


@pytest.mark.parametrize("loss", [losses.A2C(), losses.VTrace()])
def test_wrong_shapes_are_named(loss: Any) -> None:
    out, batch = (tensors(x) for x in example())
    with pytest.raises(ValueError, match=r"out value \[9, 3, 1\].*batch reward \[9, 3\]"):
        loss.score(out | {"value": out["value"][..., None]}, batch, KNOBS)
    with pytest.raises(ValueError, match=r"out logp \[8, 3\]"):
        loss.score(out | {"logp": out["logp"][1:]}, batch, KNOBS)
    with pytest.raises(ValueError, match=r"batch value \[9, 1\]"):
        loss.score(out, batch | {"value": batch["value"][:, :1]}, KNOBS)


@pytest.mark.parametrize("make", [losses.PPO, losses.APPO])
def test_a_pass_refuses_shapes_that_do_not_fit(make: Any) -> None:
    out, batch = (tensors(x) for x in example())
    loss = make()
    rows = batch | loss.prepare(batch)
    with pytest.raises(ValueError, match=r"all must be one (\[T\+1, B\] )?shape"):
        loss.score({**out, "value": out["value"][:-1]}, rows, KNOBS)


@pytest.mark.parametrize("make", [losses.A2C, losses.VTrace])
def test_rewards_are_scaled_by_what_the_policy_says(make: Any) -> None:
    out, batch = (tensors(x) for x in example())
    said = out | {"reward_scale": torch.tensor(0.25)}
    for scale in (0.5, 1e9):
        bound = (batch["reward"] * scale * 0.25).clamp(-10, 10)
        want = make(reward="none").score(out, batch | {"reward": bound}, KNOBS)
        assert make(reward="scale", reward_scale=scale).score(said, batch, KNOBS).loss == want.loss
    with pytest.raises(ValueError, match="reward='scale' needs a policy with reward_scale"):
        make(reward="scale").score(out, batch, KNOBS)


# PPO's and APPO's losses against plain twins, for every option; what they refuse.

PPO_KNOBS = {"entropy_cost": 0.02, "remaining": 0.6}
OPTIONS = [
    dict(zip(("value_clip", "normalize_advantage", "anneal_clip"), flags, strict=True))
    for flags in itertools.product((False, True), repeat=3)
]


def trajectory(seed):
    """An example's rows."""
    out, batch = example(seed)
    out["logp"] = batch["logp"] + 0.5 * (out["logp"] - batch["logp"])  # ratios on both sides of both bounds
    return out, batch


def twin(loss, out, batch):
    """Loss, value loss and policy loss, transition by transition in float64 (Schulman et al. 2017, eq. 7 and 9)."""
    reach = loss.clip_range * (PPO_KNOBS["remaining"] if getattr(loss, "anneal_clip", False) else 1.0)
    (advantage, target), terms = targets(loss, out, batch), []
    for at in zip(*np.nonzero(~batch["first"][1:]), strict=True):
        ratio = np.exp(out["logp"][at] - batch["logp"][at])
        near = min(max(ratio, 1 - reach), 1 + reach)
        v, old = out["value"][at], batch["value"][at]
        errors = (target[at] - v) ** 2, (target[at] - (old + min(max(v - old, -reach), reach))) ** 2
        surrogate = min(advantage[at] * ratio, advantage[at] * near)
        terms.append((-surrogate, max(errors) if loss.value_clip else errors[0], out["entropy"][at]))
    policy, value, entropy = np.mean(terms, 0)
    return policy + loss.value_cost * value - PPO_KNOBS["entropy_cost"] * entropy, value, policy


def score(loss, out, batch, grad=False):
    rows = tensors(batch)
    if isinstance(loss, losses.PPO):
        rows = {**{k: rows[k][:-1] for k in ("logp", "value")}, **loss.prepare(rows)}
        out = {k: v[:-1] for k, v in out.items()}
    heads = tensors(out, grad)
    return loss.score(heads, rows, PPO_KNOBS), heads


SURROGATES = [(losses.PPO, 0.8, options) for options in OPTIONS]
SURROGATES += [(losses.APPO, lam, more) for lam in (0.0, 0.8, 1.0) for more in ({}, {"value_clip": True})]


@pytest.mark.parametrize(("make", "lam", "options"), SURROGATES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_surrogates_are_the_plain_twin(make, lam, options, seed):
    loss = make(0.9, lam, 0.3, value_cost=0.7, reward="none", reward_scale=0.5, **options)
    scored, _ = score(loss, *trajectory(seed))
    for found, expected in zip(("loss", "value_loss", "policy_loss"), twin(loss, *trajectory(seed)), strict=True):
        assert scored.metrics[found].item() == pytest.approx(expected, rel=1e-9), found
    for name in {"clip_fraction", "rho_clipped"} & {*loss.metrics}:
        assert 0.0 < scored.metrics[name].item() < 1.0
    assert scored.metrics["clip_range"].item() == pytest.approx(0.18 if options.get("anneal_clip") else 0.3)


@pytest.mark.parametrize("options", OPTIONS[::3], ids=str)
def test_its_gradient_is_that_of_finite_differences(options):
    loss = losses.PPO(0.9, 0.8, 0.3, reward="none", **options)
    out, batch = example(1)
    scored, heads = score(loss, out, batch, grad=True)
    scored.loss.backward()
    for name in ("logp", "value", "entropy"):
        found = np.zeros_like(out[name][:-1])
        for at in np.ndindex(found.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = {k: v.copy() for k, v in out.items()}
                moved[name][at] += step
                ends.append(score(loss, moved, batch)[0].loss.item())
            found[at] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(heads[name].grad.numpy(), found, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("fill", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize(
    "loss",
    [
        GA3C,
        losses.A2C(normalize_advantage=True, lam=0.9),
        losses.VTrace(),
        losses.PPO(normalize_advantage=True, value_clip=True),
        losses.APPO(),
    ],
)
def test_what_is_not_valid_is_ignored_whatever_it_is(loss, fill):
    results = []
    for filled in (False, True):
        out, batch = example(0)
        void = batch["first"][1:]
        for x in (*out.values(), batch["logp"]) if filled else ():
            x[:-1][void] = fill if x is not out["value"] or isinstance(loss, losses.PPO) else x[:-1][void]
        if filled:
            batch["reward"][1:][void] = fill
        scored, heads = score(loss, out, batch, grad=True)
        scored.loss.backward()
        results.append((scored, heads))
    (one, clean), (two, dirty) = results
    assert two.loss.item() == pytest.approx(one.loss.item(), rel=1e-12)
    assert {k: v.item() for k, v in two.metrics.items()} == pytest.approx({k: v.item() for k, v in one.metrics.items()})
    for k in clean:
        torch.testing.assert_close(dirty[k].grad, clean[k].grad)
