"""Median, mean and interquartile mean of scores over games and runs, with stratified bootstrap intervals.

As Agarwal et al. 2021 (rliable): a game's score in the median and the mean is its runs' mean; the interquartile mean is
that of all runs of all games, without the lowest and the highest quarter; the bootstrap draws runs anew within every
game, never games. Pure, deterministic by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

REPS = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # numbers drawn at once


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None = None  # None: every game has one run, so the spread of runs is unknown
    high: float | None = None


def trimmed_mean(scores: np.ndarray, part: float = 0.25) -> np.ndarray:
    """[…, n] → […]: without the lowest and the highest ⌊part · n⌋."""
    n = scores.shape[-1]
    cut = int(part * n)
    return np.sort(scores, -1)[..., cut : n - cut].mean(-1)


STATISTICS: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {  # of a list by game of [reps, runs] → [reps]
    "median": lambda games: np.median(np.stack([g.mean(-1) for g in games]), 0),
    "mean": lambda games: np.stack([g.mean(-1) for g in games]).mean(0),
    "iqm": lambda games: trimmed_mean(np.concatenate(games, -1)),
}


def aggregate(scores: Mapping[str, Sequence[float]], seed: int = 0, reps: int = REPS) -> dict[str, Estimate]:
    """{"median", "mean", "iqm"} of {game: the scores of its runs}, with percentile intervals."""
    games = [np.asarray(scores[game], np.float64)[None] for game in sorted(scores)]
    if not games or not all(g.size for g in games):
        raise ValueError("every game needs at least one score")
    values = {name: float(of(games)[0]) for name, of in STATISTICS.items()}
    if all(g.shape[1] == 1 for g in games):
        return {name: Estimate(value) for name, value in values.items()}
    rng = np.random.default_rng(seed)
    drawn = [g[0][rng.integers(g.shape[1], size=(reps, g.shape[1]))] for g in games]  # runs, with replacement
    ends = {name: _ends(of(drawn)) for name, of in STATISTICS.items()}
    return {name: Estimate(value, *ends[name]) for name, value in values.items()}


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_interval(returns: Sequence[float], seed: int = 0, reps: int = REPS) -> tuple[float, float] | None:
    """(low, high) of the mean of one evaluation's returns; None for a single game."""
    x = np.asarray(returns, np.float64)
    return None if x.size < 2 else _ends(_means(x, np.random.default_rng(seed), reps))


def trailing_means(values: np.ndarray, window: int) -> np.ndarray:
    """float64 [n]: the mean of each value and up to `window` - 1 before it."""
    sums, end = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)]), np.arange(1, len(values) + 1)
    begin = np.maximum(0, end - window)
    return (sums[end] - sums[begin]) / (end - begin)


def aggregates_agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the difference of two evaluations' means may be none: 0 lies within its bootstrap interval."""
    rng = np.random.default_rng(0)
    low, high = _ends(_means(np.asarray(a, float), rng, REPS) - _means(np.asarray(b, float), rng, REPS))
    return low <= 0.0 <= high


def _means(x: np.ndarray, rng: np.random.Generator, reps: int) -> np.ndarray:
    """float64 [reps]: means of x [n] drawn anew, a part at a time."""
    step = max(1, CHUNK // x.size)
    parts = [min(step, reps - at) for at in range(0, reps, step)]
    return np.concatenate([x[rng.integers(x.size, size=(n, x.size))].mean(-1) for n in parts])
