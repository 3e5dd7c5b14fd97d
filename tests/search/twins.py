"""A slow plain search: dicts and recursion, one game at a time. What the compiled one is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from polyplay.games import board_rules
from polyplay.games.boards import Game
from polyplay.search import Finished, Search
from polyplay.search.tree import SearchOptions, dirichlet, stream, uniform_of

F = np.float32


class Stub:
    """A fixed linear map of each position by itself, so that its answer has the same bits in every batch."""

    def __init__(self, game: Game, seed: int = 0, scale: float = 0.3):
        rng = np.random.default_rng(seed)
        self.weights = rng.normal(0, scale, (game.actions + 1, math.prod(game.planes)))
        self.rows: list[bytes] = []

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.rows += [p.tobytes() for p in planes]
        out = np.stack([self.weights @ p.astype(np.float64).ravel() for p in planes])
        return out[:, 1:].astype(F), np.tanh(out[:, 0]).astype(F)


def searched(search: Search) -> Finished:
    """The searches of all its games, done at the same time."""
    while len((done := search.step()).games) < len(search.lanes):
        pass
    return done


@dataclass
class Node:
    """A position. n and total are its own visits and the sum of their values for its mover."""

    record: np.ndarray
    result: int = 0  # of the move into it
    n: int = 0
    total: float = 0.0
    pending: int = 0
    raw: float = 0.0
    evaluated: bool = False
    priors: dict[int, np.float32] = field(default_factory=dict)  # with edges in the order of the legal moves
    noisy: dict[int, np.float32] | None = None
    children: dict[int, Node] = field(default_factory=dict)


def size(node: Node) -> tuple[int, int]:
    """Nodes and edges of a subtree."""
    parts = [size(c) for c in node.children.values()]
    return 1 + sum(n for n, _ in parts), len(node.priors) + sum(e for _, e in parts)


class TwinSearch:
    def __init__(self, game: Game, options: SearchOptions, seed: int, lane: int):
        self.game, self.o, self.lane = game, options, lane
        self.key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        _, self.max_edges = options.room(game)
        self.searches, self.done, self.edges = 0, 0, 1
        self.waiting: list[list[Node]] = []

    def restart(self) -> None:
        record = np.zeros(self.game.record, np.int8)
        board_rules.start(self.game.numbers, record)
        self._ask()
        self._plant(record)

    def _plant(self, record: np.ndarray) -> None:
        self.root, self.done, self.edges = Node(record), 0, 1

    def _ask(self) -> None:
        self.searches += 1
        drawn = uniform_of(np.uint64(stream(~self.key, self.lane, self.searches)), 0)
        self.asked = self.o.fast_simulations if self.o.fast_simulations and drawn >= self.o.full else self.o.simulations

    @property
    def full(self) -> bool:
        return self.asked == self.o.simulations

    @property
    def finished(self) -> bool:
        return self.root.evaluated and not self.waiting and self.done >= self.asked

    # ------------------------------------------------------------------------------------------------------- a round

    def round(self) -> list[np.ndarray]:
        """Positions to evaluate."""
        while self._wants_leaf():
            path = self._descend([self.root])
            leaf = path[-1]
            if leaf.result:
                self._back_up(path, -1.0 if leaf.result == 1 else 0.0)  # who moves at a won position has lost
                self.done += 1
            elif leaf.pending:
                break
            else:
                self.waiting.append(path)
                if self.o.leaves > 1:
                    for node in path:
                        node.pending += 1
        return [path[-1].record for path in self.waiting]

    def _wants_leaf(self) -> bool:
        more = self.done + len(self.waiting) < self.asked or not self.root.evaluated
        return more and len(self.waiting) < self.o.leaves

    def _descend(self, path: list[Node]) -> list[Node]:
        node = path[-1]
        if not node.priors:
            return path
        scores = {a: self._score(node, a) for a in node.priors}
        action = max(scores, key=lambda a: (scores[a], -a))
        if action in node.children:
            return self._descend([*path, node.children[action]])
        record = node.record.copy()
        child = Node(record, board_rules.play(self.game.numbers, record, action))
        node.children[action] = child
        return [*path, child]

    def targets(self) -> dict[int, float]:
        """What the policy learns, of the moves that were visited."""
        visits = {a: child.n for a, child in self.root.children.items()}
        if not self.full:
            return dict.fromkeys(visits, 0.0)
        return {a: n / sum(visits.values()) for a, n in visits.items()}

    def _visits(self, node: Node) -> int:
        return node.n + node.pending

    def _score(self, node: Node, action: int) -> np.float32:
        child, prior = node.children.get(action), (node.noisy or node.priors)[action]
        visits = self._visits(child) if child else 0
        q = F(-(child.total + child.pending) / visits) if child and visits else self._fpu(node)
        return F(q + F(F(prior / F(1 + visits)) * self._factor(self._visits(node))))

    def _factor(self, n: int) -> np.float32:
        if self.o.exploration == "alphago_zero":
            return F(self.o.c * math.sqrt(n - 1))  # one visit is the node's own, the others are its children's
        return F((np.log((1 + n + self.o.c_base) / self.o.c_base) + self.o.c) * math.sqrt(n))

    def _fpu(self, node: Node) -> np.float32:
        if self.o.fpu == "zero":
            return F(0)
        return F(node.total / node.n)

    def _back_up(self, path: list[Node], value: float) -> None:
        """`value` is for the mover of the last node."""
        if path:
            path[-1].n += 1
            path[-1].total += value
            self._back_up(path[:-1], -value)

    # ------------------------------------------------------------------------------------------------------ an answer

    def answer(self, answers: list[tuple[np.ndarray, np.float32]]) -> None:
        paths, self.waiting = self.waiting, []
        for path, (logits, value) in zip(paths, answers, strict=True):
            leaf = path[-1]
            if not leaf.evaluated:
                self._expand(leaf, logits)
            leaf.evaluated, leaf.raw = True, float(value)
            for node in path if self.o.leaves > 1 else []:
                node.pending -= 1
            self._back_up(path, float(value))
            if leaf is self.root:
                self._set_root()
            else:
                self.done += 1

    def _legal(self, record: np.ndarray) -> list[int]:
        moves = np.zeros(self.game.actions, np.int16)
        return moves[: board_rules.legal(self.game.numbers, record, moves)].tolist()

    def _expand(self, node: Node, logits: np.ndarray) -> None:
        moves = self._legal(node.record)
        if self.edges + len(moves) > self.max_edges:
            return
        self.edges += len(moves)
        top = max(logits[a] for a in moves)
        e = {a: math.exp(float(logits[a] - top)) for a in moves}
        node.priors = {a: F(e[a] / sum(e.values())) for a in moves}

    def _set_root(self) -> None:
        root, o = self.root, self.o
        if o.noise and self.full:
            noise = np.zeros(len(root.priors))
            dirichlet(np.uint64(stream(self.key, self.lane, self.searches)), o.noise_alpha, noise)
            clean = root.priors.items()
            root.noisy = {a: F((1 - o.noise) * float(p) + o.noise * x) for (a, p), x in zip(clean, noise, strict=True)}

    # --------------------------------------------------------------------------------------------------------- a move

    def advance(self, action: int) -> int:
        record = self.root.record.copy()
        result = board_rules.play(self.game.numbers, record, action)
        self._ask()
        child = self.root.children.get(action)
        if result == 0 and self.o.reuse and child and child.priors and self._fits(child):
            self.root, self.edges = child, 1 + size(child)[1]
            self.done = child.n - 1
            self._set_root()
        else:
            self._plant(record)
        return result

    def _fits(self, child: Node) -> bool:
        to_come = max(self.asked - (child.n - 1), 0)
        return 1 + size(child)[1] + to_come * self.o.edges_per_node(self.game) <= self.max_edges


class UniformEvaluator:
    """Every move alike, every position even."""

    title = "uniform"

    def __init__(self, actions: int):
        self.actions = actions

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(planes), self.actions), np.float32), np.zeros(len(planes), np.float32)


def found(visits: np.ndarray, value: float) -> Finished:
    """A search of one game of which nothing else is asked."""
    given = {"visits": visits, "value": np.array([value])}
    return Finished(**{name: given.get(name, np.zeros(1)) for name in Finished._fields})
