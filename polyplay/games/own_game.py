"""Board games that you define in a module, in plain Python or compiled with Numba, and play as `game:module:Game`.

The search and the environment pool are compiled code. They call the methods `legal`, `play` and `write_planes` of a
game through memory addresses (board_rules.call_rules). A Python method is called through ctypes, which takes Python's
lock (GIL) at each call. A compiled method is called as a C function, without the GIL. An address is valid in one
process only. Processes therefore send each other only the name of a game, and each process imports the game.
"""

from __future__ import annotations

import ctypes
import math
import time
import traceback
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from polyplay.core import user_modules
from polyplay.core.errors import UserError
from polyplay.envs.pool import need
from polyplay.games import boards
from polyplay.games.board_rules import LEGAL, NO_RESULT, PLANES, PLAY, WRONG, failure, write_legal
from polyplay.games.boards import Symmetry, board_symmetries
from polyplay.games.records import CELLS, DRAWN, GOES_ON, LOST, OWN_GAME, PLIES, WON, mover

__all__ = ["DRAWN", "GOES_ON", "LOST", "WON", "GameRules", "board_symmetries"]  # names that a user's game imports
ALLOWED = "game:module:Class, a class that inherits polyplay.games.own_game.GameRules"
SHOWN = 10_000  # number of newest positions that `OwnGame.records` can find by their planes
GAMES, SECONDS = 4, 2.0  # most random games, and most seconds, of `check_rules`
LIMITS = {"actions": 2**15 - 1, "longest": PLIES**2 - 1, "size": 2**20}
METHODS = {LEGAL: "legal", PLAY: "play", PLANES: "write_planes"}
Function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class GameRules(ABC):
    """Base class for your own board game, in which two players move in turn, without chance or hidden information.

    A position is an array int8 [size] that holds everything that decides how the game continues. Methods must not keep
    data from one call to the next, because several threads may call them. The methods `legal`, `play` and
    `write_planes` may be static methods with the decorator `numba.njit`, which makes them fast.
    """

    actions: int  # number of actions
    planes: tuple[int, int, int]  # shape of the network's input: planes, rows, columns
    longest: int  # most moves of a game; a game that reaches this number is drawn
    size: int  # number of int8 values in a position
    symmetries: Sequence[Symmetry] = ()  # (cells, actions): cell i moves to cells[i], action i to actions[i]
    title = ""  # name for people; "": the name of the class
    goal = ""  # text for people: how to win
    slanted = False  # whether each row lies half a cell further right than the one above

    def start(self) -> np.ndarray:
        """Return the initial position, by default all zeros."""
        return np.zeros(self.size, np.int8)

    @abstractmethod
    def legal(self, position: np.ndarray) -> Sequence[int] | np.ndarray:
        """Return the legal actions, at least one. If a player may be unable to move, define a pass action."""

    @abstractmethod
    def play(self, position: np.ndarray, action: int) -> int:
        """Apply a legal action. Return the result for the player who moved: GOES_ON, WON, DRAWN or LOST."""

    @abstractmethod
    def write_planes(self, position: np.ndarray, out: np.ndarray) -> None:
        """Write the network's input, as the player to move sees it, into `out`, float32 [planes, rows, columns]. `out`
        contains zeros.
        """

    def stones(self, position: np.ndarray) -> np.ndarray | None:
        """Return the content of each cell, int8 [rows · columns]: 0 if empty, 1 for a stone of the first player, 2 for
        a stone of the second player. Return None if action i does not stand for a move at cell i. Such a game can be
        shown only in a terminal.
        """
        return None

    def move_name(self, action: int) -> str:
        """Return the name of an action. If it is "", the action is called by its cell, or by its number if `stones`
        returns None.
        """
        return ""

    def draw(self, position: np.ndarray) -> str:
        """Return the board as text. By default (""), the text shows the stones, or the position's numbers."""
        return ""


@cache
def load(name: str) -> GameRules:
    """Return the rules of a game called module:Class or spiel:NAME. Raises UserError if the rules can't be loaded."""
    if name.startswith("spiel:"):
        from polyplay.games.open_spiel import SpielGame

        return SpielGame(name.removeprefix("spiel:"))
    module, _, attribute = name.partition(":")
    text = f"game:{name}: worker processes can't import a class of the program itself; move it into a separate file"
    need(module != "__main__", text)
    found = user_modules.import_module(module, name, "--env game", ALLOWED)
    try:
        made = user_modules.look_up(found, attribute)
    except AttributeError as e:
        raise UserError(f"--env game:{name}: {e}; allowed: {ALLOWED}") from None
    own = isinstance(made, type) and issubclass(made, GameRules)
    need(own, f"--env game:{name}: {attribute} is not a class of rules; allowed: {ALLOWED}")
    try:
        rules: GameRules = made()
    except Exception as e:
        raise UserError(f"game:{name}: {attribute}() raised {said(e)}") from e
    _check_declared(name, rules)
    return rules


def _check_declared(name: str, rules: GameRules) -> None:
    for what, most in LIMITS.items():
        value = getattr(rules, what, None)
        whole = isinstance(value, int) and 1 <= value <= most
        need(whole, f"game:{name}: {what} is {value!r}; it must be a whole number from 1 to {most:,}")
    planes = getattr(rules, "planes", None)
    three = isinstance(planes, tuple) and len(planes) == 3 and all(isinstance(n, int) and n > 0 for n in planes)
    need(three, f"game:{name}: planes is {planes!r}; it must be (planes, rows, columns)")
    numbers = math.prod(rules.planes[1:]), rules.actions
    for i, images in enumerate(rules.symmetries):
        fits = all(np.array_equal(np.sort(x), np.arange(n)) for x, n in zip(images, numbers, strict=True))
        text = f"symmetries[{i}] must be two permutations, of {numbers[0]} cells and of {numbers[1]} actions"
        need(fits, f"game:{name}: {text}")


def said(e: BaseException) -> str:
    """Return one line about an exception of the user's code: its type, its text, and the place where it was raised."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith((user_modules.OURS, "<"))]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}{where}"


# ---------------------------------------------------------------------------- functions that compiled code calls


@cache
def _kind(shape: tuple[int, ...], kind: Any) -> Any:
    return ctypes.c_char * (math.prod(shape) * np.dtype(kind).itemsize)


def _view(address: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Return an array that uses the memory at `address`. Python code uses this in place of numba.carray."""
    return np.ndarray(shape, kind, _kind(shape, kind).from_address(address))


def _calls(rules: GameRules, view: Callable[..., Any]) -> dict[int, Callable[..., Any]]:
    """Return the functions that compiled code calls by address. `view` makes an array from an address."""
    size, actions, planes = (rules.size,), (rules.actions,), rules.planes
    legal, play, write_planes = rules.legal, rules.play, rules.write_planes

    def call_legal(position: Any, out: Any) -> Any:
        found = np.asarray(legal(view(position, size, np.int8)), np.int64)
        return write_legal(found, view(out, actions, np.int16))

    def call_play(position: Any, action: Any) -> Any:
        result = play(view(position, size, np.int8), action)
        return result if GOES_ON <= result <= LOST else NO_RESULT

    def call_planes(position: Any, out: Any) -> Any:
        write_planes(view(position, size, np.int8), view(out, planes, np.float32))
        return 0

    return {LEGAL: call_legal, PLAY: call_play, PLANES: call_planes}


class Calls:
    """Rules of a game in this process, with the memory addresses of the rules' methods for compiled code."""

    def __init__(self, name: str):
        self.name, self.rules = name, load(name)
        self.shown = OrderedDict[bytes, bytes]()  # newest records by the planes that show them
        python, compiled = _calls(self.rules, _view), _calls(self.rules, carray)
        methods: Any = self.rules.legal, self.rules.play, self.rules.write_planes
        by_numba = {n: isinstance(method, Dispatcher) for n, method in zip(METHODS, methods, strict=True)}
        self.slow = [METHODS[n] for n, own in by_numba.items() if not own]  # names of methods that are not compiled
        self.held = list[Any]()  # keeps the functions that compiled code calls alive
        addresses = [self._compile(n, compiled[n]) if own else self._guard(n, python[n]) for n, own in by_numba.items()]
        addresses.append(self._address(self._note))
        self.numbers = np.array([OWN_GAME, *self.rules.planes[1:], *addresses, self.rules.longest], np.int64)

    def _address(self, function: Callable[..., None]) -> int:
        self.held.append(Function(function))
        return ctypes.cast(self.held[-1], ctypes.c_void_p).value or 0

    def _compile(self, n: int, call: Callable[..., Any]) -> int:
        kinds = {LEGAL: types.CPointer(types.int16), PLAY: types.int64, PLANES: types.CPointer(types.float32)}
        compiled = njit(call)

        def answering(position: Any, word: Any, answer: Any) -> None:
            carray(answer, (1,), np.int64)[0] = compiled(position, word)

        try:
            made = cfunc(types.void(types.CPointer(types.int8), kinds[n], types.CPointer(types.int64)))(answering)
        except NumbaError as e:
            raise UserError(f"game:{self.name}: {METHODS[n]} can't be compiled: {said(e)}") from e
        self.held.append(made)
        return int(made.address or 0)

    def _guard(self, n: int, call: Callable[..., Any]) -> int:
        """Return the address of a function that runs `call` and stores its exceptions in `failure`."""

        def guarded(position: int, word: int, answer: int) -> None:
            try:
                ctypes.c_int64.from_address(answer).value = call(position, word)
            except BaseException as e:
                failure.raised = f"raised {said(e)}"

        return self._address(guarded)

    def _note(self, n: int, answer: int, _: int) -> None:
        """Write an error message about result `answer` of method `n` (see METHODS) into `failure`."""
        failure.text, failure.raised = f"game:{self.name}: {METHODS[n]} {failure.raised or WRONG[answer]}", ""


@cache
def calls_of(name: str) -> Calls:
    """Return the Calls of a game, the same object at every call. Raises UserError if the rules are unusable."""
    return Calls(name)


def keep_newest(known: OrderedDict[bytes, Any], key: bytes, value: Any, most: int) -> None:
    """Set `known[key]`, and make this entry the newest. If there are more than `most` entries, drop the oldest."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


@dataclass(frozen=True)
class OwnGame(boards.Game):
    """Board game by a user's rules (name module:Class) or by OpenSpiel's rules (name spiel:NAME)."""

    binary = False
    calls = property(lambda self: calls_of(self.name))
    rules = property(lambda self: self.calls.rules)
    numbers = property(lambda self: self.calls.numbers)
    actions = property(lambda self: self.rules.actions)
    longest = property(lambda self: self.rules.longest)
    planes = property(lambda self: self.rules.planes)
    record = property(lambda self: CELLS + self.rules.size)
    slanted = property(lambda self: self.rules.slanted)
    goal = property(lambda self: self.rules.goal)
    title = property(lambda self: self.rules.title or self.name.rpartition(":")[2])
    placed = property(lambda self: self.rules.stones(self.rules.start()) is not None)

    @classmethod
    def of(cls, name: str) -> OwnGame:
        """Load the game called `name`. Raises UserError if the rules can't be loaded."""
        return cls(name, *calls_of(name).rules.planes[1:])

    @property
    def how(self) -> str:
        if not (slow := self.calls.slow):
            return ""
        return f"{', '.join(slow)} of {self.name}: Python, one call at a time in a process (GIL); numba.njit avoids it"

    @cached_property
    def symmetries(self) -> tuple[Symmetry, ...]:
        return ((np.arange(self.cells), np.arange(self.actions)), *self.rules.symmetries)

    def verify(self) -> None:
        if ":" in self.name.removeprefix("spiel:"):  # games that are part of OpenSpiel need no check
            check_rules(self.name)

    def new(self) -> np.ndarray:
        record = np.zeros(self.record, np.int8)
        record[CELLS:] = self.rules.start()
        return record

    def remember(self, records: np.ndarray, planes: np.ndarray, at: np.ndarray, over: np.ndarray) -> None:
        start = self.new()
        for i in at:
            keep_newest(self.calls.shown, planes[i].tobytes(), (start if over[i] else records[i]).tobytes(), SHOWN)

    def records(self, planes: np.ndarray) -> np.ndarray:
        """Find the positions that `planes` show, among those that `remember` stored. Raises ValueError if a position is
        not among them. If the game was over, the result is the initial position.
        """
        found = [self.calls.shown.get(shown.tobytes()) for shown in np.ascontiguousarray(planes, np.float32)]
        if None in found:
            raise ValueError(f"game:{self.name}: a position that was not shown before can't be searched")
        return np.frombuffer(b"".join(found), np.int8).reshape(-1, self.record).copy()

    def stones(self, record: np.ndarray) -> np.ndarray:
        found = self.rules.stones(record[CELLS:])
        return np.zeros(self.cells, np.int8) if found is None else np.asarray(found, np.int8)

    def move_name(self, action: int) -> str:
        """Return the name that the rules give to an action. If they give none, return the action's cell or number."""
        cell = self.placed and action < self.cells
        return self.rules.move_name(int(action)) or (super().move_name(action) if cell else str(action))

    def draw(self, record: np.ndarray) -> str:
        position = record[CELLS:]
        return self.rules.draw(position) or (super().draw(record) if self.placed else " ".join(map(str, position)))

    def line(self, record: np.ndarray) -> str:
        """Return one line of text: the board and the player to move."""
        board = " / ".join(self.draw(record).strip().splitlines())
        return f"{board}, {'first' if mover(record) == 0 else 'second'} player to move"


# ------------------------------------------------------------------------------- checks by random games


@dataclass
class RandomGame:
    """Checks rules by playing a random game. Compiled methods run as Python, so a wrong array index raises an error."""

    name: str
    rules: GameRules
    moves: int = 0  # number of moves made in this game

    def need(self, good: bool, text: str) -> None:
        need(good, f"game:{self.name}: after {self.moves} moves {text}")

    def ask(self, method: str, *given: Any) -> Any:
        """Call a method of the rules. Raises UserError if the method raises an exception."""
        own = getattr(self.rules, method)
        try:
            return (own.py_func if isinstance(own, Dispatcher) else own)(*given)
        except Exception as e:
            fix = f"; out is float32 {list(self.rules.planes)}" if method == "write_planes" else ""
            raise UserError(f"game:{self.name}: after {self.moves} moves {method} raised {said(e)}{fix}") from e

    def begin(self) -> np.ndarray:
        self.moves = 0
        found, size = self.ask("start"), self.rules.size
        fits = isinstance(found, np.ndarray) and (found.dtype, found.shape) == (np.int8, (size,))
        self.need(fits, f"start() must return int8 [{size}], as `size` says, got {_described(found)}")
        return found.copy()

    def look(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a position's legal actions, ascending, and its planes. Raises UserError if either is wrong."""
        kept, planes, most = position.copy(), np.zeros(self.rules.planes, np.float32), self.rules.actions
        given = self.ask("legal", position)
        self.ask("write_planes", position, planes)
        found = np.asarray(given)
        self.need(
            found.size > 0, "legal is empty before the game is over: let play return WON, LOST or DRAWN, or add a pass"
        )
        self.need(
            found.ndim == 1 and found.dtype.kind in "iu",
            f"legal must return whole numbers [n], got {_described(given)}",
        )
        beyond = found[(found < 0) | (found >= most)]
        self.need(not beyond.size, f"legal names the action {beyond[:1].sum()}; `actions` allows 0 to {most - 1}")
        self.need(len(np.unique(found)) == found.size, f"legal names an action twice: {np.sort(found).tolist()}")
        self.need(bool(np.isfinite(planes).all()), "write_planes wrote NaN or infinity; networks take finite numbers")
        self.need(np.array_equal(kept, position), "legal or write_planes changed the position; only play may")
        return np.sort(found), planes

    def play(self, position: np.ndarray, action: int) -> int:
        result = self.ask("play", position, action)
        known = isinstance(result, int | np.integer) and int(result) in range(LOST + 1)
        self.need(known, f"play({action}) returned {result!r}; allowed: GOES_ON, WON, DRAWN, LOST")
        self.moves += 1
        return int(result)

    def game(self, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray, int, int]]:
        """Play random moves. Return (legal actions and planes before the move, action, result) for each move."""
        position, result, found = self.begin(), GOES_ON, []
        while result == GOES_ON and self.moves < self.rules.longest:
            legal, planes = self.look(position)
            action = int(rng.choice(legal))
            result = self.play(position, action)
            found.append((legal, planes, action, result))
        return found

    def mirror(self, game: list[tuple[np.ndarray, np.ndarray, int, int]], which: int) -> None:
        """Replay a game mirrored by symmetry `which`. Raises UserError if the mirrored game goes differently."""
        (cells, actions), position = self.rules.symmetries[which], self.begin()
        for legal, planes, action, result in game:
            seen, shown = self.look(position)
            turned = np.empty_like(planes.reshape(len(planes), -1))
            turned[:, cells] = planes.reshape(len(planes), -1)
            same = np.array_equal(shown.reshape(turned.shape), turned) and set(seen) == set(np.asarray(actions)[legal])
            text = (
                f"symmetries[{which}] does not hold: the mirrored game has other planes or legal actions; leave it out"
            )
            self.need(same, text)
            again = self.play(position, int(actions[action]))
            self.need(
                again == result, f"symmetries[{which}] does not hold: the mirrored game ends differently; leave it out"
            )


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


@cache
def check_rules(name: str) -> None:
    """Check the rules of a game: play random games, and replay the last one under each symmetry. Raises UserError if a
    rule is broken.
    """
    rules = load(name)
    trial, rng, until = RandomGame(name, rules), np.random.default_rng(0), time.monotonic() + SECONDS
    for _ in range(GAMES):
        game = trial.game(rng)
        if time.monotonic() > until:
            break
    for which in range(len(rules.symmetries)):
        trial.mirror(game, which)
