"""What a pool orders to step: lanes, each by itself; or matches, by their first lanes, when all lanes are answered."""

from __future__ import annotations

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.pool import Envs
from polyplay.envs.pools.batching import STEPPING, ReadyLanes
from polyplay.envs.pools.seating import Seating, check_seats


class Orders:
    """The orders of one pool; `numbers`: of all that it may order, int64 [units]."""

    def __init__(self, seating: Seating | None, turns: ReadyLanes):
        self.seating, self.turns = seating, turns
        self.numbers = np.arange(turns.lanes) if seating is None else seating.own[:, 0].copy()

    def complete(self, lanes: np.ndarray) -> np.ndarray:
        """The numbers to order now that these lanes are answered."""
        if self.seating is None:
            return lanes
        matches = np.unique(self.seating.match[lanes])
        return self.numbers[matches[self._stepping(matches)]]

    def _stepping(self, matches: np.ndarray) -> np.ndarray:
        """bool [matches]: nothing is waited for but the environment."""
        assert self.seating is not None
        return (self.turns.where[self.seating.own[matches]] == STEPPING).all(1)

    def lanes(self, numbers: list[int]) -> list[int]:
        """The lanes of what was ordered by these numbers."""
        if self.seating is None:
            return numbers
        return self.seating.own[self.seating.match[numbers]].ravel().tolist()

    @property
    def busy(self) -> bool:
        """Something is being stepped."""
        if self.seating is None:
            return bool((self.turns.where == STEPPING).any())
        return bool(self._stepping(np.arange(self.seating.matches)).any())

    @property
    def idle(self) -> bool:
        """Nothing is being stepped, and every other lane is the caller's: recv would wait for ever."""
        return self.turns.idle if self.seating is None else not self.busy


def seating_of(envs: Envs, seed: int, lane: int) -> Seating | None:
    """Who sits where in a pool of `envs`; None: an environment without matches. Raises UserError."""
    if not envs.spec.kinds:
        return None
    check_groups(envs, envs.spec.seats)
    return Seating(envs.lanes, envs.spec.seats, envs.agents, seed, lane)


def phases(envs: Envs, seating: Seating | None) -> int:
    """Into how many parts, which step in turn, the orders of a pool fall."""
    return envs.groups if seating is None else max(envs.groups // seating.blocks, 1)


def check_groups(envs: Envs, seats: int) -> None:
    """Raises UserError: lanes that make no whole matches, or groups with parts of matches."""
    check_seats(envs.lanes, seats, envs.agents)
    if envs.active % seats:
        raise UserError(f"--agents {envs.active} is no multiple of the {seats} seats of a match: make it one")
    width, share = envs.lanes // envs.groups, max(seats // envs.agents, 1)  # of a match, that one agent has
    if envs.groups > 1 and (envs.groups % envs.agents or width % share):
        raise UserError(
            f"--groups {envs.groups} of {envs.lanes} lanes have {width} each, no multiple of the {share} seats that an "
            "agent has in a match: change --lanes or --groups"
        )
