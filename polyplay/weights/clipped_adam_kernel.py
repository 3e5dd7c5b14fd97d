"""The loop of ClippedAdam that makes one pass over memory, which is what an optimiser waits for."""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit

Array = np.ndarray
Number = np.float32
Rule = tuple[Number, Number, Number, Number, Number, Number, Number]


@cached_njit()
def clipped_adam(p: Array, grad: Array, mean: Array, square: Array, rule: Rule) -> None:
    """θ, Δ, m, v [n] float32, in place. rule: the learning rate by m's correction, β₁, 1 − β₁, β₂, 1 − β₂, the root of
    v's correction, ε.
    """
    rate, beta1, rest1, beta2, rest2, correction, eps = rule
    for i in range(p.size):
        delta = grad[i]
        second = beta2 * square[i] + rest2 * (delta * delta)
        deviation = np.sqrt(second) * correction
        bound = np.float32(5.0) * deviation
        first = beta1 * mean[i] + rest1 * max(min(delta, bound), -bound)
        square[i] = second
        mean[i] = first
        p[i] -= rate * first / (deviation + eps)
