"""One hyperparameter of a population's members: over their agent steps, or, if it never changes, scores over it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from polyplay.cli.plot import INK, dress
from polyplay.cli.population.curves import value_steps
from polyplay.cli.population.score_panel import CLOSE, GREY, STRONG, THIN, WINNER
from polyplay.common.files import Row
from polyplay.population.lineage import Segment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANGES = ("log:", "uniform:")


class ValueAxis:
    """Where values of a hyperparameter are on an axis: themselves, or the number of the entry of a list."""

    def __init__(self, population: Row, rows: Sequence[Row], name: str):
        prior = str(population["vary"][name])
        self.log = prior.startswith("log:")
        found = {str(row["new"][name]): row["new"][name] for row in rows if name in row["new"]}
        order = [] if prior.startswith(RANGES) else prior.split(",")
        self.entries = [word for word in order if word in found] + [w for w in found if order and w not in order]

    def place(self, value: Any) -> float:
        return self.entries.index(str(value)) if self.entries else float(value)

    def mark(self, axis: Any, scale: Any, limit: Any) -> None:
        """axis: x or y of axes; scale and limit: what sets its scale, and its limits."""
        if self.entries:
            axis.set_ticks(range(len(self.entries)), self.entries)
            limit(-0.5, len(self.entries) - 0.5)
        elif self.log:
            scale("log")


def draw_values(axes: Axes, population: Row, rows: Sequence[Row], line: Sequence[Segment], name: str) -> None:
    """Steps: every member thin, the winner's line strong."""
    values = ValueAxis(population, rows, name)
    for member in population["members"]:
        parts = value_steps(rows, member, name)
        for begin, end, value in parts:
            axes.plot([begin, end], [values.place(value)] * 2, color=GREY, linewidth=THIN, zorder=1)
        for (_, end, value), (_, _, then) in pairwise(parts):
            both = [values.place(value), values.place(then)]
            axes.plot([end, end], both, color=GREY, linewidth=THIN, alpha=0.35, zorder=1)
    for segment in line:
        y = [values.place(segment.values[name])] * 2
        axes.plot([segment.begin, segment.end], y, color=WINNER, linewidth=STRONG, solid_capstyle="round", zorder=4)
    for before, after in pairwise(line):
        both = [values.place(part.values[name]) for part in (before, after)]
        same = abs(after.begin - before.end) < CLOSE * after.begin
        axes.plot(
            [before.end, after.begin], both, color=WINNER, linewidth=1.2, linestyle="-" if same else ":", zorder=3
        )
    dress(axes, "")
    axes.set_ylabel(name, color=INK)
    values.mark(axes.yaxis, axes.set_yscale, axes.set_ylim)


def draw_trials(axes: Axes, population: Row, rows: Sequence[Row], winner: Row, name: str) -> None:
    """A point for every member that has a score."""
    values = ValueAxis(population, rows, name)
    for member in population["members"]:
        if member["score"] is not None:
            best = member["member"] == winner["member"]
            (point,) = axes.plot(values.place(member["values"][name]), member["score"], marker="o", markeredgewidth=0)
            point.set(color=WINNER if best else GREY, markersize=8 if best else 5, zorder=4 if best else 1)
    dress(axes, name, from_zero=False)
    axes.set_ylabel("score", color=INK)
    values.mark(axes.xaxis, axes.set_xscale, axes.set_xlim)
