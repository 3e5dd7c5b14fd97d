"""Populations that never trained: a simple rule says how skill grows; directories are as a population writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.population.rules import Standing, change_values, choose_donor, parse_prior

EVERY = 500_000
VARY = {"learning_rate": "log:1e-05:0.1", "entropy_cost": "log:0.0001:0.1"}
GAMES = 40  # of a turn
BEST = (-2.0, -4.0)  # logarithm of the rate that learns fastest, at the beginning and of who has learnt all
FULL = 100.0  # score of who has learnt all


class MadeMember:
    def __init__(self, number: int, values: dict[str, Any]):
        self.number, self.values = number, values
        self.skill, self.steps, self.since, self.copied, self.turns = 0.0, 0, 0, 0, 0
        self.games: list[float] = []
        self.rows: list[dict[str, Any]] = []  # of episodes.jsonl

    @property
    def score(self) -> float | None:
        return float(np.mean(self.games[-10:])) if self.games else None

    def train(self, rng: np.random.Generator, every: int) -> None:
        """A turn: a good rate comes closer to FULL, a hopeless one falls back."""
        best = BEST[0] + (BEST[1] - BEST[0]) * self.skill / FULL
        gain = 0.22 * math.exp(-3 * (math.log10(self.values["learning_rate"]) - best) ** 2) - 0.02
        before, length = self.skill, every + int(rng.integers(0, 400))
        self.skill = float(np.clip(self.skill + gain * (FULL - self.skill), 0, FULL))
        for done in (np.arange(GAMES) + 1) / GAMES:
            return_ = before + done * (self.skill - before) + 4 * rng.standard_normal()
            steps = self.steps + int(done * length)
            self.games.append(float(return_))
            self.rows.append({"wall_seconds": steps / 1e3, "frames": 4 * steps, "steps": steps, "lane": 0})
            self.rows[-1] |= {"episodic_return": float(return_), "episodic_length": length // GAMES}
        self.steps, self.turns = self.steps + length, self.turns + 1

    def row(self, state: str) -> dict[str, Any]:
        """Of population.json."""
        counters = {"steps": self.steps, "frames": 4 * self.steps, "since": self.since, "copied": self.copied}
        known = {"score": self.score, "games": self.games[-10:], "values": self.values, "turns": self.turns}
        told = {"state": state, "why": "", "pending": None, "wall_seconds": self.steps / 1e3}
        return {"member": self.number, **counters, **known, **told}


class MadePopulation:
    """`turn` as often as wanted, then `write`."""

    def __init__(
        self,
        members: int = 8,
        exploit: str = "truncation",
        explore: str = "perturb",
        seed: int = 0,
        vary: dict[str, str] | None = None,
    ):
        self.rng, self.exploit, self.explore = np.random.default_rng(seed), exploit, explore
        self.total = 8 * EVERY
        self.vary = vary or VARY
        self.priors = {k: parse_prior(f"{k}={text}", _read) for k, text in self.vary.items()}
        self.rows: list[dict[str, Any]] = []
        drawn = [{k: prior.draw(self.rng) for k, prior in self.priors.items()} for _ in range(members)]
        self.members = [MadeMember(i, values) for i, values in enumerate(drawn)]
        for member in self.members:
            self._log(member, None, {}, "drawn from the prior")

    def turn(self) -> None:
        """Train the member with the fewest steps, and decide about it."""
        member = min(self.members, key=lambda m: (m.steps, m.number))
        member.train(self.rng, EVERY)
        standings = [Standing(m.score, tuple(m.games[-10:])) for m in self.members]
        chosen, why = choose_donor(self.exploit, standings, member.number, self.rng)
        old, score, donor = member.values, member.score, None
        if chosen is not None:
            donor = self.members[chosen]
            member.values = change_values(self.explore, donor.values, self.priors, self.rng)
        self._log(member, donor, old, why, score)
        member.since = member.steps
        if donor is not None:
            member.skill, member.copied, member.games = donor.skill, member.steps, []

    def contents(self, state: str = "waiting") -> dict[str, Any]:
        """Of population.json. state: of every member."""
        about = {"schema": 1, "over": "a2c", "every": EVERY, "total": self.total, "exploit": self.exploit}
        about |= {"explore": self.explore, "score": "games", "seed": 0, "vary": self.vary, "decisions": len(self.rows)}
        return about | {"wall_seconds": 0.0, "members": [member.row(state) for member in self.members]}

    def write(self, directory: Path, state: str = "waiting", env: str = "toy:catch") -> Path:
        """All that a population and its members write. state: of every member."""
        write_run(directory, "pbt", {"over": "a2c", "env": env})
        (directory / "population.json").write_text(json.dumps(self.contents(state)))
        (directory / "lineage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        for member in self.members:
            run = write_run(directory / "members" / f"{member.number:02}", "a2c", {"env": env})
            (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in member.rows))
        return directory

    def _log(
        self, member: MadeMember, donor: MadeMember | None, old: dict[str, Any], why: str, score: float | None = None
    ) -> None:
        whose = {"member": member.number, "donor": donor and donor.number, "score": score}
        steps = {"donor_score": donor and donor.score, "steps": member.steps, "donor_steps": donor and donor.steps}
        rules = {"exploit": self.exploit, "explore": self.explore, "why": why, "at": "", "wall_seconds": 0.0}
        self.rows.append({"decision": len(self.rows), **whose, **steps, "old": old, "new": member.values, **rules})


def write_run(directory: Path, system: str, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"schema": 1, "system": system, "config": config}))
    return directory


def make_population(
    directory: Path, turns: int = 52, state: str = "waiting", env: str = "toy:catch", **more: Any
) -> Path:
    """turns: of all members together. more: as MadePopulation takes it."""
    population = MadePopulation(**more)
    for _ in range(turns):
        population.turn()
    return population.write(directory, state, env)


def _read(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
