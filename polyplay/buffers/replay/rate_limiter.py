"""The rate of learning to acting: rows learnt from for each agent step, bounded on both sides."""

from __future__ import annotations

import math
import sys

from polyplay.buffers.replay.spec import Replay

FREE = sys.maxsize


class RateLimiter:
    """Counts agent steps from the `start`-th on, and rows drawn: an item counts as those that are learnt from, a
    transition as one. The row that begins an episode is no agent step.

    Learning may draw a batch while drawn + batch ≤ ratio · steps; acting may go on while drawing is less than `slack`
    batches behind. One of both holds at any time, whatever the size of what is added at once.
    """

    def __init__(self, replay: Replay):
        self.ratio, self.start = replay.ratio, replay.start
        self.each = max(replay.sequence, 1)  # rows of an item
        self.batch, self.slack = replay.batch * self.each, replay.slack
        self.steps = 0.0  # so far; of replicas whose gradients are averaged their mean, so that all owe the same

    @property
    def begun(self) -> bool:
        return self.steps >= self.start

    def credit(self, sampled: int) -> float:
        """Rows that may be drawn for the steps so far, less those drawn; sampled: items drawn so far."""
        return (self.ratio or 0.0) * (self.steps - self.start) - sampled * self.each

    def due(self, sampled: int) -> int:
        """Batches that may be drawn now."""
        if not self.begun:
            return 0
        return FREE if self.ratio is None else max(0, int(self.credit(sampled) // self.batch))

    def room(self, sampled: int) -> int:
        """Agent steps that may be added before drawing is `slack` batches behind."""
        if self.ratio is None:
            return FREE
        behind = self.slack * self.batch
        if not self.begun:
            return math.ceil(self.start - self.steps) + int(behind / self.ratio)
        return max(0, -int(-(behind - self.credit(sampled)) // self.ratio))

    def measured(self, sampled: int) -> float:
        """Rows drawn for each agent step since the start."""
        return sampled * self.each / max(1, self.steps - self.start) if self.begun else 0.0
