"""An environment that costs nothing: every observation is the same.

`polyplay bench` replaces another environment by it, to measure a system without its environment: as toy:still (many
lanes in one thread) or as a Gymnasium environment (in the processes that the other one was in).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from polyplay.common.errors import UserError
from polyplay.common.tree import Field, Spec
from polyplay.envs.spaces import ActionSpec, Discrete, describe_fields

Arrays = dict[str, np.ndarray]
Draw = Callable[[], np.ndarray]  # uniforms in [0, 1), one for each of the lanes at hand


@dataclass(frozen=True)
class Still:
    """Observation: `planes` noisy images, or with height 0 as many real numbers. Rewards 1, 0, -1 that mean nothing;
    truncated after `steps`. Numbers stand in the name: toy:still+planes=1+actions=18.
    """

    planes: int = 4
    height: int = 84
    width: int = 84
    actions: int = 6
    steps: int = 400

    def __post_init__(self) -> None:
        if min(self.planes, self.actions, self.steps) < 1 or min(self.height, self.width) < 0:
            raise UserError(f"toy:still needs numbers from 1 up (height and width from 0 up), got {asdict(self)}")

    action = property(lambda self: Discrete(self.actions))

    @property
    def obs(self) -> Field:
        if self.height and self.width:
            return Field((self.planes, self.height, self.width), "uint8")
        return Field((self.planes,), "float32")

    @cached_property
    def picture(self) -> np.ndarray:
        rng, obs = np.random.default_rng(0), self.obs
        noise = rng.integers(0, 256, obs.shape) if obs.dtype == "uint8" else rng.normal(size=obs.shape)
        return noise.astype(obs.dtype)

    # ---------------------------------------------------------------------------------------- as a toy

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        age = s["age"] + 1
        end = age >= self.steps
        return {"age": age}, (age % 3 - 1).astype(np.float32), np.zeros_like(end), end

    def see(self, s: Arrays) -> np.ndarray:
        return np.broadcast_to(self.picture, (len(s["age"]), *self.picture.shape))


class StillEnv(gymnasium.Env):
    """The same as a Gymnasium environment."""

    def __init__(self, **numbers: int):
        self.still, self.age = Still(**numbers), 0
        obs = self.still.obs
        low, high, dtype = (0, 255, np.uint8) if obs.dtype == "uint8" else (-np.inf, np.inf, np.float32)
        self.observation_space = gym.Box(low, high, obs.shape, dtype)
        self.action_space = gym.Discrete(self.still.actions)

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.age = 0
        return self.still.picture, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.age += 1
        return self.still.picture, float(self.age % 3 - 1), False, self.age >= self.still.steps, {}


def still_options(obs: Spec, action: ActionSpec, title: str) -> dict[str, int]:
    """Options of a Still with another environment's spaces. Raises UserError: spaces that it cannot have."""
    if isinstance(obs, Field) and isinstance(action, Discrete):
        if len(obs.shape) == 3 and obs.dtype == "uint8":
            return {**dict(zip(("planes", "height", "width"), obs.shape, strict=True)), "actions": action.n}
        if len(obs.shape) == 1 and obs.dtype == "float32":
            return {"planes": obs.shape[0], "height": 0, "width": 0, "actions": action.n}
    shown = describe_fields(obs)
    raise UserError(f"--without env: {title} shows {shown}; there is a free one for an image of bytes or a vector only")


def still_name(options: Mapping[str, int]) -> str:
    """toy:still with these numbers in its name."""
    return "+".join(["toy:still", *(f"{k}={v}" for k, v in options.items())])
