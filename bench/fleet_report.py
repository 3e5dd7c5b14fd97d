"""The page and the picture of bench/fleet.py."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
from common import Row, lines_about, table, verdict
from senders import SLACK

from polyplay.cli.plot import COLOURS, FAINT, INK


def summed(windows: list[Row]) -> list[Row]:
    """Median, least and greatest of every column."""
    names = [k for k in windows[0] if k != "MB"] + ["MB"] * ("MB" in windows[0])
    values = {k: [w[k] for w in windows if w.get(k) is not None] for k in names}
    ways = {"median": statistics.median, "least": min, "greatest": max}
    return [{"of the windows": how, **{k: f(v) if v else None for k, v in values.items()}} for how, f in ways.items()]


def _flat(row: Row) -> Row:
    """A role's faults, of seconds the median and the greatest."""
    plain = {k: v for k, v in row.items() if "seconds" not in k}
    times = {k.partition("_")[0]: row[k] or {} for k in row if k not in plain}
    return {**plain, **{f"{k} {m} s": found.get(m) for k, found in times.items() for m in ("median", "max")}}


def page(what: Row, asked: argparse.Namespace, held: float) -> list[str]:
    windows, seconds = what["windows"], asked.unroll * asked.actors / asked.rate
    text = ["# A fleet of simulated actors", "", *lines_about(what)]
    text.append(
        f"- {asked.actors} actors in {asked.senders} processes, {asked.memories} memories, rollouts of {asked.unroll}"
    )
    text.append(f"- {asked.capacity:,} transitions kept; batches of 512, {asked.prefetch} ready in each memory's trays")
    text.append(
        f"- delay {asked.delay:g} ± {asked.jitter:g} s, {100 * asked.loss:g} % of rollouts lost, faults: {asked.fail}"
    )
    text += [
        "",
        "![rates](fleet.png)",
        "",
        f"{len(windows)} windows of {asked.window:g} s:",
        "",
        *table(summed(windows)),
        "",
    ]
    text += [
        "*age*: from when a rollout's last row was made until it could be drawn (but for its last 3, whose windows the",
        f"next rollout completes); its first row is {seconds:.1f} s older, so long it takes to be made. *lag*: of rows",
        f"learnt from, in updates since the weights that acted; most {what['lag_max']:.0f}. *lost*, *blocked*, *late*:",
        f"rollouts in a window; blocked had no slot, late were more than {SLACK:g} s behind. *cores*: CPU over time.",
        "",
    ]
    for way, goal in (("in/s", asked.rate), ("out/s", asked.out_rate)):
        each = [w[way] for w in windows]
        text.append(verdict(f"transitions {way}, mean of all windows", statistics.fmean(each), least=goal))
        text.append(verdict(f"transitions {way}, the least window", min(each), least=0.95 * goal))
    if what["harm"]:
        text += ["", *table([{"role": role, **_flat(row)} for role, row in what["harm"]["roles"].items()])]
    if what["maximum"]:
        good = [r["of the target"] for r in what["maximum"] if r["held"] == "yes"]
        most = f"The most that is held: {max(good):.2f} × what was asked for" if good else "More than that is not held"
        text += ["", f"## {most}", ""]
        text += [f"Both rates at once; held: at least {100 * held:.0f} % of both.", "", *table(what["maximum"])]
    return text


def draw(what: Row, asked: argparse.Namespace, out: Path) -> None:
    """Rates and ages by window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rates, ages = figure.subplots(2, 1, sharex=True)
    at = (np.arange(len(what["windows"])) + 0.5) * asked.window
    for (way, goal, name), colour in zip(
        (("in/s", asked.rate, "in"), ("out/s", asked.out_rate, "out")), COLOURS, strict=False
    ):
        rates.plot(at, [w[way] for w in what["windows"]], color=colour, marker="o", markersize=3, label=name)
        rates.axhline(goal, color=colour, linewidth=0.8, linestyle="--")
    for q, colour in ((50, COLOURS[2]), (99, COLOURS[3])):
        ages.plot(
            at, [w[f"age p{q}, s"] for w in what["windows"]], color=colour, marker="o", markersize=3, label=f"p{q}"
        )
    rates.set_ylabel("transitions a second", color=INK)
    ages.set_ylabel("age when drawable, s", color=INK)
    ages.set_xlabel("seconds", color=INK)
    ages.set_yscale("log")
    for axes in (rates, ages):
        axes.grid(color=FAINT)
        axes.tick_params(which="both", colors=INK, length=0)
        axes.legend(frameon=False, labelcolor=INK, loc="best", ncols=2)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    rates.set_ylim(bottom=0)
    rates.set_title(f"{asked.actors} simulated actors; dashed: what is to be held", loc="left", color=INK, fontsize=11)
    figure.savefig(out)
