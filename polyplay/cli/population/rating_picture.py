"""The picture of rated versions: TrueSkill over agent steps, and references as lines. Needs polyplay[plots]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyplay.cli.plot import COLOURS, INK, blank_figure, dress
from polyplay.population.rated_versions import RatedVersion
from polyplay.runs.directory import read_config
from polyplay.runs.reports.terminal import short_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGH = 4.2  # inches


def draw_ratings(directory: Path, rated: Sequence[RatedVersion], references: Mapping[str, float]) -> Figure:
    """A band is μ ± 2σ."""
    figure = blank_figure("--picture", HIGH)
    axes = figure.subplots()
    steps = [version.steps for version in rated]
    mu, spread = [version.skill[0] for version in rated], [2 * version.skill[1] for version in rated]
    low, high = ([m + sign * s for m, s in zip(mu, spread, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(steps, mu, color=COLOURS[0], linewidth=1.8, marker="o", markersize=3)
    for name, skill in references.items():
        axes.axhline(skill, color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
        axes.annotate(
            name, (1, skill), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom", color=INK
        )
    matches, env = sum(version.matches for version in rated), read_config(directory)["config"].get("env", "")
    dress(axes, "agent steps", f"{len(rated)} versions, {matches:,} matches · {env}")
    axes.set_ylabel("TrueSkill, ± 2σ", color=INK)
    axes.xaxis.set_major_formatter(lambda n, _: short_count(n, 6))
    return figure
