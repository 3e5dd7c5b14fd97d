"""The rate of learning to acting: rows learnt from for each row added, bounded on both sides."""

from __future__ import annotations

import sys

from polyplay.buffers.replay.spec import Replay

FREE = sys.maxsize


class RateLimiter:
    """Counts rows from the `start`-th on, and rows drawn: an item counts as those that are learnt from, a transition as
    one. Rows are counted and not transitions, which are fewer by one a game, so that equal replicas owe the same at
    the same time.

    Learning may draw a batch while drawn + batch ≤ ratio · rows; acting may go on while drawing is less than `slack`
    batches behind. One of both holds at any time, whatever the size of what is added at once.
    """

    def __init__(self, replay: Replay):
        self.ratio, self.start = replay.ratio, replay.start
        self.each = max(replay.sequence, 1)  # rows of an item
        self.batch, self.slack = replay.batch * self.each, replay.slack
        self.rows = 0  # added so far

    @property
    def begun(self) -> bool:
        return self.rows >= self.start

    def credit(self, sampled: int) -> float:
        """Rows that may be drawn for those added, less those drawn; sampled: items drawn so far."""
        return (self.ratio or 0.0) * (self.rows - self.start) - sampled * self.each

    def due(self, sampled: int) -> int:
        """Batches that may be drawn now."""
        if not self.begun:
            return 0
        return FREE if self.ratio is None else max(0, int(self.credit(sampled) // self.batch))

    def room(self, sampled: int) -> int:
        """Rows that may be added before drawing is `slack` batches behind."""
        if self.ratio is None:
            return FREE
        behind = self.slack * self.batch
        if not self.begun:
            return self.start - self.rows + int(behind / self.ratio)
        return max(0, -int(-(behind - self.credit(sampled)) // self.ratio))

    def measured(self, sampled: int) -> float:
        """Rows drawn for each row added since the start."""
        return sampled * self.each / max(1, self.rows - self.start) if self.begun else 0.0
