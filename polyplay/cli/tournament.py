"""tournament: tables and picture.

The command line of `polyplay tournament`: two tables, or one JSON object, and a picture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Column, Table
from rich.text import Text

from polyplay.cli.arguments import parse_words
from polyplay.cli.plot import COLOURS, INK, blank_figure, check_name, dress, print_picture, write_figure
from polyplay.core.files import Row, to_plain
from polyplay.evaluation.gtp import program_line
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.runs.terminal import default_console

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
        _print_report(result)
    if options.picture is not None:
        out, figure = Path(options.picture), draw_tournament(result)
        write_figure(figure, out, "--picture") if options.json else print_picture(figure, out, "--picture")


def ranked(result: Row) -> list[Row]:
    """The players of a result, the best first, each with its place in the payoffs."""
    return sorted(({**row, "at": i} for i, row in enumerate(result["players"])), key=lambda row: -row["elo"])


def played_text(result: Row) -> str:
    """What was played, in one line."""
    opened = "" if result["opening_plies"] is None else f", {result['opening_plies']} random plies first"
    return f"{result['game']}: {result['matches']} matches of every two players, half on each side{opened}"


def _print_report(result: Row) -> None:
    console, players = default_console(), ranked(result)
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("Elo", "95 % interval", "points")]
    name = Column("player", overflow="fold", min_width=8)
    table = Table(Column("", no_wrap=True), name, *numbers, box=box.SIMPLE_HEAD, pad_edge=False)
    places = [Column(str(place), justify="right", no_wrap=True) for place in range(1, len(players) + 1)]
    payoffs = Table("", *places, box=box.SIMPLE_HEAD, pad_edge=False)
    for place, row in enumerate(players, 1):
        interval = "anchor" if row["name"] == result["anchor"] else f"{row['low']:.0f} to {row['high']:.0f}"
        table.add_row(str(place), Text(row["name"]), f"{row['elo']:.0f}", interval, f"{row['points']:g}")
        points = [result["payoff"][row["at"]][other["at"]] for other in players]
        payoffs.add_row(str(place), *("–" if value is None else f"{value:.2f}" for value in points))
    console.print(table)
    console.print(Text("points per match of row against column"))
    console.width = max(console.width, 7 * (len(players) + 1))  # a figure is never cut
    console.print(payoffs)
    for line in (played_text(result), *map(program_line, result.get("programs", ()))):
        console.print(Text(line), soft_wrap=True)


# The picture of a tournament: payoffs of every two players, and ratings with intervals. Needs polyplay[plots].


ROW, LOW, LEAST, AROUND = 0.42, 0.22, 2.2, 1.5  # inches: of a player, of one of many, of all, of titles and axes
LONG = 28  # characters of a name that are shown: its end
NUMBERED = 16  # players whose payoffs are written into the squares, at most; beyond, not every column has its number


def draw_tournament(result: Row) -> Figure:
    """Players from the best down: points per match of rows against columns, and beside them the ratings."""
    players = ranked(result)
    figure = blank_figure("--picture", max(LEAST, (ROW if len(players) <= NUMBERED else LOW) * len(players)) + AROUND)
    payoffs, ratings = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_payoffs(payoffs, result, players)
    _draw_ratings(ratings, result["anchor"], players)
    figure.suptitle(played_text(result), x=0.01, ha="left", color=INK, fontsize=11)
    return figure


def _draw_payoffs(axes: Axes, result: Row, players: list[Row]) -> None:
    order, n = [row["at"] for row in players], len(players)
    values = np.array(result["payoff"], float)[np.ix_(order, order)]
    image = axes.imshow(values, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    names = [row["name"] if len(row["name"]) <= LONG else f"…{row['name'][1 - LONG :]}" for row in players]
    dress(axes, "", "points per match of row against column", from_zero=False)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    every = range(0, n, -(-n // NUMBERED))
    axes.set_xticks(every, [str(place + 1) for place in every])
    axes.set_yticks(range(n), [f"{name}  {place}" for place, name in enumerate(names, 1)])
    axes.xaxis.tick_top()
    for (i, j), value in np.ndenumerate(values):
        if n <= NUMBERED and i != j:
            colour = "white" if abs(value - 0.5) > 0.3 else INK
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, length=0)


def _draw_ratings(axes: Axes, anchor: str, players: list[Row]) -> None:
    elo, low, high = (np.array([row[name] for row in players]) for name in ("elo", "low", "high"))
    places, errors = range(len(players)), np.stack([elo - low, high - elo])
    axes.errorbar(elo, places, xerr=errors, fmt="o", color=COLOURS[0], markersize=6, elinewidth=2)
    place = [row["name"] for row in players].index(anchor) + 1
    dress(axes, f"Elo above player {place}, with 95 % intervals", "ratings", from_zero=False)
    axes.set_ylim(len(players) - 0.5, -0.5)
    axes.set_yticks(places, [str(place + 1) for place in places])
