"""The scheduler against exhaustive search: a GA3C service on this machine, its numbers changed while it runs.

    python bench/balance.py

First a grid of fixed (agents, predictors, trainers), each cell for a window. Then the rule `climb` from a bad start and
from one that is far too large. Then, for each start, its settled numbers and the best cell in turn, A B A B. All on one
service that goes on learning Pong: a pair of windows follow each other, so what the game does is the same for both.
Score: rows trained per second.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay import systems
from polyplay.common.control import Adjustable
from polyplay.workers.autoscale.ga3c import RateReading
from polyplay.workers.autoscale.worker import reading_between, rule, run_totals
from polyplay.workers.crew import Crew
from polyplay.workers.process import tune

Cell = tuple[int, int, int]  # agents, predictors, trainers
NAMES = ("agents", "act", "learn")


class Service:
    """GA3C with room for many, its three numbers in our hands."""

    def __init__(self, asked: argparse.Namespace):
        page = systems.load("ga3c")
        self.crew = Crew(seed=0)
        most = max(*asked.agents, asked.large[0])
        config = page.Config(
            env=asked.env, agents=most, predictors=1, trainers=1, schedule="off", min_batch=asked.min_batch
        )
        self.wired = page.build(config, self.crew)
        self.served, self.learnt = self.crew.roles[:2]
        self.agents = self.served.agents
        tops = (most, page.MOST, page.MOST)
        asks = (self.agents._ask, *(r.size.ask for r in (self.served, self.learnt)))
        gets = (self.agents.dial("agents").get, *(r.size.get for r in (self.served, self.learnt)))
        for role in (self.served, self.learnt):
            self.crew._reserve(role, page.MOST)
        self.dials = [Adjustable(*x) for x in zip(NAMES, (1, 1, 1), tops, gets, asks, strict=True)]

    def turn(self, cell: Cell) -> None:
        """Have these numbers; an agent that is to leave takes a step's time for it."""
        for dial, n in zip(self.dials, cell, strict=True):
            dial.set(n)
        until = time.monotonic() + 30.0
        while time.monotonic() < until and tuple(d.get() for d in self.dials) != cell:
            self.crew.poll(0.02)

    def look(self, seconds: float) -> RateReading:
        old, began = run_totals(self.crew.counters), time.monotonic()
        while time.monotonic() < began + seconds:
            self.crew.poll(0.05)
        return reading_between(old, run_totals(self.crew.counters), time.monotonic() - began)

    def climb(self, start: Cell, minutes: float) -> tuple[Cell, list[Row]]:
        """The rule's numbers after so long, and its decisions."""
        self.turn(start)
        bounds = {d.name: (d.low, d.high) for d in self.dials}
        steps = rule("climb", lag=100)(dict(zip(NAMES, start, strict=True)), bounds, 0)
        trial, began, decisions = next(steps), time.monotonic(), []
        accepted = start
        while time.monotonic() < began + 60.0 * minutes:
            if trial.decided is not None:
                d = trial.decided
                accepted = tuple((d.new if d.kept else d.old)[n] for n in NAMES)  # type: ignore[assignment]
                at = round(time.monotonic() - began, 1)
                moves = {n: (d.old[n], d.new[n]) for n in NAMES}
                decisions.append({"s": at, "moves": moves, "before": d.before, "after": d.after, "kept": d.kept})
                print(f"balance: {at:6.1f} s  {accepted}  {d.before:.0f} → {d.after:.0f}  {d.why}", flush=True)
            self.turn(tuple(trial.config[n] for n in NAMES))  # type: ignore[arg-type]
            self.look(trial.settle)
            trial = steps.send(self.look(trial.measure))
        return accepted, decisions


def grid(service: Service, asked: argparse.Namespace) -> list[Row]:
    rows = []
    for cell in itertools.product(asked.agents, asked.predictors, asked.trainers):
        service.turn(cell)
        service.look(asked.settle)
        r = service.look(asked.window)
        rows.append({**dict(zip(("agents", "predictors", "trainers"), cell, strict=True)), **counted(r)})
        print(f"balance: cell {cell}: {r.rows:.0f} rows/s", flush=True)
    return rows


def counted(r: RateReading) -> Row:
    return {"rows/s": r.rows, "updates/s": r.updates, "predictions/s": r.predictions, "lag": r.lag}


def pairs(service: Service, settled: Cell, best: Cell, asked: argparse.Namespace) -> list[Row]:
    found = []
    for k in range(asked.pairs):
        row: Row = {"pair": k + 1}
        for name, cell in (("settled", settled), ("best", best)):
            service.turn(cell)
            service.look(asked.settle)
            row[name] = service.look(asked.pair_window).rows
        row["ratio"] = row["settled"] / row["best"]
        print(f"balance: pair {k + 1}: {row['ratio']:.3f}", flush=True)
        found.append(row)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--min-batch", type=int, default=40)
    parser.add_argument("--agents", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--predictors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--small", type=int, nargs=3, default=[1, 1, 1])
    parser.add_argument("--large", type=int, nargs=3, default=[48, 6, 6])
    parser.add_argument("--settle", type=float, default=3.0)
    parser.add_argument("--window", type=float, default=12.0)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--pair-window", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "balance")
    asked = parser.parse_args()
    tune(1)
    service = Service(asked)
    service.crew.start(service.wired.metrics)
    data: dict[str, Any] = {**about(), "starts": []}
    try:
        while not service.crew.counters.column("updates").max():
            service.crew.poll(0.1)
        data["grid"] = grid(service, asked)
        top = max(data["grid"], key=lambda r: r["rows/s"])
        best = (top["agents"], top["predictors"], top["trainers"])
        for start in (tuple(asked.small), tuple(asked.large)):
            settled, decisions = service.climb(start, asked.minutes)
            found = pairs(service, settled, best, asked)
            row = {"start": start, "settled": settled, "best": best, "decisions": decisions, "pairs": found}
            data["starts"].append({**row, "ratio": statistics.mean(p["ratio"] for p in found)})
    finally:
        service.crew.stop()
    publish(asked.out, data, page(data, asked))


def page(data: dict[str, Any], asked: argparse.Namespace) -> list[str]:
    text = ["# The scheduler against exhaustive search", "", *lines_about(data), ""]
    text += [f"{asked.env}, network ga3c, min_batch {asked.min_batch}. Grid: windows of {asked.window:g} s.", ""]
    text += [*table(sorted(data["grid"], key=lambda r: -r["rows/s"])), ""]
    for s in data["starts"]:
        text += [f"## From {s['start']}", ""]
        text += [f"After {asked.minutes:g} minutes and {len(s['decisions'])} decisions: {s['settled']}. In turn with"]
        text += [f"the grid's best {s['best']}, windows of {asked.pair_window:g} s:", "", *table(s["pairs"]), ""]
        ratios = spread(p["ratio"] for p in s["pairs"])
        text += [verdict("mean ratio", s["ratio"], least=0.95), f"- ratios: {said(ratios)}", ""]
    return text


if __name__ == "__main__":
    main()
