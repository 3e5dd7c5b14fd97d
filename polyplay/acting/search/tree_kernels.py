"""The compiled loops of a search: leaves for the batch, the network's answers backed up. Imports no torch.

A backed-up value is for who chose the edge: the sign changes at each step up. With several leaves per game a leaf that
waits counts as `virtual_loss` visits that were lost, until its answer comes. A leaf that is met again while it waits
ends the game's part of the round: it is evaluated once.

Functions take arrays and not the tree: an array that is an argument costs no reference counting, a field of a tuple
costs some at each use.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.acting.search.noise_kernels import dirichlet, stream
from polyplay.acting.search.tree import DRAWN, EXPANDED, FRESH, SEARCHING, UNEXPANDED, WON, Rules, Tree
from polyplay.buffers.replay.rng import compiled
from polyplay.envs.boards.kernels import legal, play, write_planes

_ONE, _NONE = np.float32(1.0), np.float32(-np.inf)


@compiled
def _unvisited_value(
    edges: np.ndarray, sums: np.ndarray, nodes: np.ndarray, rules: Rules, g: int, node: int, edge: int
) -> np.float32:
    """First-play urgency at a node, from its mover's view; `edge` leads into the node."""
    if not rules.fpu_parent:
        return np.float32(0.0)
    real = edges[g, edge].visits - rules.virtual_loss * sums[g, edge].pending
    value = -sums[g, edge].total / real
    if rules.fpu_reduction != 0.0 and (node > 0 or rules.noise == 0.0):
        value -= rules.fpu_reduction * math.sqrt(np.float64(nodes[g, node].explored))
    return np.float32(value)


@compiled
def _best_edge(edges: np.ndarray, g: int, first: int, end: int, fpu: np.float32, factor: np.float32) -> int:
    """The edge of the greatest Q + U, the first of equals."""
    best, top = first, _NONE
    for e in range(first, end):
        q = edges[g, e].q if edges[g, e].visits > 0 else fpu
        score = q + edges[g, e].u * factor
        if score > top:
            best, top = e, score
    return best


@compiled
def _add_child(nodes: np.ndarray, records: np.ndarray, game: np.ndarray, g: int, ends: tuple, action: int) -> None:
    """A new node: (parent, child), the position after a move."""
    parent, child = ends
    for i in range(records.shape[2]):
        records[g, child, i] = records[g, parent, i]
    result = play(game, records[g, child], action)
    nodes[g, child].status = FRESH if result == 0 else WON if result == 1 else DRAWN
    nodes[g, child].explored = 0.0


@compiled
def _descend(
    edges: np.ndarray,
    sums: np.ndarray,
    nodes: np.ndarray,
    path: np.ndarray,
    factors: np.ndarray,
    rules: Rules,
    g: int,
    row: int,
) -> tuple[int, int, int]:
    """(node, its new child's edge or -1 where the node itself is the leaf, depth of the leaf); fills a row of paths."""
    node, edge, depth = 0, 0, 0
    path[row, 0] = 0
    while nodes[g, node].status == EXPANDED:
        fpu = _unvisited_value(edges, sums, nodes, rules, g, node, edge)
        first = nodes[g, node].first
        edge = _best_edge(edges, g, first, first + nodes[g, node].count, fpu, factors[edges[g, edge].visits])
        depth += 1
        path[row, depth] = edge
        child = edges[g, edge].child
        if child < 0:
            return node, edge, depth
        node = child
    return node, -1, depth


@compiled
def _refresh(edges: np.ndarray, sums: np.ndarray, g: int, edge: int, prior: np.float32, virtual_loss: int) -> None:
    """An edge's q and u from its sums."""
    n = edges[g, edge].visits
    lost = virtual_loss * sums[g, edge].pending
    edges[g, edge].q = np.float32((sums[g, edge].total - lost) / n) if n > 0 else np.float32(0.0)
    edges[g, edge].u = prior / (_ONE + np.float32(n))


@compiled
def _back_up(
    edges: np.ndarray,
    sums: np.ndarray,
    first: int,
    root_priors: np.ndarray,
    path: np.ndarray,
    rules: Rules,
    g: int,
    row: int,
    depth: int,
    value: float,
    waited: int,
) -> None:
    """Add a value, for who chose the last edge of a path, to all its edges; waited 1 takes back a virtual loss too.
    `first` is the root's first edge.
    """
    more = 1 - waited * rules.virtual_loss
    for k in range(depth, -1, -1):
        edge = path[row, k]
        sums[g, edge].total += value
        sums[g, edge].pending -= waited
        edges[g, edge].visits += more
        prior = root_priors[g, edge - first] if k == 1 else sums[g, edge].prior
        _refresh(edges, sums, g, edge, prior, rules.virtual_loss)
        value = -value


@compiled
def _lose_virtually(
    edges: np.ndarray,
    sums: np.ndarray,
    first: int,
    root_priors: np.ndarray,
    path: np.ndarray,
    rules: Rules,
    g: int,
    row: int,
    depth: int,
) -> None:
    """Let a path look worse as long as its leaf waits."""
    for k in range(depth + 1):
        edge = path[row, k]
        sums[g, edge].pending += 1
        edges[g, edge].visits += rules.virtual_loss
        prior = root_priors[g, edge - first] if k == 1 else sums[g, edge].prior
        _refresh(edges, sums, g, edge, prior, rules.virtual_loss)


@compiled
def _next_leaf(tree: Tree, rules: Rules, game: np.ndarray, g: int, row: int) -> tuple[int, int]:
    """(node, depth) of a game's next leaf, made if it is new."""
    edges, sums, nodes, plays, priors = tree.edges, tree.sums, tree.nodes, tree.plays, tree.root_priors
    node, edge, depth = _descend(edges, sums, nodes, tree.paths, tree.factors, rules, g, row)
    if edge < 0:
        return node, depth
    child = plays[g].nodes
    plays[g].nodes = child + 1
    edges[g, edge].child = child
    nodes[g, node].explored += sums[g, edge].prior if depth > 1 else priors[g, edge - nodes[g, 0].first]
    _add_child(nodes, tree.records, game, g, (node, child), sums[g, edge].action)
    return child, depth


@compiled
def _gather_game(tree: Tree, rules: Rules, game: np.ndarray, batch: np.ndarray, g: int, count: int) -> int:
    """Add one game's next leaves; gives the new count."""
    edges, sums, nodes, plays, paths = tree.edges, tree.sums, tree.nodes, tree.plays, tree.paths
    priors, first = tree.root_priors, nodes[g, 0].first
    fresh = nodes[g, 0].status == FRESH
    while plays[g].waiting < rules.leaves and (fresh or plays[g].done + plays[g].waiting < rules.simulations):
        node, depth = _next_leaf(tree, rules, game, g, count)
        status = nodes[g, node].status
        if status in (WON, DRAWN):
            value = 1.0 if status == WON else 0.0
            _back_up(edges, sums, first, priors, paths, rules, g, count, depth, value, 0)
            plays[g].done += 1
            continue
        if sums[g, paths[count, depth]].pending > 0:
            break
        write_planes(game, tree.records[g, node], batch[count])
        if rules.leaves > 1:
            _lose_virtually(edges, sums, first, priors, paths, rules, g, count, depth)
        tree.leaves[count].game, tree.leaves[count].node, tree.leaves[count].depth = g, node, depth
        plays[g].waiting += 1
        count += 1
    return count


@compiled
def gather_leaves(tree: Tree, rules: Rules, game: np.ndarray, batch: np.ndarray, count: int) -> int:
    """Add the next leaves of all games that have none waiting to a batch of `count` so far; gives the new count.

    Terminal leaves are backed up on the way.
    """
    plays = tree.plays
    for g in range(plays.size):
        if plays[g].status == SEARCHING and plays[g].waiting == 0:
            count = _gather_game(tree, rules, game, batch, g, count)
    return count


@compiled
def _expand(
    edges: np.ndarray, sums: np.ndarray, g: int, first: int, moves: np.ndarray, count: int, logits: np.ndarray, row: int
) -> None:
    """Edges of a node with priors, the softmax of its legal moves' logits."""
    top = logits[row, moves[0]]
    for i in range(1, count):
        top = max(top, logits[row, moves[i]])
    total = 0.0
    for i in range(count):
        total += math.exp(np.float64(logits[row, moves[i]] - top))
    for i in range(count):
        action, e = moves[i], first + i
        prior = np.float32(math.exp(np.float64(logits[row, action] - top)) / total)
        sums[g, e].total, sums[g, e].prior, sums[g, e].action, sums[g, e].pending = 0.0, prior, action, 0
        edges[g, e].q, edges[g, e].u, edges[g, e].visits, edges[g, e].child = 0.0, prior, 0, -1


@compiled
def set_root(tree: Tree, rules: Rules, g: int) -> None:
    """The priors of an expanded root for this search: the clean ones, and noise where the rules have it."""
    edges, sums, nodes, priors = tree.edges, tree.sums, tree.nodes, tree.root_priors
    first, count = nodes[g, 0].first, nodes[g, 0].count
    noise = np.zeros(count)
    if rules.noise > 0.0:
        alpha = rules.noise_total / count if rules.noise_total > 0.0 else rules.noise_alpha
        dirichlet(stream(rules.key, rules.lane + g, tree.plays[g].searches), alpha, noise)
    nodes[g, 0].explored = 0.0
    for i in range(count):
        mixed = sums[g, first + i].prior
        if rules.noise > 0.0:
            mixed = np.float32((1.0 - rules.noise) * mixed + rules.noise * noise[i])
        priors[g, i] = mixed
        if edges[g, first + i].child >= 0:
            nodes[g, 0].explored += mixed
        _refresh(edges, sums, g, first + i, mixed, rules.virtual_loss)


@compiled
def answer(
    tree: Tree, rules: Rules, game: np.ndarray, logits: np.ndarray, values: np.ndarray, leaves: np.ndarray
) -> None:
    """Expand the leaves of a batch by their answers, where the pools have room for their edges, and back them up.
    logits float32 [n, A], values float32 [n].
    """
    edges, sums, nodes, plays, records, moves = tree.edges, tree.sums, tree.nodes, tree.plays, tree.records, tree.moves
    priors, paths, waited = tree.root_priors, tree.paths, int(rules.leaves > 1)
    for i in range(leaves.size):
        g, node, depth = leaves[i].game, leaves[i].node, leaves[i].depth
        if nodes[g, node].status == FRESH:
            count, first = legal(game, records[g, node], moves), plays[g].edges
            nodes[g, node].status = UNEXPANDED
            if first + count <= edges.shape[1]:
                _expand(edges, sums, g, first, moves, count, logits, i)
                plays[g].edges = first + count
                nodes[g, node].first, nodes[g, node].count, nodes[g, node].status = first, count, EXPANDED
        nodes[g, node].value = values[i]
        _back_up(edges, sums, nodes[g, 0].first, priors, paths, rules, g, i, depth, -np.float64(values[i]), waited)
        plays[g].waiting -= 1
        if depth > 0:
            plays[g].done += 1
        else:
            set_root(tree, rules, g)
