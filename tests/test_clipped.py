"""PPO's loss against a plain twin, for every option; what it refuses."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import twins
from test_losses import example, lane_of, tensors

from polyplay import clipped
from polyplay.errors import UserError

KNOBS = SimpleNamespace(entropy_cost=0.02, left=0.6)
OPTIONS = [
    dict(zip(("value_clip", "normalize_advantage", "anneal_clip"), flags, strict=True))
    for flags in itertools.product((False, True), repeat=3)
]


def twin(loss, out, batch):
    """Loss, value loss and policy loss, transition by transition in float64 (Schulman et al. 2017, eq. 7 and 9)."""
    rows, reach = [], loss.clip_range * (KNOBS.left if loss.anneal_clip else 1.0)
    squashed = np.array([[twins.squash(r, loss.reward, loss.reward_scale) for r in row] for row in batch["reward"]])
    for b in range(batch["reward"].shape[1]):
        lane = lane_of(batch, b, reward=squashed)
        goal = twins.lambda_return(lane, loss.gamma, loss.lam)
        for t in range(len(goal)):
            if not lane["first"][t + 1]:
                rows.append((t, b, goal[t] - lane["value"][t], goal[t]))
    advantages = np.array([r[2] for r in rows])
    if loss.normalize_advantage:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy, value, entropy = [], [], []
    for (t, b, _, goal), advantage in zip(rows, advantages, strict=True):
        ratio = np.exp(out["logp"][t, b] - batch["logp"][t, b])
        near = min(max(ratio, 1 - reach), 1 + reach)
        policy.append(-min(advantage * ratio, advantage * near))
        v, old = out["value"][t, b], batch["value"][t, b]
        errors = [(goal - v) ** 2]
        if loss.value_clip:
            errors.append((goal - (old + min(max(v - old, -reach), reach))) ** 2)
        value.append(max(errors))
        entropy.append(out["entropy"][t, b])
    total = np.mean(policy) + loss.value_cost * np.mean(value) - KNOBS.entropy_cost * np.mean(entropy)
    return total, np.mean(value), np.mean(policy)


def score(loss, out, batch, grad=False):
    rows = tensors(batch)
    prepared = loss.prepare(rows)
    heads = tensors({k: v[:-1] for k, v in out.items()}, grad)
    return loss(heads, {**{k: rows[k][:-1] for k in ("logp", "value")}, **prepared}, KNOBS), heads


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_plain_twin(options, seed):
    loss = clipped.ppo(0.9, 0.8, 0.3, value_cost=0.7, reward="none", reward_scale=0.5, **options)
    out, batch = example(seed)
    out["logp"] = batch["logp"] + 0.5 * (out["logp"] - batch["logp"])  # ratios on both sides of both bounds
    scored, _ = score(loss, out, batch)
    total, value, policy = twin(loss, out, batch)
    assert scored.loss.item() == pytest.approx(total, rel=1e-9)
    assert scored.metrics["value_loss"].item() == pytest.approx(value, rel=1e-9)
    assert scored.metrics["policy_loss"].item() == pytest.approx(policy, rel=1e-9)
    assert 0.0 < scored.metrics["clip_fraction"].item() < 1.0
    assert scored.metrics["clip_range"].item() == pytest.approx(0.18 if options["anneal_clip"] else 0.3)


@pytest.mark.parametrize("options", OPTIONS[::3], ids=str)
def test_its_gradient_is_that_of_finite_differences(options):
    loss = clipped.ppo(0.9, 0.8, 0.3, reward="none", **options)
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


def test_a_minibatch_of_single_transitions_counts_as_they_do_in_the_rollout():
    """Without normalisation the rollout's loss is the mean of its transitions' losses."""
    loss = clipped.ppo(reward="none", value_clip=True)
    out, batch = example(2)
    whole, _ = score(loss, out, batch)
    rows = tensors(batch)
    prepared = loss.prepare(rows)
    each = []
    for t, b in prepared["valid"].nonzero().tolist():
        one = {k: v[t, b].reshape(1, 1) for k, v in {"logp": rows["logp"], "value": rows["value"], **prepared}.items()}
        heads = {k: torch.tensor(v[t, b]).reshape(1, 1) for k, v in out.items()}
        each.append(loss(heads, one, KNOBS).loss.item())
    assert whole.loss.item() == pytest.approx(np.mean(each), rel=1e-9)


def test_what_is_not_valid_is_ignored_even_nan():
    loss = clipped.ppo(normalize_advantage=True, value_clip=True)
    out, batch = example(0)
    before, _ = score(loss, out, batch)
    void = batch["first"][1:]
    for name in out:
        out[name][:-1][void] = np.nan
    batch["logp"][:-1][void] = np.nan
    after, heads = score(loss, out, batch, grad=True)
    after.loss.backward()
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-12)
    assert all(torch.isfinite(h.grad).all() for h in heads.values())


def test_shapes_and_settings_that_do_not_fit_are_refused():
    loss = clipped.ppo()
    out, batch = example(0)
    rows = tensors(batch)
    with pytest.raises(ValueError, match=r"all must be one shape; got .*out value \[9, 3\]"):
        loss(tensors(out), {**{k: rows[k][:-1] for k in ("logp", "value")}, **loss.prepare(rows)}, KNOBS)
    for wrong, told in (({"clip_range": 0.0}, "clip_range is 0.0"), ({"lam": 1.1}, "lam is 1.1")):
        with pytest.raises(UserError, match=told):
            clipped.ppo(**wrong)
