"""Draws the decisive positions of connect four by which strength is measured, into the package.

    python bench/positions.py

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

from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.positions import POSITIONS, candidates, keeping_moves, positions_of
from polyplay.envs.boards.solver import Solver

Row = tuple[str, int, str]


def judged(asked: argparse.Namespace) -> Iterator[tuple[str, Row | None]]:
    """Candidates in order, and their rows if they are decisive; what the file of progress has is not solved again."""
    game, solver, known = GAMES["connect_four"], Solver(GAMES["connect_four"]), {}
    solver.openings = {}  # all is searched
    if asked.progress.exists():
        known = dict(json.loads(line) for line in asked.progress.read_text().splitlines())
    with asked.progress.open("a") as progress:
        for play, record in candidates(asked.seed):
            if play not in known:
                found = keeping_moves(solver, record)
                known[play] = found and (play, found[0], "".join(map(game.move_name, found[1])))
                progress.write(json.dumps([play, known[play]]) + "\n")
                progress.flush()
            yield play, known[play]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; call again to go on")
    parser.add_argument("--progress", type=Path, default=Path("build/positions.jsonl"))
    parser.add_argument("--out", type=Path, default=POSITIONS)
    asked = parser.parse_args()
    asked.progress.parent.mkdir(parents=True, exist_ok=True)
    begun, rows, tried = time.monotonic(), [], 0
    for _, row in judged(asked):
        tried += 1
        rows += [row] if row else []
        if len(rows) == asked.positions:
            break
        if time.monotonic() - begun > asked.seconds:
            raise SystemExit(f"{len(rows)} of {asked.positions} positions; call again to go on")
    with asked.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("moves", "outcome", "keeping"), *rows])
    drawn = positions_of(rows)
    print(f"{about()['command']}: {len(rows)} decisive of {tried}, a random move keeps {drawn.at_random:.1%}")
    for outcome, name in ((1, "won"), (0, "drawn"), (-1, "lost")):
        print(f"  {name}: {int((drawn.outcomes == outcome).sum())}")


if __name__ == "__main__":
    main()
