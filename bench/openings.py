"""Solves connect four's positions of few stones, a position and its mirror image once, into the package.

    python bench/openings.py

Every position of --plies stones is searched, one after the other, with one table; positions of fewer stones follow from
those. A run that stopped goes on from --progress. Positions in which the game is over are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from common import about, command_line

from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.solver import OPENINGS, RowSolver
from polyplay.envs.boards.solver_kernels import key_of, value_of, winning_cells

Position = tuple[int, int]  # own, mask


def following(solver: RowSolver, own: int, mask: int) -> list[Position] | None:
    """The positions after each move; None if one wins."""
    moves = [move for _, move in solver.playable(mask)]
    if any(winning_cells(solver.board, own) & move for move in moves):
        return None
    return [(own ^ mask, mask | move) for move in moves]


def levels(solver: RowSolver, plies: int) -> list[dict[int, Position]]:
    """All positions in which the game goes on, by key, of 0 stones, 1 and so on."""
    found: list[dict[int, Position]] = [{key_of(solver.board, 0, 0): (0, 0)}]
    for _ in range(plies):
        new: dict[int, Position] = {}
        for own, mask in found[-1].values():
            for _, move in solver.playable(mask):
                if not winning_cells(solver.board, own) & move:
                    new.setdefault(key_of(solver.board, own ^ mask, mask | move), (own ^ mask, mask | move))
        found.append(new)
    return found


def searched(solver: RowSolver, level: dict[int, Position], asked: argparse.Namespace) -> dict[int, int]:
    """Outcomes of all positions of as many stones."""
    known: dict[int, int] = {}
    if asked.progress.exists():
        known = dict(json.loads(line) for line in asked.progress.read_text().splitlines())
    begun, left = time.monotonic(), solver.game.longest - asked.plies
    with asked.progress.open("a") as progress:
        for key in sorted(level.keys() - known.keys()):
            known[key] = value_of(solver.board, *level[key], left, 1, solver.table)
            print(json.dumps([key, known[key]]), file=progress, flush=True)
            if time.monotonic() - begun > asked.seconds:
                raise SystemExit(f"{len(known.keys() & level.keys())} of {len(level)} positions; call again to go on")
    return {key: known[key] for key in level}


def all_outcomes(solver: RowSolver, positions: list[dict[int, Position]], last: dict[int, int]) -> list[dict[int, int]]:
    """Outcomes of all levels, the one of most stones first, whose outcomes are given."""
    found = [last]
    for level in positions[-2::-1]:
        new = {}
        for key, position in level.items():
            moves = following(solver, *position)
            new[key] = 1 if moves is None else max(-found[-1][key_of(solver.board, *move)] for move in moves)
        found.append(new)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--plies", type=int, default=4, help="stones of the positions that are searched")
    parser.add_argument("--entries", type=int, default=1 << 26, help="of the table, 8 bytes each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; call again to go on")
    parser.add_argument("--progress", type=Path, default=Path("build/openings.jsonl"))
    parser.add_argument("--out", type=Path, default=OPENINGS)
    asked = parser.parse_args()
    asked.progress.parent.mkdir(parents=True, exist_ok=True)
    begun, solver = time.process_time(), RowSolver(GAMES["connect_four"], asked.entries)
    positions = levels(solver, asked.plies)
    outcomes = all_outcomes(solver, positions, searched(solver, positions[-1], asked))
    rows = sorted((key, outcome) for level in outcomes for key, outcome in level.items())
    keys, values = zip(*rows, strict=True)
    np.savez_compressed(asked.out, keys=np.array(keys, np.int64), outcomes=np.array(values, np.int8))
    print(f"{about()['command']}: {len(rows)} positions, {time.process_time() - begun:.0f} s of a core in this run")
    for stones, level in enumerate(reversed(outcomes)):
        print(f"  {stones} stones: {len(level)} positions, {[*level.values()].count(1)} won by the mover")


if __name__ == "__main__":
    main()
