"""The compiled loops of a search's roots: begin at a position, move on to a child with its subtree, collect what was
found. Imports no torch.

A subtree is compacted in place: children lie after their parents in both pools, so nothing is overwritten that is still
to be moved. It is given up where the pools might not hold it and a whole search besides.
"""

from __future__ import annotations

import numpy as np

from polyplay.acting.search.noise_kernels import stream, uniform_of
from polyplay.acting.search.tree import ENDED, ENDS, EXPANDED, FRESH, SEARCHING, Rules, Tree
from polyplay.acting.search.tree_kernels import compiled, set_root
from polyplay.common.compiled import inlined
from polyplay.envs.boards.kernels import legal, play, ply


@inlined
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """By a loop: an assignment of slices would make an array, for they might overlap."""
    for i in range(target.size):
        target[i] = source[i]


@inlined
def _ask(tree: Tree, rules: Rules, g: int) -> None:
    """A new search: how many simulations it has."""
    tree.plays[g].searches += 1
    tree.plays[g].asked = rules.simulations
    if rules.cheap > 0:
        key = stream(~rules.key, rules.lane + g, tree.plays[g].searches)
        tree.plays[g].asked = rules.simulations if uniform_of(key, 0) < rules.full else rules.cheap


@inlined
def _plant(tree: Tree, g: int) -> None:
    """An empty tree at the position in `tree.record`."""
    _copy(tree.record, tree.records[g, 0])
    tree.nodes[g, 0].status, tree.nodes[g, 0].count = FRESH, 0
    tree.nodes[g, 0].explored, tree.nodes[g, 0].value = 0.0, 0.0
    tree.edges[g, 0].q, tree.edges[g, 0].u, tree.edges[g, 0].visits, tree.edges[g, 0].child = 0.0, 0.0, 0, 0
    tree.sums[g, 0].total, tree.sums[g, 0].prior, tree.sums[g, 0].action, tree.sums[g, 0].pending = 0.0, 0.0, -1, 0
    tree.plays[g].nodes, tree.plays[g].edges, tree.plays[g].done = 1, 1, 0


@compiled
def begin(tree: Tree, rules: Rules, games: np.ndarray, records: np.ndarray) -> None:
    """Search from these positions, int8 [n, record], whose games go on."""
    for i in range(games.size):
        g = games[i]
        _copy(records[i], tree.record)
        _plant(tree, g)
        tree.plays[g].waiting, tree.plays[g].status = 0, SEARCHING
        _ask(tree, rules, g)


@inlined
def _mark(tree: Tree, g: int, root: int) -> tuple[int, int]:
    """(nodes, edges) below and with a node; `tree.kept` becomes their new numbers, -1 for the others."""
    kept, used = tree.kept, tree.plays[g].nodes
    kept[:used] = -1
    kept[root] = 0
    nodes, edges = 0, 0
    for node in range(root, used):
        if kept[node] < 0:
            continue
        kept[node] = nodes
        nodes += 1
        if tree.nodes[g, node].status == EXPANDED:
            first, count = tree.nodes[g, node].first, tree.nodes[g, node].count
            edges += count
            for e in range(first, first + count):
                if tree.edges[g, e].child >= 0:
                    kept[tree.edges[g, e].child] = 0
    return nodes, edges


@inlined
def _compact(tree: Tree, g: int, root: int, edge: int) -> None:
    """Move the nodes and edges that `tree.kept` numbers to the front; `edge` becomes edge 0."""
    tree.edges[g, 0] = tree.edges[g, edge]
    tree.sums[g, 0] = tree.sums[g, edge]
    tree.edges[g, 0].child, tree.sums[g, 0].prior, tree.edges[g, 0].u = 0, 0.0, 0.0
    nodes, edges = 0, 1
    for node in range(root, tree.plays[g].nodes):
        if tree.kept[node] < 0:
            continue
        tree.nodes[g, nodes] = tree.nodes[g, node]
        _copy(tree.records[g, node], tree.records[g, nodes])
        if tree.nodes[g, node].status == EXPANDED:
            first, count = tree.nodes[g, node].first, tree.nodes[g, node].count
            tree.nodes[g, nodes].first = edges
            for e in range(first, first + count):
                tree.edges[g, edges] = tree.edges[g, e]
                tree.sums[g, edges] = tree.sums[g, e]
                if tree.edges[g, edges].child >= 0:
                    tree.edges[g, edges].child = tree.kept[tree.edges[g, edges].child]
                edges += 1
        nodes += 1
    tree.plays[g].nodes, tree.plays[g].edges = nodes, edges


@inlined
def _reuse(tree: Tree, rules: Rules, g: int, edge: int) -> bool:
    """Make an edge's child the root, if there is one that has edges and room for a search beside its subtree."""
    child = tree.edges[g, edge].child
    if not rules.reuse or child < 0 or tree.nodes[g, child].status != EXPANDED:
        return False
    inherited = tree.edges[g, edge].visits - 1
    done = inherited if rules.counted else 0
    to_come = max(tree.plays[g].asked - done, 0)
    nodes, edges = _mark(tree, g, child)
    most = inherited + 1 + to_come + rules.leaves * rules.virtual_loss
    room = nodes + to_come <= tree.nodes.shape[1] and 1 + edges + to_come * rules.width <= tree.edges.shape[1]
    if not room or most >= tree.factors.size:
        tree.plays[g].given_up += 1
        return False
    _compact(tree, g, child, edge)
    tree.plays[g].done = done
    return True


@inlined
def _root_edge(tree: Tree, g: int, action: int) -> int:
    """The root's edge of an action; 0 where the root has none yet."""
    if tree.nodes[g, 0].status == EXPANDED:
        first = tree.nodes[g, 0].first
        for e in range(first, first + tree.nodes[g, 0].count):
            if tree.sums[g, e].action == action:
                return e
    return 0


@compiled
def first_refused(tree: Tree, game: np.ndarray, games: np.ndarray, actions: np.ndarray) -> int:
    """The index of the first move that can't be made: an illegal one, or of a game that waits or isn't searched; -1."""
    for i in range(games.size):
        g, fine = games[i], False
        if tree.plays[g].status == SEARCHING and tree.plays[g].waiting == 0:
            count = legal(game, tree.records[g, 0], tree.moves)
            for k in range(count):
                fine |= tree.moves[k] == actions[i]
        if not fine:
            return i
    return -1


@compiled
def advance(
    tree: Tree, rules: Rules, game: np.ndarray, games: np.ndarray, actions: np.ndarray, results: np.ndarray
) -> None:
    """Make moves and search on; results int8 [n] becomes what the boards' `play` says of them."""
    for i in range(games.size):
        g = games[i]
        _copy(tree.records[g, 0], tree.record)
        results[i] = play(game, tree.record, actions[i])
        _ask(tree, rules, g)
        edge = _root_edge(tree, g, actions[i])
        if results[i] == 0 and edge > 0 and _reuse(tree, rules, g, edge):
            set_root(tree, rules, g)
            continue
        _plant(tree, g)
        if results[i] != 0:
            tree.plays[g].status = ENDED
            tree.nodes[g, 0].status = ENDS[results[i]]


@compiled
def finished_games(tree: Tree, rules: Rules, out: np.ndarray) -> int:
    """Write the games whose search is done into int64 [B], and give their number."""
    n = 0
    for g in range(tree.plays.size):
        done = tree.plays[g].done >= tree.plays[g].asked and tree.nodes[g, 0].status == EXPANDED
        if done and tree.plays[g].status == SEARCHING and tree.plays[g].waiting == 0:
            out[n] = g
            n += 1
    return n


@compiled
def collect(
    tree: Tree,
    games: np.ndarray,
    plies: np.ndarray,
    visits: np.ndarray,
    priors: np.ndarray,
    q: np.ndarray,
    legal_moves: np.ndarray,
    value: np.ndarray,
    raw: np.ndarray,
) -> None:
    """What searches found, by action: zeros [n, A] are filled where a move is legal, plies, value and raw [n] too."""
    for i in range(games.size):
        g = games[i]
        plies[i] = ply(tree.records[g, 0])
        first = tree.nodes[g, 0].first
        for k in range(tree.nodes[g, 0].count):
            action = tree.sums[g, first + k].action
            visits[i, action] = tree.edges[g, first + k].visits
            priors[i, action] = tree.root_priors[g, k]
            q[i, action] = tree.edges[g, first + k].q
            legal_moves[i, action] = True
        value[i] = -tree.sums[g, 0].total / tree.edges[g, 0].visits
        raw[i] = tree.nodes[g, 0].value
