"""The three rules of the scheduler on a simulated GA3C whose optimum is known from the whole grid (bench/service.py).

Every rule starts from (1, 1, 1), from a middle and from far too many of everything, on every shape, with every seed,
and seeks for `--minutes`. Nothing here is a measurement of polyplay: time is simulated, and so is the noise.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from service import SHAPES, Service, Shape, best, known, play

from polyplay.workers.autoscale.ga3c import Config, Rule
from polyplay.workers.autoscale.worker import RULES

MIDDLE = {"agents": 16, "predictors": 2, "trainers": 2}
GOOD = 0.95  # of the optimum
BIN = 10.0  # seconds, of the curves
COLOURS = {"climb": "#0072B2", "annealing": "#D55E00", "released": "#009E73"}
LAG, CHUNKS = 8.0, 8  # of the second table: the cap in updates, and the greatest minimum batch in chunks


def starts(shape: Shape) -> dict[str, Config]:
    most = {name: high for name, (_, high) in shape.limits.items()}
    return {"(1, 1, 1)": dict.fromkeys(most, 1), "(16, 2, 2)": MIDDLE, "far too many": most}


def curve(service: Service, top: float, seconds: float) -> np.ndarray:
    """True rate over the optimum, mean per bin."""
    spent, passed = np.zeros(int(seconds / BIN)), 0.0
    for piece, rate in service.true:
        end = min(passed + piece, seconds)
        while passed < end - 1e-9:
            i = min(int(passed / BIN + 1e-9), len(spent) - 1)
            until = min(end, (i + 1) * BIN) if i < len(spent) - 1 else end
            spent[i] += (until - passed) * rate
            passed = until
    return spent / BIN / top


def one(rule: Rule, shape: Shape, start: Config, seed: int, seconds: float, top: float) -> Row:
    """One run. settled: the configuration kept last; soon: when one as good as GOOD was kept first."""
    service = Service(shape, start, seed)
    decided = play(rule, service, start, shape.limits, seed, seconds)
    held = [(0.0, start), *((at, d.new) for at, d in decided if d.kept and at <= seconds)]
    rates = [known(shape, config)["rows"] / top for _, config in held]
    good = [at for (at, _), rate in zip(held, rates, strict=True) if rate >= GOOD]
    return {
        "settled": rates[-1],
        "soon": good[0] if good else None,
        "decisions": len(decided),
        "curve": curve(service, top, seconds),
    }


def many(name: str, shape: Shape, at: str, asked: Any, top: float) -> Row:
    seconds = 60.0 * asked.minutes
    runs = [one(RULES[name], shape, starts(shape)[at], seed, seconds, top) for seed in range(asked.seeds)]
    soon = [r["soon"] for r in runs]
    reached = [s for s in soon if s is not None]
    median = statistics.median(s if s is not None else np.inf for s in soon)
    return {
        "service": shape.name,
        "start": at,
        "rule": name,
        "settled / optimum": statistics.fmean(r["settled"] for r in runs),
        "least": min(r["settled"] for r in runs),
        "over the run / optimum": float(np.mean([r["curve"].mean() for r in runs])),
        "median s to 95 %": f"{median:.0f}" if np.isfinite(median) else "never",
        "runs that came to 95 %": f"{len(reached)} of {len(runs)}",
        "decisions": statistics.fmean(r["decisions"] for r in runs),
        "curve": np.mean([r["curve"] for r in runs], axis=0).round(3).tolist(),
    }


def capped(shape: Shape, asked: Any) -> Row:
    """Our rule with the minimum training batch as a fourth dial, in chunks, under a cap of the lag."""
    bounds = {**shape.limits, "chunks": (1, CHUNKS)}
    start = {**MIDDLE, "chunks": 1}
    rule = functools.partial(RULES["climb"], lag=LAG)
    top = max(best(batching(shape, n), LAG)[0] for n in range(1, CHUNKS + 1))
    found = []
    for seed in range(asked.seeds):
        service = Chunks(shape, start, seed)
        decided = play(rule, service, start, bounds, seed, 60.0 * asked.minutes)
        found.append(service.steady(next((d.new for _, d in reversed(decided) if d.kept), start)))
    rates, lags = ([f[k] for f in found] for k in ("rows", "lag"))
    return {
        "service": shape.name,
        "optimum under the cap, rows/s": top,
        "settled / optimum": statistics.fmean(rates) / top,
        "least": min(rates) / top,
        "settled lag, mean": statistics.fmean(lags),
        "greatest": max(lags),
    }


def batching(shape: Shape, chunks: int) -> Shape:
    return replace(shape, min_batch=5 * chunks - 5)


class Chunks(Service):
    """A service with a dial for the minimum training batch, in chunks of 5 rows."""

    def steady(self, config: Config) -> dict[str, float]:
        return known(batching(self.shape, config["chunks"]), config)


def draw(rows: list[Row], out: Path) -> None:
    """Mean rate over time, a panel per service and start."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = list(starts(SHAPES[0]))
    figure = Figure(figsize=(11, 8), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(SHAPES), len(places), sharex=True, sharey=True)
    for row in rows:
        i = [s.name for s in SHAPES].index(row["service"])
        j = places.index(row["start"])
        times = (np.arange(len(row["curve"])) + 0.5) * BIN / 60.0
        axes[i, j].plot(times, row["curve"], color=COLOURS[row["rule"]], linewidth=1.6, label=row["rule"])
        axes[i, j].set_title(f"{row['service']}; from {row['start']}", loc="left", fontsize=9, color="#333333")
    for axis in axes.flat:
        axis.set_ylim(0.0, 1.02)
        axis.set_xlim(left=0.0)
        axis.grid(color="#e4e4e4", linewidth=0.8)
        axis.tick_params(colors="#333333", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("minutes", color="#333333")
    axes[1, 0].set_ylabel("rows trained per second / optimum", color="#333333")
    axes[0, 0].legend(frameon=False, loc="lower right")
    figure.savefig(out)


def report(rows: list[Row], lag: list[Row], asked: Any) -> None:
    """bench/results/scheduler_sim.json, .md and .png"""
    where = about()
    text = ["# The scheduler's rules on a simulated service", "", *lines_about(where), ""]
    text += [
        f"{asked.seeds} seeds, {asked.minutes:g} simulated minutes each. A look of one second has a deviation of 6 %,",
        "of four seconds 3 %; a slow drift of 2 % and accidents (3 % of looks) come on top. All rules have the same",
        "dials and bounds; the minimum training batch is fixed, so that trainings/s and rows trained/s have the same",
        "best place. *settled*: the true rate of the configuration that was kept last; *over the run*: the mean true",
        "rate, with all that was tried. The optimum is that of the whole grid.",
        "",
    ]
    for rule in RULES:
        mine = [r for r in rows if r["rule"] == rule]
        settled, run = (statistics.fmean(r[k] for r in mine) for k in ("settled / optimum", "over the run / optimum"))
        text.append(f"- {rule}: settled {settled:.3f} of the optimum, {run:.3f} over the run, mean of all rows below")
    text += ["", "![rates over time](scheduler_sim.png)", ""]
    text += table([{k: v for k, v in r.items() if k != "curve"} for r in rows])
    text += ["", f"## `climb` with the minimum batch as a fourth dial and a cap of {LAG:g} updates of lag", ""]
    text += ["From (16, 2, 2) and the least batch. The lag that counts is measured with noise too.", "", *table(lag)]
    publish(asked.out, {**where, "rows": rows, "capped": lag}, text)
    draw(rows, asked.out.with_suffix(".png"))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=30.0, help="simulated, of one run")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler_sim")
    asked = parser.parse_args()
    rows = []
    for shape in SHAPES:
        top, _ = best(shape)
        for at in starts(shape):
            rows += [many(name, shape, at, asked, top) for name in RULES]
    report(rows, [capped(shape, asked) for shape in SHAPES], asked)


if __name__ == "__main__":
    main()
