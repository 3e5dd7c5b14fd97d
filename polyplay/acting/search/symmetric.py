"""A network that is asked under random symmetries of the board (Silver et al. 2017, Methods: "Expand and evaluate").
Imports no torch.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from polyplay.common import rng
from polyplay.envs.boards.game import Game


class Evaluator(Protocol):
    """A network as a search asks it."""

    @property
    def title(self) -> str: ...  # which network this is, for messages
    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits or log-probabilities float32 [N, A] and values float32 [N] in [-1, 1], from the mover's view, of
        planes [N, C, H, W].
        """
        ...


class SymmetricEvaluator:
    """Shows each position to another evaluator under one of its board's symmetries, drawn anew each time: the numbers
    of (seed, lane, how many positions were shown before) decide.
    """

    def __init__(self, evaluator: Evaluator, board: Game, seed: int, lane: int):
        self.evaluator, self.seed, self.lane, self.shown = evaluator, seed, lane, 0
        self.cells = np.stack([np.argsort(cells) for cells, _ in board.symmetries])  # which cell is shown at i
        self.actions = np.stack([actions for _, actions in board.symmetries])  # where action i is shown

    @property
    def title(self) -> str:
        return self.evaluator.title

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See Evaluator: logits are of the actions as they were."""
        n, flat = len(planes), planes.reshape(*planes.shape[:2], -1)
        u = rng.uniform(self.seed, np.array([self.lane]), self.shown + np.arange(n), 1)[:, 0]
        chosen = (u * len(self.cells)).astype(np.int64)
        self.shown += n
        turned = np.take_along_axis(flat, self.cells[chosen][:, None], 2).reshape(planes.shape)
        logits, values = self.evaluator.evaluate(turned)
        return np.take_along_axis(logits, self.actions[chosen], 1), values
