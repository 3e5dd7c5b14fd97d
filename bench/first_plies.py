"""Games of connect four against perfect play that begin early: after two random plies, after every two plies, and after
eight random ones. The perfect player and the judge are another's solver with its table of openings, BitBully.

    pip install bitbully
    python bench/first_plies.py bench/champions/connect_four --out bench/results/connect_four_plies

A game begins where perfect play does not lose for the agent, with either color. The agent searches with 400
simulations. Perfect play wins as soon as it can and loses as late as it can; among equal moves it draws one. A game is
held if its result is no worse than that of its start under perfect play.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, about, command_line, lines_about, publish, table, wilson

from polyplay.acting.play import MatchStarts, match
from polyplay.cli.play import legal_moves
from polyplay.evaluation.agent import find_agent
from polyplay.evaluation.matches import PlayerOptions, player_of_agent
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES
from polyplay.games.mcts import Opponent
from polyplay.games.records import CELLS

GAME = GAMES["connect_four"]
SIMULATIONS = 400


class Perfect:
    """BitBully on our records. A score is positive where the mover wins, and the greater, the sooner."""

    @cached_property
    def solver(self) -> Any:
        from bitbully import BitBully

        return BitBully()

    def scores(self, record: np.ndarray) -> dict[int, int]:
        """Of every legal move, for the player that makes it."""
        from bitbully import Board

        cells = record[CELLS:].reshape(GAME.rows, GAME.columns).tolist()
        found: dict[int, int] = self.solver.score_all_moves(Board(cells))
        return dict(sorted(found.items()))

    def outcome(self, record: np.ndarray) -> int:
        """1 where the mover wins, 0 for a draw, -1 where the other wins."""
        return int(np.sign(max(self.scores(record).values())))

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = []
        for lane in at.tolist():
            scores = self.scores(records[lane])
            best = [move for move, score in scores.items() if score == max(scores.values())]
            draw = np.random.default_rng([int(random[lane]), kernels.ply(records[lane])])
            chosen.append(int(draw.choice(best)))
        return np.array(chosen)


@dataclass
class Judge:
    """A player, and by ply how many of its moves in positions that are not lost keep their value."""

    player: Opponent
    perfect: Perfect
    moves: np.ndarray
    kept: np.ndarray

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = self.player(records, random, at)
        for lane, move in zip(at.tolist(), chosen.tolist(), strict=True):
            outcomes = {a: int(np.sign(score)) for a, score in self.perfect.scores(records[lane]).items()}
            best, ply = max(outcomes.values()), kernels.ply(records[lane])
            self.moves[ply] += best >= 0
            self.kept[ply] += best >= 0 and outcomes[move] == best
        return chosen


def every_opening() -> Iterator[np.ndarray]:
    """The positions after each two moves."""
    for first in legal_moves(GAME, GAME.new()):
        record = GAME.new()
        board_rules.play(GAME.numbers, record, first)
        for second in legal_moves(GAME, record):
            after = record.copy()
            board_rules.play(GAME.numbers, after, second)
            yield after


def random_openings(plies: int, seed: int) -> Iterator[np.ndarray]:
    """Without end: positions after as many random moves, in which the game goes on."""
    rng = np.random.default_rng(seed)
    while True:
        record, result = GAME.new(), kernels.GOES_ON
        for _ in range(plies):
            result = board_rules.play(GAME.numbers, record, int(rng.choice(legal_moves(GAME, record))))
            if result != kernels.GOES_ON:
                break
        if result == kernels.GOES_ON:
            yield record


def not_lost(openings: Iterator[np.ndarray], perfect: Perfect, most: int) -> tuple[MatchStarts, np.ndarray]:
    """Starts of games, at most `most`, in which perfect play does not lose for the agent, and their outcomes."""
    found = list[tuple[np.ndarray, bool, int]]()
    for record in openings:
        outcome = perfect.outcome(record)
        found += [(record, begins, value) for begins, value in ((True, outcome), (False, -outcome)) if value >= 0]
        if len(found) >= most:
            break
    records, begins, values = zip(*found[:most], strict=True)
    return MatchStarts(np.stack(records), np.array(begins)), np.array(values)


def played(run: Path, what: str, starts: MatchStarts, values: np.ndarray, perfect: Perfect, seed: int) -> Row:
    """A row of the table."""
    begun = time.perf_counter()
    player = player_of_agent(find_agent(str(run)), PlayerOptions(SIMULATIONS, seed))
    judge = Judge(player.moves, perfect, np.zeros(GAME.longest, int), np.zeros(GAME.longest, int))
    points = match(GAME, judge, perfect, starts, seed)
    held, n = int((points >= (1 + values) / 2).sum()), len(points)
    low, high = wilson(held / n, n)
    early = slice(0, 8)
    return {
        "games begin": what,
        "games": n,
        "won starts": int((values == 1).sum()),
        "held": held,
        "share": f"{100 * held / n:.0f} %",
        "95 % interval": f"{100 * low:.0f} % to {100 * high:.0f} %",
        "moves that keep the value": f"{judge.kept.sum()} of {judge.moves.sum()}",
        "of these before ply 8": f"{judge.kept[early].sum()} of {judge.moves[early].sum()}",
        "seconds": round(time.perf_counter() - begun),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--early", type=int, default=62, help="games that begin after two random plies")
    parser.add_argument("--late", type=int, default=100, help="games that begin after eight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked, perfect = parser.parse_args(), Perfect()
    kinds = {
        "after 2 random plies": (random_openings(2, asked.seed), asked.early),
        "after each 2 plies": (every_opening(), 2 * GAME.columns**2),
        "after 8 random plies": (random_openings(8, asked.seed), asked.late),
    }
    rows = [
        played(asked.run, name, *not_lost(starts, perfect, most), perfect, asked.seed)
        for name, (starts, most) in kinds.items()
    ]
    what = about()
    text = ["# Connect four: games against perfect play that begin early", "", *lines_about(what)]
    text += [f"- the agent searches with {SIMULATIONS} simulations; perfect play: BitBully {version()}", ""]
    publish(asked.out, {**what, "bitbully": version(), "rows": rows}, [*text, *table(rows)])


def version() -> str:
    from importlib.metadata import version

    return version("bitbully")


if __name__ == "__main__":
    main()
