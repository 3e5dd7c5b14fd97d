"""The ranges of options that are numbers, as the types of their fields: `lanes: Count = 16`. `runs.flags` holds every
value to its field's range, whether it was typed, given in Python or read from a file, and help prints it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, but for the one that `but` names."""

    low: float
    high: float = math.inf
    but: Literal["", "low", "high"] = ""

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.but == "low" else self.low <= value
        return above and (value < self.high if self.but == "high" else value <= self.high)

    def __str__(self) -> str:
        first = f"above {self.low}" if self.but == "low" else f"from {self.low}"
        if self.high == math.inf:
            return first if self.but == "low" else f"{first} up"
        return f"{first}, at most {self.high}" if self.but == "low" else f"{first} to {'below ' if self.but == 'high' else ''}{self.high}"


SEATS = 64  # workers at once: of a role, and of a run

Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]  # where 0 says: none, or chosen
SomeWorkers = Annotated[int, Range(1, SEATS)]
Workers = Annotated[int, Range(0, SEATS)]  # 0: chosen
Lag = Annotated[int, Range(-1)]  # -1: any
Width = Annotated[int, Range(2, 16_384)]  # of a layer
Seed = Annotated[int, Range(0, 2**63 - 1)]

Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 1, but="high")]
Positive = Annotated[float, Range(0, but="low")]
NonNegative = Annotated[float, Range(0)]  # where 0 says: none, or off
Seconds = Annotated[float, Range(0, 10**9, but="low")]
