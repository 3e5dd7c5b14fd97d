"""Tree searches of many games at once. Each game can be at another point of its search.

Call `step` in a loop. Whenever the search of a game is done, make a move in this game:

    search = Search(game, 256, SearchOptions(noise=0.25), evaluator, seed=1)
    search.restart()
    while True:
        done = search.step()
        results = search.advance(done.games, search.choose(done))
        search.restart(done.games[results != GOES_ON])

`step` calls `round`, which returns the leaf positions to evaluate, and then `answer`, which takes the network's
outputs. If games move between `round` and `answer`, call `round` again to add leaves of these games to the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from polyplay.core import numbers
from polyplay.core.errors import NotFinite
from polyplay.core.tree import Batch, Spec
from polyplay.games.boards import Game
from polyplay.nets.policy import Player
from polyplay.nets.residual import BoardNetworkFactory, DualResidualNetwork
from polyplay.search import tree_kernels
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.tree import EXPANDED, Play, SearchOptions, allocate
from polyplay.weights.params import FlatParams


class Finished(NamedTuple):
    """Results of n finished searches of a game with A actions. All values are for the player to move."""

    games: np.ndarray  # int64 [n]: numbers of the games
    records: np.ndarray  # int8 [n, record]: the positions
    plies: np.ndarray  # int64 [n]: moves made before the position
    legal: np.ndarray  # bool [n, A]: legal actions
    visits: np.ndarray  # int32 [n, A]: visits of the root's actions
    priors: np.ndarray  # float32 [n, A]: priors of the root's actions, noise included
    q: np.ndarray  # float32 [n, A]: mean values of the root's actions, 0 where unvisited
    value: np.ndarray  # float32 [n]: mean value of the root
    raw: np.ndarray  # float32 [n]: the network's value of the root
    full: np.ndarray  # bool [n]: whether a search had all simulations

    def at(self, which: np.ndarray | slice) -> Finished:
        """Return the results of the searches that `which` selects."""
        return Finished(*(x[which] for x in self))

    @property
    def best(self) -> np.ndarray:
        """Mean value of each search's most visited move, float32 [n]."""
        return np.take_along_axis(self.q, self.visits.argmax(1)[:, None], 1)[:, 0]


class Search:
    """Tree searches of several games at once.

    `evaluator`: NetworkEvaluator, or another object that has `title` and `evaluate`.
    `lane`: index of the first game among the games of all workers with this seed.
    """

    def __init__(
        self, game: Game, games: int, options: SearchOptions, evaluator: NetworkEvaluator, seed: int = 0, lane: int = 0
    ):
        self.game, self.options, self.seed = game, options, seed
        self.evaluator, self.shown = evaluator, 0  # shown: number of positions evaluated under a symmetry
        self.cells = np.stack([np.argsort(cells) for cells, _ in game.symmetries])  # [symmetry, i]: cell shown at i
        self.actions = np.stack([actions for _, actions in game.symmetries])  # [symmetry, i]: where action i is shown
        self.lanes = lane + np.arange(games)
        self.rules = options.rules(game, seed, lane)
        self.tree = allocate(game, games, options)
        self.numbers, self.count, self._found = game.numbers, 0, np.zeros(games, np.int64)
        self.planes = np.zeros((games * options.leaves, *game.planes), np.float32)

    # -------------------------------------------------------------------------------- games and positions

    def restart(self, games: np.ndarray | None = None, records: np.ndarray | None = None) -> None:
        """Restart games from unfinished positions. No leaves of these games may be waiting for `answer`.

        `games`: numbers of the games to restart. None means all games.
        `records`: positions, int8 [n, record]. None means the initial position of the game.
        """
        which = np.arange(len(self.lanes)) if games is None else games
        if records is None:
            records = np.broadcast_to(self.game.new(), (len(which), self.game.record))
        tree_kernels.begin(self.tree, self.rules, which, np.ascontiguousarray(records, np.int8))

    def advance(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Make a legal move in each of these games, and return the results of the moves, int8 [n].

        Results are GOES_ON (not over), or WON, DRAWN or LOST for the player who moved. Unfinished games start their
        next search. Finished games rest until `restart`. The games must have no leaves that wait for `answer`.
        """
        results = np.zeros(len(games), np.int8)
        tree_kernels.advance(self.tree, self.rules, self.numbers, games, actions, results)
        return results

    # -------------------------------------------------------------------------------- rounds of a search

    def round(self) -> np.ndarray:
        """Add leaves (positions to evaluate) to the batch. Games that already have leaves in the batch are skipped.
        Return the batch so far, as planes [n, C, H, W].
        """
        self.count = tree_kernels.gather_leaves(self.tree, self.rules, self.numbers, self.planes, self.count)
        return self.planes[: self.count]

    def answer(self, logits: np.ndarray, values: np.ndarray) -> None:
        """Back up the network's outputs for the batch, and begin a new batch. Raises NotFinite if an output is NaN or
        infinite. The search is then unchanged.
        """
        if logits.shape != (self.count, self.game.actions) or values.shape != (self.count,):
            raise ValueError(f"answers {logits.shape} and {values.shape} to {self.count} leaves")
        bad = tree_kernels.first_not_finite(logits, values)
        if bad >= 0:
            leaf = self.tree.leaves[bad]
            position = self.game.line(self.tree.records[leaf["game"], leaf["node"]])
            raise NotFinite(f"network {self.evaluator.title}: it answers NaN or infinity to the position {position}")
        self.count = 0
        tree_kernels.answer(self.tree, self.rules, self.numbers, logits, values)

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the network's logits and values for these planes. With the option `symmetries`, the network sees each
        position under a random symmetry of the board, drawn from seed, lane and the number of earlier positions.
        """
        if not self.options.symmetries:
            return self.evaluator.evaluate(planes)
        n, flat = len(planes), planes.reshape(*planes.shape[:2], -1)
        u = numbers.uniform(~self.seed, self.lanes[:1], self.shown + np.arange(n), 1)[:, 0]
        chosen = (u * len(self.cells)).astype(np.int64)
        self.shown += n
        turned = np.take_along_axis(flat, self.cells[chosen][:, None], 2).reshape(planes.shape)
        logits, values = self.evaluator.evaluate(turned)
        return np.take_along_axis(logits, self.actions[chosen], 1), values

    def step(self) -> Finished:
        """Call `round`, `evaluate` and `answer` once. Return the results of searches that are done now, if any."""
        planes = self.round()
        if len(planes):
            self.answer(*self.evaluate(planes))
        return self.finished()

    def finished(self) -> Finished:
        """Return the results of all searches that are done and whose games have not moved since."""
        return self.look(self._found[: tree_kernels.finished_games(self.tree, self.rules, self._found)].copy())

    def look(self, games: np.ndarray) -> Finished:
        """Return the present results of these games' searches, done or not. Call this only after `step`."""
        n, shape = len(games), (len(games), self.game.actions)
        done = Finished(
            games,
            self.tree.records[games, 0],
            plies=np.zeros(n, np.int64),
            legal=np.zeros(shape, np.bool_),
            visits=np.zeros(shape, np.int32),
            priors=np.zeros(shape, np.float32),
            q=np.zeros(shape, np.float32),
            value=np.zeros(n, np.float32),
            raw=np.zeros(n, np.float32),
            full=self.tree.plays["asked"][games] == self.options.simulations,
        )
        if n:
            tree_kernels.collect(self.tree, done)
        return done

    def principal_variation(self, game: int, action: int | None = None) -> list[int]:
        """Return the moves that the search expects: the most visited move, the most visited reply to it, and so on.

        action: first move to assume, instead of the most visited one.
        """
        t, node, moves = self.tree, 0, list[int]()
        while t.nodes["status"][game, node] == EXPANDED:
            first, count = t.nodes["first"][game, node], t.nodes["count"][game, node]
            visits = t.edges["visits"][game, first : first + count]
            if not visits.any():
                break
            best = first + int(visits.argmax())
            if action is not None and not node:
                best = first + int((t.sums["action"][game, first : first + count] == action).argmax())
            moves.append(int(t.sums["action"][game, best]))
            node = t.edges["child"][game, best]
        return moves

    def choose(self, done: Finished) -> np.ndarray:
        """Return a move for each search, int64 [n].

        The probability of a move is proportional to visits^(1 / τ), where τ is the temperature at the present ply. If τ
        is 0, the first of the most visited moves is chosen. With 0 simulations, priors are used instead of visits. In a
        Gumbel search, tree_kernels.choose_gumbel chooses the move.
        """
        if self.rules.gumbel:
            return self._gumbel(done)[0]
        counts = np.where(done.visits.any(1, keepdims=True), done.visits, done.priors).astype(np.float64)
        shares = visit_shares(counts, self.options.temperatures(done.plies))
        u = numbers.uniform(self.seed, self.lanes[done.games], self.tree.plays["searches"][done.games], 1)
        sums = shares.cumsum(1)
        index = (sums <= u * sums[:, -1:]).sum(1)
        return np.minimum(index, self.game.actions - 1 - (shares[:, ::-1] > 0).argmax(1)).astype(np.int64)

    def targets(self, done: Finished) -> np.ndarray:
        """Return the policies that a network should learn from these searches, float32 [n, A].

        A policy is the visits divided by their sum. In a Gumbel search, it is the improved policy. If a search did not
        have all simulations, its policy is zeros.
        """
        if self.rules.gumbel:
            return self._gumbel(done)[1]
        visits = done.visits * done.full[:, None]
        return (visits / np.maximum(visits.sum(1, keepdims=True), 1)).astype(np.float32)

    def _gumbel(self, done: Finished) -> tuple[np.ndarray, np.ndarray]:
        actions, policy = np.zeros(len(done.games), np.int64), np.zeros(done.visits.shape, np.float32)
        tree_kernels.choose_gumbel(self.tree, self.rules, done.games, actions, policy)
        return actions, policy

    # -------------------------------------------------------------------------------- separate positions

    def grow(self, records: np.ndarray) -> Iterator[Search]:
        """Search n unfinished positions, at most one per game. Yield this Search after each step until all are done."""
        self.restart(np.arange(len(records)), records)
        while len(_without(self.step(), len(records)).games) < len(records):
            yield self
        yield self

    def run(self, records: np.ndarray, turn: Callable[[], None] = lambda: None) -> Finished:
        """Search positions as `grow` does, and return their results in order. turn: called after each step."""
        for _ in self.grow(records):
            turn()
        return _without(self.finished(), len(records))

    def choose_moves(self, records: np.ndarray, turn: Callable[[], None] = lambda: None) -> np.ndarray:
        """Return a move for each position, int64 [n]. More positions than games are allowed. turn: as in `run`."""
        parts = np.split(records, range(len(self.lanes), len(records), len(self.lanes)))
        return np.concatenate([self.choose(self.run(part, turn)) for part in parts])

    # -------------------------------------------------------------------------------- save and restore

    def state(self) -> dict[str, np.ndarray]:
        """Return the whole state as plain arrays, to save it."""
        t, plays = self.tree, self.tree.plays
        parts = {"records": (t.records, plays["nodes"]), "nodes": (t.nodes, plays["nodes"])}
        parts |= {"edges": (t.edges, plays["edges"]), "sums": (t.sums, plays["edges"])}
        saved = {k: _bytes(np.concatenate([x[:n] for x, n in zip(a, ns, strict=True)])) for k, (a, ns) in parts.items()}
        batch = {"leaves": t.leaves, "paths": t.paths, "planes": self.planes}
        saved |= {k: _bytes(x[: self.count]) for k, x in batch.items()}
        if self.options.symmetries:
            saved["shown"] = np.array(self.shown)
        return saved | {"plays": _bytes(plays), "root_priors": t.root_priors.copy(), "gumbel": t.gumbel.copy()}

    def load(self, saved: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned. The saved Search must have had the same options and number of games."""
        t = self.tree
        plays = saved["plays"].view(Play).reshape(-1)
        nodes, edges = t.nodes.shape[1], t.edges.shape[1]
        if len(plays) != len(self.lanes) or plays["nodes"].max() > nodes or plays["edges"].max() > edges:
            raise ValueError("a state of another number of games, or of a larger tree")
        t.plays[:], t.root_priors[:], t.gumbel[:] = plays, saved["root_priors"], saved["gumbel"]
        parts = {"records": (t.records, "nodes"), "nodes": (t.nodes, "nodes")}
        parts |= {"edges": (t.edges, "edges"), "sums": (t.sums, "edges")}
        for name, (array, used) in parts.items():
            flat = saved[name].view(array.dtype).reshape(-1, *array.shape[2:])
            for g, part in enumerate(np.split(flat, plays[used].cumsum()[:-1])):
                array[g, : len(part)] = part
        self.shown = int(saved.get("shown", 0))
        self.count = len(saved["paths"])
        t.leaves[: self.count] = saved["leaves"].view(t.leaves.dtype).reshape(-1)
        t.paths[: self.count], self.planes[: self.count] = saved["paths"], saved["planes"]


def _without(found: Finished, n: int) -> Finished:
    """Return the results of games 0 to n − 1. Other results are left from an earlier call."""
    return found.at(slice(int(np.searchsorted(found.games, n))))


def _bytes(x: np.ndarray) -> np.ndarray:
    """Return a copy of an array, as uint8 [n, itemsize] if the dtype of the array has fields."""
    return x.copy() if not x.dtype.fields else np.frombuffer(x.tobytes(), np.uint8).reshape(len(x), x.itemsize).copy()


def visit_shares(counts: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    """Return probabilities [n, A] ∝ counts^(1 / temperature). At temperature 0, the first maximum has probability 1."""
    relative = counts / counts.max(1, keepdims=True, initial=1e-300)
    warm = relative ** (1.0 / np.maximum(temperature, 1e-300))[:, None]
    cold = np.zeros_like(relative)
    np.put_along_axis(cold, counts.argmax(1)[:, None], 1.0, 1)
    shares = np.where(temperature[:, None] == 0, cold, warm)
    return shares / shares.sum(1, keepdims=True)


class SearchPolicy(Player):
    """Policy that searches each observed position and plays the most visited move. The search uses no noise and no
    symmetries. The policy's values are the search's values. With 0 simulations, the policy plays the network's most
    probable legal move.
    """

    def __init__(self, board: Game, options: SearchOptions, factory: BoardNetworkFactory, network: DualResidualNetwork):
        self.board, self.factory, self.network = board, factory, network
        self.weights = FlatParams(network).read()
        self.configured = self.options = replace(options.quiet, symmetries=False)
        self._searching: Search | None = None

    def spec(self) -> Spec:
        return self.network.spec()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """Return actions and values [B] for obs and mask [B, …]. Both are 0 where no move is legal. If the search
        chooses a move that the mask forbids, the most visited allowed move replaces it.
        """
        # In Go, planes do not show positions of more than eight plies ago, so a search may choose a forbidden move.
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
        """Set the number of simulations of future searches, and of leaves per round. Reset all other options to their
        configured values. With 0 simulations, the network alone chooses. With leaves=0, use the configured number.
        """
        leaves = max(1, min(leaves or self.configured.leaves, simulations))
        considered = max(1, min(self.configured.gumbel_actions, simulations))
        self.options = replace(self.configured, simulations=simulations, leaves=leaves, gumbel_actions=considered)
        self._searching = None

    def use(self, board: Game) -> None:
        """Use the rules of another board (same size) in future searches."""
        self.board, self._searching = board, None

    def choose(self, records: np.ndarray, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Search unfinished positions, int8 [n, record]. Return moves, int64 [n], and values, float32 [n].

        allowed: moves that may be chosen, bool [n, A]. If a search chooses another move, the most visited allowed move
        replaces it. Of several such moves, the one with the greatest prior is taken.
        """
        search = self._search(len(records))
        done = search.run(records)
        moves = search.choose(done)
        if allowed is not None:
            instead = np.where(allowed, done.visits + done.priors / 2, -1.0).argmax(1)
            moves = np.where(allowed[np.arange(len(moves)), moves], moves, instead)
        return moves, done.value if self.options.simulations else done.raw

    def grow(self, records: np.ndarray) -> Iterator[Search]:
        """See Search.grow."""
        return self._search(len(records)).grow(records)

    def _search(self, n: int) -> Search:
        """Return a Search with room for n to 2n positions."""
        if self._searching is None or not n <= len(self._searching.lanes) <= 2 * n:
            evaluator = NetworkEvaluator(self.factory, n * self.options.leaves)
            evaluator.load(self.weights, 0)
            self._searching = Search(self.board, n, self.options, evaluator)
        return self._searching
