"""Learning curves of runs: `polyplay plot RUN… --out curve.png`. Needs polyplay[plots]."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from polyplay.cli.arguments import parse_words
from polyplay.cli.pooling import BANDS, Band, Curve, names_of, pool_curves, pools_of
from polyplay.common.bounds import Count
from polyplay.common.errors import UserError
from polyplay.runs.directory import read_config
from polyplay.runs.reports.terminal import short_count
from polyplay.runs.tables import current_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
INK, FAINT = "#333333", "#e4e4e4"
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class PlotOptions:
    """Plots return over frames and over wall time. Runs that differ only in their seed become one line: their mean,
    with a band. Needs polyplay[plots].
    """

    out: str = "curve.png"
    """file of the picture: .png, .svg or .pdf"""
    title: str | None = None
    """title of the picture (none: the environment's name)"""
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
    runs, options, _ = parse_words(PlotOptions, words, "polyplay plot RUN …", "RUN: directories of runs.", several=True)
    figure = draw_curves([Path(run) for run in runs], options.title or "", options.games, options.pool)
    print_picture(figure, Path(options.out), "--out")


def print_picture(figure: Figure, out: Path, option: str) -> None:
    """Write it and print its name, and on standard error that it replaces another."""
    there = out.exists()
    write_figure(figure, out, option)
    print(out)
    if there:
        print(f"polyplay: {out} was there before and is replaced; {option} FILE names another", file=sys.stderr)


def read_curve(run: Path, games: int = 100) -> Curve:
    """A run's curve; what a resumption from an earlier checkpoint made void is left out."""
    config = read_config(run)
    if games == 100:
        rows = current_rows(run / "metrics.jsonl", "episodic_return_mean")
    else:
        rows, last = current_rows(run / "episodes.jsonl", "episodic_return"), deque[float](maxlen=games)
        for row in rows:
            last.append(row["episodic_return"])
            row["episodic_return_mean"] = fmean(last)
    if not rows:
        raise UserError(f"{run}/metrics.jsonl has no report with a finished game yet: let the run go on")
    return Curve(
        label=config["system"],
        env=str(config["config"].get("env", "")),
        settings=config["config"],
        frames=[r["frames"] for r in rows],
        minutes=[r["wall_seconds"] / 60 for r in rows],
        returns=[r["episodic_return_mean"] for r in rows],
    )


def curves(runs: Sequence[Path], out: Path, title: str = "", games: int = 100, pool: str = "interval") -> Path:
    """Write a picture of learning curves; see `draw_curves`."""
    write_figure(draw_curves(runs, title, games, pool), out)
    return Path(out)


def write_figure(figure: Figure, out: Path, option: str = "--out") -> None:
    """Raises UserError: there is no such directory, or the file cannot be written there."""
    try:
        figure.savefig(out)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as e:
        raise UserError(
            f"{option}: {out} cannot be written: {e.strerror}; name a file in a directory that is there"
        ) from None


def draw_curves(runs: Sequence[Path], title: str = "", games: int = 100, pool: str = "interval") -> Figure:
    """Return against frames and against wall time: a colour per system and configuration. pool: as PlotOptions."""
    if not runs:
        raise UserError("plot takes the directory of at least one run, none given: polyplay plot RUN … --out FILE")
    figure = blank_figure("plot", 4)
    found = [read_curve(Path(run), games) for run in runs]
    left, right = figure.subplots(1, 2, sharey=True)
    pools = pools_of(found)
    for name, colour, group in zip(names_of(pools), cycle(COLOURS), pools, strict=False):
        _draw(left, right, name, colour, group, pool)
    dress(left, "frames", title or _title(found))
    dress(right, "minutes of wall time")
    left.set_ylabel(f"mean return of the last {games} full games", color=INK)
    left.xaxis.set_major_formatter(lambda frames, _: short_count(frames, 6))
    left.legend(frameon=False, labelcolor=INK, loc="best")
    return figure


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


def _draw(left: Axes, right: Axes, name: str, colour: str, runs: Sequence[Curve], pool: str) -> None:
    band = None if pool == "none" else pool_curves(runs, pool)
    if band is not None:
        _draw_band(left, right, f"{name} (mean of {len(runs)} runs, {BANDS[pool]})", colour, band)
        return
    label = f"{name} ({len(runs)} runs)" if len(runs) > 1 else name
    for i, run in enumerate(runs):
        for axes, x in ((left, run.frames), (right, run.minutes)):
            (line,) = axes.plot(x, run.returns, color=colour, linewidth=1.6, alpha=0.85, solid_capstyle="round")
            line.set_label("" if i else label)


def _draw_band(left: Axes, right: Axes, label: str, colour: str, band: tuple[Band, Band]) -> None:
    for axes, part in zip((left, right), band, strict=True):
        axes.plot(part.x, part.mean, color=colour, linewidth=1.8, solid_capstyle="round", label=label)
        axes.fill_between(part.x, part.low, part.high, color=colour, alpha=0.18, linewidth=0)


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
