"""Linear layers with noise in their weights (Fortunato et al. 2018), and that noise from keys: no generator, no state.

A key is an integer. It is hashed into as many numbers as a network needs, so the same key gives the same noise on any
machine and in any batch: a row's key while acting comes from its counted noise, an update's from its number.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.nets.layers import Linear, initialise

# name: distribution, first σ·√inputs
VARIANTS = {"fortunato": ("normal", 0.5), "zoo": ("truncated", 0.1)}
MANY = 16  # rows of one noise for which a matrix is made
COLUMNS = 2  # uniforms of acting noise that make a key
_BITS = 23  # that such a uniform has (polyplay.common.rng)
_A, _B, _C = (x - (1 << 64) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Noisy(nn.Module):
    """y = W·x + b + ε_out ⊙ (S·(ε_in ⊙ x) + s): factorised noise, for every row its own or for all the same.

    W, b start as torch's do, S and s at σ₀/√inputs. ε = sgn(x)·√|x| of numbers x from a standard normal distribution,
    cut off beyond ±2 in variant "zoo" (dqn_zoo). bias: b; s is always there.

    Where rows have noise of their own it is written out over them, and no noisy matrix is ever made. Where many share
    it, W + S ⊙ ε_out·ε_inᵀ is made, and one product does for two, forward and back.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float, bias: bool = True, init: str = "torch"):
        super().__init__()
        self.mean, self.spread = Linear(inputs, outputs, bias=bias), Linear(inputs, outputs)
        initialise(self.mean, init)
        for x in (self.spread.weight, self.spread.bias):
            nn.init.constant_(x, sigma / math.sqrt(inputs))
        self.inputs, self.noise = inputs, inputs + outputs

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """x [N, inputs], noise [N or 1, inputs + outputs] → [N, outputs]; without noise the mean weights alone."""
        if noise is not None and len(noise) == 1 and len(x) >= MANY:
            return self._together(x, noise[0, : self.inputs], noise[0, self.inputs :])
        y = self.mean(x)
        if noise is None:
            return y
        before, behind = noise[:, : self.inputs].to(x.dtype), noise[:, self.inputs :]
        return y + self.spread(x * before) * behind.to(y.dtype)

    def _together(self, x: Tensor, before: Tensor, behind: Tensor) -> Tensor:
        mean, spread = self.mean, self.spread
        weight = torch.addcmul(mean.weight, spread.weight, torch.outer(behind, before))
        bias = spread.bias * behind
        return F.linear(x, weight, bias if mean.bias is None else mean.bias + bias)


def keys(uniforms: Tensor) -> Tensor:
    """int64 [N] from the last COLUMNS of uniforms float32 [N, columns]."""
    high, low = (uniforms[:, -COLUMNS:].double() * 2.0**_BITS).long().unbind(1)
    return (high << _BITS) | low


def draw_noise(key: Tensor, n: int, variant: str) -> Tensor:
    """ε float32 [N, n] for keys int64 [N]: 16 bits of a hash each, as a place in the distribution."""
    groups = torch.arange(1, -(-n // 4) + 1, device=key.device)
    bits = _mix(_mix(key + _A).unsqueeze(1) + groups * _A).view(torch.int16)[:, :n]
    table = _table(VARIANTS[variant][0], key.device).expand(len(key), -1)
    return table.gather(1, bits.long().add_(2**15))  # a fifth of the time that an index takes


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, as in polyplay.common.rng; int64 wraps."""
    x = (x ^ _down(x, 30)) * _B
    x = (x ^ _down(x, 27)) * _C
    return x ^ _down(x, 31)


def _down(x: Tensor, by: int) -> Tensor:
    """A shift to the right that brings zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@functools.cache
def _table(how: str, device: torch.device) -> Tensor:
    """float32 [65536]: sgn(x)·√|x| of x at the middles of as many equal parts of the distribution."""
    place = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    if how == "truncated":
        edge = 0.5 * math.erfc(2.0 / math.sqrt(2.0))
        place = edge + place * (1.0 - 2.0 * edge)
    x = torch.special.ndtri(place)
    return (x.sign() * x.abs().sqrt()).float().to(device)
