"""WithAuxiliary against plain loops and finite differences, its costs, and what it passes through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyplay.core.worker import Hyperparameters
from polyplay.learning import returns, unreal
from polyplay.learning.policy_losses import A2C, APPO, PPO, VTrace
from polyplay.learning.unreal import KL, WithAuxiliary
from polyplay.nets.recurrent import Latent, kl_terms
from tests.learning.test_unreal import differences

COSTS = {"kl_posterior": 0.3, "kl_prior": 0.2, "pixel_control": 0.05, "reward_prediction": 0.7}
T, B, H, W, N = 6, 4, 3, 5, 7
INNER = [A2C(), A2C(reduction="sum"), VTrace(), VTrace(reduction="mean", normalize_advantage=True)]


def rows(seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a network says, and a batch: episodes end in it, in the last row too."""
    rng = np.random.default_rng(seed)

    def real(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    first = torch.from_numpy(rng.random((T + 1, B)) < 0.3)
    batch = {k: real(T + 1, B) for k in ("reward", "value", "logp")} | {"first": first}
    batch["terminated"] = torch.cat([first[1:], torch.zeros(1, B, dtype=torch.bool)]) & (real(T + 1, B) > 0)
    batch["obs"] = {"numbers": real(T + 1, B, 2)}
    batch["obs"]["view"] = torch.from_numpy(rng.integers(0, 2, (T + 1, B, 3, H, W)).astype(np.uint8))
    batch["recent_reward"] = torch.tensor([0.0, 1.0, -0.5, 0.0, 2.0, 0.0, -1.0])
    out = {k: real(T + 1, B).requires_grad_() for k in ("logp", "value", "entropy", "kl_posterior", "kl_prior")}
    out["pixel_chosen"], out["pixel_best"] = real(T, B, H, W).requires_grad_(), real(T + 1, B, H, W)
    return out | {"reward_logits": real(N, 3).requires_grad_()}, batch


def shares(count: int) -> dict[str, float]:
    """What each term's mean counts in a loss that is a mean: its examples for each of `count` transitions."""
    return dict.fromkeys(COSTS, 1.0) | {"reward_prediction": N / count}


def slow_terms(out: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, float], int]:
    """Each term by plain loops, and the number of transitions."""
    first, view = batch["first"].tolist(), batch["obs"]["view"].numpy().astype(int)
    real = [(t, b) for t in range(T) for b in range(B) if not first[t + 1][b]]
    terms = {k: sum(out[k][t, b].item() for t, b in real) / len(real) for k in ("kl_posterior", "kl_prior")}
    pixels = 0.0
    for t, b in real:
        for i, j in np.ndindex(H, W):
            ret, at = 0.0, t
            while True:
                ret += 0.9 ** (at - t) * float(np.mean(view[at + 1, b, :, i, j] != view[at, b, :, i, j]))
                at += 1
                if batch["terminated"][at, b]:
                    break
                if at == T or first[at + 1][b]:
                    ret += 0.9 ** (at - t) * out["pixel_best"][at, b, i, j].item()
                    break
            pixels += 0.5 * (ret - out["pixel_chosen"][t, b, i, j].item()) ** 2
    logits, crosses = out["reward_logits"].tolist(), []
    for row, reward in zip(logits, batch["recent_reward"].tolist(), strict=True):
        which = 0 if reward == 0 else 1 if reward < 0 else 2
        crosses.append(math.log(sum(math.exp(x) for x in row)) - row[which])
    return terms | {"pixel_control": pixels / len(real), "reward_prediction": sum(crosses) / N}, len(real)


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_loss_and_the_terms_at_their_costs(inner: Any, seed: int) -> None:
    out, batch = rows(seed)
    hyperparameters = Hyperparameters(entropy_cost=0.01)
    scored = WithAuxiliary(inner, COSTS)(out, batch, hyperparameters)
    terms, count = slow_terms(out, batch)
    more = sum(COSTS[name] * terms[name] * shares(count)[name] for name in COSTS)
    more *= count if inner.reduction == "sum" else 1
    alone = inner(out, batch, hyperparameters)
    assert scored.loss.item() == pytest.approx(alone.loss.item() + more, rel=1e-5)
    for name, term in terms.items():
        assert scored.metrics[name].item() == pytest.approx(term, rel=1e-5), name
    assert scored.metrics["loss"].item() == scored.loss.item()
    assert not any(x.requires_grad for x in scored.metrics.values())
    for name in ("policy_loss", "entropy"):
        assert scored.metrics[name] == alone.metrics[name]


@pytest.mark.parametrize("horizon", [20, 100])
@pytest.mark.parametrize("reduction", returns.REDUCTIONS)
def test_an_example_of_every_term_weighs_what_its_source_gives_it(reduction: str, horizon: int) -> None:
    """By its gradient, however long rollouts are. The sources sum everything: ftw 0.1.8's learner the divergences, ½ of
    squared errors of cells and cross-entropies, miyosuda/unreal ½ of squared errors of replayed values, too. Beside a
    mean, all is divided by the number of transitions.
    """
    costs = {"kl_posterior": 0.05, "kl_prior": 0.01, "pixel_control": 0.03, "reward_prediction": 0.4}
    costs["value_replay"], rng, lanes, examples = 0.7, np.random.default_rng(horizon), 2, 2
    free = torch.zeros(horizon + 1, lanes, dtype=torch.bool)
    numbers = {k: torch.from_numpy(rng.normal(size=(horizon + 1, lanes))) for k in ("reward", "value", "logp")}
    batch: dict[str, Any] = {**numbers, "first": free, "terminated": free}
    batch["obs"] = torch.from_numpy(rng.integers(0, 2, (horizon + 1, lanes, 3, H, W)).astype(np.uint8))
    batch |= {"recent_reward": torch.tensor([1.0, 0.0]), "replayed": {**numbers, "first": free, "terminated": free}}
    leaves = {k: numbers["value"].clone() for k in ("kl_posterior", "kl_prior", "replayed_value")}
    leaves |= {"pixel_chosen": torch.randn(horizon, lanes, H, W).double(), "reward_logits": torch.randn(examples, 3)}
    leaves = {k: x.requires_grad_() for k, x in leaves.items()}
    out = {**leaves, **{k: numbers["value"].clone() for k in ("logp", "value", "entropy")}}
    out["pixel_best"] = torch.randn(horizon + 1, lanes, H, W).double()
    loss = WithAuxiliary(VTrace(0.9, reduction=reduction, reward="none"), costs)
    scored = loss(out, batch, Hyperparameters(entropy_cost=0.0)).loss
    grads = dict(zip(leaves, torch.autograd.grad(scored, [*leaves.values()]), strict=True))
    part = 1.0 if reduction == "sum" else 1.0 / (horizon * lanes)
    for name in KL:
        torch.testing.assert_close(grads[name][:-1], torch.full_like(grads[name][:-1], costs[name] * part))
    logits, wanted = leaves["reward_logits"].detach(), torch.eye(3)[[2, 0]]
    weight = costs["reward_prediction"] * part
    torch.testing.assert_close(grads["reward_logits"], weight * (logits.softmax(1) - wanted))
    change = (batch["obs"][-1] != batch["obs"][-2]).double().mean(1)
    apart = leaves["pixel_chosen"].detach()[-1] - (change + 0.9 * out["pixel_best"][-1])
    torch.testing.assert_close(grads["pixel_chosen"][-1], costs["pixel_control"] * part * apart, check_dtype=False)
    target = numbers["reward"][-1] + 0.9 * numbers["value"][-1]
    apart = numbers["value"][-2] - target
    torch.testing.assert_close(grads["replayed_value"][-2], costs["value_replay"] * part * apart)


def test_sums_count_replayed_transitions_however_many_there_are_in_the_batch() -> None:
    """A rollout that ends with its episode is shorter than those that are replayed."""
    out, batch = rows()
    batch["first"][2:] = True
    replayed, value = rows(3)[1], torch.from_numpy(np.random.default_rng(4).normal(size=(T + 1, B)))
    given = {**out, "replayed_value": value}, {**batch, "replayed": replayed}
    inner, hyperparameters = VTrace(0.8), Hyperparameters(entropy_cost=0.01)
    more = (
        WithAuxiliary(inner, {"value_replay": 0.2})(*given, hyperparameters).loss - inner(*given, hyperparameters).loss
    )
    learnt = {**replayed, "reward": returns.squash_rewards(replayed["reward"], "clip")}
    there = int((~replayed["first"][1:]).sum())
    assert more.item() == pytest.approx(0.2 * there * unreal.value_replay_loss(value, learnt, 0.8).item(), rel=1e-5)


@pytest.mark.parametrize("inner", [*INNER, APPO()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("terms", [(), ("kl_posterior", "kl_prior"), tuple(COSTS)])
def test_metrics_are_those_it_names(inner: Any, terms: tuple[str, ...]) -> None:
    loss = WithAuxiliary(inner, {name: COSTS[name] for name in terms})
    reported = loss(*rows(), Hyperparameters(entropy_cost=0.01)).metrics
    assert set(reported) == set(loss.metrics)
    assert len(loss.metrics) == len(set(loss.metrics)) == len(inner.metrics) + len(terms)


def test_costs_are_live() -> None:
    out, batch = rows()
    live = Hyperparameters(entropy_cost=0.01, kl_prior_cost=0.5, pixel_control_cost=0.0)
    loss, (terms, count) = WithAuxiliary(A2C(), COSTS), slow_terms(out, batch)
    alone = A2C()(out, batch, live).loss.item()

    def more(**costs: float) -> float:
        return sum((COSTS | costs)[name] * term * shares(count)[name] for name, term in terms.items())

    expected = alone + more(kl_prior=0.5, pixel_control=0.0)
    assert loss(out, batch, live).loss.item() == pytest.approx(expected, rel=1e-5)
    live.set("kl_prior_cost", 0.0)
    live.set("pixel_control_cost", 2.0)
    expected = alone + more(kl_prior=0.0, pixel_control=2.0)
    assert loss(out, batch, live).loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
def test_what_lies_between_two_episodes_does_not_count(inner: Any) -> None:
    out, batch = rows(1)
    loss, hyperparameters = WithAuxiliary(inner, COSTS), Hyperparameters(entropy_cost=0.01)
    before = loss(out, batch, hyperparameters).loss
    between = torch.cat([batch["first"][1:], torch.ones(1, B, dtype=torch.bool)])
    wild = {k: torch.where(between, float("nan"), v.detach()).requires_grad_() for k, v in out.items() if k in KL}
    after = loss(out | wild, batch, hyperparameters).loss
    assert after.item() == before.item()
    for x in torch.autograd.grad(after, list(wild.values())):
        assert not x[between].any()
        assert (x[~between] != 0).all()


def test_of_rows_without_transitions_only_examples_are_left() -> None:
    out, batch = rows()
    batch["first"][:] = True
    scored = WithAuxiliary(A2C(), COSTS)(out, batch, Hyperparameters(entropy_cost=0.01))
    assert [scored.metrics[k].item() for k in ("kl_posterior", "kl_prior", "pixel_control")] == [0.0] * 3
    assert scored.metrics["reward_prediction"].item() == pytest.approx(slow_cross(out, batch))


def slow_cross(out: dict[str, Any], batch: dict[str, Any]) -> float:
    return slow_terms(out, batch | {"first": torch.zeros(T + 1, B, dtype=torch.bool)})[0]["reward_prediction"]


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
def test_the_network_s_reward_takes_the_place_of_the_environment_s(inner: Any) -> None:
    out, batch = rows()
    hyperparameters, own = Hyperparameters(entropy_cost=0.01), batch["reward"].flip(0)
    loss, given = WithAuxiliary(inner, COSTS), batch["reward"].clone()
    made = loss(out | {"reward": own}, batch, hyperparameters).loss
    assert made.item() == loss(out, batch | {"reward": own}, hyperparameters).loss.item()
    assert made.item() != loss(out, batch, hyperparameters).loss.item()
    assert torch.equal(batch["reward"], given)


def test_without_examples_no_reward_is_predicted() -> None:
    out, batch = rows()
    del out["reward_logits"], batch["recent_reward"]
    loss, hyperparameters = WithAuxiliary(A2C(), {"reward_prediction": 5.0}), Hyperparameters(entropy_cost=0.01)
    scored = loss(out, batch, hyperparameters)
    assert scored.metrics["reward_prediction"].item() == 0.0
    assert scored.loss.item() == A2C()(out, batch, hyperparameters).loss.item()
    scored.loss.backward()
    assert out["value"].grad.abs().sum() > 0


@pytest.mark.parametrize("how", returns.REWARDS)
def test_replayed_values_are_of_the_rewards_that_the_loss_learns_from(how: str) -> None:
    out, batch = rows()
    replayed, value = rows(3)[1], torch.from_numpy(np.random.default_rng(4).normal(size=(T + 1, B)))
    inner, hyperparameters = A2C(0.8, reward=how, reward_scale=3.0), Hyperparameters(entropy_cost=0.01)
    out |= {"reward_scale": torch.tensor(0.5, dtype=torch.float64)}
    loss = WithAuxiliary(inner, {"value_replay": 0.2})
    scored = loss({**out, "replayed_value": value}, {**batch, "replayed": replayed}, hyperparameters)
    scale = 3.0 * (0.5 if how == "scale" else 1.0)
    learnt = {**replayed, "reward": returns.squash_rewards(replayed["reward"], how, scale)}
    term = unreal.value_replay_loss(value, learnt, 0.8)
    assert scored.metrics["value_replay"].item() == pytest.approx(term.item())
    alone = inner(out, batch, hyperparameters).loss
    assert scored.loss.item() == pytest.approx(alone.item() + 0.2 * term.item())
    assert loss(out, batch, hyperparameters).loss.item() == alone.item(), "nothing was drawn"


@pytest.mark.parametrize("inner", [PPO(anneal_clip=False), APPO()], ids=lambda x: type(x).__name__)
def test_several_passes_go_through(inner: Any) -> None:
    """Of rows that PPO prepared there are T, each a transition or marked as none; all of them count."""
    out, batch = rows()
    loss, hyperparameters = WithAuxiliary(inner), Hyperparameters(entropy_cost=0.01)
    assert loss.whole is inner.whole
    prepared, plain = loss.prepare(batch, 0.5), inner.prepare(batch, 0.5)
    assert prepared.keys() == plain.keys()
    assert all(torch.equal(prepared[k], plain[k]) for k in plain)
    parts = {k: v for k, v in batch.items() if k in ("first", "logp", "value", "reward", "terminated")}
    if not inner.whole:
        parts = {k: v[:-1] for k, v in parts.items()} | prepared
        out = {k: v[:-1] for k, v in out.items() if v.shape == (T + 1, B)}
    scored, (terms, _) = loss(out, parts, hyperparameters), slow_terms(*rows())
    for name in KL:
        assert scored.metrics[name].item() == pytest.approx(terms[name])
    more = sum(cost * terms[name] for name, cost in KL.items())
    assert scored.loss.item() == pytest.approx(inner(out, parts, hyperparameters).loss.item() + more)


@pytest.mark.parametrize("reduction", returns.REDUCTIONS)
def test_gradients_of_the_divergences_are_finite_differences(reduction: str) -> None:
    rng, (out, batch) = np.random.default_rng(2), rows()
    horizon, lanes, size = 3, 2, 2
    ticks = torch.from_numpy(rng.random((horizon, lanes)) < 0.6)
    first = torch.tensor([[True, False], [False, False], [False, True]])
    cut = {k: batch[k][:horizon, :lanes] for k in ("reward", "value", "logp", "terminated")} | {"first": first}
    said = {k: out[k][:horizon, :lanes].detach() for k in ("logp", "value", "entropy")}
    loss = WithAuxiliary(A2C(reduction=reduction), {"kl_posterior": 0.3, "kl_prior": 0.2})

    def score(numbers: Tensor) -> Tensor:
        mean, scale, prior_mean, prior_scale = numbers
        latent = Latent(mean, scale.exp(), prior_mean, prior_scale.exp(), ticks)
        return loss(said | kl_terms(latent), cut, Hyperparameters(entropy_cost=0.01)).loss

    numbers = torch.from_numpy(rng.normal(size=(4, horizon, lanes, size)) / 2)
    exact = numbers.clone().requires_grad_()
    (grad,) = torch.autograd.grad(score(exact), exact)
    torch.testing.assert_close(grad, differences(score, numbers), rtol=1e-4, atol=1e-6)
    assert not grad[:, 1, 1].any(), "its next row begins an episode"
    assert not grad[:, -1].any(), "the last row is no transition"
    assert grad[:, 0].abs().min() > 0
