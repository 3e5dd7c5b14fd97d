"""What a learner is to do: network, loss, update, hyperparameters, how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyplay.common.control import Hyperparameters
from polyplay.common.tree import Batch
from polyplay.learning.epochs import Epochs
from polyplay.learning.losses.base import Loss
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.agent_params import AgentParams
from polyplay.weights.update import Update


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is to do, besides wiring: network, loss, update, hyperparameters, how long, how the rate falls."""

    policy: PolicyFactory
    loss: Loss
    update: Update
    hyperparameters: Hyperparameters
    total: float  # agent steps; learning ends there
    anneal: str = "linear"  # "linear" to 0 over `total`, or "constant"
    drops: tuple[int, ...] = ()  # updates from which on the rate is a tenth of what it was
    passes: Epochs | None = None  # several over each batch (PPO); their loss has a `prepare`
    agent: int = 0
    among: AgentParams | None = None  # weights of all agents of the run, which learn from `total` steps together
    acted: bool = False  # the last row's value was stored while acting: one row less to unroll
    same: bool = False  # the weights that learn are those that acted (A3C): values are those of the unroll
    report: int = 1  # metrics of every so many updates: with few rows they cost more than the loss
    outputs: Callable[..., Batch] | None = None  # of two networks, for a loss of what is drawn from a replay
    target: int = 0  # updates after which the target network is the network again; 0: there is none
    initial: Sequence[Mapping[str, float]] = ()  # hyperparameters of each agent where they differ; empty: nowhere

    def describe(self) -> list[str]:
        """A line each for the diagram."""
        rows = [f"loss    {getattr(self.loss, 'title', type(self.loss).__name__)}", f"update  {self.update.title()}"]
        outliers = getattr(self.update, "outliers", None)
        if outliers is not None:
            rows.append(f"drops   losses beyond mean + {outliers.k:g} deviations")
        if self.target:
            rows.append(f"target  copied every {self.target:,} updates")
        if self.passes is not None:
            rows.append(f"passes  {self.passes.epochs} of {self.passes.minibatches} minibatches")
        return rows
