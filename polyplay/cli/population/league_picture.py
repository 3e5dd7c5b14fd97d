"""The picture of a league: ratings and copies over matches, and below the agents' hyperparameters. Needs
polyplay[plots].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from polyplay.cli.plot import COLOURS, INK, blank_figure, dress
from polyplay.common.files import Row
from polyplay.population.league_history import LeagueHistory, values_over
from polyplay.runs.directory import read_config
from polyplay.runs.reports.terminal import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGH, LOW, ACROSS = 3.4, 1.9, 3  # inches: heights of the ratings, and of a hyperparameter; of these in a row
FEW = 8  # agents whose lines have colours of their own


def draw_league(directory: Path, history: LeagueHistory, first: Sequence[Row], levels: Mapping[str, float]) -> Figure:
    """first: hyperparameters that each agent began with, {} where they are not known. levels: Elo of opponents."""
    names = list(first[0]) if first else []
    down = -(-len(names) // ACROSS)
    figure = blank_figure("--picture", HIGH + LOW * down)
    grid = figure.add_gridspec(1 + down, ACROSS, height_ratios=[HIGH, *[LOW] * down])
    _draw_ratings(figure.add_subplot(grid[0, :]), directory, history, levels)
    for i, name in enumerate(names):
        _draw_values(figure.add_subplot(grid[1 + i // ACROSS, i % ACROSS]), history, first, name)
    return figure


def _colour(agent: int, agents: int) -> str:
    return COLOURS[agent % len(COLOURS)] if agents <= FEW else "#888888"


def _draw_ratings(axes: Axes, directory: Path, history: LeagueHistory, levels: Mapping[str, float]) -> None:
    agents = history.elo.shape[1]
    for agent in range(agents):
        axes.plot(history.matches, history.elo[:, agent], color=_colour(agent, agents), label=f"agent {agent}")
    for copy in history.copies:
        at = [copy["before"]["elo"], copy["donor_elo"]]
        axes.plot([copy["match"]] * 2, at, color=INK, linewidth=0.8, linestyle=":")
    for name, elo in levels.items():
        axes.axhline(elo, color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
        axes.annotate(
            name, (1, elo), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom", color=INK
        )
    dress(axes, "matches", from_zero=False)
    axes.set_ylabel("Elo", color=INK)
    axes.set_xlim(0, max(1, int(history.matches[-1])))
    axes.xaxis.set_major_formatter(lambda n, _: short_count(n, 6))
    if agents <= FEW:
        axes.legend(frameon=False, ncols=agents, loc="upper left", fontsize=8)
    env = read_config(directory)["config"].get("env", "")
    axes.set_title(
        f"{agents} agents, {len(history.copies)} copies (dotted) · {env}", loc="left", color=INK, fontsize=10
    )


def _draw_values(axes: Axes, history: LeagueHistory, first: Sequence[Row], name: str) -> None:
    """A hyperparameter of every agent, from one copy to the next."""
    end, found = max(1, int(history.matches[-1])), list[float]()
    for agent, row in enumerate(first):
        colour = _colour(agent, len(first))
        held = values_over(history.copies, agent, row, end)
        parts = [(begin, until, float({**row, **values}[name])) for begin, until, values in held]
        for begin, until, value in parts:
            axes.plot([begin, until], [value, value], color=colour, linewidth=1.5)
            found.append(value)
        for (_, at, before), (_, _, then) in pairwise(parts):
            axes.plot([at, at], [before, then], color=colour, linewidth=0.8, alpha=0.4)
    dress(axes, "", from_zero=False)
    axes.set_title(name, loc="left", color=INK, fontsize=9)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(lambda n, _: short_count(n, 6))
    if found and min(found) > 0 and max(found) > 4 * min(found):
        axes.set_yscale("log")
