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


def rooms() -> gym.Env:
    """MiniGrid's partial view as a picture of 56×56 pixels."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    return ImgObsWrapper(RGBImgPartialObsWrapper(gym.make("MiniGrid-Empty-6x6-v0")))


def doom() -> gym.Env:
    """ViZDoom's basic scenario: a screen of 240×320 pixels and the ammunition; an action holds for four frames."""
    from vizdoom import gymnasium_wrapper  # noqa: F401 - registers

    return gym.make("VizdoomBasic-v1", frame_skip=4)


class Craft(gym.Env):
    """Crafter by Gymnasium's interface: its own is that of the old gym."""

    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gym.spaces.Discrete(17)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        import crafter

        if seed is not None:
            self.env = crafter.Env(seed=seed)
        return self.env.reset(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, done, info = self.env.step(int(action))
        died = done and info["discount"] == 0
        return obs, float(reward), died, done and not died, {}


def cart() -> gym.Env:
    """dm_control's cart and pole, its Dict of float64 as one vector of float32."""
    import shimmy  # noqa: F401 - registers

    env = gym.wrappers.FlattenObservation(gym.make("dm_control/cartpole-balance-v0"))
    return gym.wrappers.DtypeObservation(env, np.float32)


class LookAndSign(gym.Env):
    """A Dict of a picture and a number: the right action is the side of a bright square, plus 2 if the number is
    positive; 1 for each of 16 right ones. Random play scores 4.
    """

    observation_space = gym.spaces.Dict(
        screen=gym.spaces.Box(0, 255, (24, 24, 3), np.uint8), sign=gym.spaces.Box(-1.0, 1.0, (1,))
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def _see(self) -> Any:
        side, sign = self.np_random.integers(2), self.np_random.choice([-1.0, 1.0])
        self.right = int(side) + 2 * int(sign > 0)
        screen = self.np_random.integers(0, 60, (24, 24, 3), np.uint8)
        row, column = int(self.np_random.integers(0, 18)), int(self.np_random.integers(0, 6)) + 12 * int(side)
        screen[row : row + 6, column : column + 6, 1] = 220
        return {"screen": screen, "sign": np.array([sign], np.float32)}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        reward, self.steps = float(action == self.right), self.steps + 1
        return self._see(), reward, False, self.steps == 16, {}


def repeat() -> gym.Env:
    """POPGym's memory task: say what was seen four steps ago."""
    from popgym.envs.repeat_previous import RepeatPreviousEasy

    return RepeatPreviousEasy()


def network() -> gym.Env:
    """NASim's smallest network to attack."""
    import nasim

    env = nasim.make_benchmark("tiny", flat_actions=True)
    return gym.wrappers.TransformAction(env, int, env.action_space)


def vector(num_envs: int, vector_kwargs: dict[str, Any] | None = None) -> gym.vector.VectorEnv:
    return gym.make_vec("Acrobot-v1", num_envs, "sync", vector_kwargs)
