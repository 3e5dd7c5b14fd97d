"""Who plays whom: rules that draw the players of a table. Pure; imports no torch.

latest   other living agents, with their newest weights; an agent meets itself where there is no other
uniform  anybody: living agents, past selves, bots
past:P   a past self with probability P, drawn by quality; else as latest
elo      anybody, those rather whom the first player beats half the time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyplay.common.errors import UserError
from polyplay.population.ratings import win_probability

LATEST, UNIFORM, PAST_SELVES, BY_ELO = "latest", "uniform", "past", "elo"
DEVIATION = 1 / 6  # of the win probability around ½ (Jaderberg et al. 2019)
RATE = 0.01  # η of the qualities (Berner et al. 2019, appendix N)


@dataclass(frozen=True)
class Candidates:
    """Players that may be drawn, by their numbers."""

    agents: Sequence[int]
    past: Sequence[int]
    bots: Sequence[int]
    elo: np.ndarray  # float64 [players]
    quality: np.ndarray  # float64 [players], of past selves


@dataclass(frozen=True)
class Opponents:
    """A rule, by its name, and the share of past selves."""

    rule: str
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Opponents:
        """From an option: `past:0.2`. Raises UserError."""
        rule, colon, rest = text.partition(":")
        if text in (LATEST, UNIFORM, BY_ELO):
            return cls(text)
        try:
            share = float(rest)
        except ValueError:
            share = math.nan
        if rule == PAST_SELVES and colon and 0 <= share <= 1:
            return cls(rule, share)
        raise UserError(f"--opponents: {text} given; allowed: latest, uniform, elo, or past:P with P from 0 to 1")

    def describe(self) -> list[str]:
        share = f":{self.share:g}" if self.rule == PAST_SELVES else ""
        return [f"tables  of opponents {self.rule}{share}"]

    def draw(self, first: int, seated: int, among: Candidates, random: np.ndarray) -> tuple[list[int], list[float]]:
        """The players of a table, `first` at its head; and what each loses of its quality each time it is beaten.

        random: float [seated, 2], uniform in (0, 1). Nobody sits twice while there are others, but for past selves
        that were drawn by quality.
        """
        players, costs = [first], [0.0]
        for which, where in random[1:].tolist():
            if among.past and which < self.share:
                chances = quality_chances(among.quality[list(among.past)])
                at = draw_index(chances, where)
                players.append(among.past[at])
                costs.append(quality_cost(float(chances[at]), len(chances)))
                continue
            pool = self._pool(among)
            left = [p for p in pool if p not in players] or pool
            weights = np.ones(len(left))
            if self.rule == BY_ELO:
                weights = np.array([match_weight(win_probability(among.elo[first], among.elo[p])) for p in left])
            players.append(left[draw_index(weights, where)])
            costs.append(0.0)
        return players, costs

    def _pool(self, among: Candidates) -> list[int]:
        everybody = self.rule in (UNIFORM, BY_ELO)
        return [*among.agents, *among.past, *among.bots] if everybody else list(among.agents)


def match_weight(chance: float) -> float:
    """How much a match is wanted that is won with this probability: a normal density, 1 at even odds."""
    return math.exp(-(((chance - 0.5) / DEVIATION) ** 2) / 2)


def quality_chances(quality: np.ndarray) -> np.ndarray:
    """With which probabilities past selves are drawn: softmax."""
    weights = np.exp(quality - quality.max())
    return weights / weights.sum()


def quality_cost(chance: float, n: int) -> float:
    """What one of `n` past selves that was drawn with probability `chance` loses of its quality when it is beaten: in
    expectation as much for each, however they are drawn.
    """
    return RATE / (n * chance)


def draw_index(weights: np.ndarray, where: float) -> int:
    """The index drawn with these weights by a uniform number."""
    ends = np.cumsum(weights)
    return min(int(np.searchsorted(ends, where * ends[-1], side="right")), len(ends) - 1)


def keep_seats(players: Sequence[int], costs: Sequence[float], before: Sequence[int]) -> tuple[list[int], list[float]]:
    """The same players, with each who was at the table before in the seat that it had: fewer weights have to move."""
    places: list[int | None] = [None] * len(players)
    rest = []
    for i, player in enumerate(players):
        free = (at for at, p in enumerate(before) if p == player and places[at] is None)
        at = next(free, None)
        if at is None:
            rest.append(i)
        else:
            places[at] = i
    order = [rest.pop(0) if i is None else i for i in places]
    return [players[i] for i in order], [costs[i] for i in order]
