"""A learner's memory of recent rows, for UNREAL's reward prediction (Jaderberg et al. 2016, §3.2)."""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.tree import Spec, Tree
from polyplay.nets.auxiliary import FRAMES

_NO_END, _ZERO, _REWARDING = range(3)  # what a row is as the one behind such rows


class RecentRows:
    """The latest columns of batches [rows, B], each by itself: as many as make `capacity` rows at most.

    obs: of one row; rows: T+1. UNREAL keeps 2,000 rows of each worker; here the number is the whole memory's, and of a
    batch that has more only the last columns are kept. ValueError for less than one column, or too short ones.
    """

    def __init__(self, obs: Spec, rows: int, capacity: int = 2000):
        if not FRAMES < rows <= capacity:
            raise ValueError(f"rows must be {FRAMES + 1} or more, capacity at least as many; got {rows}, {capacity}")
        self.columns = capacity // rows
        self.obs = tree.zeros(obs, (rows, self.columns))
        self.reward = np.zeros((rows, self.columns), np.float32)
        self._end = np.full((rows, self.columns), _NO_END, np.int8)
        self._next = 0  # where the next column goes

    @property
    def counts(self) -> tuple[int, int]:
        """How many examples there are to draw: with a reward of zero, with another."""
        return int((self._end == _ZERO).sum()), int((self._end == _REWARDING).sum())

    def add(self, obs: Tree, reward: np.ndarray, first: np.ndarray) -> None:
        """Rows [T+1, B, …]; reward: what came with each row; first: begins of episodes, or of restarted lanes.

        ValueError for shapes that do not fit.
        """
        shapes = {x.shape[:2] for _, x in tree.leaves(obs)} | {reward.shape, first.shape}
        if len(shapes) > 1 or reward.ndim != 2 or len(reward) != len(self.reward):
            raise ValueError(f"rows must be one [{len(self.reward)}, B] shape; got {sorted(shapes)}")
        last = slice(max(0, reward.shape[1] - self.columns), None)
        reward, first = reward[:, last], first[:, last]
        to = (self._next + np.arange(reward.shape[1])) % self.columns
        self._next = (self._next + len(to)) % self.columns
        tree.write(self.obs, (slice(None), to), tree.at(obs, (slice(None), last)))
        self.reward[:, to] = reward
        begins = first[1:-2] | first[2:-1] | first[3:]  # somewhere behind the oldest of four rows
        self._end[FRAMES:, to] = np.where(begins, _NO_END, np.where(reward[FRAMES:] == 0, _ZERO, _REWARDING))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Tree, np.ndarray]:
        """n examples, with replacement: obs [3, n, …] of three rows on end, and the reward [n] that came with the row
        behind them, all of one episode.

        Half of them, the odd one by chance, have a reward that is not zero and stand first; all or none where the
        memory has but one kind. ValueError where it has no example.
        """
        zero, rewarding = (np.flatnonzero(self._end == kind) for kind in (_ZERO, _REWARDING))
        if not len(zero) + len(rewarding):
            raise ValueError("no example to draw: counts is (0, 0)")
        half = (n + int(rng.integers(2))) // 2
        most = 0 if not len(rewarding) else half if len(zero) else n
        drawn = [kind[rng.integers(len(kind), size=k)] for kind, k in ((rewarding, most), (zero, n - most)) if k]
        row, column = np.divmod(np.concatenate([np.zeros(0, np.int64), *drawn]), self.columns)
        before = row - FRAMES + np.arange(FRAMES)[:, None]
        return tree.at(self.obs, (before, column)), self.reward[row, column]
