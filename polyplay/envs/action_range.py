"""The ranges of real actions: how far a policy's −1 … 1 reaches in an environment's units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyplay.common import tree
from polyplay.envs.spaces import ActionSpec, Box

NO_BOUND = 1e30  # environments that have no bound declare the largest float, or one near it
SEEN = 3.0  # a new policy draws numbers of mean 0 and deviation 1: nearly all lie within this


@dataclass(frozen=True, eq=False)
class ActionRange:
    """middle ± half are the bounds of each part of a Box, float32 [*shape]; of a part without both they are 0 ± 1."""

    middle: np.ndarray
    half: np.ndarray
    bounded: np.ndarray  # bool: has both

    @classmethod
    def of(cls, box: Box) -> ActionRange:
        bounded = np.maximum(np.abs(box.low), np.abs(box.high)) < NO_BOUND
        low, high = np.where(bounded, box.low, -1.0), np.where(bounded, box.high, 1.0)
        return cls((low / 2 + high / 2).astype(np.float32), (high / 2 - low / 2).astype(np.float32), bounded)

    @property
    def unit(self) -> bool:
        """Whether every part is 0 ± 1."""
        return bool((self.middle == 0).all() and (self.half == 1).all())

    @property
    def far(self) -> bool:
        """Whether a new policy's numbers, as they are, would hardly ever lie within some part's bounds, or reach next
        to nothing of them.
        """
        beyond = np.abs(self.middle) - self.half > SEEN
        return bool((beyond | (self.half < 0.02 * SEEN) | (self.half > 10 * SEEN))[self.bounded].any())


def describe_scaling(action: ActionSpec, scaled: bool) -> str:
    """What becomes of the numbers that policies draw for real parts, for people; "": there are none."""
    parts = {path: leaf for path, leaf in tree.leaves(action) if isinstance(leaf, Box)}
    found = [f"{path}: {text}" if path else text for path, leaf in parts.items() if (text := _scaling(leaf, scaled))]
    return "; ".join(found)


def _scaling(box: Box, scaled: bool) -> str:
    known, ends = ActionRange.of(box), f"[{box.low.min(initial=np.inf):g}, {box.high.max(initial=-np.inf):g}]"
    if not known.bounded.any():
        return "without bounds: a policy's numbers, at first of mean 0 and deviation 1, are taken as they are"
    if scaled and not known.unit:
        return f"a policy's −1 … 1 is scaled to {ends}"
    flaw = ", of which a new policy reaches next to nothing: give --actions scale" if known.far else ""
    return f"a policy's numbers are clipped to {ends}{flaw}"
