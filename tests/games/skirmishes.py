"""Matches of toy:skirmish between two teams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.envs import Envs

Team = Callable[[np.ndarray], np.ndarray]  # actions [B] for observations [B, 5]


def outcome(ours: Team, theirs: Team, seed: int, n: int = 1500, **options) -> tuple[float, float]:
    """Shares of the first match of each of n pairs of teams that `ours` won and lost; it has either side in turn."""
    pool = Envs("toy:skirmish", 4 * n, options=options).open(seed)
    mine = (np.arange(n)[:, None] + np.array([0, 0, 1, 1])) % 2 == 0
    points, open_ = np.zeros(n), np.ones(n, bool)
    while open_.any():
        lanes, row = pool.recv()
        points += np.where(open_, (row["reward"].reshape(n, 4) * np.where(mine, 1, -1)).sum(1), 0)
        open_ &= pool._states["here"].any(1)
        pool.send(lanes, np.where(mine.reshape(-1), ours(row["obs"]), theirs(row["obs"])))
    return float((points > 0).mean()), float((points < 0).mean())
