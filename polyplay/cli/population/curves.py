"""What the picture of a population draws: members' scores and hyperparameters over their agent steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common.files import Row
from polyplay.common.statistics import trailing_means
from polyplay.population.store import Store
from polyplay.runs.tables import current_rows

GAMES = 10  # of a mean, at least: as many as a score is of
WINDOWS = 40  # means of a member's curve that have no game in common, at most
POINTS = 400  # of a piece of a curve, at most
FILES = {"games": ("episodes.jsonl", "episodic_return"), "evaluations": ("evaluations.jsonl", "episodic_return_mean")}


@dataclass(frozen=True)
class Piece:
    """A part of a curve. x: agent steps of a member."""

    x: np.ndarray
    y: np.ndarray

    def between(self, begin: float, end: float) -> Piece:
        """What of it lies there."""
        inside = (self.x >= begin) & (self.x <= end)
        return Piece(self.x[inside], self.y[inside])


def score_pieces(directory: Path, population: Row, rows: Sequence[Row], member: int) -> list[Piece]:
    """A member's scores, from each of its copies to the next: means of games, or its evaluations; where there are none,
    those of its decisions.
    """
    own = [row for row in rows if row["member"] == member]
    file, column = FILES.get(population["score"], FILES["games"])
    found = current_rows(Store(directory).member(member) / file, "steps", column)
    games = bool(found) and population["score"] == "games"
    if not found:
        found = [{"steps": row["steps"], column: row["score"]} for row in own if row.get("score") is not None]
    x, y = (np.array([row[name] for row in found], float) for name in ("steps", column))
    edges = [-1.0, *(float(row["steps"]) for row in own if row["donor"] is not None), np.inf]
    pieces = [Piece(x, y).between(np.nextafter(begin, end), end) for begin, end in pairwise(edges)]
    return [running_mean(piece, max(GAMES, len(x) // WINDOWS)) for piece in pieces] if games else pieces


def running_mean(piece: Piece, window: int) -> Piece:
    """Means of the last `window` games, or of as many as there are from GAMES on (of all if there are fewer); one for
    games that ended at the same step.
    """
    n = len(piece.x)
    first = max(0, min(GAMES, n) - 1)
    x, means = piece.x[first:], trailing_means(piece.y, window)[first:]
    last = np.flatnonzero(np.append(x[1:] != x[:-1], True)) if n else np.arange(0)
    kept = np.unique(last[np.linspace(0, len(last) - 1, min(POINTS, len(last))).astype(int)])
    return Piece(x[kept], means[kept])


def value_steps(rows: Sequence[Row], member: Row, name: str) -> list[tuple[int, int, Any]]:
    """A hyperparameter of a member: from which of its agent steps, to which, it had what value."""
    own = [row for row in rows if row["member"] == member["member"] and name in row["new"]]
    ends = [*(row["steps"] for row in own[1:]), member["steps"]]
    parts = [(row["steps"], end, row["new"][name]) for row, end in zip(own, ends, strict=False)]
    return [part for part in parts if part[0] < part[1]]
