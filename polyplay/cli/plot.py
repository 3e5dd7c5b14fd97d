"""Learning curves of runs: `polyplay plot RUN… --out curve.png`. Needs polyplay[plots]."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polyplay.cli.arguments import parse_words
from polyplay.cli.pooling import BANDS, names_of, pool_curves, pools_of
from polyplay.cli.run_curves import Curve, read_curves
from polyplay.common.bounds import Count
from polyplay.common.errors import UserError
from polyplay.runs.reports.terminal import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
INK, FAINT = "#333333", "#e4e4e4"
PICTURES = (".png", ".svg", ".pdf")
ACROSS = {"frames": "frames", "steps": "agent steps", "minutes": "minutes of wall time", "hours": "hours of wall time"}
COUNTS = ("frames", "steps")
FONTS, MOST = (10, 8, 6), 0.4  # sizes of the legend; the part of a panel that it may take


@dataclass(frozen=True)
class PlotOptions:
    """Plots the return of all full games over frames and over wall time. Runs that differ only in their seed become one
    line: their mean, with a band. Needs polyplay[plots].
    """

    out: str = "curve.png"
    """file of the picture: .png, .svg or .pdf"""
    title: str | None = None
    """title of the picture (none: the environment's name)"""
    label: tuple[str, ...] = ()
    """name of each RUN in the legend, in their order, without commas; runs of one name become one line (none: by their
    settings)"""
    x: Literal["frames", "steps", "hours"] | None = None
    """what the return is drawn over: frames, agent steps, or hours of wall time (none: frames and minutes, a panel
    each)"""
    games: Count = 100
    """number of last full games to average"""
    pool: Literal["interval", "range", "none"] = "interval"
    """band around the mean of runs that differ only in their seed: its 95 % confidence interval, or the range from
    the lowest to the highest run (none: one line per run)"""

    def __post_init__(self) -> None:
        check_name(self.out, "--out")


def check_name(picture: str, option: str) -> None:
    """Raises UserError: no file that matplotlib writes."""
    if not picture.endswith(PICTURES):
        raise UserError(f"{option}: {picture} given, allowed: a file {', '.join(PICTURES)}")


def command(words: list[str]) -> None:
    """Prints the name of the picture, and on standard error that it replaces another."""
    about = "RUN: directories of runs, or of several seeds."
    runs, options, _ = parse_words(PlotOptions, words, "polyplay plot RUN …", about, several=True)
    figure = draw_curves([Path(run) for run in runs], options)
    print_picture(figure, Path(options.out), "--out")


def print_picture(figure: Figure, out: Path, option: str) -> None:
    """Write it and print its name, and on standard error that it replaces another."""
    there = out.exists()
    write_figure(figure, out, option)
    print(out)
    if there:
        print(f"polyplay: {out} was there before and is replaced; {option} FILE names another", file=sys.stderr)


def curves(runs: Sequence[Path], out: Path, title: str | None = None, games: int = 100) -> Path:
    """Write a picture of learning curves; see `draw_curves`."""
    write_figure(draw_curves(runs, PlotOptions(title=title, games=games)), out)
    return Path(out)


def write_figure(figure: Figure, out: Path, option: str = "--out") -> None:
    """Raises UserError: there is no such directory, or the file cannot be written there."""
    try:
        figure.savefig(out)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as e:
        raise UserError(
            f"{option}: {out} cannot be written: {e.strerror}; name a file in a directory that is there"
        ) from None


def draw_curves(runs: Sequence[Path], options: PlotOptions | None = None) -> Figure:
    """Return against frames and against wall time, or over one of them: a colour per system and configuration, or per
    label. Raises UserError: there is nothing to draw.
    """
    options = options or PlotOptions()
    if not runs:
        raise UserError("plot takes the directory of at least one run, none given: polyplay plot RUN … --out FILE")
    figure = blank_figure("plot", 4)
    by_run = [read_curves(Path(run), options.games) for run in runs]
    title = options.title or _title([curve for found in by_run for curve in found])
    axes = ["frames", "minutes"] if options.x is None else [options.x]
    pools = pools_of([curve for found in _labelled(by_run, options.label) for curve in found])
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        for name, colour, group in zip(names_of(pools), cycle(COLOURS), pools, strict=False):
            _draw(panel, axis, name, colour, group, options.pool)
        dress(panel, ACROSS[axis], title if panel is panels[0] else "")
        if axis in COUNTS:
            panel.xaxis.set_major_formatter(lambda n, _: short_count(n, 6))
    panels[0].set_ylabel(f"mean return of the last {options.games} full games", color=INK)
    place_legend(figure, panels[0])
    return figure


def _labelled(by_run: Sequence[Sequence[Curve]], labels: Sequence[str]) -> list[list[Curve]]:
    """The curves of each RUN with its label in place of their settings. Raises UserError: not one for each."""
    if not labels:
        return [list(found) for found in by_run]
    if len(labels) != len(by_run):
        given = f"{len(labels)} name{'s' * (len(labels) != 1)}, {len(by_run)} RUN given"
        raise UserError(
            f"--label: {given}; give one for each, without commas: --label {' '.join(['NAME'] * len(by_run))}"
        )
    return [
        [replace(curve, label=label, env="", settings={}) for curve in found]
        for label, found in zip(labels, by_run, strict=True)
    ]


def place_legend(figure: Figure, axes: Axes) -> None:
    """The legend within its panel: its lines folded, and as small as need be; below the panels where it would hide
    much of the curves.
    """
    handles, names = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"framealpha": 0.8, "edgecolor": "none", "labelcolor": INK}
    for size in FONTS:
        width = max(10, int(72 * figure.get_figwidth() / len(figure.axes) * 0.75 / (0.55 * size)))
        folded = ["\n".join(textwrap.wrap(name, width)) for name in names]
        if sum(1 + name.count("\n") for name in folded) * 1.2 * size > 72 * figure.get_figheight():
            continue
        legend = axes.legend(handles, folded, loc="best", fontsize=size, **look)
        figure.draw_without_rendering()
        room, taken = axes.get_window_extent(), legend.get_window_extent()
        within = taken.width <= room.width and taken.height <= room.height
        if within and taken.width * taken.height <= MOST * room.width * room.height:
            return
        legend.remove()
    figure.set_figheight(figure.get_figheight() + len(names) * 1.5 * FONTS[-1] / 72)
    figure.legend(handles, names, loc="outside lower left", fontsize=FONTS[-1], **look)


def blank_figure(what: str, height: float) -> Figure:
    """10 inches wide. what: needs matplotlib, as UserError says if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"{what} needs matplotlib, which is not installed: pip install 'polyplay[plots]'") from None
    return Figure(figsize=(10, height), dpi=160, layout="constrained", facecolor="white")


def _title(found: Sequence[Curve]) -> str:
    envs = {c.env for c in found}
    return envs.pop() if len(envs) == 1 else ""


def _draw(panel: Axes, axis: str, name: str, colour: str, runs: Sequence[Curve], pool: str) -> None:
    if lacking := next((run for run in runs if axis not in run.across), None):
        allowed = ", ".join(name for name in ("frames", "steps", "hours") if name in lacking.across)
        raise UserError(f"--x: {axis} given, but {lacking.label} counted none; allowed: {allowed}")
    band = None if pool == "none" else pool_curves(runs, axis, pool)
    if band is not None:
        label = f"{name} (mean of {len(runs)} runs, {BANDS[pool]})"
        panel.plot(band.x, band.mean, color=colour, linewidth=1.8, solid_capstyle="round", label=label)
        panel.fill_between(band.x, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
        return
    label = f"{name} ({len(runs)} runs)" if len(runs) > 1 else name
    for i, run in enumerate(runs):
        (line,) = panel.plot(run.across[axis], run.returns, color=colour, alpha=0.85, solid_capstyle="round")
        line.set(linewidth=1.6, label="" if i else label)


def dress(axes: Axes, across: str, title: str = "", from_zero: bool = True) -> None:
    """The house's look. from_zero: where the axis across begins."""
    axes.set_xlabel(across, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    if from_zero:
        axes.set_xlim(left=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
