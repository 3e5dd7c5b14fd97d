"""The current weights of several agents, and how far they have learnt together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from polyplay.common.edges import Arrow
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.agent_snapshot import AgentSnapshot
from polyplay.weights.params import Params
from polyplay.weights.shared_arrays import SharedArrays, shared_array

_LAST = 0  # cell: the number of the run's last save; 0: not known yet


class AgentParams(SharedArrays):
    """Params of each agent. The agents learn apart, until all together have learnt from as many steps as the run has.

    A checkpoint of them has a number of its own: it is complete once each agent has added its part.
    snapshot: by which an agent copies another one; None: none does.
    """

    learnt = shared_array(np.float64, lambda p: (len(p.each),))  # agent steps, by its learner
    _cells = shared_array(np.int64, lambda _: (8,))

    def __init__(
        self,
        network: nn.Module | Policy | PolicyFactory,
        agents: int,
        readers: int = 1,
        statistics: Sequence[str] | None = None,
    ):
        """statistics: what the optimiser keeps per weight, where agents copy each other."""
        self.snapshot = None if statistics is None else AgentSnapshot(network, statistics)
        self.each = [Params.of(network, readers) for _ in range(agents)]
        super().__init__()

    @property
    def agents(self) -> int:
        return len(self.each)

    @property
    def together(self) -> float:
        """Agent steps that all have learnt from."""
        return float(self.learnt.sum())

    @property
    def patience(self) -> float:
        return self.each[0].patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        for params in self.each:
            params.patience = seconds

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        snapshot = 0 if self.snapshot is None else self.snapshot.nbytes
        return self.block.nbytes + snapshot + sum(params.nbytes for params in self.each)

    def label(self) -> str:
        return f"{self.each[0].label()} × {self.agents} agents"

    def arrows(self) -> list[Arrow]:
        return [Arrow(self.label(), ("publish",), ("params",))]

    def close(self) -> None:
        """End every wait on the weights of any agent."""
        super().close()
        for params in self.each:
            params.close()

    def save_number(self, saves: int, agent: int, last: bool) -> int | None:
        """Which save of this session an agent's part belongs to, where `saves` were asked for; None: that is not known
        yet. last: the run ends with it. Agent 0 says which save that is, so all end with the same.
        """
        cells = self._cells
        if last and not agent and not cells[_LAST]:
            cells[_LAST] = saves + 1
        if cells[_LAST]:
            return int(cells[_LAST])
        return None if last else saves
