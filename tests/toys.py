"""Toys that only tests play: Gymnasium's Pendulum and CartPole in NumPy, conditional actions, a picture that stays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyplay.core.tree import Field, Tree
from polyplay.envs.spaces import Box, Discrete
from polyplay.games.toys import Arrays, Draw, Toy


@dataclass(frozen=True)
class Still(Toy):
    """Observation: four noisy images. Rewards 1, 0, -1 that mean nothing; truncated after 400 steps."""

    obs = Field((4, 84, 84), "uint8")
    action = Discrete(6)

    @cached_property
    def shown(self) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 256, self.obs.shape).astype(np.uint8)

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        age = s["age"] + 1
        end = age >= 400
        return {"age": age}, (age % 3 - 1).astype(np.float32), np.zeros_like(end), end

    def see(self, s: Arrays) -> np.ndarray:
        return np.broadcast_to(self.shown, (len(s["age"]), *self.shown.shape))


@dataclass(frozen=True)
class Cue(Toy):
    """Observation: a cue of four, one-hot, and which of two tasks it is. Right is the cue's number, in the other task
    the next one: it earns `scale`. Ten cues are a game, so random play returns 2.5 times `scale`.
    """

    scale: float = 1.0
    other: bool = False

    obs = Field((5,), "float32")
    action = Discrete(4)

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"cue": (draw() * 4).astype(np.int64), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        right, age = action == (s["cue"] + self.other) % 4, s["age"] + 1
        after = {"cue": (draw() * 4).astype(np.int64), "age": age}
        return after, (self.scale * right).astype(np.float32), age >= 10, np.zeros_like(right)

    def see(self, s: Arrays) -> np.ndarray:
        shown = np.zeros((len(s["cue"]), 5), np.float32)
        shown[np.arange(len(shown)), s["cue"]] = 1.0
        shown[:, 4] = self.other
        return shown


# A verb, then the parts that it takes: the smallest game whose actions are of several parts that depend on the first.
#
#     verb        0   1     2       3
#     takes       -   unit  offset  both
#     legal       yes one of these in each row, at random, which the observation does not tell
#
# So a head whose parts don't know the verb can't be right with more than two of the three: it returns at most 2/3.


VERBS, UNITS, OFFSETS = 4, 4, 3
TAKES = np.array([[False, True, False, True], [False, False, True, True]])  # [unit, offset; verb]


@dataclass(frozen=True)
class ConditionalGame(Toy):
    """Observation: a cue, one-hot. Right is unit (cue + verb) mod 4, offset (cue + verb) mod 3. The share of right
    parts over `rows` is the reward: perfect play returns 1, waiting (verb 0) nothing. One wrong value of each part is
    illegal; what is illegal ends the game with -1.
    """

    rows: int = 8

    obs = Field((UNITS,), "float32")
    action = {"verb": Discrete(VERBS), "unit": Discrete(UNITS), "offset": Discrete(OFFSETS)}  # noqa: RUF012
    uses = {"unit": (1, 3), "offset": (2, 3)}  # noqa: RUF012
    _shapes = {"verb": (VERBS,), "unit": (VERBS, UNITS), "offset": (OFFSETS,)}  # noqa: RUF012
    legality = {name: Field(shape, "bool") for name, shape in _shapes.items()}  # noqa: RUF012

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"row": np.zeros(n, np.int64), **_asked(draw)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        verb, unit, offset = action["verb"], action["unit"], action["offset"]
        right = np.stack([unit == (s["cue"] + verb) % UNITS, offset == (s["cue"] + verb) % OFFSETS])
        takes, legal, n = TAKES[:, verb], self.legal(s), np.arange(len(verb))
        allowed = np.stack([legal["unit"][n, verb, unit], legal["offset"][n, offset]])
        illegal = ~legal["verb"][n, verb] | (takes & ~allowed).any(0)
        share = (takes & right).sum(0) / np.maximum(takes.sum(0), 1) / self.rows
        row = s["row"] + 1
        end = illegal | (row == self.rows)
        return {"row": row, **_asked(draw)}, np.where(illegal, -1.0, share), end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        return np.eye(UNITS, dtype=np.float32)[s["cue"]]

    def legal(self, s: Arrays) -> Tree:
        """Of units for each verb, of offsets for the verb that is legal; nothing where it takes none."""
        cue, asked = s["cue"][:, None], s["asked"][:, None]
        wrong = (cue[..., None] + np.arange(VERBS)[:, None] + 1) % UNITS
        return {
            "verb": (np.arange(VERBS) == 0) | (np.arange(VERBS) == asked),
            "unit": (np.arange(UNITS) != wrong) & TAKES[0][:, None],
            "offset": (np.arange(OFFSETS) != (cue + asked + 1) % OFFSETS) & TAKES[1][asked],
        }


def _asked(draw: Draw) -> Arrays:
    """A new cue, and the verb that is legal besides waiting."""
    return {"cue": (draw() * UNITS).astype(np.int64), "asked": 1 + (draw() * (VERBS - 1)).astype(np.int64)}


@dataclass(frozen=True)
class Pendulum(Toy):
    """gymnasium/envs/classic_control/pendulum.py, vectorized; the torque is clipped to [-2, 2]."""

    steps: int = 200  # then truncated

    obs = Field((3,), "float32")
    action = Box((1,), np.array([-2], np.float32), np.array([2], np.float32))

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"th": (2 * draw() - 1) * np.pi, "thdot": 2 * draw() - 1, "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        u = np.clip(action[:, 0], -2.0, 2.0)  # float32, as there
        th, thdot, age = s["th"], s["thdot"], s["age"] + 1
        angle = (th + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * thdot**2 + 0.001 * u**2
        new = np.clip(thdot + (3 * 10.0 / 2 * np.sin(th) + 3.0 * u) * 0.05, -8, 8)
        end = age >= self.steps
        return {"th": th + new * 0.05, "thdot": new, "age": age}, -cost, np.zeros_like(end), end

    def see(self, s: Arrays) -> np.ndarray:
        return np.stack([np.cos(s["th"]), np.sin(s["th"]), s["thdot"]], 1).astype(np.float32)


@dataclass(frozen=True)
class CartPole(Toy):
    """gymnasium/envs/classic_control/cartpole.py (Euler), vectorized; actions: push left, push right."""

    steps: int = 500  # then truncated

    obs = Field((4,), "float32")
    action = Discrete(2)

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"x": np.stack([0.1 * draw() - 0.05 for _ in range(4)], 1), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        x, v, th, w = s["x"].T
        force, sin, cos, age = np.where(action == 1, 10.0, -10.0), np.sin(th), np.cos(th), s["age"] + 1
        push = (force + 0.05 * w**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        new = np.stack([x + 0.02 * v, v + 0.02 * pull, th + 0.02 * w, w + 0.02 * turn], 1)
        fallen = (np.abs(new[:, 0]) > 2.4) | (np.abs(new[:, 2]) > 12 * 2 * np.pi / 360)
        return {"x": new, "age": age}, np.ones(len(x)), fallen, age >= self.steps

    def see(self, s: Arrays) -> np.ndarray:
        return s["x"].astype(np.float32)


MADE = [f"{__name__}:{made}" for made in ("Pendulum", "CartPole", "ConditionalGame", "Still")]
