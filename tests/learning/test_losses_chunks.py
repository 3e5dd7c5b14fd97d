"""Chunks as GA3C's agents send them: returns from values said while acting, rows behind an early end, its loss."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import errors
from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import policy_losses, returns
from polyplay.nets import factory
from polyplay.nets.action_heads import Categorical, LogProbGuard

QUICK = settings(max_examples=40, deadline=None)
KNOBS = SimpleNamespace(entropy_cost=0.01)
GA3C = policy_losses.A2C(reduction="sum", value_half=True, value_cost=1.0, baseline="present")
REWARDS = (1.0, 0.0, 0.0, -1.0, 0.0)
CHUNKS = {
    "bootstrap": (1.9316811, 0.94109202, 0.950598, 0.9602, 1.98),
    "terminal": (0.029701, -0.9801, -0.99, -1.0, 0.0),
    "truncation": (1.9316811, 0.94109202, 0.950598, 0.9602, 1.98),  # the final observation's value is 2 too
}


def chunk(kind: str, padding: int = 0, fill: float = 7.0) -> dict[str, torch.Tensor]:
    """Rows 0..5 of one lane, and `padding` rows behind an episode's last one; the bootstrap value is 2."""
    n = len(REWARDS)
    first = torch.tensor([False] * (n + 1) + [True] * padding)
    terminated, truncated = torch.zeros_like(first), torch.zeros_like(first)
    (terminated if kind == "terminal" else truncated)[n] = kind != "bootstrap"
    reward = torch.tensor([0.0, *REWARDS] + [fill] * padding, dtype=torch.float64)
    value = torch.tensor([0.5, -1.0, 3.0, 0.25, 0.0, 2.0] + [fill] * padding, dtype=torch.float64)
    rows = {"first": first, "terminated": terminated, "truncated": truncated, "reward": reward, "value": value}
    return {k: v.unsqueeze(1) for k, v in rows.items()}


@pytest.mark.parametrize(("kind", "padding"), [(k, n) for k in CHUNKS for n in (0, 1, 4) if n == 0 or k != "bootstrap"])
def test_returns_of_a_chunk(kind: str, padding: int) -> None:
    """Issue's vectors; behind an early end whatever stands there changes nothing."""
    for fill in (7.0, math.nan):
        batch = chunk(kind, padding, fill)
        steps = returns.transitions(batch, 0.99)
        expected = torch.tensor(CHUNKS[kind], dtype=torch.float64)
        log_rho = torch.zeros_like(steps.reward)
        log_rho[5:] = fill
        for got in (
            returns.n_step(steps, batch["value"])[:5, 0],
            returns.n_step(steps, batch["value"], 5)[:5, 0],
            returns.gae(steps, batch["value"], 1.0).target[:5, 0],
            returns.vtrace(steps, batch["value"], log_rho).target[:5, 0],
        ):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
    assert steps.valid.sum() == 5


@pytest.mark.parametrize("kind", CHUNKS)
def test_a_chunks_value_gradient_is_its_distance_to_these_returns(kind: str) -> None:
    batch = chunk(kind) | {"logp": torch.zeros(6, 1, dtype=torch.float64)}
    value = torch.zeros(6, 1, dtype=torch.float64, requires_grad=True)
    logp = torch.zeros(6, 1, dtype=torch.float64, requires_grad=True)
    GA3C({"logp": logp, "value": value, "entropy": torch.zeros(6, 1)}, batch, KNOBS).loss.backward()
    expected = -torch.tensor([*CHUNKS[kind], 0.0], dtype=torch.float64)
    torch.testing.assert_close(value.grad[:, 0], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(logp.grad[:, 0], expected, rtol=0, atol=1e-9)  # R - V of the present weights, 0 here


# ------------------------------------------------------------------------------------------- the loss


def written_out(z: np.ndarray, v: np.ndarray, frozen: np.ndarray, R: np.ndarray, a: list[int], eps: float) -> float:
    """NetworkVP.py: sums over rows; `frozen` is what stop_gradient(logits_v) holds."""
    total = 0.0
    for t in range(len(R)):
        pi = np.exp(z[t] - z[t].max())
        pi /= pi.sum()
        guarded = np.log(np.maximum(pi, eps))
        total -= guarded[a[t]] * (R[t] - frozen[t])
        total -= 0.01 * -np.sum(pi * guarded)
        total += 0.5 * (R[t] - v[t]) ** 2
    return float(total)


def test_ga3cs_loss_and_its_gradient_on_logits_and_values() -> None:
    eps, rng = 0.02, np.random.default_rng(4)
    z, v, a = rng.normal(size=(6, 4)) * 2, rng.normal(size=6), [0, 3, 1, 2, 2, 0]
    z[1, 3] = -9.0  # chosen there, below ε
    batch = chunk("bootstrap") | {"logp": torch.full((6, 1), -1.0, dtype=torch.float64)}
    logits, value = (torch.tensor(x, requires_grad=True) for x in (z, v))
    head = Categorical(4, LogProbGuard("max", eps))
    out = {"logp": head.logp(logits, torch.tensor(a)), "entropy": head.entropy(logits), "value": value}
    scored = GA3C({k: x.unsqueeze(1) for k, x in out.items()}, batch, KNOBS)
    scored.loss.backward()
    R = np.array([2.0 * 0.99 ** (5 - t) + sum(r * 0.99**k for k, r in enumerate(REWARDS[t:])) for t in range(5)])
    assert scored.loss.item() == pytest.approx(written_out(z[:5], v[:5], v[:5], R, a, eps), abs=1e-10)
    for x, grad in ((z, logits.grad), (v, value.grad)):
        for at in np.ndindex(*x.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = x.copy()
                moved[at] += step
                zs, vs = (moved, v) if x is z else (z, moved)
                sides.append(written_out(zs[:5], vs[:5], v[:5], R, a, eps))
            assert grad[at].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-7), at
    alone = torch.autograd.grad(head.logp(logits, torch.tensor(a))[1], logits)[0]
    assert (alone == 0).all(), "the policy term has no gradient below ε"


def test_the_baseline_is_whose_it_says() -> None:
    batch = chunk("bootstrap") | {"logp": torch.zeros(6, 1, dtype=torch.float64)}
    present = torch.arange(6.0, dtype=torch.float64).unsqueeze(1)
    target = torch.tensor(CHUNKS["bootstrap"], dtype=torch.float64)
    for baseline, value in (("acted", batch["value"]), ("present", present)):
        logp = torch.zeros(6, 1, dtype=torch.float64, requires_grad=True)
        loss = policy_losses.A2C(reduction="sum", baseline=baseline)
        loss({"logp": logp, "value": present, "entropy": torch.zeros(6, 1)}, batch, KNOBS).loss.backward()
        torch.testing.assert_close(logp.grad[:5, 0], -(target - value[:5, 0]), rtol=0, atol=1e-9)
    with pytest.raises(errors.UserError, match="baseline is 'past'; use one of acted, present"):
        policy_losses.A2C(baseline="past")


# --------------------------------------------------------------------------------------- early ends

ALL = [
    GA3C,
    policy_losses.A2C(reduction="sum", lam=0.9),
    policy_losses.A2C(normalize_advantage=True),
    policy_losses.VTrace(),
]
FILL = st.sampled_from([0.0, 1e30, -3.5, math.nan, math.inf, -math.inf])


def cut(horizon: int, lengths: list[int], kinds: list[str], seed: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Learner's outputs, rows [T+1, B] and which are padding: lane b's episode ends in its row lengths[b]."""
    rng, shape = np.random.default_rng(seed), (horizon + 1, len(lengths))
    t = np.arange(horizon + 1)[:, None]
    first, last = t > np.array(lengths), t == np.array(lengths)
    over = np.array([k != "go" for k in kinds])
    terminal = np.array([k == "terminate" for k in kinds])
    rows = {"first": first, "terminated": last & terminal, "truncated": last & over & ~terminal}
    rows |= {k: rng.normal(size=shape) for k in ("reward", "value", "logp")}
    return {k: rng.normal(size=shape) for k in ("logp", "value", "entropy")}, rows, first


@QUICK
@given(st.data(), st.sampled_from(ALL))
def test_rows_behind_an_early_end_contribute_nothing(data: Any, loss: Any) -> None:
    horizon, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(0, horizon), min_size=width, max_size=width))
    kinds = [data.draw(st.sampled_from(["terminate", "truncate"])) if n < horizon else "go" for n in lengths]
    out, rows, padding = cut(horizon, lengths, kinds, data.draw(st.integers(0, 9999)))
    results = []
    for filled in (False, True):
        heads, batch = ({k: x.copy() for k, x in part.items()} for part in (out, rows))
        for part in (heads, batch) if filled else ():
            for x in part.values():
                fill = data.draw(st.booleans()) if x.dtype == bool else data.draw(FILL)
                x[padding] = fill if x is not part.get("first") else True
        given_out = {k: torch.tensor(x, requires_grad=True) for k, x in heads.items()}
        scored = loss(given_out, {k: torch.tensor(x) for k, x in batch.items()}, KNOBS)
        scored.loss.backward()
        results.append((scored, {k: x.grad for k, x in given_out.items()}))
    (one, clean), (two, dirty) = results
    assert torch.equal(one.loss, two.loss)
    assert one.loss.isfinite()
    assert all(torch.equal(one.metrics[k], two.metrics[k]) for k in one.metrics)
    for k in clean:
        assert torch.equal(clean[k], dirty[k]), k
        assert (dirty[k][torch.tensor(padding)] == 0).all()


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("loss", [GA3C, policy_losses.VTrace()])
def test_nor_do_they_to_a_networks_gradient(core: str, loss: Any) -> None:
    torch.manual_seed(0)
    spec = EnvSpec(Field((1, 6, 6), "uint8"), Discrete(3))
    policy = factory.make("mlp", spec, core, 8, guard="max", init="torch")
    out, rows, padding = cut(5, [5, 2, 0], ["go", "terminate", "truncate"], 3)
    batch = {k: torch.tensor(x).float() if x.dtype == float else torch.tensor(x) for k, x in rows.items()}
    batch |= {"obs": torch.randint(0, 256, (6, 3, 1, 6, 6), dtype=torch.uint8), "action": torch.randint(3, (6, 3))}
    grads = []
    for seed in (None, 5):
        given_rows = {k: x.clone() for k, x in batch.items()}
        if seed is not None:
            at = torch.tensor(padding)
            given_rows["obs"][at] = torch.randint(0, 256, (int(at.sum()), 1, 6, 6), dtype=torch.uint8)
            given_rows["action"][at] = 2
            for k in ("reward", "value", "logp"):
                given_rows[k][at] = math.nan
        policy.zero_grad()
        loss(policy.unroll(given_rows, policy.initial(3)), given_rows, KNOBS).loss.backward()
        grads.append({k: p.grad.clone() for k, p in policy.named_parameters()})
    assert out.keys() == {"logp", "value", "entropy"}
    assert all(torch.equal(grads[0][k], grads[1][k]) for k in grads[0])
    assert all(g.isfinite().all() for g in grads[1].values())
    assert any(g.abs().sum() > 0 for g in grads[1].values())
