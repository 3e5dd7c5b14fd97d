"""The picture of a tournament: payoffs of every two players, and ratings with intervals. Needs polyplay[plots]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyplay.cli.plot import COLOURS, INK, blank_figure, dress
from polyplay.cli.tournament.main import played_text, ranked
from polyplay.common.files import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
