"""A game of three seats to which players come late and which they leave when they like, for tests of the pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyplay.core.tree import Batch, Field, Tree
from polyplay.envs.spaces import Discrete
from polyplay.games.toys import Arrays, Draw, Toy

NAME = "toy:tests.games.visitors:Visitors"


@dataclass(frozen=True)
class Visitors(Toy):
    """The first seat is there from the start and for 3 to 5 steps; the others come after 0 to 2 steps and stay for 1 to
    3. They end terminated, truncated, or both. The reward is 10 a step and the action. One action is illegal.
    """

    seats = 3
    obs = property(lambda self: {"age": Field((), "int64"), "seat": Field((1,), "float32")})
    action = Discrete(3)
    legality = Field((3,), "bool")
    classes = property(lambda self: {"age": 9})

    def reset(self, draw: Draw, n: int) -> Arrays:
        come, stay, why = ((3 * np.stack([draw() for _ in range(3)], 1)).astype(np.int64) for _ in range(3))
        come[:, 0] = 0
        stay += [3, 1, 1]
        return {"here": come == 0, "come": come, "stay": stay, "why": why, "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, Batch]:
        age, leave = s["age"] + 1, s["come"] + s["stay"]
        end = age[:, None] == leave
        row = {"reward": age[:, None] * 10.0 + action, "terminated": end & (s["why"] != 1)}
        here = (s["come"] <= age[:, None]) & (age[:, None] < leave)
        return {**s, "here": here, "age": age}, {**row, "truncated": end & (s["why"] != 0)}

    def see(self, s: Arrays) -> Tree:
        n = len(s["age"])
        seat = np.broadcast_to(np.arange(3, dtype=np.float32)[:, None], (n, 3, 1))
        return {"age": np.repeat(s["age"][:, None], 3, 1), "seat": seat}

    def legal(self, s: Arrays) -> np.ndarray:
        return np.repeat((np.arange(3) != s["age"][:, None] % 3)[:, None], 3, 1)
