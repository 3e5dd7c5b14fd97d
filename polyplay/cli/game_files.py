"""Games of a run as files: Go as SGF (FF[4], written by the package sgfmill), others as lists of moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyplay import __version__
from polyplay.cli.games import result_of
from polyplay.common.errors import UserError
from polyplay.common.files import Row, write_bytes
from polyplay.envs.boards.game import KO, Go
from polyplay.envs.boards.game import game as game_of

RESULTS = {1: "the first player wins", 0: "a draw", -1: "the second player wins"}


def export_games(games: Sequence[Row], run: str, directory: Path) -> None:
    """A file of each game in a directory, which is made or empty. run: what players are called. Raises UserError, with
    nothing written: there are files, sgfmill is missing, a game is damaged.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"--export: {directory} is there and not empty; allowed: a new or an empty directory")
    files = dict[str, bytes]()
    for row in games:
        try:
            kind, contents = _file_of(row, run)
        except (ValueError, TypeError, KeyError) as e:
            raise UserError(f"RUN: game {row['number']} of games.jsonl is damaged: {e}") from None
        files[f"{row['number']:05d}-{Path(row['name']).name}.{kind}"] = contents
    directory.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        write_bytes(directory / name, contents)


def _file_of(row: Row, run: str) -> tuple[str, bytes]:
    """What the file's name ends with, and its contents. Raises ValueError, TypeError, KeyError: a damaged game."""
    try:
        board = game_of(row["game"])
    except UserError as e:
        raise ValueError(e) from None
    return ("sgf", sgf_of(board, row, run)) if isinstance(board, Go) else ("txt", text_of(row, run).encode())


def sgf_of(board: Go, row: Row, run: str) -> bytes:
    """Raises UserError: sgfmill is missing; ValueError: no vertex of the board."""
    try:
        from sgfmill import common, sgf
    except ImportError:
        raise UserError("--export: Go needs the package sgfmill; `pip install 'polyplay[go]'`") from None
    game = sgf.Sgf_game(size=board.rows)
    root = game.get_root()
    about: dict[str, Any] = {"AP": ("polyplay", __version__), "GN": row["name"], "KM": board.halves / 2}
    about |= {"RU": rules_of(board), "RE": result_of(row)}
    about |= {"PB": f"{run}, update {row['black']}", "PW": f"{run}, update {row['white']}"}
    for name, value in about.items():
        root.set(name, value)
    for i, move in enumerate(row["moves"]):
        node = game.extend_main_sequence()
        node.set_move("bw"[i % 2], common.move_from_vertex(move, board.rows))
        if row["values"][i] is not None:
            node.set("C", f"value {row['values'][i]:+.3f}, {row['visits'][i]} of {row['searched'][i]} visits")
    return bytes(game.serialise())


def rules_of(board: Go) -> str:
    """In words: SGF has names for other rules only."""
    ko = "simple ko" if KO[board.ko] == "simple" else f"{KO[board.ko]} superko"
    return f"area scoring, {ko}, suicide {'allowed' if board.suicide else 'forbidden'}"


def text_of(row: Row, run: str) -> str:
    """Lines about a game, and its moves."""
    about = {"game": row["game"], "name": row["name"]}
    about |= {"first": f"{run}, update {row['black']}", "second": f"{run}, update {row['white']}"}
    ended = RESULTS[int(row["outcome"])] + " by resignation" * bool(row.get("resigned"))
    about |= {"result": ended, "moves": " ".join(row["moves"])}
    return "".join(f"{name}: {value}\n" for name, value in about.items())
