"""Losses that no gradient is made of: those far above what a learner's losses were so far (Gorila, Nair et al. 2015).

The paper discards a gradient whose loss is above mean + k·std of the learner's own, "several" k; the rest is ours: how
long the mean reaches back, the first losses that are all taken, and that some discarded in a row are a new rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from polyplay.common.errors import UserError

SLACK = 1.0 + 1e-9  # losses that are all the same are no outliers, however their mean was rounded


@dataclass(frozen=True)
class OutlierRule:
    """|loss| > mean + k·std of those admitted before is an outlier. A description: `open` gives each learner its own.

    horizon: losses over which both run, evenly until there are so many, then fading by 1/horizon. warm_up: the first
    so many are admitted. cap: so many rejected in a row are no outliers but another regime: the next loss is admitted,
    and everything begins anew with it. Raises UserError.
    """

    k: float = 4.0
    warm_up: int = 100
    horizon: int = 1000
    cap: int = 10

    def __post_init__(self) -> None:
        for name in ("warm_up", "horizon", "cap"):
            if getattr(self, name) < 1:
                raise UserError(f"outliers: {name}={getattr(self, name)} given, allowed: 1 or more")

    def open(self) -> OutlierFilter:
        return OutlierFilter(self)


class OutlierFilter:
    """One learner's running mean and variance of |loss|, and what it let through."""

    def __init__(self, rule: OutlierRule):
        self.rule = rule
        self.n, self.mean, self.variance = 0, 0.0, 0.0
        self.row = 0  # rejected since the last one that was admitted
        self.rejected = 0

    def admit(self, loss: float) -> bool:
        """Whether a gradient of this loss is to be used. One that is not finite is: others have to tell of it."""
        size = abs(loss)
        if not math.isfinite(size):
            return True
        bound = (self.mean + self.rule.k * math.sqrt(self.variance)) * SLACK
        if self.n >= self.rule.warm_up and size > bound:
            if self.row < self.rule.cap:
                self.row, self.rejected = self.row + 1, self.rejected + 1
                return False
            self.n, self.mean, self.variance = 0, 0.0, 0.0
        self.row = 0
        self._count(size)
        return True

    def _count(self, size: float) -> None:
        self.n += 1
        weight = 1.0 / min(self.n, self.rule.horizon)
        away = size - self.mean
        self.mean = (1.0 - weight) * self.mean + weight * size  # of a weight of 1, exactly that size
        self.variance = (1.0 - weight) * (self.variance + weight * away * away)
