"""Stand-ins for packages of 2016 to 2018 that GA3C and pytorch-a3c import: gym's `make`, scipy's `imresize`.

They let that code run as it is on gymnasium and ale-py. An environment answers as gym's did: `reset()` gives an
observation, `step()` four values; `PongDeterministic-v0` skips 4 frames and repeats actions with probability 0.25,
`-v4` skips 4 and does not repeat. Observations are RGB of the last of the skipped frames, as gym's were.
"""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
from PIL import Image

gymnasium.register_envs(ale_py)


class Env:
    """One Atari game under gym's old interface."""

    def __init__(self, name: str):
        game, _, version = name.partition("Deterministic-")
        sticky = {"v0": 0.25, "v4": 0.0}[version]
        self._env = gymnasium.make(
            f"ALE/{game}-v5", frameskip=4, repeat_action_probability=sticky, obs_type="rgb", disable_env_checker=True
        )
        self.action_space, self.observation_space = self._env.action_space, self._env.observation_space
        self._seed: int | None = None

    def seed(self, seed: int) -> None:
        self._seed = int(seed)

    def reset(self) -> np.ndarray:
        seed, self._seed = self._seed, None
        return self._env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, dict]:
        frame, reward, terminated, truncated, info = self._env.step(int(np.asarray(action).item()))
        return frame, float(reward), terminated or truncated, info


def imresize(image: np.ndarray, size: tuple[int, int], interp: str) -> np.ndarray:
    """What scipy.misc did with an image of floats: its least value becomes 0, its greatest 255, then Pillow resizes."""
    assert interp == "bilinear"
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) * (255.0 / (high - low or 1.0))
    height, width = size
    small = Image.fromarray((scaled.clip(0, 255) + 0.5).astype(np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))


def install(name: str, **members: Any) -> None:
    """`import name` finds these members from now on."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    if above:
        if above not in sys.modules:
            install(above)
        setattr(sys.modules[above], last, module)


class Log:
    """Lines of {"wall_seconds", "steps", …} at most every `every` seconds."""

    def __init__(self, path: str, every: float = 0.5):
        self.file = open(Path(path), "a", buffering=1)  # noqa: SIM115 - lives as long as the program
        self.begun = self.last = time.perf_counter()
        self.every = every

    def due(self) -> bool:
        return time.perf_counter() - self.last >= self.every

    def write(self, **counters: float) -> None:
        self.last = time.perf_counter()
        self.file.write(json.dumps({"wall_seconds": round(self.last - self.begun, 4), **counters}) + "\n")
