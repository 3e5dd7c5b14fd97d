"""The gate of AlphaGo Zero: the learner's weights replace the best ones only if they win a match against them. Pure.

Silver et al. 2017, Methods, "Evaluator": 400 games, a candidate replaces the best player if it wins more than 55 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.common.errors import UserError


@dataclass(frozen=True)
class Gate:
    """When a match is due, how many games it has, and what a candidate needs. A draw is half a point."""

    share: float  # of the points; a candidate needs more
    games: int  # of a match, half of them with each colour
    every: int  # updates from one match to the next
    plies: int  # at the beginning of a game, drawn from the best network's policy
    reign: int = 0  # games that the best weights play before a match

    def __post_init__(self) -> None:
        if not 0.5 <= self.share < 1:
            raise UserError(f"--gate: {self.share:g} given; allowed: 0 for no matches, or from 0.5 to below 1")
        if self.games % 2:
            raise UserError(
                f"--gate-games: {self.games} given; allowed: an even number, half of the games with each colour"
            )

    def verdict(self, points: float, played: int) -> bool | None:
        """Whether the candidate passes; None: the games that are left can still decide either way."""
        needed = self.share * self.games + 1e-9  # points are multiples of a half
        if points > needed:
            return True
        return None if points + self.games - played > needed else False

    def due_after(self, version: int) -> int:
        """The first update after `version` whose weights are a candidate."""
        return (version // self.every + 1) * self.every
