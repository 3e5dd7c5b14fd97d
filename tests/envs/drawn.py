"""Spaces of every kind that Gymnasium declares, drawn by a seed, and an environment that shows and takes them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NUMBERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NUMBERS += ["float16", "float32", "float64"]
KINDS = ["box", "box", "box", "discrete", "several", "switches", "dict", "tuple"]
STEPS = 5  # of an episode


class OwnBox(spaces.Box):
    """A kind of one's own, as wrappers have them."""


class OwnDiscrete(spaces.Discrete):
    """The same of whole numbers."""


def _box(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> spaces.Box:
    """Bounds as environments declare them: those of the type, none, some, or all alike."""
    dtype = np.dtype(kind)
    make = OwnBox if rng.random() < 0.3 else spaces.Box
    if dtype.kind == "b":
        return make(0, 1, shape, dtype.type)
    if dtype.kind in "iu" and rng.random() < 0.5:
        return make(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    if dtype.kind == "f" and rng.random() < 0.4:
        return make(-np.inf, np.inf if rng.random() < 0.5 else 1.0, shape, dtype.type)
    low = np.asarray(rng.integers(0, 3, shape)).astype(dtype)
    return make(low, (low + rng.integers(0, 90, shape)).astype(dtype), shape, dtype.type)


def draw(rng: np.random.Generator, acting: bool = False, depth: int = 0) -> spaces.Space:
    """A space that environments may declare for observations, or with `acting` for actions."""
    kind = rng.choice(KINDS[: len(KINDS) - 2 * (depth > 1)])
    if kind in ("dict", "tuple"):
        parts = [draw(rng, acting, depth + 1) for _ in range(rng.integers(1, 4))]
        return spaces.Tuple(parts) if kind == "tuple" else spaces.Dict({f"part {i}": s for i, s in enumerate(parts)})
    shape = tuple(rng.integers(1, 4, rng.integers(0, 4)).tolist())
    if kind == "box":
        return _box(rng, shape, str(rng.choice(NUMBERS[-3:] if acting else NUMBERS)))
    if kind == "discrete":
        return (OwnDiscrete if rng.random() < 0.3 else spaces.Discrete)(
            int(rng.integers(1, 6)), start=rng.integers(-2, 3)
        )
    if kind == "several":
        dtype = np.dtype(rng.choice(NUMBERS[1:9])).type
        return spaces.MultiDiscrete(np.asarray(rng.integers(1, 5, shape or 2)), dtype=dtype)
    return spaces.MultiBinary(shape or 3)


class Drawn(gymnasium.Env):
    """Shows samples of one space, takes another's; an action that is none of it is an error."""

    def __init__(self, shown: spaces.Space, taken: spaces.Space):
        self.observation_space, self.action_space = shown, taken

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(self.np_random_seed if seed is None else seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == STEPS, False, {}


def make(seed: int, taken: str = "drawn") -> gymnasium.Env:
    """An environment of drawn observations; its actions are drawn too, or Discrete, or a bounded Box."""
    rng = np.random.default_rng(seed)
    shown = draw(rng)
    others = {"discrete": spaces.Discrete(3), "box": spaces.Box(2.0, 8.0, (2,))}
    return Drawn(shown, others[taken] if taken in others else draw(rng, acting=True))


def empty() -> gymnasium.Env:
    """Shows a vector without numbers."""
    return Drawn(spaces.Box(0, 1, (0,)), spaces.Discrete(2))
