"""Batches of a vector environment's observations, actions and flags, to and from a pool's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import ArrayLike

from polyplay.common import tree
from polyplay.common.tree import Tree
from polyplay.envs import spaces
from polyplay.envs.pool import Lanes
from polyplay.envs.spaces import inner_path

Reader = Callable[[Any, Lanes], None]


def observation_reader(space: gym.Space, into: Tree, n: int, path: str = "") -> Reader:
    """A function that checks a batch of observations and copies it into `into`, which it may do for some lanes only.
    It raises SpaceViolation.
    """
    if isinstance(space, gym.Dict):
        inner = {k: observation_reader(s, into[k], n, inner_path(path, k)) for k, s in space.spaces.items()}

        def by_key(obs: Any, which: Lanes) -> None:
            if not hasattr(obs, "keys") or not inner.keys() <= obs.keys():
                raise spaces.SpaceViolation(f"declared keys {list(inner)}, given {type(obs).__name__} {list(obs)[:8]}")
            for key, read in inner.items():
                read(obs[key], which)

        return by_key
    if isinstance(space, gym.Box):

        def whole(obs: Any, which: Lanes) -> None:
            obs = np.asarray(obs)
            spaces.check_array(obs, (n, *space.shape), space.dtype, path)
            into[which] = obs[which]

        return whole
    writers, batch = [spaces.observation_writer(space, into, i, path) for i in range(n)], batch_space(space, n)

    def each(obs: Any, which: Lanes) -> None:
        for i, one in enumerate(iterate(batch, obs)):
            if isinstance(which, slice) or which[i]:
                writers[i](one)

    return each


def action_writer(space: gym.Space, n: int) -> Callable[[Tree], Tree]:
    """From a batch of the pool's actions to what the vector environment's `step` takes."""
    if isinstance(space, gym.Discrete):
        return lambda a: (a + space.start).astype(space.dtype)
    one = spaces.action_reader(space)
    if not isinstance(space, gym.Dict | gym.Tuple):
        return one  # bounds and first numbers are every lane's

    def several(a: Tree) -> Tree:
        rows = [one(tree.at(a, i)) for i in range(n)]
        return concatenate(space, rows, create_empty_array(space, n))  # type: ignore[arg-type]

    return several


def lane_flags(n: int, *given: ArrayLike) -> list[np.ndarray]:
    """reward, terminated and truncated of `n` lanes, as copies. Raises ValueError: they are of others."""
    flags = [np.array(x) for x in given]
    if any(x.shape != (n,) for x in flags):
        shapes = ", ".join(str(list(x.shape)) for x in flags)
        raise ValueError(f"reward, terminated, truncated must be [{n}], given {shapes}")
    return flags
