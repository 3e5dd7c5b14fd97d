"""What the scripts of simulated actors, stale gradients and exploration compute, without running them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import senders
import staleness

from polyplay.core import tree
from polyplay.core.tree import Field

SPEC = senders.spec_of(Field((4, 3, 3), "uint8"))


def played(n: int, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Stacks [n, 4, 3, 3] of planes that are all different, after each of `starts` zeros; and which rows are first."""
    first, stacks = np.isin(np.arange(n), starts), np.zeros((n, 4, 3, 3), np.uint8)
    for t in range(n):
        if t and not first[t]:
            stacks[t, :-1] = stacks[t - 1, 1:]
        stacks[t, -1] = t + 1
    return stacks, first


def recorded(n: int = 40, lanes: int = 2) -> senders.Recording:
    obs, first = played(n, [0, 17])
    planes, newest = senders.planes_of(obs, first)
    rest = {k: np.zeros((lanes, n), f.dtype) for k, f in SPEC.items() if k not in ("obs", "version")}
    rest["first"][:], rest["action"][:] = first, np.arange(n)
    return senders.Recording(np.concatenate([planes] * lanes), np.stack([newest, newest + len(planes)]), rest)


def test_planes_are_kept_once_and_give_the_stacks_again():
    obs, first = played(40, [0, 17])
    made = recorded()
    assert len(made.arrays["planes"]) == 2 * (40 + 2 * 3)
    for at in (0, 10, 29):
        rows = tree.zeros(SPEC, (11, 1))
        made.copy(1, at, rows)
        assert np.array_equal(rows["obs"][:, 0], obs[at : at + 11])
        assert rows["action"][:, 0].tolist() == list(range(at, at + 11))
        assert np.array_equal(rows["first"][:, 0], first[at : at + 11])


class Bound:
    """A learner's end that only notes what is pushed."""

    def __init__(self, vector: Any):
        self.vector, self.pushed = vector, list[tuple[float, int]]()
        self.versions, self.applied_to, self.counts = np.array([0]), -1, SimpleNamespace(version=5)

    def apply(self, rate: float, sums: Any) -> Any:
        self.pushed.append((float(self.vector.grad[0]), int(self.versions[0])))
        return 1.0, sums
        yield


def test_a_late_learner_pushes_old_gradients_with_the_versions_they_were_made_with():
    import torch

    vector: Any = SimpleNamespace(grad=torch.zeros(3))
    bound = Bound(vector)
    late = staleness._Late(bound, 2)
    for k in range(5):
        vector.grad.fill_(float(k))
        bound.versions[:] = 10 + k
        for _ in late.apply(0.1, np.zeros(3)):
            pass
        assert bound.versions[0] == 10 + k
    assert bound.pushed == [(0.0, 10), (1.0, 11), (2.0, 12)]
    assert late.applied_to == 5
