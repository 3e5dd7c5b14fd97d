"""polyplay/learning/unreal.py against slow plain twins, by numbers and by finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.learning import unreal
from polyplay.learning.losses import A2C, APPO, PPO, VTrace, transitions
from polyplay.learning.unreal import KL, UnrealReplay, WithAuxiliary
from polyplay.nets import actor_critic
from tests import twins

QUICK = settings(max_examples=40, deadline=None)
H, W = 2, 3


@st.composite
def batches(draw: Any) -> dict[str, Any]:
    """Rows [T+1, B] as pools make them, or with any flags at all; and numbers for cells."""
    horizon, width, wild = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lanes = []
    for _ in range(width):
        if wild:
            lanes.append({k: (rng.random(horizon + 1) < 0.4).tolist() for k in ("first", "terminated")})
        else:
            events = draw(st.lists(st.sampled_from(twins.EVENTS), min_size=horizon, max_size=horizon))
            lanes.append(twins.lane_flags(events, draw(st.sampled_from(["first", *twins.EVENTS]))))
    batch = {k: torch.tensor([lane[k] for lane in lanes]).T.contiguous() for k in ("first", "terminated")}
    batch["reward"] = torch.from_numpy(rng.normal(size=(horizon + 1, width)))
    numbers = {k: torch.from_numpy(rng.normal(size=(horizon, width, H, W))) for k in ("chosen", "change")}
    return {"batch": batch, "best": torch.from_numpy(rng.normal(size=(horizon + 1, width, H, W))), **numbers}


def slow_pixel_control(chosen: Any, best: Any, change: Any, batch: Any, gamma: float) -> tuple[float, np.ndarray]:
    """The loss and its gradient by `chosen`: forward from each row until the episode or the rollout ends."""
    first, terminated = batch["first"].tolist(), batch["terminated"].tolist()
    chosen, best, change = (x.detach().numpy() for x in (chosen, best, change))
    horizon, width = chosen.shape[:2]
    real = [(t, b) for t in range(horizon) for b in range(width) if not first[t + 1][b]]
    total, grad, count = 0.0, np.zeros(chosen.shape), max(1, len(real))
    for t, b in real:
        for i, j in np.ndindex(*chosen.shape[2:]):
            ret, at = 0.0, t
            while True:
                ret += gamma ** (at - t) * change[at, b, i, j]
                at += 1
                if terminated[at][b]:
                    break
                if at == horizon or first[at + 1][b]:
                    ret += gamma ** (at - t) * best[at, b, i, j]
                    break
            error = chosen[t, b, i, j] - ret
            total += 0.5 * error * error / count
            grad[t, b, i, j] = error / count
    return total, grad


# ------------------------------------------------------------------------------------------------ pixel change
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_change_of_pictures_equals_the_plain_twin(channels: int) -> None:
    rng = np.random.default_rng(channels)
    view = rng.integers(0, 256, (3, 2, channels, 84, 84), dtype=np.uint8)
    made = unreal.pixel_change(torch.from_numpy(view))
    assert made.shape == (2, 2, 20, 20)
    assert made.dtype == torch.float32
    for t, b, i, j in [(0, 0, 0, 0), (1, 1, 19, 19), (0, 1, 7, 12), (1, 0, 19, 0)]:
        total = 0
        for c, y, x in np.ndindex(channels, 4, 4):
            at = b, c, 2 + 4 * i + y, 2 + 4 * j + x
            total += abs(int(view[(t + 1, *at)]) - int(view[(t, *at)]))
        assert made[t, b, i, j].item() == pytest.approx(total / (255 * channels * 16), rel=1e-6)


@pytest.mark.parametrize("mark", [1, 255])
def test_the_change_of_a_window_is_the_share_of_its_planes(mark: int) -> None:
    rng = np.random.default_rng(0)
    view = (rng.random((4, 2, 10, 11, 11)) < 0.3).astype(np.uint8)
    made = unreal.pixel_change(torch.from_numpy(view * np.uint8(mark)))
    assert made.shape == (3, 2, 11, 11)
    for t, b, i, j in np.ndindex(*made.shape):
        changed = [int(view[t + 1, b, c, i, j]) != int(view[t, b, c, i, j]) for c in range(10)]
        assert made[t, b, i, j].item() == pytest.approx(sum(changed) / 10)


# ------------------------------------------------------------------------------------------------ pixel control
@QUICK
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]))
def test_pixel_control_equals_the_plain_twin(rows: dict[str, Any], gamma: float) -> None:
    chosen = rows["chosen"].requires_grad_()
    loss = unreal.pixel_control_loss(chosen, rows["best"], rows["change"], rows["batch"], gamma)
    total, grad = slow_pixel_control(chosen, rows["best"], rows["change"], rows["batch"], gamma)
    assert loss.item() == pytest.approx(total, rel=1e-9, abs=1e-12)
    loss.backward()
    torch.testing.assert_close(chosen.grad, torch.from_numpy(grad))


@QUICK
@given(batches())
def test_only_rows_to_bootstrap_from_and_valid_transitions_are_looked_at(rows: dict[str, Any]) -> None:
    batch, wanted = rows["batch"], actor_critic.bootstrap_rows(rows["batch"])
    clean = rows["chosen"].clone().requires_grad_()
    dirty = rows["chosen"].masked_fill(batch["first"][1:, :, None, None], math.nan).requires_grad_()
    best = rows["best"].masked_fill(~wanted[..., None, None], math.nan)
    change = rows["change"].masked_fill(batch["first"][1:, :, None, None], math.nan)
    losses = [
        unreal.pixel_control_loss(clean, rows["best"], rows["change"], batch),
        unreal.pixel_control_loss(dirty, best, change, batch),
    ]
    assert losses[0].item() == losses[1].item()
    for loss in losses:
        loss.backward()
    assert torch.equal(clean.grad, dirty.grad)
    for t, b in wanted.nonzero().tolist():  # and each of them is
        other = rows["best"].clone()
        other[t, b] += 1.0
        moved = unreal.pixel_control_loss(rows["chosen"], other, rows["change"], batch)
        assert moved.item() != losses[0].item()


# ------------------------------------------------------------------------------------------------ reward prediction


def slow_cross_entropy(logits: Any, reward: Any) -> float:
    which = [0 if r == 0 else 1 if r < 0 else 2 for r in reward]
    each = zip(logits, which, strict=True)
    return sum(math.log(sum(math.exp(x) for x in row)) - row[k] for row, k in each) / len(which)


@QUICK
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_reward_prediction_equals_the_plain_twin(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, reward = rng.normal(size=(n, 3)), rng.choice([-2.0, -0.1, 0.0, 0.3, 1.0], n)
    loss = unreal.reward_prediction_loss(torch.from_numpy(logits), torch.from_numpy(reward))
    assert loss.item() == pytest.approx(slow_cross_entropy(logits, reward))


# ------------------------------------------------------------------------------------------------ value replay
@QUICK
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]))
def test_value_replay_equals_the_plain_twin(rows: dict[str, Any], gamma: float) -> None:
    batch, value = rows["batch"], rows["best"][:, :, 0, 0].clone().requires_grad_()
    flat = {k: batch[k].T.tolist() for k in batch} | {"value": value.detach().T.tolist()}
    target = [twins.n_step({k: flat[k][b] for k in flat}, gamma) for b in range(value.shape[1])]
    real = [(t, b) for t, b in np.ndindex(len(value) - 1, value.shape[1]) if not batch["first"][t + 1, b]]
    count = max(1, len(real))
    loss = unreal.value_replay_loss(value, transitions(batch, gamma))
    assert loss.item() == pytest.approx(sum(0.5 * (target[b][t] - value[t, b].item()) ** 2 for t, b in real) / count)
    loss.backward()
    grad = torch.zeros_like(value)
    for t, b in real:
        grad[t, b] = (value[t, b].item() - target[b][t]) / count
    torch.testing.assert_close(value.grad, grad)


# WithAuxiliary against plain loops and finite differences, its costs, and what it passes through.

COSTS = {"kl_posterior": 0.3, "kl_prior": 0.2, "pixel_control": 0.05, "reward_prediction": 0.7}
T, B, AUX_H, AUX_W, N = 6, 4, 3, 5, 7
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
    batch["obs"]["view"] = torch.from_numpy(rng.integers(0, 2, (T + 1, B, 3, AUX_H, AUX_W)).astype(np.uint8))
    batch["recent_reward"], batch["recent_weight"] = torch.tensor([0.0, 1.0, -0.5, 0.0, 2.0, 0.0, -1.0]), torch.ones(())
    out = {k: real(T + 1, B).requires_grad_() for k in ("logp", "value", "entropy", "kl_posterior", "kl_prior")}
    out["pixel_chosen"], out["pixel_best"] = real(T, B, AUX_H, AUX_W).requires_grad_(), real(T + 1, B, AUX_H, AUX_W)
    return out | {"reward_logits": real(N, 3).requires_grad_()}, batch


def shares(count: int) -> dict[str, float]:
    """What each term's mean counts in a loss that is a mean: its examples for each of `count` transitions."""
    return dict.fromkeys(COSTS, 1.0) | {"reward_prediction": N / count}


def slow_terms(out: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, float], int]:
    """Each term by plain loops, and the number of transitions."""
    view = batch["obs"]["view"]
    change = (view[1:] != view[:-1]).double().mean(2)
    real = list(zip(*np.nonzero(~batch["first"][1:].numpy()), strict=True))
    terms = {k: sum(out[k][at].item() for at in real) / len(real) for k in ("kl_posterior", "kl_prior")}
    terms["pixel_control"] = slow_pixel_control(out["pixel_chosen"], out["pixel_best"], change, batch, 0.9)[0]
    terms["reward_prediction"] = slow_cross_entropy(out["reward_logits"].tolist(), batch["recent_reward"].tolist())
    return terms, len(real)


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_loss_and_the_terms_at_their_costs(inner: Any, seed: int) -> None:
    out, batch = rows(seed)
    hyperparameters = {"entropy_cost": 0.01, "kl_prior_cost": 0.5}
    scored = WithAuxiliary(inner, COSTS).score(out, batch, hyperparameters)
    terms, count = slow_terms(out, batch)
    costs = COSTS | {"kl_prior": 0.5}  # which is live
    more = sum(costs[name] * terms[name] * shares(count)[name] for name in COSTS)
    more *= count if inner.reduction == "sum" else 1
    alone = inner.score(out, batch, hyperparameters)
    assert scored.loss.item() == pytest.approx(alone.loss.item() + more, rel=1e-5)
    for name, term in terms.items():
        assert scored.metrics[name].item() == pytest.approx(term, rel=1e-5), name
    assert scored.metrics["loss"].item() == scored.loss.item()
    assert not any(x.requires_grad for x in scored.metrics.values())
    for name in ("policy_loss", "entropy"):
        assert scored.metrics[name] == alone.metrics[name]


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
def test_what_lies_between_two_episodes_does_not_count(inner: Any) -> None:
    out, batch = rows(1)
    loss, hyperparameters = WithAuxiliary(inner, COSTS), {"entropy_cost": 0.01}
    before = loss.score(out, batch, hyperparameters).loss
    between = torch.cat([batch["first"][1:], torch.ones(1, B, dtype=torch.bool)])
    wild = {k: torch.where(between, float("nan"), v.detach()).requires_grad_() for k, v in out.items() if k in KL}
    after = loss.score(out | wild, batch, hyperparameters).loss
    assert after.item() == before.item()
    for x in torch.autograd.grad(after, list(wild.values())):
        assert not x[between].any()
        assert (x[~between] != 0).all()


@pytest.mark.parametrize("inner", INNER, ids=lambda x: f"{type(x).__name__} {x.reduction}")
def test_the_network_s_reward_takes_the_place_of_the_environment_s(inner: Any) -> None:
    out, batch = rows()
    hyperparameters, own = {"entropy_cost": 0.01}, batch["reward"].flip(0)
    loss, given = WithAuxiliary(inner, COSTS), batch["reward"].clone()
    made = loss.score(out | {"reward": own}, batch, hyperparameters).loss
    assert made.item() == loss.score(out, batch | {"reward": own}, hyperparameters).loss.item()
    assert made.item() != loss.score(out, batch, hyperparameters).loss.item()
    assert torch.equal(batch["reward"], given)


def test_without_examples_no_reward_is_predicted() -> None:
    out, batch = rows()
    batch["recent_weight"] = torch.zeros(())
    loss, hyperparameters = WithAuxiliary(A2C(), {"reward_prediction": 5.0}), {"entropy_cost": 0.01}
    scored = loss.score(out, batch, hyperparameters)
    assert scored.metrics["reward_prediction"].item() == 0.0
    assert scored.loss.item() == A2C().score(out, batch, hyperparameters).loss.item()
    scored.loss.backward()
    assert out["value"].grad.abs().sum() > 0


@pytest.mark.parametrize("how", ["clip", "sign", "none", "scale"])
def test_replayed_values_are_of_the_rewards_that_the_loss_learns_from(how: str) -> None:
    out, batch = rows()
    replayed, value = rows(3)[1], torch.from_numpy(np.random.default_rng(4).normal(size=(T + 1, B)))
    inner, hyperparameters = A2C(0.8, reward=how, reward_scale=3.0), {"entropy_cost": 0.01}
    out |= {"reward_scale": torch.tensor(0.5, dtype=torch.float64)}
    loss = WithAuxiliary(inner, {"value_replay": 0.2})
    scored = loss.score({**out, "replayed_value": value}, {**batch, "replayed": replayed}, hyperparameters)
    scale = 3.0 * (0.5 if how == "scale" else 1.0)
    bound = {"clip": 1.0, "scale": 10.0}.get(how, math.inf)
    squashed = (replayed["reward"] * scale).clamp(-bound, bound)
    learnt = {**replayed, "reward": squashed.sign() if how == "sign" else squashed}
    term = unreal.value_replay_loss(value, transitions(learnt, 0.8))
    assert scored.metrics["value_replay"].item() == pytest.approx(term.item())
    alone = inner.score(out, batch, hyperparameters).loss
    assert scored.loss.item() == pytest.approx(alone.item() + 0.2 * term.item())
    assert loss.score(out, batch, hyperparameters).loss.item() == alone.item(), "nothing was drawn"


@pytest.mark.parametrize("inner", [PPO(anneal_clip=False), APPO()], ids=lambda x: type(x).__name__)
def test_several_passes_go_through(inner: Any) -> None:
    """Of rows that PPO prepared there are T, each a transition or marked as none; all of them count."""
    out, batch = rows()
    loss, hyperparameters = WithAuxiliary(inner), {"entropy_cost": 0.01}
    assert loss.whole is inner.whole
    prepared, plain = loss.prepare(batch, 0.5), inner.prepare(batch, 0.5)
    assert prepared.keys() == plain.keys()
    assert all(torch.equal(prepared[k], plain[k]) for k in plain)
    parts = {k: v for k, v in batch.items() if k in ("first", "logp", "value", "reward", "terminated")}
    if not inner.whole:
        parts = {k: v[:-1] for k, v in parts.items()} | prepared
        out = {k: v[:-1] for k, v in out.items() if v.shape == (T + 1, B)}
    scored, (terms, _) = loss.score(out, parts, hyperparameters), slow_terms(*rows())
    for name in KL:
        assert scored.metrics[name].item() == pytest.approx(terms[name])
    more = sum(cost * terms[name] for name, cost in KL.items())
    assert scored.loss.item() == pytest.approx(inner.score(out, parts, hyperparameters).loss.item() + more)


# polyplay/learning/unreal.py: what is kept, and which examples are drawn, against a list of rows.

RECENT_QUICK = settings(max_examples=60, deadline=None)
ROW = {"obs": {"id": Field((), "int64"), "view": Field((2, 3), "uint8")}}
ROW |= {"reward": Field((), "float32"), "first": Field((), "bool")}


def batch(start: int, rows: int, lanes: int, rng: np.random.Generator, zeros: float = 0.5) -> dict[str, Any]:
    """Rows whose observations are numbered, from `start` on."""
    number = start + np.arange(rows * lanes).reshape(rows, lanes)
    view = np.broadcast_to((number % 251)[..., None, None], (rows, lanes, 2, 3)).astype(np.uint8)
    reward = np.where(rng.random((rows, lanes)) < zeros, 0.0, rng.choice([-1.0, 0.5], (rows, lanes)))
    first = rng.random((rows, lanes)) < 0.15
    return {"obs": {"id": number, "view": view}, "reward": reward.astype(np.float32), "first": first}


def examples(kept: list[tuple[Any, Any]]) -> dict[tuple[int, ...], float]:
    """By their three rows' numbers: the reward behind them. kept: columns as (rows of number, reward, first)."""
    found = {}
    for column in kept:
        for t in range(len(column) - 3):
            four = column[t : t + 4]
            if not any(first for _, _, first in four[1:]):
                found[tuple(number for number, _, _ in four[:3])] = four[3][1]
    return found


@RECENT_QUICK
@given(st.integers(4, 7), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 10**6))
def test_examples_are_those_of_the_latest_columns(rows: int, widths: list[int], more: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory, columns, start = UnrealReplay(ROW, rows, rows * (1 + more) + rows // 2), [], 0
    for lanes in widths:
        given = batch(start, rows, lanes, rng)
        memory.add(given)
        start += rows * lanes
        for b in range(lanes):
            each = (x[:, b].tolist() for x in (given["obs"]["id"], given["reward"], given["first"]))
            columns.append(list(zip(*each, strict=True)))
    expected = examples(columns[-(1 + more) :])
    rewarding = sum(r != 0 for r in expected.values())
    assert memory.counts == (len(expected) - rewarding, rewarding)
    if not expected:
        return
    frames, reward = memory.sample_examples(60, rng)
    assert frames["id"].shape == (3, 60)
    assert frames["view"].shape == (3, 60, 2, 3)
    for i in range(60):
        assert expected[tuple(frames["id"][:, i].tolist())] == pytest.approx(reward[i])
    assert np.array_equal(frames["view"][..., 0, 0], frames["id"] % 251)
    drawn = int((reward != 0).sum())
    assert drawn == (30 if 0 < rewarding < len(expected) else 60 * bool(rewarding))


@RECENT_QUICK
@given(st.integers(2, 6), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 10**6))
def test_columns_are_the_latest_with_the_state_before_them(
    length: int, widths: list[int], more: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    state = {"h": Field((2,), "float32"), "action": Field((), "int64")}
    memory, added, start = UnrealReplay(ROW, length, length * (1 + more), state), [], 0
    for lanes in widths:
        given = batch(start, length, lanes, rng)
        before = {"h": rng.random((lanes, 2)).astype(np.float32), "action": given["obs"]["id"][0] + 7}
        memory.add(given, before)
        start += length * lanes
        added += [(given, before, b) for b in range(lanes)]
    latest = {given["obs"]["id"][0, b]: (given, before, b) for given, before, b in added[-(1 + more) :]}
    rows, drawn = memory.sample_columns(80, rng)
    assert rows["obs"]["view"].shape == (length, 80, 2, 3)
    for i in range(80):
        given, before, b = latest[rows["obs"]["id"][0, i]]
        for k in ("reward", "first"):
            assert np.array_equal(rows[k][:, i], given[k][:, b])
        for k in ("id", "view"):
            assert np.array_equal(rows["obs"][k][:, i], given["obs"][k][:, b])
        assert np.array_equal(drawn["h"][i], before["h"][b])
        assert drawn["action"][i] == before["action"][b]
    assert len({*rows["obs"]["id"][0].tolist()}) == len(latest), "each is drawn some time"


def test_a_memory_that_was_saved_goes_on_as_it_was() -> None:
    """Whether it is full or not, with the state before its columns."""
    for lanes in (3, 9):
        rng, state = np.random.default_rng(lanes), {"h": Field((2,), "float32")}
        memory = UnrealReplay(ROW, 5, 35, state)
        memory.add(batch(0, 5, lanes, rng), {"h": rng.random((lanes, 2), np.float32)})
        other = UnrealReplay.of(tree.nest({k: np.array(v) for k, v in tree.leaves(memory.save())}))
        more = batch(100, 5, 2, rng), {"h": rng.random((2, 2), np.float32)}
        for each in (memory, other):
            each.add(*more)
        assert memory.counts == other.counts
        drawn = [each.sample_columns(20, np.random.default_rng(1)) for each in (memory, other)]
        pairs = zip(*(tree.leaves({"rows": rows, "state": before}) for rows, before in drawn), strict=True)
        assert all((one == two).all() for (_, one), (_, two) in pairs)
        found = [each.sample_examples(20, np.random.default_rng(1)) for each in (memory, other)]
        assert (found[0][0]["id"] == found[1][0]["id"]).all()
        assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda b: unreal.pixel_change(torch.zeros(1, 2, 10, 11, 11, dtype=torch.uint8)), r"T >= 1.*; got \[1, 2, 10"),
        (lambda b: unreal.pixel_change(torch.zeros(2, 2, 10, 11, 11)), "view must be uint8"),
        (lambda b: unreal.pixel_control_loss(*torch.zeros(3, 4, 2, 5, 5), b), r"with \[T, B\] = \[3, 2\]"),
        (lambda b: unreal.reward_prediction_loss(torch.zeros(4, 2), torch.zeros(4)), r"got \[4, 2\], \[4\]"),
        (lambda b: unreal.value_replay_loss(torch.zeros(3, 2), transitions(b, 0.9)), r"value \[T\+1, B\]"),
    ],
)
def test_wrong_shapes_are_named(call, says: str) -> None:
    flags = torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=says):
        call({"reward": torch.zeros(4, 2), "terminated": flags, "first": flags})
