"""Whether two small groups of numbers differ: bootstrap intervals and permutation tests. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

ALL = 5  # up to this many numbers every resample is looked at, beyond it DRAWS random ones
DRAWS = 20_000


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean (Efron 1979): quantiles of the means of resamples with
    replacement, all nⁿ of them where n ≤ ALL.
    """
    given = np.asarray(values, float)
    n = len(given)
    if n <= ALL:
        picks = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        picks = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    low, high = np.quantile(given[picks].mean(1), [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return max(a[0], b[0]) <= min(a[1], b[1])


def _gaps(on: Sequence[float], off: Sequence[float]) -> np.ndarray:
    """Differences of means of every way to part the numbers into groups of these sizes, theirs first."""
    values, n = np.array([*on, *off], float), len(on)
    parts = np.array(list(itertools.combinations(range(len(values)), n)))
    mine = values[parts].sum(1)
    return mine / n - (values.sum() - mine) / (len(values) - n)


def chance(on: Sequence[float], off: Sequence[float]) -> float:
    """Two-sided exact permutation test: the share of all ways to part the numbers with means at least as far apart."""
    gaps = np.abs(_gaps(on, off))
    return float(np.mean(gaps >= gaps[0] - 1e-12))


def pooled(pairs: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """(mean over the pairs of mean(on) − mean(off), its two-sided p); numbers are parted at random within each pair."""
    rng, all_gaps = np.random.default_rng(0), [_gaps(on, off) for on, off in pairs]
    seen = float(np.mean([g[0] for g in all_gaps]))
    drawn = np.mean([rng.choice(g, DRAWS) for g in all_gaps], axis=0)
    return seen, float((1 + np.sum(np.abs(drawn) >= abs(seen) - 1e-12)) / (1 + DRAWS))
