"""More actors, better exploration: Ape-X with 1, 2, 4 and 8 actors and one learner of the same pace.

    python bench/actors.py                     # 3 seeds
    python bench/actors.py --env Acrobot-v1 --updates 4000
    python bench/actors.py --short

Every actor has one lane, so that N actors have the N rungs of the ladder of ε. The learner makes an update for every so
many agent steps of *one* actor: whoever has more actors sees more, and more ways of playing, while it learns as often
(the replay's ratio is in inverse proportion to N), as if each actor were a machine of its own. What is told is how the
network itself plays, without ε, over updates and over agent steps. In one thread, the same every time; nothing here is
a timing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, Row, about, at_once, command_line, lines_about, publish, table

from polyplay import systems
from polyplay.acting.rows import as_tensors
from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.core.files import write_json
from polyplay.envs import Envs
from polyplay.nets.factory import build_network
from polyplay.weights.params import FlatParams
from polyplay.workers.crew import Crew

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
PACE: Any = {"lanes": 1, "memories": 1, "unroll": 16, "n_step": 3, "target": 200, "prefetch": 1, "capacity": 100_000}
GOALS = {"MountainCar-v0": -160.0, "Acrobot-v1": -120.0, "CartPole-v1": 400.0}  # a mean return that counts as learnt


class Judge:
    """Plays some games with the weights as they are, the best action always."""

    def __init__(self, env: str, policy: Any, games: int, seed: int):
        self.net = build_network(policy, seed)
        self.vector, self.games = FlatParams(self.net), games
        self.envs, self.seed = Envs(env, games, inline=True), seed + 10_000

    @torch.no_grad()
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
                out, state = self.net.act(as_tensors({k: step[k] for k in ("obs", "reward", "first")}), state)
                pool.send(lanes, out["action"].numpy())
        finally:
            pool.close()


def run(given: tuple[str, int, int, int]) -> Row:
    """One run of so many updates: (environment, actors, seed, updates)."""
    env, actors, seed, updates = given
    page, crew = systems.load("apex"), Crew(seed, serial=True, steps=10**9)
    ratio = BATCH / (STEPS * actors)
    built = page.build(page.Config(env=env, actors=actors, ratio=ratio, start=500 * actors, **NET, **PACE), crew)
    params = next(r.params for r in crew.roles if r.params)
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
    for actors, colour in zip(sorted({r["actors"] for r in rows}), COLOURS, strict=False):
        points = np.array([r["points"][: LOOKS + 1] for r in rows if r["actors"] == actors])
        name = f"{actors} actor{'s' * (actors > 1)}"
        for panel, column in zip(panels, (0, 1), strict=True):
            at, curves = points[:, :, column].mean(0), points[:, :, 2]
            panel.fill_between(at, curves.min(0), curves.max(0), color=colour, alpha=0.12, linewidth=0)
            panel.plot(at, curves.mean(0), color=colour, linewidth=1.8, label=name)
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


def main() -> None:
    parser = command_line(__doc__)
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
    main()
