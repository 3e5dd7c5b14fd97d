"""A Gymnasium environment of the awkward kind: every space it may have, and masks as Gymnasium's `sample` takes them.

It raises when an action is not in its space, not of its types, or not legal.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PARTS = {
    "pick": spaces.Discrete(4, start=2),
    "rest": spaces.Tuple(
        [
            spaces.MultiDiscrete([[2, 3]], np.int16, start=[[5, -1]]),
            spaces.MultiBinary([2, 1]),
            spaces.Box(-1, 1, (2,), np.float64),
        ]
    ),
}


class Picky(gymnasium.Env):
    """source: "info" or "observation", where the mask is."""

    def __init__(self, source: str = "info", length: int = 5):
        self.source, self.length = source, length
        self.action_space = spaces.Dict(PARTS)
        seen: dict[str, Any] = {
            "who": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4])]),
            "bits": spaces.MultiBinary(3),
        }
        if source == "observation":
            # what a space can say: flat arrays
            seen["action_mask"] = spaces.Dict(
                {
                    "pick": spaces.Box(0, 1, (4,), np.int8),
                    "rest": spaces.Dict({"0": spaces.MultiBinary(5), "1": spaces.Box(0, 2, (2, 1), np.int8)}),
                }
            )
        self.observation_space = spaces.Dict(seen)

    def _mask(self, last: bool) -> dict:
        r = self.np_random
        pick = np.zeros(4, np.int8) if last else r.permutation(np.int8([1, 0, 0, 1]))
        many = [r.permutation(np.int8([1, 0])), r.permutation(np.int8([1, 1, 0]))]
        bits = r.integers(0, 3, (2, 1)).astype(np.int8)
        self.mask = (pick, many, bits)
        if self.source == "info":
            return {"pick": pick, "rest": ((tuple(many),), bits, None)}
        return {"pick": pick, "rest": {"0": np.concatenate(many), "1": bits}}

    def _see(self, last: bool) -> tuple[dict, dict]:
        mask: Any = self._mask(last)
        obs = {
            "who": (np.int64(1 + self.steps % 3), np.array([self.steps % 2, self.steps % 4])),
            "bits": np.int8([1, self.steps % 2, 0]),
        }
        if self.source == "observation":
            return {**obs, "action_mask": mask}, {}
        return obs, {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        many, bits, real = action["rest"]
        assert [type(action["pick"]), many.dtype, bits.dtype, real.dtype] == [np.int64, np.int16, np.int8, np.float64]
        pick, sets, either = self.mask
        assert pick[action["pick"] - 2], "illegal"
        assert sets[0][many[0, 0] - 5], "illegal"
        assert sets[1][many[0, 1] + 1], "illegal"
        assert ((either == 2) | (bits == either)).all(), "illegal"
        self.steps += 1
        end = self.steps == self.length
        obs, info = self._see(end)
        return obs, 1.0, end and self.length % 2 == 0, end and self.length % 2 == 1, info
