"""Environments of one's own, which curves.py and third_party.py name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

# An environment that curves.py trains in: toy:catch as a picture, for networks with convolutions


ROWS, COLUMNS = 10, 7
HIGH, WIDE = 4, 6  # pixels of a cell
SIDE = 42


class Catch(gym.Env):
    """A ball falls through 10 rows, a paddle below it moves left, stays or moves right; 1 for a ball that is caught,
    −1 for one that is not, after nine steps. Seen as [1, 42, 42] bytes. Random play scores about −0.7.
    """

    observation_space = gym.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(COLUMNS)), COLUMNS // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), COLUMNS - 1)
        self.row += 1
        over = self.row == ROWS - 1
        reward = (1.0 if self.paddle == self.ball else -1.0) if over else 0.0
        return self._picture(), reward, over, False, {}

    def _picture(self) -> np.ndarray:
        picture = np.zeros((1, SIDE, SIDE), np.uint8)
        for row, column, shade in ((self.row, self.ball, 255), (ROWS - 1, self.paddle, 170)):
            picture[0, row * HIGH : (row + 1) * HIGH, column * WIDE : (column + 1) * WIDE] = shade
        return picture


# What third_party.py opens by function: environments that need a wrapper of their own package, or a configurati


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
