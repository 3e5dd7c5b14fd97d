"""Several passes over one batch in minibatches, as PPO makes them: which rows when, and when to stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.nets.device import to_host

KEPT = ("obs", "action", "mask", "first", "reward", "terminated", "logp", "value")  # of a row, for a minibatch


@dataclass(frozen=True)
class Epochs:
    """`epochs` passes in `minibatches` equal parts each. target_kl: no further minibatch once one's approximate KL
    divergence from the policy that acted, mean over replicas, is above it; 0 is off. Raises UserError.
    """

    epochs: int = 4
    minibatches: int = 4
    target_kl: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}: {getattr(self, name)} given, allowed: a whole number from 1 up")
        if not self.target_kl >= 0.0:
            raise UserError(f"--target-kl: {self.target_kl} given, allowed: a number from 0 up (0: never stop)")

    @property
    def updates(self) -> int:
        """From one batch, if nothing stops them."""
        return self.epochs * self.minibatches


def shuffled_order(places: np.ndarray, passes: Epochs, seed: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    """For each epoch the places (transitions, or whole lanes) in its own random order, in parts as equal as may be."""
    generator = np.random.default_rng(seed)
    for _ in range(passes.epochs):
        yield np.array_split(generator.permutation(places), passes.minibatches)


class Minibatches:
    """Rows of one rollout, to be had in parts: single transitions, or with a core whole lanes, with the state before.

    rows [T+1, B]; targets [T, B], what the loss prepared. Only valid transitions are given, except in whole lanes.
    whole: lanes with all their rows, the last one too, for a loss that makes its targets itself.
    """

    def __init__(self, rows: Batch, state: Batch, targets: Batch, version: np.ndarray, whole: bool = False):
        self.whole = bool(state) or whole
        self.lanes, self.state = rows["first"].shape[1], state
        self.rows = {k: v for k, v in rows.items() if k in KEPT}
        if not whole:
            self.rows = {k: tree.map(lambda x: x[:-1], v) for k, v in self.rows.items()} | dict(targets)
        if not self.whole:
            self.rows = {k: tree.map(lambda x: x.flatten(0, 1), v) for k, v in self.rows.items()}
        self.version = version[:-1]
        self.device, self.valid = targets["valid"].device, to_host(targets["valid"])

    @property
    def places(self) -> np.ndarray:
        return np.arange(self.lanes) if self.whole else np.flatnonzero(self.valid)

    def take(self, at: np.ndarray) -> tuple[Batch, Batch, np.ndarray]:
        """Rows [1, n], or [T, n] of n lanes ([T+1, n]: see above); the state before them; the versions that acted on
        what is valid.
        """
        pick = torch.from_numpy(at).to(self.device)
        if self.whole and len(at) == self.lanes:  # all of them: in which order is all the same
            return self.rows, self.state, self.version[self.valid]
        if self.whole:
            rows = {k: tree.map(lambda x: x[:, pick], v) for k, v in self.rows.items()}
            return rows, tree.map(lambda x: x[pick], self.state), self.version[:, at][self.valid[:, at]]
        rows = {k: tree.map(lambda x: x[pick].unsqueeze(0), v) for k, v in self.rows.items()}
        return rows, {}, self.version.reshape(-1)[at]


def run_epochs(learner: Any, batch: Batch, state: Batch, version: np.ndarray) -> Iterator[None]:
    """All updates from one rollout. Its agent steps count once, with the first pass; every update's lag is its own."""
    spec = learner.spec
    scale = learner.policy.returns.scale() if getattr(learner.policy, "returns", None) is not None else 1.0
    parts = Minibatches(batch, state, spec.loss.prepare(batch, scale), version, spec.loss.whole)
    seed = (learner.ctx.seed, learner.ctx.index, learner.version)
    for epoch, order_ in enumerate(shuffled_order(parts.places, spec.passes, seed)):
        for k, at in enumerate(order_):
            rows, before, versions = parts.take(at)
            last = epoch == spec.passes.epochs - 1 and k == len(order_) - 1

            def score(rows: Batch = rows, before: Batch = before) -> Any:
                return spec.loss(learner.policy.unroll(rows, before), rows, spec.hyperparameters)

            learnt = int(parts.valid.sum()) if epoch == k == 0 else 0
            apart = yield from learner.apply_gradient(score, batch, versions, learnt, batch if last else None)
            if spec.passes.target_kl and apart > spec.passes.target_kl:
                if not last and hasattr(learner.policy, "observe"):
                    learner.policy.observe(batch)  # replicas agree on it at their next update
                return
