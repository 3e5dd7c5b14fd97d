"""The time that a GTP engine has for a move. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

LEFT = 40  # moves that the rest of the time is for, at least
RESERVE = 0.9  # of the time for a move


@dataclass
class Clock:
    """What time there is. Seconds; byo_stones 0 with byo > 0: no limit. `left`: the seconds that are left to a player
    and for how many stones, 0: main time; None: all of it.
    """

    main: float = 0.0
    byo: float = 0.0
    byo_stones: int = 0
    limited: bool = False

    def per_move(self, left: tuple[float, int] | None) -> float | None:
        """Seconds for the next move; None: no limit."""
        if not self.limited:
            return None
        seconds, stones = self._left(left)
        byo = self.byo / self.byo_stones if self.byo_stones else 0.0
        return RESERVE * (seconds / stones if stones else max(seconds / LEFT, byo))

    def after(self, left: tuple[float, int] | None, used: float) -> tuple[float, int]:
        """What is left after a move of so many seconds. The move that uses up the main time is the first of a byo-yomi
        period, and what it takes beyond the main time is taken from that.
        """
        seconds, stones = self._left(left)
        seconds -= used
        if not stones:
            if seconds > 0 or not self.byo_stones:
                return max(seconds, 0.0), 0
            seconds, stones = seconds + self.byo, self.byo_stones
        return (max(seconds, 0.0), stones - 1) if stones > 1 else (self.byo, self.byo_stones)

    def _left(self, left: tuple[float, int] | None) -> tuple[float, int]:
        return left if left is not None else (self.main, 0) if self.main else (self.byo, self.byo_stones)
