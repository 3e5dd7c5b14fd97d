"""tournament: tables and picture.

The command line of `polyplay tournament`: two tables, or one JSON object, and a picture.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from polyplay.cli.arguments import parse_words
from polyplay.cli.plot import COLOURS, INK, blank_figure, check_name, dress, print_picture, write_figure
from polyplay.core.files import Row, to_plain
from polyplay.evaluation.gtp import program_line
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.runs.terminal import default_console, print_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = """RUN: directories of runs or of their checkpoints (every agent of theirs; RUN:N is agent N, RUN:best the
best), files of past agents in RUN/past_agents, and opponents: random, bot:NAME, in board games also mcts:N, in connect
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


# The picture of a tournament: payoffs of every two players, and ratings with intervals. Needs polyplay[plots].


ROW, LOW, LEAST, AROUND = 0.42, 0.22, 2.2, 1.5  # inches: of a player, of one of many, of all, of titles and axes
LONG = 28  # characters of a name that are shown: its end
NUMBERED = 16  # players whose payoffs are written into the squares, at most; beyond, not every column has its number


def draw_tournament(result: Row) -> Figure:
    """Players from the best down: points per match of rows against columns, and beside them the ratings."""
    order = ranked(result)
    figure = blank_figure("--picture", max(LEAST, (ROW if len(order) <= NUMBERED else LOW) * len(order)) + AROUND)
    payoffs, ratings = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_payoffs(payoffs, result, order)
    _draw_ratings(ratings, result, order)
    figure.suptitle(played_text(result), x=0.01, ha="left", color=INK, fontsize=11)
    return figure


def _draw_payoffs(axes: Axes, result: Row, order: list[int]) -> None:
    values = np.array([[np.nan if (v := result["payoff"][i][j]) is None else v for j in order] for i in order])
    image = axes.imshow(values, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    places = [str(place) for place in range(1, len(order) + 1)]
    names = [f"{_short(result['players'][i]['name'])}  {place}" for place, i in zip(places, order, strict=True)]
    dress(axes, "", "points per match of row against column", from_zero=False)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    every = slice(0, None, -(-len(order) // NUMBERED))
    axes.set_xticks(range(len(order))[every], places[every])
    axes.set_yticks(range(len(order)), names)
    axes.xaxis.tick_top()
    for (i, j), value in np.ndenumerate(values):
        if len(order) <= NUMBERED and not np.isnan(value):
            colour = "white" if abs(value - 0.5) > 0.3 else INK
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, length=0)


def _draw_ratings(axes: Axes, result: Row, order: list[int]) -> None:
    for place, i in enumerate(order):
        row = result["players"][i]
        axes.plot([row["low"], row["high"]], [place, place], color=COLOURS[0], linewidth=2, solid_capstyle="round")
        axes.plot(row["elo"], place, marker="o", color=COLOURS[0], markersize=6, markeredgewidth=0)
    anchor = [result["players"][i]["name"] for i in order].index(result["anchor"]) + 1
    dress(axes, f"Elo above player {anchor}, with 95 % intervals", "ratings", from_zero=False)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_yticks(range(len(order)), [str(place) for place in range(1, len(order) + 1)])


def _short(name: str) -> str:
    return name if len(name) <= LONG else f"…{name[1 - LONG :]}"
