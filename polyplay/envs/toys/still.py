"""An environment that costs nothing: every observation is the same. It shows what a system does without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from polyplay.envs.spaces import Discrete

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
