"""Decisive positions of connect four, a measure of strength: how often does a chosen move keep the game's value?

A position is decisive if some legal move gives the value away: makes a draw or a loss of a win, or a loss of a draw.
They come from random play of 8 to 24 plies, and the mover has no win by one stone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game
from polyplay.envs.boards.solver import Solver

POSITIONS = Path(__file__).with_name("positions.csv")  # bench/positions.py wrote it
FEWEST, MOST = 8, 24  # plies


@dataclass(frozen=True)
class Decisive:
    """Positions and what the solver says of them."""

    plays: list[str]  # the moves that lead to each
    records: np.ndarray  # int8 [n, record]
    outcomes: np.ndarray  # int8 [n], for the mover
    keeping: np.ndarray  # bool [n, actions]: moves that keep the outcome

    def first(self, n: int) -> Decisive:
        """The first n of them."""
        return Decisive(self.plays[:n], self.records[:n], self.outcomes[:n], self.keeping[:n])

    @property
    def at_random(self) -> float:
        """The share that a random legal move keeps on the average."""
        game = GAMES["connect_four"]
        legal = self.records[:, kernels.CELLS : kernels.CELLS + game.columns] == 0
        return float((self.keeping.sum(1) / legal.sum(1)).mean())


def random_play(game: Game, plies: int, rng: np.random.Generator) -> tuple[str, np.ndarray] | None:
    """Moves and record after so many random legal moves; None if the game ends before."""
    record, legal, play = game.new(), np.empty(game.actions, np.int16), ""
    for _ in range(plies):
        action = int(legal[rng.integers(kernels.legal(game.numbers, record, legal))])
        play += game.move_name(action)
        if kernels.play(game.numbers, record, action) != kernels.GOES_ON:
            return None
    return play, record


def candidates(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Without end: moves and records of random play that may be decisive, each once."""
    game, rng, seen = GAMES["connect_four"], np.random.default_rng(seed), set[int]()
    while True:
        found = random_play(game, int(rng.integers(FEWEST, MOST + 1)), rng)
        if found and (key := int(kernels.key(game.numbers, found[1]))) not in seen and not wins_at_once(game, found[1]):
            seen.add(key)
            yield found


def wins_at_once(game: Game, record: np.ndarray) -> bool:
    """Whether the mover has a win by one stone."""
    legal = np.empty(game.actions, np.int16)
    moves = legal[: kernels.legal(game.numbers, record, legal)]
    return any(kernels.play(game.numbers, record.copy(), int(action)) == kernels.WON for action in moves)


def keeping_moves(solver: Solver, record: np.ndarray) -> tuple[int, list[int]] | None:
    """The outcome and the moves that keep it; None if all do: the position is not decisive."""
    outcomes = solver.outcomes(record)
    best = max(outcomes.values())
    keeping = [action for action, outcome in outcomes.items() if outcome == best]
    return (best, keeping) if len(keeping) < len(outcomes) else None


def positions_of(rows: Iterable[tuple[str, int, str]]) -> Decisive:
    """Positions of rows: moves, outcome, the moves that keep it."""
    game, found = GAMES["connect_four"], list(rows)
    records = np.stack([game.new() for _ in found])
    keeping = np.zeros((len(found), game.actions), bool)
    for record, kept, (play, _, names) in zip(records, keeping, found, strict=True):
        for action in _actions(play):
            kernels.play(game.numbers, record, action)
        kept[_actions(names)] = True
    return Decisive([row[0] for row in found], records, np.array([row[1] for row in found], np.int8), keeping)


def _actions(names: str) -> list[int]:
    return [ord(name) - ord("a") for name in names]


@cache
def decisive_positions() -> Decisive:
    """The 1,000 of the measure."""
    with POSITIONS.open(newline="") as file:
        return positions_of((row["moves"], int(row["outcome"]), row["keeping"]) for row in csv.DictReader(file))
