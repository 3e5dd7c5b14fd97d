"""Population based training against random search: a2c `quick` on Breakout, 8 members, the same first draws.

    python bench/population.py --seeds 0 1 --runs runs/population

Trains what is not there yet by the commands that the page prints, one after the other, 40 minutes each on 2 cores;
a run that was stopped goes on. A member's score: the mean return of its last 100 games of training, of rewards that
are neither clipped nor scaled. --arms: which; --collect: train nothing, say what is there.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import RESULTS, Row, about, command_line, commands, lines_about, publish, spread, table

from polyplay.core.files import read_lines, read_object
from polyplay.core.machine import cores
from polyplay.population.rules import Standing, change_values, choose_donor, parse_prior
from polyplay.population.store import ancestry, read_lineage

TRAIN = "--over a2c --env ALE/Breakout-v5 --preset quick --population 8 --every 100k --steps 800k"
TRAIN += " --vary learning_rate=log:1e-5:1e-2 entropy_cost=log:1e-4:1e-1 --explore both"
ARMS = {"random search": "none", "PBT": "truncation"}
POINTS, GAMES = 8, 100  # of a curve; of a score


def command_of(seed: int, exploit: str, directory: Path) -> list[str]:
    """What trains an arm."""
    words = [*TRAIN.split(), "--exploit", exploit, "--seed", str(seed)]
    return ["polyplay", "train", "pbt", *words, "--resume", "auto", "--run", str(directory)]


def scores(directory: Path, steps: int) -> list[float]:
    """Of all members that had come so far, after so many agent steps of each."""
    found = []
    for member in sorted((directory / "members").glob("[0-9]*")):
        games = [g for g in read_lines(member / "episodes.jsonl", "steps", "episodic_return") if g["steps"] <= steps]
        reached = max((row["steps"] for row in read_lines(member / "metrics.jsonl", "steps")), default=0)
        if games and reached > 0.97 * steps:
            found.append(statistics.fmean(g["episodic_return"] for g in games[-GAMES:]))
    return found


def minutes(directory: Path, steps: int) -> float | None:
    """Of the population's time, until all members had come so far."""
    rows = [r for r in read_lineage(directory) if r["steps"] >= steps]
    first = {r["member"]: r["wall_seconds"] for r in reversed(rows)}
    population = read_object(directory / "population.json")
    if len(first) == len(population["members"]):
        return round(max(first.values()) / 60, 1)
    ended = all(m["state"] in ("done", "failed") for m in population["members"])
    return round(population["wall_seconds"] / 60, 1) if ended else None


def curve(arm: str, seed: int, directory: Path) -> list[dict[str, Any]]:
    """A row for every eighth of an arm."""
    total, rows = read_object(directory / "population.json")["total"], []
    for k in range(1, POINTS + 1):
        steps = total * k // POINTS
        if found := scores(directory, steps):
            rows.append(
                {
                    "seed": seed,
                    "arm": arm,
                    "agent steps of each": steps,
                    "members": len(found),
                    "best": round(max(found), 2),
                    "median": round(statistics.median(found), 2),
                    "worst": round(min(found), 2),
                    "minutes": minutes(directory, steps),
                }
            )
    return rows


def winner(arm: str, seed: int, directory: Path) -> dict[str, Any]:
    """Its best member: what it was trained with at the beginning and at the end."""
    lines = read_lineage(directory)
    members = {r["member"] for r in lines}
    total = read_object(directory / "population.json")["total"]
    best = max(members, key=lambda i: _last(directory, i, total))
    line = ancestry(lines, best)
    values = {
        f"{name}, {when}": f"{line[at].values[name]:.2g}"
        for at, when in ((0, "first"), (-1, "last"))
        for name in line[0].values
    }
    copies = sum(r["donor"] is not None for r in lines)
    return {"seed": seed, "arm": arm, "winner": best, "its founder": line[0].member, "copies in all": copies, **values}


def _last(directory: Path, member: int, steps: int) -> float:
    games = list(read_lines(directory / f"members/{member:02d}" / "episodes.jsonl", "steps", "episodic_return"))
    return float(np.mean([g["episodic_return"] for g in games[-GAMES:]])) if games else -np.inf


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/population"), help="where arms are trained")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--remark", default="", help="a sentence for the page")
    asked = parser.parse_args()
    before = read_object(RESULTS / "population.json")
    rows: list[dict[str, Any]] = []
    winners: list[dict[str, Any]] = []
    for seed in asked.seeds:
        for arm in asked.arms:
            directory = asked.runs / f"{ARMS[arm]}-{seed}"
            if not asked.collect:
                words = command_of(seed, ARMS[arm], directory)
                subprocess.run([sys.executable, "-m", *words], check=True)
            if (directory / "population.json").exists():
                rows += curve(arm, seed, directory)
                winners.append(winner(arm, seed, directory))
            else:  # trained on another machine: what was published of it
                rows += [row for row in before["rows"] if (row["seed"], row["arm"]) == (seed, arm)]
                winners += [row for row in before["winners"] if (row["seed"], row["arm"]) == (seed, arm)]
    what = about()
    shown = " ".join(command_of(0, "RULE", Path("RUN"))).replace("--seed 0", "--seed SEED")
    text = ["# Population based training against random search on Breakout", "", *lines_about(what), ""]
    text += [f"Trained by `{shown}`, RULE `none` or `truncation`.", ""]
    text += [f"A score is the mean return of a member's last {GAMES} games of training. {asked.remark}".rstrip(), ""]
    text += [*table(rows), ""]
    text += ["The best members:", "", *table(winners)]
    publish(RESULTS / "population", {**what, "rows": rows, "winners": winners}, text)


# Exploit and explore rules of population based training on a noisy toy, 10 seeds each; no timing


VARY = ("learning_rate=log:1e-4:1", "h0=uniform:0:1", "h1=uniform:0:1")
PRIORS = {prior.name: prior for prior in (parse_prior(text, float) for text in VARY)}
START, MOMENTUM = 0.9, 0.9
NOISE, GAME_NOISE, RULES_GAMES = 0.5, 0.02, 10  # of a gradient, of a game; games of a score
LOST = 1e3  # a θ beyond it: the run has diverged
TOP = 1.2
Pair = list[float]


@dataclass
class Member:
    values: dict[str, float]
    noise: np.random.Generator
    theta: Pair = field(default_factory=lambda: [START, START])
    momentum: Pair = field(default_factory=lambda: [0.0, 0.0])
    steps: int = 0
    standing: Standing = field(default_factory=lambda: Standing(None))
    quality: float = -math.inf  # true, mean of its last slice

    def train(self, steps: int) -> None:
        """A slice: so many steps, and the games that score it."""
        total = sum(self._step(noise) for noise in self.noise.normal(0.0, NOISE, (steps, 2)).tolist())
        self.steps += steps
        played = self.noise.normal(TOP - sum(x * x for x in self.theta), GAME_NOISE, RULES_GAMES)
        if max(map(abs, self.theta)) >= LOST:
            self.quality, self.standing = -math.inf, Standing(-math.inf)
        else:
            self.quality, self.standing = total / steps, Standing(float(played.mean()), tuple(played.tolist()))

    def _step(self, noise: Pair) -> float:
        """One update, unless it has diverged; Q after it."""
        rate = self.values["learning_rate"]
        if max(map(abs, self.theta)) < LOST:
            for k, h in enumerate((self.values["h0"], self.values["h1"])):
                self.momentum[k] = MOMENTUM * self.momentum[k] + 2 * h * self.theta[k] + noise[k]
                self.theta[k] -= rate * self.momentum[k]
        return TOP - sum(x * x for x in self.theta)


@dataclass(frozen=True)
class Arm:
    exploit: str
    explore: str
    state: bool = True  # whether a copy takes the optimizer's momentum too


def population(arm: Arm, seed: int, steps: int, asked: Any) -> tuple[list[Member], int]:
    """A run of a whole population, and how often one was copied. The member with the fewest steps is next."""
    first, rng = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    members = [
        Member({name: prior.draw(first) for name, prior in PRIORS.items()}, np.random.default_rng((seed, 2, i)))
        for i in range(asked.members)
    ]
    copies = 0
    while (member := min(members, key=lambda m: m.steps)).steps < steps:
        member.train(asked.every)
        if member.steps >= steps:
            continue  # what is copied last would not be trained
        donor, _ = choose_donor(arm.exploit, [m.standing for m in members], members.index(member), rng)
        if donor is not None:
            copies += 1
            copy(member, members[donor], arm, rng)
    return members, copies


def copy(member: Member, donor: Member, arm: Arm, rng: np.random.Generator) -> None:
    member.theta = list(donor.theta)
    member.momentum = list(donor.momentum) if arm.state else [0.0, 0.0]
    member.values = change_values(arm.explore, donor.values, PRIORS, rng)
    member.standing = Standing(None)


def measure(arm: Arm, steps: int, asked: Any) -> Row:
    """1.2 − Q of best, median and worst member, over seeds; 0 is perfect, 1.62 where all began."""
    runs = [population(arm, seed, steps, asked) for seed in range(asked.seeds)]
    gaps = [sorted(TOP - m.quality for m in members) for members, _ in runs]
    found = {
        "best": [g[0] for g in gaps],
        "median": [statistics.median(g) for g in gaps],
        "worst": [g[-1] for g in gaps],
    }
    return {
        "steps": steps,
        "exploit": arm.exploit,
        "explore": arm.explore,
        "momentum": "copied" if arm.state else "zeroed",
        "copies": statistics.fmean(copies for _, copies in runs),
        **{name: spread(values) for name, values in found.items()},
        "gaps": gaps,
    }


def shown(row: Row, *more: str) -> Row:
    """For the table, in thousandths: medians over seeds, and of the best member also the least and the greatest."""
    cells = {name: row[name] for name in ("exploit", "explore", *more)}
    best = row["best"]
    cells |= {"best member": 1e3 * best["median"], "least": 1e3 * best["min"], "greatest": 1e3 * best["max"]}
    cells |= {f"{name} member": 1e3 * row[name]["median"] for name in ("median", "worst")}
    return cells | {"copies of a run": row["copies"]}


def report(rows: list[Row], states: list[Row], asked: Any) -> None:
    """bench/results/population_rules.json and .md"""
    where = about()
    text = ["# Rules of population based training on a noisy toy", "", *lines_about(where), ""]
    text += [
        f"{asked.members} members, a decision every {asked.every} steps of a member, {asked.seeds} seeds; varied:",
        ", ".join(f"`{word}`" for word in VARY) + ".",
        "",
        "The figures are 1000 (1.2 − Q), the distance to the optimum in thousandths, mean of a member's last slice.",
        "Less is better; every member begins at 1620, inf has diverged. Each is the median over seeds; *least* and",
        "*greatest* are those of the best member. `none` copies nothing: random search with the same first draws.",
    ]
    for steps in asked.steps:
        text += ["", f"## {steps} steps of each member", "", *table([shown(r) for r in rows if r["steps"] == steps])]
        text += ["", "A copy takes the donor's momentum, or begins with none:", ""]
        text += table([shown(r, "momentum") for r in states if r["steps"] == steps])
    settings = {name: getattr(asked, name) for name in ("seeds", "members", "steps", "every")}
    publish(asked.out, {**where, "settings": settings, "vary": VARY, "rows": rows, "states": states}, text)


def run_population_rules() -> None:
    """Exploit and explore rules of population based training on a noisy toy, 10 seeds each; no timing.

    The toy is that of Jaderberg et al. 2017, Fig. 2, with noise. To maximize is Q(θ) = 1.2 − (θ₀² + θ₁²). A member
    descends h₀θ₀² + h₁θ₁² by SGD with momentum and normal noise in its gradients, and is scored by ten games, each Q
    plus normal noise. h₀, h₁ and the learning rate are varied: a high rate is fast and ends far from the optimum, the
    highest diverge. All rules begin with the same draws and see the same noise.
    """
    parser = command_line(run_population_rules.__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[2_000, 8_000], help="of a member; each a table")
    parser.add_argument("--every", type=int, default=50, help="steps from one decision to the next")
    parser.add_argument("--out", type=Path, default=RESULTS / "population_rules")
    asked = parser.parse_args()
    copying, exploring = ("truncation", "tournament", "ttest"), ("perturb", "resample", "both", "none")
    arms = [Arm("none", "none"), *(Arm(exploit, explore) for exploit in copying for explore in exploring)]
    kept = [Arm(exploit, "perturb", state) for exploit in copying for state in (True, False)]
    rows, states = ([measure(arm, n, asked) for n in asked.steps for arm in some] for some in (arms, kept))
    report(rows, states, asked)


# What a population costs beside its training: a session of a member, eight members on two cores, memory of 32


TOY = "--env CartPole-v1 --lanes 8 --network mlp --preset paper --reward none --no-tensorboard"
GAME = "--env ALE/Breakout-v5 --preset quick --no-tensorboard"
SPEED_VARY = "--vary learning_rate=log:1e-4:1e-3"


def run(words: str, directory: Path) -> tuple[dict[str, Any], float]:
    """summary.json of a command, and the most memory in MB that it and all below it took."""
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "polyplay", "train", *words.split(), "--quiet", "--run", str(directory)]
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, pss(process.pid))
            time.sleep(1.0)
    return read_object(directory / "summary.json"), most


def pss(pid: int) -> float:
    """MB of a process and all below it; what several share is counted once."""
    total = 0.0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                total += float(line.split()[1]) / 1024 if line.startswith("Pss:") else 0.0
    except (psutil.Error, OSError, ProcessLookupError):
        pass
    return total


def sessions(directory: Path, n: int = 20, steps: int = 200_000) -> dict[str, Any]:
    """The same run in n sessions and in one."""
    words = f"pbt --over a2c {TOY} --replicas 1 --exploit none --population 1 --at-once 1 --steps {steps}"
    one, _ = run(f"{words} --every {steps}", directory)
    many, _ = run(f"{words} --every {steps // n}", directory)
    seconds = (many["wall_seconds"] - one["wall_seconds"]) / (n - 1)
    return {
        "sessions": n,
        "agent steps": steps,
        "one session, s": one["wall_seconds"],
        f"{n}, s": many["wall_seconds"],
    } | {"seconds each": round(seconds, 2)}


def eight(directory: Path, steps: int, every: int) -> list[dict[str, Any]]:
    """Agent steps per core-second: one run, and a population."""
    alone, _ = run(f"a2c {GAME} --steps {4 * steps}", directory)
    together, memory = run(
        f"pbt --over a2c {GAME} {SPEED_VARY} --population 8 --every {every} --steps {steps}", directory
    )
    rows = [
        {"what": "one run", "agent steps": alone["steps"], "seconds": alone["wall_seconds"]},
        {"what": "8 members", "agent steps": together["steps"], "seconds": together["wall_seconds"]},
    ]
    for row in rows:
        row["agent steps per core-second"] = round(row["agent steps"] / row["seconds"] / cores(), 1)
    rows[1]["of one run"] = round(rows[1]["agent steps per core-second"] / rows[0]["agent steps per core-second"], 3)
    rows[1]["PSS, MB"] = round(memory)
    return rows


def many(directory: Path) -> dict[str, Any]:
    """32 members of a toy run."""
    words = f"pbt --over a2c {TOY} {SPEED_VARY} --population 32 --every 10k --steps 20k"
    summary, memory = run(words, directory)
    return {
        "members": 32,
        "agent steps": summary["steps"],
        "seconds": summary["wall_seconds"],
        "PSS, MB": round(memory),
    }


def run_population_speed() -> None:
    """What a population costs beside its training: a session of a member, eight members on two cores, memory of 32.

        python bench/population.py speed

    1. Sessions: a toy run in 20 sessions and in one, by one trainer; what the difference is for each. 2. Eight members
    of a2c `quick` on Breakout, agent steps per core-second against one run alone that has all cores. 3. The most memory
    (PSS, of all processes together) that 32 members of a toy run take.
    """
    parser = command_line(run_population_speed.__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of each of the eight members")
    parser.add_argument("--every", type=int, default=50_000)
    asked = parser.parse_args()
    directory = Path("runs/population_speed")
    os.environ.setdefault("COLUMNS", "120")
    one, rows, crowd = sessions(directory), eight(directory, asked.steps, asked.every), many(directory)
    what = about()
    text = ["# What a population costs", "", *lines_about(what), "", "Precision: float32.", ""]
    text += ["A session of a member, beyond its training (limit 1.5 s):", "", *table([one]), ""]
    text += [
        f"a2c `quick` on Breakout, a decision every {asked.every:,} agent steps (limit 0.95):",
        "",
        *table(rows),
        "",
    ]
    text += ["Many members of a toy run (limit 2,048 MB):", "", *table([crowd])]
    publish(RESULTS / "population_speed", {**what, "sessions": one, "eight": rows, "many": crowd}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "rules": run_population_rules, "speed": run_population_speed}))
