"""The page and the picture of score_race.py. A racer that did not arrive gives a bound, and the page says so."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from common import QUIET, Row, lines_about, table
from racers import RACERS

from polyplay.cli.plot import COLOURS, FAINT, INK

OURS = {r.name for r in RACERS if r.ours}
WITHIN, LEAST = 15.0, 2.0  # minutes for the best of ours; how much later the best peer


def outcome(row: Row) -> str:
    """A run in words."""
    mean = "no 100 games" if row["best"] is None else f"best mean {row['best']:.1f}"
    if row["reached_s"] is not None:
        return f"18 after {row['reached_s']:.0f} s, {row['reached_frames'] / 1e6:.2f} M frames"
    if row.get("failed"):
        return f"FAILED: {row['failed']}; {mean}"
    last = "no game ended" if row["last"] is None else f"{row['last']:.1f} at the end"
    return f"not reached in {row['ended_s']:.0f} s: {mean}, {last}, {row['frames'] / 1e6:.2f} M frames"


def arrival(rows: list[Row], who: str) -> tuple[float, bool] | None:
    """(median seconds of its seeds, whether that was reached): not reached, the least that it can be. None: no run."""
    mine = [r for r in rows if r["who"] == who and not r.get("failed")]
    if not mine:
        return None
    times = [r["reached_s"] if r["reached_s"] is not None else math.inf for r in mine]
    middle = statistics.median_high(times)
    return (
        (middle, True) if math.isfinite(middle) else (min(r["ended_s"] for r in mine if r["reached_s"] is None), False)
    )


def first(rows: list[Row], ours: bool) -> tuple[str, float, bool] | None:
    """The soonest of ours, or of the peers: name, seconds, whether reached. Of peers that all were not, the one whose
    mean was best.
    """
    found = {w: arrival(rows, w) for w in dict.fromkeys(r["who"] for r in rows) if (w in OURS) == ours}
    there = [(not a[1], a[0] if a[1] else -_best(rows, w), w) for w, a in found.items() if a]
    if not there:
        return None
    name = min(there)[2]
    seconds, reached = found[name] or (math.inf, False)
    return name, seconds, reached


def _best(rows: list[Row], who: str) -> float:
    means = [r["best"] if r["best"] is not None else r["last"] for r in rows if r["who"] == who]
    return max((m for m in means if m is not None), default=-math.inf)


def judged(rows: list[Row]) -> list[str]:
    """The two targets."""
    ours, peer = first(rows, ours=True), first(rows, ours=False)
    text = []
    if ours:
        name, seconds, reached = ours
        said = f"{seconds / 60:.2f} minutes" if reached else f"not reached in {seconds / 60:.1f} minutes"
        met = "met" if reached and seconds <= 60 * WITHIN else "NOT met"
        text.append(f"- the best of ours, {name}: **{said}**, target ≤ {WITHIN:g}: {met}")
    if ours and peer and ours[2]:
        name, seconds, reached = peer
        ratio = seconds / ours[1]
        if reached:
            met = "met" if ratio >= LEAST else "NOT met"
            text.append(
                f"- the best peer, {name}: {seconds / 60:.2f} minutes, **{ratio:.2f}** times ours, target ≥ 2: {met}"
            )
        else:
            bound = f"no peer reached 18; best mean {_best(rows, name):.1f}, by {name}"
            met = "met" if ratio >= LEAST else "open: a longer cap would tell"
            text.append(f"- {bound}. A bound, not a time: **≥ {ratio:.2f}** times ours, target ≥ 2: {met}")
    return text


def page(kept: Row) -> list[str]:
    """Markdown."""
    rows = kept["rows"]
    text = ["# Time to score: Pong to a mean full-game return of 18", "", "![learning curves](race.png)", ""]
    text += [*lines_about(kept), *(f"- {who}: {what}" for who, what in kept["peers"].items()), "", *judged(rows), ""]
    text += ["From the start of the process until the mean of the last 100 games finished in training, unclipped and"]
    text += [
        "whole, was 18 or more. Each racer ran alone. Ours ran with `quick`, which was made for this game; the peers"
    ]
    text += ["with the hyper-parameters that they publish for Atari games or for Pong.", ""]
    text += table([cells(r) for r in rows])
    text += ["", f"CPU: cores, of all processes of the racer; BUSY: others used more than {QUIET} core.", ""]
    named = dict.fromkeys(r["who"] for r in rows)
    return [*text, "Settings:", "", *(_setting(kept["racers"][w], w) for w in named)]


def _setting(racer: Row, name: str) -> str:
    return f"- {name}: {racer['source']}: `{racer['program']}: {racer['flags']}`"


def cells(r: Row) -> Row:
    others = r["others_cores"]
    done = r["reached_s"] is not None
    return {
        "who": r["who"],
        "seed": r["seed"],
        "minutes until 18": f"{r['reached_s'] / 60:.2f}" if done else f"not in {r['ended_s'] / 60:.1f}",
        "best mean of 100": "fewer than 100 games" if r["best"] is None else f"{r['best']:.1f}",
        "mean at the end": None if r["last"] is None else f"{r['last']:.1f}",
        "games": r["games"],
        "M frames": r["frames"] / 1e6,
        "frames/s": r["frames"] / r["ended_s"],
        "CPU, cores": r["own_cores"],
        "peak PSS MB": r["pss_mb"],
        "processes": r["processes"],
        "others' cores": f"{others:.2f}{' BUSY' if others > QUIET else ''}",
        "commit": f"`{r['commit'][:7]}`" if r.get("commit") else None,
        "note": r.get("failed"),
    }


def picture(rows: list[Row], out: Path) -> None:
    """Mean return against time and against frames: ours in thick lines, a colour per racer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(r["who"] for r in rows))
    for r in rows:
        index = names.index(r["who"])
        style: Any = {"color": COLOURS[index % len(COLOURS)], "linestyle": ("-", "--", ":")[index // len(COLOURS) % 3]}
        style |= {"linewidth": 2.2 if r["who"] in OURS else 1.2}
        again = any(q is not r and q["who"] == r["who"] for q in rows[: rows.index(r)])
        mean = [p["mean"] for p in r["curve"]]
        for axes, what, unit in zip(panels, ("seconds", "frames"), (60.0, 1e6), strict=True):
            axes.plot([p[what] / unit for p in r["curve"]], mean, label=None if again else r["who"], **style)
    for axes, label in zip(panels, ("minutes since the start of the process", "million frames"), strict=True):
        axes.axhline(18.0, color=INK, linestyle="--", linewidth=0.8, zorder=0)
        axes.set_xlabel(label, color=INK)
        axes.set_xlim(left=0.0)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.tick_params(colors=INK, length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("mean return of the last 100 full games", color=INK)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, labelcolor=INK)
    figure.savefig(out)
