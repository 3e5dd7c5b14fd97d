"""From the slots of items to the arrays that are learnt from: the caller's, or a few of the buffer's own in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import cycle

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.columns import Columns
from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.recurrent_states import RecurrentStates
from polyplay.buffers.replay.sequences import spans
from polyplay.buffers.replay.spec import BOTH, FLAGS, REWARDS, Proportional, Replay
from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.common.value_rescaling import rescale, unscale


class Batches(ABC):
    """What both kinds of items have in common: `own` batches of arrays, and rows that are copied into them."""

    def __init__(self, replay: Replay, index: ItemIndex, columns: Columns, states: RecurrentStates, own: int):
        self.replay, self.index, self.columns, self.states = replay, index, columns, states
        batches = [tree.map(np.copy, tree.zeros(replay.drawn())) for _ in range(own)]  # pages touched
        self.nbytes, self._turn = sum(a.nbytes for b in batches for _, a in tree.leaves(b)), cycle(batches)
        drawn, whole = dict(tree.leaves(replay.drawn())), bool(replay.sequence)
        paths = [p for p in columns.arrays if p in drawn]
        self.rows = {p: slice(None) if whole or p.split("/")[0] in BOTH else 0 for p in paths}  # of an item

    @abstractmethod
    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        """The batch of the items in `slots`, see docs/concepts/replay.md."""

    @abstractmethod
    def td_errors(self, slots: np.ndarray) -> np.ndarray:
        """First priorities [n] of items that may be drawn, from the outputs of the policy that acted (Ape-X, R2D2).
        Raises BadPriority: a value is not finite.
        """

    def windows(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slots of the last rows, G and D, each [n]."""
        r, index, reward = self.replay, self.index, self.columns.arrays["reward"]
        form = REWARDS.index(r.reward)
        end, total, discount = row_kernels.windows(slots, index.R, r.n_step, r.gamma, form, index.flags, reward)
        return end, np.multiply(total, r.scale, out=total), discount

    def row_errors(self, slots: np.ndarray) -> np.ndarray:
        """|h(G + D·h⁻¹(value)) - chosen| [n] of the windows that begin in `slots`; without rescaling, h is left out."""
        end, total, discount = self.windows(slots)
        ahead, eps = self.columns.arrays["value"][end], getattr(self.replay.sampler, "rescale", 0.0)
        ahead = unscale(ahead, eps) if eps else ahead
        goal = total + np.where(discount == 0.0, 0.0, discount * ahead)  # no value counts behind the end of an episode
        goal = rescale(goal, eps) if eps else goal
        return np.abs(goal - self.columns.arrays["chosen"][slots]).astype(np.float64)

    def _checked(self, slots: np.ndarray, priority: np.ndarray) -> np.ndarray:
        return self.index.live_items(self.index.ids(slots), priority)[1]

    def _batch(self, at: np.ndarray, extras: Batch, into: Batch | None) -> Batch:
        """The leaves of the rows in slots `at` [T, B], and what is not in the rows."""
        batch = into or next(self._turn)
        self.columns.take(at, self.index.older, self.rows, batch)
        if into is None:
            return batch | extras
        tree.write(into, ..., extras)
        return into


class TransitionBatches(Batches):
    """s_t, a_t, G, D, s_{t+m}: m steps, n_step or what the episode has."""

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        end, total, discount = self.windows(slots)
        both = np.stack([slots, end])
        first = self.index.flags[both] & row_kernels.FIRST > 0
        extras = {"return": total, "discount": discount, "weight": weight, "id": self.index.ids(slots), "first": first}
        return self._batch(both, extras, into)

    def td_errors(self, slots: np.ndarray) -> np.ndarray:
        return self._checked(slots, self.row_errors(slots))


class SequenceBatches(Batches):
    """burn_in + sequence + n_step rows of one episode each, and the recurrent state before them."""

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        at, real, valid = spans(slots, self.replay.length, self.index.R, self.replay.burn_in, self.index.flags)
        flags = self.index.flags[at]
        extras: Batch = {n: (flags & getattr(row_kernels, n.upper()) > 0) & real for n in FLAGS}
        extras["first"] |= ~real
        state = self.states.take(at[0], extras["first"][0])
        extras |= {"state": state, "weight": weight, "id": self.index.ids(slots), "valid": valid}
        batch = self._batch(at, extras, into)
        batch["reward"][~real] = 0
        return batch

    def td_errors(self, slots: np.ndarray) -> np.ndarray:
        r = self.replay
        assert isinstance(r.sampler, Proportional)
        at, _, valid = spans(slots, r.length, self.index.R, r.burn_in, self.index.flags)
        learnt = slice(r.burn_in, r.burn_in + r.sequence)
        at, valid = at[learnt], valid[learnt]
        size = np.where(valid, self.row_errors(at.ravel()).reshape(at.shape), 0.0)
        mean = size.sum(0) / np.maximum(valid.sum(0), 1)
        return self._checked(slots, r.sampler.eta * size.max(0) + (1.0 - r.sampler.eta) * mean)
