"""Arrays and options of a tree search over many games.

Each game has an array of nodes and an array of edges. A node is a position that was reached. The edges of a node are
its legal moves in ascending order: `count` edges, beginning with edge `first`. Node 0 is the root. Edge 0 stands for
the move into the root, and has the root's visits and values.

Data for choosing an edge (Edge) are separate from data that only backups need (Sums).
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from polyplay.core.compiled import bits, compiled
from polyplay.envs.pool import need
from polyplay.games.boards import Game

# Dirichlet noise without a generator's state: random numbers depend on (key, lane, search) only.


_ONE, _11 = np.uint64(1), np.uint64(11)


@compiled
def stream(key: np.uint64, lane: int, search: int) -> np.uint64:
    """Return the key of the random numbers for one search. lane: number of the game; search: number of the search."""
    return bits(bits(key, np.uint64(lane) + _ONE), np.uint64(search) + _ONE)


@compiled
def uniform_of(key: np.uint64, n: int) -> float:
    """Return the n-th random number of a key's sequence, uniform in (0, 1), with 53 random bits."""
    return (np.float64(bits(key, np.uint64(n)) >> _11) + 0.5) * 2.0**-53


@compiled
def _log_gamma_draw(key: np.uint64, n: int, alpha: float) -> tuple[float, int]:
    """Return (log of a Gamma(alpha) draw, next n), by Marsaglia and Tsang 2000. For alpha < 1, use Gamma(alpha + 1)."""
    lift = 0.0
    if alpha < 1.0:
        lift = math.log(uniform_of(key, n)) / alpha
        alpha, n = alpha + 1.0, n + 1
    d = alpha - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = math.sqrt(-2.0 * math.log(uniform_of(key, n))) * math.cos(2.0 * math.pi * uniform_of(key, n + 1))
        u = uniform_of(key, n + 2)
        n += 3
        v = 1.0 + c * x
        if v > 0.0:
            v = v * v * v
            if math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return math.log(d * v) + lift, n


@compiled
def dirichlet(key: np.uint64, alpha: float, out: np.ndarray) -> None:
    """Fill `out`, float [n], with a draw from the symmetric Dirichlet distribution."""
    # by logarithms, because with a small alpha all Gamma draws could round to 0
    n = 0
    for i in range(out.size):
        out[i], n = _log_gamma_draw(key, n, alpha)
    top = -np.inf
    for i in range(out.size):
        top = max(top, out[i])
    total = 0.0
    for i in range(out.size):
        out[i] = math.exp(out[i] - top)
        total += out[i]
    for i in range(out.size):
        out[i] /= total


FRESH, EXPANDED, UNEXPANDED, WON, DRAWN, LOST = range(6)  # status of a node; UNEXPANDED: evaluated, no room for edges
ENDS = (FRESH, WON, DRAWN, LOST)  # status of a new node, by the result of the move into the node
IDLE, SEARCHING, ENDED = range(3)  # status of a game's search
FILLED = 400  # most actions of a game whose moves fill the board; Go on 19×19 has 362

Edge = np.dtype(
    [
        ("q", "f4"),  # mean value for the player who makes the move, virtual losses included; 0 before the first visit
        ("u", "f4"),  # prior / (1 + visits)
        ("visits", "i4"),  # number of visits, virtual ones included
        ("child", "i4"),  # number of the child node; -1 before the first visit
    ]
)
Sums = np.dtype(
    [
        ("total", "f8"),  # sum of values for the player who makes the move, without virtual losses
        ("prior", "f4"),  # prior probability, without noise
        ("action", "i2"),
        ("pending", "i2"),  # number of leaves below the edge that wait for the network
    ]
)
Node = np.dtype(
    [
        ("first", "i4"),
        ("count", "i2"),
        ("status", "i2"),
        ("value", "f4"),  # the network's value, for the player to move
    ]
)
Play = np.dtype(
    [
        ("searches", "i8"),  # number of searches begun in this lane (parallel game); selects random numbers
        ("nodes", "i4"),  # number of nodes used
        ("edges", "i4"),
        ("done", "i4"),  # number of simulations done, those of a kept subtree included
        ("asked", "i4"),  # number of simulations of this search: all, or few with capped playouts
        ("waiting", "i4"),  # number of leaves in the batch
        ("status", "i4"),
    ]
)
Leaf = np.dtype([("game", "i4"), ("node", "i4"), ("depth", "i4")])


class Tree(NamedTuple):
    """Arrays of the compiled loops: B games with N nodes and E edges each, A actions, at most M leaves in a batch."""

    edges: np.ndarray  # Edge [B, E]: data for choosing edges
    sums: np.ndarray  # Sums [B, E]: data of edges for backups
    nodes: np.ndarray  # Node [B, N]: nodes of each game
    records: np.ndarray  # int8 [B, N, record]: positions of nodes
    plays: np.ndarray  # Play [B]: state of each game's search
    gumbel: np.ndarray  # float32 [B, A]: Gumbel noise of the root's edges in order
    considered: np.ndarray  # int32 [moves + 1, simulations]: row m is considered_visits of m moves
    temperatures: np.ndarray  # float64 [longest + 1]: temperature at each ply
    root_priors: np.ndarray  # float32 [B, A]: priors of the root's edges in order, noise included
    leaves: np.ndarray  # Leaf [M]: leaves in the batch
    paths: np.ndarray  # int32 [M, longest + 2]: edges from edge 0 to each leaf
    factors: np.ndarray  # float32 [visits]: factor of `u` at a node, by the node's visits
    moves: np.ndarray  # int16 [A], scratch
    record: np.ndarray  # int8 [record], scratch
    kept: np.ndarray  # int32 [N], scratch
    shares: np.ndarray  # float64 [A], scratch


# Options for compiled code, made by SearchOptions.rules.
Rules = namedtuple(
    "Rules",
    "simulations fast_simulations full leaves fpu_parent noise noise_alpha reuse width gumbel c_visit by_range key "
    "lane",
)


@dataclass(frozen=True)
class SearchOptions:
    """Options of a tree search. Values lie in [-1, 1]. Among moves of equal score, the first legal one wins.

    `exploration`: formula of the exploration bonus U of a move a with prior P at a position s.
    "alphago_zero": U = c P sqrt(Σ_b N(s, b)) / (1 + N(s, a)) (Silver et al. 2017).
    "alphazero": U = c(s) P sqrt(N(s)) / (1 + N(s, a)), c(s) = log((1 + N(s) + c_base) / c_base) + c (Silver et al.
    2018). N(s) includes the visit that evaluated s, also at the root.

    `fpu`: value of an unvisited move. "zero": 0. "parent": the mean value of the position before the move.

    `root`: how moves are chosen at the root.
    "puct": as below the root, the move of greatest Q + U.
    "gumbel": sequential halving over `gumbel_actions` moves (Danihelka et al. 2022). The score of a move includes σ(q)
    = (c_visit + visits of the most visited move) q. The value q is scaled from [-1, 1] to [0, 1].
    "gumbel_mctx": as "gumbel", but as in the library mctx. σ(q) is multiplied by 0.1, and q is scaled so that the least
    q at the position becomes 0 and the greatest becomes 1.
    A Gumbel search chooses at random, by Gumbel noise times the temperature. Noise, exploration, c and fpu have no
    effect, and no subtree is reused.

    `fast_simulations`: number of simulations of a search that is not full (playout caps of Wu 2019, 3.1). A search is
    full with probability `full`. A search that is not full has no noise, and the policy does not train on its result.
    """

    simulations: int = 800  # simulations per move; 0: the network alone
    exploration: Literal["alphago_zero", "alphazero"] = "alphazero"
    c: float = 1.25
    c_base: float = 19652.0
    fpu: Literal["zero", "parent"] = "zero"
    fast_simulations: int = 0  # simulations of a search that is not full; 0: all searches are full
    full: float = 0.25  # probability that a search is full
    root: Literal["puct", "gumbel", "gumbel_mctx"] = "puct"
    gumbel_actions: int = 16  # number of root moves considered at first
    c_visit: float = 50.0
    noise: float = 0.0  # share of Dirichlet noise in the root's priors; 0.25 in self-play
    noise_alpha: float = 0.3
    temperature: tuple[tuple[int, float], ...] = ((0, 1.0), (30, 0.0))  # schedule of (first ply, temperature)
    symmetries: bool = False  # evaluate each position under a random symmetry of the board
    reuse: bool = True  # keep the subtree of the move played; the subtree's visits count as simulations
    leaves: int = 1  # most leaves per game and round; a waiting leaf counts as a lost visit

    def __post_init__(self) -> None:
        n, fast, actions = self.simulations, self.fast_simulations, self.gumbel_actions
        why = f"root {self.root} halves the same number in every search"
        need(not (fast and self.halves), f"search fast_simulations: must be 0, got {fast}: {why}")
        need(0 <= fast <= max(n, 0), f"search fast_simulations: must be from 0 to its {n} simulations, got {fast}")
        fits = not (self.halves and n) or 1 <= actions <= n
        need(fits, f"search gumbel_actions: must be from 1 to its {n} simulations, got {actions}")
        need(not 0 < n < self.leaves, f"search leaves: must be at most its {n} simulations, got {self.leaves}")

    @property
    def halves(self) -> bool:
        """Tell whether roots are searched by sequential halving."""
        return self.root in ("gumbel", "gumbel_mctx")

    @property
    def quiet(self) -> SearchOptions:
        """A copy of these options for play at full strength: all simulations, no noise, a new tree for each search."""
        return replace(self, fast_simulations=0, noise=0.0, temperature=((0, 0.0),), reuse=False)

    def rules(self, game: Game, seed: int, lane: int) -> Rules:
        given = {name: value for name, value in vars(self).items() if name in Rules._fields}
        gumbel, noise = self.halves, 0.0 if self.halves else float(self.noise)
        given |= {"noise": noise, "width": self.edges_per_node(game), "reuse": self.reuse and not gumbel}
        return Rules(
            **given,
            gumbel=gumbel,
            by_range=self.root == "gumbel_mctx",
            fpu_parent=self.fpu == "parent",
            key=np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0],
            lane=lane,
        )

    def temperatures(self, plies: np.ndarray) -> np.ndarray:
        """Return the temperature at each ply, float64: that of the last schedule entry reached, or 1 without one."""
        at = np.searchsorted([ply for ply, _ in self.temperature], plies, side="right")
        return np.array([1.0, *(t for _, t in self.temperature)])[at]

    def edges_per_node(self, game: Game) -> int:
        """Return the number of edges to reserve per node: all actions, or 128 if these are more than FILLED."""
        return game.actions if game.actions <= FILLED else 128

    def room(self, game: Game) -> tuple[int, int]:
        """Return the numbers of nodes and of edges to reserve per game."""
        nodes = 1 + self.simulations
        return nodes, 1 + max(nodes * self.edges_per_node(game), game.actions)

    def nbytes(self, game: Game) -> int:
        """Return the size of one game's tree in bytes."""
        nodes, edges = self.room(game)
        return nodes * (Node.itemsize + game.record) + edges * (Edge.itemsize + Sums.itemsize)

    def factors(self, visits: np.ndarray) -> np.ndarray:
        """Return the factor of P / (1 + N(s, a)) in the bonus U, float32. visits: N(s), as in `exploration`."""
        if self.exploration == "alphago_zero":
            return np.asarray(self.c * np.sqrt(np.maximum(visits - 1.0, 0.0)), np.float32)
        return np.asarray((np.log((1.0 + visits + self.c_base) / self.c_base) + self.c) * np.sqrt(visits), np.float32)


def considered_visits(actions: int, simulations: int) -> list[int]:
    """Return how many visits a root move has before each simulation of sequential halving. At first, all `actions`
    moves get equally many visits. Then the better half of these moves gets more visits, and so on.
    """
    if actions <= 1:
        return list(range(simulations))
    halvings, left, visits, found = math.ceil(math.log2(actions)), actions, [0] * actions, list[int]()
    while len(found) < simulations:
        for _ in range(max(1, simulations // (halvings * left))):
            found += visits[:left]
            visits[:left] = [n + 1 for n in visits[:left]]
        left = max(2, left // 2)
    return found[:simulations]


def allocate(game: Game, games: int, options: SearchOptions) -> Tree:
    """Return empty search trees for this number of games."""
    nodes, edges = options.room(game)
    most = games * options.leaves
    moves = range(1 + (options.gumbel_actions if options.halves else 0))
    visits = 2 + options.leaves + options.simulations
    return Tree(
        edges=np.zeros((games, edges), Edge),
        sums=np.zeros((games, edges), Sums),
        nodes=np.zeros((games, nodes), Node),
        records=np.zeros((games, nodes, game.record), np.int8),
        plays=np.zeros(games, Play),
        gumbel=np.zeros((games, game.actions), np.float32),
        considered=np.array([considered_visits(n, max(options.simulations, 1)) for n in moves], np.int32),
        temperatures=options.temperatures(np.arange(game.longest + 1)),
        root_priors=np.zeros((games, game.actions), np.float32),
        leaves=np.zeros(most, Leaf),
        paths=np.zeros((most, game.longest + 2), np.int32),
        factors=options.factors(np.arange(visits, dtype=np.float64)),
        moves=np.zeros(game.actions, np.int16),
        record=np.zeros(game.record, np.int8),
        kept=np.zeros(nodes, np.int32),
        shares=np.zeros(game.actions, np.float64),
    )
