"""play RUN --games: print the recorded games of a board game's run as a table, or write them to files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from rich.table import Column, Table

from polyplay import __version__
from polyplay.core.errors import UserError
from polyplay.core.files import Row, read_lines, write_bytes
from polyplay.games.boards import KO, Go
from polyplay.games.boards import game as game_of
from polyplay.runs.terminal import default_console, ruled_table, short_count

NUMBERS = ("steps", "black", "white", "outcome")  # numbers that each line of games.jsonl must have


@dataclass(frozen=True)
class GamesOptions:
    """Lists the games that a run of a board game recorded: a sample of self-play, and all tests of new weights."""

    games: bool = False  # list the recorded games
    export: str | None = None  # directory for an SGF file of each game of Go (none: no files)
    json: bool = False  # print a JSON list instead of a table


def show_games(directory: Path, options: GamesOptions) -> None:
    """Print the run's recorded games as a table, or write them to files."""
    games = read_games(directory)
    if options.export is not None:
        export_games(games, directory.resolve().name, Path(options.export))
        if not options.json:
            print(f"{len(games)} game{'s' * (len(games) != 1)} written to {options.export}")
            return
    if options.json:
        print(json.dumps(games, indent=2))
    else:
        default_console().print(table_of_games(games))


def read_games(directory: Path) -> list[Row]:
    """Return the games in games.jsonl of a run, numbered from 1. Raises UserError if the run has no games."""
    rows = enumerate(read_lines(directory / "games.jsonl", *NUMBERS), 1)
    if not (games := [{"number": i, **row} for i, row in rows]):
        raise UserError(f"RUN: {directory} has no games; runs of alphago_zero record games as they end")
    return games


def result_of(row: Row) -> str:
    """Return a game's result as in SGF: B+3.5, W+R (Black resigned), B+ (in a game without points), or 0 (a draw)."""
    if not row["outcome"]:
        return "0"
    margin = row.get("margin")
    points = "R" if row.get("resigned") else "" if margin is None else f"{margin:g}"
    return f"{'B' if row['outcome'] > 0 else 'W'}+{points}"


def table_of_games(games: Sequence[Row]) -> Table:
    """Return a table of games. The columns `black` and `white` show how many updates each player's weights had."""
    first = Column("game", justify="right", no_wrap=True), Column("name", overflow="fold")
    table = ruled_table(*first, numbers=("steps", "black", "white", "moves"))
    table.add_column("result")
    for row in games:
        sides = (f"{row[name]:,}" for name in ("black", "white"))
        moves = str(len(row["moves"]))
        table.add_row(str(row["number"]), row["name"], short_count(row["steps"]), *sides, moves, result_of(row))
    return table


# Games of Go as files: SGF (FF[4]).


ESCAPED = str.maketrans({"\\": r"\\", "]": r"\]"})


def export_games(games: Sequence[Row], run: str, directory: Path) -> None:
    """Write each game of Go as an SGF file into a new or empty directory. `run`: name of both players in the files.
    Raises UserError if the directory has files, a game is damaged, or the games are not Go. No file is then written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"--export {directory}: must be a new or an empty directory")
    files = dict[str, str]()
    for row in games:
        name = f"{row['number']:05d}-{Path(row['name']).name}"
        try:
            board = game_of(row["game"])
            files[f"{name}.sgf"] = sgf_of(board, row, run) if isinstance(board, Go) else ""
        except (UserError, ValueError, TypeError, LookupError) as e:
            raise UserError(f"RUN: game {row['number']} of games.jsonl is damaged: {e}") from None
    if not all(files.values()):
        raise UserError(f"--export: {board.title} has no SGF; --json prints its moves")
    directory.mkdir(parents=True, exist_ok=True)
    for file, contents in files.items():
        write_bytes(directory / file, contents.encode())


def sgf_of(board: Go, row: Row, run: str) -> str:
    """Return a game of Go as text in the format SGF, on one line. Raises ValueError if a move is off the board."""
    ko = "simple ko" if KO[board.ko] == "simple" else f"{KO[board.ko]} superko"
    rules = f"area scoring, {ko}, suicide {'allowed' if board.suicide else 'forbidden'}"  # SGF has no name for these
    about = {"GM": "1", "FF": "4", "AP": f"polyplay:{__version__}", "SZ": str(board.rows)}
    about |= {"KM": f"{board.halves / 2:g}", "RU": rules, "CA": "UTF-8", "GN": row["name"], "RE": result_of(row)}
    nodes = [{**about, "PB": f"{run}, update {row['black']}", "PW": f"{run}, update {row['white']}"}]
    for i, move in enumerate(row["moves"]):
        if (action := board.action_of(str(move))) is None:
            raise ValueError(f"{move} is not a point of the board")
        y, x = divmod(action, board.rows)
        nodes.append({"BW"[i % 2]: "" if action == board.cells else ascii_lowercase[x] + ascii_lowercase[y]})
        if row["values"][i] is not None:
            nodes[-1]["C"] = f"value {row['values'][i]:+.3f}, {row['visits'][i]} of {row['searched'][i]} visits"
    text = ("".join(f"{name}[{value.translate(ESCAPED)}]" for name, value in node.items()) for node in nodes)
    return f"({''.join(f';{node}' for node in text)})\n"
