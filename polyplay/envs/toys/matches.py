"""A pool of toys with several players: a lane is a player in a match, and a match steps once all of its lanes were
answered.
"""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.tree import Batch, Tree
from polyplay.envs import spaces
from polyplay.envs.bots import Seats
from polyplay.envs.pool import Envs, Lanes, Pool
from polyplay.envs.pools.base import BasePool
from polyplay.envs.pools.batching import STEPPING
from polyplay.envs.pools.board import FLAGS
from polyplay.envs.pools.orders import check_groups
from polyplay.envs.pools.seating import Seating
from polyplay.envs.toys.games import ToyPool, game_rng, game_streams, toy
from polyplay.envs.toys.seated import SeatedToy
from polyplay.envs.toys.still import Arrays, Draw


def connect(envs: Envs, seed: int, lane: int) -> Pool:
    """A pool of a toy. Raises UserError."""
    if envs.spec.seats == 1:
        return ToyPool(envs, seed, lane)
    game: SeatedToy = toy(envs)  # type: ignore[assignment]
    return MatchPool(envs, game, seed, lane)


class MatchPool(BasePool):
    """A Pool of a SeatedToy, stepped in the caller's thread, in the send() that answers the last lane of a match."""

    def __init__(self, envs: Envs, game: SeatedToy, seed: int, lane: int):
        super().__init__(envs)
        check_groups(envs, self.spec.seats)
        self._asynchronous = True  # a lane is ready again once its match has stepped
        self.game = game
        self.seating = self._table = Seating(envs.lanes, self.spec.seats, envs.agents, seed, lane)
        n = self._table.matches
        self._counters = game_streams(seed, lane, envs.lanes)[self._table.own[:, 0]]
        self._action = tree.zeros(spaces.fields(self.spec.action), (envs.lanes,))
        self._over, self._rests, self._held = np.zeros(n, bool), np.zeros(n, bool), np.zeros((), bool)
        everyone = np.arange(n)
        self._states = self.game.reset(self._draw(everyone), n)
        self._begin(everyone, self._states)
        self._arrays = {"game": self._states, "rows": self._rows, "random": self._counters, "action": self._action}
        self._arrays |= {"over": self._over, "rests": self._rests, "held": self._held}
        self._turns.back(range(envs.lanes))
        if hasattr(game, "picture"):
            self.picture = lambda lane: game.picture(self._states, int(self._table.match[lane]))

    resting = property(lambda self: bool(self._rests.all()))

    def hold(self, on: bool) -> None:
        """See Pool."""
        self._held[...] = on

    def seats_of(self, lanes: Lanes) -> Seats:
        """For bots that play by the state: valid until the send() of those lanes."""
        return Seats(self.game, self._states, self._table.match[lanes], self._table.seat[lanes])

    def _draw(self, at: np.ndarray) -> Draw:
        return lambda: game_rng(self._counters, at)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._action, numbers, action)
        matches = np.unique(self._table.match[numbers])
        matches = matches[(self._turns.where[self._table.own[matches]] == STEPPING).all(1)]
        ended = self._over[matches]
        for at, advance in ((matches[~ended], self._play), (matches[ended], self._rest if self._held else self._new)):
            if at.size:
                advance(at)
        self._turns.back(self._table.own[matches].ravel().tolist())

    def _play(self, at: np.ndarray) -> None:
        before = tree.at(self._states, at)
        after, row = self.game.step(before, tree.at(self._action, self._table.lanes[at]), self._draw(at))
        here = before["here"]
        row = {k: np.where(here if v.ndim == 2 else here[..., None], v, np.zeros_like(v)) for k, v in row.items()}
        row["truncated"] &= ~row["terminated"]
        self._over[at] = ~after["here"].any(1)
        self._write(at, after, {**row, "over": row["terminated"] | row["truncated"], "first": ~here})

    def _new(self, at: np.ndarray) -> None:
        self._begin(at, self.game.reset(self._draw(at), at.size))

    def _begin(self, at: np.ndarray, states: Arrays) -> None:
        self._table.draw(at)
        self._over[at] = self._rests[at] = False
        self._write(at, states, self._nothing())

    def _rest(self, at: np.ndarray) -> None:
        self._rests[at] = True
        tree.write(self._rows, self._table.lanes[at], self._nothing())

    def _nothing(self) -> Batch:
        """Of a row that follows no step."""
        counts: Batch = {k: 0.0 for k in ("reward", "team_reward", "events") if k in self._rows}
        return {**counts, **dict.fromkeys(FLAGS, False), "first": True}

    def _write(self, at: np.ndarray, states: Arrays, row: Batch) -> None:
        tree.write(self._states, at, states)
        masks = {"mask": self._legal(states)} if "mask" in self._rows else {}
        tree.write(self._rows, self._table.lanes[at], {"obs": self.game.see(states), **masks, **row})

    def _legal(self, states: Arrays) -> Tree:
        """Masks; who does not play has no illegal action."""
        masks, here = self.game.legal(states), states["here"]  # type: ignore[attr-defined]
        return masks if here.all() else tree.map(lambda m: m | ~here.reshape(*here.shape, *[1] * (m.ndim - 2)), masks)

    def state(self) -> Batch:
        """Copies of games, rows, random streams, seating and turns."""
        return tree.map(np.copy, {**self._arrays, "seating": self._table.state(), "turns": self._turns.state()})

    def load(self, state: Batch) -> None:
        tree.write(self._arrays, ..., {k: state[k] for k in self._arrays})
        self._table.load(state["seating"])
        self._turns.load(state["turns"])
