"""What trainers share, as the diagram and the crew see it: the directories of their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polyplay.common.edges import Arrow


@dataclass
class Members:
    """An edge of the wiring (common.edges) that lies in files."""

    n: int
    memory: ClassVar[str] = "members"
    nbytes: ClassVar[int] = 0
    patience: float = 0.0

    def label(self) -> str:
        return f"members/00 … {self.n - 1:02d}: scores, hyperparameters, checkpoints"

    def arrows(self) -> list[Arrow]:
        """Every trainer writes those of its member, and reads all."""
        return [Arrow(self.label(), ("out",), ("out",))]

    def close(self) -> None:
        """Nobody waits in it."""
