"""Random numbers that depend only on a key, statistics of scores, and value rescaling.

The statistics follow Agarwal et al. 2021 (rliable). The median and the mean are over games, with each game's score
averaged over its runs. The interquartile mean is the mean of the middle half of all runs of all games. The bootstrap
draws runs of each game with replacement. Results are deterministic for a given seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

# Action noise: uniform numbers that are functions of a key (seed, lane, step), so no generator state needs saving.
#
# A number does not depend on how lanes (parallel environments) are grouped. If an action is drawn again with newer
# weights, the number is the same.


SPLITMIX, _B, _C = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_30, _27, _31, _41 = (np.uint64(x) for x in (30, 27, 31, 41))


def mix(x: np.ndarray) -> np.ndarray:
    """Scramble the bits of uint64 numbers with SplitMix64's finalizer (Steele et al. 2014), modulo 2^64."""
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


def uniform(seed: int, lanes: np.ndarray, steps: np.ndarray, n: int) -> np.ndarray:
    """Return `n` random numbers in (0, 1) for each pair of a lane (parallel environment) and a step: float32 [..., n].
    `lanes` and `steps` are broadcast to the shape [...].
    """
    key = mix(np.array([seed % 2**64], np.uint64) + SPLITMIX)
    lane = mix(np.asarray(lanes).astype(np.uint64) * SPLITMIX + key)
    step = mix(lane ^ (np.asarray(steps).astype(np.uint64) * _C + _B))
    bits = mix(step[..., None] + np.arange(1, n + 1, dtype=np.uint64) * SPLITMIX)
    return ((bits >> _41).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)  # 24 bits: exact, never 1


REPS = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # most numbers drawn at once, to limit memory


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None = None  # None: every game has one run, so the spread is unknown
    high: float | None = None


def trimmed_mean(scores: np.ndarray, part: float = 0.25) -> np.ndarray:
    """Return the mean over the last axis, without the lowest and the highest ⌊part · n⌋ values: [..., n] → [...]."""
    n = scores.shape[-1]
    cut = int(part * n)
    return np.sort(scores, -1)[..., cut : n - cut].mean(-1)


STATISTICS: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {  # scores [reps, runs] of each game → [reps]
    "median": lambda games: np.median(np.stack([g.mean(-1) for g in games]), 0),
    "mean": lambda games: np.stack([g.mean(-1) for g in games]).mean(0),
    "iqm": lambda games: trimmed_mean(np.concatenate(games, -1)),
}


def aggregate(scores: Mapping[str, Sequence[float]], seed: int = 0, reps: int = REPS) -> dict[str, Estimate]:
    """Return the median, mean and interquartile mean ("iqm") of scores, with 95 % bootstrap intervals.
    `scores`: {game: score of each run}.
    """
    games = [np.asarray(scores[game], np.float64)[None] for game in sorted(scores)]
    if not games or not all(g.size for g in games):
        raise ValueError("every game needs at least one score")
    values = {name: float(of(games)[0]) for name, of in STATISTICS.items()}
    if all(g.shape[1] == 1 for g in games):
        return {name: Estimate(value) for name, value in values.items()}
    rng = np.random.default_rng(seed)
    drawn = [g[0][rng.integers(g.shape[1], size=(reps, g.shape[1]))] for g in games]  # resampled runs
    ends = {name: _ends(of(drawn)) for name, of in STATISTICS.items()}
    return {name: Estimate(value, *ends[name]) for name, value in values.items()}


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_interval(returns: Sequence[float], seed: int = 0, reps: int = REPS) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval (low, high) of an evaluation's mean return, or None for a single game."""
    x = np.asarray(returns, np.float64)
    return None if x.size < 2 else _ends(_means(x, np.random.default_rng(seed), reps))


def interval_name(n: int) -> str:
    """Return the name of `mean_interval`'s result for n values. For n ≤ 3, the interval is their range."""
    # all n draws are the lowest value with probability n⁻ⁿ, for n ≤ 3 more than the 2.5 % below the interval
    return "95 % interval" if n > 3 else "range"


def trailing_means(values: np.ndarray, window: int) -> np.ndarray:
    """Return the moving average of `values` over `window` values, float64 [n]. The first means are over fewer."""
    sums, end = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)]), np.arange(1, len(values) + 1)
    begin = np.maximum(0, end - window)
    return (sums[end] - sums[begin]) / (end - begin)


def aggregates_agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Tell whether the bootstrap interval of the difference between two evaluations' means contains 0."""
    rng = np.random.default_rng(0)
    low, high = _ends(_means(np.asarray(a, float), rng, REPS) - _means(np.asarray(b, float), rng, REPS))
    return low <= 0.0 <= high


def _means(x: np.ndarray, rng: np.random.Generator, reps: int) -> np.ndarray:
    """Return the means of `reps` resamples of x [n], float64 [reps]. Draw the resamples in parts to limit memory."""
    step = max(1, CHUNK // x.size)
    parts = [min(step, reps - at) for at in range(0, reps, step)]
    return np.concatenate([x[rng.integers(x.size, size=(n, x.size))].mean(-1) for n in parts])


# Value rescaling h and its inverse (Pohlen et al. 2018; R2D2), elementwise, for NumPy arrays and tensors, and the units
# of a network's values.


Array: TypeAlias = Any  # anything with arithmetic


def rescale(x: Array, eps: float = 1e-3) -> Array:
    """Return the rescaled value h(x) = sgn(x)·(√(|x| + 1) − 1) + ε·x, without loss of digits near 0."""
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + eps * x


def unscale(y: Array, eps: float = 1e-3) -> Array:
    """Return h⁻¹(y) = sgn(y)·(((√(1 + 4ε·(|y| + 1 + ε)) − 1)/2ε)² − 1), the inverse of `rescale`."""
    root = (1.0 + 4.0 * eps * (abs(y) + (1.0 + eps))) ** 0.5
    u = 2.0 * y / (root + (1.0 + 2.0 * eps))
    return u * (abs(u) + 2.0)  # |u| + 1 is the fraction above; (|u| + 1)² − 1 would cancel


@dataclass(frozen=True)
class ValueUnits:
    """Units of a network's values. In training, rewards are multiplied by `reward_scale`. If `rescale` is above 0, the
    network predicts h(value) with ε = `rescale` (see the function `rescale`).
    """

    reward_scale: float = 1.0
    rescale: float = 0.0

    def in_environment(self, value: Array, learned: Array = 1.0) -> Array:
        """Convert a network's values to the units of the environment's rewards. Clipping of rewards is not undone.
        `learned`: reward scale that the network has learned (Policy.reward_scale).
        """
        if self.rescale:
            value = unscale(value, self.rescale)
        value = value if isinstance(learned, float) and learned == 1.0 else value / learned
        return value if self.reward_scale == 1.0 else value / self.reward_scale
