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


def engines() -> gym.Env:
    """LunarLander's two engines, five throttles each."""
    from gymnasium.wrappers import DiscretizeAction

    return DiscretizeAction(gym.make("LunarLander-v3", continuous=True), bins=5, multidiscrete=True)


def vector(num_envs: int, vector_kwargs: dict[str, Any] | None = None) -> gym.vector.VectorEnv:
    return gym.make_vec("Acrobot-v1", num_envs, "sync", vector_kwargs)
