"""Action noise from a counter: uniform numbers keyed by (seed, lane, step), so there is no generator state to save.

The same key gives the same number whatever the grouping of lanes, and drawing an action again with newer weights
uses the same number. Imports no torch.
"""

from __future__ import annotations

import numpy as np

SPLITMIX, _B, _C = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_30, _27, _31, _41 = (np.uint64(x) for x in (30, 27, 31, 41))


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele et al. 2014), wrapping at 64 bits."""
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


def uniform(seed: int, lanes: np.ndarray, steps: np.ndarray, n: int) -> np.ndarray:
    """float32 [..., n] in (0, 1) for lane numbers and step numbers that broadcast to [...]."""
    key = mix(np.array([seed % 2**64], np.uint64) + SPLITMIX)
    lane = mix(np.asarray(lanes).astype(np.uint64) * SPLITMIX + key)
    step = mix(lane ^ (np.asarray(steps).astype(np.uint64) * _C + _B))
    bits = mix(step[..., None] + np.arange(1, n + 1, dtype=np.uint64) * SPLITMIX)
    return ((bits >> _41).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)  # 24 bits: exact, never 1


class LaneUniforms:
    """The noise of fixed lanes, made for many steps at once: one row of it costs less than a microsecond."""

    STEPS = 64

    def __init__(self, seed: int, lanes: np.ndarray, n: int):
        self.seed, self.lanes, self.n = seed, lanes, n
        self.begin, self.block = -self.STEPS, np.zeros((0,), np.float32)

    def row(self, step: int) -> np.ndarray:
        """float32 [B, n] of step number `step`."""
        if not self.begin <= step < self.begin + self.STEPS:
            self.begin = step
            steps = np.arange(step, step + self.STEPS)
            self.block = uniform(self.seed, self.lanes[None, :], steps[:, None], self.n)
        return self.block[step - self.begin]
