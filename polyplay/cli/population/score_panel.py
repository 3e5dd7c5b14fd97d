"""Scores of a population's members over their agent steps, who copied whom, and the winner's line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from polyplay.cli.plot import COLOURS, INK
from polyplay.cli.population.curves import Piece
from polyplay.common.files import Row
from polyplay.population.lineage import Segment
from polyplay.runs.reports.population_table import member_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY, WINNER, COPY = "#b0b0b0", COLOURS[0], COLOURS[1]
THIN, STRONG = 0.8, 2.2
CLOSE = 0.01  # of the steps of who copies: the donor was there too

Curves = Mapping[int, Sequence[Piece]]  # by member


def draw_scores(axes: Axes, rows: Sequence[Row], line: Sequence[Segment], curves: Curves) -> None:
    """line: the winner's."""
    for pieces in curves.values():
        for piece in pieces:
            axes.plot(piece.x, piece.y, color=GREY, linewidth=THIN, zorder=1)
    copies = [row for row in rows if row["donor"] is not None and row.get("donor_score") is not None]
    joints = {(after.member, after.begin) for _, after in pairwise(line)}
    for row in copies:
        _draw_copy(axes, row, own=(row["member"], row["steps"]) in joints)
    for segment in line:
        for piece in _parts(curves, segment):
            axes.plot(piece.x, piece.y, color=WINNER, linewidth=STRONG, solid_capstyle="round", zorder=4)
    _name_ancestors(axes, line, curves)
    _explain(axes, line, copies)


def _parts(curves: Curves, segment: Segment) -> list[Piece]:
    return [piece.between(segment.begin, segment.end) for piece in curves[segment.member]]


def _draw_copy(axes: Axes, row: Row, own: bool) -> None:
    """A vertical arrow from the score of who copies to the donor's, and dots from where the donor was. own: it is in
    the winner's line.
    """
    high = row["donor_score"]
    low = high if row.get("score") is None else row["score"]
    look: dict[str, Any] = {"color": WINNER, "zorder": 3} if own else {"color": COPY, "zorder": 2, "alpha": 0.6}
    width = 1.6 if own else THIN
    axes.plot([row["donor_steps"], row["steps"]], [high, high], linestyle=":", linewidth=width, **look)
    axes.plot([row["steps"]] * 2, [low, high], linewidth=width, **look)
    axes.plot(row["steps"], high, marker="^", markersize=5, markeredgewidth=0, **look)
    axes.plot(row["steps"], low, marker="o", markersize=3, markeredgewidth=0, **look)


def _name_ancestors(axes: Axes, line: Sequence[Segment], curves: Curves) -> None:
    """The member's number above each part of the winner's line."""
    from matplotlib.patheffects import Normal, Stroke

    for segment in line:
        parts = _parts(curves, segment)
        x, y = np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])
        if not len(x):
            continue
        at = (float(x[len(x) // 2]), float(y[len(x) // 2]))
        text = axes.annotate(member_name(segment.member), at, (0, 7), textcoords="offset points", ha="center")
        text.set(color=WINNER, fontsize=9, fontweight="bold", zorder=5)
        text.set_path_effects([Stroke(linewidth=2.5, foreground="white"), Normal()])


def _explain(axes: Axes, line: Sequence[Segment], copies: Sequence[Row]) -> None:
    """The legend, between the panel and its title."""
    ancestors = len({segment.member for segment in line}) > 1
    label = f"{member_name(line[-1].member)}, the winner"
    axes.plot([], [], color=WINNER, linewidth=STRONG, label=f"{label}{', through its ancestors' * ancestors}")
    axes.plot([], [], color=GREY, linewidth=THIN, label="other members")
    if copies:
        arrow: dict[str, Any] = {"color": COPY, "marker": "^", "markersize": 5, "linewidth": THIN}
        apart = any(abs(row["donor_steps"] - row["steps"]) > CLOSE * row["steps"] for row in copies)
        label = "copies another's weights"
        axes.plot([], [], label=f"{label}{' (dots: of another step)' * apart}", **arrow)
    place: dict[str, Any] = {"ncols": 3, "loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0.2}
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, columnspacing=1.5, **place)
