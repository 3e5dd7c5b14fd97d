"""What actors and memories in workers of their own cost a learner: updates a second with its actors, and without them.

    python bench/apex.py                      # 2, 4 and 8 actors, about 10 min
    python bench/apex.py --actors 2 --window 10

One run per number of actors: when the memory is full enough, windows take turns, with the actors at work and with them
stopped (SIGSTOP): then the same learner is fed from the same memory, and nobody else works. A share is of two windows
one after the other; the target is that learning is at least 85 % as fast. As published, actors run
freely.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import (
    RESULTS,
    Row,
    about,
    at_once,
    command_line,
    commands,
    lines_about,
    publish,
    said,
    spread,
    table,
    verdict,
)

from polyplay import systems
from polyplay.acting.actor import act_rows
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import write_json
from polyplay.envs import Envs
from polyplay.nets.factory import build_network
from polyplay.systems.apex import Config
from polyplay.weights.params import FlatParams
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role

LEAST = 0.85
PATIENCE = 600.0  # seconds for the first updates


def crew_of(actors: int, asked: argparse.Namespace) -> Crew:
    page = systems.load("apex")
    more: Any = {"actors": actors, "lanes": asked.lanes, "replay_workers": asked.memories}
    kept: Any = {"capacity": 50_000, "learning_starts": asked.start, "network": asked.network, "batch": asked.batch}
    crew = Crew(steps=10**12, log=lambda kind, text: print(f"apex: {text}", flush=True))
    page.build(Config(env=asked.env, atari="baselines", prefetch=4, unroll=25, optimizer="adam", **more, **kept), crew)
    return crew


def processes(crew: Crew, role: Role) -> list[psutil.Process]:
    """A role's workers and all below them."""
    workers = [psutil.Process(w.runs.pid) for w in crew.workers() if w.role is role]
    return [p for w in workers for p in (w, *w.children(recursive=True))]


def rate(crew: Crew, role: Role, seconds: float) -> tuple[float, float]:
    """Updates and agent steps a second."""
    assert crew.counters is not None
    updates, steps, row = crew.counters.column("updates"), crew.counters.column("steps"), crew.rows(role)[0]
    before, begun, acted = time.monotonic(), updates[row], steps.sum()
    while time.monotonic() < before + seconds:
        crew.poll(0.1)
    passed = time.monotonic() - before
    return float(updates[row] - begun) / passed, float(steps.sum() - acted) / passed


def measured(actors: int, asked: argparse.Namespace) -> list[Row]:
    crew, rows = crew_of(actors, asked), []
    act, learn = (next(r for r in crew.roles if r.name == name) for name in ("act", "learn"))
    crew.start()
    try:
        until = time.monotonic() + PATIENCE
        while crew.counters.column("updates").max() < 20:  # type: ignore[union-attr]
            if time.monotonic() > until:
                raise SystemExit(f"apex: no 20 updates within {PATIENCE:.0f} s")
            crew.poll(0.1)
        for number in range(asked.rounds):
            together, steps = rate(crew, learn, asked.window)
            stopped = processes(crew, act)
            for p in stopped:
                os.kill(p.pid, signal.SIGSTOP)
            rate(crew, learn, 1.0)  # what was in flight
            alone, _ = rate(crew, learn, asked.window)
            for p in stopped:
                os.kill(p.pid, signal.SIGCONT)
            row: Row = {"actors": actors, "round": number + 1, "updates/s": together, "agent steps/s": steps}
            rows.append(row | {"updates/s fed from memory": alone, "share": together / alone if alone else 0.0})
            print(f"apex: {actors} actors, round {number + 1}: {together:.2f} of {alone:.2f} updates/s", flush=True)
    finally:
        crew.stop()
    return rows


def main() -> None:
    parser = command_line(__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--memories", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--start", type=int, default=5_000)
    parser.add_argument("--network", default="nature")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window", type=float, default=20.0)
    parser.add_argument("--out", type=type(RESULTS), default=RESULTS / "apex")
    asked = parser.parse_args()
    rows = [row for actors in asked.actors for row in measured(actors, asked)]
    text = ["# Ape-X: what its actors cost its learner", "", *lines_about(about()), "", *table(rows), ""]
    for actors in asked.actors:
        shares = [r["share"] for r in rows if r["actors"] == actors]
        text.append(verdict(f"{actors} actors, share {said(spread(shares))}", statistics.median(shares), least=LEAST))
    publish(asked.out, {**about(), "rows": rows}, text)


# More actors, better exploration: Ape-X with 1, 2, 4 and 8 actors and one learner of the same pace


ACTORS = (1, 2, 4, 8)
STEPS = 4  # agent steps of each actor per update
BATCH = 64
LOOKS = 30  # evaluations of a run
NET: Any = {
    "network": "mlp",
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "optimizer_eps": 1e-5,
    "max_grad_norm": 10.0,
    "batch": BATCH,
}
PACE: Any = {
    "lanes": 1,
    "replay_workers": 1,
    "unroll": 16,
    "n_step": 3,
    "target_update": 200,
    "prefetch": 1,
    "capacity": 100_000,
}
GOALS = {"MountainCar-v0": -160.0, "Acrobot-v1": -120.0, "CartPole-v1": 400.0}  # a mean return that counts as learnt


class Judge:
    """Plays some games with the weights as they are, the best action always."""

    def __init__(self, env: str, policy: Any, games: int, seed: int):
        self.net = build_network(policy, seed)
        self.vector, self.games = FlatParams(self.net), games
        self.envs, self.seed = Envs(env, games, inline=True), seed + 10_000

    def __call__(self, params: Any) -> float:
        """The mean return of a game in each of the lanes, which begin the same every time."""
        params.pull(self.vector)
        pool, state = self.envs.open(self.seed, lane=0), self.net.initial(self.games)
        total, ended = np.zeros(self.games), np.zeros(self.games, bool)
        try:
            while True:
                lanes, step = pool.recv()
                total += np.where(ended | step["first"], 0.0, step["reward"])
                ended |= step["terminated"] | step["truncated"]
                if ended.all():
                    return float(total.mean())
                out, state = act_rows(self.net, step, state)
                pool.send(lanes, out["action"])
        finally:
            pool.close()


def run(given: tuple[str, int, int, int]) -> Row:
    """One run of so many updates: (environment, actors, seed, updates)."""
    env, actors, seed, updates = given
    page, crew = systems.load("apex"), Crew(seed, serial=True, steps=10**9)
    ratio = BATCH / (STEPS * actors)
    built = page.build(
        page.Config(env=env, actors=actors, ratio=ratio, learning_starts=500 * actors, **NET, **PACE), crew
    )
    params = next(r.holds["params"] for r in crew.roles if "params" in r.holds)
    judge, points = Judge(env, built.policy, 16, seed), list[tuple[int, int, float]]()
    crew.start(())
    assert crew.counters is not None
    try:
        while (done := int(crew.counters.column("updates").sum())) < updates or len(points) <= LOOKS:
            if done * LOOKS >= len(points) * updates and params.version >= 0 and params.round >= 0:
                points.append((done, int(crew.counters.column("steps").sum()), judge(params)))
            crew.poll(0.01)
    finally:
        crew.stop()
    found = [p[2] for p in points]
    goal = GOALS.get(env, np.inf)
    learnt = next((p for p in points if p[2] >= goal), None)
    row: Row = {"env": env, "actors": actors, "seed": seed, "updates": points[-1][0], "steps": points[-1][1]}
    row |= {"learnt at": learnt and learnt[0], "steps then": learnt and learnt[1], "area": statistics.fmean(found)}
    return row | {"end": statistics.fmean(found[-3:]), "points": points}


def summed(rows: list[Row], goal: float) -> list[Row]:
    answer = []
    for actors in sorted({r["actors"] for r in rows}):
        mine = [r for r in rows if r["actors"] == actors]
        learnt = [r["learnt at"] for r in mine if r["learnt at"] is not None]
        row: Row = {"actors": actors, "seeds": len(mine), "agent steps": max(r["steps"] for r in mine)}
        row |= {f"reached {goal:g}": f"{len(learnt)} of {len(mine)}"}
        row |= {"updates until then": " ".join(str(r["learnt at"] or "–") for r in mine)}
        row |= {"steps until then": " ".join(str(r["steps then"] or "–") for r in mine)}
        answer.append(row | {k: statistics.fmean(r[k] for r in mine) for k in ("area", "end")})
    return answer


def page(what: Row) -> list[str]:
    rows = what["rows"]
    env, goal = rows[0]["env"], GOALS.get(rows[0]["env"], float("inf"))
    text = [f"# More actors: Ape-X on {env}", "", *lines_about(what), "", "![curves](actors.png)", ""]
    return [
        *text,
        *table(summed(rows, goal)),
        "",
        f"An update of {BATCH} for every {STEPS} agent steps of one actor, however many there are. Returns: means of",
        f"16 games that the network plays without ε, {LOOKS} times a run; *area*: of all these, *end*: of the last 3.",
    ]


def draw(rows: list[Row], out: Path) -> None:
    """Over updates and over agent steps: a line for each number of actors, the mean of its seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for actors, color in zip(sorted({r["actors"] for r in rows}), COLORS, strict=False):
        points = np.array([r["points"][: LOOKS + 1] for r in rows if r["actors"] == actors])
        name = f"{actors} actor{'s' * (actors > 1)}"
        for panel, column in zip(panels, (0, 1), strict=True):
            at, curves = points[:, :, column].mean(0), points[:, :, 2]
            panel.fill_between(at, curves.min(0), curves.max(0), color=color, alpha=0.12, linewidth=0)
            panel.plot(at, curves.mean(0), color=color, linewidth=1.8, label=name)
    panels[1].set_xscale("log")
    panels[0].set_title(f"{rows[0]['env']}, played without ε", loc="left", color=INK)
    panels[0].set_ylabel("mean return", color=INK)
    for panel, name in zip(panels, ("updates", "agent steps of all actors"), strict=True):
        panel.set_xlabel(name, color=INK)
        panel.grid(color=FAINT)
        panel.tick_params(which="both", colors=INK, length=0)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    panels[0].legend(frameon=False, labelcolor=INK)
    figure.savefig(out)


def run_actors() -> None:
    """More actors, better exploration: Ape-X with 1, 2, 4 and 8 actors and one learner of the same pace.

        python bench/apex.py actors                     # 3 seeds
        python bench/apex.py actors --env Acrobot-v1 --updates 4000
        python bench/apex.py actors --short

    Every actor has one lane, so that N actors have the N rungs of the ladder of ε. The learner makes an update for
    every so many agent steps of *one* actor: whoever has more actors sees more, and more ways of playing, while it
    learns as often (the replay's ratio is in inverse proportion to N), as if each actor were a machine of its own. What
    is told is how the network itself plays, without ε, over updates and over agent steps. In one thread, the same every
    time; nothing here is a timing.
    """
    parser = command_line(run_actors.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--env", default="MountainCar-v0")
    parser.add_argument("--actors", type=int, nargs="+", default=list(ACTORS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=6_000, help="of each run")
    parser.add_argument("--processes", type=int, default=2, help="runs at once")
    parser.add_argument("--resume", action="store_true", help="keep runs that are there")
    parser.add_argument("--short", action="store_true", help="1 and 2 actors, one seed, 60 updates")
    parser.add_argument("--out", type=Path, default=RESULTS / "actors")
    asked = parser.parse_args()
    if asked.short:
        asked.actors, asked.seeds, asked.updates = [1, 2], [0], 60
    where, rows, file = about(), list[Row](), asked.out.with_suffix(".json")
    if asked.resume and file.exists():
        rows = [
            r for r in json.loads(file.read_text())["rows"] if (r["env"], r["updates"]) == (asked.env, asked.updates)
        ]
    there = {(r["actors"], r["seed"]) for r in rows}
    wanted = [(asked.env, n, seed, asked.updates) for seed in asked.seeds for n in reversed(asked.actors)]
    for row in at_once(run, [w for w in wanted if w[1:3] not in there], asked.processes):
        rows.append(row)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**where, "rows": rows})
        print(f"actors: {row['actors']}, seed {row['seed']}: {row['learnt at']}, end {row['end']:.1f}", flush=True)
    rows.sort(key=lambda r: (r["actors"], r["seed"]))
    publish(asked.out, {**where, "rows": rows}, page({**where, "rows": rows}))
    draw(rows, asked.out.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(commands({"": main, "actors": run_actors}))
