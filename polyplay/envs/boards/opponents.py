"""Opponents by name, in an environment and in matches: `random`, `mcts:SIMULATIONS`, `perfect`."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.kernels import compiled
from polyplay.envs.boards.rollouts import integer_below, mcts, most_visited, random_move
from polyplay.envs.boards.solver import Solver, slow_before, solver_of, unsolved
from polyplay.envs.pool import closest_names

MOST = 100_000  # simulations
# of (records int8 [lanes, record], random streams uint64 [lanes], lanes int64 [n]): actions int64 [n]
Opponent = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def opponent(name: str, game: Game, given: str = "", more: str = "", plies: int = 0) -> Opponent:
    """The opponent of that name. It advances the random streams that it is given. given: the words before the name in
    a message; more: what else is allowed there; plies: stones on the board when a game begins. Raises UserError.
    """
    given = given or f"game:{game.name}: opponent="
    if name == "random":
        return lambda records, random, at: _random_moves(game.numbers, records, random, at, game.actions)
    if name == "perfect":
        if reason := _not_perfect(game, plies):
            raise UserError(f"{given}perfect given, but {reason}; allowed: random, mcts:N{more}")
        return lambda records, random, at: _perfect_moves(solver_of(game), records, random, at)
    found = re.fullmatch(r"mcts:(\d{1,9})", name)
    if found and 1 <= int(found[1]) <= MOST:
        return lambda records, random, at: _mcts_moves(game.numbers, records, random, at, game.actions, int(found[1]))
    allowed = f"random, mcts:N with N simulations from 1 to {MOST:,}, perfect{more}"
    near = "" if found else closest_names(name, ("random", "mcts:100", "perfect"))
    raise UserError(f"{given}{name} given, allowed: {allowed}{near}")


def _not_perfect(game: Game, plies: int) -> str:
    """Why there is no perfect play from that ply on; empty: there is."""
    if reason := unsolved(game):
        return f"game:{game.name} has no solver, {reason}"
    first = slow_before(game)
    slow = f"perfect play of game:{game.name} may take hours before ply {first}, ply {plies} given"
    return slow if plies < first else ""


def _perfect_moves(solver: Solver, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Best moves by the solver, each with the same chance."""
    out = np.empty(at.size, np.int64)
    for i, lane in enumerate(at.tolist()):
        best = solver.best(records[lane])
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
