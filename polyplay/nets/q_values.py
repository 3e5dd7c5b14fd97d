"""Values of actions from what a network puts out: of the chosen action, of the best, of atoms."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def greedy_action(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """The action with the highest value, int64 [...], of q [..., A]; with `mask` (bool [..., A]) of the legal ones."""
    if mask is not None and mask.shape != q.shape:
        raise ValueError(f"mask must be q's {list(q.shape)}; got {list(mask.shape)}")
    return (q if mask is None else q.masked_fill(~mask, -torch.inf)).argmax(-1)


def take_action(scores: Tensor, action: Tensor) -> Tensor:
    """Scores [..., A] or [..., A, K] of the actions [...] alone: [...] or [..., K], with their gradient.

    Raises ValueError for shapes that do not fit.
    """
    lead = action.shape
    if scores.shape[: len(lead)] != lead or scores.ndim - len(lead) not in (1, 2):
        raise ValueError(f"scores must be {list(action.shape)} and [A] or [A, K] behind; got {list(scores.shape)}")
    at = action.long().reshape(*lead, *[1] * (scores.ndim - len(lead)))
    return scores.gather(len(lead), at.expand(*lead, 1, *scores.shape[len(lead) + 1 :])).squeeze(len(lead))


def support(low: float, high: float, like: Tensor) -> Tensor:
    """The atoms z [K], evenly from `low` to `high`, for distributions [..., K] such as `like`."""
    return torch.linspace(low, high, like.shape[-1], dtype=like.dtype, device=like.device)


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """Mean Σ z·p of distributions given by logits [..., K] → [...]."""
    return (logits.softmax(-1) * support(low, high, logits)).sum(-1)
