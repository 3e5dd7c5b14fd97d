"""Which lane sits on which seat of which match: the lanes of a pool whose environments have several players."""

from __future__ import annotations

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.rng import SPLITMIX, mix
from polyplay.common.tree import Batch
from polyplay.envs.pool import lane_seeds


class Seating:
    """Matches of `seats` players each. A lane is a player in a match.

    With one agent in all seats (`agents` 1), match m has lanes m·seats …, in the order of the seats. With several,
    agent j holds lanes j·lanes/agents …; match m takes as many lanes of each (where there are more agents than seats:
    one lane of each of `seats` agents), and `draw` says anew which of them have which seats. Lanes of one agent that
    are in one match stay next to each other, so an agent has whole teams where seats are in the order of teams.
    """

    def __init__(self, lanes: int, seats: int, agents: int = 1, seed: int = 0, lane: int = 0):
        """lane: the number of the first lane in the run, which with the seed decides the draws. Raises UserError."""
        check_seats(lanes, seats, agents)
        self.matches = lanes // seats
        self.blocks = min(agents, seats)  # of a match, that are drawn
        self.own = _lanes_of_matches(lanes, seats, agents)
        self.lanes = self.own.copy()  # [matches, seats]: who has a seat
        self.match, self.seat = np.empty((2, lanes), np.int64)  # of each lane
        self.match[self.own] = np.arange(self.matches)[:, None]
        self.drawn = np.zeros(self.matches, np.int64)  # matches begun
        self._keys = lane_seeds(seed, lane, lanes)[self.own[:, 0]].astype(np.uint64)
        self._place(np.arange(self.matches))

    def draw(self, matches: np.ndarray) -> None:
        """These matches begin: who sits where."""
        self.drawn[matches] += 1
        if self.blocks > 1:
            count = self.drawn[matches].astype(np.uint64)[:, None] * np.uint64(self.blocks)
            numbers = mix(self._keys[matches][:, None] * SPLITMIX + count + np.arange(self.blocks, dtype=np.uint64))
            order = np.argsort(numbers, axis=1, kind="stable")
            own = self.own[matches].reshape(len(matches), self.blocks, -1)
            self.lanes[matches] = np.take_along_axis(own, order[..., None], 1).reshape(len(matches), -1)
        self._place(matches)

    def _place(self, matches: np.ndarray) -> None:
        self.seat[self.lanes[matches]] = np.arange(self.lanes.shape[1])

    def bind(self, arrays: Batch) -> None:
        """Keep who sits where in these arrays, as `state` has them and as other processes see them."""
        self.lanes, self.drawn, self.seat = arrays["lanes"], arrays["drawn"], arrays["seat"]

    def state(self) -> Batch:
        return {"lanes": self.lanes.copy(), "drawn": self.drawn.copy(), "keys": self._keys.copy()}

    def load(self, state: Batch) -> None:
        self.lanes[:], self.drawn[:], self._keys[:] = state["lanes"], state["drawn"], state["keys"]
        self._place(np.arange(self.matches))


def check_seats(lanes: int, seats: int, agents: int = 1) -> None:
    """Raises UserError: lanes that make no whole matches, or agents that cannot share them."""
    if max(agents, seats) % min(agents, seats):
        allowed = f"divisors and multiples of the {seats} seats of a match"
        raise UserError(f"--players {agents} given; allowed: {allowed}")
    if lanes % agents:
        raise UserError(f"--lanes {lanes} given; allowed: multiples of --players {agents}")
    if lanes % seats:
        raise UserError(f"--lanes {lanes} is no multiple of the {seats} seats of a match: make it one")


def _lanes_of_matches(lanes: int, seats: int, agents: int) -> np.ndarray:
    """int64 [matches, seats]."""
    everyone, matches = np.arange(lanes), lanes // seats
    if agents == 1:
        return everyone.reshape(matches, seats)
    width = lanes // agents
    if agents <= seats:  # agent, match, its lanes there
        return everyone.reshape(agents, matches, seats // agents).transpose(1, 0, 2).reshape(matches, seats)
    return everyone.reshape(agents // seats, seats, width).transpose(0, 2, 1).reshape(matches, seats)
