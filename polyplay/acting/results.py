"""Results of matches at a table, from the rows of its pool."""

from __future__ import annotations

import numpy as np

from polyplay.acting.rows import EpisodeCounter
from polyplay.common.tree import Batch
from polyplay.envs.pool import Pool


class MatchResults:
    """A team's outcome is the sum of its seats' returns. A match is over once every seat of it has ended."""

    def __init__(self, pool: Pool, games: EpisodeCounter, width: int):
        """games: counts the same rows before; width: lanes of a player."""
        seating, spec = pool.seating, pool.spec
        assert seating is not None
        self.seating, self.games, self.width = seating, games, width
        teams = np.asarray(spec.teams or range(spec.seats))
        self.team = np.searchsorted(np.unique(teams), teams)  # of each seat
        self.scores = np.zeros((seating.matches, self.team.max() + 1))
        self.left = np.full(seating.matches, spec.seats)  # seats that have not ended
        self.first = np.arange(0, spec.seats, spec.seats // seating.blocks)  # seat of each block
        self.found: list[tuple[np.ndarray, np.ndarray]] = []

    def watch(self, lanes: slice, step: Batch) -> None:
        """Rows that came."""
        over = step["over"]
        if not over.any():
            return
        ended = np.arange(lanes.start, lanes.stop)[over]
        matches = self.seating.match[ended]
        np.add.at(self.scores, (matches, self.team[self.seating.seat[ended]]), self.games.ret[ended])
        np.subtract.at(self.left, matches, 1)
        done = np.unique(matches[self.left[matches] == 0])
        if len(done):
            self.found.append((self.seating.lanes[done][:, self.first] // self.width, self.scores[done]))
            self.scores[done], self.left[done] = 0.0, len(self.team)

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the matches that ended since the last time: int [n, blocks], the group of lanes in each block of seats;
        and float [n, teams], each team's outcome.
        """
        found, self.found = self.found, []
        if not found:
            return np.zeros((0, len(self.first)), np.int64), np.zeros((0, self.scores.shape[1]))
        return np.concatenate([x for x, _ in found]), np.concatenate([x for _, x in found])
