"""How items are chosen: uniformly, or by priority. Priorities are raw ones; exponents are the samplers' own."""

from __future__ import annotations

import numpy as np

from polyplay.buffers.replay.index import ItemIndex
from polyplay.buffers.replay.rng import CounterRng, uniforms
from polyplay.buffers.replay.spec import Proportional
from polyplay.buffers.replay.sum_tree import SumTree


class UniformSampler:
    """Uniform: every item with the same chance, no priorities."""

    nbytes = 0

    def __init__(self, index: ItemIndex, rng: CounterRng):
        self.index, self.rng = index, rng
        self.arrays: dict[str, np.ndarray] = {}  # what is saved, to be filled in place

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        """Priorities (float64 [n], or one of all; 0: none) of slots; of a slot given twice the last one counts."""

    def pick(self, n: int, beta: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Slots int64 [n], and their weights float32 [n]."""
        return self.index.pick(self.rng, n), np.ones(n, np.float32)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        return np.ones(len(slots))

    def restored(self) -> None:
        """The arrays were filled: rebuild what depends on them."""


class ProportionalSampler(UniformSampler):
    """Proportional: p^α in a sum tree by slot."""

    def __init__(self, sampler: Proportional, index: ItemIndex, rng: CounterRng):
        super().__init__(index, rng)
        self.sampler, self.tree = sampler, SumTree(index.slots)
        self.arrays, self.nbytes = {"leaves": self.tree.leaves}, self.tree.nodes.nbytes

    def put(self, slots: np.ndarray, priority: np.ndarray | float) -> None:
        if not len(slots):
            return
        alpha = self.sampler.alpha
        mass = np.asarray(priority**alpha if alpha else priority > 0, np.float64)
        self.tree.put(slots, mass if mass.ndim else np.full(len(slots), mass))

    def pick(self, n: int, beta: float | None) -> tuple[np.ndarray, np.ndarray]:
        """In proportion; where all priorities are 0, uniformly."""
        size, total, u = self.index.size, self.tree.total, self.sampler.mixture
        if not total > 0:
            return super().pick(n, beta)
        slots = self.tree.draw(self.rng.key, self.rng.take(n), n, self.sampler.stratified)
        if u:
            evenly = np.flatnonzero(uniforms(self.rng.key, self.rng.take(n), n) < u)
            slots[evenly] = self.index.pick(self.rng, len(evenly))
        share = (1 - u) * self.tree.leaves[slots] / total + u / size
        weight = (size * share) ** -(self.sampler.beta if beta is None else beta)  # (N·P)^-β, over the greatest
        return slots, (weight / weight.max()).astype(np.float32)

    def priorities(self, slots: np.ndarray) -> np.ndarray:
        mass = self.tree.leaves[slots]
        return mass ** (1 / self.sampler.alpha) if self.sampler.alpha else mass

    def restored(self) -> None:
        self.tree.load(self.tree.leaves.copy())
