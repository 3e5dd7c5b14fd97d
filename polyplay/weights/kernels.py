"""Compiled loops of optimizers (loaded when first used).

Loops that make one pass over memory where torch's operations make several: memory is what they wait for.
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import compiled

# division by 0 as in NumPy: checks cost the SIMD

Array = np.ndarray
Number = np.float32
Rule = tuple[Number, Number, Number, Number, Number]  # learning rate, α, 1 − α, ε inside the root, ε outside


@compiled
def rmsprop(p: Array, grad: Array, square: Array, rule: Rule) -> None:
    """θ, Δ, g [n] float32: g ← α·g + (1 − α)·Δ², θ ← θ − lr·Δ/(√(g + inside) + outside). In place."""
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        mean = alpha * square[i] + rest * (delta * delta)
        square[i] = mean
        p[i] -= lr * delta / (np.sqrt(mean + inside) + outside)


@compiled
def rmsprop_centred(p: Array, grad: Array, mean: Array, square: Array, rule: Rule) -> None:
    """The same with m ← α·m + (1 − α)·Δ [n] and max(g − m², 0) in place of g. In place."""
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        first = alpha * mean[i] + rest * delta
        second = alpha * square[i] + rest * (delta * delta)
        mean[i] = first
        square[i] = second
        p[i] -= lr * delta / (np.sqrt(max(second - first * first, np.float32(0.0)) + inside) + outside)


# The loop of ClippedAdam that makes one pass over memory, which is what an optimizer waits for.


ClippedAdamRule = tuple[Number, Number, Number, Number, Number, Number, Number]


@compiled
def clipped_adam(p: Array, grad: Array, mean: Array, square: Array, rule: ClippedAdamRule) -> None:
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
