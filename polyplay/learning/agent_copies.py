"""An agent's part in copies: its learner hands out its state, or goes on with that of another agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from polyplay.common.tree import Batch
from polyplay.learning.learner import Learner
from polyplay.weights.agent_snapshot import AgentSnapshot


class OrderedCopy(Protocol):
    """Who copies whom, and the hyperparameters that it goes on with."""

    @property
    def number(self) -> int: ...
    @property
    def agent(self) -> int: ...
    @property
    def donor(self) -> int: ...


class CopyOrders(Protocol):
    """What a learner asks of a league (population.league)."""

    varied: tuple[str, ...]
    hyper: np.ndarray
    values: np.ndarray

    def order(self) -> OrderedCopy | None: ...
    def copied(self, number: int, version: int, donor_version: int) -> None: ...


class AgentCopies:
    """Between two updates of a learner. Nobody waits: donor and receiver look when they get to it."""

    def __init__(self, learner: Learner, orders: CopyOrders, snapshot: AgentSnapshot, publish: Callable[[], None]):
        self.learner, self.orders, self.snapshot, self.publish = learner, orders, snapshot, publish
        self.agent = learner.spec.agent
        self.since = 0  # the version of the last copy: rows of earlier ones are of weights that are gone
        self._tell()

    def _tell(self) -> None:
        hyper = self.learner.spec.hyperparameters
        self.orders.hyper[self.agent] = [getattr(hyper, name) for name in self.orders.varied]

    def look(self) -> None:
        """Do what is ordered of this agent."""
        order, learner = self.orders.order(), self.learner
        if order is None:
            return
        if order.donor == self.agent and self.snapshot.number != order.number:
            self.snapshot.write(order.number, learner.vector, learner.update.optimizer, learner.version)
        if order.agent == self.agent and self.snapshot.number == order.number:
            self._take(order.number)

    def _take(self, number: int) -> None:
        learner = self.learner
        donor_version = self.snapshot.read(learner.vector, learner.update.optimizer)
        for name, value in zip(self.orders.varied, self.orders.values.tolist(), strict=True):
            learner.spec.hyperparameters.set(name, value)
        learner.follow()
        learner.counts.add(0.0)
        self.since = learner.version = learner.counts.version
        learner.ctx.counters.set("updates", learner.version - learner.counts.begun)
        self._tell()
        self.publish()
        self.orders.copied(number, learner.version, donor_version)

    def save(self) -> Batch:
        """Which rows are outdated, and what the agent is to copy, if that is there."""
        order, since = self.orders.order(), {"since": np.array(self.since)}
        if order is None or order.agent != self.agent or self.snapshot.number != order.number:
            return since
        return {**since, "snapshot": self.snapshot.save()}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        self.since = int(saved["since"])
        if "snapshot" in saved:
            self.snapshot.load(saved["snapshot"])

    def outdated(self, version: np.ndarray) -> bool:
        """Whether rows [T+1, B] of these versions were acted, all or some, with weights from before the last copy."""
        return bool((version[0] < self.since).any())
