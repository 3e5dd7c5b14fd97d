"""A player: who acts in a group of lanes, with which weights, and where its rows go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyplay.buffers.rollout_queue import Producer
from polyplay.buffers.rollout_slots import RolloutSlots
from polyplay.nets.policy import Policy

Pull = Callable[[int], int | None]  # of a round: bring its weights; their version, None: they are not there yet


@dataclass
class Player:
    """One may act in several groups of an actor's lanes."""

    policy: Policy
    out: Producer | RolloutSlots | None  # None: its rows are not written
    agent: int = 0  # what its rows say; -1: no agent that learns
    pull: Pull = lambda k: None
    version: int = -1  # of the weights that act; -1: none yet
    fresh: bool = False  # these are not those that acted in the row that a rollout begins with
