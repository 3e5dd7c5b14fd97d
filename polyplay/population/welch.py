"""Welch's t-test, with Student's distribution from the incomplete beta function. Pure; no SciPy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TINY = 1e-300  # stands for 0 where a fraction divides by it
TERMS = 300  # of a continued fraction; some 20 are enough for 10 games


@dataclass(frozen=True)
class Welch:
    """The test of a's mean against b's."""

    t: float  # positive: a's mean is greater
    freedom: float  # degrees of freedom, Welch–Satterthwaite
    p: float  # two-sided: how likely such a |t| or a greater one is where both means are the same


def welch_test(a: Sequence[float], b: Sequence[float]) -> Welch:
    """Welch 1947: t = (ā − b̄) / √(s²ₐ/nₐ + s²ᵦ/nᵦ), for samples of two or more whose variances may differ.

    Where neither sample varies, equal means give p = 1 and others p = 0, both with nₐ + nᵦ − 2 degrees of freedom.
    """
    means = statistics.mean(map(float, a)) - statistics.mean(map(float, b))  # exact: equal numbers do not vary
    va, vb = (statistics.variance(map(float, x)) / len(x) for x in (a, b))
    if va + vb == 0:
        t = math.copysign(math.inf, means) if means else 0.0
        return Welch(t, len(a) + len(b) - 2.0, 0.0 if means else 1.0)
    t = means / math.sqrt(va + vb)
    share = va / (va + vb)
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    return Welch(t, freedom, two_sided(t, freedom))


def two_sided(t: float, freedom: float) -> float:
    """The probability that |T| ≥ |t| for Student's T: I_x(ν/2, 1/2) with x = ν / (ν + t²)."""
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8). It converges fast where x is
    below (a + 1) / (a + b + 2); beyond, I_x(a, b) = 1 − I_{1−x}(b, a).
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or TINY)
        c = 1 + term / c or TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
