"""PPO's and APPO's losses against plain twins, for every option; what they refuse."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.learning import policy_losses, returns
from tests import twins
from tests.learning.test_policy_gradient import example, lane_of, tensors

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
    loss = policy_losses.PPO(0.9, 0.8, 0.3, value_cost=0.7, reward="none", reward_scale=0.5, **options)
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
    loss = policy_losses.PPO(0.9, 0.8, 0.3, reward="none", **options)
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
    loss = policy_losses.PPO(reward="none", value_clip=True)
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
    loss = policy_losses.PPO(normalize_advantage=True, value_clip=True)
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
    loss = policy_losses.PPO()
    out, batch = example(0)
    rows = tensors(batch)
    with pytest.raises(ValueError, match=r"all must be one shape; got .*out value \[9, 3\]"):
        loss(tensors(out), {**{k: rows[k][:-1] for k in ("logp", "value")}, **loss.prepare(rows)}, KNOBS)
    for wrong, told in (({"clip_range": 0.0}, "clip_range is 0.0"), ({"lam": 1.1}, "lam is 1.1")):
        with pytest.raises(UserError, match=told):
            policy_losses.PPO(**wrong)


# -------------------------------------------------------------------------------------------- APPO: on V-trace


def twin_appo(loss, out, batch):
    """Loss, value loss and policy loss, transition by transition in float64: V-trace's targets written out, and
    A = r + γ·v' − V, whose only ratio is the surrogate's own.
    """
    rows = []
    squashed = np.array([[twins.squash(r, loss.reward, loss.reward_scale) for r in row] for row in batch["reward"]])
    log_rho = out["logp"] - batch["logp"]
    for b in range(batch["reward"].shape[1]):
        lane = {**lane_of(batch, b, reward=squashed), "value": out["value"][:, b].tolist()}
        lane["log_rho"] = log_rho[:, b].tolist()
        goal, advantage = twins.vtrace(lane, loss.gamma, 1.0, 1.0, None, loss.lam)
        for t in range(len(goal)):
            if not lane["first"][t + 1]:
                rows.append((t, b, advantage[t] / np.exp(lane["log_rho"][t]), goal[t]))
    advantages = np.array([r[2] for r in rows])
    if loss.normalize_advantage:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy, value, entropy = [], [], []
    for (t, b, _, goal), advantage in zip(rows, advantages, strict=True):
        ratio = np.exp(log_rho[t, b])
        policy.append(-min(advantage * ratio, advantage * min(max(ratio, 1 - loss.clip_range), 1 + loss.clip_range)))
        v, old = out["value"][t, b], batch["value"][t, b]
        errors = [(goal - v) ** 2]
        if loss.value_clip:
            errors.append((goal - (old + min(max(v - old, -loss.clip_range), loss.clip_range))) ** 2)
        value.append(max(errors))
        entropy.append(out["entropy"][t, b])
    total = np.mean(policy) + loss.value_cost * np.mean(value) - KNOBS.entropy_cost * np.mean(entropy)
    return total, np.mean(value), np.mean(policy)


def trajectory(seed, events=None, begin="go"):
    """An example's rows; `events`: what arrives at rows 1.. of lane 0, as twins.lane_flags has it."""
    out, batch = example(seed)
    out["logp"] = batch["logp"] + 0.5 * (out["logp"] - batch["logp"])
    if events is not None:
        for k, flags in twins.lane_flags(list(events), begin).items():
            batch[k][:, 0] = flags
    return out, batch


def score_appo(loss, out, batch, grad=False):
    heads = tensors(out, grad)
    return loss(heads, tensors(batch), KNOBS), heads


def same(loss, out, batch):
    scored, _ = score_appo(loss, out, batch)
    total, value, policy = twin_appo(loss, out, batch)
    assert scored.loss.item() == pytest.approx(total, rel=1e-9)
    assert scored.metrics["value_loss"].item() == pytest.approx(value, rel=1e-9)
    assert scored.metrics["policy_loss"].item() == pytest.approx(policy, rel=1e-9)
    return scored


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("more", [{}, {"normalize_advantage": False}, {"value_clip": True}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_appo_is_its_plain_twin(seed, more, lam):
    loss = policy_losses.APPO(0.9, lam, 0.3, value_cost=0.7, reward="none", reward_scale=0.5, **more)
    scored = same(loss, *trajectory(seed))
    assert 0.0 < scored.metrics["clip_fraction"].item() < 1.0
    assert 0.0 < scored.metrics["rho_clipped"].item() < 1.0
    assert scored.metrics["clip_range"].item() == pytest.approx(0.3), "it does not fall"


GO = "go"
CASES = {
    "termination": [GO, GO, "terminate", GO, GO, GO, GO, GO],
    "truncation": [GO, GO, "truncate", GO, GO, GO, GO, GO],
    "both": [GO, GO, "both", GO, GO, GO, GO, GO],
    "episodes of one step": ["terminate", GO, "terminate", GO, "truncate", GO, "both", GO],
    "the end is the last row": [GO, GO, GO, GO, GO, GO, GO, "terminate"],
    "cut at the last row": [GO, GO, GO, GO, GO, GO, GO, "truncate"],
    "a final row just before the last": [GO, GO, GO, GO, GO, GO, "terminate", GO],
    "begun anew in mid-episode": [GO, "restart", GO, GO, "restart", "restart", GO, GO],
    "nothing is valid": ["restart"] * 8,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("begin", ["go", "first", "terminate", "truncate"])
def test_appo_ends_where_episodes_do(name, begin):
    loss, (out, batch) = policy_losses.APPO(0.9, 0.8, 0.3, reward="none"), trajectory(3, CASES[name], begin)
    scored = same(loss, out, batch)
    assert scored.loss.isfinite()
    valid = ~batch["first"][1:, 0]
    assert valid.any() != (name == "nothing is valid"), "what the case is about, in the first lane"


def test_a_truncated_episode_goes_on_in_its_value_and_a_terminated_one_does_not():
    """By hand, one lane, one step: A = r + γ·V − V₀, or r − V₀."""
    loss = policy_losses.APPO(0.5, 1.0, 0.3, reward="none", normalize_advantage=False, value_cost=0.0)
    for kind, ahead in (("truncated", 4.0), ("terminated", 0.0)):
        rows = {k: torch.zeros(2, 1, dtype=torch.bool) for k in ("terminated", "truncated", "first")}
        rows[kind][1] = True
        rows |= {k: torch.tensor([[0.0], [1.0]], dtype=torch.float64) for k in ("reward", "logp", "value")}
        out = {"logp": rows["logp"], "value": torch.tensor([[3.0], [4.0]], dtype=torch.float64)}
        out["entropy"] = torch.zeros(2, 1, dtype=torch.float64)
        hyperparameters = SimpleNamespace(entropy_cost=0.0)
        assert loss({**out}, rows, hyperparameters).loss.item() == pytest.approx(-(1.0 + 0.5 * ahead - 3.0))


@pytest.mark.parametrize("more", [{}, {"value_clip": True}, {"normalize_advantage": True}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_on_policy_with_lambda_1_it_is_ppo(more, seed):
    """The present values and log-probabilities are those stored: V-trace's target is the n-step return."""
    own = {"value_cost": 0.7, "reward": "none", "normalize_advantage": False, **more}
    out, batch = example(seed)
    out["logp"], out["value"] = batch["logp"].copy(), batch["value"].copy()
    one, ours = score_appo(policy_losses.APPO(0.9, 1.0, 0.3, **own), out, batch, grad=True)
    two, theirs = score(policy_losses.PPO(0.9, 1.0, 0.3, anneal_clip=False, **own), out, batch, grad=True)
    assert one.loss.item() == pytest.approx(two.loss.item(), rel=1e-9)
    one.loss.backward()
    two.loss.backward()
    for k in ("logp", "value", "entropy"):
        torch.testing.assert_close(ours[k].grad[:-1], theirs[k].grad)
    assert one.metrics["rho_clipped"].item() == 0.0


@pytest.mark.parametrize("more", [{}, {"normalize_advantage": False, "value_clip": True}], ids=str)
def test_targets_and_advantages_carry_no_gradient(more):
    """The gradient is that of finite differences with V-trace's results held as they are."""
    loss = policy_losses.APPO(0.9, 0.8, 0.3, reward="none", **more)
    out, batch = trajectory(1)
    scored, heads = score_appo(loss, out, batch, grad=True)
    scored.loss.backward()
    held = {}
    keep = returns.vtrace

    def fixed(steps, value, log_rho, **kw):
        held.setdefault("x", keep(steps, value, log_rho, **kw))
        return held["x"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns, "vtrace", fixed)
        score_appo(loss, out, batch)
        plain = {k: torch.from_numpy(v[:-1]) for k, v in out.items()}
        acted = {k: torch.from_numpy(batch[k][:-1]) for k in ("logp", "value")}
        steps = returns.transitions(tensors(batch), loss.gamma)
        goal = held["x"].target
        ahead = torch.cat([goal[1:], torch.from_numpy(out["value"][-1:])])
        advantage = steps.reward + steps.discount * ahead - plain["value"]

        def total(given):
            over = returns.MaskedMean(steps.valid)
            return policy_losses._surrogate(
                loss, given, acted, over, advantage, goal, loss.clip_range, KNOBS
            ).loss.item()

        for name in ("logp", "value", "entropy"):
            found = np.zeros_like(out[name])
            for at in np.ndindex(found[:-1].shape):
                ends = []
                for step in (1e-6, -1e-6):
                    moved = {k: v.clone() for k, v in plain.items()}
                    moved[name][at] += step
                    ends.append(total(moved))
                found[at] = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(heads[name].grad.numpy(), found, atol=1e-7, err_msg=name)


def test_appo_ignores_what_is_not_valid_even_nan():
    loss = policy_losses.APPO(value_clip=True)
    out, batch = trajectory(0, CASES["episodes of one step"])
    before, _ = score_appo(loss, out, batch)
    void = batch["first"][1:]
    assert void.any()
    for name in ("logp", "entropy"):
        out[name][:-1][void] = np.nan
        out[name][-1] = np.nan
    batch["logp"][:-1][void] = np.nan
    batch["reward"][0] = np.nan
    after, heads = score_appo(loss, out, batch, grad=True)
    after.loss.backward()
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-12)
    assert all(torch.isfinite(h.grad).all() for h in heads.values())


def test_appo_refuses_shapes_and_settings_that_do_not_fit():
    out, batch = example(0)
    with pytest.raises(ValueError, match=r"all must be one \[T\+1, B\] shape"):
        policy_losses.APPO()(tensors({**out, "value": out["value"][:-1]}), tensors(batch), KNOBS)
    for wrong, told in (({"clip_range": 0.0}, "clip_range is 0.0"), ({"lam": 1.1}, "lam is 1.1")):
        with pytest.raises(UserError, match=told):
            policy_losses.APPO(**wrong)
