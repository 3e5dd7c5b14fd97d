"""Games of two players on one board: all games in which a player is to move are decided in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game

Choose = Callable[[np.ndarray], np.ndarray]  # records int8 [n, record] → moves int64 [n]


@dataclass
class MatchScore:
    """The first player's: a draw is half a point."""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def points(self) -> float:
        return self.wins + self.draws / 2

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses


def play_match(
    board: Game,
    openings: np.ndarray,
    players: tuple[Choose, Choose],
    at_once: int,
    certain: Callable[[MatchScore], bool] = lambda score: False,
) -> MatchScore:
    """Two games from each opening, int8 [n, record]: the first player has the move in one, the second in the other. At
    most `at_once` games go on together. `certain`: whether the match may end after the games so far.
    """
    score, records, movers = MatchScore(), dict[int, np.ndarray](), dict[int, int]()
    left, side = iter(range(2 * len(openings))), 0
    while not certain(score):
        while len(records) < at_once and (game := next(left, None)) is not None:
            records[game], movers[game] = openings[game // 2].copy(), game % 2
        if not records:
            break
        if due := [game for game in records if movers[game] == side]:
            moves = players[side](np.stack([records[game] for game in due]))
            for game, move in zip(due, moves.tolist(), strict=True):
                movers[game] = 1 - side
                result = kernels.play(board.numbers, records[game], move)
                if result != kernels.GOES_ON:
                    _count(score, result == kernels.DRAWN, side == 0)
                    del records[game], movers[game]
        side = 1 - side
    return score


def _count(score: MatchScore, drawn: bool, first: bool) -> None:
    """first: the first player made the last move."""
    if drawn:
        score.draws += 1
    elif first:
        score.wins += 1
    else:
        score.losses += 1


def draw_openings(board: Game, n: int, plies: int, draw: Choose) -> np.ndarray:
    """int8 [n, record]: positions after so many moves, or before the move with which a game ended sooner."""
    records = np.stack([board.new() for _ in range(n)])
    on = np.ones(n, bool)
    for _ in range(plies):
        at = np.flatnonzero(on)
        if not len(at):
            break
        for i, move in zip(at.tolist(), draw(records[at]).tolist(), strict=True):
            after = records[i].copy()
            on[i] = kernels.play(board.numbers, after, move) == kernels.GOES_ON
            if on[i]:
                records[i] = after
    return records
