"""Time of the exact solver: scores, and outcomes, of all moves of random positions of connect four, by ply.

    python bench/solver.py

Each position meets an empty hash table. Seconds are those of a core: CPU time of the process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.positions import random_play, wins_at_once
from polyplay.envs.boards.solver import ENTRIES, RowSolver

GAME = GAMES["connect_four"]


def drawn(plies: int, n: int, seed: int) -> list[np.ndarray]:
    """Positions of random play that go on, without a win by one stone."""
    rng, found = np.random.default_rng([seed, plies]), list[np.ndarray]()
    while len(found) < n:
        made = random_play(GAME, plies, rng)
        if made and not wins_at_once(GAME, made[1]):
            found.append(made[1])
    return found


def milliseconds(solver: RowSolver, record: np.ndarray, exact: bool) -> float:
    """Of all moves of a position."""
    solver.table[:] = 0
    begun = time.process_time()
    solver.scores(record) if exact else solver.outcomes(record)
    return 1e3 * (time.process_time() - begun)


def at_ply(solver: RowSolver, plies: int, asked: argparse.Namespace) -> Row:
    """Times at a ply, of as many positions as take --seconds, 4 at least."""
    scores, outcomes = list[float](), list[float]()
    for record in drawn(plies, asked.positions, asked.seed):
        if len(scores) < 4 or sum(scores) < 1e3 * asked.seconds:
            scores.append(milliseconds(solver, record, exact=True))
            outcomes.append(milliseconds(solver, record, exact=False))
    return {
        "ply": plies,
        "positions": len(scores),
        "scores, mean ms": float(np.mean(scores)),
        "scores, median ms": float(np.median(scores)),
        "scores, greatest ms": max(scores),
        "outcomes, mean ms": float(np.mean(outcomes)),
        "outcomes, median ms": float(np.median(outcomes)),
        "outcomes, greatest ms": max(outcomes),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--plies", type=int, nargs="+", default=[24, 20, 16, 12, 10, 8])
    parser.add_argument("--positions", type=int, default=200, help="at a ply, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a ply, for scores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="about the machine, into the result")
    parser.add_argument("--out", type=Path, default=RESULTS / "solver")
    asked = parser.parse_args()
    solver = RowSolver(GAME)
    solver.openings = {}  # all is searched
    for record in drawn(30, 1, asked.seed):  # compiles
        milliseconds(solver, record, exact=True)
    load = os.getloadavg()[0]
    rows = [at_ply(solver, plies, asked) for plies in asked.plies]
    data = {**about(), "load": load, "note": asked.note, "entries": ENTRIES, "rows": rows}
    text = [
        "# RowSolver of connect four",
        "",
        *lines_about(data),
        f"- load average before: {load:.1f}{'; ' + asked.note if asked.note else ''}",
        f"- all moves of a position of random play, CPU time; a table of {ENTRIES:,} entries, empty at first",
        "",
        *table(rows),
    ]
    publish(asked.out, data, text)


if __name__ == "__main__":
    main()
