"""When a machine gets another agent after its own was lost, or could not be opened."""

from __future__ import annotations

import math
import time

FIRST, MOST, HOUR = 2.0, 5, 3600.0  # seconds to the first try, each next one waits twice as long; tries within an hour


class Retries:
    """By machine: its failures within an hour, and when it may be tried again. For any thread."""

    def __init__(self) -> None:
        self._failures: dict[str, list[float]] = {}
        self._until: dict[str, float] = {}  # of those that are put off

    def fail(self, name: str) -> float:
        """Put a machine off; for how many seconds."""
        now = time.monotonic()
        recent = [t for t in self._failures.get(name, ()) if t > now - HOUR]
        self._failures[name] = [*recent, now]
        pause = FIRST * 2.0 ** len(recent) if len(recent) < MOST else HOUR
        self._until[name] = now + pause
        return pause

    def allows(self, name: str) -> bool:
        """Whether a machine may be tried now."""
        return time.monotonic() >= self._until.get(name, -math.inf)

    def passed(self) -> bool:
        """Whether the pause of a machine is over: told once for each pause."""
        now = time.monotonic()
        over = [name for name, until in list(self._until.items()) if now >= until]
        for name in over:
            del self._until[name]
        return bool(over)
