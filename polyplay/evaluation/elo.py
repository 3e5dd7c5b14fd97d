"""Elo ratings of players that met: a Bradley-Terry fit on Elo's scale, base 10, with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

SCALE = 400 / math.log(10)  # Elo per unit of log odds: 400 points more are odds of 10 to 1
STEPS = 100  # of Newton's method; it takes about ten
LARGEST = 2.0  # change of a rating in one step, in log odds


@dataclass(frozen=True)
class Rating:
    """A player's Elo and an interval of it, as a distance from the anchor, whose own is exact."""

    name: str
    elo: float
    low: float
    high: float
    games: float


def rate(
    names: Sequence[str], points: np.ndarray, anchor: str, at: float = 0.0, prior: float = 1.0, level: float = 0.95
) -> list[Rating]:
    """Ratings in the order of names, the anchor's being `at`.

    points [n, n]: what row's player scored against column's in all: wins + draws / 2. P(i beats j) =
    1 / (1 + 10^((j - i) / 400)); the ratings are the most likely ones. prior: every two players that met drew so many
    games more; with 0, who lost or won all games has no finite rating. Intervals: the likelihood's curvature there.
    Raises ValueError: no chain of games joins a player to the anchor, or there are no finite ratings.
    """
    games = points + points.T
    met = games > 0
    scored = points + prior / 2 * met
    fixed, free = names.index(anchor), [i for i, name in enumerate(names) if name != anchor]
    if alone := sorted(set(names) - {names[i] for i in _joined(met, fixed)}):
        raise ValueError(f"no games join {', '.join(alone)} to {anchor}")
    if min(len(_joined(scored > 0, fixed)), len(_joined(scored.T > 0, fixed))) < len(names):  # Ford 1957
        raise ValueError("no finite ratings: some players won or lost every game against all others; give a prior")
    strengths, information = _fit(scored, free)
    errors = np.zeros(len(names))
    errors[free] = np.sqrt(np.diag(np.linalg.inv(information)))
    elo, spread = at + SCALE * strengths, NormalDist().inv_cdf((1 + level) / 2) * SCALE * errors
    return [
        Rating(name, float(e), float(e - s), float(e + s), float(n))
        for name, e, s, n in zip(names, elo, spread, games.sum(1), strict=True)
    ]


def _fit(scored: np.ndarray, free: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Most likely log odds, 0 for who is not free, and the information about the free ones, by Newton's method."""
    strengths, games = np.zeros(len(scored)), scored + scored.T
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(strengths[None] - strengths[:, None]))
        gradient = (scored - games * chance).sum(1)
        weight = games * chance * (1 - chance)
        information = (np.diag(weight.sum(1)) - weight)[np.ix_(free, free)]
        step = np.linalg.solve(information, gradient[free])
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
        strengths[free] += step * min(1.0, LARGEST / np.abs(step).max())
    return strengths, information


def _joined(met: np.ndarray, first: int) -> set[int]:
    """Players that are reached from the first, itself among them."""
    found, new = {first}, {first}
    while new:
        new = {int(j) for i in new for j in np.flatnonzero(met[i])} - found
        found |= new
    return found
