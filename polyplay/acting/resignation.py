"""When a player gives a game up (Silver et al. 2017, Methods, "Self-play"), and how it learns when it may. Imports no
torch.

It resigns where the root's value and that of its best child are both below v. A share of the games is played to the
end; from the newest of them v is set: the greatest with which, of the games in which somebody would have resigned, less
than a share were not lost by who would have done so first. As long as too little is known, nobody resigns.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from polyplay.common import checkpoint, rng, tree
from polyplay.common.resign_options import NEVER, ResignOptions
from polyplay.common.tree import Batch

__all__ = ["NEVER", "ResignOptions", "Resignation", "learned_value"]

NAMES = ("resigned", "resign_value", "resign_wrong", "resign_wrong_high")
GRID = np.linspace(NEVER, 0.0, 101).astype(np.float32)  # what v may be
NEWEST, ENOUGH = 1000, 100  # games played on that count, and that have to be known before anybody resigns
SURE = 1.96  # standard deviations of the interval's upper end: 97.5 %


class Resignation:
    """Of the games of one player. `seed` and `first_lane` decide which of them are played on."""

    def __init__(self, options: ResignOptions, games: int, longest: int, seed: int, first_lane: int):
        self.options, self.seed, self.lanes = options, ~seed, first_lane + np.arange(games)
        self.begun = np.zeros(games, np.int64)  # games of each lane so far
        self.played_on = np.zeros(games, bool)
        self.values = np.zeros((games, longest + 1), np.float32)  # by ply: the better of root and best child
        self.would, self.wrong = np.zeros((NEWEST, len(GRID)), bool), np.zeros((NEWEST, len(GRID)), bool)
        self.known = 0  # games that were played on to their end
        self.v = NEVER if options.v is None else options.v
        self.arrays = {"begun": self.begun, "played_on": self.played_on, "values": self.values}
        self.arrays |= {"would": self.would, "wrong": self.wrong}
        self.begin(np.arange(games))

    def begin(self, games: np.ndarray) -> None:
        """New games: which of them are played on."""
        self.begun[games] += 1
        drawn = rng.uniform(self.seed, self.lanes[games], self.begun[games], 1)[:, 0]
        self.played_on[games] = drawn < self.options.played_on

    def decide(self, games: np.ndarray, plies: np.ndarray, root: np.ndarray, best: np.ndarray) -> np.ndarray:
        """bool [n]: who is to move resigns. root, best: the values of the root and of its best child, for the mover."""
        better = np.maximum(root, best)
        self.values[games, plies] = better
        return (better < self.v) & ~self.played_on[games] & (plies > 0)

    def ended(self, game: int, moves: int, worth: float) -> None:
        """A game is over that nobody resigned, after so many moves; worth: of its outcome for who moved first."""
        if not self.played_on[game] or not moves:
            return
        lowest = np.minimum.accumulate(self.values[game, :moves])
        first = np.searchsorted(-lowest, -GRID, side="right")  # the first ply whose value is below
        would = first < moves
        lost = np.where(first % 2 == 0, worth, -worth) < 0
        at = self.known % NEWEST
        self.would[at], self.wrong[at] = would, would & ~lost
        self.known += 1
        if self.options.v is None:
            self.v = self._learnt()

    def _learnt(self) -> float:
        would, wrong = self.would.sum(0), self.wrong.sum(0)
        fine = (wrong < self.options.wrong * would) & (would >= ENOUGH / 2)
        return float(GRID[np.flatnonzero(fine)[-1]]) if self.known >= ENOUGH and fine.any() else NEVER

    @property
    def rate(self) -> tuple[float, float]:
        """The share of wrong resignations with v, of games played on, and the upper end of its interval (Wilson)."""
        at = int(np.searchsorted(GRID, self.v, side="right")) - 1
        n, k = int(self.would[:, at].sum()), int(self.wrong[:, at].sum())
        if not n:
            return 0.0, 1.0
        share, z = k / n, SURE**2 / n
        return share, (share + z / 2 + SURE * math.sqrt(share * (1 - share) / n + z / 4 / n)) / (1 + z)

    def save(self) -> Batch:
        return {**tree.map(np.copy, self.arrays), "known": np.array(self.known), "v": np.array(self.v)}

    def load(self, saved: Batch) -> None:
        tree.write(self.arrays, ..., {k: saved[k] for k in self.arrays})
        self.known, self.v = int(saved["known"]), float(saved["v"])


def learned_value(found: Path) -> float:
    """v as the players of a checkpoint had learned it, the lowest of theirs; NEVER: none of them had.

    Weights alone, as those of a champion, have no players beside them: those of the run's newest checkpoint count.
    """
    for path in (found, *reversed(checkpoint.everything(found.parents[1]))):
        opened, parts = checkpoint.open_checkpoint(path), sorted(path.glob("workers/self_play-*.safetensors"))
        saved = [opened.arrays(f"workers/{part.stem}").get("resignation/v") for part in parts]
        learned = [float(v) for v in saved if v is not None and v > NEVER]
        if parts:
            return min(learned, default=NEVER)
    return NEVER
