"""Decisive positions, a measure of strength: how often does a chosen move keep the game's value?

A position is decisive if some legal move gives the value away: makes a draw or a loss of a win, or a loss of a draw.
They come from random play, and the mover has no win by one stone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game, game
from polyplay.envs.boards.solver import Solver


@dataclass(frozen=True)
class Measure:
    """Of a game: the file of its positions, which bench/positions.py wrote, and how many stones are played before."""

    game: Game
    file: Path
    fewest: int
    most: int


FOLDER = Path(__file__).parent
MEASURES = (
    Measure(GAMES["connect_four"], FOLDER / "positions.csv", 8, 24),
    Measure(game("othello+size=6"), FOLDER / "othello_positions.csv", 20, 27),  # 12 to 5 empty cells
)


def measure_of(game: Game) -> Measure | None:
    """By the rules, whatever the game's name; None: there is none."""
    return next((m for m in MEASURES if np.array_equal(m.game.numbers, game.numbers)), None)


@dataclass(frozen=True)
class Decisive:
    """Positions and what the solver says of them."""

    game: Game
    plays: list[str]  # the moves that lead to each
    records: np.ndarray  # int8 [n, record]
    outcomes: np.ndarray  # int8 [n], for the mover
    keeping: np.ndarray  # bool [n, actions]: moves that keep the outcome

    def first(self, n: int) -> Decisive:
        """The first n of them."""
        return Decisive(self.game, self.plays[:n], self.records[:n], self.outcomes[:n], self.keeping[:n])

    @property
    def at_random(self) -> float:
        """The share that a random legal move keeps on the average."""
        room = np.empty(self.game.actions, np.int16)
        legal = [kernels.legal(self.game.numbers, record, room) for record in self.records]
        return float((self.keeping.sum(1) / legal).mean())


def random_play(game: Game, stones: int, rng: np.random.Generator) -> tuple[str, np.ndarray] | None:
    """Moves and record after random legal moves that put so many stones; None if the game ends before."""
    record, legal, names = game.new(), np.empty(game.actions, np.int16), list[str]()
    while stones:
        action = int(legal[rng.integers(kernels.legal(game.numbers, record, legal))])
        names.append(game.move_name(action))
        stones -= action < game.cells  # a pass puts none
        if kernels.play(game.numbers, record, action) != kernels.GOES_ON:
            return None
    return written(game, names), record


def written(game: Game, names: Iterable[str]) -> str:
    """Names of moves as one text: letters alone need no space between them."""
    return ("" if game.gravity else " ").join(names)


def candidates(measure: Measure, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Without end: moves and records of random play that may be decisive, each once."""
    game, rng, seen = measure.game, np.random.default_rng(seed), set[int]()
    while True:
        found = random_play(game, int(rng.integers(measure.fewest, measure.most + 1)), rng)
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


def positions_of(game: Game, rows: Iterable[tuple[str, int, str]]) -> Decisive:
    """Positions of rows: moves, outcome, the moves that keep it."""
    found, known = list(rows), {game.move_name(action): action for action in range(game.actions)}
    records = np.stack([game.new() for _ in found])
    keeping = np.zeros((len(found), game.actions), bool)
    for record, kept, (play, _, names) in zip(records, keeping, found, strict=True):
        for name in _names(game, play):
            kernels.play(game.numbers, record, known[name])
        kept[[known[name] for name in _names(game, names)]] = True
    return Decisive(game, [row[0] for row in found], records, np.array([row[1] for row in found], np.int8), keeping)


def _names(game: Game, text: str) -> Iterable[str]:
    return text if game.gravity else text.split()


@cache
def decisive_positions(game: Game) -> Decisive:
    """The 1,000 of the game's measure."""
    measure = measure_of(game)
    if measure is None:
        raise ValueError(f"game:{game.name} has no decisive positions")
    with measure.file.open(encoding="utf-8", newline="") as file:
        return positions_of(game, ((row["moves"], int(row["outcome"]), row["keeping"]) for row in csv.DictReader(file)))
