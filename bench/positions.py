"""Decisive positions of connect four and of Othello 6×6, a measure of strength: how often does a move keep their value?

    python bench/positions.py        # draws those of connect four anew

A position is decisive if some legal move gives the value away: makes a draw or a loss of a win, or a loss of a draw.
They come from random play by seed, and the mover has no win by one stone. Those of connect four are judged by the
package bitbully (the extra `solver`); those of Othello by an exact solver that the package had until November 2026.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from common import about, command_line

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, game
from polyplay.games.mcts import Opponent, solver

Row = tuple[str, int, str]
FOUR, OTHELLO = GAMES["connect_four"], game("othello+size=6")
FOLDER = Path(__file__).with_name("positions")
FILES = {FOUR.name: FOLDER / "connect_four.csv", OTHELLO.name: FOLDER / "othello6.csv"}
FEWEST, MOST = 8, 24  # stones of a position of connect four; of Othello 5 to 12 cells are empty
AT_ONCE = 100  # positions that a player is asked for together


@dataclass(frozen=True)
class Decisive:
    """Positions and what a solver says of them."""

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
        legal = [board_rules.legal(self.game.numbers, record, room) for record in self.records]
        return float((self.keeping.sum(1) / legal).mean())


def file_of(board: Game) -> Path | None:
    """The file of a game's positions, by its rules whatever its name; None: it has none."""
    return next((FILES[g.name] for g in (FOUR, OTHELLO) if np.array_equal(g.numbers, board.numbers)), None)


@cache
def decisive_positions(board: Game) -> Decisive:
    """The 1,000 of a game."""
    path = file_of(board)
    if path is None:
        raise ValueError(f"game:{board.name} has no decisive positions")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["moves"], int(row["outcome"]), row["keeping"]) for row in csv.DictReader(file)]
    return positions_of(board, rows)


def positions_of(board: Game, rows: Iterable[Row]) -> Decisive:
    """Positions of rows: moves, outcome, the moves that keep it."""
    found, known = list(rows), {board.move_name(action): action for action in range(board.actions)}
    records = np.stack([board.new() for _ in found])
    keeping = np.zeros((len(found), board.actions), bool)
    for record, kept, (play, _, names) in zip(records, keeping, found, strict=True):
        for name in _names(board, play):
            board_rules.play(board.numbers, record, known[name])
        kept[[known[name] for name in _names(board, names)]] = True
    return Decisive(board, [row[0] for row in found], records, np.array([row[1] for row in found], np.int8), keeping)


def _names(board: Game, text: str) -> Iterable[str]:
    return text if board.gravity else text.split()


def moves_kept(player: Opponent, positions: Decisive) -> list[float]:
    """1 for each position in which the player's move keeps the value, otherwise 0."""
    records, found = positions.records.copy(), list[float]()
    random = np.arange(len(records), dtype=np.uint64)
    for first in range(0, len(records), AT_ONCE):
        at = np.arange(first, min(first + AT_ONCE, len(records)))
        found += positions.keeping[at, player(records, random, at)].astype(float).tolist()
    return found


def candidates(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Without end: moves and records of random play of connect four that may be decisive, each once."""
    rng, seen = np.random.default_rng(seed), set[bytes]()
    while True:
        found = random_play(FOUR, int(rng.integers(FEWEST, MOST + 1)), rng)
        if found and (key := found[1].tobytes()) not in seen and not wins_at_once(FOUR, found[1]):
            seen.add(key)
            yield found


def random_play(board: Game, stones: int, rng: np.random.Generator) -> tuple[str, np.ndarray] | None:
    """Moves and record after so many random legal moves of a game without passes; None if the game ends before."""
    record, legal, names = board.new(), np.empty(board.actions, np.int16), ""
    for _ in range(stones):
        action = int(legal[rng.integers(board_rules.legal(board.numbers, record, legal))])
        names += board.move_name(action)
        if board_rules.play(board.numbers, record, action) != records.GOES_ON:
            return None
    return names, record


def wins_at_once(board: Game, record: np.ndarray) -> bool:
    """Whether the mover has a win by one stone."""
    legal = np.empty(board.actions, np.int16)
    moves = legal[: board_rules.legal(board.numbers, record, legal)]
    return any(board_rules.play(board.numbers, record.copy(), int(action)) == records.WON for action in moves)


def keeping_moves(record: np.ndarray) -> tuple[int, list[int]] | None:
    """The outcome and the moves that keep it; None if all do: the position is not decisive."""
    outcomes = {action: int(np.sign(score)) for action, score in solver().scores(record).items()}
    best = max(outcomes.values())
    keeping = [action for action, outcome in outcomes.items() if outcome == best]
    return (best, keeping) if len(keeping) < len(outcomes) else None


def drawn(seed: int) -> Iterator[Row]:
    """Without end: rows of decisive positions of connect four."""
    for play, record in candidates(seed):
        if found := keeping_moves(record):
            yield play, found[0], "".join(map(FOUR.move_name, found[1]))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=FILES[FOUR.name])
    asked = parser.parse_args()
    rows = list(islice(drawn(asked.seed), asked.positions))
    with asked.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("moves", "outcome", "keeping"), *rows])
    positions = positions_of(FOUR, rows)
    print(f"{about()['command']}: {len(rows)} decisive positions, a random move keeps {positions.at_random:.1%}")
    for outcome, name in ((1, "won"), (0, "drawn"), (-1, "lost")):
        print(f"  {name}: {int((positions.outcomes == outcome).sum())}")


if __name__ == "__main__":
    main()
