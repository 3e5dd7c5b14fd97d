"""Small games for several players, many matches at once in NumPy.

toy:rps       rock-paper-scissors: two seats, one round; no choice is best, so pure self-play goes round in circles.
toy:skirmish  two against two, who shoot at each other: a team wins by shooting at the same enemy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.envs.spaces import ActionSpec, Discrete
from polyplay.envs.toys.still import Arrays, Draw


class SeatedToy(Protocol):
    """A game of several players over arrays [n, …]: n of the pool's matches, picked by the pool. Its states have the
    array `here`, bool [n, seats]: who plays. A seat that ends is no longer here, one may come later; a match is over
    once nobody is here. It may have `teams`, `events` and `team_reward` (see EnvSpec), and masks as a Toy has them.
    """

    obs: Spec
    action: ActionSpec
    seats: int

    def reset(self, draw: Draw, n: int) -> Arrays:
        """States of n new matches; a draw is [n]."""

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """New states; and [n, seats] each reward, terminated, truncated, and where the game has them `events`
        [n, seats, E] and `team_reward`. The actions and what is said of seats that are not here are ignored.
        """

    def see(self, s: Arrays) -> Tree:
        """Observations [n, seats, *obs.shape]."""


@dataclass(frozen=True)
class RockPaperScissors:
    """Observation: 1. Actions: rock, paper, scissors. A round won is worth 1, lost -1; terminated after `rounds`."""

    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"toy:rps needs rounds ≥ 1, got rounds={self.rounds}")

    seats = 2
    obs = Field((1,), "float32")
    action = Discrete(3)

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, Batch]:
        age = s["age"] + 1
        end = np.repeat((age == self.rounds)[:, None], 2, 1)
        reward = (action - action[:, ::-1] + 1) % 3 - 1  # the next choice beats each, the one after loses to it
        return {"here": ~end, "age": age}, {"reward": reward, "terminated": end, "truncated": np.zeros_like(end)}

    def see(self, s: Arrays) -> np.ndarray:
        return np.ones((len(s["age"]), 2, 1), np.float32)


@dataclass(frozen=True)
class Skirmish:
    """Two teams of two. In each step every unit shoots at one of the two enemies, all at once. A shot hits with
    probability `accuracy`; who is hit once in a step loses 1 health, who is hit by both enemies loses 4. A unit without
    health dies: that costs its own seat half a point, and the seats that hit it in that step share half a point. So a
    team's points over a match are half its kills less half its losses. The match is over when a team is dead, or both;
    after `steps` it is truncated. With `late`, the second unit of each team arrives after so many steps.

    Observation: own place in the team (0 or 1), then health as a fraction, 0 where dead or not there yet: own, the
    mate's, the first enemy's, the second enemy's. Actions: shoot at the first, at the second enemy. Events of a seat:
    hits, kills it had a part in, its death. Team reward: the mean of the team's two rewards.

    A team that shoots at the same enemy (`focus`) wins 98.6 % of its matches against one whose units shoot each at the
    enemy opposite (`opposite`), and no answer to that bot wins more than 98.7 %. Random play wins about two in three.
    """

    health: int = 8
    accuracy: float = 0.75
    steps: int = 100
    late: int = 0

    def __post_init__(self) -> None:
        if self.health < 1 or self.steps < 1 or not 0 < self.accuracy <= 1 or not 0 <= self.late < self.health:
            got = f"health={self.health}, accuracy={self.accuracy}, steps={self.steps}, late={self.late}"
            raise UserError(
                f"toy:skirmish needs health ≥ 1, 0 < accuracy ≤ 1, steps ≥ 1 and 0 ≤ late < health, got {got}"
            )

    seats = 4
    teams = (0, 0, 1, 1)
    events = ("hit", "kill", "death")
    team_reward = True
    bots = {name: f"{__name__}:Skirmish.{name}" for name in ("opposite", "focus")}  # noqa: RUF012
    obs = Field((5,), "float32")
    action = Discrete(2)

    def reset(self, draw: Draw, n: int) -> Arrays:
        here = np.ones((n, 4), bool)
        here[:, 1::2] = self.late == 0
        return {"here": here, "health": np.full((n, 4), self.health), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, Batch]:
        here, age = s["here"], s["age"] + 1
        aim = (np.array([2, 2, 0, 0]) + action)[:, :, None] == np.arange(4)  # [n, who, whom]
        lands = np.stack([draw() < self.accuracy for _ in range(4)], 1)
        hit = aim & (here & lands)[:, :, None] & here[:, None]
        hits = hit.sum(1)
        health = np.maximum(s["health"] - hits**2, 0)
        died = here & (health == 0)
        share = np.where(died, 0.5 / np.maximum(hits, 1), 0.0)
        reward = (hit * share[:, None]).sum(2) - 0.5 * died
        kills = (hit & died[:, None]).sum(2)
        row = {
            "reward": reward,
            "team_reward": np.repeat(reward.reshape(-1, 2, 2).mean(2), 2, 1),
            "events": np.stack([hit.sum(2), kills, died], 2),
        }
        beaten = ~(here & ~died).reshape(-1, 2, 2).any(2)  # [n, team]
        decided, late = np.broadcast_to(beaten.any(1)[:, None], here.shape), (age == self.steps)[:, None]
        row |= {"terminated": died | decided, "truncated": late & ~died & ~decided}
        here = (here & ~died) | ((age == self.late)[:, None] & (np.arange(4) % 2 == 1))
        return {"here": here & ~decided & ~late, "health": health, "age": age}, row

    def see(self, s: Arrays) -> np.ndarray:
        n, shown = len(s["age"]), (s["health"] * (s["here"] | (s["age"] >= self.late)[:, None])) / self.health
        order = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]])
        place = np.broadcast_to(np.arange(4)[:, None] % 2, (n, 4, 1))
        return np.concatenate([place, shown[:, order]], 2, dtype=np.float32)

    @staticmethod
    def opposite(obs: np.ndarray, mask: None = None) -> np.ndarray:
        """Shoots at the enemy opposite, while he is there: actions of observations [..., 5]."""
        place = obs[..., 0] == 1
        opposite = np.where(place, obs[..., 4], obs[..., 3])
        return np.where(opposite > 0, place, ~place).astype(np.int64)

    @staticmethod
    def focus(obs: np.ndarray, mask: None = None) -> np.ndarray:
        """Shoots at the weaker of the enemies that are there, at the first where they are equal."""
        first, second = obs[..., 3], obs[..., 4]
        return ((second > 0) & ((first == 0) | (second < first))).astype(np.int64)
