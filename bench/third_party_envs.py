"""What third_party.py opens by function: environments that need a wrapper of their own package, or a configuration."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def image() -> gym.Env:
    """MiniGrid's partial view as a vector; its mission, a text, left out by its own wrapper."""
    from minigrid.wrappers import ImgObsWrapper

    return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make("MiniGrid-Empty-5x5-v0")))


def mission() -> gym.Env:
    """All that MiniGrid shows, the mission as numbers of words."""
    from minigrid.wrappers import DictObservationSpaceWrapper

    return DictObservationSpaceWrapper(gym.make("MiniGrid-GoToDoor-5x5-v0"))


def highway() -> gym.Env:
    """Acceleration and steering, three choices each."""
    import highway_env

    gym.register_envs(highway_env)
    action = {"type": "DiscreteAction", "actions_per_axis": 3}
    return gym.make("highway-fast-v0", config={"action": action, "duration": 10})


def vector(num_envs: int, vector_kwargs: dict[str, Any] | None = None) -> gym.vector.VectorEnv:
    return gym.make_vec("Acrobot-v1", num_envs, "sync", vector_kwargs)
