"""Who acts in a group of lanes, with which weights, and where its rows go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from polyplay.buffers.rollout_queue import Producer
from polyplay.buffers.rollout_slots import RolloutSlots
from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.envs.bots import SeatedBot

Pull = Callable[[int], int | None]  # of a round: bring its weights; their version, None: they are not there yet


class ActingPolicy(Protocol):
    """As much of a Policy as a group of lanes needs."""

    def initial(self, lanes: int) -> Batch: ...
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]: ...


@dataclass
class LanePlayer:
    """One may act in several groups of an actor's lanes."""

    policy: ActingPolicy
    out: Producer | RolloutSlots | None  # None: its rows are not written
    agent: int = 0  # what its rows say; -1: no agent that learns
    pull: Pull = lambda k: None
    version: int = -1  # of the weights that act; -1: none yet
    fresh: bool = False  # these are not those that acted in the row that a rollout begins with


class ScriptedPolicy:
    """A bot as an ActingPolicy."""

    def __init__(self, bot: SeatedBot):
        self.bot = bot

    def initial(self, lanes: int) -> Batch:
        """No state."""
        return {}

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """As Policy.act."""
        seen, mask = (tree.map(lambda x: x.numpy(), step[k]) if k in step else None for k in ("obs", "mask"))
        return {"action": tree.map(lambda x: torch.from_numpy(np.asarray(x)), self.bot(seen, mask))}, state
