"""A search as a policy, for the loops that evaluate, film and judge: it finds the position in what the network sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from polyplay.acting.search.evaluators import NetworkEvaluator
from polyplay.acting.search.positions import PositionSearch
from polyplay.acting.search.search import Search
from polyplay.acting.search.tree import SearchOptions
from polyplay.common.tree import Batch, Spec
from polyplay.envs.boards.game import Game
from polyplay.nets.residual import BoardNetworkFactory, DualResidualNetwork
from polyplay.weights.flat import FlatParams


class SearchPolicy:
    """The most visited move of a search from each row's position, without noise and symmetries, and the search's value
    of it. With 0 simulations: the network's most probable legal move.
    """

    noise = 0

    def __init__(self, board: Game, options: SearchOptions, factory: BoardNetworkFactory, network: DualResidualNetwork):
        self.board, self.factory, self.network = board, factory, network
        self.weights = FlatParams(network).read()
        self.configured = self.options = replace(options.quiet, symmetries=False)
        self._searching: PositionSearch | None = None

    def spec(self) -> Spec:
        return self.network.spec()

    def state_spec(self) -> Spec:
        return {}

    def initial(self, lanes: int) -> Batch:
        return {}

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """One row [B] of obs and mask → action and value [B]; action 0 and value 0 where no move is legal. The search
        may know more moves than the mask has: planes of Go do not show what was there more than eight positions ago.
        """
        mask = step["mask"].numpy()
        on = np.flatnonzero(mask.any(1))
        action, value = np.zeros(len(mask), np.int64), np.zeros(len(mask), np.float32)
        if len(on):
            action[on], value[on] = self.choose(self.board.records(step["obs"].numpy()[on]), mask[on])
        return {"action": torch.from_numpy(action), "value": torch.from_numpy(value)}, state

    @property
    def simulations(self) -> int:
        return self.options.simulations

    def simulate(self, simulations: int, leaves: int = 0) -> None:
        """Search with this many simulations in future (0: the bare network), and leaves at once (0: as configured).

        Everything else is as configured, whatever was asked for before.
        """
        leaves = max(1, min(leaves or self.configured.leaves, simulations))
        considered = max(1, min(self.configured.considered, simulations))
        self.options = replace(self.configured, simulations=simulations, leaves=leaves, considered=considered)
        self._searching = None

    def use(self, board: Game) -> None:
        """Search by the rules of another board of the same size from now on."""
        self.board, self._searching = board, None

    def choose(self, records: np.ndarray, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Moves int64 [n] and values float32 [n] for positions int8 [n, record] that go on. allowed, bool [n, A]: where
        the search's move is not among these, the most visited of them, of equals the one with the highest prior.
        """
        searching = self._positions(len(records))
        done = searching.run(records)
        moves = searching.search.choose(done)
        if allowed is not None:
            instead = np.where(allowed, done.visits + done.priors / 2, -1.0).argmax(1)
            moves = np.where(allowed[np.arange(len(moves)), moves], moves, instead)
        return moves, done.value if self.options.simulations else done.raw

    def grow(self, records: np.ndarray) -> Iterator[Search]:
        """See PositionSearch.grow."""
        return self._positions(len(records)).grow(records)

    def _positions(self, n: int) -> PositionSearch:
        """One that has room for n positions, and at most for twice as many."""
        if self._searching is None or not n <= self._searching.most <= 2 * n:
            evaluator = NetworkEvaluator(self.factory, n * self.options.leaves)
            evaluator.load(self.weights, 0)
            self._searching = PositionSearch(self.board, self.options, evaluator, n)
        return self._searching
