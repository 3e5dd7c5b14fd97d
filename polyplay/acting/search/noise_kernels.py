"""Dirichlet noise from a counter: the numbers of (key, lane, search) are the same whoever draws them, and whenever."""

from __future__ import annotations

import math

import numpy as np

from polyplay.buffers.replay.rng import bits, compiled

_ONE, _11 = np.uint64(1), np.uint64(11)


@compiled
def stream(key: np.uint64, lane: int, search: int) -> np.uint64:
    """The key of one search's numbers."""
    return bits(bits(key, np.uint64(lane) + _ONE), np.uint64(search) + _ONE)


@compiled
def uniform_of(key: np.uint64, n: int) -> float:
    """In (0, 1), 53 bits."""
    return (np.float64(bits(key, np.uint64(n)) >> _11) + 0.5) * 2.0**-53


@compiled
def _log_gamma_draw(key: np.uint64, n: int, alpha: float) -> tuple[float, int]:
    """(logarithm of a Gamma(alpha) draw, next n): Marsaglia and Tsang 2000, for alpha < 1 with one of alpha + 1."""
    lift = 0.0
    if alpha < 1.0:
        lift = math.log(uniform_of(key, n)) / alpha
        alpha, n = alpha + 1.0, n + 1
    d = alpha - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = math.sqrt(-2.0 * math.log(uniform_of(key, n))) * math.cos(2.0 * math.pi * uniform_of(key, n + 1))
        u = uniform_of(key, n + 2)
        n += 3
        v = 1.0 + c * x
        if v > 0.0:
            v = v * v * v
            if math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return math.log(d * v) + lift, n


@compiled
def dirichlet(key: np.uint64, alpha: float, out: np.ndarray) -> None:
    """Fill float [n] with a draw from the symmetric Dirichlet distribution; as logarithms until it is divided, so that
    the least alpha leaves no sum of 0.
    """
    n = 0
    for i in range(out.size):
        out[i], n = _log_gamma_draw(key, n, alpha)
    top = -np.inf
    for i in range(out.size):
        top = max(top, out[i])
    total = 0.0
    for i in range(out.size):
        out[i] = math.exp(out[i] - top)
        total += out[i]
    for i in range(out.size):
        out[i] /= total
