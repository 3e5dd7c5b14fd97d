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
from polyplay.buffers.replay.spec import BOTH, FLAGS, REWARDS, Replay
from polyplay.common import tree
from polyplay.common.tree import Batch


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

    def windows(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slots of the last rows, G and D, each [n]."""
        r, index, reward = self.replay, self.index, self.columns.arrays["reward"]
        form = REWARDS.index(r.reward)
        end, total, discount = row_kernels.windows(slots, index.R, r.n_step, r.gamma, form, index.flags, reward)
        return end, np.multiply(total, r.scale, out=total), discount

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        end, total, discount = self.windows(slots)
        both = np.stack([slots, end])
        first = self.index.flags[both] & row_kernels.FIRST > 0
        extras = {"return": total, "discount": discount, "weight": weight, "id": self.index.ids(slots), "first": first}
        return self._batch(both, extras, into)

    def td_errors(self, slots: np.ndarray) -> np.ndarray:
        """|G + D·value - chosen| [n] of items that may be drawn, by the outputs of the policy that acted: Ape-X's first
        priorities. Raises BadPriority: a value is not finite.
        """
        end, total, discount = self.windows(slots)
        value, chosen = self.columns.arrays["value"], self.columns.arrays["chosen"]
        later = np.where(discount == 0.0, 0.0, discount * value[end])  # no value counts behind the end of an episode
        errors = np.abs(total + later - chosen[slots]).astype(np.float64)
        return self.index.live_items(self.index.ids(slots), errors)[1]


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
