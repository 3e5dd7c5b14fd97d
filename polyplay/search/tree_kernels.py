"""Compiled loops of a tree search: collect leaves, back up the network's outputs, and move the root to a child.

A backed-up value is for the player who chose the edge, so the sign changes at each step toward the root.

If a game may have several leaves in a batch, each leaf that waits for the network counts as a lost visit (virtual
loss). If a descent reaches a waiting leaf, this game adds no more leaves in the round, so no leaf is evaluated twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from polyplay.core.compiled import cached_njit, inlined
from polyplay.games import board_rules, records
from polyplay.search import tree as trees
from polyplay.search.tree import Rules, Tree

if TYPE_CHECKING:
    from polyplay.search.search import Finished

# _nrt=False: no reference counts. The caller holds all arrays while a loop runs, and no loop allocates an array.
# Counting references at each use of a field of the tree would take as long as the search itself.
compiled = cached_njit(_nrt=False)

_ONE, _NONE = np.float32(1.0), np.float32(-np.inf)

# A Gumbel search (Danihelka et al. 2022): visits of root moves, choices below the root, and the resulting policy. The
# root first considers the moves of greatest g + logit, where g is Gumbel noise; sequential halving then repeatedly
# keeps half of these moves. The next simulation is for a move with the number of visits that `tree.considered` has.


LOWEST = -1e9  # lower bound of scores
TINY = 1e-38  # lower bound of probabilities


@compiled
def draw_gumbel(tree: Tree, rules: Rules, g: int) -> None:
    """Draw Gumbel noise for the moves at a root, times the temperature at the root's ply. The move with the greatest
    noise + logit is then a draw from softmax(logit / temperature). At temperature 0, the noise is 0.
    """
    key = trees.stream(rules.key, rules.lane + g, tree.plays[g].searches)
    scale = tree.temperatures[records.ply(tree.records[g, 0])]
    for i in range(tree.nodes[g, 0].count):
        tree.gumbel[g, i] = -math.log(-math.log(trees.uniform_of(key, i))) * scale


@inlined
def _write_sigma(tree: Tree, rules: Rules, g: int, node: int) -> None:
    """Write σ(q) of a node's moves into `tree.shares`. For unvisited moves, q is v_mix (Danihelka et al. 2022), an
    estimate of the node's value.
    """
    first, count = tree.nodes[g, node].first, tree.nodes[g, node].count
    visits, most, weight, mean, tried = 0, 0, 0.0, 0.0, 0
    for e in range(first, first + count):
        n = tree.edges[g, e].visits
        if n > 0:
            prior = max(np.float64(tree.sums[g, e].prior), TINY)
            visits, most, tried = visits + n, max(most, n), tried + 1
            weight, mean = weight + prior, mean + prior * tree.edges[g, e].q
    mixed = np.float64(tree.nodes[g, node].value)
    if visits > 0:
        mixed = (mixed + visits * mean / weight) / (1.0 + visits)
    low, high = -1.0, 1.0
    if rules.by_range:
        low, high = (mixed, mixed) if tried < tree.gumbel.shape[1] else (np.inf, -np.inf)
    for i in range(count):
        q = np.float64(tree.edges[g, first + i].q) if tree.edges[g, first + i].visits > 0 else mixed
        tree.shares[i], low, high = q, min(low, q), max(high, q)
    scale = (rules.c_visit + most) * (0.1 if rules.by_range else 1.0) / max(high - low, 1e-8)
    for i in range(count):
        tree.shares[i] = scale * (tree.shares[i] - low)


@inlined
def _logit(tree: Tree, g: int, edge: int) -> float:
    return math.log(max(np.float64(tree.sums[g, edge].prior), TINY))


@inlined
def _root_choice(tree: Tree, g: int, wanted: int) -> int:
    """Return the root's edge with the greatest g + logit + σ(q) among those with `wanted` visits."""
    first, count = tree.nodes[g, 0].first, tree.nodes[g, 0].count
    best, top, highest = first, -np.inf, -np.inf
    for e in range(first, first + count):
        highest = max(highest, _logit(tree, g, e))
    for i in range(count):
        if tree.edges[g, first + i].visits == wanted:
            score = max(LOWEST, tree.gumbel[g, i] + _logit(tree, g, first + i) - highest + tree.shares[i])
            if score > top:
                best, top = first + i, score
    return best


@inlined
def _improve(tree: Tree, g: int, node: int) -> None:
    """Replace σ(q) in `tree.shares` by the improved policy, the softmax of logit + σ(q)."""
    first, count, top, total = tree.nodes[g, node].first, tree.nodes[g, node].count, -np.inf, 0.0
    for i in range(count):
        tree.shares[i] += _logit(tree, g, first + i)
        top = max(top, tree.shares[i])
    for i in range(count):
        tree.shares[i] = math.exp(tree.shares[i] - top)
        total += tree.shares[i]
    for i in range(count):
        tree.shares[i] /= total


@compiled
def gumbel_edge(tree: Tree, rules: Rules, g: int, node: int) -> int:
    """Return the edge that a Gumbel search takes at a node. At the root, sequential halving chooses the edge. Below the
    root, it is the edge whose fraction of visits is farthest below its probability in the improved policy.
    """
    first, count, visits = tree.nodes[g, node].first, tree.nodes[g, node].count, 0
    for e in range(first, first + count):
        visits += tree.edges[g, e].visits
    _write_sigma(tree, rules, g, node)
    if node == 0:
        row = min(count, tree.considered.shape[0] - 1)
        return _root_choice(tree, g, tree.considered[row, min(visits, tree.considered.shape[1] - 1)])
    _improve(tree, g, node)
    best, top = first, -np.inf
    for i in range(count):
        score = tree.shares[i] - tree.edges[g, first + i].visits / (1.0 + visits)
        if score > top:
            best, top = first + i, score
    return best


@compiled
def choose_gumbel(tree: Tree, rules: Rules, games: np.ndarray, actions: np.ndarray, policy: np.ndarray) -> None:
    """Choose the moves of finished Gumbel searches. Write them into `actions`, int64 [n], and the improved policies
    into `policy`, float32 [n, A]. Of the most visited moves, the one with the greatest g + logit + σ(q) is chosen,
    where g is Gumbel noise.
    """
    for k in range(games.size):
        g = games[k]
        first, count, most = tree.nodes[g, 0].first, tree.nodes[g, 0].count, 0
        for e in range(first, first + count):
            most = max(most, tree.edges[g, e].visits)
        _write_sigma(tree, rules, g, 0)
        actions[k] = tree.sums[g, _root_choice(tree, g, most)].action
        _improve(tree, g, 0)
        for i in range(count):
            policy[k, tree.sums[g, first + i].action] = tree.shares[i]


# Leaves and backups.


@inlined
def _unvisited_value(tree: Tree, rules: Rules, g: int, edge: int) -> np.float32:
    """Return the value (first-play urgency) of unvisited moves at the node below `edge`, for the player to move."""
    value = 0.0
    if rules.fpu_parent:
        visits = tree.edges[g, edge].visits - tree.sums[g, edge].pending
        value = -tree.sums[g, edge].total / visits
    return np.float32(value)


@inlined
def _best_edge(tree: Tree, rules: Rules, g: int, node: int, edge: int) -> int:
    """Return the edge of greatest Q + U (of equal edges the first), or in a Gumbel search the edge of `gumbel_edge`."""
    if rules.gumbel:
        return gumbel_edge(tree, rules, g, node)
    fpu = _unvisited_value(tree, rules, g, edge)
    factor = tree.factors[tree.edges[g, edge].visits]
    first = tree.nodes[g, node].first
    best, top = first, _NONE
    for e in range(first, first + tree.nodes[g, node].count):
        q = tree.edges[g, e].q if tree.edges[g, e].visits > 0 else fpu
        score = q + tree.edges[g, e].u * factor
        if score > top:
            best, top = e, score
    return best


@inlined
def _prior(tree: Tree, g: int, edge: int, depth: int) -> np.float32:
    """Return an edge's prior in this search. At depth 1 (edges of the root), the prior includes noise."""
    return tree.root_priors[g, edge - tree.nodes[g, 0].first] if depth == 1 else tree.sums[g, edge].prior


@inlined
def _add_child(tree: Tree, game: np.ndarray, g: int, parent: int, edge: int) -> int:
    """Add a node for the position after an edge's move. Return the number of the node."""
    child = tree.plays[g].nodes
    tree.plays[g].nodes = child + 1
    tree.edges[g, edge].child = child
    for i in range(tree.records.shape[2]):
        tree.records[g, child, i] = tree.records[g, parent, i]
    result = board_rules.play(game, tree.records[g, child], tree.sums[g, edge].action)
    tree.nodes[g, child].status = trees.ENDS[result]
    return child


@inlined
def _descend(tree: Tree, rules: Rules, game: np.ndarray, g: int, row: int) -> tuple[int, int]:
    """Find a game's next leaf, or add it. Return (node, depth), and write the path into `tree.paths[row]`."""
    node, edge, depth = 0, 0, 0
    tree.paths[row, 0] = 0
    while tree.nodes[g, node].status == trees.EXPANDED:
        edge = _best_edge(tree, rules, g, node, edge)
        depth += 1
        tree.paths[row, depth] = edge
        child = tree.edges[g, edge].child
        if child < 0:
            child = _add_child(tree, game, g, node, edge)
        node = child
    return node, depth


@inlined
def _change(tree: Tree, g: int, edge: int, depth: int, visits: int) -> None:
    """Add `visits` to an edge, and recompute the edge's q and u."""
    n, total = tree.edges[g, edge].visits + visits, tree.sums[g, edge].total - tree.sums[g, edge].pending
    tree.edges[g, edge].visits = n
    tree.edges[g, edge].q = np.float32(total / n) if n > 0 else np.float32(0.0)
    tree.edges[g, edge].u = _prior(tree, g, edge, depth) / (_ONE + np.float32(n))


@inlined
def _back_up(tree: Tree, g: int, row: int, depth: int, value: float, waited: int) -> None:
    """Back up `value`, for the player who chose the path's last edge. waited: 1 also removes a virtual loss."""
    for k in range(depth, -1, -1):
        edge = tree.paths[row, k]
        tree.sums[g, edge].total += value
        tree.sums[g, edge].pending -= waited
        _change(tree, g, edge, k, 1 - waited)
        value = -value


@inlined
def _lose_virtually(tree: Tree, g: int, row: int, depth: int) -> None:
    """Add a virtual loss to each edge of a path while the path's leaf waits for the network."""
    for k in range(depth + 1):
        edge = tree.paths[row, k]
        tree.sums[g, edge].pending += 1
        _change(tree, g, edge, k, 1)


@inlined
def _wants_leaf(tree: Tree, rules: Rules, g: int) -> bool:
    waiting = tree.plays[g].waiting
    more = tree.plays[g].done + waiting < tree.plays[g].asked or tree.nodes[g, 0].status == trees.FRESH
    return waiting < rules.leaves and more


@compiled
def gather_leaves(tree: Tree, rules: Rules, game: np.ndarray, batch: np.ndarray, count: int) -> int:
    """Add leaves (positions to evaluate) to the batch, and return the new number of leaves. Games that already have
    leaves in the batch are skipped.

    count: number of leaves in the batch so far. If the game is over at a leaf, its result is backed up at once, without
    the network.
    """
    for g in range(tree.plays.size):
        if tree.plays[g].status != trees.SEARCHING or tree.plays[g].waiting > 0:
            continue
        while _wants_leaf(tree, rules, g):
            node, depth = _descend(tree, rules, game, g, count)
            status = tree.nodes[g, node].status
            if status in (trees.WON, trees.DRAWN, trees.LOST):
                value = 1.0 if status == trees.WON else 0.0 if status == trees.DRAWN else -1.0
                _back_up(tree, g, count, depth, value, 0)
                tree.plays[g].done += 1
                continue
            if tree.sums[g, tree.paths[count, depth]].pending > 0:
                break
            board_rules.write_planes(game, tree.records[g, node], batch[count])
            if rules.leaves > 1:
                _lose_virtually(tree, g, count, depth)
            tree.leaves[count].game, tree.leaves[count].node, tree.leaves[count].depth = g, node, depth
            tree.plays[g].waiting += 1
            count += 1
    return count


@inlined
def _expand(tree: Tree, game: np.ndarray, g: int, node: int, logits: np.ndarray, row: int) -> None:
    """Write a node's edges, if memory is left. The edges' priors are the softmax of the legal moves' logits."""
    moves, first = tree.moves, tree.plays[g].edges
    count = board_rules.legal(game, tree.records[g, node], moves)
    fits = first + count <= tree.edges.shape[1]
    tree.nodes[g, node].status = trees.EXPANDED if fits else trees.UNEXPANDED
    if fits:
        tree.nodes[g, node].first, tree.nodes[g, node].count, tree.plays[g].edges = first, count, first + count
        top = logits[row, moves[0]]
        for i in range(1, count):
            top = max(top, logits[row, moves[i]])
        total = 0.0
        for i in range(count):
            share = math.exp(np.float64(logits[row, moves[i]] - top))
            tree.shares[i] = share
            total += share
        for i in range(count):
            e, prior = first + i, np.float32(tree.shares[i] / total)
            tree.sums[g, e].total, tree.sums[g, e].prior = 0.0, prior
            tree.sums[g, e].action, tree.sums[g, e].pending = moves[i], 0
            tree.edges[g, e].q, tree.edges[g, e].u, tree.edges[g, e].visits, tree.edges[g, e].child = 0.0, prior, 0, -1


@compiled
def first_not_finite(logits: np.ndarray, values: np.ndarray) -> int:
    """Return the first position whose outputs contain NaN or infinity, or -1. A logit may be -inf (probability 0)."""
    for i in range(values.size):
        found = not math.isfinite(values[i])
        for action in range(logits.shape[1]):
            found |= not logits[i, action] < np.inf
        if found:
            return i
    return -1


@compiled
def set_root(tree: Tree, rules: Rules, g: int) -> None:
    """Set the priors of the root's edges for this search. In a full search, mix them with noise."""
    first, count = tree.nodes[g, 0].first, tree.nodes[g, 0].count
    if rules.gumbel:
        draw_gumbel(tree, rules, g)
    noise = rules.noise if tree.plays[g].asked == rules.simulations else 0.0
    if noise > 0.0:
        key = trees.stream(rules.key, rules.lane + g, tree.plays[g].searches)
        trees.dirichlet(key, rules.noise_alpha, tree.shares[:count])
    for i in range(count):
        mixed = tree.sums[g, first + i].prior
        if noise > 0.0:
            mixed = np.float32((1.0 - noise) * mixed + noise * tree.shares[i])
        tree.root_priors[g, i] = mixed
        _change(tree, g, first + i, 1, 0)


@compiled
def answer(tree: Tree, rules: Rules, game: np.ndarray, logits: np.ndarray, values: np.ndarray) -> None:
    """Expand the leaves of a batch, and back up their values.

    logits, values: outputs of the network for the leaves, float32 [n, A] and float32 [n].
    """
    waited = 1 if rules.leaves > 1 else 0
    for i in range(values.size):
        g, node, depth = tree.leaves[i].game, tree.leaves[i].node, tree.leaves[i].depth
        if tree.nodes[g, node].status == trees.FRESH:
            _expand(tree, game, g, node, logits, i)
        tree.nodes[g, node].value = values[i]
        _back_up(tree, g, i, depth, -np.float64(values[i]), waited)
        tree.plays[g].waiting -= 1
        if depth > 0:
            tree.plays[g].done += 1
        else:
            set_root(tree, rules, g)


# The loops of a search's roots: begin at a position, make a child with its subtree the root, collect results. A subtree
# is compacted in place: children lie after their parents in both arrays, so no data are overwritten before they have
# moved. A subtree is dropped if the array of edges might not hold both the subtree and the rest of a search.


@inlined
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    # a slice assignment would allocate an array in case the arrays overlap
    for i in range(target.size):
        target[i] = source[i]


@inlined
def _ask(tree: Tree, rules: Rules, g: int) -> None:
    """Start a new search, and set its number of simulations."""
    tree.plays[g].searches += 1
    tree.plays[g].asked = rules.simulations
    if rules.fast_simulations > 0:
        key = trees.stream(~rules.key, rules.lane + g, tree.plays[g].searches)
        tree.plays[g].asked = rules.simulations if trees.uniform_of(key, 0) < rules.full else rules.fast_simulations


@inlined
def _plant(tree: Tree, g: int) -> None:
    """Make a tree with only a root, at the position in `tree.record`."""
    _copy(tree.record, tree.records[g, 0])
    tree.nodes[g, 0].status, tree.nodes[g, 0].count = trees.FRESH, 0
    tree.nodes[g, 0].value = 0.0
    tree.edges[g, 0].q, tree.edges[g, 0].u, tree.edges[g, 0].visits, tree.edges[g, 0].child = 0.0, 0.0, 0, 0
    tree.sums[g, 0].total, tree.sums[g, 0].prior, tree.sums[g, 0].action, tree.sums[g, 0].pending = 0.0, 0.0, -1, 0
    tree.plays[g].nodes, tree.plays[g].edges, tree.plays[g].done = 1, 1, 0


@compiled
def begin(tree: Tree, rules: Rules, games: np.ndarray, records: np.ndarray) -> None:
    """Start searches of `games` from unfinished positions `records`, int8 [n, record]."""
    for i in range(games.size):
        g = games[i]
        _copy(records[i], tree.record)
        _plant(tree, g)
        tree.plays[g].waiting, tree.plays[g].status = 0, trees.SEARCHING
        _ask(tree, rules, g)


@inlined
def _mark(tree: Tree, g: int, root: int) -> int:
    """Number the subtree's nodes in `tree.kept`. Other nodes get -1. Return the number of the subtree's edges."""
    kept, used = tree.kept, tree.plays[g].nodes
    kept[:used] = -1
    kept[root] = 0
    nodes, edges = 0, 0
    for node in range(root, used):
        if kept[node] < 0:
            continue
        kept[node] = nodes
        nodes += 1
        if tree.nodes[g, node].status == trees.EXPANDED:
            first, count = tree.nodes[g, node].first, tree.nodes[g, node].count
            edges += count
            for e in range(first, first + count):
                if tree.edges[g, e].child >= 0:
                    kept[tree.edges[g, e].child] = 0
    return edges


@inlined
def _compact(tree: Tree, g: int, root: int, edge: int) -> None:
    """Move the nodes numbered in `tree.kept`, and their edges, to the front of the arrays. `edge` becomes edge 0."""
    tree.edges[g, 0] = tree.edges[g, edge]
    tree.sums[g, 0] = tree.sums[g, edge]
    tree.edges[g, 0].child, tree.sums[g, 0].prior, tree.edges[g, 0].u = 0, 0.0, 0.0
    nodes, edges = 0, 1
    for node in range(root, tree.plays[g].nodes):
        if tree.kept[node] < 0:
            continue
        tree.nodes[g, nodes] = tree.nodes[g, node]
        _copy(tree.records[g, node], tree.records[g, nodes])
        if tree.nodes[g, node].status == trees.EXPANDED:
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
    """Make an edge's child the new root, and keep its subtree. Return False if this is not possible."""
    child = tree.edges[g, edge].child
    if not rules.reuse or child < 0 or tree.nodes[g, child].status != trees.EXPANDED:
        return False
    done = tree.edges[g, edge].visits - 1
    edges = _mark(tree, g, child)
    if 1 + edges + max(tree.plays[g].asked - done, 0) * rules.width > tree.edges.shape[1]:
        return False
    _compact(tree, g, child, edge)
    tree.plays[g].done = done
    return True


@inlined
def _root_edge(tree: Tree, g: int, action: int) -> int:
    """Return the root's edge for an action, or 0 if the root has no edges yet."""
    if tree.nodes[g, 0].status == trees.EXPANDED:
        first = tree.nodes[g, 0].first
        for e in range(first, first + tree.nodes[g, 0].count):
            if tree.sums[g, e].action == action:
                return e
    return 0


@compiled
def advance(
    tree: Tree, rules: Rules, game: np.ndarray, games: np.ndarray, actions: np.ndarray, results: np.ndarray
) -> None:
    """Make a move in each of `games`, and start the next searches. Write the results into `results`, int8 [n]."""
    for i in range(games.size):
        g = games[i]
        _copy(tree.records[g, 0], tree.record)
        results[i] = board_rules.play(game, tree.record, actions[i])
        _ask(tree, rules, g)
        edge = _root_edge(tree, g, actions[i])
        if results[i] == 0 and edge > 0 and _reuse(tree, rules, g, edge):
            set_root(tree, rules, g)
            continue
        _plant(tree, g)
        if results[i] != 0:
            tree.plays[g].status = trees.ENDED
            tree.nodes[g, 0].status = trees.ENDS[results[i]]


@compiled
def finished_games(tree: Tree, rules: Rules, out: np.ndarray) -> int:
    """Write the numbers of all games whose search is done into `out`, int64 [B]. Return how many games these are."""
    n = 0
    for g in range(tree.plays.size):
        done = tree.plays[g].done >= tree.plays[g].asked and tree.nodes[g, 0].status == trees.EXPANDED
        if done and tree.plays[g].status == trees.SEARCHING and tree.plays[g].waiting == 0:
            out[n] = g
            n += 1
    return n


@compiled
def collect(tree: Tree, done: Finished) -> None:
    """Fill the arrays of `done`, which are zeros, with the results of the searches of `done.games`."""
    for i in range(done.games.size):
        g = done.games[i]
        done.plies[i] = records.ply(tree.records[g, 0])
        first = tree.nodes[g, 0].first
        for k in range(tree.nodes[g, 0].count):
            action = tree.sums[g, first + k].action
            done.visits[i, action] = tree.edges[g, first + k].visits
            done.priors[i, action] = tree.root_priors[g, k]
            done.q[i, action] = tree.edges[g, first + k].q
            done.legal[i, action] = True
        done.value[i] = -tree.sums[g, 0].total / tree.edges[g, 0].visits
        done.raw[i] = tree.nodes[g, 0].value
