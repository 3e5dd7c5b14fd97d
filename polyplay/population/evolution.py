"""How a population evolves: what is varied, when a member is ready, and what is decided about it then.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.population.inherit import PreparedCopy
from polyplay.population.priors import Prior
from polyplay.population.rules import EXPLOIT, EXPLORE
from polyplay.population.store import DONE, FAILED, WAITING, Store, line_of, standing, wall_seconds

GAMES = 10  # of a score (Jaderberg et al. 2017, section 4.1)
TRIES = 10  # of a member that has failed to find another whose checkpoint is whole
Copy = Callable[[int, str, bool], PreparedCopy]


@dataclass(frozen=True)
class Evolution:
    """The choices of a population. every, total: agent steps of a member between two decisions, and in all."""

    over: str
    size: int
    every: int
    total: int
    exploit: str
    explore: str
    score: str
    priors: Mapping[str, Prior] = field(default_factory=dict)
    seed: int = 0
    grid: bool = False  # founders are all combinations of lists
    anew: frozenset[str] = frozenset()  # of what is varied: that with which lanes begin anew

    def describe(self) -> list[str]:
        """A line each for the diagram."""
        return [
            f"members {self.size} of {self.over}",
            *(f"vary    {name} {prior.label()}" for name, prior in self.priors.items()),
            f"ready   every {self.every:,} agent steps of its own",
            f"decides for its member: exploit {self.exploit}, explore {self.explore}",
        ]

    def founders(self) -> list[dict[str, Any]]:
        """The values that every member begins with: with the same seed the same, whatever the rules."""
        if self.grid:
            combinations = product(*(prior.choices for prior in self.priors.values()))
            return [dict(zip(self.priors, chosen, strict=True)) for chosen in combinations]
        rngs = [np.random.default_rng([self.seed, i]) for i in range(self.size)]
        return [{name: prior.draw(rng) for name, prior in self.priors.items()} for rng in rngs]

    def about(self) -> Row:
        """For population.json."""
        names = ("over", "every", "total", "exploit", "explore", "score", "seed")
        return {name: getattr(self, name) for name in names} | {"vary": {k: p.label() for k, p in self.priors.items()}}

    def until(self, member: Row) -> int:
        """Agent steps at which a member is ready next."""
        return min(self.total, (member["turns"] + 1) * self.every)

    def decide(self, store: Store, population: Row, i: int, copy: Copy) -> None:
        """Decide for member `i`, which is ready or has failed, under the lock; `pending` tells what it copies.
        copy(donor, name, lanes) prepares that; lanes: whether they can go on. It raises UserError: the donor has no
        checkpoint that is whole. Raises OSError.
        """
        members = population["members"]
        m = members[i]
        rng = np.random.default_rng([self.seed, i, m["turns"] + 1, m["falls"]])
        choice = EXPLOIT[self.exploit]([standing(other) for other in members], i, rng)
        donor, why, old, score = None, choice.why, m["values"], m["score"] if m["state"] != FAILED else None
        failure = f"{m['why']}; " * (m["state"] == FAILED)
        if choice.donor is not None:
            name = f"copy-{population['decisions']}"
            try:
                new = EXPLORE[self.explore](members[choice.donor]["values"], dict(self.priors), rng)
                copied = (choice.donor, name, all(new[k] == old[k] for k in self.anew))
                prepared = copy(*copied)
                m["pending"] = {"copy": copied, "final": prepared.final}
                donor, m["values"] = {**members[choice.donor], "steps": prepared.donor_steps}, new
                m |= {"copied": m["steps"], "score": None, "games": [], "state": WAITING, "why": "", "falls": 0}
            except UserError as e:
                why = f"not copied: {e}"
        if donor is not None or not failure:
            m |= {"turns": m["turns"] + (not failure), "since": m["steps"]}
            population["wall_seconds"] = wall_seconds(population)
            store.commit(population, line_of(population, m, old, failure + why, donor, score))
        else:
            m["falls"] += 1


def may_train(population: Row, i: int) -> bool:
    """Whether a member has anything left to do. Who has failed needs another to copy."""
    m = population["members"][i]
    state = m["state"]
    scored = population["exploit"] != "none" and any(m["score"] is not None for m in population["members"])
    return state != DONE and (state != FAILED or (scored and m["falls"] < TRIES))


def is_over(population: Row) -> bool:
    """Whether nobody is left to train."""
    return not any(may_train(population, i) for i in range(len(population["members"])))
