"""Several passes over one batch in minibatches, as PPO makes them: which rows when, and when to stop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch

from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.learning.losses.base import EpochLoss, LossOutput
from polyplay.nets.device import to_host
from polyplay.nets.policy import Policy

if TYPE_CHECKING:
    from polyplay.learning.spec import LearnerSpec

COLUMNS = ("obs", "action", "mask", "first", "reward", "events", "terminated", "logp", "value", "latent_noise")


@dataclass(frozen=True)
class Epochs:
    """`epochs` passes in `minibatches` equal parts each. target_kl: no further minibatch once one's approximate KL
    divergence from the policy that acted, mean over replicas, is above it; 0 is off.
    """

    epochs: int = 4
    minibatches: int = 4
    target_kl: float = 0.0

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
        self.rows = {k: v for k, v in rows.items() if k in COLUMNS}
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


class EpochLearner(Protocol):
    """What `run_epochs` asks of a learner, or of what stands in for one."""

    spec: LearnerSpec
    policy: Policy

    def score(self, rows: Batch, state: Batch) -> LossOutput: ...
    def apply_gradient(
        self, scored: LossOutput, rows: Batch, versions: np.ndarray, learnt: float, observe: Batch | None
    ) -> Generator[None, None, float]: ...


def run_epochs(
    learner: EpochLearner, batch: Batch, state: Batch, version: np.ndarray, seed: tuple[int, ...]
) -> Iterator[None]:
    """All updates from one rollout. Its agent steps count once, with the first pass; every update's lag is its own."""
    spec, policy, passes = learner.spec, learner.policy, learner.spec.passes
    assert passes is not None
    loss, returns = cast("EpochLoss", spec.loss), getattr(policy, "returns", None)
    parts = Minibatches(batch, state, loss.prepare(batch, returns.scale() if returns else 1.0), version, loss.whole)
    for epoch, order in enumerate(shuffled_order(parts.places, passes, seed)):
        for k, at in enumerate(order):
            rows, before, versions = parts.take(at)
            last = epoch == passes.epochs - 1 and k == len(order) - 1
            learnt = int(parts.valid.sum()) if epoch == k == 0 else 0
            apart = yield from learner.apply_gradient(
                learner.score(rows, before), batch, versions, learnt, batch if last else None
            )
            if passes.target_kl and apart > passes.target_kl:
                if not last and hasattr(policy, "observe"):
                    policy.observe(batch)  # replicas agree on it at their next update
                return
