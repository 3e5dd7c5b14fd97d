"""What the picture of a population draws: members' scores and hyperparameters over their agent steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common.files import Row
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
    copies = [row for row in own if row["donor"] is not None]
    file, column = FILES.get(population["score"], FILES["games"])
    found = current_rows(Store(directory).member(member) / file, "steps", column)
    window = max(GAMES, len(found) // WINDOWS) if file == "episodes.jsonl" else 1
    if not found:
        found = [{"steps": row["steps"], column: row["score"]} for row in own if row.get("score") is not None]
    whole = Piece(np.array([row["steps"] for row in found], float), np.array([row[column] for row in found], float))
    edges = [-1.0, *(float(row["steps"]) for row in copies), np.inf]
    heads: list[float | None] = [None, *(row.get("donor_score") for row in copies)]
    pieces = []
    for (begin, end), head in zip(pairwise(edges), heads, strict=True):
        inside = (whole.x > begin) & (whole.x <= end)
        pieces.append(_smooth(Piece(whole.x[inside], whole.y[inside]), window, None if head is None else (begin, head)))
    return pieces


def _smooth(piece: Piece, window: int, head: tuple[float, float] | None) -> Piece:
    """Means of `window` values that follow each other, or of all if there are fewer. head: the first point."""
    n = min(window, len(piece.x))
    x, y = piece.x, piece.y
    if n:
        sums = np.concatenate([[0.0], np.cumsum(y)])
        x, y = x[n - 1 :], (sums[n:] - sums[:-n]) / n
        kept = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int))
        x, y = x[kept], y[kept]
    return Piece(np.concatenate([[head[0]], x]), np.concatenate([[head[1]], y])) if head else Piece(x, y)


def value_steps(rows: Sequence[Row], member: Row, name: str) -> list[tuple[int, int, Any]]:
    """A hyperparameter of a member: from which of its agent steps, to which, it had what value."""
    own = [row for row in rows if row["member"] == member["member"] and name in row["new"]]
    ends = [*(row["steps"] for row in own[1:]), member["steps"]]
    parts = [(row["steps"], end, row["new"][name]) for row, end in zip(own, ends, strict=False)]
    return [part for part in parts if part[0] < part[1]]
