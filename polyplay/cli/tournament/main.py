"""The command line of `polyplay tournament`: two tables, or one JSON object, and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from polyplay.cli.arguments import parse_words
from polyplay.cli.plot import blank_figure, check_name, print_picture, write_figure
from polyplay.common.files import Row, to_plain
from polyplay.evaluation.gtp_program import program_line
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.runs.reports.screen import default_console, print_all

ABOUT = """RUN: directories of runs or of their checkpoints (every agent of theirs; RUN:N is agent N, RUN:best the
best), files of past selves in RUN/selves, and opponents: random, bot:NAME, in board games also mcts:N, in connect
four perfect, in Go gtp:COMMAND, a program that speaks GTP."""


def command(words: list[str]) -> None:
    """Prints both tables, the best player first, after a line on standard error for every two players."""
    names, options, _ = parse_words(TournamentOptions, words, "polyplay tournament RUN …", ABOUT, several=True)
    if options.picture is not None:
        check_name(options.picture, "--picture")
        blank_figure("--picture", 1)  # before anything is played
    result = play_tournament(names, options, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(to_plain(result), indent=2))
    else:
        console = default_console()
        print_all(console, _report(result, console.width))
    if options.picture is not None:
        from polyplay.cli.tournament.picture import draw_tournament

        out, figure = Path(options.picture), draw_tournament(result)
        write_figure(figure, out, "--picture") if options.json else print_picture(figure, out, "--picture")


def ranked(result: Row) -> list[int]:
    """Places of the players in a result, the best first."""
    return sorted(range(len(result["players"])), key=lambda i: -result["players"][i]["elo"])


def played_text(result: Row) -> str:
    """What was played, in one line."""
    opened = "" if result["opening_plies"] is None else f", {result['opening_plies']} random plies first"
    return f"{result['game']}: {result['matches']} matches of every two players, half on each side{opened}"


def _report(result: Row, width: int) -> Iterator[RenderableType]:
    order = ranked(result)
    yield _ratings(result, order)
    payoff = _payoff(result, order)
    if _breadth(len(order)) <= width:
        yield Text("points per match of row against column")
        yield payoff
    else:
        yield Text(f"points per match of every two: {_breadth(len(order))} columns wide; see --picture or --json")
    yield Text(played_text(result))
    yield from (Text(program_line(about)) for about in result.get("programs", ()))


def _ratings(result: Row, order: Sequence[int]) -> Table:
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("Elo", "95 % interval", "points")]
    name = Column("player", overflow="fold", min_width=8)
    table = Table(Column("", no_wrap=True), name, *numbers, box=box.SIMPLE_HEAD, pad_edge=False)
    for place, i in enumerate(order, 1):
        row = result["players"][i]
        interval = "anchor" if row["name"] == result["anchor"] else f"{row['low']:.0f} to {row['high']:.0f}"
        table.add_row(str(place), Text(row["name"]), f"{row['elo']:.0f}", interval, f"{row['points']:g}")
    return table


def _payoff(result: Row, order: Sequence[int]) -> Table:
    """Points per match of rows against columns, by places in the other table."""
    places = [Column(str(place), justify="right", no_wrap=True) for place in range(1, len(order) + 1)]
    table = Table("", *places, box=box.SIMPLE_HEAD, pad_edge=False)
    for place, i in enumerate(order, 1):
        row = [result["payoff"][i][j] for j in order]
        table.add_row(str(place), *("–" if value is None else f"{value:.2f}" for value in row))
    return table


def _breadth(players: int) -> int:
    """Columns of a terminal that the payoffs take."""
    return len(str(players)) + 6 * players
