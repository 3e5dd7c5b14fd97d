"""Opponents by name: random, tree search by roll-outs.

Monte Carlo tree search by random roll-outs (UCT, Kocsis and Szepesvári 2006), and random numbers for compiled games.

A random stream is one uint64 of an array: its place in SplitMix64's sequence (Steele et al. 2014), which moves on as
numbers are drawn. So whoever saves the array goes on to the bit.
"""

from __future__ import annotations

import importlib.util
import math
import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from polyplay.core.compiled import bits
from polyplay.core.errors import UserError
from polyplay.core.numbers import SPLITMIX
from polyplay.envs.pool import closest_names
from polyplay.games.board_rules import legal, play
from polyplay.games.boards import GAMES, Game
from polyplay.games.records import CELLS, DRAWN, GOES_ON, WON, compiled

EXPLORATION = 1.4  # UCT's constant, for values in [0, 1]
_32 = np.uint64(32)


@compiled
def integer_below(random: np.ndarray, stream: int, limit: int) -> int:
    """An integer in [0, limit), limit < 2³¹, from stream `stream` of random, uint64 [n]."""
    random[stream] += SPLITMIX
    return int(((bits(random[stream], np.uint64(0)) >> _32) * np.uint64(limit)) >> _32)


@compiled
def random_move(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray, stream: int) -> int:
    """A legal action, each with the same chance. moves: room, int16 [actions]."""
    n = legal(game, record, moves)
    return int(moves[integer_below(random, stream, n)])


@compiled
def _roll_out(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray, stream: int) -> float:
    """Play the record to its end at random: 1 if who moves first here wins, 0 if the other does, 0.5 drawn."""
    first = record[0]
    while True:
        own = record[0]
        result = play(game, record, random_move(game, record, moves, random, stream))
        if result == DRAWN:
            return 0.5
        if result != GOES_ON:
            return 1.0 if (own == first) == (result == WON) else 0.0


@compiled
def _unvisited(child: np.ndarray, moves: np.ndarray, n: int) -> int:
    """Put the legal moves that were not tried first, by swapping; their number."""
    new = 0
    for i in range(n):
        if child[moves[i]] < 0:
            moves[new], moves[i] = moves[i], moves[new]
            new += 1
    return new


@compiled
def _best(child: np.ndarray, visits: np.ndarray, values: np.ndarray, parent: float, moves: np.ndarray, n: int) -> int:
    """The legal move of the greatest upper confidence bound; all were tried."""
    best, top = int(moves[0]), -1.0
    for i in range(n):
        node = child[moves[i]]
        bound = values[node] / visits[node] + EXPLORATION * math.sqrt(math.log(parent) / visits[node])
        if bound > top:
            best, top = int(moves[i]), bound
    return best


@compiled
def _simulate(
    game: np.ndarray,
    record: np.ndarray,
    tree: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    path: np.ndarray,
    moves: np.ndarray,
    random: np.ndarray,
    stream: int,
    new: int,
) -> bool:
    """One descent, one new node at most, one roll-out; whether node `new` was made."""
    child, visits, values, results = tree
    node, depth, made = 0, 1, False
    while results[node] == GOES_ON and not made:
        n = legal(game, record, moves)
        untried = _unvisited(child[node], moves, n)
        if untried:
            action, made = int(moves[integer_below(random, stream, untried)]), True
            child[node, action] = new
            node = new
            results[node] = play(game, record, action)
        else:
            action = _best(child[node], visits, values, visits[node], moves, n)
            node = child[node, action]
            play(game, record, action)
        path[depth] = node
        depth += 1
    if results[node] == GOES_ON:
        value = 1.0 - _roll_out(game, record, moves, random, stream)
    else:
        value = 1.0 if results[node] == WON else 0.5 if results[node] == DRAWN else 0.0
    for i in range(depth - 1, -1, -1):  # value: of who moved into the node
        visits[path[i]] += 1.0
        values[path[i]] += value
        value = 1.0 - value
    return made


@compiled
def mcts(
    game: np.ndarray, record: np.ndarray, simulations: int, actions: int, random: np.ndarray, stream: int
) -> np.ndarray:
    """Visits int64 [actions] of the root's moves after so many simulations from a position that goes on."""
    nodes = simulations + 1
    child = np.full((nodes, actions), -1, np.int32)
    visits, values, results = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes, np.int8)
    path, moves, scratch = np.zeros(nodes + 1, np.int32), np.zeros(actions, np.int16), record.copy()
    used = 1
    for _ in range(simulations):
        scratch[:] = record
        tree = (child, visits, values, results)
        if _simulate(game, scratch, tree, path, moves, random, stream, used):
            used += 1
    out = np.zeros(actions, np.int64)
    for action in range(actions):
        if child[0, action] >= 0:
            out[action] = int(visits[child[0, action]])
    return out


@compiled
def most_visited(visits: np.ndarray, random: np.ndarray, stream: int) -> int:
    """The action of the most visits, one of equals by chance."""
    top, ties, chosen = visits.max(), 0, 0
    for action in range(visits.size):
        if visits[action] == top:
            ties += 1
            if integer_below(random, stream, ties) == 0:
                chosen = action
    return chosen


MOST = 100_000  # simulations
# of (records int8 [lanes, record], random streams uint64 [lanes], lanes int64 [n]): actions int64 [n]
Opponent = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def opponent(name: str, game: Game, given: str = "", more: str = "") -> Opponent:
    """The opponent of that name. It advances the random streams that it is given. given: the words before the name in
    a message; more: what else is allowed there. Raises UserError.
    """
    given = given or f"game:{game.name}: opponent="
    if name == "perfect":
        if reason := unsolved(game):
            raise UserError(f"{given}perfect given, but {reason}; other opponents: random, mcts:N{more}")
        return _perfect_moves
    found = re.fullmatch(r"mcts:(\d{1,9})", name)
    if name == "random" or (found and 1 <= int(found[1]) <= MOST):
        simulations = int(found[1]) if found else 0
        return lambda records, random, at: _moves(game.numbers, records, random, at, game.actions, simulations)
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
def _moves(
    game: np.ndarray, records: np.ndarray, random: np.ndarray, at: np.ndarray, actions: int, simulations: int
) -> np.ndarray:
    """By a search of so many simulations; 0: at random."""
    out, room = np.empty(at.size, np.int64), np.empty(actions, np.int16)
    for i in range(at.size):
        record, stream = records[at[i]], at[i]
        if simulations:
            out[i] = most_visited(mcts(game, record, simulations, actions, random, stream), random, stream)
        else:
            out[i] = random_move(game, record, room, random, stream)
    return out
