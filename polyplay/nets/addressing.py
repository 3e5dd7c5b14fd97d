"""How a differentiable memory is written, and addressed by content and by free space; by order: see temporal_links.

Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory", as deepmind/dnc has it.
B lanes, N slots of W numbers, R read heads, one write head. Weights over slots are ≥ 0 and sum to 1 at most.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_EPSILON = 1e-6
_TILE = 4  # rows that a small product must have a multiple of, see `bmm_rows`


def content_weights(memory: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """softmax over slots of strength · cosine(key, word): [B, N, W], [B, R, W], [B, R] → [B, R, N]."""
    fit = memory.ndim == keys.ndim == 3 and keys.shape[2] == memory.shape[2] and strengths.shape == keys.shape[:2]
    _check(fit, "[B, N, W], [B, R, W] and [B, R]", memory, keys, strengths)
    norms = _norm(keys).unsqueeze(2) * _norm(memory).unsqueeze(1)
    similarity = bmm_rows(keys, memory.transpose(1, 2)) / (norms + _EPSILON)
    return torch.softmax(similarity * strengths.unsqueeze(2), 2)


def usage_after(usage: Tensor, write_weights: Tensor, free_gates: Tensor, read_weights: Tensor) -> Tensor:
    """u = (u + w − u·w) · Π_i (1 − f_i·r_i): what the last access wrote is used, but for what it read
    and is freed. [B, N], [B, N], [B, R], [B, R, N] → [B, N]; no gradient to what was written, as released.
    """
    fit = usage.ndim == 2 and write_weights.shape == usage.shape and read_weights.ndim == 3
    fit = fit and read_weights.shape == (*free_gates.shape, usage.shape[1])
    _check(fit, "[B, N], [B, N], [B, R] and [B, R, N]", usage, write_weights, free_gates, read_weights)
    written = usage + (1.0 - usage) * write_weights.detach()
    retention = (1.0 - free_gates.unsqueeze(2) * read_weights).unbind(1)
    return written * functools.reduce(torch.mul, retention)  # prod's gradient looks for zeros


def allocation_weights(usage: Tensor) -> Tensor:
    """a[φ_j] = (1 − u[φ_j]) · Π_{i<j} u[φ_i], slots φ in rising order of usage, the first of equals first: [B, N] →
    [B, N]. Gradients flow through the sorted usage, not through the order.
    """
    _check(usage.ndim == 2, "[B, N]", usage)
    free, order = torch.sort(1.0 - (_EPSILON + (1.0 - _EPSILON) * usage), dim=1, descending=True, stable=True)
    before = torch.cumprod(torch.cat([torch.ones_like(free[:, :1]), 1.0 - free[:, :-1]], 1), 1)
    return torch.zeros_like(free).scatter(1, order, free * before)


def erase_and_add(memory: Tensor, write_weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """M[i, k] · (1 − w_i·e_k) + w_i·a_k: [B, N, W], [B, N], [B, W], [B, W] → [B, N, W]."""
    fit = memory.ndim == 3 and write_weights.shape == memory.shape[:2]
    fit = fit and erase.shape == add.shape == (len(memory), memory.shape[2])
    _check(fit, "[B, N, W], [B, N], [B, W] and [B, W]", memory, write_weights, erase, add)
    after: Tensor = _EraseAndAdd.apply(memory, write_weights, erase, add)
    return after


class _EraseAndAdd(torch.autograd.Function):
    """Keeps what it is given alone."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, write: Tensor, erase: Tensor, add: Tensor) -> Tensor:
        ctx.save_for_backward(memory, write, erase, add)
        weights = write.unsqueeze(2)
        return memory * (1.0 - weights * erase.unsqueeze(1)) + weights * add.unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        memory, write, erase, add = ctx.saved_tensors
        shares, weights = grad * memory, write.unsqueeze(1)
        d_write = torch.bmm(grad, add.unsqueeze(2)) - torch.bmm(shares, erase.unsqueeze(2))
        d_erase, d_add = -torch.bmm(weights, shares).squeeze(1), torch.bmm(weights, grad).squeeze(1)
        kept = 1.0 - write.unsqueeze(2) * erase.unsqueeze(1)
        return kept.mul_(grad), d_write.squeeze(2), d_erase, d_add


def precedence_after(precedence: Tensor, write_weights: Tensor) -> Tensor:
    """p = (1 − Σ w)·p + w, how much each slot was the last one written: [B, N], [B, N] → [B, N]."""
    _check(precedence.ndim == 2 and precedence.shape == write_weights.shape, "one [B, N]", precedence, write_weights)
    return (1.0 - write_weights.sum(1, keepdim=True)) * precedence + write_weights


def bmm_rows(a: Tensor, b: Tensor) -> Tensor:
    """a·b lane by lane, [B, R, K], [B, K, M] → [B, R, M], each lane to the bit what it would be in any other batch.

    On a CPU, BLAS computes products of few rows with instructions that depend on where in memory they lie. Whole
    tiles of rows it doesn't: measured with MKL, not promised by it.
    """
    rows = a.shape[1]
    more = -rows % _TILE if a.device.type == "cpu" else 0
    return torch.bmm(F.pad(a, (0, 0, 0, more)), b)[:, :rows] if more else torch.bmm(a, b)


def _norm(x: Tensor) -> Tensor:
    return ((x * x).sum(2) + _EPSILON).sqrt()


def _check(fit: bool, wanted: str, *given: Tensor) -> None:
    if not fit:
        raise ValueError(f"shapes must be {wanted}; got {', '.join(str(list(x.shape)) for x in given)}")
