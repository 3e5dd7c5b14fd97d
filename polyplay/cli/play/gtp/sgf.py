"""Games of Go in SGF files, read by the package sgfmill. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.cli.play.gtp.board import BLACK, WHITE, GtpError


@dataclass(frozen=True)
class ReadGame:
    """Of colours and actions."""

    komi: float | None
    setup: list[tuple[int, int]]  # stones on the board before the first move
    moves: list[tuple[int, int]]


def read_game(path: str, size: int, until: int | None = None) -> ReadGame:
    """The main line, until before move `until`. Raises GtpError."""
    try:
        from sgfmill import sgf
    except ImportError:
        raise GtpError("cannot load file: needs pip install 'polyplay[go]'") from None
    try:
        game = sgf.Sgf_game.from_bytes(Path(path).read_bytes())
        root = game.get_root()
        komi = root.get("KM") if root.has_property("KM") else None
        black, white, _ = root.get_setup_stones()
    except OSError as e:
        raise GtpError(f"cannot load file: {e.strerror}") from None
    except ValueError as e:
        raise GtpError(f"cannot load file: {' '.join(str(e).split()) or 'a stone is no point of the board'}") from None
    if game.get_size() != size:
        raise GtpError(f"cannot load file: its board has {game.get_size()} lines, not {size}")
    moves = _moves(game.get_main_sequence(), size)
    setup = [(BLACK, point) for point in sorted(black)] + [(WHITE, point) for point in sorted(white)]
    return ReadGame(
        komi,
        [(colour, _action(point, size)) for colour, point in setup],
        moves if until is None else moves[: max(until - 1, 0)],
    )


def _moves(line: list[Any], size: int) -> list[tuple[int, int]]:
    """Raises GtpError."""
    moves = list[tuple[int, int]]()
    for node in line:
        try:
            colour, point = node.get_move()
        except ValueError:
            raise GtpError(f"cannot load file: move {len(moves) + 1} is no point of the board") from None
        if node.has_setup_stones() and node.parent is not None:
            raise GtpError(f"cannot load file: stones are set up after move {len(moves)}")
        if colour is not None:
            moves.append(({"b": BLACK, "w": WHITE}[colour], _action(point, size)))
    return moves


def _action(point: tuple[int, int] | None, size: int) -> int:
    """sgfmill counts rows from the bottom."""
    return size * size if point is None else (size - 1 - point[0]) * size + point[1]
