"""Loops over all weights in one pass where torch's operations take several: memory is what they wait for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_compiled: Any = njit(nogil=True, cache=True, error_model="numpy")  # division by 0 as in NumPy: checks cost the SIMD


@_compiled
def rmsprop(p: Any, grad: Any, square: Any, lr: Any, alpha: Any, rest: Any, inside: Any, outside: Any) -> None:
    """θ, Δ, g [n] float32: g ← α·g + (1 − α)·Δ², θ ← θ − lr·Δ/(√(g + inside) + outside); `rest` is 1 − α. In place."""
    for i in range(p.size):
        delta = grad[i]
        mean = alpha * square[i] + rest * (delta * delta)
        square[i] = mean
        p[i] -= lr * delta / (np.sqrt(mean + inside) + outside)
