"""The picture of a population: scores, who copied whom, and hyperparameters over agent steps. Needs polyplay[plots]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyplay.cli.plot import INK, blank_figure, dress
from polyplay.cli.population.curves import score_pieces
from polyplay.cli.population.score_panel import draw_scores
from polyplay.cli.population.value_panel import draw_trials, draw_values
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.population.ranking import best_member
from polyplay.runs.directory import read_config
from polyplay.runs.reports.population_table import population_title, winning_line
from polyplay.runs.reports.terminal import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGH, LOW, SQUARE = 3.4, 1.7, 2.4  # inches: heights of the scores, of a hyperparameter, and of one that never changes
ACROSS = 4  # of those in a row


def draw_population(directory: Path, population: Row, rows: Sequence[Row]) -> Figure:
    """Every member thin, the winner's line strong through its ancestors. If no value ever changed, scores over values
    instead of values over steps. Raises UserError: nothing to draw yet.
    """
    winner = best_member(population["members"])
    if winner is None:
        raise UserError(f"--picture: no member of {directory} has a score yet: let the population go on")
    line = winning_line(winner, rows)
    names = list(population["vary"])
    changed = any(row["old"] and row["new"] != row["old"] for row in rows)
    figure, scores, panels = (_stacked if changed else _beside)(len(names))
    found = {m["member"]: score_pieces(directory, population, rows, m["member"]) for m in population["members"]}
    draw_scores(scores, rows, line, found)
    what = "evaluations" if population["score"] == "evaluations" else "running mean of games"
    scores.set_ylabel(f"score ({what})", color=INK)
    for axes, name in zip(panels, names, strict=False):
        if changed:
            draw_values(axes, population, rows, line, name)
        else:
            draw_trials(axes, population, rows, winner, name)
    dress(scores, "agent steps of a member" if not (changed and panels) else "")
    scores.set_title(_title(directory, population), loc="left", color=INK, fontsize=11, pad=24)
    scores.xaxis.set_major_formatter(lambda steps, _: short_count(steps, 6))
    if changed and panels:
        panels[-1].set_xlabel("agent steps of a member", color=INK)
    return figure


def _stacked(n: int) -> tuple[Figure, Axes, Sequence[Axes]]:
    """Panels below the scores, over the same steps."""
    heights = [HIGH, *[LOW] * n]
    figure = blank_figure("--picture", sum(heights))
    scores, *panels = figure.subplots(1 + n, 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    return figure, scores, panels


def _beside(n: int) -> tuple[Figure, Axes, Sequence[Axes]]:
    """Panels below the scores, beside each other."""
    down = -(-n // ACROSS)
    across = -(-n // down) if n else 1
    figure = blank_figure("--picture", HIGH + SQUARE * down)
    grid = figure.add_gridspec(1 + down, across, height_ratios=[HIGH, *[SQUARE] * down])
    scores = figure.add_subplot(grid[0, :])
    panels = [figure.add_subplot(grid[1 + i // across, i % across]) for i in range(n)]
    return figure, scores, panels


def _title(directory: Path, population: Row) -> str:
    return f"{population_title(population)} · {read_config(directory, population=True)['config'].get('env', '')}"
