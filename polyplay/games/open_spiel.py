"""OpenSpiel's games as board games: `game:spiel:hex(board_size=5)`.

Every game is there that two players play in turn without chance or hidden information. Where OpenSpiel lets a player
move again, the other one has to pass. A game that reaches LONGEST moves is drawn.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from polyplay.core.errors import UserError
from polyplay.envs.pool import closest_names
from polyplay.games import board_rules
from polyplay.games.boards import Game, Symmetry
from polyplay.games.records import CELLS, DRAWN, GOES_ON, LOST, SPIEL, WON, mover, ply

MOST_ACTIONS = 2**15 - 2  # int16 holds them and the pass
LONGEST = 512  # moves, passes included
STATES = 20_000  # that are known
SHOWN = 10_000  # positions that can be found by their planes
HEX = "Blue connects top and bottom, Orange left and right."
PLACED = ("gomoku", "havannah", "hex", "mnk", "tic_tac_toe", "y")
_stderr_alone = threading.Lock()  # it is the process's: two threads that change it would restore each other's
Function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def keep_newest(known: OrderedDict[bytes, Any], key: bytes, value: Any, most: int) -> None:
    """Add a value to those that are known, of which the newest stay; one that is added again is new."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


class SpielRules:
    """A game of OpenSpiel, asked by moves so far: `moves` are an address of int16 [n]."""

    def __init__(self, name: str):
        self.game = load_game(name)
        with refusals_of(name):
            begin = self.game.new_initial_state()
            self.shape = planes_of(self.game.observation_tensor_shape())
            self.observer = observer_of(self.game)
            self.observer(begin, begin.current_player(), np.empty(math.prod(self.shape), np.float32))
        self.first, self.actions = begin.current_player(), self.game.num_distinct_actions()
        self.longest = min(2 * self.game.max_game_length(), LONGEST)
        self.states = OrderedDict[bytes, Any]({b"": begin})  # by the moves to there
        self.shown = OrderedDict[bytes, bytes]()  # these moves, by what the mover sees
        self.functions = [_answering(f) for f in (self._legal, self._play, self._planes)]  # held: they are called

    def state(self, moves: bytes) -> Any:
        """After moves, int16 [n]."""
        found = self.states.get(moves)
        if found is None:
            found = self.game.new_initial_state()
            for action in np.frombuffer(moves, np.int16).tolist():
                if action < self.actions:
                    found.apply_action(action)
        keep_newest(self.states, moves, found, STATES)
        return found

    def _legal(self, moves: int, n: int, out: int) -> int:
        actions = self.state(ctypes.string_at(moves, 2 * n)).legal_actions()
        (ctypes.c_int16 * len(actions)).from_address(out)[:] = actions
        return len(actions)

    def _play(self, moves: int, n: int, action: int) -> int:
        before = ctypes.string_at(moves, 2 * n)
        after = self.state(before)
        if action < self.actions:
            after = after.clone()
            after.apply_action(action)
        keep_newest(self.states, before + action.to_bytes(2, "little"), after, STATES)
        if after.is_terminal():
            points = after.returns()[self._player(n % 2)]
            return WON if points > 0 else LOST if points < 0 else DRAWN
        if n + 1 >= self.longest:
            return DRAWN
        return GOES_ON + board_rules.MUST_PASS * (after.current_player() != self._player((n + 1) % 2))

    def _planes(self, moves: int, n: int, out: int) -> int:
        who, n = divmod(n, board_rules.MOVER)
        history = ctypes.string_at(moves, 2 * n)
        size = math.prod(self.shape)
        shown = np.frombuffer(memoryview((ctypes.c_float * size).from_address(out)), np.float32)
        self.observer(self.state(history), self._player(who), shown)
        keep_newest(self.shown, shown.tobytes() + bytes([who]), history, SHOWN)
        return 0

    def _player(self, who: int) -> int:
        """OpenSpiel's number of the first player (0) or the second."""
        return (self.first + who) % 2


def _answering(function: Callable[[int, int, int], int]) -> Any:
    """A function that compiled code calls, whose answer is written to an address (board_rules.spiel_ask)."""

    def call(moves: int, n: int, last: int, answer: int) -> None:
        ctypes.c_int64.from_address(answer).value = function(moves, n, last)

    return Function(call)


@cache
def spiel_rules(name: str) -> SpielRules:
    """The process's, for all who ask. Raises UserError."""
    return SpielRules(name)


def load_game(name: str) -> Any:
    """OpenSpiel's game of that name, with parameters: hex(board_size=5). Raises UserError."""
    try:
        import pyspiel
    except ImportError:
        raise UserError(f"game:spiel:{name}: needs the package open_spiel; `pip install 'polyplay[spiel]'`") from None
    known, short = pyspiel.registered_names(), name.partition("(")[0]
    if short not in known:
        raise UserError(f"game:spiel:{name} given, but OpenSpiel has no {short}{closest_names(short, known)}")
    with refusals_of(name):
        game = pyspiel.load_game(name)
        if reason := _unfit(pyspiel.GameType, game):
            raise UserError(f"game:spiel:{name}: {reason}; allowed: two players in turn, no chance, nothing hidden")
        if reason := _unplayable(game):
            raise UserError(f"game:spiel:{name}: {reason}; give it other parameters")
    return game


@contextmanager
def refusals_of(name: str) -> Iterator[None]:
    """What OpenSpiel raises meanwhile becomes a UserError of one line, and what it prints of it is left out."""
    try:
        with _stderr_held():
            yield
    except (RuntimeError, ValueError, IndexError, OverflowError, MemoryError) as e:  # SpielError is a RuntimeError
        words = re.sub(r"^\S*/", "", " ".join(str(e).split()))
        raise UserError(f"game:spiel:{name}: OpenSpiel says: {words}") from None


@contextmanager
def _stderr_held() -> Iterator[None]:
    """What is written to the process's stderr meanwhile is printed at the end, unless there is an exception."""
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
    """Why a game is none for a search; empty: it is one."""
    kind, n, actions = game.get_type(), game.num_players(), game.num_distinct_actions()
    wrong = {
        "its players move at once": kind.dynamics != kinds.Dynamics.SEQUENTIAL,
        "it has chance": kind.chance_mode != kinds.ChanceMode.DETERMINISTIC,
        "it hides information from its players": kind.information != kinds.Information.PERFECT_INFORMATION,
        f"it has {n} player{'s' * (n != 1)}": n != 2,
        "what one player wins the other does not lose": kind.utility != kinds.Utility.ZERO_SUM,
        f"it has {actions:,} actions, more than {MOST_ACTIONS:,}": actions > MOST_ACTIONS,
        "it shows no tensor": not kind.provides_observation_tensor,
    }
    return next((why for why in wrong if wrong[why]), "")


def _unplayable(game: Any) -> str:
    """Why there is nothing to play; empty: there is. Without cells some games crash when they are asked for moves."""
    if min(game.num_distinct_actions(), *game.observation_tensor_shape()) < 1:
        return "its board has no cells"
    begin = game.new_initial_state()
    goes_on = game.max_game_length() > 0 and not begin.is_terminal() and begin.legal_actions()
    return "" if goes_on else "it is over before the first move"


def planes_of(shape: list[int]) -> tuple[int, int, int]:
    """A tensor's shape as planes, rows and columns."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 1:
        return shape[0], 1, 1
    planes, cells = shape[0], math.prod(shape[1:])
    side = math.isqrt(cells)
    return (planes, side, side) if side * side == cells else (planes, cells, 1)


def observer_of(game: Any) -> Callable[[Any, int, np.ndarray], None]:
    """Of (state, player, out): writes the player's tensor."""
    from open_spiel.python.observation import make_observation

    made, alone = make_observation(game), threading.Lock()  # it has one tensor for all threads

    def observe(state: Any, player: int, out: np.ndarray) -> None:
        with alone:
            made.set_from(state, player)
            out[:] = made.tensor

    return observe


@dataclass(frozen=True)
class SpielGame(Game):
    """name: spiel:NAME(PARAMETERS). Its last action is the pass."""

    binary = False
    rules = property(lambda self: spiel_rules(self.name.removeprefix("spiel:")))
    kind = property(lambda self: self.name.removeprefix("spiel:").partition("(")[0])  # its name, without parameters
    actions = property(lambda self: self.rules.actions + 1)
    longest = property(lambda self: self.rules.longest)
    record = property(lambda self: CELLS + 2 * self.longest)
    # whether a move puts a stone on the cell of its number, and stones stay
    placed = property(lambda self: self.kind in PLACED)
    slanted = property(lambda self: self.kind == "hex")
    goal = property(lambda self: HEX if self.kind == "hex" else "By OpenSpiel's rules.")

    @classmethod
    def of(cls, name: str) -> SpielGame:
        """Raises UserError."""
        _, rows, columns = spiel_rules(name.removeprefix("spiel:")).shape
        return cls(name, rows, columns)

    @property
    def numbers(self) -> np.ndarray:
        rules = self.rules
        addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in rules.functions]
        return np.array([SPIEL, self.rows, self.columns, *addresses, rules.actions, rules.longest], np.int64)

    @property
    def planes(self) -> tuple[int, int, int]:
        planes, rows, columns = self.rules.shape
        return planes + 1, rows, columns

    @cached_property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """None but the identity: OpenSpiel does not say which there are."""
        return ((np.arange(self.cells), np.arange(self.actions)),)

    @property
    def title(self) -> str:
        given = self.name.partition("(")[2].rstrip(")")
        words = given.replace(",", ", ").replace("=", " ").replace("_", " ")
        return str(self.rules.game.get_type().long_name) + (f", {words}" if given else "")

    def records(self, planes: np.ndarray) -> np.ndarray:
        """Of positions that this process has shown before; of one where the game is over, its start. Raises ValueError:
        one that it has not shown.
        """
        records = np.zeros((len(planes), self.record), np.int8)
        for record, shown in zip(records, np.ascontiguousarray(planes, np.float32), strict=True):
            history = self.rules.shown.get(shown[:-1].tobytes() + bytes([int(shown[-1, 0, 0] < 0.5)]))
            if history is None:
                raise ValueError(f"game:{self.name}: a position that was not shown before can't be searched")
            moves = np.frombuffer(history, np.int16).tolist()
            over = len(moves) >= self.longest or self.rules.state(history).is_terminal()
            for action in [] if over else moves:
                board_rules.spiel_play(self.numbers, record, action)
        return records

    def stones(self, record: np.ndarray) -> np.ndarray:
        cells = np.zeros(self.cells, np.int8)
        if self.placed:
            for n, action in enumerate(self._history(record)):
                cells[action] = 1 + n % 2
        return cells

    def _history(self, record: np.ndarray) -> list[int]:
        return list(map(int, np.frombuffer(record[CELLS : CELLS + 2 * ply(record)].tobytes(), np.int16)))

    def _state(self, record: np.ndarray) -> Any:
        return self.rules.state(record[CELLS : CELLS + 2 * ply(record)].tobytes())

    def move_name(self, action: int) -> str:
        """The cell, OpenSpiel's name, or the action's number where the name depends on the position."""
        if action == self.rules.actions:
            return "pass"
        if self.placed:
            return super().move_name(action)
        name = str(self.rules.game.action_to_string(self.rules.first, int(action)))
        return str(action) if name.startswith("Action(") else name

    def draw(self, record: np.ndarray) -> str:
        return str(self._state(record))

    def line(self, record: np.ndarray) -> str:
        """Its moves, and who is to move."""
        moves = " ".join(map(self.move_name, self._history(record)))
        return f"{moves or 'the start'}, {'first' if mover(record) == 0 else 'second'} player to move"
