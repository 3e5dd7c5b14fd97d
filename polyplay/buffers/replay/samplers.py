"""How items are chosen: uniformly, or by priority. Priorities are raw ones; exponents are the samplers' own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from polyplay.buffers.replay.index import ItemIndex, id_error
from polyplay.buffers.replay.rank_heap import RankHeap
from polyplay.buffers.replay.rng import CounterRng, fractions
from polyplay.buffers.replay.spec import Proportional, Rank, Replay
from polyplay.buffers.replay.sum_tree import MOST, SumTree
from polyplay.common.errors import BadPriority

Picked = tuple[np.ndarray, np.ndarray]  # slots int64 [n], weights float32 [n]


class ItemSampler(Protocol):
    """Chooses items of a ledger."""

    @property
    def nbytes(self) -> int: ...

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        """Priorities (float64 [n], or one of all; 0: none) of slots that came, went or were learnt from; the last one
        counts."""

    def pick(self, n: int, beta: float | None) -> Picked: ...

    def priorities(self, slots: np.ndarray) -> np.ndarray: ...

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved of it, to be filled in place."""

    def restored(self) -> None:
        """arrays() were filled: make what follows from them."""


def check_priorities(priority: Any) -> np.ndarray:
    """As float64. Raises BadPriority, naming the first that is NaN, negative or infinite."""
    given = np.asarray(priority, np.float64)
    wrong = np.flatnonzero(~((given >= 0) & (given <= MOST)))
    if len(wrong):
        raise BadPriority(id_error(given, int(wrong[0])))
    return given


def importance_weights(share: np.ndarray, size: int, beta: float) -> np.ndarray:
    """Importance weights (N·P)^-β over their maximum in the batch, float32; P > 0."""
    w = (size * share) ** -beta
    return (w / w.max()).astype(np.float32)


class UniformSampler:
    """Uniform: keeps nothing."""

    nbytes = 0

    def __init__(self, ledger: ItemIndex, draws: CounterRng):
        self.ledger, self.draws = ledger, draws

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        pass

    def pick(self, n: int, beta: float | None) -> Picked:
        return self.ledger.pick(self.draws, n), np.ones(n, np.float32)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        return np.ones(len(slots))

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def restored(self) -> None:
        pass


class ProportionalSampler:
    """Proportional: p^α in a sum tree by slot."""

    def __init__(self, sampler: Proportional, ledger: ItemIndex, draws: CounterRng):
        self.sampler, self.ledger, self.draws = sampler, ledger, draws
        self.tree = SumTree(ledger.slots)

    @property
    def nbytes(self) -> int:
        return self.tree.nbytes

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        alpha = self.sampler.alpha
        mass = np.asarray(priority**alpha if alpha else priority > 0, np.float64)
        self.tree.put(slots, mass if mass.ndim else np.full(len(slots), mass))

    def pick(self, n: int, beta: float | None) -> Picked:
        """In proportion; where all priorities are 0, uniformly."""
        size, total, u = self.ledger.size, self.tree.total, self.sampler.mixture
        if not total > 0:
            return self.ledger.pick(self.draws, n), np.ones(n, np.float32)
        slots = self.tree.draw(self.draws.key, self.draws.take(n), n, self.sampler.stratified)
        if u:
            evenly = np.flatnonzero(fractions(self.draws.key, self.draws.take(n), n) < u)
            slots[evenly] = self.ledger.pick(self.draws, len(evenly))
        share = (1 - u) * self.tree.leaves[slots] / total + u / size
        return slots, importance_weights(share, size, self.sampler.beta if beta is None else beta)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        mass = self.tree.leaves[slots]
        return mass ** (1 / self.sampler.alpha) if self.sampler.alpha else mass

    def arrays(self) -> dict[str, np.ndarray]:
        return {"leaves": self.tree.leaves}

    def restored(self) -> None:
        self.tree.load(self.tree.leaves.copy())


class RankSampler:
    """By rank: what is not 0, in the order of priority."""

    def __init__(self, sampler: Rank, ledger: ItemIndex, draws: CounterRng):
        self.sampler, self.ledger, self.draws = sampler, ledger, draws
        self.ranks = RankHeap(ledger.slots, sampler.alpha)

    @property
    def nbytes(self) -> int:
        return self.ranks.nbytes

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        given = np.asarray(priority, np.float64)
        self.ranks.put(slots, given if given.ndim else np.full(len(slots), given))

    def pick(self, n: int, beta: float | None) -> Picked:
        """By rank; where all priorities are 0, uniformly."""
        if not self.ranks.size:
            return self.ledger.pick(self.draws, n), np.ones(n, np.float32)
        slots, share = self.ranks.draw(self.draws.key, self.draws.take(n), n, self.sampler.stratified)
        return slots, importance_weights(share, self.ledger.size, self.sampler.beta if beta is None else beta)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        return self.ranks.priority[slots]

    def arrays(self) -> dict[str, np.ndarray]:
        r = self.ranks
        return {"heap": r.heap, "where": r.where, "priority": r.priority, "counts": r.counts}

    def restored(self) -> None:
        pass


def sampler_of(replay: Replay, ledger: ItemIndex, draws: CounterRng) -> ItemSampler:
    """The one that `replay.sampler` describes."""
    if isinstance(replay.sampler, Proportional):
        return ProportionalSampler(replay.sampler, ledger, draws)
    if isinstance(replay.sampler, Rank):
        return RankSampler(replay.sampler, ledger, draws)
    return UniformSampler(ledger, draws)
