"""How strong a player of a board game is: positions whose best moves are known, and matches from seeded openings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.boards.pool import play_all
from polyplay.envs.boards.positions import Decisive
from polyplay.envs.boards.solver import Solver

AT_ONCE = 100  # positions that a player is asked for together
TRIES = 10_000  # random games until one goes on
Watch = Callable[[dict[int, float], int], bool]  # of {game: points} that ended, and moves made: whether to go on


@dataclass(frozen=True)
class MatchStarts:
    """Where the games of a match begin. begins, bool [n]: the player moves next, not the other."""

    records: np.ndarray  # int8 [n, record]
    begins: np.ndarray


def moves_kept(player: Opponent, positions: Decisive, watch: Watch = lambda found, moves: True) -> list[float]:
    """1 for each position in which the player's move keeps the game-theoretic value, otherwise 0; fewer than all
    where `watch` ended it.
    """
    records, found = positions.records.copy(), list[float]()
    random = np.arange(len(records), dtype=np.uint64)
    for first in range(0, len(records), AT_ONCE):
        at = np.arange(first, min(first + AT_ONCE, len(records)))
        kept = positions.keeping[at, player(records, random, at)].astype(float)
        found += kept.tolist()
        if not watch(dict(zip(at.tolist(), kept.tolist(), strict=True)), len(at)):
            break
    return found


def openings(board: Game, plies: int, seed: int) -> Iterator[np.ndarray]:
    """Without end: records after so many random legal moves each; games that end so early are drawn again."""
    rng, room, tries = np.random.default_rng(seed), np.zeros(board.actions, np.int16), 0
    while True:
        record, result = board.new(), kernels.GOES_ON
        for _ in range(plies):
            moves = room[: kernels.legal(board.numbers, record, room)]
            result = kernels.play(board.numbers, record, int(rng.choice(moves)))
            if result != kernels.GOES_ON:
                break
        tries += 1
        if result == kernels.GOES_ON:
            tries = 0
            yield record
        elif tries == TRIES:
            raise UserError(
                f"--opening-plies {plies}: every random game of game:{board.name} is over by then: lower it"
            )


def both_colors(board: Game, games: int, plies: int, seed: int) -> MatchStarts:
    """Each opening twice: in the second half of the games the other moves next."""
    records = np.stack([*islice(openings(board, plies, seed), games // 2)])
    return MatchStarts(np.concatenate([records, records]), np.arange(2 * len(records)) < len(records))


def unlost(solver: Solver, games: int, plies: int, seed: int) -> tuple[MatchStarts, np.ndarray]:
    """Starts where perfect play does not lose for the player, of openings with both colours; outcomes int8 [n]."""
    found = list[tuple[np.ndarray, bool, int]]()
    for record in openings(solver.game, plies, seed):
        outcome = solver.outcome(record)
        found += [(record, begins, value) for begins, value in ((True, outcome), (False, -outcome)) if value >= 0]
        if len(found) >= games:
            break
    records, begins, values = zip(*found[:games], strict=True)
    return MatchStarts(np.stack(records), np.array(begins)), np.array(values, np.int8)


def match(
    board: Game,
    player: Opponent,
    other: Opponent,
    starts: MatchStarts,
    seed: int = 0,
    watch: Watch = lambda found, moves: True,
) -> np.ndarray:
    """float64 [n]: the player's points, 1 for a win and ½ for a draw; nan where `watch` ended the match before."""
    records, own, n = starts.records.copy(), starts.begins.copy(), len(starts.records)
    random = np.random.default_rng(seed).integers(2**63, size=n, dtype=np.uint64)
    points = np.full(n, np.nan)
    while np.isnan(points).any():
        ended = dict[int, float]()
        on = np.isnan(points)
        for turn, who, won in ((own, player, 1.0), (~own, other, 0.0)):
            at = np.flatnonzero(on & turn)
            if len(at):
                results = play_all(board.numbers, records, at, who(records, random, at))
                points[at[results == kernels.WON]] = won
                points[at[results == kernels.DRAWN]] = 0.5
                ended |= {i: float(points[i]) for i in at[results != kernels.GOES_ON].tolist()}
        own = ~own
        if not watch(ended, int(on.sum())):
            break
    return points


class Judge:
    """A player whose moves a solver judges: of those in positions that are not lost, how many keep the value."""

    def __init__(self, player: Opponent, solver: Solver):
        self.player, self.solver, self.moves, self.kept = player, solver, 0, 0

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = self.player(records, random, at)
        for lane, move in zip(at.tolist(), chosen.tolist(), strict=True):
            outcomes = self.solver.outcomes(records[lane])
            best = max(outcomes.values())
            self.moves += best >= 0
            self.kept += best >= 0 and outcomes[move] == best
        return chosen
