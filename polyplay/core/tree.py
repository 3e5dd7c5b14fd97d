"""Trees of arrays (nested dicts), and specs that describe such trees.

A *tree* is an array or a dict of trees. A *spec* is a `Field` (shape and type of one array) or a dict of specs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

Tree = Any  # array | dict[str, Tree]: mypy cannot check a recursive type
Batch = dict[str, Any]
Index = int | slice | np.ndarray | EllipsisType | tuple[object, ...]


class Field(NamedTuple):
    """Shape and NumPy type name of one array. The shape does not include the leading dimensions [T, B], which are time
    steps and lanes (parallel environments).
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def stored_dtype(dtype: np.dtype, whole: bool = False) -> str:
    """Return the type in which to store numbers of `dtype` for networks. Unsigned integers of several bytes become
    signed. Long floats become float64. `whole`: whether uint64 numbers fit into int64. If not, they become float64.
    """
    if dtype.kind == "u" and dtype.itemsize > 1:
        return "float64" if dtype.itemsize == 8 and not whole else f"int{min(16 * dtype.itemsize, 64)}"
    return "float64" if dtype.kind == "f" and dtype.itemsize > 8 else dtype.name


Spec = Any  # Field | dict[str, Spec]


def map(f: Callable, *trees: Tree) -> Tree:  # noqa: A001 - read as tree.map
    """Apply `f` to the arrays of one tree, or to matching arrays of several trees with the same structure."""
    head = trees[0]
    if isinstance(head, dict):
        return {k: map(f, *(t[k] for t in trees)) for k in head}
    return f(*trees)


def at(tree: Tree, index: Index) -> Tree:
    """Return a tree with `a[index]` for each array `a` of `tree`."""
    return map(lambda a: a[index], tree)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs (path, array or field) of a tree, depth first. A path joins the keys with '/'."""
    if isinstance(tree, dict):
        for k, v in tree.items():
            at = f"{path}/{k}" if path else k
            if isinstance(v, dict):
                yield from leaves(v, at)
            else:
                yield at, v
    else:
        yield path, tree


def nest(flat: Batch) -> Tree:
    """Return the nested tree of a flat dict {path: array}, the inverse of `dict(leaves(tree))`."""
    if set(flat) == {""}:
        return flat[""]
    root: Batch = {}
    for path, leaf in flat.items():
        *above, last = path.split("/")
        node = root
        for key in above:
            node = node.setdefault(key, {})
        node[last] = leaf
    return root


def zeros(spec: Spec, lead: tuple[int, ...] = ()) -> Tree:
    """Return a tree of NumPy zeros with the shapes and types of `spec`. lead: leading dimensions of each array."""
    return map(lambda f: np.zeros(lead + f.shape, f.dtype), spec)


def widen(spec: Spec, lead: tuple[int, ...]) -> Spec:
    """Return `spec` with the dimensions `lead` added before each shape."""
    return map(lambda f: Field((*lead, *f.shape), f.dtype), spec)


def nbytes(spec: Spec) -> int:
    """Return the number of bytes that `spec` needs for one lane (parallel environment) and one step."""
    return sum(f.nbytes for _, f in leaves(spec))


def write(dst: Tree, at: Index, src: Tree) -> None:
    """Set dst[at] = src for all arrays of the tree. `dst` must have all keys of `src`, and may have more."""
    if isinstance(src, dict):
        for k, v in src.items():
            write(dst[k], at, v)
    else:
        dst[at] = src
