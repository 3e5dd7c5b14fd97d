"""Forced visits of a root's moves, and what is taken back of them (KataGo: Wu 2019, 3.2). Imports no torch.

With N(a) visits of move a, N of all the root's moves together, and P(a) its prior with noise: a move that has any is
visited at once as long as N(a) < sqrt(k P(a) N). When the search is done a*, the most visited move, keeps its visits.
Every other loses as many as were forced at most, while its Q + U stays below that of a*; the last one too, if it is
left with one.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.acting.search.tree import Rules, Tree
from polyplay.common.compiled import cached_njit, inlined

compiled = cached_njit(_nrt=False)  # see tree_kernels


@inlined
def _is_full(tree: Tree, rules: Rules, g: int) -> bool:
    return tree.plays[g].asked == rules.simulations


@inlined
def _root_visits(tree: Tree, g: int) -> int:
    first, n = tree.nodes[g, 0].first, 0
    for e in range(first, first + tree.nodes[g, 0].count):
        n += tree.edges[g, e].visits
    return n


@inlined
def _forced_visits(tree: Tree, rules: Rules, g: int, move: int, all_visits: int) -> float:
    return math.sqrt(rules.forced * np.float64(tree.root_priors[g, move]) * all_visits)


@compiled
def forced_edge(tree: Tree, rules: Rules, g: int) -> int:
    """The first of the root's edges that is owed a visit; -1: none is."""
    if _is_full(tree, rules, g):
        first, n = tree.nodes[g, 0].first, _root_visits(tree, g)
        for i in range(tree.nodes[g, 0].count):
            visits = tree.edges[g, first + i].visits
            if visits > 0 and visits < _forced_visits(tree, rules, g, i, n):
                return first + i
    return -1


@compiled
def prune_visits(tree: Tree, rules: Rules, games: np.ndarray, visits: np.ndarray) -> None:
    """Take back what was forced and not worth it from visits int32 [n, A], of searches that are done."""
    for k in range(games.size):
        g = games[k]
        if _is_full(tree, rules, g):
            first, count, n = tree.nodes[g, 0].first, tree.nodes[g, 0].count, _root_visits(tree, g)
            factor = np.float64(tree.factors[tree.edges[g, 0].visits])
            best = 0
            for i in range(count):
                best = i if tree.edges[g, first + i].visits > tree.edges[g, first + best].visits else best
            prior, most = np.float64(tree.root_priors[g, best]), tree.edges[g, first + best].visits
            top = tree.edges[g, first + best].q + factor * prior / (1.0 + most)
            for i in range(count):
                left = tree.edges[g, first + i].visits
                if i == best or left == 0:
                    continue
                prior, q = np.float64(tree.root_priors[g, i]), np.float64(tree.edges[g, first + i].q)
                least = left - int(_forced_visits(tree, rules, g, i, n))
                while left > max(least, 0) and q + factor * prior / left < top:  # 1 + (left - 1)
                    left -= 1
                visits[k, tree.sums[g, first + i].action] = left if left > 1 else 0
