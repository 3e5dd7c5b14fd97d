"""From the slots of items to the arrays that are learnt from: the caller's, or `buffers` of our own in turn."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from polyplay.buffers.replay import row_kernels
from polyplay.buffers.replay.columns import Columns
from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.recurrent_states import RecurrentStates
from polyplay.buffers.replay.samplers import check_priorities
from polyplay.buffers.replay.sequences import spans
from polyplay.buffers.replay.spec import BOTH, FLAGS, REWARDS, Replay
from polyplay.common import tree
from polyplay.common.tree import Batch


def _twice(path: str) -> bool:
    """Whether a leaf is wanted of both ends of a transition."""
    return path.split("/")[0] in BOTH


def empty_batch(replay: Replay) -> Batch:
    """Memory for a batch, pages touched."""
    made = tree.zeros(replay.drawn())
    tree.map(lambda a: a.fill(0), made)
    return made


def with_extras(batch: Batch, told: Batch, apart: bool) -> Batch:
    """The batch with what is `told` of it in its arrays; or, apart, as it is."""
    if apart:
        return batch | told
    tree.write(batch, ..., told)
    return batch


class TransitionBatch:
    """s_t, a_t, G, D, s_{t+m}: m steps, n_step or what the episode has."""

    def __init__(self, replay: Replay, ledger: ItemIndex, fields: Columns, states: RecurrentStates, own: int):
        self.replay, self.ledger, self.fields = replay, ledger, fields
        self.paths = [p for p in (*fields.whole, *fields.stacks) if p != "reward"]
        made = [empty_batch(replay) for _ in range(own)]
        self.nbytes, self._turn = sum(a.nbytes for batch in made for _, a in tree.leaves(batch)), cycle(made)

    def windows(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slots of the last rows, G and D, each [n]."""
        n, r = len(slots), self.replay
        end, total, discount = np.empty(n, np.int64), np.empty(n, np.float32), np.empty(n, np.float32)
        flags, reward, R = self.ledger.flags, self.fields.reward, self.ledger.R
        how = REWARDS.index(r.reward)
        row_kernels.windows(slots, R, r.n_step, r.gamma, how, flags, reward, end, total, discount)
        return end, np.multiply(total, r.scale, out=total), discount

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        """See docs/concepts/replay.md."""
        end, total, discount = self.windows(slots)
        both = np.stack([slots, end])
        where = self.fields.planes(both, self.ledger.age)
        batch = into or next(self._turn)
        leaves = dict(tree.leaves(batch))
        for path in self.paths:
            self.fields.take(path, both if _twice(path) else slots, where, leaves[path])
        first = self.ledger.flags[both] & row_kernels.FIRST > 0
        told = {"return": total, "discount": discount, "weight": weight, "id": self.ledger.ids(slots), "first": first}
        return with_extras(batch, told, into is None)

    def errors(self, slots: np.ndarray) -> np.ndarray:
        """|G + D·value - chosen| [n] by what the rows' own policy said: Ape-X's first priorities. Raises BadPriority: a
        value is not finite.
        """
        end, total, discount = self.windows(slots)
        value, chosen = (self.fields.shelves[name].array for name in ("value", "chosen"))  # type: ignore[union-attr]
        later = np.where(discount == 0.0, 0.0, discount * value[end])  # no value counts behind the end of an episode
        return check_priorities(np.abs(total + later - chosen[slots]))


class SequenceBatch:
    """burn_in + sequence + n_step rows of one episode each, and the recurrent state before them."""

    def __init__(self, replay: Replay, ledger: ItemIndex, fields: Columns, states: RecurrentStates, own: int):
        self.replay, self.ledger, self.fields, self.states = replay, ledger, fields, states
        self.paths = (*fields.whole, *fields.stacks)
        made = [empty_batch(replay) for _ in range(own)]
        self.nbytes, self._turn = sum(a.nbytes for batch in made for _, a in tree.leaves(batch)), cycle(made)

    def fill(self, slots: np.ndarray, weight: np.ndarray, into: Batch | None = None) -> Batch:
        """See docs/concepts/replay.md."""
        shape = (self.replay.length, len(slots))
        at, real, valid = np.empty(shape, np.int64), np.empty(shape, bool), np.empty(shape, bool)
        spans(slots, self.ledger.R, self.replay.burn_in, self.ledger.flags, at, real, valid)
        where = self.fields.planes(at, self.ledger.age)
        batch = into or next(self._turn)
        leaves = dict(tree.leaves(batch))
        for path in self.paths:
            self.fields.take(path, at, where, leaves[path])
        batch["reward"][~real] = 0
        flags = self.ledger.flags[at]
        told: dict[str, Any] = {n: (flags & getattr(row_kernels, n.upper()) > 0) & real for n in FLAGS}
        told["first"] |= ~real
        state = self.states.take(at[0], told["first"][0], self.ledger)
        told |= {"state": state, "weight": weight, "id": self.ledger.ids(slots), "valid": valid}
        return with_extras(batch, told, into is None)
