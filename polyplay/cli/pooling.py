"""Curves of runs that differ only in their seed, as one mean with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyplay.cli.run_curves import Curve
from polyplay.common.statistics import mean_interval

POINTS = 200  # of a pooled curve
REPS = 500  # of the bootstrap at each of them
BANDS = {"interval": "95 % interval", "range": "lowest to highest"}


@dataclass(frozen=True)
class Band:
    """A mean over runs and what is drawn around it; all of one length."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def pools_of(found: Sequence[Curve]) -> list[list[Curve]]:
    """Curves of the same system and configuration together, in the order of their first."""
    pools: list[list[Curve]] = []
    for curve in found:
        same = (pool for pool in pools if (pool[0].label, pool[0].settings) == (curve.label, curve.settings))
        pool = next(same, None)
        if pool is None:
            pools.append(pool := [])
        pool.append(curve)
    return pools


def names_of(pools: Sequence[Sequence[Curve]]) -> list[str]:
    """What a colour stands for: the system, the environment where there are several, and the settings in which pools
    of the same system differ.
    """
    heads = [pool[0] for pool in pools]
    several = len({head.env for head in heads}) > 1
    return [" · ".join([h.label, *([h.env] if several else []), *_own_settings(h, heads)]) for h in heads]


def _own_settings(head: Curve, heads: Sequence[Curve]) -> list[str]:
    others = [h for h in heads if (h.label, h.env) == (head.label, head.env)]
    names = [k for k, v in head.settings.items() if any(h.settings.get(k) != v for h in others)]
    return [f"{name.replace('_', ' ')} {_text(head.settings[name])}" for name in names[:3]]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def pool_curves(runs: Sequence[Curve], axis: str, band: str) -> Band | None:
    """Where all runs have a return; None: there is one run, or they have no such part."""
    across = [run.across[axis] for run in runs]
    begin, end = max(x[0] for x in across), min(x[-1] for x in across)
    if len(runs) < 2 or begin >= end:
        return None
    grid = np.linspace(begin, end, POINTS)
    returns = np.stack([np.interp(grid, x, run.returns) for x, run in zip(across, runs, strict=True)])
    low, high = returns.min(0), returns.max(0)
    if band == "interval":
        low, high = np.array([mean_interval(column, reps=REPS) for column in returns.T]).T
    return Band(grid, returns.mean(0), low, high)
