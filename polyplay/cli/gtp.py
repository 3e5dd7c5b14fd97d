"""An engine for the Go Text Protocol (GTP). With it, other Go programs can play against an agent with tree search.

The engine answers the commands of GTP version 2 and of its analysis extensions.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from polyplay.acting.play import GIVES_UP
from polyplay.cli.play_session import simulate
from polyplay.core.machine import install_command
from polyplay.games import go, records
from polyplay.games.boards import Go
from polyplay.search.search import Finished, Search, SearchPolicy

BLACK, WHITE = 1, 2
COLORS = {"b": BLACK, "black": BLACK, "w": WHITE, "white": WHITE}
# fixed handicap stones in order: column (0 left, 1 middle, 2 right) and row (0 bottom, 1 middle, 2 top)
PLACES = ((0, 0), (2, 2), (0, 2), (2, 0), (0, 1), (2, 1), (1, 0), (1, 2))


class GtpError(Exception):
    """Failure of a GTP command. Its message is the answer that the other program receives."""


class GtpBoard:
    """A game of Go by the rules of GTP. Any color may move at any time, every move can be undone, and any komi is
    allowed. Two passes do not end the game.

    `records`: the positions so far, as arrays (records). The last one is the present position.
    `moves`: the moves so far, as pairs (color, action).
    """

    def __init__(self, board: Go):
        self.board, self.name = board, board.move_name
        self.records, self.moves = [board.new()], list[tuple[int, int]]()  # moves: (color, action)

    @property
    def record(self) -> np.ndarray:
        return self.records[-1]

    @property
    def to_move(self) -> int:
        """Color to move: the opponent of the last mover or, before the first move, the color to move at the start."""
        return 3 - self.moves[-1][0] if self.moves else records.mover(self.record) + 1

    def passed(self, color: int) -> bool:
        """Tell whether the last move was a pass by `color`."""
        return self.moves[-1:] == [(color, self.board.cells)]

    @property
    def komi(self) -> float:
        return self.board.halves / 2

    def set_komi(self, komi: float) -> None:
        """Set the komi. Raises GtpError if it is larger than the number of cells, or not a multiple of 0.5."""
        if not abs(komi) <= self.board.cells or komi * 2 != int(komi * 2):
            raise GtpError("komi must be whole or half")
        self.board = replace(self.board, halves=int(komi * 2))

    def position(self, color: int) -> np.ndarray:
        """Return a copy of the present position (a record), with `color` to move."""
        record = self.record.copy()
        if records.mover(record) != color - 1:
            record[records.OWN] = 0  # so that a pass does not end the game
            self.board.play(record, self.board.cells)
            record[records.OWN] = 0
        # a record also has hashes of earlier positions: drop the oldest ones before it is full (superko ignores them);
        # EIGHT at once, so that the other positions stay at ply % EIGHT
        if 4 * records.ply(record) >= 3 * self.board.longest:
            hashes = self.board.hashes(record)
            hashes[: -go.EIGHT] = hashes[go.EIGHT :]
            record[2], record[1] = divmod(records.ply(record) - go.EIGHT, records.PLIES)
        return record

    def play(self, color: int, action: int) -> None:
        """Play a move for `color`. Raises GtpError if the move is illegal."""
        record = self.position(color)
        if action not in self.board.legal(record):
            raise GtpError("illegal move")
        if action == self.board.cells:
            record[records.OWN] = 0
        self.board.play(record, action)
        self.records.append(record)
        self.moves.append((color, action))

    def undo(self) -> None:
        """Take back the last move. Raises GtpError if no move was made."""
        if not self.moves:
            raise GtpError("cannot undo")
        self.records.pop()
        self.moves.pop()

    def lead(self, color: int = BLACK) -> float:
        """Return the points by which `color` would lead if the game ended now. Komi is included."""
        lead = self.board.area(self.record) - self.komi
        return lead if color == BLACK else -lead

    def owners(self) -> np.ndarray:
        """Return the owner of each cell by area scoring, int8 [n²]: BLACK, WHITE, or 0. An empty cell has no owner (0)
        if it is next to an area of both colors or of none.
        """
        return self.board.owners(self.record)

    def stones(self, position: int = -1) -> np.ndarray:
        """Return the stones in `records[position]`, int8 [n²]: 0 (empty), BLACK or WHITE. Position 0 is the start."""
        return self.board.stones(self.records[position])

    def set_up(self, stones: list[tuple[int, int]], to_move: int) -> None:
        """Put stones (color, cell) on the empty board, as the start position. Raises GtpError if a stone is illegal."""
        for color, cell in stones:
            self.play(color, cell)
        self.records, self.moves = [self.position(to_move)], []

    @property
    def most_stones(self) -> int:
        """Largest number of stones of a fixed handicap on this board."""
        size = self.board.rows
        return 0 if size < 7 else 4 if size % 2 == 0 or size == 7 else 9

    def handicap(self, stones: int) -> str:
        """Place a fixed handicap (section 4.1.1 of the protocol), and return the names of its points. Raises GtpError
        if the number of stones is not possible, or if the board is not empty.
        """
        if not 2 <= stones <= self.most_stones:
            raise GtpError("invalid number of stones")
        size, edge = self.board.rows, 3 if self.board.rows >= 13 else 2
        lines, middle = (edge, size // 2, size - 1 - edge), stones in (5, 7, 9)
        places = [*PLACES[: stones - middle], *([(1, 1)] if middle else [])]
        cells = [lines[2 - row] * size + lines[column] for column, row in places]
        self.set_handicap(cells)
        return " ".join(map(self.name, cells))

    def set_handicap(self, cells: list[int]) -> None:
        """Put Black's handicap on an empty board. White moves next. Raises GtpError for wrong points."""
        if self.moves or self.stones().any():
            raise GtpError("board not empty")
        if len({*cells} - {self.board.cells}) < max(len(cells), 2) or len(cells) == self.board.cells:
            raise GtpError("bad vertex list")
        self.set_up([(BLACK, cell) for cell in cells], WHITE)

    def vertex(self, word: str) -> int:
        """Return the action for a word, which is a point such as D4, or pass. Raises GtpError for other words."""
        found = self.board.action_of(word)
        if found is None:
            raise GtpError("invalid coordinate")
        return found


# Games of Go from SGF files, which the package sgfmill reads.


def load_sgf(path: str, board: Go, until: int | None = None) -> tuple[GtpBoard, bool]:
    """Read a game from an SGF file. Return the game before move `until` of the main line, and False if the file's komi
    does not fit this board, else True. If the komi does not fit or is missing, the board's komi is used. Raises
    GtpError if the file cannot be read or does not fit the board.
    """
    try:
        from sgfmill import sgf, sgf_moves
    except ImportError:
        raise GtpError(f"needs {install_command('go')}") from None
    try:
        file = sgf.Sgf_game.from_bytes(Path(path).read_bytes())
        if (size := file.get_size()) != board.rows:
            raise GtpError(f"its board has {size} lines, not {board.rows}")
        set_up, moves = sgf_moves.get_setup_and_moves(file)
        root = file.get_root()
        named = root.get("PL") if root.has_property("PL") else None
    except OSError as e:
        raise GtpError(str(e.strerror)) from None
    except ValueError as e:
        raise GtpError(" ".join(str(e).split()) or "a point or a color cannot be read") from None

    def action(point: tuple[int, int] | None) -> int:  # sgfmill counts rows from the bottom
        return board.cells if point is None else (board.rows - 1 - point[0]) * board.rows + point[1]

    game, known = GtpBoard(board), True
    try:
        game.set_komi(root.get("KM") if root.has_property("KM") else game.komi)
    except (ValueError, GtpError):
        known = False
    stones = sorted((COLORS[color], action(point)) for color, point in set_up.list_occupied_points())
    handicap = stones and stones[-1][0] == BLACK
    game.set_up(stones, COLORS[named or (moves[0][0] if moves else "w" if handicap else "b")])
    for number, (color, point) in enumerate(moves[: None if until is None else max(until - 1, 0)], 1):
        try:
            game.play(COLORS[color], action(point))
        except GtpError as e:
            raise GtpError(f"move {number} {color.upper()} {game.name(action(point))}: {e}") from None
    return game, known


def by_choice(search: Search, found: Finished) -> list[int]:
    """Return the moves that a search has visited: first the move that it chooses, then the others by their visits."""
    rank = search.targets(found)[0] if search.options.halves else found.priors[0]
    moves = [int(action) for action in np.flatnonzero(found.visits[0])]
    chosen = int(search.choose(found)[0])
    return sorted(moves, key=lambda a: (a != chosen, -found.visits[0, a], -rank[a], a))


def analysis_line(search: Search, name: Callable[[int], str]) -> str:
    """Return a line with the analysis of one game's search. Return "" before the first visit."""
    found, parts = search.look(np.array([0])), list[str]()
    for order, action in enumerate(by_choice(search, found)):
        rate, prior = f"{(1 + float(found.q[0, action])) / 2:.6f}", f"{float(found.priors[0, action]):.6f}"
        parts.append(
            f"info move {name(action)} visits {found.visits[0, action]} winrate {rate} prior {prior} lcb {rate} "
            f"order {order} pv " + " ".join(map(name, search.principal_variation(0, action)))
        )
    return " ".join(parts) + "\n" if parts else ""  # an empty line would end the answer


HOPELESS = -0.9  # below this value, the agent answers a pass by a pass instead of a move into an owned area


def outlook(found: Finished) -> float:
    """Return the root's value for the color to move, or the most visited move's value if that is larger."""
    root = float(found.value[0])
    return max(root, float(found.best[0])) if found.visits[0].any() else root


def move_or_pass(game: GtpBoard, color: int, search: Search, found: Finished) -> int:
    """Return the move that a search chooses, unless it gains nothing. A move into the player's own area does not change
    the score. It is replaced in these cases:

    - The other player has just passed, and the player is ahead: by a pass.
    - The other player has just passed, and the player is behind: by the best legal move outside the player's own area,
      or by a pass if none exists.
    - The other player has not passed, the player is behind, and all legal moves are into owned areas: by a pass.

    After a pass, a player who is behind, with a value below HOPELESS, passes instead of making a move into any area.
    """
    action, a_pass = int(search.choose(found)[0]), game.board.cells
    if action == a_pass:
        return action
    owners, behind = game.owners(), game.lead(color) <= 0
    own, legal = owners[action] == color, found.legal[0, :a_pass]
    if not game.passed(3 - color):
        return a_pass if own and behind and not (legal & (owners == 0)).any() else action
    if behind and owners[action] and outlook(found) < HOPELESS:
        return a_pass
    if not own:
        return action
    useful = legal & (owners != color)
    if not behind or not useful.any():
        return a_pass
    return int(np.where(useful, found.visits[0, :a_pass] + found.priors[0, :a_pass], -1.0).argmax())


LEFT = 40  # number of moves among which the remaining main time is divided
RESERVE = 0.9  # fraction of a move's time that a search uses


@dataclass
class Clock:
    """Clock of a game. Each color has `main` seconds, and then periods of `byo` seconds for `stones` moves each.

    `left`: color → (seconds left, number of moves to play in these seconds). In main time, the number is 0.
    """

    main: float
    byo: float
    stones: int
    left: dict[int, tuple[float, int]] = field(default_factory=dict)

    def remaining(self, color: int) -> tuple[float, int]:
        return self.left.get(color, (self.main, 0) if self.main else (self.byo, self.stones))

    def per_move(self, color: int) -> float:
        """Return the number of seconds to use for the next move."""
        seconds, stones = self.remaining(color)
        return RESERVE * (seconds / stones if stones else max(seconds / LEFT, self.byo / max(self.stones, 1)))

    def use(self, color: int, used: float) -> None:
        """Subtract the seconds that a move took. If they exceed the main time, the first period begins, and the excess
        is subtracted from this period.
        """
        seconds, stones = self.remaining(color)
        seconds -= used
        if not stones and seconds <= 0 and self.stones:
            seconds, stones = seconds + self.byo, self.stones
        self.left[color] = (self.byo, self.stones) if stones == 1 else (max(seconds, 0.0), max(stones - 1, 0))


ANALYSED = 10_000  # most simulations of an analysis
STATUS = ("alive", "dead", "seki")
ENDLESS = "kata-analyze"  # command whose answer ends when the next line arrives
DIGITS, LARGEST = 9, 1e9  # limits of numbers in commands: digits of a whole number, absolute value of others
WARM = 4  # steps of a search that `warm` makes before the first answer
Answer = str | Iterator[str] | None  # None: an empty answer


class GtpEngine:
    """Answers GTP commands, one line after another.

    `simulations`: largest number of simulations per search. The clock may end a search earlier.
    `resign`: the engine resigns if the values of the root and of the most visited move are both below this number.
    """

    def __init__(self, policy: SearchPolicy, simulations: int, version: str, resign: float = records.NEVER):
        assert isinstance(policy.board, Go)
        self.policy, self.simulations, self.resign = policy, simulations, resign
        self.game = GtpBoard(policy.board)
        self.clock: Clock | None = None  # None: no time limit
        self.over = False
        self.endless = False  # whether the current answer continues until its reader stops
        self.commands: dict[str, Callable[[list[str]], Answer]] = {
            "protocol_version": lambda words: "2",
            "name": lambda words: "Polyplay",
            "version": lambda words: version,
            "known_command": lambda words: "true" if words and words[0] in self.commands else "false",
            "list_commands": lambda words: "\n".join(sorted(self.commands)),
            "clear_cache": lambda words: "",  # every search starts with an empty tree
            "play": lambda words: self.game.play(*_read_words(words, _color, self.game.vertex)),
            "undo": lambda words: self.game.undo(),
            "set_free_handicap": lambda words: self.game.set_handicap([self.game.vertex(word) for word in words]),
            "fixed_handicap": lambda words: self.game.handicap(*_read_words(words, _integer)),
            "place_free_handicap": lambda words: self.game.handicap(
                min(*_read_words(words, _integer), self.game.most_stones)
            ),
            "reg_genmove": lambda words: self._name(self._choose(*_read_words(words, _color))),
            "showboard": lambda words: f"\n{self.game.board.draw(self.game.record)}",
            **{
                name.removeprefix("do_").replace("__", "-"): getattr(self, name)
                for name in vars(type(self))
                if name.startswith("do_")
            },
        }

    def answer(self, line: str) -> Iterator[str]:
        """Yield the answer to a command line, piece by piece. A line without a command has no answer. An endless
        analysis continues until the caller stops it. The caller then writes the empty line that ends the answer.
        """
        words = "".join(c if c.isprintable() else " " if c == "\t" else "" for c in line.partition("#")[0]).split()
        number = words.pop(0) if words and words[0].isdecimal() else ""
        if not words:
            return
        self.endless = words[0] == ENDLESS
        try:
            if words[0] not in self.commands:
                raise GtpError("unknown command")
            found = self.commands[words[0]](words[1:]) or ""
        except GtpError as e:
            yield f"?{number} {e}\n\n"
            return
        if isinstance(found, str):
            yield f"={number} {found}".rstrip() + "\n\n"
            return
        yield f"={number}\n"
        yield from found

    def warm(self) -> None:
        """Search for a few steps, so that all code is compiled before the clock of the first move starts."""
        for search in itertools.islice(self._think(BLACK), WARM):
            analysis_line(search, self.game.name)
            move_or_pass(self.game, BLACK, search, search.look(np.array([0])))
        game = GtpBoard(self.game.board)
        game.play(WHITE, 0)
        game.owners()

    def do_quit(self, words: list[str]) -> None:
        self.over = True

    def do_boardsize(self, words: list[str]) -> None:
        if _read_words(words, _integer) != [self.game.board.rows]:
            raise GtpError("unacceptable size")  # the network has a fixed size
        self.do_clear_board([])

    def do_clear_board(self, words: list[str]) -> None:
        self.game = GtpBoard(self.game.board)
        if self.clock:
            self.clock.left.clear()

    def do_komi(self, words: list[str]) -> None:
        self.game.set_komi(*_read_words(words, _number))
        self.policy.use(self.game.board)

    def do_loadsgf(self, words: list[str]) -> None:
        *before, last = words or [""]
        until = _integer(last) if before and last.isdecimal() else None
        path = " ".join(words if until is None else before)
        try:
            self.game, known = load_sgf(path, self.game.board, until)
        except GtpError as e:
            raise GtpError(f"cannot load file: {e}") from None
        if not known:
            print(f"{path}: its komi does not fit this board; komi stays {self.game.komi:g}", file=sys.stderr)
        self.policy.use(self.game.board)

    def do_time_settings(self, words: list[str]) -> None:
        main, byo, stones = _read_words(words, _number, _number, _integer)
        if min(main, byo) < 0:
            raise GtpError("syntax error")
        self.clock = None if byo > 0 and stones == 0 else Clock(main, byo, stones)

    def do_time_left(self, words: list[str]) -> None:
        color, seconds, stones = _read_words(words, _color, _number, _integer)
        if self.clock:
            self.clock.left[color] = max(seconds, 0.0), stones  # negative: no time left

    def do_genmove(self, words: list[str]) -> str:
        (color,), begun = _read_words(words, _color), time.monotonic()
        return self._make(color, self._choose(color), begun)

    def _choose(self, color: int) -> int:
        *_, search = self._think(color)
        return self._decide(color, search)

    def _think(self, color: int) -> Iterator[Search]:
        """Yield the search for a move after each of its steps, until it is complete or its time is used up."""
        until = time.monotonic() + (self.clock.per_move(color) if self.clock else math.inf)
        simulate(self.policy, self.simulations)
        for search in self.policy.grow(self.game.position(color)[None]):
            yield search
            if time.monotonic() >= until:
                return

    def _decide(self, color: int, search: Search) -> int:
        """Return the move, or GIVES_UP to resign."""
        found = search.look(np.array([0]))
        action = move_or_pass(self.game, color, search, found)
        ends = action == self.game.board.cells and self.game.passed(3 - color)
        # no resignation before the color's first move, or instead of a pass that ends the game
        begun = any(mover == color for mover, _ in self.game.moves)
        return GIVES_UP if begun and not ends and outlook(found) < self.resign else action

    def _make(self, color: int, action: int, begun: float) -> str:
        """Make the move, and return its name. `begun`: time at which the player's clock started."""
        if action != GIVES_UP:
            self.game.play(color, action)
        if self.clock:
            self.clock.use(color, time.monotonic() - begun)
        return self._name(action)

    def _name(self, action: int) -> str:
        return "resign" if action == GIVES_UP else self.game.name(action)

    def do_final_score(self, words: list[str]) -> str:
        lead = self.game.lead()
        return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{abs(lead):g}"

    def do_final_status_list(self, words: list[str]) -> str:
        """List the stones with the given status. All stones on the board count as alive."""
        if not words or words[0] not in STATUS:
            raise GtpError("syntax error")
        cells = np.flatnonzero(self.game.stones()).tolist() if words[0] == "alive" else []
        return "\n".join(map(self.game.name, cells))

    def _asked(self, words: list[str]) -> tuple[int, float]:
        """Return the color, and the seconds between two lines of an analysis, from the words of a command."""
        rest = [word.lower() for word in words]
        color = COLORS[rest.pop(0)] if rest and rest[0] in COLORS else self.game.to_move
        if "interval" in rest:
            del rest[: rest.index("interval") + 1]
            every = _read_words(rest, _integer)[0]
        else:
            every = _integer(rest[0]) if rest and rest[0].isdecimal() else 50
        return color, max(every, 5) / 100  # the interval is in 1/100 s; other keys are ignored

    def do_kata__analyze(self, words: list[str]) -> Iterator[str]:
        return self._lines(False, *self._asked(words))

    def do_kata__genmove_analyze(self, words: list[str]) -> Iterator[str]:
        return self._lines(True, *self._asked(words))

    def _lines(self, plays: bool, color: int, every: float) -> Iterator[str]:
        """Yield an analysis line every `every` seconds, else "". With `plays`, finally make a move and yield it."""
        begun = shown = time.monotonic()
        for search in self._think(color) if plays else self._ponder(color):
            if time.monotonic() < shown + every:
                yield ""
            else:
                shown = time.monotonic()
                yield analysis_line(search, self.game.name)
        yield analysis_line(search, self.game.name)
        yield f"play {self._make(color, self._decide(color, search), begun)}\n\n"

    def _ponder(self, color: int) -> Iterator[Search]:
        """Yield a search of ANALYSED simulations after each step. When it is complete, yield it again without end."""
        simulate(self.policy, ANALYSED)
        for search in self.policy.grow(self.game.position(color)[None]):
            yield search
        while True:
            time.sleep(0.05)
            yield search


def _read_words(words: list[str], *kinds: Callable[[str], Any]) -> list[Any]:
    """Convert the first words, each with its function in `kinds`. Raises GtpError for wrong words."""
    if len(words) < len(kinds):
        raise GtpError("syntax error")
    return [kind(word) for kind, word in zip(kinds, words, strict=False)]


def _color(word: str) -> int:
    if word.lower() not in COLORS:
        raise GtpError("invalid color")
    return COLORS[word.lower()]


def _integer(word: str) -> int:
    if not word.isdecimal() or len(word) > DIGITS:
        raise GtpError("syntax error")
    return int(word)


def _number(word: str) -> float:
    with contextlib.suppress(ValueError):
        if abs(found := float(word)) < LARGEST:
            return found
    raise GtpError("syntax error")


# `polyplay play RUN --gtp`: the engine reads commands from stdin and answers on stdout.


def answer_lines(engine: GtpEngine, source: TextIO, out: TextIO) -> None:
    """Answer the lines of `source` until the command `quit` or the end. A new line ends an endless analysis."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")  # an invalid byte does not end the input
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
    """Answer GTP commands from stdin on stdout. All other output goes to stderr."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        engine = open_engine()
        engine.warm()
        answer_lines(engine, sys.stdin, out)
