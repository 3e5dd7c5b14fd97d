"""Results of matches at a table, from the rows of its pool."""

from __future__ import annotations

import numpy as np

from polyplay.acting.match_ends import MatchEnds
from polyplay.acting.rows import EpisodeCounter
from polyplay.common.tree import Batch
from polyplay.envs.pool import Pool


class MatchResults:
    """A team's outcome is what its seats got together: team rewards where rows have them, else returns. A match whose
    environment was begun anew has no result.
    """

    def __init__(self, pool: Pool, games: EpisodeCounter, width: int):
        """games: counts the same rows before; width: lanes of a player."""
        seating, spec = pool.seating, pool.spec
        assert seating is not None
        self.seating, self.games, self.width = seating, games, width
        self.team, self.gained = np.array(spec.sides), np.zeros(pool.lanes)  # gained: team rewards of each lane
        self.scores = np.zeros((seating.matches, self.team.max() + 1))
        self.first = np.arange(0, spec.seats, spec.seats // seating.blocks)  # seat of each block
        self.ends, self.players = MatchEnds(seating.own), self._players(np.arange(seating.matches))
        self.found: list[tuple[np.ndarray, np.ndarray]] = []

    def _players(self, matches: np.ndarray) -> np.ndarray:
        return self.seating.lanes[matches][:, self.first] // self.width

    def watch(self, lanes: slice, step: Batch) -> None:
        """Rows that came."""
        over = self.ends.watch(lanes, step)
        if len(over.whole):
            self.found.append((self.players[over.whole], self.scores[over.whole]))
        for matches in over:
            if len(matches):
                self.ends.forget(matches)
                self.scores[matches] = 0.0
        if "team_reward" in step:
            self.gained[lanes] = np.where(step["first"], 0.0, self.gained[lanes] + step["team_reward"])
        scores = self.gained if "team_reward" in step else self.games.ret
        ended = np.arange(lanes.start, lanes.stop)[step["over"]]
        if len(ended):
            matches = self.seating.match[ended]
            np.add.at(self.scores, (matches, self.team[self.seating.seat[ended]]), scores[ended])
            self.players[matches] = self._players(matches)

    def save(self) -> Batch:
        """Of the matches under way; those that ended were taken."""
        return {"gained": self.gained, "scores": self.scores, "players": self.players, "ends": self.ends.save()}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        self.gained[:], self.scores[:], self.players[:] = (saved[name] for name in ("gained", "scores", "players"))
        self.ends.load(saved["ends"])

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the matches that ended since the last time: int [n, blocks], the group of lanes in each block of seats;
        and float [n, teams], each team's outcome.
        """
        found, self.found = self.found, []
        if not found:
            return np.zeros((0, len(self.first)), np.int64), np.zeros((0, self.scores.shape[1]))
        return np.concatenate([x for x, _ in found]), np.concatenate([x for _, x in found])
