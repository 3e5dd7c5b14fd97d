"""MiniGrid's observations as numbers that are names, not amounts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Symbols(gymnasium.ObservationWrapper):
    """Of each cell in view the object, colour and state, and where the agent looks: every one of a few, for one-hot
    inputs. The mission, a text, is left out. What MiniGrid environments have around them unless --wrapper names others.
    """

    note = "the mission, a text, is left out"

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        shown = env.observation_space
        assert isinstance(shown, spaces.Dict)
        kinds = np.array([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(STATE_TO_IDX.values()) + 1])
        shape = shown["image"].shape
        assert shape is not None
        cells = spaces.MultiDiscrete(np.broadcast_to(kinds, shape), dtype=np.uint8)
        self.observation_space = spaces.Dict({"image": cells, "direction": shown["direction"]})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"image": observation["image"], "direction": observation["direction"]}
