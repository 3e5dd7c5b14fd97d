"""The commands of the Go Text Protocol, version 2, and of its analyzing extensions, for an agent that searches."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from polyplay.acting.match import GIVES_UP
from polyplay.acting.resignation import NEVER
from polyplay.acting.search.policy import SearchPolicy
from polyplay.acting.search.search import Search
from polyplay.cli.play.gtp.analysis import KATA, LEELA, Form, analysis_line
from polyplay.cli.play.gtp.board import BLACK, WHITE, GtpBoard, GtpError
from polyplay.cli.play.gtp.choice import move_or_pass, outlook
from polyplay.cli.play.gtp.clock import Clock
from polyplay.cli.play.gtp.sgf import read_game, sgf_of_game
from polyplay.cli.play.session import leaves_of
from polyplay.envs.boards.game import KO, Go

ANALYSED = 10_000  # simulations of an analysis
COLOURS = {"b": BLACK, "black": BLACK, "w": WHITE, "white": WHITE}
STATUS = ("alive", "dead", "seki")
ENDLESS = ("lz-analyze", "kata-analyze")  # they end with the next line
VALUES = {"avoid": 3, "allow": 3}  # of an analysis' options that change nothing here; all others have one
DIGITS = 9  # of a number, at most
WARM = 4  # steps of a search before the first answer


class GtpEngine:
    """Answers commands, one line after another. `simulations`: of a search, where there is no time limit. `resign`: it
    gives up where the root's value and its best child's are both below it.
    """

    def __init__(self, policy: SearchPolicy, simulations: int, version: str, resign: float = NEVER):
        assert isinstance(policy.board, Go)
        self.policy, self.simulations, self.version, self.resign = policy, simulations, version, resign
        self.game, self.clock, self.left = GtpBoard(policy.board), Clock(), dict[int, tuple[float, int]]()
        self.over = False
        self.endless = False  # whether the answer in progress goes on until nobody asks for its next piece
        self.commands: dict[str, Callable[[list[str]], str | Iterator[str]]] = {
            name.removeprefix("do_").replace("__", "-"): getattr(self, name)
            for name in sorted(vars(type(self)))
            if name.startswith("do_")
        }

    def answer(self, line: str) -> Iterator[str]:
        """Pieces of the answer to a line; none to a line without a command. An analysis goes on until nobody asks for
        the next piece, and who stopped asking ends it by an empty line.
        """
        words = "".join(c if c.isprintable() else " " if c == "\t" else "" for c in line.partition("#")[0]).split()
        number = words.pop(0) if words and words[0].isdecimal() else ""
        if not words:
            return
        self.endless = words[0] in ENDLESS
        try:
            if words[0] not in self.commands:
                raise GtpError("unknown command")
            found = self.commands[words[0]](words[1:])
        except GtpError as e:
            yield f"?{number} {e}\n\n"
            return
        if isinstance(found, str):
            yield f"={number} {found}".rstrip() + "\n\n"
            return
        yield f"={number}\n"
        yield from found

    def warm(self) -> None:
        """Search a little, so that nothing is compiled or made while the clock of a move runs."""
        for search in itertools.islice(self._think(BLACK), WARM):
            analysis_line(search, self.game.name, KATA)
            move_or_pass(self.game, BLACK, search, search.look(np.array([0])))
        game = GtpBoard(self.game.board)
        game.play(WHITE, 0)
        game.owners()

    # --------------------------------------------------------------------------------------- what it is

    def do_protocol_version(self, words: list[str]) -> str:
        return "2"

    def do_name(self, words: list[str]) -> str:
        return "Polyplay"

    def do_version(self, words: list[str]) -> str:
        return self.version

    def do_known_command(self, words: list[str]) -> str:
        return "true" if words and words[0] in self.commands else "false"

    def do_list_commands(self, words: list[str]) -> str:
        return "\n".join(self.commands)

    def do_quit(self, words: list[str]) -> str:
        self.over = True
        return ""

    # ------------------------------------------------------------------------------------- what is played

    def do_boardsize(self, words: list[str]) -> str:
        if _integer(words) != self.game.size:
            raise GtpError("unacceptable size")  # its network knows one
        return self.do_clear_board([])

    def do_clear_board(self, words: list[str]) -> str:
        self.game.clear()
        self.left.clear()
        return ""

    def do_komi(self, words: list[str]) -> str:
        self.game.set_komi(_number(words))
        self.policy.use(self.game.board)
        return ""

    def do_play(self, words: list[str]) -> str:
        if len(words) < 2:
            raise GtpError("syntax error")
        self.game.play(_colour(words[0]), self.game.vertex(words[1]))
        return ""

    def do_undo(self, words: list[str]) -> str:
        self.game.undo()
        return ""

    def do_fixed_handicap(self, words: list[str]) -> str:
        cells = self.game.handicap(_integer(words))
        self.game.set_handicap(cells)
        return " ".join(map(self.game.name, cells))

    def do_place_free_handicap(self, words: list[str]) -> str:
        stones = _integer(words)
        if stones < 2:
            raise GtpError("invalid number of stones")
        most = max((n for n in range(2, min(stones, 9) + 1) if self._has_handicap(n)), default=0)
        if not most:
            raise GtpError("invalid number of stones")
        return self.do_fixed_handicap([str(most)])

    def _has_handicap(self, stones: int) -> bool:
        try:
            return bool(self.game.handicap(stones))
        except GtpError:
            return False

    def do_set_free_handicap(self, words: list[str]) -> str:
        cells = [self.game.vertex(word) for word in words]
        if self.game.board.cells in cells:
            raise GtpError("bad vertex list")
        self.game.set_handicap(cells)
        return ""

    def do_loadsgf(self, words: list[str]) -> str:
        if not words:
            raise GtpError("syntax error")
        *before, last = words
        until = _integer([last]) if before and last.isdecimal() else None
        path = " ".join(words if until is None else before)
        try:
            found = read_game(path, self.game.size, until)
            self.game = found.on_board(GtpBoard(self.game.board))
        except GtpError as e:
            raise GtpError(f"cannot load file: {e}") from None
        if found.komi_unread:
            print(f"{path}: {found.komi_unread} is no komi; it stays {self.game.komi:g}", file=sys.stderr)
        self.policy.use(self.game.board)
        return ""

    def do_printsgf(self, words: list[str]) -> str:
        """The game, or nothing where it goes into a file of that name, which must not exist."""
        text = sgf_of_game(self.game, self.version)
        if not words:
            return text
        try:
            with Path(" ".join(words)).open("x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as e:
            raise GtpError(f"cannot write file: {e.strerror}") from None
        return ""

    def do_kata__get__rules(self, words: list[str]) -> str:
        board = self.game.board
        rules = {"friendlyPassOk": False, "hasButton": False, "ko": KO[board.ko].upper(), "scoring": "AREA"}
        rules |= {"suicide": board.suicide, "tax": "NONE", "whiteHandicapBonus": "0"}
        return json.dumps(rules, separators=(",", ":"))

    def do_clear_cache(self, words: list[str]) -> str:
        """Nothing to do: every search begins with an empty tree."""
        return ""

    # ------------------------------------------------------------------------------------------- time

    def do_time_settings(self, words: list[str]) -> str:
        if len(words) < 3:
            raise GtpError("syntax error")
        main, byo, stones = _seconds(words[0]), _seconds(words[1]), _integer(words[2:])
        self.clock, self.left = Clock(main, byo, stones, not (byo > 0 and stones == 0)), {}
        return ""

    def do_time_left(self, words: list[str]) -> str:
        if len(words) < 3:
            raise GtpError("syntax error")
        self.left[_colour(words[0])] = _seconds(words[1], late=True), _integer(words[2:])
        return ""

    # ----------------------------------------------------------------------------------- its own moves

    def do_genmove(self, words: list[str]) -> str:
        colour, begun = _colour(words[0] if words else ""), time.monotonic()
        return self._make(colour, self._choose(colour), begun)

    def do_reg_genmove(self, words: list[str]) -> str:
        return self._name(self._choose(_colour(words[0] if words else "")))

    def do_lz__genmove_analyze(self, words: list[str]) -> Iterator[str]:
        return self._analyze_move(words, LEELA)

    def do_kata__genmove_analyze(self, words: list[str]) -> Iterator[str]:
        return self._analyze_move(words, KATA)

    def _choose(self, colour: int) -> int:
        *_, search = self._think(colour)
        return self._decide(colour, search)

    def _think(self, colour: int) -> Iterator[Search]:
        """The search for a move, after each of its steps, until it is done or its time is over."""
        seconds = self.clock.per_move(self.left.get(colour))
        until = math.inf if seconds is None else time.monotonic() + seconds
        self._simulate(self.simulations)
        for search in self.policy.grow(self.game.position(colour)[None]):
            yield search
            if time.monotonic() >= until:
                return

    def _decide(self, colour: int, search: Search) -> int:
        """Its move, or GIVES_UP: not before its first move, nor instead of the pass that ends the game."""
        found = search.look(np.array([0]))
        action = move_or_pass(self.game, colour, search, found)
        ends = action == self.game.board.cells and self.game.passed(3 - colour)
        begun = any(mover == colour for mover, _ in self.game.moves)
        return GIVES_UP if begun and not ends and outlook(found) < self.resign else action

    def _make(self, colour: int, action: int, begun: float) -> str:
        """Make the move; its name. begun: when the clock began to run for it."""
        if action != GIVES_UP:
            self.game.play(colour, action)
        if self.clock.limited:
            self.left[colour] = self.clock.after(self.left.get(colour), time.monotonic() - begun)
        return self._name(action)

    def _name(self, action: int) -> str:
        return "resign" if action == GIVES_UP else self.game.name(action)

    def _analyze_move(self, words: list[str], form: Form) -> Iterator[str]:
        colour, every = self._asked(words)
        return self._lines_of_move(colour, every, form)

    def _lines_of_move(self, colour: int, every: float, form: Form) -> Iterator[str]:
        """A line whenever the interval is over and at the end, then the move."""
        begun = shown = time.monotonic()
        for search in self._think(colour):
            if time.monotonic() >= shown + every:
                shown = time.monotonic()
                yield analysis_line(search, self.game.name, form)
        yield analysis_line(search, self.game.name, form)
        yield f"play {self._make(colour, self._decide(colour, search), begun)}\n\n"

    def _simulate(self, simulations: int) -> None:
        if (self.policy.simulations, self.policy.options.leaves) != (simulations, leaves_of(simulations)):
            self.policy.simulate(simulations, leaves_of(simulations))

    # ------------------------------------------------------------------------------------- how it stands

    def do_final_score(self, words: list[str]) -> str:
        lead = self.game.lead()
        return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{abs(lead):g}"

    def do_final_status_list(self, words: list[str]) -> str:
        """All stones are alive: the board is scored as it stands."""
        if not words or words[0] not in STATUS:
            raise GtpError("syntax error")
        cells = np.flatnonzero(self.game.stones()).tolist() if words[0] == "alive" else []
        return "\n".join(map(self.game.name, cells))

    def do_showboard(self, words: list[str]) -> str:
        return "\n" + self.game.drawing()

    # ------------------------------------------------------------------------------------- analysis

    def do_lz__analyze(self, words: list[str]) -> Iterator[str]:
        return self._lines(*self._asked(words), LEELA)

    def do_kata__analyze(self, words: list[str]) -> Iterator[str]:
        return self._lines(*self._asked(words), KATA)

    def _asked(self, words: list[str]) -> tuple[int, float]:
        """The color and the seconds between two lines that the words of an analysis name. Raises GtpError."""
        colour, every, rest = self.game.to_move, 50, [word.lower() for word in words]
        while rest:
            word = rest.pop(0)
            if word in COLOURS:
                colour = COLOURS[word]
            elif word == "interval":
                every = _integer(rest[:1])
                del rest[0]
            elif word.isdecimal():
                every = _integer([word])
            else:
                del rest[: VALUES.get(word, 1)]
        return colour, max(every, 5) / 100

    def _lines(self, colour: int, every: float, form: Form) -> Iterator[str]:
        """A line whenever the interval is over, and an empty piece in between; without end."""
        record, name = self.game.position(colour), self.game.name
        self._simulate(ANALYSED)
        shown, line = time.monotonic(), ""
        for search in self.policy.grow(record[None]):
            if time.monotonic() < shown + every:
                yield ""
                continue
            shown, line = time.monotonic(), analysis_line(search, name, form)
            yield line
        while True:
            time.sleep(min(every, 0.05))
            if time.monotonic() >= shown + every:
                shown = time.monotonic()
                yield line or analysis_line(search, name, form)
            else:
                yield ""


def _colour(word: str) -> int:
    if word.lower() not in COLOURS:
        raise GtpError("syntax error" if not word else "invalid color")
    return COLOURS[word.lower()]


def _integer(words: list[str]) -> int:
    if not words or not words[0].isdecimal() or len(words[0]) > DIGITS:
        raise GtpError("syntax error")
    return int(words[0])


def _number(words: list[str], most: float = 1e6) -> float:
    try:
        found = float(words[0])
    except (ValueError, IndexError):
        raise GtpError("syntax error") from None
    if "_" in words[0] or not abs(found) < most:
        raise GtpError("syntax error")
    return found


def _seconds(word: str, late: bool = False) -> float:
    """late: a negative time is none left. Raises GtpError."""
    found = _number([word], 10.0**DIGITS)
    if found < 0 and not late:
        raise GtpError("syntax error")
    return max(found, 0.0)
