"""The pace between acting and learning: how many items are sampled for each that comes, bounded on both sides."""

from __future__ import annotations

import sys
from typing import Any

from polyplay.replay.description import Replay

FREE = sys.maxsize


class Pace:
    """Counts from the moment that `start` transitions had come.

    Learning may sample a batch while sampled + batch ≤ ratio · inserted; acting may go on while sampled is less than
    `slack` batches behind. One of both holds at any time, whatever the size of what is added at once.
    """

    def __init__(self, replay: Replay):
        self.ratio, self.batch, self.slack, self.start = replay.ratio, replay.batch, replay.slack, replay.start
        self.single = not replay.sequence
        self.mark = -1  # items that had been inserted at the start; -1: it is still to come

    def heard(self, inserted: int, steps: int) -> None:
        """After each addition: items and transitions so far."""
        if self.mark < 0 and steps >= self.start:
            self.mark = max(0, inserted - (steps - self.start)) if self.single else inserted

    def credit(self, inserted: int, sampled: int) -> float:
        """Items that may be sampled for what was inserted, less those that were."""
        return (self.ratio or 0.0) * (inserted - self.mark) - sampled

    def due(self, inserted: int, sampled: int) -> int:
        if self.mark < 0:
            return 0
        return FREE if self.ratio is None else max(0, int(self.credit(inserted, sampled) // self.batch))

    def room(self, inserted: int, sampled: int, steps: int) -> int:
        if self.ratio is None:
            return FREE
        behind = self.slack * self.batch
        if self.mark < 0:
            return max(1, self.start - steps) + int(behind / self.ratio)
        return max(0, -int(-(behind - self.credit(inserted, sampled)) // self.ratio))

    def measured(self, inserted: int, sampled: int) -> float:
        """Items sampled for each inserted since the start."""
        return sampled / max(1, inserted - self.mark) if self.mark >= 0 else 0.0

    def save(self) -> dict[str, Any]:
        return {"mark": self.mark}

    def load(self, saved: dict[str, Any]) -> None:
        self.mark = int(saved["mark"])
