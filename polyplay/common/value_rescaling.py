"""Value rescaling h and its inverse (Pohlen et al. 2018; R2D2), elementwise, of NumPy arrays and of tensors, and the
units of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any  # whatever has arithmetic


def rescale(x: Array, eps: float = 1e-3) -> Array:
    """h(x) = sgn(x)·(√(|x| + 1) − 1) + ε·x, any shape, as x/(√(|x| + 1) + 1) + ε·x: nothing cancels, so small values
    keep all their digits.
    """
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + eps * x


def unscale(y: Array, eps: float = 1e-3) -> Array:
    """h⁻¹(y) = sgn(y)·(((√(1 + 4ε·(|y| + 1 + ε)) − 1)/2ε)² − 1), any shape.

    With u = 2|y|/(√(…) + 1 + 2ε) the fraction is u + 1, and h⁻¹ = sgn(y)·u·(u + 2): no difference of near numbers
    is left. As written first, float32 loses four of its seven digits near |y| = 1.
    """
    root = (1.0 + 4.0 * eps * (abs(y) + (1.0 + eps))) ** 0.5
    u = 2.0 * y / (root + (1.0 + 2.0 * eps))
    return u * (abs(u) + 2.0)


@dataclass(frozen=True)
class ValueUnits:
    """Units of a network's values: its learner multiplies rewards by `reward_scale`, and with a `rescale` above 0 the
    network learns h of values with that ε.
    """

    reward_scale: float = 1.0
    rescale: float = 0.0

    def in_environment(self, value: Array, policy: object) -> Array:
        """Values as discounted sums of the environment's rewards. A policy with `returns` has learned another factor of
        rewards. Limits of rewards, as of `clip`, cannot be undone.
        """
        if self.rescale:
            value = unscale(value, self.rescale)
        if (returns := getattr(policy, "returns", None)) is not None:
            value = value / returns.scale()
        return value if self.reward_scale == 1.0 else value / self.reward_scale
