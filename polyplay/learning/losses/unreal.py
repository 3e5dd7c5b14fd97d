"""UNREAL's auxiliary tasks (Jaderberg et al. 2016): pixel control, reward prediction, value replay. Pure functions of
rows, by the convention of returns.py.

Published costs belong to losses that are summed over examples, as the policy's is over time. These functions give
means, over transitions or examples; losses.auxiliary makes sums of them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from polyplay.common.tree import Batch
from polyplay.learning.losses import base, returns
from polyplay.learning.losses.returns import check_shapes
from polyplay.nets.auxiliary import CELL, PICTURE, REWARD_CLASSES, control_cells

BORDER = CELL // 2  # pixels around a picture that belong to no cell


@torch.no_grad()
def pixel_change(view: Tensor) -> Tensor:
    """What pixel control is rewarded with: how much each cell changes from row t to t+1, in [0, 1], float32
    [T, B, h, w].

    view: uint8 [T+1, B, C, H, W]. Of 84 × 84 pixels: mean |difference| / 255 over channels and 4 × 4 pixels of the
    middle 80 × 80 (§3.1). Of a smaller picture, made of planes: the share of planes that changed in a cell, whichever
    number marks them. Across the begin of an episode it means nothing. ValueError for what is not such rows.
    """
    check_shapes(view.ndim == 5 and len(view) >= 2, "view must be [T+1, B, C, H, W] with T >= 1", view)
    if view.dtype != torch.uint8:
        raise ValueError(f"view must be uint8; got {view.dtype}")
    pixels = control_cells(tuple(view.shape[2:])) != tuple(view.shape[3:])
    change = _picture_change if pixels else _plane_change
    return torch.stack([change(*pair) for pair in pairwise(view.unbind())])  # row by row: it fits caches


def _picture_change(before: Tensor, after: Tensor) -> Tensor:
    """[B, C, 84, 84] twice → [B, 20, 20]."""
    channels, inside = before.shape[1], slice(BORDER, PICTURE - BORDER)
    before, after = before[..., inside, inside], after[..., inside, inside]
    apart = (torch.maximum(before, after) - torch.minimum(before, after)).int().sum(1, dtype=torch.int32)
    rows = apart.unflatten(1, (-1, CELL)).sum(2, dtype=torch.int32)
    return rows.unflatten(2, (-1, CELL)).sum(3, dtype=torch.int32) / (255.0 * CELL * CELL * channels)


def _plane_change(before: Tensor, after: Tensor) -> Tensor:
    return (before != after).float().mean(1)


def pixel_control_loss(chosen: Tensor, best: Tensor, change: Tensor, batch: Batch, gamma: float = 0.9) -> Tensor:
    """½ Σ_cells (R_t − Q(s_t, a_t))², the mean over valid transitions, where cell by cell
    R_t = c_t + γ·(1 − terminated_{t+1})·R_{t+1} if valid_t else max_a Q(s_t, a), R_T = max_a Q(s_T, a) (§3.1, n-step
    Q-learning without correction).

    chosen: Q(s_t, a_t) [T, B, h, w], with gradient; best: max_a Q(s_t, a) [T+1, B, h, w], of which
    nets.auxiliary.bootstrap_rows count; change: c [T, B, h, w]; batch: rows "reward", "terminated", "first" [T+1, B].

    The sum over cells and the ½ are those of trfl and miyosuda/unreal, who also sum over time. So published costs (0.01
    to 0.1 in Lab and capture the flag) hold beside losses that are means over transitions; beside sums this is to be
    multiplied with their number. ValueError for shapes that do not fit.
    """
    steps = returns.transitions(batch, gamma)
    lead, cells = steps.reward.shape, chosen.shape[2:]
    fit = chosen.ndim == 4 and chosen.shape == change.shape and chosen.shape[:2] == lead
    fit = fit and best.shape == (lead[0] + 1, lead[1], *cells)
    names = f"chosen and change must be [T, B, h, w] with [T, B] = {list(lead)}, best [T+1, B, h, w]"
    check_shapes(fit, names, chosen, change, best)

    def each(x: Tensor) -> Tensor:
        return x.repeat_interleave(cells.numel(), 1)

    lanes = returns.Transitions(change.flatten(1), each(steps.discount.to(change.dtype)), each(steps.valid))
    target = returns.n_step(lanes, best.flatten(1)).view(change.shape)
    apart = torch.where(steps.valid[..., None, None], target - chosen, 0.0)
    return 0.5 * apart.square().sum() / base.MaskedMean(steps.valid).count


def reward_classes(reward: Tensor) -> Tensor:
    """int64, any shape: 0 for a reward of zero, 1 for a negative one, 2 for a positive one."""
    return (reward < 0).long() + 2 * (reward > 0).long()


def reward_prediction_loss(logits: Tensor, reward: Tensor) -> Tensor:
    """Cross-entropy of the next reward's class, the mean over examples: logits [N, 3], reward [N] (§3.2)."""
    fit = reward.ndim == 1 and logits.shape == (len(reward), REWARD_CLASSES)
    check_shapes(fit, "logits must be [N, 3] and reward [N]", logits, reward)
    return F.cross_entropy(base.at_least_float32(logits, reward), reward_classes(reward))


def value_replay_loss(value: Tensor, batch: Batch, gamma: float) -> Tensor:
    """½ (R_t − V_t)² of replayed rows, the mean over valid transitions (§3.3; the ½ is miyosuda/unreal's).

    value: V [T+1, B] of the present weights; R: the n-step return of all rows (returns.n_step), from these values,
    without gradient; batch: rows "reward", "terminated", "first" [T+1, B]. ValueError for shapes that do not fit.
    """
    steps = returns.transitions(batch, gamma)
    target = returns.n_step(steps, value)
    over = base.MaskedMean(steps.valid)
    apart = over.only(target - base.at_least_float32(value[:-1], target))
    return 0.5 * over.mean(apart.square())
