"""Small games that tests learn in seconds, many lanes at once in NumPy, with an exact state()/load().

toy:catch     bsuite's catch: a paddle under a falling ball; random play scores about -0.6, perfect play 1.
toy:memory    a cue shown in the first row only, blank rows, then repeat it; without memory 2 cues score 0.
toy:pendulum  Gymnasium's Pendulum-v1, to the bit of its float64 equations, truncated after 200 steps.
toy:cartpole  Gymnasium's CartPole-v1, likewise; terminated when it falls, truncated after 500 steps.
toy:conditional  a verb, then the parts that it takes (conditional.py).
toy:still     the same picture for ever: costs nothing (still.py).
toy:rps       rock-paper-scissors, and toy:skirmish, two against two: games of several players (seated.py).

toy:module:Class is a game of your own, a class as `Toy` below. Options that are switches or numbers may stand in the
name: toy:still+planes=1, toy:module:Class+mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.rng import SPLITMIX, mix
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.envs.conditional_actions import conditional_actions
from polyplay.envs.pool import Envs, EnvSpec, closest_names, lane_seeds, options
from polyplay.envs.pools.base import BasePool
from polyplay.envs.pools.board import FLAGS
from polyplay.envs.pools.build import imported
from polyplay.envs.spaces import ActionSpec, Box, Discrete, describe_actions, describe_fields
from polyplay.envs.toys.conditional import ConditionalGame
from polyplay.envs.toys.seated import RockPaperScissors, Skirmish
from polyplay.envs.toys.still import Arrays, Draw, Still


class Toy(Protocol):
    """One game over arrays [n]: n of the pool's lanes, picked by the pool. It may have `classes` of its observations,
    and masks: their fields `legality` and `legal(s)`. Where a part of the actions decides which others count it has
    `uses`, see envs/conditional_actions.
    """

    obs: Spec
    action: ActionSpec

    def reset(self, draw: Draw, n: int) -> Arrays:
        """States of n new episodes: [n, …] arrays, always the same names."""

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        """New states, reward, terminated, truncated."""

    def see(self, s: Arrays) -> Tree:
        """Observations [n, *obs.shape]."""


@dataclass(frozen=True)
class Catch:
    """Observation: the board, flattened, 1 (uint8: 255) where ball and paddle are. Actions: left,
    stay, right.
    """

    rows: int = 10
    columns: int = 5
    dtype: str = "float32"  # or "uint8"

    def __post_init__(self) -> None:
        if self.rows < 2 or self.columns < 1 or self.dtype not in ("float32", "uint8"):
            got = f"rows={self.rows}, columns={self.columns}, dtype={self.dtype!r}"
            raise UserError(f"toy:catch needs rows ≥ 2, columns ≥ 1 and dtype 'float32' or 'uint8', got {got}")

    action = Discrete(3)
    obs = property(lambda self: Field((self.rows * self.columns,), self.dtype))

    def reset(self, draw: Draw, n: int) -> Arrays:
        ball = (draw() * self.columns).astype(np.int64)
        return {"ball": ball, "row": np.zeros(n, np.int64), "paddle": np.full(n, self.columns // 2)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        paddle = np.clip(s["paddle"] + action - 1, 0, self.columns - 1)
        row = s["row"] + 1
        end = row == self.rows - 1
        reward = np.where(end, np.where(paddle == s["ball"], 1.0, -1.0), 0.0)
        return {"ball": s["ball"], "row": row, "paddle": paddle}, reward, end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        n = np.arange(len(s["ball"]))
        board = np.zeros((len(n), self.rows, self.columns), self.dtype)
        board[n, s["row"], s["ball"]] = board[n, -1, s["paddle"]] = 255 if self.dtype == "uint8" else 1
        return board.reshape(len(n), -1)


@dataclass(frozen=True)
class MemoryGame:
    """Observation: the cue (one-hot, first row only) and a light that is on where the answer is due.

    Rows: cue, `delay` blanks the last of which is lit, the end (reward ±1 for the answer in the lit row).
    """

    cues: int = 2
    delay: int = 3

    def __post_init__(self) -> None:
        if self.cues < 2 or self.delay < 1:
            raise UserError(f"toy:memory needs cues ≥ 2 and delay ≥ 1, got cues={self.cues}, delay={self.delay}")

    action = property(lambda self: Discrete(self.cues))
    obs = property(lambda self: Field((self.cues + 1,), "float32"))

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"cue": (draw() * self.cues).astype(np.int64), "row": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        row = s["row"] + 1
        end = row == self.delay + 1
        reward = np.where(end, np.where(action == s["cue"], 1.0, -1.0), 0.0)
        return {"cue": s["cue"], "row": row}, reward, end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        obs = np.zeros((len(s["cue"]), self.cues + 1), np.float32)
        start = np.flatnonzero(s["row"] == 0)
        obs[start, s["cue"][start]] = 1
        obs[:, -1] = s["row"] == self.delay
        return obs


@dataclass(frozen=True)
class Pendulum:
    """gymnasium/envs/classic_control/pendulum.py, vectorised; the torque is clipped to [-2, 2]."""

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
class CartPole:
    """gymnasium/envs/classic_control/cartpole.py (Euler), vectorised; actions: push left, push right."""

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


TOYS: dict[str, type] = {
    "catch": Catch,
    "memory": MemoryGame,
    "pendulum": Pendulum,
    "cartpole": CartPole,
    "conditional": ConditionalGame,
    "still": Still,
    "rps": RockPaperScissors,
    "skirmish": Skirmish,
}


def toy(envs: Envs) -> Toy:
    """The game that `envs` names. Raises UserError: no such toy, module or option."""
    name, *switches = envs.title.removeprefix("toy:").split("+")
    game = TOYS.get(name) or (imported(name) if ":" in name else None)
    if game is None:
        known = ", ".join(f"toy:{k}" for k in TOYS)
        raise UserError(
            f"--env: unknown toy {envs.title!r}{closest_names(envs.title, known.split(', '))}; there are: {known}"
        )
    return options(game, {**dict(map(switch, switches)), **envs.options}, f"toy:{name}")


def switch(word: str) -> tuple[str, bool | int | float | str]:
    """Of a name: `mask` is on, `planes=4`, `accuracy=0.5` and `komi=-3.5` are numbers."""
    name, equals, value = word.partition("=")
    if not equals:
        return name, True
    whole, point, parts = value.removeprefix("-").partition(".")
    if whole.isdigit() and (parts.isdigit() or not point):
        return name, float(value) if point else int(value)
    return name, value


def describe(envs: Envs) -> EnvSpec:
    """The spec of a toy. Raises UserError."""
    return spec_of(envs, toy(envs))


def spec_of(envs: Envs, game: Any) -> EnvSpec:
    action = conditional_actions(game.action, getattr(game, "uses", None), f"{envs.title}: uses")
    text = {"environment": envs.title, "observation": describe_fields(game.obs)}
    text["actions"] = describe_actions(action)
    mask = getattr(game, "legality", None)
    if mask is not None:
        text["action mask"] = "of the toy's own"
    spec = EnvSpec(game.obs, action, describe=text, classes=getattr(game, "classes", {}), mask=mask)
    return _with_seats(spec, game) if getattr(game, "seats", 1) > 1 else spec


def _with_seats(spec: EnvSpec, game: Any) -> EnvSpec:
    seats, events = game.seats, getattr(game, "events", ())
    teams, shared = getattr(game, "teams", tuple(range(seats))), getattr(game, "team_reward", False)
    bots = getattr(game, "bots", {})
    spec = replace(spec, seats=seats, teams=teams, kinds=(0,) * seats, events=events, team_reward=shared)
    return replace(spec, bots=bots)


def game_streams(seed: int, lane: int, n: int) -> np.ndarray:
    """The counters of n lanes' random streams, the first of which is `lane` of the run: uint64 [n]."""
    return lane_seeds(seed, lane, n).astype(np.uint64) * np.uint64(0xD1342543DE82EF95)  # they lie far apart


def game_rng(counters: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The next uniforms in [0, 1) of the streams `at`: splitmix64 (Steele et al. 2014), a counter per lane."""
    counters[at] += SPLITMIX
    return (mix(counters[at]) >> np.uint64(11)) * 2.0**-53


class ToyPool(BasePool):
    """A Pool of a toy: lanes step in send(), in the caller's thread."""

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        self.game = toy(envs)
        self._counters = game_streams(seed, lane, envs.lanes)
        everyone = np.arange(envs.lanes)
        self._states = self.game.reset(self._draw(everyone), envs.lanes)
        self._begin(everyone, self._states)
        self._arrays = {"game": self._states, "rows": self._rows, "random": self._counters}
        self._turns.back(everyone.tolist())

    def _draw(self, at: np.ndarray) -> Draw:
        return lambda: game_rng(self._counters, at)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        over = self._rows["over"][numbers]
        begin, live = numbers[over], numbers[~over]
        if live.size:
            self._play(live, tree.map(lambda a: a[~over], action))
        if begin.size:
            self._begin(begin, self.game.reset(self._draw(begin), begin.size))

    def _play(self, at: np.ndarray, action: Tree) -> None:
        before = {k: v[at] for k, v in self._states.items()}
        after, reward, terminated, truncated = self.game.step(before, action, self._draw(at))
        flags = {"terminated": terminated, "truncated": truncated & ~terminated, "over": terminated | truncated}
        self._write(at, after, {"reward": reward, **flags, "first": False})

    def _begin(self, at: np.ndarray, states: Arrays) -> None:
        self._write(at, states, {"reward": 0.0, **dict.fromkeys(FLAGS, False), "first": True})

    def _write(self, at: np.ndarray, states: Arrays, row: Batch) -> None:
        tree.write(self._states, at, states)
        masks = {"mask": self.game.legal(states)} if "mask" in self._rows else {}  # type: ignore[attr-defined]
        tree.write(self._rows, at, {"obs": self.game.see(states), **masks, **row})

    def state(self) -> Batch:
        """Copies of games, rows, random streams and turns."""
        return tree.map(np.copy, {**self._arrays, "turns": self._turns.state()})

    def load(self, state: Batch) -> None:
        tree.write(self._arrays, ..., {k: state[k] for k in self._arrays})
        self._turns.load(state["turns"])
