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

from polyplay.envs.spaces import Discrete, MultiDiscrete
from polyplay.learning import unreal
from polyplay.nets import actor_critic
from polyplay.nets.actor_critic import PixelControl, RewardPrediction
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
        for i, j in np.ndindex(H, W):
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


def differences(f: Any, x: Tensor, step: float = 1e-6) -> Tensor:
    """The gradient of f at x, number by number."""
    grad = torch.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.clone(), x.clone()
        up[at] += step
        down[at] -= step
        grad[at] = (f(up) - f(down)) / (2 * step)
    return grad


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


def test_the_border_of_a_picture_counts_in_no_cell_and_a_flash_counts_fully() -> None:
    view = torch.zeros(3, 1, 3, 84, 84, dtype=torch.uint8)
    view[1, ..., :2, :] = view[1, ..., -2:] = 255
    view[2, ..., 2:6, 78:82] = 255
    first, second = unreal.pixel_change(view)[:, 0]
    assert not first.any()
    assert second[0, 19].item() == 1.0
    assert second.sum().item() == 1.0


@pytest.mark.parametrize("mark", [1, 255])
def test_the_change_of_a_window_is_the_share_of_its_planes(mark: int) -> None:
    rng = np.random.default_rng(0)
    view = (rng.random((4, 2, 10, 11, 11)) < 0.3).astype(np.uint8)
    made = unreal.pixel_change(torch.from_numpy(view * np.uint8(mark)))
    assert made.shape == (3, 2, 11, 11)
    for t, b, i, j in np.ndindex(*made.shape):
        changed = [int(view[t + 1, b, c, i, j]) != int(view[t, b, c, i, j]) for c in range(10)]
        assert made[t, b, i, j].item() == pytest.approx(sum(changed) / 10)


def test_views_that_are_none_are_named() -> None:
    with pytest.raises(ValueError, match=r"view must be \[T\+1, B, C, H, W\] with T >= 1; got \[1, 2, 10, 11, 11\]"):
        unreal.pixel_change(torch.zeros(1, 2, 10, 11, 11, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"uint8; got torch\.float32"):
        unreal.pixel_change(torch.zeros(2, 2, 10, 11, 11))


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


def test_pixel_controls_gradient_by_finite_differences() -> None:
    flags = twins.lane_flags(["go", "terminate", "go", "go", "truncate", "go"], "first")
    batch = {k: torch.tensor(flags[k])[:, None] for k in ("first", "terminated")}
    generator = torch.Generator().manual_seed(0)
    batch["reward"] = torch.zeros(7, 1)
    chosen, change, best = (torch.randn(n, 1, H, W, dtype=torch.float64, generator=generator) for n in (6, 6, 7))
    chosen.requires_grad_()
    unreal.pixel_control_loss(chosen, best, change, batch).backward()
    found = differences(lambda x: unreal.pixel_control_loss(x, best, change, batch), chosen.detach())
    torch.testing.assert_close(chosen.grad, found, rtol=1e-6, atol=1e-8)


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


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["go", "go", "go"], [False, False, False, True]),
        (["go", "terminate", "first"], [False, False, False, False]),
        (["go", "truncate", "first"], [False, False, True, False]),
        (["go", "go", "terminate"], [False, False, False, False]),
        (["restart", "go", "restart"], [False, False, True, False]),
        (["restart", "restart", "go"], [False, False, False, True]),
    ],
)
def test_rows_to_bootstrap_from_by_hand(events: list[str], expected: list[bool]) -> None:
    flags = twins.lane_flags(events, "first")
    batch = {k: torch.tensor(flags[k])[:, None] for k in ("first", "terminated")}
    assert actor_critic.bootstrap_rows(batch)[:, 0].tolist() == expected


@QUICK
@given(batches(), st.sampled_from([Discrete(3), MultiDiscrete((2,), (3, 2))]))
def test_values_of_a_head_are_computed_where_they_count(rows: dict[str, Any], space: Any) -> None:
    torch.manual_seed(0)
    batch = dict(rows["batch"])
    lead = batch["first"].shape
    head, x = PixelControl(4, (5, 5), space).double(), torch.randn(*lead, 4, dtype=torch.float64)
    batch["action"] = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (*lead, *space.field.shape)))
    chosen, best = actor_critic.pixel_control_values(head, x, batch)
    maps = head(x.flatten(0, 1))
    everything = head.chosen(maps, batch["action"].flatten(0, 1)).unflatten(0, lead)
    torch.testing.assert_close(chosen, everything[:-1])
    wanted = actor_critic.bootstrap_rows(batch)
    torch.testing.assert_close(best[wanted], head.best(maps).unflatten(0, lead)[wanted])
    assert not best[~wanted].any()
    assert chosen.requires_grad
    assert not best.requires_grad


def test_wrong_shapes_of_pixel_control_are_named() -> None:
    batch = {"reward": torch.zeros(4, 2)} | dict.fromkeys(("first", "terminated"), torch.zeros(4, 2, dtype=torch.bool))
    chosen, best = torch.zeros(3, 2, H, W), torch.zeros(4, 2, H, W)
    assert unreal.pixel_control_loss(chosen, best, chosen, batch).item() == 0.0
    for wrong in ((best, best, best), (chosen, chosen, chosen), (chosen, best, chosen[:, :1])):
        with pytest.raises(ValueError, match=r"chosen and change must be \[T, B, h, w\] with \[T, B\] = \[3, 2\]"):
            unreal.pixel_control_loss(*wrong, batch)
    with pytest.raises(ValueError, match=r"x must be \[4, 2\] and features; got \[8, 5\]"):
        actor_critic.pixel_control_values(PixelControl(5, (11, 11), Discrete(2)), torch.zeros(8, 5), batch)


def test_pixel_control_learns_which_action_changes_which_cell() -> None:
    """Number 0 of an action changes the left cells, number 1 the right ones; γ = 0.5 lets values settle at (c + 1) / 2
    and more. A head that takes only a constant as features finds the best action of each side.
    """
    torch.manual_seed(0)
    head, steps = PixelControl(1, (4, 4), Discrete(2)), 8
    action = torch.randint(2, (steps + 1, 4))
    change = torch.zeros(steps, 4, 4, 4)
    change[..., :2] = (action[:-1] == 0).float()[..., None, None]
    change[..., 2:] = (action[:-1] == 1).float()[..., None, None]
    flags = torch.zeros(steps + 1, 4, dtype=torch.bool)
    batch = {"action": action, "reward": torch.zeros(steps + 1, 4), "first": flags, "terminated": flags}
    optimizer, losses = torch.optim.Adam(head.parameters(), 2e-2), []
    for _ in range(60):
        loss = unreal.pixel_control_loss(
            *actor_critic.pixel_control_values(head, torch.ones(steps + 1, 4, 1), batch), change, batch, 0.5
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    maps = head(torch.ones(2, 1))
    left, right = (head.chosen(maps, torch.tensor([0, 1]))[..., side].mean((1, 2)) for side in (slice(2), slice(2, 4)))
    assert left[0] > left[1] + 0.5
    assert right[1] > right[0] + 0.5


# ------------------------------------------------------------------------------------------------ reward prediction


def test_classes_of_rewards() -> None:
    reward = torch.tensor([[0.0, -0.5], [3.0, -0.0]])
    assert unreal.reward_classes(reward).tolist() == [[0, 1], [2, 0]]


@QUICK
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_reward_prediction_equals_the_plain_twin(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, reward = rng.normal(size=(n, 3)), rng.choice([-2.0, -0.1, 0.0, 0.3, 1.0], n)
    total = 0.0
    for row, r in zip(logits, reward, strict=True):
        which = 0 if r == 0 else 1 if r < 0 else 2
        total -= math.log(math.exp(row[which]) / sum(math.exp(x) for x in row)) / n
    given_logits = torch.from_numpy(logits).requires_grad_()
    loss = unreal.reward_prediction_loss(given_logits, torch.from_numpy(reward))
    assert loss.item() == pytest.approx(total)
    loss.backward()
    found = differences(lambda x: unreal.reward_prediction_loss(x, torch.from_numpy(reward)), given_logits.detach())
    torch.testing.assert_close(given_logits.grad, found, rtol=1e-5, atol=1e-8)


def test_wrong_shapes_of_reward_prediction_are_named() -> None:
    with pytest.raises(ValueError, match=r"logits must be \[N, 3\] and reward \[N\]; got \[4, 2\], \[4\]"):
        unreal.reward_prediction_loss(torch.zeros(4, 2), torch.zeros(4))


def test_reward_prediction_learns_a_sign() -> None:
    torch.manual_seed(0)
    head, x = RewardPrediction(2), torch.randn(3, 200, 2)
    reward = torch.where(x[1, :, 0].abs() < 0.4, 0.0, x[1, :, 0])
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        unreal.reward_prediction_loss(head(x), reward).backward()
        optimizer.step()
    right = head(x).argmax(1) == unreal.reward_classes(reward)
    assert right.float().mean().item() > 0.95


# ------------------------------------------------------------------------------------------------ value replay


@QUICK
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]))
def test_value_replay_equals_the_plain_twin(rows: dict[str, Any], gamma: float) -> None:
    batch, value = rows["batch"], rows["best"][:, :, 0, 0].clone().requires_grad_()
    flat = {k: batch[k].T.tolist() for k in batch} | {"value": value.detach().T.tolist()}
    target = [twins.n_step({k: flat[k][b] for k in flat}, gamma) for b in range(value.shape[1])]
    real = [(t, b) for t, b in np.ndindex(len(value) - 1, value.shape[1]) if not batch["first"][t + 1, b]]
    count = max(1, len(real))
    loss = unreal.value_replay_loss(value, batch, gamma)
    assert loss.item() == pytest.approx(sum(0.5 * (target[b][t] - value[t, b].item()) ** 2 for t, b in real) / count)
    loss.backward()
    grad = torch.zeros_like(value)
    for t, b in real:
        grad[t, b] = (value[t, b].item() - target[b][t]) / count
    torch.testing.assert_close(value.grad, grad)


def test_value_replay_names_wrong_shapes_and_low_precision_is_summed_in_float32() -> None:
    batch = {"reward": torch.ones(4, 2)} | dict.fromkeys(("first", "terminated"), torch.zeros(4, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"value \[T\+1, B\]"):
        unreal.value_replay_loss(torch.zeros(3, 2), batch, 0.9)
    assert unreal.value_replay_loss(torch.zeros(4, 2, dtype=torch.bfloat16), batch, 0.9).dtype == torch.float32
