"""Games of OpenSpiel as board games, called `game:spiel:hex(board_size=5)` or `game:spiel:module:NAME`.

A game must be zero-sum, with two players who move in turn, without chance or hidden information. If OpenSpiel lets a
player move twice in a row, the opponent must pass between the two moves. A game that reaches LONGEST moves is drawn.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from polyplay.core import user_modules
from polyplay.core.errors import UserError
from polyplay.core.machine import install_command
from polyplay.envs.pool import closest_names
from polyplay.games.own_game import GameRules, keep_newest
from polyplay.games.records import DRAWN, GOES_ON, LOST, WON

MOST_ACTIONS = 2**15 - 2  # most actions of a game: int16 holds these and the pass
LONGEST = 512  # most moves of a game, passes included
STATES = 20_000  # most OpenSpiel states kept per game
HEX = "Blue connects top and bottom, Orange left and right."
PLACED = ("gomoku", "havannah", "hex", "mnk", "tic_tac_toe", "y")  # games in which action i puts a stone on cell i
ALLOWED = "game:spiel:NAME, or game:spiel:module:NAME of a module that registers NAME"
COUNT, MUST_PASS, MOVES = range(3)  # indices into a position: number of moves, must-pass flag, first move
_stderr_alone = threading.Lock()  # one redirection of stderr at a time, as all threads share stderr


class SpielGame(GameRules):
    """Game of OpenSpiel. The action with the highest number is a pass.

    A position is an int16 array: the number of moves so far, 1 if the player to move must pass (else 0), and the moves.
    """

    def __init__(self, name: str):
        self.game = load_game(name)
        with refusals_of(name):
            begin = self.game.new_initial_state()
            planes, rows, columns = planes_of(self.game.observation_tensor_shape())
            self.planes = (planes + 1, rows, columns)
            self.observer = observer_of(self.game)
            self.observer(begin, begin.current_player(), np.empty(planes * rows * columns, np.float32))
        self.first, self.passes = begin.current_player(), self.game.num_distinct_actions()
        self.actions, self.longest = self.passes + 1, min(2 * self.game.max_game_length(), LONGEST)
        self.size = 2 * (MOVES + self.longest)
        self.states = OrderedDict[bytes, Any]({b"": begin})  # OpenSpiel's states by the moves that lead to them
        kind, _, given = name.rpartition(":")[2].rstrip(")").partition("(")
        self.placed, self.slanted = kind in PLACED, kind == "hex"
        self.goal = HEX if self.slanted else "By OpenSpiel's rules."
        words = given.replace(",", ", ").replace("=", " ").replace("_", " ")
        self.title = str(self.game.get_type().long_name) + (f", {words}" if given else "")

    def legal(self, position: np.ndarray) -> list[int]:
        must_pass = position.view(np.int16)[MUST_PASS]
        return [self.passes] if must_pass else self.state(moves_of(position)).legal_actions()

    def play(self, position: np.ndarray, action: int) -> int:
        before = moves_of(position)
        after, n = self.state(before), len(before) // 2
        if action < self.passes:
            after = after.clone()
            after.apply_action(action)
        keep_newest(self.states, before + int(action).to_bytes(2, "little"), after, STATES)
        words = position.view(np.int16)
        words[COUNT], words[MOVES + n] = n + 1, action
        if after.is_terminal():
            points = after.returns()[self._player(n)]
            return WON if points > 0 else LOST if points < 0 else DRAWN
        words[MUST_PASS] = after.current_player() != self._player(n + 1)
        return GOES_ON

    def write_planes(self, position: np.ndarray, out: np.ndarray) -> None:
        """Write the network's input into `out`: OpenSpiel's observation tensor of the player to move, and a last plane,
        which is 1 if the first player is to move, else 0.
        """
        moves = moves_of(position)
        n = len(moves) // 2
        self.observer(self.state(moves), self._player(n), out[:-1].reshape(-1))
        out[-1] = 1 - n % 2

    def state(self, moves: bytes) -> Any:
        """Return OpenSpiel's state after the given moves. `moves` are the bytes of an int16 array."""
        found = self.states.get(moves)
        if found is None:
            found = self.game.new_initial_state()
            for action in np.frombuffer(moves, np.int16).tolist():
                if action < self.passes:
                    found.apply_action(action)
        keep_newest(self.states, moves, found, STATES)
        return found

    def _player(self, n: int) -> int:
        return (self.first + n) % 2

    def stones(self, position: np.ndarray) -> np.ndarray | None:
        if not self.placed:
            return None
        cells = np.zeros(math.prod(self.planes[1:]), np.int8)
        for n, action in enumerate(np.frombuffer(moves_of(position), np.int16)):
            cells[action] = 1 + n % 2
        return cells

    def move_name(self, action: int) -> str:
        """Return OpenSpiel's name of an action, or "" for a cell, or if the name depends on the position."""
        if action == self.passes:
            return "pass"
        name = "" if self.placed else str(self.game.action_to_string(self.first, action))
        return "" if name.startswith("Action(") else name

    def draw(self, position: np.ndarray) -> str:
        return str(self.state(moves_of(position)))


def moves_of(position: np.ndarray) -> bytes:
    """Return the moves made so far, as the bytes of an int16 array."""
    words = position.view(np.int16)
    return words[MOVES : MOVES + int(words[COUNT])].tobytes()


def load_game(name: str) -> Any:
    """Load a game of OpenSpiel by its name. The name may have parameters, as in hex(board_size=5), or a module that
    registers the game, as in module:NAME. Raises UserError if the game does not exist or is not supported.
    """
    try:
        import pyspiel
    except ImportError:
        raise UserError(f"game:spiel:{name}: needs the package open_spiel; `{install_command('spiel')}`") from None
    module, _, short = name.partition("(")[0].rpartition(":")
    if module:
        user_modules.import_module(module, f"{module}:{short}", "--env game:spiel", ALLOWED)
    known = pyspiel.registered_names()
    if short not in known:
        raise UserError(f"game:spiel:{name}: OpenSpiel has no {short}{closest_names(short, known)}")
    with refusals_of(name):
        game = pyspiel.load_game(name.removeprefix(f"{module}:"))
        if reason := _unfit(pyspiel.GameType, game):
            raise UserError(f"game:spiel:{name}: {reason}; allowed: two players in turn, no chance, nothing hidden")
        if reason := _unplayable(game):
            raise UserError(f"game:spiel:{name}: {reason}; give it other parameters")
    return game


@contextmanager
def refusals_of(name: str) -> Iterator[None]:
    """Turn exceptions of OpenSpiel into UserErrors of one line, without OpenSpiel's output to stderr."""
    try:
        with _stderr_held():
            yield
    except (RuntimeError, ValueError, IndexError, OverflowError, MemoryError) as e:  # SpielError is a RuntimeError
        words = re.sub(r"^\S*/", "", " ".join(str(e).split()))
        raise UserError(f"game:spiel:{name}: OpenSpiel says: {words}") from None


@contextmanager
def _stderr_held() -> Iterator[None]:
    """Hold back output to stderr, and print it at the end. If an exception was raised, drop it."""
    with _stderr_alone, tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        held.seek(0)
        os.write(2, held.read())


def _unfit(kinds: Any, game: Any) -> str:
    """Return the reason why a game can't be searched, or "" if the game can be searched."""
    kind, n, actions = game.get_type(), game.num_players(), game.num_distinct_actions()
    wrong = {
        "its players move simultaneously": kind.dynamics != kinds.Dynamics.SEQUENTIAL,
        "it has chance": kind.chance_mode != kinds.ChanceMode.DETERMINISTIC,
        "it hides information from its players": kind.information != kinds.Information.PERFECT_INFORMATION,
        f"it has {n} player{'s' * (n != 1)}": n != 2,
        "it is not zero-sum": kind.utility != kinds.Utility.ZERO_SUM,
        f"it has {actions:,} actions, more than {MOST_ACTIONS:,}": actions > MOST_ACTIONS,
        "it has no observation tensor": not kind.provides_observation_tensor,
    }
    return next((why for why in wrong if wrong[why]), "")


def _unplayable(game: Any) -> str:
    """Return the reason why a game can't be played, or "" if the game can be played."""
    if min(game.num_distinct_actions(), *game.observation_tensor_shape()) < 1:  # OpenSpiel may crash if asked for moves
        return "its board has no cells"
    begin = game.new_initial_state()
    goes_on = game.max_game_length() > 0 and not begin.is_terminal() and begin.legal_actions()
    return "" if goes_on else "it is over before the first move"


def planes_of(shape: list[int]) -> tuple[int, int, int]:
    """Return the shape of an observation tensor as (planes, rows, columns)."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 1:
        return shape[0], 1, 1
    planes, cells = shape[0], math.prod(shape[1:])
    side = math.isqrt(cells)
    return (planes, side, side) if side * side == cells else (planes, cells, 1)


def observer_of(game: Any) -> Callable[[Any, int, np.ndarray], None]:
    """Return a function of (state, player, out) that writes the player's observation tensor into `out`."""
    from open_spiel.python.observation import make_observation

    made, alone = make_observation(game), threading.Lock()  # a lock, because all threads share one tensor

    def observe(state: Any, player: int, out: np.ndarray) -> None:
        with alone:
            made.set_from(state, player)
            out[:] = made.tensor

    return observe
