"""A learner's seat without a crew, and its steps to their end: for tests of updates."""

from __future__ import annotations

from polyplay.meter import Meter
from polyplay.shared import Control
from polyplay.updates import Optim
from polyplay.worker import Me

OPTIM = Optim("rmsprop_tf", eps=1e-3, clip=0.5)


def seat(index: int = 0, n: int = 1, seed: int = 4, **more) -> Me:
    return Me("learn", index, n, index, seed=seed, meters=Meter(4, ("loss",)), control=Control(), **more)


def finish(steps) -> None:
    for _ in steps:
        pass
