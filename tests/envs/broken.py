"""Environments that each break one rule, and what the rule is called."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env):
    """Eight steps of four numbers, then truncated or terminated by chance; breaks nothing."""

    observation_space: spaces.Space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)

    def see(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def fifth(self) -> None:
        """What happens before the fifth step."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self.steps == 4:
            self.fifth()
        self.steps += 1
        end, chance = self.steps == 8, bool(self.np_random.random() < 0.5)
        return self.see(), float(action), end and chance, end and not chance, {}


def sound_but(name: str, step: Any = None, see: Any = None, **more: Any) -> type[Sound]:
    """Sound, but for what `step` makes of (self, *the parts of a step), `see` of (self, an observation)."""
    if step is not None:
        more["step"] = lambda self, action: step(self, *Sound.step(self, action))
    if see is not None:
        more["see"] = lambda self: see(self, Sound.see(self))
    return type(name, (Sound,), {"__module__": __name__, **more})


def step_of(env: Any) -> int:
    return getattr(env, "steps", 0)


WrongDtype = sound_but("WrongDtype", see=lambda self, seen: seen.astype(np.float64))
OutOfBounds = sound_but("OutOfBounds", see=lambda self, seen: seen + np.float32(3.0))
NotFinite = sound_but(
    "NotFinite", see=lambda self, seen: seen * np.float32([1, 1, np.nan if step_of(self) == 3 else 0, 1])
)
Strays = sound_but("Strays", see=lambda self, seen: seen + np.float32(9 if step_of(self) == 2 else 0))
NoReward = sound_but("NoReward", lambda self, obs, reward, *more: (obs, None, *more))
NoFlag = sound_but("NoFlag", lambda self, obs, reward, dead, *more: (obs, reward, None, *more))
OldGym = sound_but("OldGym", lambda self, obs, reward, dead, late, info: (obs, reward, dead or late, info))
NoLastObservation = sound_but(
    "NoLastObservation", lambda self, obs, reward, dead, late, info: (None if late else obs, reward, dead, late, info)
)
Vast = sound_but(
    "Vast",
    see=lambda self, seen: 1e299 * seen.astype(np.float64),
    observation_space=spaces.Box(-1e300, 1e300, (4,), np.float64),
)
Unrepeatable = sound_but(
    "Unrepeatable", see=lambda self, seen: np.frombuffer(os.urandom(4), np.uint8).astype(np.float32) / 255
)
Wordy = sound_but("Wordy", observation_space=spaces.Text(8))
Valve = sound_but("Valve", action_space=spaces.Box(900.0, 1100.0, (1,), np.float32))  # real actions far from 0


ChangingShape = sound_but("ChangingShape", see=lambda self, seen: seen[: 4 - step_of(self) // 5])
MissingKey = sound_but(
    "MissingKey",
    see=lambda self, seen: {"near": seen} if step_of(self) == 5 else {"near": seen, "far": seen},
    observation_space=spaces.Dict({"near": spaces.Box(-1.0, 1.0, (4,)), "far": spaces.Box(-1.0, 1.0, (4,))}),
)
PlanesLast = sound_but(  # an image of real numbers
    "PlanesLast",
    see=lambda self, _: self.np_random.random((64, 64, 3), np.float32),
    observation_space=spaces.Box(0.0, 1.0, (64, 64, 3)),
)


class NothingLegal(Sound):
    def reset(self, **kw: Any) -> tuple[Any, Any]:
        return super().reset(**kw)[0], {"action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": np.full(2, self.steps != 4, np.int8)}


class ResetsItself(Sound):
    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            obs, info = self.reset()
        return obs, reward, terminated, truncated, info


class OneSeed(Sound):
    """Every lane plays the same."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return super().reset(seed=42)


class OneGenerator(Sound):
    """The same without a seed to be seen."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.np_random = np.random.default_rng(42)
        return super().reset(seed=None)


class Hangs(Sound):
    def fifth(self) -> None:
        time.sleep(1000)


class NeverBegins(Sound):
    def reset(self, **kw: Any) -> tuple[Any, Any]:
        raise OSError("no level left")


class Raises(Sound):
    def fifth(self) -> None:
        raise ValueError("boom")


class Dies(Sound):
    def fifth(self) -> None:
        os._exit(3)


class Unbuildable(Sound):
    def __init__(self) -> None:
        raise RuntimeError("no licence found")


def unpicklable() -> Callable[[], Any]:
    """A function that closes over a lock."""
    lock = threading.Lock()

    def unpicklable() -> Any:
        with lock:
            return Sound()

    return unpicklable


class Pair:
    """A sound game of two players, as PettingZoo's ParallelEnv; each sees what both drew, 8 times."""

    possible_agents = ("left", "right")
    metadata = {"name": "pair"}  # noqa: RUF012

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        return self._all(lambda: self._np_random.random(2, np.float32)), self._all(dict)

    def _all(self, make: Callable[[], Any]) -> dict[str, Any]:
        return {agent: make() for agent in self.agents}

    def step(self, actions: dict) -> tuple:
        self.steps += 1
        over = self.steps == 8
        parts = [self._all(lambda: self._np_random.random(2, np.float32)), self._all(lambda: 1.0)]
        parts += [self._all(lambda: False), self._all(lambda: over), self._all(dict)]
        self.agents = [] if over else self.agents
        return tuple(parts)

    def close(self) -> None: ...


class Unequal(Pair):
    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (2 if agent == "left" else 3,), np.float32)


class Revived(Pair):
    """The left one ends after two steps, and is there again after four."""

    def step(self, actions: dict) -> tuple:
        obs, rewards, dead, late, infos = super().step(actions)
        dead["left"] = self.steps == 2
        gone = {"left"} if 2 <= self.steps < 4 else set()
        self.agents = [a for a in (self.possible_agents if self.agents else ()) if a not in gone]
        return obs, rewards, dead, late, infos


class Unnamed(Pair):
    def step(self, actions: dict) -> tuple:
        obs, rewards, *rest = super().step(actions)
        return obs, {"nobody": rewards["left"]}, *rest


class Gray(Sound):
    """An image without planes; its time limit is told in the old way."""

    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)

    def see(self) -> Any:
        return self.np_random.integers(0, 256, (84, 84), np.uint8)

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated or truncated, False, {"TimeLimit.truncated": truncated}


class Doom(gymnasium.Env):
    """Ends as ViZDoom does at its time limit: with both flags, and zeros for all that it shows."""

    observation_space = spaces.Dict(
        {
            "screen": spaces.Box(0, 255, (24, 32, 3), np.uint8),
            "gamevariables": spaces.Box(np.float32(-3.4e38), np.float32(3.4e38), (2,), np.float32),
        }
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def see(self) -> dict:
        screen = self.np_random.integers(0, 256, (24, 32, 3), np.uint8)
        return {"screen": screen, "gamevariables": np.ones(2, np.float32)}

    def step(self, action: Any) -> tuple:
        self.steps += 1
        late = self.steps == 6
        seen = {key: part * 0 for key, part in self.see().items()} if late else self.see()
        return seen, 1.0, late, late, {}


class Thin(Sound):
    """Bytes whose planes are in the middle."""

    observation_space = spaces.Box(0, 255, (84, 8, 84), np.uint8)

    def see(self) -> Any:
        return self.np_random.integers(0, 256, (84, 8, 84), np.uint8)


_SOUND = Sound()


def same() -> Any:
    """The same environment at every call."""
    return _SOUND


class OneSimulator(Sound):
    """Copies that share what counts their steps."""

    shared = {"steps": 0}  # noqa: RUF012

    def see(self) -> Any:
        self.shared["steps"] += 1
        return super().see() * 0.0 + np.float32(self.shared["steps"] % 10 / 10)


RULES: dict[str, Any] = {  # rule → what breaks it; the first three must not even begin
    "factory": unpicklable(),
    "build": Unbuildable,
    "spaces": Wordy,
    "keys": MissingKey,
    "shape": ChangingShape,
    "dtype": WrongDtype,
    "bounds": OutOfBounds,
    "images": PlanesLast,
    "copies": same,
    "mask": NothingLegal,
    "finite": NotFinite,
    "reward": NoReward,
    "flags": NoFlag,
    "final-observation": NoLastObservation,
    "seed": OneSeed,
    "reset": NeverBegins,
    "step": Raises,
    "hang": Hangs,
    "crash": Dies,
    "kinds": Unequal,
    "agents": Revived,
    "players": Unnamed,
}


class Restless(Sound):
    """Begins anew in the middle, or resets at an end but gives the right observation."""

    def __init__(self, middle: bool):
        self.middle = middle

    def step(self, action: Any) -> tuple:
        result = super().step(action)
        if self.steps == (3 if self.middle else 8):
            self.reset()
        return result


class Beyond(Pair):
    """The right one sees what is out of bounds."""

    def step(self, actions: dict) -> tuple:
        obs, *rest = super().step(actions)
        return {agent: seen - (agent == "right") for agent, seen in obs.items()}, *rest
