"""Stand-ins for packages of 2016 to 2018 that GA3C, pytorch-a3c and MonoBeast import: gym, scipy's `imresize`.

They let that code run as it is on gymnasium and ale-py. An environment answers as gym's did: `reset()` gives an
observation, `step()` four values; `PongDeterministic-v0` skips 4 frames and repeats actions with probability 0.25,
`-v4` skips 4 and does not repeat. Observations are RGB of the last of the skipped frames, as gym's were. MonoBeast's
wrappers stand on `Wrapper` and its kind and on `PongNoFrameskip-v4`.
"""

from __future__ import annotations

import sys
import types
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


class Wrapper:
    """gym.Wrapper: what it does not have itself is asked of what it wraps."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: Any) -> tuple:
        return self.env.step(action)

    def reset(self, **more: Any) -> Any:
        return self.env.reset(**more)


class ObservationWrapper(Wrapper):
    def step(self, action: Any) -> tuple:
        obs, *rest = self.env.step(action)
        return (self.observation(obs), *rest)

    def reset(self, **more: Any) -> Any:
        return self.observation(self.env.reset(**more))


class RewardWrapper(Wrapper):
    def step(self, action: Any) -> tuple:
        obs, reward, *rest = self.env.step(action)
        return (obs, self.reward(reward), *rest)


class Plain:
    """`PongNoFrameskip-v4`: RGB of every frame; the ALE and its meanings of actions are to be had."""

    def __init__(self, name: str):
        game = name.removesuffix("NoFrameskip-v4")
        self._env = gymnasium.make(
            f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, obs_type="rgb", disable_env_checker=True
        ).unwrapped
        self.unwrapped, self.spec = self, types.SimpleNamespace(id=name)
        self.action_space, self.observation_space = self._env.action_space, self._env.observation_space
        self.ale, self.get_action_meanings = self._env.ale, self._env.get_action_meanings
        self._seed: int | None = None
        self.np_random = np.random.RandomState()

    def seed(self, seed: int) -> None:
        self._seed = int(seed)
        self.np_random.seed(seed % 2**32)

    def reset(self) -> np.ndarray:
        seed, self._seed = self._seed, None
        return self._env.reset(seed=None if seed is None else seed % 2**31)[0]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, dict]:
        frame, reward, terminated, truncated, info = self._env.step(int(action))
        return frame, float(reward), terminated or truncated, info


def old_gym() -> dict[str, dict[str, Any]]:
    """Members of `gym` and `gym.spaces`, for install()."""
    wrappers = {c.__name__: c for c in (Wrapper, ObservationWrapper, RewardWrapper)}
    spaces = vars(gymnasium.spaces)
    return {"gym": {"make": Plain, **wrappers}, "gym.spaces": {"Box": spaces["Box"]}}
