"""One agent's weights and optimiser of one version, in shared memory, for another agent to go on with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from polyplay.common.shared_memory import memory_barrier
from polyplay.common.tree import Batch
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.flat import FlatParams, param_sizes
from polyplay.weights.optimizers import load_state, optimizer_state
from polyplay.weights.shared_arrays import SharedArrays, shared_array

_NUMBER, _VERSION, _STEPS = 0, 1, 2  # cells of the head


class AgentSnapshot(SharedArrays):
    """Written by one learner and read by another, which take turns. `number` tells which copy it is for; it is 0 while
    a snapshot is being written, so who dies then leaves none.
    """

    _head = shared_array(np.int64, lambda _: (8,))
    _vector = shared_array(np.float32, lambda s: (s.size,))
    _statistics = shared_array(np.float32, lambda s: (len(s.statistics), s.weights))

    def __init__(self, network: nn.Module | Policy | PolicyFactory, statistics: Sequence[str]):
        """statistics: what the optimiser keeps per weight (OptimizerSpec)."""
        self.statistics = tuple(statistics)
        self.weights, self.size = param_sizes(network if isinstance(network, nn.Module | Policy) else network())
        super().__init__()

    @property
    def number(self) -> int:
        return int(self._head[_NUMBER])

    def write(self, number: int, vector: FlatParams, optimizer: torch.optim.Optimizer, version: int) -> None:
        """A snapshot for copy `number`. Statistics that an optimiser has not made yet are 0, with which its first step
        is the same.
        """
        self._head[_NUMBER] = 0
        memory_barrier()
        state = optimizer_state(optimizer)
        torch.from_numpy(self._vector).copy_(vector.flat)
        for name, row in zip(self.statistics, self._statistics, strict=True):
            row[:] = state[name].detach().cpu().numpy() if name in state else 0.0
        self._head[_VERSION], self._head[_STEPS] = version, int(state["step"]) if "step" in state else 0
        memory_barrier()
        self._head[_NUMBER] = number

    @torch.no_grad()
    def read(self, vector: FlatParams, optimizer: torch.optim.Optimizer) -> int:
        """Bring it into a learner's vector and optimiser; the version of the weights."""
        memory_barrier()
        state = {k: torch.tensor(x) for k, x in zip(self.statistics, self._statistics, strict=True)}
        if "exp_avg" in state:
            state["step"] = torch.tensor(float(self._head[_STEPS]))
        vector.flat.copy_(torch.from_numpy(self._vector))
        load_state(optimizer, state)
        return int(self._head[_VERSION])

    def save(self) -> Batch:
        """All of it."""
        return {"head": self._head, "vector": self._vector, "statistics": self._statistics}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        for name, array in self.save().items():
            array[:] = saved[name]
