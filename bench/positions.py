"""Draws the decisive positions of a game by which strength is measured, into the package.

    python bench/positions.py
    python bench/positions.py --game othello+size=6

Random play by seed, judged by the solver: see polyplay/envs/boards/positions.py. A run that stopped goes on from
--progress; the positions depend on the seed alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path

from common import about, command_line

from polyplay.envs.boards.positions import MEASURES, Measure, candidates, keeping_moves, positions_of, written
from polyplay.envs.boards.solver import RowSolver, solver_of

Row = tuple[str, int, str]
NAMED = {measure.game.name: measure for measure in MEASURES}


def judged(measure: Measure, asked: argparse.Namespace) -> Iterator[tuple[str, Row | None]]:
    """Candidates in order, and their rows if they are decisive; what the file of progress has is not solved again."""
    game, solver, known = measure.game, solver_of(measure.game), {}
    if isinstance(solver, RowSolver):
        solver.openings = {}  # all is searched
    if asked.progress.exists():
        known = dict(json.loads(line) for line in asked.progress.read_text().splitlines())
    with asked.progress.open("a") as progress:
        for play, record in candidates(measure, asked.seed):
            if play not in known:
                found = keeping_moves(solver, record)
                known[play] = found and (play, found[0], written(game, map(game.move_name, found[1])))
                progress.write(json.dumps([play, known[play]]) + "\n")
                progress.flush()
            yield play, known[play]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--game", choices=NAMED, default="connect_four")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; call again to go on")
    parser.add_argument("--progress", type=Path, default=Path("build/positions.jsonl"))
    parser.add_argument("--out", type=Path, help="default: the package's file of the game")
    asked = parser.parse_args()
    measure = NAMED[asked.game]
    asked.progress.parent.mkdir(parents=True, exist_ok=True)
    begun, rows, tried = time.monotonic(), [], 0
    for _, row in judged(measure, asked):
        tried += 1
        rows += [row] if row else []
        if len(rows) == asked.positions:
            break
        if time.monotonic() - begun > asked.seconds:
            raise SystemExit(f"{len(rows)} of {asked.positions} positions; call again to go on")
    with (asked.out or measure.file).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("moves", "outcome", "keeping"), *rows])
    drawn = positions_of(measure.game, rows)
    print(f"{about()['command']}: {len(rows)} decisive of {tried}, a random move keeps {drawn.at_random:.1%}")
    for outcome, name in ((1, "won"), (0, "drawn"), (-1, "lost")):
        print(f"  {name}: {int((drawn.outcomes == outcome).sum())}")


if __name__ == "__main__":
    main()
