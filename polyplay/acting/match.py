"""Matches of two players on one board: all games in which a player is to move are decided in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.boards.pool import play_all

GIVES_UP = -1  # instead of a move: the player loses this game
Watch = Callable[[dict[int, float], int], bool]  # of {game: points} that ended, and moves made: whether to go on


@dataclass(frozen=True)
class MatchStarts:
    """Where the games of a match begin. begins, bool [n]: the player moves next, not the other."""

    records: np.ndarray  # int8 [n, record]
    begins: np.ndarray


def match(
    board: Game,
    player: Opponent,
    other: Opponent,
    starts: MatchStarts,
    seed: int = 0,
    watch: Watch = lambda found, moves: True,
    at_once: int | None = None,
    over: Callable[[np.ndarray, np.ndarray], None] = lambda records, at: None,
) -> np.ndarray:
    """float64 [n]: the player's points, 1 for a win and ½ for a draw; nan where `watch` ended the match before.

    at_once: games that go on together (None: all). over: is given the records, and the games in which somebody has just
    made the last move or given up. Raises ValueError: a player made an illegal move.
    """
    records, own, n = starts.records.copy(), starts.begins.copy(), len(starts.records)
    random = np.random.default_rng(seed).integers(2**63, size=n, dtype=np.uint64)
    points = np.full(n, np.nan)
    while len(on := np.flatnonzero(np.isnan(points))[:at_once]):
        ended = dict[int, float]()
        for at, who, side, won in ((on[own[on]], player, "player", 1.0), (on[~own[on]], other, "other player", 0.0)):
            if len(at):
                results = _play(board, records, at, who(records, random, at), side)
                points[at[results == kernels.WON]] = won
                points[at[results == kernels.LOST]] = 1.0 - won
                points[at[results == kernels.DRAWN]] = 0.5
                finished = at[results != kernels.GOES_ON]
                ended |= {i: float(points[i]) for i in finished.tolist()}
                over(records, finished)
        own[on] = ~own[on]
        if not watch(ended, len(on)):
            break
    return points


def _play(board: Game, records: np.ndarray, at: np.ndarray, actions: np.ndarray, side: str) -> np.ndarray:
    """What the moves lead to, int8 [n]. Raises ValueError: one is illegal."""
    results, moves = np.full(len(at), kernels.LOST, np.int8), actions != GIVES_UP
    made, chosen = at[moves], actions[moves]
    if (bad := _first_illegal(board.numbers, records, made, chosen, board.actions)) >= 0:
        position = board.line(records[made[bad]])
        raise ValueError(
            f"game:{board.name}: the {side} made the illegal move {chosen[bad]} in game {made[bad]}: {position}"
        )
    results[moves] = play_all(board.numbers, records, made, chosen)
    return results


@kernels.compiled
def _first_illegal(game: np.ndarray, records: np.ndarray, at: np.ndarray, chosen: np.ndarray, actions: int) -> int:
    """The index of the first illegal move; -1: all are legal."""
    room = np.empty(actions, np.int16)
    for i in range(at.size):
        fine = False
        for action in room[: kernels.legal(game, records[at[i]], room)]:
            fine |= action == chosen[i]
        if not fine:
            return i
    return -1


def draw_openings(
    board: Game, n: int, plies: int, draw: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """int8 [n, record]: positions after so many moves, or before the move with which a game ended sooner; int64
    [n, plies]: the moves that led there, -1 where there is none. draw: moves for records.
    """
    records, on = np.stack([board.new() for _ in range(n)]), np.arange(n)
    moves = np.full((n, plies), -1)
    for ply in range(plies):
        if len(on):
            before = records[on].copy()
            drawn = draw(before)
            over = play_all(board.numbers, records, on, drawn) != kernels.GOES_ON
            records[on[over]] = before[over]
            on, drawn = on[~over], drawn[~over]
            moves[on, ply] = drawn
    return records, moves
