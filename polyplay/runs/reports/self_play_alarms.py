"""Warnings that the network of a run of self-play overfits the games of its replay. Imports no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

REUSE = 4.0  # how often a position may be drawn, in the mean
# Of the value loss in the replay, divided by that of fresh games. Silver et al. 2016 give 0.19 / 0.37 = 0.51 for a
# value network that had memorized its games, and 0.226 / 0.234 = 0.97 for one that had not: this lies between.
OVERFITTED = 0.7
REPORTS = 10  # that the losses are averaged over: right after the start, fresh games are of older weights

Report = Mapping[str, float | None]


class SelfPlayAlarms:
    """Looks at each report; a kind of warning comes once in a run."""

    def __init__(self) -> None:
        self.losses: deque[tuple[float, float]] = deque(maxlen=REPORTS)  # in the replay, of fresh games
        self.told: set[str] = set()

    def look(self, row: Report) -> list[str]:
        """At a line of metrics.jsonl; gives what is to be told of it."""
        found = {kind: text for kind, text in self._checks(row) if kind not in self.told}
        self.told |= found.keys()
        return list(found.values())

    def _checks(self, row: Report) -> Iterator[tuple[str, str]]:
        """Kinds of warnings and their lines."""
        fresh, learnt, reuse = (row.get(name) for name in ("fresh_value_loss", "value_loss", "replay_ratio"))
        if fresh is None:
            return
        if reuse is not None and reuse > REUSE:
            text = f"each position is drawn {reuse:.1f} times in the mean; above {REUSE:g} the network may overfit"
            yield "reuse", f"{text}: lower --ratio"
        if learnt is not None:
            self.losses.append((learnt, fresh))
        means = [sum(column) / REPORTS for column in zip(*self.losses, strict=True)]
        if len(self.losses) == REPORTS and means[0] < OVERFITTED * means[1]:
            text = f"value loss {means[0]:.2g} on the replay, {means[1]:.2g} on fresh games: the network overfits"
            yield "overfitted", f"{text} the games in its replay: lower --ratio or raise --capacity"
