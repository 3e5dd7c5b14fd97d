"""Targets of action values, and priorities: pure, without gradient; inputs are never written to.

What replay gives of a transition s_t → s_{t+n} is its return G = Σ_{k<n} (Π_{j<k} d_{t+j})·r_{t+k+1}, in units of
reward, and D = Π_{j<n} d_{t+j}, the product of discounts (no unit): γᵐ for a window of m agent steps, 0 if it ended
in a termination. So a truncation bootstraps from its real last observation, and nobody needs a `done`. Where D = 0 what
the network gives for s_{t+n} is not used, even if it is NaN.

Scores of A actions are q [..., A], or logits over K atoms [..., A, K] that stand evenly between `low` and `high`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyplay.common.tree import Batch
from polyplay.common.value_rescaling import rescale, unscale
from polyplay.learning.losses import returns
from polyplay.learning.losses.returns import check_shapes
from polyplay.nets.q_values import expected_value, greedy_action, support, take_action

TAILS = ("extra", "short")


class SequenceTargets(NamedTuple):
    """target [T, B] of the action chosen in each row; valid [T, B] bool: there is something to learn from it."""

    target: Tensor
    valid: Tensor


@torch.no_grad()
def scalar(
    ret: Tensor, discount: Tensor, target: Tensor, online: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """y = G + D·Q⁻(s', a*) [B] with a* = argmax_a Q⁻(s', a) (Mnih et al. 2015); with `online`, its argmax: double
    Q-learning (van Hasselt et al. 2016).

    ret, discount: G, D float [B]; target: Q⁻(s', ·) [B, A]; online: Q(s', ·) [B, A]; mask: legal at s', bool [B, A].
    Raises ValueError for shapes that do not fit.
    """
    _check(ret, discount, target, online, 2)
    ahead = take_action(target, greedy_action(target if online is None else online, mask))
    return ret + torch.where(discount == 0, 0.0, discount * ahead)


@torch.no_grad()
def categorical(
    ret: Tensor,
    discount: Tensor,
    target: Tensor,
    low: float,
    high: float,
    online: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The projected distribution m [B, K] of G + D·Z⁻(s', a*) (Bellemare et al. 2017, algorithm 1).

    a* has the highest mean by target⁻'s logits [B, A, K], or by `online`'s (double). The rest as in `scalar`.
    """
    _check(ret, discount, target, online, 3)
    judge = expected_value(target if online is None else online, low, high)
    return project(take_action(target, greedy_action(judge, mask)).softmax(-1), ret, discount, low, high)


@torch.no_grad()
def project(chances: Tensor, ret: Tensor, discount: Tensor, low: float, high: float) -> Tensor:
    """The distribution of clip(G + D·z, low, high), each atom's mass split linearly between its two neighbours:
    m_i = Σ_j clip(1 − |Tz_j − z_i|/Δz, 0, 1)·p_j, in time O(K).

    chances: p [B, K], K ≥ 2; ret, discount: G, D float [B]. Where D = 0 all mass is around clip(G), whatever p is.
    Raises ValueError for shapes that do not fit.
    """
    size = chances.shape[-1]
    fit = chances.ndim == 2 and size >= 2 and ret.shape == discount.shape == chances.shape[:1]
    check_shapes(fit, "chances must be [B, K] with K >= 2, ret and discount [B]", chances, ret, discount)
    if not low < high:
        raise ValueError(f"the support must rise; got {low} to {high}")
    p = torch.where((discount == 0).unsqueeze(1), 1.0 / size, chances)
    z = support(low, high, chances)
    moved = torch.addcmul(ret.unsqueeze(1), discount.unsqueeze(1), z).clamp(low, high)
    place = ((moved - low) * ((size - 1) / (high - low))).clamp(max=size - 1)
    below = place.floor().nan_to_num(0.0).clamp_(0, size - 2)  # NaN goes into the masses: the learner shall see it
    share = place - below
    at = below.long()
    made = torch.zeros_like(p).scatter_add_(1, at, p * (1.0 - share))
    return made.scatter_add_(1, at + 1, p * share)


@torch.no_grad()
def sequence_targets(
    batch: Batch,
    target: Tensor,
    gamma: float,
    n: int,
    online: Tensor | None = None,
    eps: float | None = 1e-3,
    tail: str = "extra",
) -> SequenceTargets:
    """n-step targets of rows in order (Kapturowski et al. 2019, R2D2): y_t = h(Σ_{k<m} γᵏ·r_{t+k+1} + D·h⁻¹(Q⁻(s_{t+m},
    a*))), where D = γᵐ, or 0 if row t+m is terminated, and a* is `online`'s best there, or the target network's own.

    batch: rows "reward" (float), "terminated", "first" (bool) [R, B], by the row convention; where they are there
    "valid" (bool): whether the transition to the next row exists, as far as `first` doesn't say, and "mask" [R, B, A].
    target, online: q [R, B, A]. eps: None leaves h out.

    m = n, or fewer where the episode ends before: windows end in its last row, so what was cut by truncation bootstraps
    from its real last observation. `tail` is what becomes of the last n − 1 targets, whose windows leave the rows:
    "extra": rows 0..R−n−1 are learnt, the last n serve their windows only (rlpyt);
    "short": rows 0..R−2 are learnt, the last n − 1 with as many steps as there are (SEED).
    Targets of later rows, and of rows without a transition, are not valid. ValueError for shapes that do not fit.
    """
    reward, mask, first = batch["reward"], batch.get("mask"), batch["first"]
    fit = target.ndim == 3 and target.shape[:2] == reward.shape and (online is None or online.shape == target.shape)
    check_shapes(fit, f"target and online must be [R, B, A] with [R, B] = {list(reward.shape)}", target, online)
    if tail not in TAILS or n < 1 or len(reward) <= (n if tail == "extra" else 1):
        raise ValueError(f"{len(reward)} rows are too few for n = {n}, tail = {tail!r} (of {', '.join(TAILS)})")
    if "valid" in batch:
        first = first | torch.cat([torch.zeros_like(first[:1]), ~batch["valid"][:-1]])
    value = take_action(target, greedy_action(target if online is None else online, mask))
    value = torch.where(batch["terminated"], 0.0, value)
    steps = returns.transitions({"reward": reward, "terminated": batch["terminated"], "first": first}, gamma)
    goal = returns.n_step(steps, value if eps is None else unscale(value, eps), n)
    valid = steps.valid.clone()
    if tail == "extra":
        valid[len(reward) - n :] = False
    return SequenceTargets(goal if eps is None else rescale(goal, eps), valid)


# ------------------------------------------------------------------------------------------------ priorities


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """−Σ m·log p [...] of target masses m and logits [..., K], with its gradient. Its least is m's entropy, not 0."""
    check_shapes(target.shape == logits.shape, "target and logits must be one shape", target, logits)
    return -(target * logits.log_softmax(-1)).sum(-1)


def entropy(chances: Tensor) -> Tensor:
    """−Σ p·log p [...] of [..., K]; 0·log 0 = 0."""
    return -torch.special.xlogy(chances, chances).sum(-1)


def sequence_priority(error: Tensor, valid: Tensor, eta: float) -> Tensor:
    """R2D2's priority of a sequence, η·max|δ| + (1 − η)·mean|δ| over valid rows [T, B] → [B]; 0 where none is."""
    fit = error.shape == valid.shape and error.ndim == 2
    check_shapes(fit, "error and valid must be one [T, B] shape", error, valid)
    size = torch.where(valid, error.abs(), 0.0)
    return eta * size.amax(0) + (1.0 - eta) * size.sum(0) / valid.sum(0).clamp(min=1)


def _check(ret: Tensor, discount: Tensor, target: Tensor, online: Tensor | None, dims: int) -> None:
    fit = ret.ndim == 1 and ret.shape == discount.shape == target.shape[:1] and target.ndim == dims
    names = f"ret and discount must be [B], target and online {'[B, A]' if dims == 2 else '[B, A, K]'}"
    check_shapes(fit and (online is None or online.shape == target.shape), names, ret, discount, target, online)
