"""Opponents by name, in an environment and in matches: `random`, `mcts:SIMULATIONS`, in connect four `perfect`."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards.game import GAMES, Game
from polyplay.envs.boards.kernels import CELLS, compiled
from polyplay.envs.boards.rollouts import integer_below, mcts, most_visited, random_move
from polyplay.envs.pool import closest_names

MOST = 100_000  # simulations
# of (records int8 [lanes, record], random streams uint64 [lanes], lanes int64 [n]): actions int64 [n]
Opponent = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def opponent(name: str, game: Game, given: str = "", more: str = "") -> Opponent:
    """The opponent of that name. It advances the random streams that it is given. given: the words before the name in
    a message; more: what else is allowed there. Raises UserError.
    """
    given = given or f"game:{game.name}: opponent="
    if name == "random":
        return lambda records, random, at: _random_moves(game.numbers, records, random, at, game.actions)
    if name == "perfect":
        if reason := unsolved(game):
            raise UserError(f"{given}perfect given, but {reason}; other opponents: random, mcts:N{more}")
        return _perfect_moves
    found = re.fullmatch(r"mcts:(\d{1,9})", name)
    if found and 1 <= int(found[1]) <= MOST:
        return lambda records, random, at: _mcts_moves(game.numbers, records, random, at, game.actions, int(found[1]))
    perfect = ("perfect",) if is_connect_four(game) else ()
    allowed = ", ".join(("random", f"mcts:N with N simulations from 1 to {MOST:,}", *perfect))
    near = "" if found else closest_names(name, ("random", "mcts:100", *perfect))
    raise UserError(f"{given}{name} given, allowed: {allowed}{more}{near}")


def is_connect_four(game: Game) -> bool:
    """By the rules, whatever the game's name."""
    return np.array_equal(game.numbers, GAMES["connect_four"].numbers)


def unsolved(game: Game) -> str:
    """Why there is no perfect play of a game; empty: there is."""
    if not is_connect_four(game):
        return f"there is no solver for game:{game.name}"
    missing = importlib.util.find_spec("bitbully") is None
    return "it needs the package bitbully; `pip install 'polyplay[solver]'`" if missing else ""


class Solver:
    """Perfect play of connect four, by the package bitbully and its openings. Records are of positions that go on.
    Threads may share it.
    """

    def __init__(self) -> None:
        import bitbully

        self._board, self._solver, self._lock = bitbully.Board, bitbully.BitBully(), threading.Lock()

    def scores(self, record: np.ndarray) -> dict[int, int]:
        """Of every legal move, for who makes it: above 0 for a win, the higher the sooner; 0 for a draw; below 0 for a
        loss, the higher the later.
        """
        with self._lock:
            return dict(sorted(self._solver.score_all_moves(self._position(record)).items()))

    def plies(self, record: np.ndarray, score: int) -> int:
        """How many moves of both players are left in a position of that score, under perfect play."""
        return int(self._solver.score_to_moves_left(score, self._position(record)))

    def _position(self, record: np.ndarray) -> Any:
        return self._board(record[CELLS:].reshape(GAMES["connect_four"].rows, -1).tolist())


@cache
def solver() -> Solver:
    """The process's solver, whose table all that ask it share."""
    return Solver()


def _perfect_moves(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The soonest wins, draws or latest losses, each with the same chance."""
    out = np.empty(at.size, np.int64)
    for i, lane in enumerate(at.tolist()):
        scores = solver().scores(records[lane])
        best = [action for action, score in scores.items() if score == max(scores.values())]
        out[i] = best[integer_below(random, lane, len(best))]
    return out


@compiled
def _random_moves(
    game: np.ndarray, records: np.ndarray, random: np.ndarray, at: np.ndarray, actions: int
) -> np.ndarray:
    out, room = np.empty(at.size, np.int64), np.empty(actions, np.int16)
    for i in range(at.size):
        out[i] = random_move(game, records[at[i]], room, random, at[i])
    return out


@compiled
def _mcts_moves(
    game: np.ndarray, records: np.ndarray, random: np.ndarray, at: np.ndarray, actions: int, simulations: int
) -> np.ndarray:
    out = np.empty(at.size, np.int64)
    for i in range(at.size):
        out[i] = most_visited(mcts(game, records[at[i]], simulations, actions, random, at[i]), random, at[i])
    return out
