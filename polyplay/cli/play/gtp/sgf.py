"""Games of Go in SGF files, read by the package sgfmill. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.play.gtp.board import BLACK, WHITE, GtpError


@dataclass(frozen=True)
class ReadGame:
    komi: float | None
    moves: list[tuple[int, int]]  # (colour, action), set-up stones of either colour first


def read_game(path: str, size: int, until: int | None = None) -> ReadGame:
    """The main line, until before move `until`. Raises GtpError."""
    try:
        from sgfmill import sgf
    except ImportError:
        raise GtpError("cannot load file: needs pip install 'polyplay[go]'") from None
    try:
        game = sgf.Sgf_game.from_bytes(Path(path).read_bytes())
        found = game.get_size()
        komi = game.get_root().get("KM") if game.get_root().has_property("KM") else None
        black, white, _ = game.get_root().get_setup_stones()
        setup = [(BLACK, point) for point in sorted(black)] + [(WHITE, point) for point in sorted(white)]
        line = [node.get_move() for node in game.get_main_sequence()]
    except (OSError, ValueError) as e:
        raise GtpError("cannot load file") from e
    if found != size:
        raise GtpError(f"cannot load file: its board has {found} lines")
    moves = [({"b": BLACK, "w": WHITE}[colour], point) for colour, point in line if colour is not None]
    moves = moves if until is None else moves[: max(until - 1, 0)]
    return ReadGame(komi, [(colour, _action(point, size)) for colour, point in [*setup, *moves]])


def _action(point: tuple[int, int] | None, size: int) -> int:
    """sgfmill counts rows from the bottom."""
    return size * size if point is None else (size - 1 - point[0]) * size + point[1]
