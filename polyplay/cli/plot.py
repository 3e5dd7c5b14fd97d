"""plot: draw learning curves of runs. This module also has the style of all charts. Needs polyplay[plots]."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyplay.cli.arguments import parse_words
from polyplay.core.errors import Count, UserError
from polyplay.core.files import Row
from polyplay.core.machine import install_command
from polyplay.core.numbers import interval_name, mean_interval, trailing_means
from polyplay.envs.pool import task_order, task_words
from polyplay.runs import directory as run_files
from polyplay.runs.options import HOW_MADE
from polyplay.runs.terminal import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 1000  # most points of a curve
WINDOW = 100  # games that a report's mean covers
LEARNED = (*HOW_MADE, "loss", "change", "hidden", "activation", "precision")  # options that change what is learned
GAMES, REPORTS = "episodes.jsonl", "metrics.jsonl"
FILES = ("config.json", GAMES)  # a run has at least one of these files; runs of a user's script have only games


@dataclass(frozen=True, eq=False)
class Curve:
    """Learning curve of a run. At the end of each game, it has the mean return of the last games.
    `across`: the points' positions on each horizontal axis, by the name of the axis (frames, steps, minutes, …).
    """

    label: str
    env: str
    settings: Row
    across: dict[str, np.ndarray]
    returns: np.ndarray
    task: bool = False  # env is one of the run's tasks; `across` counts this task's share of the run's frames and steps


def find_runs(place: Path) -> list[Path]:
    """Return the runs inside `place`, or [place] if it is itself a run. Raises UserError if it contains no runs."""
    if any((place / name).is_file() for name in FILES):
        return [place]
    inside = {path.parent for deep in run_files.INSIDE for name in FILES for path in place.glob(f"{deep}/{name}")}
    if not inside:
        run_files.read_config(place)  # raises an error that names the missing file
    return sorted(inside, key=_natural)


def _natural(path: Path) -> list[tuple[str, int]]:
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(path))]


def read_curves(place: Path, games: int = WINDOW) -> list[Curve]:
    """Return the learning curve of each run at `place`. For each run without games, print a line that says so. Raises
    UserError if no run has games.
    """
    found, missing = list[Curve](), list[UserError]()
    for run in find_runs(place):
        try:
            found += read_task_curves(run, games) or [read_curve(run, games)]
        except UserError as e:
            missing.append(e)
    if not found:
        raise missing[0]
    for why in missing:
        print(f"polyplay: left out: {why}", file=sys.stderr)
    return found


def read_curve(run: Path, games: int = WINDOW) -> Curve:
    """Return the learning curve of one run. It is made from the log of games, or from the run's reports if the log is
    empty. Raises UserError if no game has ended.
    """
    by_hand, place = not (run / "config.json").exists(), run.resolve()
    name = place.parent.name if place.name.startswith("seed-") else place.name  # runs of several seeds share a name
    config: Row = {"system": name, "config": {}} if by_hand else run_files.read_config(run)
    rows = run_files.current_rows(run / GAMES, "episodic_return")
    if rows:
        returns = trailing_means(np.array([row["episodic_return"] for row in rows], float), games)
    else:
        rows = run_files.current_rows(run / REPORTS, "episodic_return_mean") if games == WINDOW else []
        returns = np.array([row["episodic_return_mean"] for row in rows], float)
    if not rows:
        cure = f"a line of {GAMES} needs frames, wall_seconds and episodic_return" if by_hand else "let the run train"
        raise UserError(f"{run} has no finished game yet, in {GAMES} or {REPORTS}: {cure}")
    counted = [name for name in ("frames", "steps", "wall_seconds") if all(name in row for row in rows)]
    across = {name: np.array([row[name] for row in rows], float) for name in counted}
    across |= {"minutes": across["wall_seconds"] / 60, "hours": across["wall_seconds"] / 3600}
    kept, settings = thin(across["frames"], POINTS), _settings(config)
    across = {name: x[kept] for name, x in across.items()}
    return Curve(config["system"], str(settings.get("env", "")), settings, across, returns[kept])


def _settings(config: Row) -> Row:
    options = config.get("options", {})
    return {**{name: options[name] for name in LEARNED if name in options}, **config["config"]}


def read_task_curves(run: Path, games: int = WINDOW) -> list[Curve]:
    """Return one curve per task, over the task's frames and steps. Return [] if the run has only one task."""
    config = run_files.read_config(run) if (run / "config.json").exists() else {"config": {}}
    words, found = task_words(config["config"].get("env")), list[Curve]()
    rows = run_files.current_rows(run / GAMES, "episodic_return", "steps") if words else []
    order = task_order(words)
    for number, (name, _) in enumerate(words):
        own, share = [row for row in rows if row.get("task") == name], order.count(number) / len(order)
        if not own:
            continue
        returns = trailing_means(np.array([row["episodic_return"] for row in own], float), games)
        across = {k: share * np.array([row[k] for row in own], float) for k in ("frames", "steps")}
        seconds = np.array([row["wall_seconds"] for row in own], float)
        across |= {"wall_seconds": seconds, "minutes": seconds / 60, "hours": seconds / 3600}
        kept, settings = thin(across["frames"], POINTS), _settings(config)
        across = {k: x[kept] for k, x in across.items()}
        found.append(Curve(config["system"], name, settings, across, returns[kept], True))
    return found


def thin(x: np.ndarray, most: int) -> np.ndarray:
    """Return indices of at most `most` evenly spread points. Of points with equal `x`, only the last one counts."""
    last = np.flatnonzero(np.append(x[1:] != x[:-1], len(x) > 0))
    return np.unique(last[np.linspace(0, len(last) - 1, min(most, len(last))).astype(int)])


# Curves of runs that differ only in their seed, as one mean with a band.


POOLED_POINTS = 200  # points of a curve that is the mean of several runs
REPS = 500  # bootstrap samples at each point


Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # positions, mean over runs, lower bound, upper bound


def pools_of(found: Sequence[Curve]) -> list[list[Curve]]:
    """Group the curves by system and configuration. Groups are in order of first appearance."""
    pools = dict[tuple[str, str], list[Curve]]()
    for curve in found:
        pools.setdefault((curve.label, json.dumps(curve.settings, sort_keys=True)), []).append(curve)
    return list(pools.values())


def names_of(pools: Sequence[Sequence[Curve]]) -> list[str]:
    """Return a name for each group of curves. The name has the system and the settings that differ between groups of
    the same system. If there are several environments, the name also has the environment.
    """
    heads = [pool[0] for pool in pools]
    several = len({head.env for head in heads}) > 1
    return [" · ".join([h.label, *[h.env] * several, *_own_settings(h, heads)]) for h in heads]


def _own_settings(head: Curve, heads: Sequence[Curve]) -> list[str]:
    others = [h for h in heads if (h.label, h.env) == (head.label, head.env)]
    names = [k for k, v in head.settings.items() if any(h.settings.get(k) != v for h in others)]
    values = ((name, head.settings[name]) for name in names[:3] if head.settings[name] not in (None, []))
    return [f"{name.replace('_', ' ')} {f'{v:g}' if isinstance(v, float) else v}" for name, v in values]


def band_name(band: str, n: int) -> str:
    """Return the legend's name for the band around the mean of n runs."""
    return interval_name(n) if band == "interval" else "range"


def pool_curves(runs: Sequence[Curve], axis: str, band: str) -> Band | None:
    """Return the mean of several runs and the band around it, at positions on `axis` that all runs reach. Return None
    if the list has only one run, or if the runs have no common positions.
    """
    across = [run.across[axis] for run in runs]
    begin, end = max(x[0] for x in across), min(x[-1] for x in across)
    if len(runs) < 2 or begin >= end:
        return None
    grid = np.linspace(begin, end, POOLED_POINTS)
    returns = np.stack([np.interp(grid, x, run.returns) for x, run in zip(across, runs, strict=True)])
    low, high = returns.min(0), returns.max(0)
    if band_name(band, len(runs)) != "range":
        low, high = np.array([mean_interval(column, reps=REPS) for column in returns.T]).T
    return grid, returns.mean(0), low, high


COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
INK, FAINT = "#333333", "#e4e4e4"
PICTURES = (".png", ".svg", ".pdf")
ACROSS = {"frames": "frames", "steps": "agent steps", "minutes": "minutes of wall time", "hours": "hours of wall time"}
COLUMNS = 3  # most panels per row, if each task has a panel
LINE = 0.18  # inches per line of the legend below the panels


@dataclass(frozen=True)
class PlotOptions:
    """Plot the return of all full games over frames and over wall time. Runs that differ only in their seed become one
    line: their mean, with a band. Needs polyplay[plots].
    """

    out: str = "curve.png"  # image file to write: .png, .svg or .pdf
    title: str | None = None  # title of the chart (none: the environment's name)
    label: tuple[str, ...] = ()
    # name of each RUN in the legend, in order, without commas; runs with the same name become one line (none: named by
    # their settings)
    x: Literal["frames", "steps", "hours"] | None = None
    # horizontal axis: frames, agent steps, or hours of wall time (none: frames and minutes, a panel each)
    games: Count = 100  # number of last full games to average
    pool: Literal["interval", "range", "none"] = "interval"
    # band around the mean of runs that differ only in their seed: the mean's 95 % confidence interval (of two or three
    # runs, their range), or the range from the lowest to the highest run (none: one line per run)

    def __post_init__(self) -> None:
        check_name(self.out, "--out")


def check_name(picture: str, option: str) -> None:
    """Raise UserError if the file name of an image does not end in .png, .svg or .pdf."""
    if not picture.endswith(PICTURES):
        raise UserError(f"{option} {picture}: must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")


def command(words: list[str]) -> None:
    """Run `polyplay plot`: write the chart and print its name. If the chart replaces a file, say so on stderr."""
    about = "RUN: directories of runs, or of several seeds."
    runs, options, _ = parse_words(PlotOptions, words, "polyplay plot RUN …", about, several=True)
    figure = draw_curves([Path(run) for run in runs], options)
    print_picture(figure, Path(options.out), "--out")


def print_picture(figure: Figure, out: Path, option: str) -> None:
    """Write a chart to a file and print its name. If the chart replaces a file, say so on standard error."""
    there = out.exists()
    write_figure(figure, out, option)
    print(out)
    if there:
        print(f"polyplay: {out} existed before and was replaced; {option} FILE chooses another file", file=sys.stderr)


def curves(runs: Sequence[Path], out: Path, games: int = 100) -> Path:
    """Write a chart of the runs' learning curves to the file `out`. See `draw_curves`."""
    write_figure(draw_curves(runs, PlotOptions(games=games)), out)
    return Path(out)


def write_figure(figure: Figure, out: Path, option: str = "--out") -> None:
    """Write a figure to an image file. Raises UserError if the file cannot be written."""
    try:
        figure.savefig(out)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as e:
        why = f"{option}: {out} cannot be written: {e.strerror}"
        raise UserError(f"{why}; choose a file in an existing directory") from None


def draw_curves(runs: Sequence[Path], options: PlotOptions | None = None) -> Figure:
    """Draw return over frames and over wall time, or only over `options.x`. Runs that differ only in their seed, or
    that have the same label, have the same color. Raises UserError if no run has games.
    """
    options = options or PlotOptions()
    if not runs:
        raise UserError("plot takes the directory of at least one run: polyplay plot RUN … --out FILE")
    by_run = [read_curves(Path(run), options.games) for run in runs]
    if any(curve.task for found in by_run for curve in found):
        return _draw_tasks(by_run, options)
    figure = blank_figure("plot", 4)
    envs = {curve.env for found in by_run for curve in found}
    title = options.title or (envs.pop() if len(envs) == 1 else "")
    axes = ["frames", "minutes"] if options.x is None else [options.x]
    pools = pools_of([curve for found in _labeled(by_run, options.label) for curve in found])
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        for name, color, group in zip(names_of(pools), cycle(COLORS), pools, strict=False):
            _draw(panel, axis, name, color, group, options.pool)
        up = f"mean return of the last {options.games} full games" if panel is panels[0] else ""
        dress(panel, ACROSS[axis], title if up else "", up, counts=axis in ("frames", "steps"))
    handles, names = panels[0].get_legend_handles_labels()
    figure.set_figheight(figure.get_figheight() + LINE * len(names))
    figure.legend(handles, names, loc="outside lower left", fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _draw_tasks(by_run: Sequence[Sequence[Curve]], options: PlotOptions) -> Figure:
    """Draw a panel for each task, with the curves of all runs that play the task."""
    found = [curve for of in _labeled(by_run, options.label, keep_env=True) for curve in of]
    tasks, axis = list(dict.fromkeys(curve.env for curve in found)), options.x or "frames"
    wide = min(COLUMNS, len(tasks))
    high = -(-len(tasks) // wide)
    figure = blank_figure("plot", 0.6 + 2.2 * high)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    heads = [replace(pool[0], env="") for pool in pools_of(found)]
    names = names_of([[head] for head in heads])
    colors = dict(zip(dict.fromkeys(names), cycle(COLORS), strict=False))
    what = f"{ACROSS[axis]} of the game" if axis != "hours" else ACROSS[axis]
    for i, (task, panel) in enumerate(zip(tasks, panels, strict=False)):
        for name, group in zip(names, pools_of(found), strict=True):
            if own := [curve for curve in group if curve.env == task]:
                _draw(panel, axis, name, colors[name], own, options.pool)
        across, up = what if i + wide >= len(tasks) else "", "" if i % wide else f"return, last {options.games} games"
        dress(panel, across, task.removeprefix("ALE/"), up, counts=axis != "hours")
    for panel in panels[len(tasks) :]:
        panel.set_axis_off()
    figure.suptitle(options.title or "", x=0.02, ha="left", color=INK, fontsize=11)
    shown = dict[str, Any]()
    for panel in panels[: len(tasks)]:
        handles, labels = panel.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.set_figheight(figure.get_figheight() + LINE * len(shown))
    figure.legend(shown.values(), shown.keys(), loc="outside lower left", fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _labeled(by_run: Sequence[Sequence[Curve]], labels: Sequence[str], keep_env: bool = False) -> list[list[Curve]]:
    """Name the curves by --label. Raises UserError if the number of labels differs from the number of runs."""
    if not labels:
        return [list(found) for found in by_run]
    if len(labels) != len(by_run):
        allowed = f"must be one name per RUN, without commas: --label {' '.join(['NAME'] * len(by_run))}"
        raise UserError(f"--label {' '.join(labels)}: {allowed}")
    named = zip(labels, by_run, strict=True)
    return [
        [replace(curve, label=label, env=curve.env if keep_env else "", settings={}) for curve in found]
        for label, found in named
    ]


def blank_figure(what: str, height: float) -> Figure:
    """Return an empty figure that is 10 inches wide. Raises UserError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"{what} needs matplotlib, which is not installed: {install_command('plots')}") from None
    return Figure(figsize=(10, height), dpi=160, layout="constrained", facecolor="white")


def _draw(panel: Axes, axis: str, name: str, color: str, runs: Sequence[Curve], pool: str) -> None:
    if lacking := next((run.label for run in runs if axis not in run.across), None):
        raise UserError(f"--x {axis}: {lacking} has no such count; use frames or hours")
    if pool != "none" and (band := pool_curves(runs, axis, pool)):
        (x, mean, low, high), label = band, f"{name} (mean of {len(runs)} runs, {band_name(pool, len(runs))})"
        panel.plot(x, mean, color=color, linewidth=1.8, solid_capstyle="round", label=label)
        panel.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        return
    label = f"{name} ({len(runs)} runs)" if len(runs) > 1 else name
    for i, run in enumerate(runs):
        (line,) = panel.plot(run.across[axis], run.returns, color=color, alpha=0.85, solid_capstyle="round")
        line.set(linewidth=1.6, label="" if i else label)


def dress(axes: Axes, across: str, title: str = "", up: str = "", from_zero: bool = True, counts: bool = False) -> None:
    """Style a panel of a chart. The texts `across` and `up` label its horizontal and its vertical axis.
    `from_zero`: whether the horizontal axis starts at 0.
    `counts`: whether to shorten the numbers on the horizontal axis.
    """
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    if from_zero:
        axes.set_xlim(left=0)
    if counts:
        axes.xaxis.set_major_formatter(lambda n, _: short_count(n, 6))
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
