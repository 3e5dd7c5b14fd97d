"""Ratings that follow matches one by one: Elo, and TrueSkill of two teams in closed form. Pure; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

NORMAL = NormalDist()
PEAK = 1 / math.sqrt(2 * math.pi)  # density of the normal distribution at 0
Skill = tuple[float, float]  # a player's mean μ and standard deviation σ


def win_probability(elo: float, other: float) -> float:
    """Of a player against another, by Elo's model: 400 points more are odds of 10 to 1. A draw is half a win."""
    return 1 / (1 + 10 ** ((other - elo) / 400))


@dataclass(frozen=True)
class Elo:
    """Elo (1978), base 10. A team has the mean rating of its players, and each of them moves as the team does."""

    start: float = 1000.0
    k: float = 16.0  # points that a win moves a rating by which was sure to be lost

    def change(self, first: float, second: float, points: float) -> float:
        """What the first team's ratings gain and the second's lose. points: of the first: 1 won, ½ drawn, 0 lost."""
        return self.k * (points - win_probability(first, second))


@dataclass(frozen=True)
class TrueSkill:
    """TrueSkill (Herbrich et al. 2006) of two teams, where its message passing ends in closed form. The defaults are
    those of OpenAI Five (Berner et al. 2019), whose versions do not change: τ 0.
    """

    mu: float = 25.0
    sigma: float = 25 / 3
    beta: float = 25 / 6  # standard deviation of a player's performance in a match
    tau: float = 0.0  # of what a player's skill changes by before each match
    draw: float = 0.02  # probability of a draw between equals

    def rate(
        self,
        first: Sequence[Skill],
        second: Sequence[Skill],
        points: float,
        weights: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> tuple[list[Skill], list[Skill]]:
        """Both teams after a match. points: of the first: 1 won, ½ drawn, 0 lost. weights: of each player, the share of
        the match that it played, 1 if they are not given.
        """
        shares = weights or ([1.0] * len(first), [1.0] * len(second))
        noise, tau, mean, variance = self.beta**2, self.tau**2, 0.0, 0.0
        for team, share, sign in ((first, shares[0], 1.0), (second, shares[1], -1.0)):
            for (mu, sigma), w in zip(team, share, strict=True):
                mean += sign * w * mu
                variance += w * w * (sigma * sigma + tau + noise)
        c = math.sqrt(variance)
        margin = self.beta * _margin(self.draw, len(first) + len(second)) / c
        lost = points < 0.5
        x = (-mean if lost else mean) / c
        v, w2 = _drawn(x, margin) if points == 0.5 else _won(x - margin)
        v = (-v if lost else v) / c
        return self._moved(first, shares[0], v, w2 / variance), self._moved(second, shares[1], -v, w2 / variance)

    def _moved(self, team: Sequence[Skill], shares: Sequence[float], v: float, w: float) -> list[Skill]:
        tau, moved = self.tau**2, []
        for (mu, sigma), share in zip(team, shares, strict=True):
            variance = sigma * sigma + tau
            moved.append((mu + share * variance * v, math.sqrt(variance * (1 - share * share * variance * w))))
        return moved


@cache
def _margin(draw: float, players: int) -> float:
    """How far performances are apart at least, if the match is no draw, in β."""
    return NORMAL.inv_cdf((draw + 1) / 2) * math.sqrt(players)


def _density(x: float) -> float:
    return PEAK * math.exp(-x * x / 2)


def _cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _won(x: float) -> tuple[float, float]:
    """v and w of a win that was x standard deviations clear of a draw in expectation."""
    below = _cdf(x)
    if below <= 1e-300:
        return -x, 1.0  # the limits
    v = _density(x) / below
    return v, min(max(v * (v + x), 0.0), 1.0)


def _drawn(x: float, margin: float) -> tuple[float, float]:
    """v and w of a draw where the first team was x standard deviations better in expectation."""
    low, high = -margin - abs(x), margin - abs(x)
    inside = _cdf(high) - _cdf(low)
    if inside <= 1e-300:
        v, w = high, 1.0  # the limits
    else:
        v = (_density(low) - _density(high)) / inside
        w = v * v + (high * _density(high) - low * _density(low)) / inside
    return (v if x >= 0 else -v), min(max(w, 0.0), 1.0)
