"""Board games as environments, `game:NAME`. Each lane (parallel environment) has one player. The environment plays the
opponent.

These opponents can be named: `random`; `mcts:N`, a tree search with N simulations (UCT, Kocsis and Szepesvári 2006);
and for connect four only `perfect`.

A random stream is the state of a SplitMix64 generator (Steele et al. 2014), uint64 [1]. Each draw changes the state in
place, so that draws from a saved state continue the stream exactly.
"""

from __future__ import annotations

import importlib.util
import math
import re
import threading
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from polyplay.core import tree
from polyplay.core.compiled import bits
from polyplay.core.errors import UserError
from polyplay.core.machine import install_command
from polyplay.core.numbers import SPLITMIX
from polyplay.core.tree import Batch, Field, Tree
from polyplay.envs.pool import Envs, EnvSpec, check_options, closest_names
from polyplay.envs.shared_rows import first_row
from polyplay.envs.spaces import Discrete, describe_actions, describe_fields
from polyplay.games.board_rules import legal, play, show_all
from polyplay.games.boards import GAMES, OPTIONS, Game, game
from polyplay.games.records import CELLS, DRAWN, GOES_ON, WON, WORTH, compiled
from polyplay.games.toys import ArrayPool, game_streams

EXPLORATION = 1.4  # UCT's exploration constant, for values in [0, 1]
_32 = np.uint64(32)


# The tree of one search. By node: `child`, child nodes by action (-1: none); `visits`; `values`, the sum for the player
# whose move led to the node; `results`, the result of that move. path: nodes of the current descent; moves: scratch.
Nodes = namedtuple("Nodes", "child visits values results path moves")


@compiled
def integer_below(random: np.ndarray, limit: int) -> int:
    """Draw an integer uniformly from [0, limit), with limit < 2³¹. random: the random stream, uint64 [1]."""
    random[0] += SPLITMIX
    return int(((bits(random[0], np.uint64(0)) >> _32) * np.uint64(limit)) >> _32)


@compiled
def random_move(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray) -> int:
    """Draw a legal action uniformly. moves: scratch array, int16 [actions]."""
    return int(moves[integer_below(random, legal(game, record, moves))])


@compiled
def _roll_out(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray) -> float:
    """Play random moves to the end, in place. Return 1 if the player to move at first wins, 0.5 if drawn, else 0."""
    first, own, result = record[0], record[0], GOES_ON
    while result == GOES_ON:
        own = record[0]
        result = play(game, record, random_move(game, record, moves, random))
    return 0.5 if result == DRAWN else 1.0 if (own == first) == (result == WON) else 0.0


@compiled
def _choose(tree: Nodes, node: int, n: int, random: np.ndarray) -> int:
    """Return a random untried move of tree.moves[:n]. If none is left, return the move of greatest confidence bound."""
    child, moves, untried = tree.child[node], tree.moves, 0
    for i in range(n):
        if child[moves[i]] < 0:
            moves[untried], moves[i] = moves[i], moves[untried]
            untried += 1
    if untried:
        return int(moves[integer_below(random, untried)])
    best, top = int(moves[0]), -1.0
    for action in moves[:n]:
        visits = tree.visits[child[action]]
        mean, explore = tree.values[child[action]] / visits, math.sqrt(math.log(tree.visits[node]) / visits)
        if mean + EXPLORATION * explore > top:
            best, top = int(action), mean + EXPLORATION * explore
    return best


@compiled
def _simulate(game: np.ndarray, record: np.ndarray, tree: Nodes, random: np.ndarray, new: int) -> bool:
    """Run one simulation, which adds at most one node, with number `new`. Return whether the node was added."""
    node, depth, made = 0, 1, False
    while tree.results[node] == GOES_ON and not made:
        action = _choose(tree, node, legal(game, record, tree.moves), random)
        made = tree.child[node, action] < 0
        if made:
            tree.child[node, action] = new
        node = tree.child[node, action]
        tree.results[node] = play(game, record, action)
        tree.path[depth] = node
        depth += 1
    if tree.results[node] == GOES_ON:
        value = 1.0 - _roll_out(game, record, tree.moves, random)
    else:
        value = 1.0 if tree.results[node] == WON else 0.5 if tree.results[node] == DRAWN else 0.0
    for i in range(depth - 1, -1, -1):  # value is for the player whose move led to the node
        tree.visits[tree.path[i]] += 1.0
        tree.values[tree.path[i]] += value
        value = 1.0 - value
    return made


@compiled
def mcts(game: np.ndarray, record: np.ndarray, simulations: int, actions: int, random: np.ndarray) -> np.ndarray:
    """Search an unfinished position. Return how often the search visited each action at the root, int64 [actions]."""
    nodes, used, scratch = simulations + 1, 1, record.copy()
    child, visits, values = np.full((nodes, actions), -1, np.int32), np.zeros(nodes), np.zeros(nodes)
    path, moves = np.zeros(nodes + 1, np.int32), np.zeros(actions, np.int16)
    tree = Nodes(child, visits, values, np.zeros(nodes, np.int8), path, moves)
    for _ in range(simulations):
        scratch[:] = record
        used += 1 if _simulate(game, scratch, tree, random, used) else 0
    out = np.zeros(actions, np.int64)
    for action in range(actions):
        if child[0, action] >= 0:
            out[action] = int(visits[child[0, action]])
    return out


@compiled
def most_visited(visits: np.ndarray, random: np.ndarray) -> int:
    """Return the most visited action. If several have the same visits, choose one at random."""
    top, ties, chosen = visits.max(), 0, 0
    for action in range(visits.size):
        if visits[action] == top:
            ties += 1
            if integer_below(random, ties) == 0:
                chosen = action
    return chosen


MOST = 100_000  # greatest N of mcts:N
# a function: records int8 [lanes, bytes], random streams uint64 [lanes], lane numbers int64 [n] → actions int64 [n]
Opponent = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def opponent(name: str, game: Game, given: str = "", more: str = "") -> Opponent:
    """Return the opponent called `name`: a function that chooses moves and advances the lanes' random streams. Raises
    UserError if the name is unknown, or the opponent is unavailable.

    given: text before the name in error messages.
    more: further names to list in error messages.
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
    """Tell whether a game has the rules of connect four, whatever the game's name is."""
    return np.array_equal(game.numbers, GAMES["connect_four"].numbers)


def unsolved(game: Game) -> str:
    """Return why perfect play of a game is unavailable, or "" if it is available."""
    if not is_connect_four(game):
        return f"there is no solver for game:{game.name}"
    missing = importlib.util.find_spec("bitbully") is None
    return f"it needs the package bitbully; `{install_command('solver')}`" if missing else ""


class Solver:
    """Perfect player of connect four from unfinished positions, by the package bitbully with its opening book. Threads
    may share a solver.
    """

    def __init__(self) -> None:
        import bitbully

        self._board, self._solver, self._lock = bitbully.Board, bitbully.BitBully(), threading.Lock()

    def scores(self, record: np.ndarray) -> dict[int, int]:
        """Return the score of each legal move for the player to move: above 0 for a win, higher for an earlier win; 0
        for a draw; below 0 for a loss, higher for a later loss.
        """
        with self._lock:
            return dict(sorted(self._solver.score_all_moves(self._position(record)).items()))

    def plies(self, record: np.ndarray, score: int) -> int:
        """Return how many moves of both players remain under perfect play in a position of this score."""
        return int(self._solver.score_to_moves_left(score, self._position(record)))

    def _position(self, record: np.ndarray) -> Any:
        return self._board(record[CELLS:].reshape(GAMES["connect_four"].rows, -1).tolist())


@cache
def solver() -> Solver:
    """Return the solver of this process, which all callers share."""
    return Solver()


def _perfect_moves(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return a move for each lane in `at`, drawn at random from the moves with the best score."""
    out = np.empty(at.size, np.int64)
    for i, lane in enumerate(at.tolist()):
        scores = solver().scores(records[lane])
        best = [action for action, score in scores.items() if score == max(scores.values())]
        out[i] = best[integer_below(random[lane : lane + 1], len(best))]
    return out


@compiled
def _moves(
    game: np.ndarray, records: np.ndarray, random: np.ndarray, at: np.ndarray, actions: int, simulations: int
) -> np.ndarray:
    """Return a move for each lane in `at`, from a search by `simulations`, or at random with 0 simulations."""
    out, room = np.empty(at.size, np.int64), np.empty(actions, np.int16)
    for i in range(at.size):
        record, stream = records[at[i]], random[at[i] : at[i] + 1]
        if simulations:
            out[i] = most_visited(mcts(game, record, simulations, actions, stream), stream)
        else:
            out[i] = random_move(game, record, room, stream)
    return out


PREFIX, RANDOM = "game:", "random"


def of(envs: Envs) -> tuple[Game, str, Opponent]:
    """Return the game, the name of its opponent, and the opponent for game:NAME+opponent=WHO. Raises UserError."""
    words = envs.title.removeprefix(PREFIX).split("+")
    own = [word for word in words if word.startswith("opponent")]
    board = game("+".join([word for word in words if word not in own]))
    named = dict(word.partition("=")[::2] for word in own)
    rules = OPTIONS.get(board.name.partition("+")[0], {})
    if wrong := {k: v for k, v in envs.options.items() if k in rules}:
        name = "+".join([f"{PREFIX}{board.name}", *(f"{k}={v}" for k, v in wrong.items())])
        raise UserError(f"--env-kwargs: {', '.join(wrong)} given, but rules are part of the game's name: --env {name}")
    given = {**named, **envs.options}
    check_options(given, {"opponent": RANDOM}, f"{PREFIX}{board.name}")
    who = given.get("opponent", RANDOM)  # random, mcts:N, or in connect four perfect
    return board, who, opponent(who, board)


def board_of(envs: Envs) -> Game:
    """Return the board game that `envs` names. Raises UserError if it names another environment."""
    if not envs.title.startswith(PREFIX):
        allowed = ", ".join(PREFIX + name for name in GAMES)
        raise UserError(f"--env {envs.title}: must be a board game, whose rules are known: {allowed}")
    return of(envs)[0]


def describe(envs: Envs) -> EnvSpec:
    """Return the EnvSpec of a board game. Raises UserError if the name, an option or a user's rules are wrong."""
    board, who, _ = of(envs)
    board.verify()
    obs, action = Field(board.planes, "float32"), Discrete(board.actions)
    text = {"environment": envs.title, "observation": describe_fields(obs), "actions": describe_actions(action)}
    text |= {"action mask": "the legal moves", "opponent": who} | ({"rules": board.how} if board.how else {})
    return EnvSpec(obs, action, describe=text, mask=Field((board.actions,), "bool"))


class BoardPool(ArrayPool):
    """Pool of lanes (parallel environments) that each play a board game against an opponent. Lanes step in send(), in
    the caller's thread.

    The player of a lane moves first in every other game. Lanes with even numbers begin with such a game. Observations
    show the board from the player's side, even after the end of a game.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        board, _, self._opponent = of(envs)
        self._board, self._start, everyone = board, board.new(), np.arange(envs.lanes)
        self._records = np.zeros((envs.lanes, board.record), np.int8)
        # per lane: 1 if the player moves second; a new game flips the value
        self._side = ((lane + everyone + 1) % 2).astype(np.int8)
        self._random = game_streams(seed, lane, envs.lanes)
        self._arrays |= {"records": self._records, "side": self._side, "random": self._random}
        self._begin(everyone)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        over = self._rows["over"][numbers]
        self._play(numbers[~over], np.asarray(action)[~over])
        self._begin(numbers[over])

    def _play(self, at: np.ndarray, actions: np.ndarray) -> None:
        """Make the players' moves in lanes `at`, then the opponents' replies. Raises ValueError for an illegal move."""
        illegal = np.flatnonzero(~self._rows["mask"][at, actions])
        if illegal.size:
            sent = f"lane {at[illegal[0]]} was sent the illegal move {actions[illegal[0]]}"
            raise ValueError(f"{self.title}: {sent}; its row's mask has the legal ones")
        own = self._board.play_all(self._records, at, actions)
        on = own == GOES_ON
        reward, over = WORTH[own], ~on
        answers = self._answer(at[on])
        reward[on] = -WORTH[answers]
        over[on] = answers != GOES_ON
        self._write(at, {"reward": reward, "terminated": over, "truncated": False, "first": False, "over": over})

    def _begin(self, at: np.ndarray) -> None:
        """Start new games in lanes `at`. The side that moves first alternates. If it is the opponent, make its move."""
        self._side[at] ^= 1
        self._records[at] = self._start
        second = at[self._side[at] == 1]
        over = second[self._answer(second) != GOES_ON]  # the first move ended the game: let the player begin
        self._side[over], self._records[over] = 0, self._start
        self._write(at, first_row(self._rows))

    def _answer(self, at: np.ndarray) -> np.ndarray:
        """Make the opponents' moves in lanes `at`. Return the results of the moves, int8 [n]."""
        return self._board.play_all(self._records, at, self._opponent(self._records, self._random, at))

    def _write(self, at: np.ndarray, row: Batch) -> None:
        tree.write(self._rows, at, row)
        rows = self._rows
        show_all(self._board.numbers, self._records, at, self._side, rows["obs"], rows["mask"], rows["over"])
        self._board.remember(self._records, rows["obs"], at, rows["over"])


# envs.make calls connect(envs, seed, number of the first lane). Raises UserError: the name or an option is wrong.
connect = BoardPool
