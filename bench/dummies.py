"""A pool and a policy that cost next to nothing, for measuring what is around them."""

from __future__ import annotations

import numpy as np
import torch

from polyplay.core.tree import Batch

ROWS = 32  # prepared rows, used in turn,
SOURCES = 4  # with this many different frame arrays
GAME = 900  # steps of a game: how often lanes end one


class Pool:
    """All lanes at once, prepared."""

    groups, fixed, restarts = 1, True, 0

    def __init__(self, lanes: int, shape: tuple[int, ...]):
        self.lanes, self.at = lanes, slice(0, lanes)
        rng = np.random.default_rng(0)
        frames = [rng.integers(0, 256, (lanes, *shape), np.uint8) for _ in range(SOURCES)]
        ends = rng.random((ROWS, lanes)) < 1.0 / GAME
        none, zero = np.zeros(lanes, bool), np.zeros(lanes, np.float32)
        self.rows = [
            {"obs": frames[i % SOURCES], "reward": zero, "terminated": ends[i], "truncated": none,
             "first": ends[i - 1], "over": ends[i]}
            for i in range(ROWS)
        ]  # fmt: skip
        self.turn = 0

    def recv(self, timeout: float | None = None) -> tuple[slice, Batch]:
        self.turn += 1
        return self.at, self.rows[self.turn % ROWS]

    def send(self, lanes: slice, action: np.ndarray) -> None:
        pass


class Policy:
    """The same answer always."""

    noise = 1

    def __init__(self, lanes: int):
        action, logp, value = torch.zeros(lanes, dtype=torch.int64), torch.zeros(lanes), torch.zeros(lanes)
        self.answer = {"action": action, "logp": logp, "value": value}

    def initial(self, lanes: int) -> Batch:
        return {}

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        return self.answer, state
