"""Systems on images outside Atari: a task that takes both the picture and the numbers beside it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import polyplay

LENGTH = 16


class LookAndSign(gymnasium.Env):
    """The right action is the side of a bright square on the screen, [H, W, C], plus 2 if the number is positive."""

    observation_space = spaces.Dict(screen=spaces.Box(0, 255, (24, 24, 3), np.uint8), sign=spaces.Box(-1.0, 1.0, (1,)))
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
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

    def step(self, action: Any) -> tuple:
        reward, self.steps = float(action == self.right), self.steps + 1
        return self._see(), reward, False, self.steps == LENGTH, {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "steps", "settings"),
    [
        ("ppo", 60_000, {"lanes": 8, "unroll": 64, "learning_rate": 1e-3}),
        ("dqn", 30_000, {"lanes": 8, "learning_starts": 500, "capacity": 10_000, "epsilon_decay_steps": 5_000}),
    ],
)
def test_a_picture_and_numbers_are_learned_from_together(system, steps, settings, tmp_path):
    given: Any = {"tensorboard": False, "quiet": True, "serial": True, "seed": 1, **settings}
    run = polyplay.train(system, env=LookAndSign, run=str(tmp_path / "run"), steps=steps, **given)
    assert run.summary["episodic_return_mean"] > 0.9 * LENGTH
