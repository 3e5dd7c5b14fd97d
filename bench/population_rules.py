"""Exploit and explore rules of population based training on a noisy toy, 10 seeds each; no timing.

The toy is that of Jaderberg et al. 2017, Fig. 2, with noise. To maximise is Q(θ) = 1.2 − (θ₀² + θ₁²). A member descends
h₀θ₀² + h₁θ₁² by SGD with momentum and normal noise in its gradients, and is scored by ten games, each Q plus normal
noise. h₀, h₁ and the learning rate are varied: a high rate is fast and ends far from the optimum, the highest diverge.
All rules begin with the same draws and see the same noise.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, spread, table

from polyplay.population.rules import EXPLOIT, EXPLORE, Standing, is_ready, parse_prior

VARY = ("learning_rate=log:1e-4:1", "h0=uniform:0:1", "h1=uniform:0:1")
PRIORS = {prior.name: prior for prior in (parse_prior(text, float) for text in VARY)}
START, MOMENTUM = 0.9, 0.9
NOISE, GAME_NOISE, GAMES = 0.5, 0.02, 10  # of a gradient, of a game; games of a score
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
    since: int = 0
    standing: Standing = field(default_factory=lambda: Standing(None))
    quality: float = -math.inf  # true, mean of its last slice

    def train(self, steps: int) -> None:
        """A slice: so many steps, and the games that score it."""
        total = sum(self._step(noise) for noise in self.noise.normal(0.0, NOISE, (steps, 2)).tolist())
        self.steps += steps
        played = self.noise.normal(TOP - sum(x * x for x in self.theta), GAME_NOISE, GAMES)
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
        if not is_ready(member.steps, member.since, asked.every) or member.steps >= steps:
            continue  # what is copied last would not be trained
        member.since = member.steps
        choice = EXPLOIT[arm.exploit]([m.standing for m in members], members.index(member), rng)
        if choice.donor is not None:
            copies += 1
            copy(member, members[choice.donor], arm, rng)
    return members, copies


def copy(member: Member, donor: Member, arm: Arm, rng: np.random.Generator) -> None:
    member.theta = list(donor.theta)
    member.momentum = list(donor.momentum) if arm.state else [0.0, 0.0]
    member.values = EXPLORE[arm.explore](donor.values, PRIORS, rng)
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


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[2_000, 8_000], help="of a member; each a table")
    parser.add_argument("--every", type=int, default=50, help="steps from one decision to the next")
    parser.add_argument("--out", type=Path, default=RESULTS / "population_rules")
    asked = parser.parse_args()
    copying = [name for name in EXPLOIT if name != "none"]
    arms = [Arm("none", "none"), *(Arm(exploit, explore) for exploit in copying for explore in EXPLORE)]
    kept = [Arm(exploit, "perturb", state) for exploit in copying for state in (True, False)]
    rows, states = ([measure(arm, n, asked) for n in asked.steps for arm in some] for some in (arms, kept))
    report(rows, states, asked)


if __name__ == "__main__":
    main()
