"""When players of a board game give up: the option --resign."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polyplay.common.errors import UserError

NEVER = -1.0  # no value is below it


@dataclass(frozen=True)
class ResignOptions:
    v: float | None = None  # fixed; None: learnt
    played_on: float = 0.1  # share of games; 1: nobody resigns
    wrong: float = 0.05  # of the games that would be resigned fewer than this may be other than lost

    @classmethod
    def parse(cls, given: str) -> ResignOptions:
        """auto, off, or v. Raises UserError."""
        if given in ("auto", "off"):
            return cls(played_on=0.1 if given == "auto" else 1.0)
        try:
            v = float(given)
        except ValueError:
            v = math.nan
        if not -1 <= v <= 0:
            raise UserError(f"--resign: {given} given; allowed: auto, off, or a value from -1 to 0")
        return cls(v)
