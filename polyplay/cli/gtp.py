"""The commands of the Go Text Protocol, version 2, and of its analyzing extensions, for an agent that searches."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from polyplay.acting.play import GIVES_UP
from polyplay.cli.games import sgf_point, sgf_root, sgf_text
from polyplay.cli.play import legal_moves
from polyplay.cli.play_session import leaves_of
from polyplay.games import board_rules, go, records
from polyplay.games.boards import GO_LETTERS, KO, Go
from polyplay.games.records import NEVER, OWN, PLIES
from polyplay.search.search import Finished, Search, SearchPolicy

BLACK, WHITE = 1, 2
PLACES = ((0, 0), (2, 2), (0, 2), (2, 0), (0, 1), (2, 1), (1, 0), (1, 2))  # of a handicap: column, row; 0 the low one


class GtpError(Exception):
    """What is wrong with a command, in the protocol's words."""


class GtpBoard:
    """A game of Go as GTP has it: stones of any colour in any order, taken back at will, any komi.

    Positions so far, the present one last. A second pass does not end it: the position is as after the first. Nor
    does its length: a record that has used three quarters of its plies forgets the oldest ones, and then superko too.
    """

    def __init__(self, board: Go):
        self.board, self.size = board, board.rows
        self.records, self.moves = [board.new()], list[tuple[int, int]]()  # moves: (colour, action)
        self.told: int | None = None  # the colour to move, where a file names it

    @property
    def record(self) -> np.ndarray:
        return self.records[-1]

    @property
    def to_move(self) -> int:
        """The colour to move: the one that a file names, or else the one that did not move last."""
        return self.told or (3 - self.moves[-1][0] if self.moves else records.mover(self.record) + 1)

    def passed(self, colour: int) -> bool:
        """Whether the last move was a pass of that colour."""
        return self.moves[-1:] == [(colour, self.board.cells)]

    @property
    def komi(self) -> float:
        return self.board.halves / 2

    def set_komi(self, komi: float) -> None:
        """Raises GtpError: neither whole nor half."""
        if abs(komi) > self.board.cells or komi * 2 != int(komi * 2):
            raise GtpError("komi must be whole or half")
        self.board = replace(self.board, halves=int(komi * 2))

    def position(self, colour: int) -> np.ndarray:
        """The record with that colour to move. It forgets the oldest EIGHT plies where it is nearly full: as many as
        that, because the last positions lie in a record by ply % EIGHT.
        """
        record = self.record.copy()
        if records.mover(record) != colour - 1:
            record[OWN] = 0  # so that a pass does not end it
            board_rules.play(self.board.numbers, record, self.board.cells)
            record[OWN] = 0
        if 4 * records.ply(record) >= 3 * self.board.longest:
            hashes = record[self.board.numbers[go.HASHES] :].view(np.uint64)
            hashes[: -go.EIGHT] = hashes[go.EIGHT :]
            record[2], record[1] = divmod(records.ply(record) - go.EIGHT, PLIES)
        return record

    def play(self, colour: int, action: int) -> None:
        """Raises GtpError: an illegal move."""
        record = self.position(colour)
        if action not in legal_moves(self.board, record):
            raise GtpError("illegal move")
        if action == self.board.cells:
            record[OWN] = 0
        board_rules.play(self.board.numbers, record, action)
        self.records.append(record)
        self.moves.append((colour, action))
        self.told = None

    def undo(self) -> None:
        """Raises GtpError: there is no move."""
        if not self.moves:
            raise GtpError("cannot undo")
        self.records.pop()
        self.moves.pop()
        self.told = None

    def lead(self, colour: int = BLACK) -> float:
        """The points by which that colour leads, komi included, on the board as it stands."""
        lead = go.area(self.board.numbers, self.record) - self.komi
        return lead if colour == BLACK else -lead

    def owners(self) -> np.ndarray:
        """int8 [n²]: the colour whose area each cell is; 0: it is empty and reaches stones of both, or none."""
        out = np.empty(self.board.cells, np.int8)
        go.owners(self.board.numbers, self.record, out)
        return out

    def stones(self, position: int = -1) -> np.ndarray:
        """int8 [n²], of the last position; 0: as they were set up before the first move."""
        return self.board.stones(self.records[position])

    def set_up(self, stones: list[tuple[int, int]], to_move: int) -> None:
        """Put (colour, cell) on an empty board. They are no moves: `undo` takes none of them back. Raises GtpError."""
        for colour, cell in stones:
            try:
                self.play(colour, cell)
            except GtpError as e:
                raise GtpError(f"the stone {'-BW'[colour]} {self.name(cell)}: {e}") from None
        self.records, self.moves, self.told = [self.position(to_move)], [], None

    @property
    def most_stones(self) -> int:
        """Of a fixed handicap."""
        return 0 if self.size < 7 else 4 if self.size % 2 == 0 or self.size == 7 else 9

    def handicap(self, stones: int) -> list[int]:
        """The cells of a fixed handicap (the protocol's section 4.1.1). Raises GtpError: not that many."""
        if not 2 <= stones <= self.most_stones:
            raise GtpError("invalid number of stones")
        edge = 3 if self.size >= 13 else 2
        lines = (edge, self.size // 2, self.size - 1 - edge)
        middle = stones in (5, 7, 9)
        places = [*PLACES[: stones - middle], *([(1, 1)] if middle else [])]
        return [lines[2 - row] * self.size + lines[column] for column, row in places]

    def set_handicap(self, cells: list[int]) -> None:
        """Black's stones on an empty board; White is to move. Raises GtpError."""
        if self.moves or self.stones().any():
            raise GtpError("board not empty")
        if len(cells) < 2 or len(set(cells)) < len(cells) or len(cells) >= self.board.cells:
            raise GtpError("bad vertex list")
        self.set_up([(BLACK, cell) for cell in cells], WHITE)

    def vertex(self, word: str) -> int:
        """Raises GtpError."""
        found = self.board.action_of(word)
        if found is None:
            raise GtpError("invalid coordinate")
        return found

    def name(self, action: int) -> str:
        return self.board.move_name(action)

    def drawing(self) -> str:
        """The board with coordinates on all sides."""
        letters = "   " + " ".join(GO_LETTERS[: self.size])
        cells = self.stones().reshape(self.size, self.size)
        rows = [f"{self.size - i:2} {' '.join('.XO'[c] for c in row)} {self.size - i}" for i, row in enumerate(cells)]
        return "\n".join([letters, *rows, letters])


# Games of Go in SGF files: read by the package sgfmill, and written. Imports no torch.


SIDES = {"b": BLACK, "w": WHITE}


def load_sgf(path: str, board: Go, until: int | None = None) -> tuple[GtpBoard, str]:
    """The main line, until before move `until`, and the property that is no komi and leaves the board's own. Raises
    GtpError.
    """
    line, game = _main_line(path, board.rows), GtpBoard(board)
    stones, moves = dict[int, int](), list[tuple[int, int]]()
    told = first = None
    for node in line:
        mover = SIDES.get(node.get_raw_move()[0])
        if mover and until is not None and len(moves) >= max(until - 1, 0):
            told = told or mover
            break
        _set_up(node, stones, len(moves), board)
        player = node.get_raw("PL").decode("ascii", "replace") if node.has_property("PL") else ""
        told = SIDES.get(player.strip()[:1].lower()) or told
        if mover:
            first, told = first or told or mover, None
            try:
                moves.append((mover, _action(node.get_move()[1], board)))
            except ValueError:
                raise GtpError(f"move {len(moves) + 1} is no point of the board") from None
    unread = _read_komi(line[0], game)
    handicap = bool(stones) and WHITE not in stones.values()
    game.set_up(
        sorted((colour, cell) for cell, colour in stones.items()), first or told or (WHITE if handicap else BLACK)
    )
    for number, (colour, action) in enumerate(moves, 1):
        try:
            game.play(colour, action)
        except GtpError as e:
            raise GtpError(f"move {number} {'-BW'[colour]} {game.name(action)}: {e}") from None
    game.told = told
    return game, unread


def _main_line(path: str, size: int) -> list[Any]:
    """The nodes of the main line, of a board of that size. Raises GtpError."""
    try:
        from sgfmill import sgf, sgf_grammar
    except ImportError:
        raise GtpError("needs pip install 'polyplay[go]'") from None
    try:
        tree = sgf_grammar.parse_sgf_game(Path(path).read_bytes())
        root = tree.sequence[0]
        _check_size(root, size)
        root["SZ"] = [str(size).encode()]
        root.pop("CA", None)  # whatever it names: nothing that is read here depends on it
        return list(sgf.Sgf_game.from_coarse_game_tree(tree).get_main_sequence())
    except OSError as e:
        raise GtpError(str(e.strerror)) from None
    except ValueError as e:
        raise GtpError(" ".join(str(e).split()) or "it is no SGF") from None


def _check_size(root: dict[str, list[bytes]], size: int) -> None:
    """Raises GtpError: the file names another size. One that can't be read says nothing."""
    given = root.get("SZ", [b"19"])[0].decode("ascii", "replace")
    found = re.fullmatch(r"\s*0*(\d+)\s*(?::\s*0*(\d+)\s*)?", given)
    if found and {found[1], found[2] or found[1]} != {str(size)}:
        raise GtpError(f"its board has {given.strip()} lines, not {size}")


def _read_komi(root: Any, game: GtpBoard) -> str:
    """Set a game's komi; the property, if it is no komi of that board."""
    raw = root.get_raw("KM").decode("ascii", "replace") if root.has_property("KM") else f"{game.komi}"
    try:
        game.set_komi(float(raw))
    except (ValueError, GtpError):
        return f"KM[{' '.join(raw.split())[:40]}]"
    return ""


def _set_up(node: Any, stones: dict[int, int], moves: int, board: Go) -> None:
    """Put a node's stones on the board, by cell. Raises GtpError."""
    try:
        black, white, empty = node.get_setup_stones()
    except ValueError:
        raise GtpError("a stone is no point of the board") from None
    if moves and (black or white or empty):
        raise GtpError(f"stones are set up after move {moves}")
    stones |= {_action(point, board): BLACK for point in black} | {_action(point, board): WHITE for point in white}
    for point in empty:
        stones.pop(_action(point, board), None)


def _action(point: tuple[int, int] | None, board: Go) -> int:
    """sgfmill counts rows from the bottom."""
    return board.cells if point is None else (board.rows - 1 - point[0]) * board.rows + point[1]


def sgf_of_game(game: GtpBoard, version: str) -> str:
    """The game in one line: stones that were set up, and moves."""
    board, root, stones = game.board, sgf_root(game.board, f"Polyplay:{version.partition(',')[0]}"), game.stones(0)
    for name, colour in (("AB", BLACK), ("AW", WHITE)):
        root[name] = [sgf_point(board, cell) for cell in np.flatnonzero(stones == colour).tolist()]
    first = records.mover(game.records[0]) + 1 if game.moves else game.to_move
    if stones.any() or first != (game.moves[0][0] if game.moves else BLACK):
        root["PL"] = ["-BW"[first]]
    return sgf_text([root, *({"-BW"[colour]: [sgf_point(board, action)]} for colour, action in game.moves)])


# How an extension writes a mean value from -1 to 1 as a win rate, and a prior.
Form = tuple[Callable[[float], str], Callable[[float], str]]
LEELA: Form = (lambda q: f"{round(5000 * (1 + q))}", lambda p: f"{round(10_000 * p)}")
KATA: Form = (lambda q: f"{(1 + q) / 2:.6f}", lambda p: f"{p:.6f}")


def by_choice(search: Search, found: Finished) -> list[int]:
    """The visited moves of one search: its own choice, then by visits; equal ones as it ranks them itself.

    A Gumbel search ranks by its improved policy, others by priors.
    """
    rank = search.targets(found)[0] if search.options.halves else found.priors[0]
    moves = [int(action) for action in np.flatnonzero(found.visits[0])]
    chosen = int(search.choose(found)[0])
    return sorted(moves, key=lambda a: (a != chosen, -found.visits[0, a], -rank[a], a))


def analysis_line(search: Search, name: Callable[[int], str], form: Form) -> str:
    """What the search of one game has found so far; empty before the first visit: an empty line would end the answer.

    It has no score, which the network does not foresee.
    """
    found, parts = search.look(np.array([0])), list[str]()
    for order, action in enumerate(by_choice(search, found)):
        rate, prior = form[0](float(found.q[0, action])), form[1](float(found.priors[0, action]))
        parts.append(
            f"info move {name(action)} visits {found.visits[0, action]} winrate {rate} prior {prior} lcb {rate} "
            f"order {order} pv " + " ".join(map(name, search.principal_variation(0, action)))
        )
    return " ".join(parts) + "\n" if parts else ""


HOPELESS = -0.9  # a value below it: after the other's pass, moves into an area that has an owner are not tried


def outlook(found: Finished) -> float:
    """The better of the values of the root and of its best child, for the colour to move."""
    root = float(found.value[0])
    return max(root, float(found.best[0])) if found.visits[0].any() else root


def move_or_pass(game: GtpBoard, colour: int, search: Search, found: Finished) -> int:
    """The search's move, or a pass instead of a move that gains nothing.

    A move into the colour's own area changes no score. So it is left out once the other colour has passed, and once
    the colour is behind and every legal move is into an area that has an owner.
    """
    action, a_pass = int(search.choose(found)[0]), game.board.cells
    if action == a_pass:
        return action
    owners, behind = game.owners(), game.lead(colour) <= 0
    own, legal = owners[action] == colour, found.legal[0, :a_pass]
    if not game.passed(3 - colour):
        return a_pass if own and behind and not (legal & (owners == 0)).any() else action
    if behind and owners[action] and outlook(found) < HOPELESS:
        return a_pass
    if not own:
        return action
    useful = legal & (owners != colour)
    if not behind or not useful.any():
        return a_pass
    return int(np.where(useful, found.visits[0, :a_pass] + found.priors[0, :a_pass], -1.0).argmax())


LEFT = 40  # moves that the rest of the time is for, at least
RESERVE = 0.9  # of the time for a move


@dataclass
class Clock:
    """What time there is. Seconds; byo_stones 0 with byo > 0: no limit. `left`: the seconds that are left to a player
    and for how many stones, 0: main time; None: all of it.
    """

    main: float = 0.0
    byo: float = 0.0
    byo_stones: int = 0
    limited: bool = False

    def per_move(self, left: tuple[float, int] | None) -> float | None:
        """Seconds for the next move; None: no limit."""
        if not self.limited:
            return None
        seconds, stones = self._left(left)
        byo = self.byo / self.byo_stones if self.byo_stones else 0.0
        return RESERVE * (seconds / stones if stones else max(seconds / LEFT, byo))

    def after(self, left: tuple[float, int] | None, used: float) -> tuple[float, int]:
        """What is left after a move of so many seconds. The move that uses up the main time is the first of a byo-yomi
        period, and what it takes beyond the main time is taken from that.
        """
        seconds, stones = self._left(left)
        seconds -= used
        if not stones:
            if seconds > 0 or not self.byo_stones:
                return max(seconds, 0.0), 0
            seconds, stones = seconds + self.byo, self.byo_stones
        return (max(seconds, 0.0), stones - 1) if stones > 1 else (self.byo, self.byo_stones)

    def _left(self, left: tuple[float, int] | None) -> tuple[float, int]:
        return left if left is not None else (self.main, 0) if self.main else (self.byo, self.byo_stones)


ANALYSED = 10_000  # simulations of an analysis
COLOURS = {"b": BLACK, "black": BLACK, "w": WHITE, "white": WHITE}
STATUS = ("alive", "dead", "seki")
ENDLESS = ("lz-analyze", "kata-analyze")  # they end with the next line
VALUES = {"avoid": 3, "allow": 3}  # of an analysis' options that change nothing here; all others have one
DIGITS, LARGEST = 9, 1e9  # of a number, at most
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
        plain = {"protocol_version": "2", "name": "Polyplay", "version": version}
        plain["clear_cache"] = ""  # every search begins with an empty tree
        for name, text in plain.items():
            self.commands[name] = lambda words, text=text: text  # type: ignore[misc]
        for name, form in (("lz", LEELA), ("kata", KATA)):
            self.commands[f"{name}-analyze"] = partial(self._analysis, self._lines, form)
            self.commands[f"{name}-genmove_analyze"] = partial(self._analysis, self._lines_of_move, form)

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

    def do_known_command(self, words: list[str]) -> str:
        return "true" if words and words[0] in self.commands else "false"

    def do_list_commands(self, words: list[str]) -> str:
        return "\n".join(self.commands)

    def do_quit(self, words: list[str]) -> str:
        self.over = True
        return ""

    def do_boardsize(self, words: list[str]) -> str:
        if _read_words(words, _integer) != [self.game.size]:
            raise GtpError("unacceptable size")  # its network knows one
        return self.do_clear_board([])

    def do_clear_board(self, words: list[str]) -> str:
        self.game, self.left = GtpBoard(self.game.board), {}
        return ""

    def do_komi(self, words: list[str]) -> str:
        self.game.set_komi(*_read_words(words, _number))
        self.policy.use(self.game.board)
        return ""

    def do_play(self, words: list[str]) -> str:
        self.game.play(*_read_words(words, _colour, self.game.vertex))
        return ""

    def do_undo(self, words: list[str]) -> str:
        self.game.undo()
        return ""

    def do_fixed_handicap(self, words: list[str]) -> str:
        return self._handicap(*_read_words(words, _integer))

    def do_place_free_handicap(self, words: list[str]) -> str:
        return self._handicap(min(*_read_words(words, _integer), self.game.most_stones))

    def _handicap(self, stones: int) -> str:
        cells = self.game.handicap(stones)
        self.game.set_handicap(cells)
        return " ".join(map(self.game.name, cells))

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
        until = _integer(last) if before and last.isdecimal() else None
        path = " ".join(words if until is None else before)
        try:
            self.game, unread = load_sgf(path, self.game.board, until)
        except GtpError as e:
            raise GtpError(f"cannot load file: {e}") from None
        if unread:
            print(f"{path}: {unread} is no komi; it stays {self.game.komi:g}", file=sys.stderr)
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

    def do_time_settings(self, words: list[str]) -> str:
        main, byo, stones = _read_words(words, _seconds, _seconds, _integer)
        self.clock, self.left = Clock(main, byo, stones, not (byo > 0 and stones == 0)), {}
        return ""

    def do_time_left(self, words: list[str]) -> str:
        colour, seconds, stones = _read_words(words, _colour, lambda word: _number(word, LARGEST), _integer)
        self.left[colour] = max(seconds, 0.0), stones  # a negative time is none left
        return ""

    def do_genmove(self, words: list[str]) -> str:
        (colour,), begun = _read_words(words, _colour), time.monotonic()
        return self._make(colour, self._choose(colour), begun)

    def do_reg_genmove(self, words: list[str]) -> str:
        return self._name(self._choose(*_read_words(words, _colour)))

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

    def _lines_of_move(self, form: Form, colour: int, every: float) -> Iterator[str]:
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

    def _analysis(
        self, lines: Callable[[Form, int, float], Iterator[str]], form: Form, words: list[str]
    ) -> Iterator[str]:
        return lines(form, *self._asked(words))

    def _asked(self, words: list[str]) -> tuple[int, float]:
        """The color and the seconds between two lines that the words of an analysis name. Raises GtpError."""
        colour, every, rest = self.game.to_move, 50, [word.lower() for word in words]
        while rest:
            word = rest.pop(0)
            if word in COLOURS:
                colour = COLOURS[word]
            elif word == "interval":
                (every,) = _read_words(rest, _integer)
                del rest[0]
            elif word.isdecimal():
                every = _integer(word)
            else:
                del rest[: VALUES.get(word, 1)]
        return colour, max(every, 5) / 100

    def _lines(self, form: Form, colour: int, every: float) -> Iterator[str]:
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


def _read_words(words: list[str], *kinds: Callable[[str], Any]) -> list[Any]:
    """The first words, each by its kind. Raises GtpError."""
    if len(words) < len(kinds):
        raise GtpError("syntax error")
    return [kind(word) for kind, word in zip(kinds, words, strict=False)]


def _colour(word: str) -> int:
    if word.lower() not in COLOURS:
        raise GtpError("invalid color")
    return COLOURS[word.lower()]


def _integer(word: str) -> int:
    if not word.isdecimal() or len(word) > DIGITS:
        raise GtpError("syntax error")
    return int(word)


def _number(word: str, most: float = 1e6) -> float:
    with contextlib.suppress(ValueError):
        if "_" not in word and abs(found := float(word)) < most:
            return found
    raise GtpError("syntax error")


def _seconds(word: str) -> float:
    if (found := _number(word, LARGEST)) < 0:
        raise GtpError("syntax error")
    return found


# `polyplay play RUN --gtp`: the engine between stdin and stdout.


def answer_lines(engine: GtpEngine, source: TextIO, out: TextIO) -> None:
    """Answer line by line until `quit` or the end of the source. An analysis ends as soon as there is another line."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")  # no byte is the end
    lines = queue.Queue[str | None]()
    threading.Thread(target=_read, args=(source, lines), daemon=True, name="gtp").start()
    while not engine.over and (line := lines.get()) is not None:
        for piece in engine.answer(line):
            out.write(piece)
            out.flush()
            if engine.endless and not lines.empty() and piece[:1] not in ("=", "?"):
                out.write("\n")
                break
        out.flush()


def _read(source: TextIO, lines: queue.Queue[str | None]) -> None:
    try:
        for line in source:
            lines.put(line)
    finally:
        lines.put(None)


def main(open_engine: Callable[[], GtpEngine]) -> None:
    """Only answers go to stdout: whatever else is printed goes to stderr. No clock runs before the first answer."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        engine = open_engine()
        engine.warm()
        answer_lines(engine, sys.stdin, out)
