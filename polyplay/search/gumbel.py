"""The compiled loops of a Gumbel search (Danihelka et al. 2022): which moves of the root get visits, how it goes on
inside, and the policy that results.

The root's moves are first those of the greatest g + logit, where g is Gumbel noise; sequential halving then leaves half
of them again and again. `tree.considered` says how many visits the moves have that the next simulation is for.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.core.compiled import cached_njit, inlined
from polyplay.games import records
from polyplay.search.tree import Rules, Tree, stream, uniform_of

compiled = cached_njit(_nrt=False)  # see tree_kernels

LOWEST = -1e9  # of a score
TINY = 1e-38  # of a probability


@compiled
def draw_gumbel(tree: Tree, rules: Rules, g: int) -> None:
    """The noise of a root's moves for this search, times the temperature at its ply: so a move is drawn from
    softmax(logit / temperature), and at temperature 0 none is drawn.
    """
    key, scale = (
        stream(rules.key, rules.lane + g, tree.plays[g].searches),
        tree.temperatures[records.ply(tree.records[g, 0])],
    )
    for i in range(tree.nodes[g, 0].count):
        tree.gumbel[g, i] = -math.log(-math.log(uniform_of(key, i))) * scale


@inlined
def _write_sigma(tree: Tree, rules: Rules, g: int, node: int) -> None:
    """Write σ(q) of a node's moves into tree.shares: of those without visits with v_mix, an estimate of the node's
    value by its own and those of the moves that have some.
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
    """The edge of the greatest g + logit + σ(q) among the root's of so many visits; σ is in tree.shares."""
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
    """Make of σ in tree.shares the improved policy: softmax of logit + σ(q)."""
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
    """The edge to go on by: at the root the next to be visited; inside where visits are fewest beside the improved
    policy.
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
    """Of searches that are done: the move, of the most visited the greatest g + logit + σ(q), into int64 [n], and the
    improved policy into float32 [n, A].
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
