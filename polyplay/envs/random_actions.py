"""Uniform actions of any space: the random part of an evaluation with ε, and the play of checks. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs.spaces import ActionSpec, Box, Conditional, Discrete, Leaf

MOST = 1e6  # a random real number is at most this far from 0


def action_width(space: ActionSpec) -> int:
    """Uniforms that one action takes. Raises UserError: real numbers without bounds have no uniform action."""
    return sum(_width(leaf) for _, leaf in tree.leaves(space))


def _width(leaf: Leaf) -> int:
    if not isinstance(leaf, Box):
        return len(leaf.classes)
    if not (np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all()):
        raise UserError(f"--epsilon: actions of {leaf} have no uniform draw; allowed here: 0")
    return leaf.low.size


def random_actions(space: ActionSpec, uniforms: np.ndarray, mask: Tree | None = None) -> Tree:
    """Actions [B, …] from uniforms float32 [B, width] in (0, 1): every legal value of a part with the same chance."""
    masks, made, at = {} if mask is None else dict(tree.leaves(mask)), dict[str, np.ndarray](), 0
    for path, leaf in tree.leaves(space):
        n, legal = _width(leaf), masks.get(path)
        if legal is not None and legal.ndim == 3:  # for each value of the first part
            legal = legal[np.arange(len(legal)), next(iter(made.values()))]
        made[path] = _draw(leaf, uniforms[:, at : at + n].astype(np.float64), legal)
        at += n
    if isinstance(space, Conditional):
        for name in space.uses:
            made[name][~space.used(name)[made[space.first]]] = 0
    return tree.nest(made)


def _draw(leaf: Leaf, u: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    if isinstance(leaf, Box):
        low, high = leaf.low.reshape(-1), leaf.high.reshape(-1)
        return (low + u * (high - low)).reshape(len(u), *leaf.shape).astype(np.float32)
    legal = np.ones((len(u), sum(leaf.classes)), bool) if mask is None else mask
    parts = np.split(legal, np.cumsum(leaf.classes)[:-1], axis=1)
    numbers = np.stack([_among(part, u[:, i]) for i, part in enumerate(parts)], 1)
    shape = () if isinstance(leaf, Discrete) else leaf.shape
    return numbers.reshape(len(u), *shape).astype(leaf.field.dtype)


def _among(legal: np.ndarray, u: np.ndarray) -> np.ndarray:
    """int64 [B]: the legal value [B, n] that stands at u of the way through all that are legal."""
    place = (u * legal.sum(1)).astype(np.int64)
    return (legal.cumsum(1) > place[:, None]).argmax(1)


def action_sampler(space: ActionSpec, seed: int) -> Callable[..., Tree]:
    """A function that draws the actions of n lanes; of those that `mask` allows, where it is given."""
    rng, bounded = np.random.default_rng(seed), tree.map(_bounded, space)
    bounded = Conditional(bounded, space.uses) if isinstance(space, Conditional) else bounded
    width = action_width(bounded)

    def draw(n: int, mask: Tree | None = None) -> Tree:
        return random_actions(bounded, rng.random((n, width)), mask)

    return draw


def _bounded(leaf: Leaf) -> Leaf:
    """A Box with finite bounds: where one is missing, 1 beyond the other or beyond 0."""
    if not isinstance(leaf, Box):
        return leaf
    low = np.where(np.isfinite(leaf.low), leaf.low, np.minimum(leaf.high, 0) - 1)
    high = np.where(np.isfinite(leaf.high), leaf.high, np.maximum(low, 0) + 1)
    return Box(leaf.shape, np.maximum(low, -MOST), np.minimum(high, MOST))


def mix_random(own: Tree, other: Tree, which: np.ndarray) -> Tree:
    """`own` actions [B, …], but `other` in the lanes of `which` (bool [B])."""

    def leaf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(which.reshape(-1, *[1] * (a.ndim - 1)), b, a).astype(a.dtype)

    return tree.map(leaf, own, other)
