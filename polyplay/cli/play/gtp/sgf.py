"""Games of Go in SGF files: read by the package sgfmill, and written. Imports no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.cli.game_files import rules_of
from polyplay.cli.play.gtp.board import BLACK, WHITE, GtpBoard, GtpError

SIDES = {"b": BLACK, "w": WHITE}


@dataclass(frozen=True)
class ReadGame:
    """Of colours and actions. A komi that can't be read is None."""

    komi: float | None
    setup: list[tuple[int, int]]  # stones on the board before the first move
    moves: list[tuple[int, int]]
    first: int  # the colour to move before the first move
    told: int | None  # the colour that the file says is to move after the last one
    komi_unread: str = ""  # what stands where no whole or half number does

    def on_board(self, game: GtpBoard) -> GtpBoard:
        """The game on an empty board. Raises GtpError: an illegal move or stone."""
        if self.komi is not None:
            game.set_komi(self.komi)
        game.set_up(self.setup, self.first)
        for number, (colour, action) in enumerate(self.moves, 1):
            try:
                game.play(colour, action)
            except GtpError as e:
                raise GtpError(f"move {number} {'-BW'[colour]} {game.name(action)}: {e}") from None
        game.told = self.told
        return game


def read_game(path: str, size: int, until: int | None = None) -> ReadGame:
    """The main line, until before move `until`. Raises GtpError."""
    line = _main_line(path, size)
    board, moves = dict[int, int](), list[tuple[int, int]]()
    told = first = None
    for node in line:
        mover = SIDES.get(node.get_raw_move()[0])
        if mover and until is not None and len(moves) >= max(until - 1, 0):
            told = told or mover
            break
        _set_up(node, board, len(moves), size)
        told = _to_move(node) or told
        if mover:
            first, told = first or told or mover, None
            moves.append((mover, _move(node, len(moves), size)))
    setup = [(colour, cell) for side in (BLACK, WHITE) for cell, colour in sorted(board.items()) if colour == side]
    handicap = bool(setup) and WHITE not in board.values()
    komi, unread = _komi(line[0], size)
    return ReadGame(komi, setup, moves, first or told or (WHITE if handicap else BLACK), told, unread)


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


def _komi(root: Any, size: int) -> tuple[float | None, str]:
    """(komi, ""), or (None, the property) where it is no komi of a board of that size."""
    if not root.has_property("KM"):
        return None, ""
    raw = root.get_raw("KM").decode("ascii", "replace")
    try:
        komi = float(raw)
    except ValueError:
        komi = math.nan
    fits = abs(komi) <= size * size and (2 * komi).is_integer()
    return (komi, "") if fits else (None, f"KM[{' '.join(raw.split())[:40]}]")


def _set_up(node: Any, board: dict[int, int], moves: int, size: int) -> None:
    """Put a node's stones on the board, by cell. Raises GtpError."""
    try:
        black, white, empty = node.get_setup_stones()
    except ValueError:
        raise GtpError("a stone is no point of the board") from None
    if moves and (black or white or empty):
        raise GtpError(f"stones are set up after move {moves}")
    board |= {_action(point, size): BLACK for point in black} | {_action(point, size): WHITE for point in white}
    for point in empty:
        board.pop(_action(point, size), None)


def _to_move(node: Any) -> int | None:
    """The colour that a node says is to move; None: it says none that can be read."""
    found = node.get_raw("PL").decode("ascii", "replace") if node.has_property("PL") else ""
    return SIDES.get(found.strip()[:1].lower())


def _move(node: Any, moves: int, size: int) -> int:
    """Raises GtpError."""
    try:
        return _action(node.get_move()[1], size)
    except ValueError:
        raise GtpError(f"move {moves + 1} is no point of the board") from None


def _action(point: tuple[int, int] | None, size: int) -> int:
    """sgfmill counts rows from the bottom."""
    return size * size if point is None else (size - 1 - point[0]) * size + point[1]


def sgf_of_game(game: GtpBoard, version: str) -> str:
    """The game in one line: stones that were set up, and moves."""
    about = {"GM": "1", "FF": "4", "AP": f"Polyplay:{version.partition(',')[0]}", "SZ": str(game.size)}
    about |= {"KM": f"{game.komi:g}", "RU": rules_of(game.board)}
    text, stones = "".join(f"{name}[{value}]" for name, value in about.items()), game.stones_set_up()
    for name, colour in (("AB", BLACK), ("AW", WHITE)):
        cells = np.flatnonzero(stones == colour).tolist()
        text += name * bool(cells) + "".join(f"[{_point(cell, game)}]" for cell in cells)
    if stones.any() or game.first_to_move != (game.moves[0][0] if game.moves else BLACK):
        text += f"PL[{'-BW'[game.first_to_move]}]"
    moves = "".join(f";{'-BW'[colour]}[{_point(action, game)}]" for colour, action in game.moves)
    return f"(;{text}{moves})"


def _point(action: int, game: GtpBoard) -> str:
    """A point by its column and its row from the top; nothing: a pass."""
    row, column = divmod(action, game.size)
    return "" if action == game.board.cells else f"{chr(ord('a') + column)}{chr(ord('a') + row)}"
