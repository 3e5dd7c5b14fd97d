"""What stale gradients do to Gorila, with and without its two rules: drop what is too old, drop outliers.

    python bench/staleness.py                  # 3 seeds, about 5 min on 2 cores
    python bench/staleness.py --resume --seeds 0 1 2 3 4
    python bench/staleness.py --short

Four learners, in turn and in one thread, so that a run is the same every time, play toy:catch through a server of two
shards. Some of them are late: what they push was made with the weights of `d` of their own updates ago, as if they or
their network were slow; a shard sees 4·d. Where batches are broken, every 41st has its returns a hundredfold.
Nothing here is a timing: what counts are gradients that came to the server.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, at_once, command_line, lines_about, publish, table

from polyplay import systems
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import write_json
from polyplay.learning import Loss, LossOutput
from polyplay.weights.update import Apply, Sums
from polyplay.workers.crew import Crew

LEARNERS = 4
GOAL, GAMES = 0.5, 100  # mean return of the last games that counts as learnt; random play: -0.6, perfect play: 1
NEVER = 10**9  # a limit on staleness that nothing reaches
LIMIT = 40  # the default's: 10 for each learner
EVERY = 41  # of batches one is broken
NET: Any = {"env": "toy:catch", "network": "mlp", "optimizer": "adam", "learning_rate": 2e-3, "optimizer_eps": 1e-5}
PACE: Any = {
    "lanes": 2,
    "unroll": 1,
    "batch": 32,
    "ratio": 8.0,
    "capacity": 10_000,
    "learning_starts": 250,
    "target_update": 50,
}
CATCH: Any = {
    **NET,
    **PACE,
    "learners": LEARNERS,
    "shards": 2,
    "n_step": 3,
    "epsilon": 0.05,
    "epsilon_decay_steps": 4_000,
}
BINS = 30

# name: (late learners, their d, the server's limit, k of outliers, batches are broken)
CASES: dict[str, tuple[int, int, int, float, bool]] = {
    "nobody late": (0, 0, LIMIT, 4.0, False),
    "1 of 4 late by 5": (1, 5, LIMIT, 4.0, False),
    "1 of 4 late by 50": (1, 50, NEVER, 4.0, False),
    "1 of 4 late by 50, dropped": (1, 50, LIMIT, 4.0, False),
    "2 of 4 late by 50": (2, 50, NEVER, 4.0, False),
    "2 of 4 late by 50, dropped": (2, 50, LIMIT, 4.0, False),
    "broken batches": (0, 0, LIMIT, 0.0, True),
    "broken batches, outliers dropped": (0, 0, LIMIT, 4.0, True),
}
PANELS = (("stale gradients", 0, 6), ("outliers", 6, 8))  # of the picture, with the first case in each


class Late:
    """A server for learners of which the last few push what they made `d` updates ago; else it is the server."""

    def __init__(self, server: Any, late: int, d: int):
        self.server, self.first, self.d = server, server.workers - late, d

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["server"], name)

    def open(self, ctx: Any, module: Any) -> Any:
        opened = self.server.open(ctx, module)
        return _Late(opened, self.d) if ctx.index >= self.first else opened


class _Late:
    """A learner's end: gradients wait here, each with the versions that it was made with, until `d` more were made."""

    def __init__(self, opened: Any, d: int):
        self.opened, self.vector, self.d = opened, opened.vector, d
        self.kept: deque[tuple[Any, np.ndarray]] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["opened"], name)

    def apply(self, rate: float, sums: Sums) -> Apply:
        held = self.opened.versions
        self.kept.append((self.vector.grad.clone(), held.copy()))
        if len(self.kept) <= self.d:  # the first of them have not arrived yet
            self.opened.applied_to = self.opened.counts.version
            return float(self.vector.grad.norm()), sums
        gradient, made_with = self.kept.popleft()
        now = held.copy()
        self.vector.grad.copy_(gradient)
        held[:] = made_with
        try:
            return (yield from self.opened.apply(rate, sums))
        finally:
            held[:] = now


class Broken(Loss):
    """A loss of batches some of which are broken."""

    def __init__(self, loss: Loss):
        self.loss, self.metrics, self.seen = loss, loss.metrics, 0

    def __call__(self, policy: Any, target: Any, batch: Any, state: Any, hyper: Any) -> LossOutput:
        self.seen += 1
        if self.seen % EVERY == 0:
            batch["return"] = 100.0 * batch["return"]
        return self.loss(policy, target, batch, state, hyper)


def crew_of(case: str, seed: int) -> Crew:
    late, d, limit, k, broken = CASES[case]
    page, crew = systems.load("gorila"), Crew(seed, serial=True, steps=10**9)
    page.build(page.Config(**CATCH, stale=limit, outlier=k), crew)
    role = crew.roles[0]
    spec = role.spec
    loss = Broken(spec.loss) if broken else spec.loss
    crew.roles[0] = role.holding(spec=dataclasses.replace(spec, update=Late(spec.update, late, d), loss=loss))
    crew.start(())
    return crew


def run(given: tuple[str, int, int]) -> Row:
    """One run until its shards had so many gradients: its games, and what became of gradients."""
    case, seed, updates = given
    crew = crew_of(case, seed)
    server, games, last = crew.roles[1].holds["server"], list[tuple[int, float]](), deque[float](maxlen=GAMES)
    row: Row = {"case": case, "seed": seed, "updates": updates, "learnt at": None, "steps then": None}
    try:
        for told in finished(crew, server, updates):
            for result in told["returns"]:
                last.append(result)
                games.append((told["came"], result))
            if row["learnt at"] is None and len(last) == GAMES and statistics.fmean(last) >= GOAL:
                row |= {"learnt at": told["came"], "steps then": told["steps"]}
        found = server.totals()
    finally:
        crew.stop()
    row |= {"end": statistics.fmean(last), "curve": curve(games, updates)}
    row |= {"applied": int(found["applied"].sum()), "stale": int(found["stale"].sum())}
    return row | {"outliers": int(found["outlier"]), "most stale": int(found["lag_max"])}


def finished(crew: Crew, server: Any, updates: int) -> Iterator[Row]:
    """Gradients that came so far (of a part, the mean), agent steps, and returns of games that ended meanwhile."""
    assert crew.counters is not None
    seen = np.zeros(crew.counters.workers, int)
    came = 0
    while came < updates:
        crew.poll(0.005)
        totals, returns = server.totals(), list[float]()
        came = int(totals["applied"].sum() + totals["stale"].sum()) // server.shards + int(totals["outlier"])
        ended = crew.counters.column("episodes").astype(int)
        for i in np.flatnonzero(ended > seen):
            returns += [
                float(crew.counters.games[i, j % len(crew.counters.games[i]), 0]) for j in range(seen[i], ended[i])
            ]
        seen = ended
        yield {"came": came, "steps": int(crew.counters.column("steps").sum()), "returns": returns}


def curve(games: list[tuple[int, float]], updates: int) -> list[float]:
    """Mean return of the games that ended in each of BINS equal parts of the updates; where none did, as between."""
    at = np.minimum(np.array([n for n, _ in games]) * BINS // updates, BINS - 1)
    returns = np.array([r for _, r in games])
    there = np.unique(at)
    return np.interp(np.arange(BINS), there, [returns[at == i].mean() for i in there]).round(3).tolist()


def summed(rows: list[Row]) -> list[Row]:
    answer = []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case]
        learnt = [r["learnt at"] for r in mine if r["learnt at"] is not None]
        row: Row = {"case": case, "seeds": len(mine), f"reached {GOAL:g}": f"{len(learnt)} of {len(mine)}"}
        row["updates until then"] = " ".join(str(r["learnt at"] or "–") for r in mine)
        row["area"] = statistics.fmean(statistics.fmean(r["curve"]) for r in mine)
        row["end"] = statistics.fmean(r["end"] for r in mine)
        row["dropped as stale, %"] = 100 * sum(r["stale"] for r in mine) / sum(r["stale"] + r["applied"] for r in mine)
        row["outliers"] = sum(r["outliers"] for r in mine) // len(mine)
        answer.append(row | {"most stale": max(r["most stale"] for r in mine)})
    return answer


def page(what: Row) -> list[str]:
    rows = what["rows"]
    text = ["# Gorila under stale gradients and broken batches", "", *lines_about(what), ""]
    text += ["![curves](staleness.png)", "", *table(summed(rows)), ""]
    text += [
        f"{rows[0]['updates']} gradients of each run, dropped ones too: *updates* counts them. *area*: mean return of",
        f"games over all of it; *end*: of the last {GAMES} games; both with each learner's ε (random play: -0.6, best",
        f"play: 1). *dropped*: the limit is {LIMIT} updates of a shard, the default of 4 learners; else there is none.",
        f"*most stale*: of what came. Outliers: beyond mean + 4 deviations; 1 batch in {EVERY} is broken.",
    ]
    return text


def draw(rows: list[Row], out: Path) -> None:
    """A line for each case, the mean of its seeds, and where these lie."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (title, begin, end) in zip(panels, PANELS, strict=True):
        for case, color in zip([next(iter(CASES)), *list(CASES)[max(begin, 1) : end]], COLORS, strict=False):
            curves = np.array([r["curve"] for r in rows if r["case"] == case])
            if len(curves):
                at = (np.arange(BINS) + 0.5) * rows[0]["updates"] / BINS
                panel.fill_between(at, curves.min(0), curves.max(0), color=color, alpha=0.12, linewidth=0)
                dashes = "--" if "dropped" in case else "-"
                panel.plot(at, curves.mean(0), dashes, color=color, linewidth=1.8, label=case)
        panel.set_title(title, loc="left", color=INK)
        panel.set_xlabel("gradients that came to the server", color=INK)
        panel.grid(color=FAINT)
        panel.tick_params(colors=INK, length=0)
        panel.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right")
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("mean return of games", color=INK)
    figure.savefig(out)


def report(asked: argparse.Namespace, where: Row, rows: list[Row]) -> None:
    order = list(CASES)
    rows = sorted(rows, key=lambda r: (order.index(r["case"]), r["seed"]))
    if rows:
        publish(asked.out, {**where, "rows": rows}, page({**where, "rows": rows}))
        draw(rows, asked.out.with_suffix(".png"))


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=6_000, help="gradients of a run, dropped ones too")
    parser.add_argument("--processes", type=int, default=2, help="runs at once")
    parser.add_argument("--resume", action="store_true", help="keep runs that are there")
    parser.add_argument("--short", action="store_true", help="one seed, 400 gradients")
    parser.add_argument("--out", type=Path, default=RESULTS / "staleness")
    asked = parser.parse_args()
    if asked.short:
        asked.seeds, asked.updates = [0], 400
    where, rows = about(), list[Row]()
    if asked.resume and asked.out.with_suffix(".json").exists():
        rows = [
            r for r in json.loads(asked.out.with_suffix(".json").read_text())["rows"] if r["updates"] == asked.updates
        ]
    there = {(r["case"], r["seed"]) for r in rows}
    wanted = [(case, seed, asked.updates) for seed in asked.seeds for case in CASES if (case, seed) not in there]
    for row in at_once(run, wanted, asked.processes):
        rows.append(row)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(asked.out.with_suffix(".json"), {**where, "rows": rows})
        print(f"staleness: {row['case']}, seed {row['seed']}: {row['learnt at']}, end {row['end']:.2f}", flush=True)
    report(asked, where, rows)


if __name__ == "__main__":
    main()
