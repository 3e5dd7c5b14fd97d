"""When matches of several players are over, from their rows alone.

A row with `first` is no transition: of a player that has gone, or has not come yet. A match is over once all its lanes
have such rows in one turn, after some had others: it begins anew then, or rests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyplay.common.tree import Batch


class MatchesOver(NamedTuple):
    """Numbers of matches that were over before the rows of now."""

    whole: np.ndarray  # int [n]: everybody who came has ended
    broken: np.ndarray  # int [n]: the environment was begun anew in the middle


class MatchEnds:
    """lanes: int [matches, seats], those of each match, in any order."""

    def __init__(self, lanes: np.ndarray):
        self.lanes, self.match = lanes, np.empty(lanes.size, np.int64)
        self.match[lanes] = np.arange(len(lanes))[:, None]
        self.came, self.ended, self._first = np.zeros((3, lanes.size), bool)  # of each lane, in this match
        self._turn = np.zeros(lanes.size, np.int64)

    def watch(self, which: slice | np.ndarray, step: Batch) -> MatchesOver:
        """Rows of these lanes. What is known of the matches that it returns is of the next ones after `forget`."""
        first, none = step["first"], np.zeros(0, np.int64)
        self._turn[which] += 1
        self._first[which] = first
        self.came[which] |= ~first
        self.ended[which] |= step["over"]
        if not first.any():
            return MatchesOver(none, none)
        matches = np.unique(self.match[which][first])
        lanes = self.lanes[matches]
        here = (self._turn[lanes] == self._turn[lanes[:, :1]]).all(1)  # all rows of the turn
        over = here & self._first[lanes].all(1) & self.came[lanes].any(1)
        whole = (self.came[lanes] == self.ended[lanes]).all(1)
        return MatchesOver(matches[over & whole], matches[over & ~whole])

    def save(self) -> Batch:
        """What decides its answers to come."""
        return {"came": self.came, "ended": self.ended, "first": self._first, "turn": self._turn}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        for name, array in self.save().items():
            array[:] = saved[name]

    def forget(self, matches: np.ndarray) -> None:
        """These are over."""
        self.came[self.lanes[matches]] = self.ended[self.lanes[matches]] = False
