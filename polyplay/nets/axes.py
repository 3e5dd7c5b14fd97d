"""What stands along the axes of a network's tensors, so that one that grows knows which numbers are the old ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Field
from polyplay.envs.pool import EnvSpec


@dataclass(frozen=True)
class AxisSegment:
    """Numbers beside each other that belong together; `shape` is what they have before they are flattened.

    fixed: they are as many in every network of the kind. part: the leaf of observations or the part of actions that
    they are of, which may be missing as a whole. silent: new ones begin with 0, not with random numbers.
    """

    name: str
    shape: tuple[int, ...]
    fixed: bool = False
    part: str | None = None
    silent: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Axis = tuple[AxisSegment, ...]


@dataclass(frozen=True)
class TensorAxes:
    """A tensor of a network, by a name that it keeps wherever it stands in it, and its axes.

    spare: it may be missing in the other network. fill: what new numbers begin with, if not with a new network's.
    counts: it is the number of rows that its module's other tensors were learnt from.
    """

    key: str
    axes: tuple[Axis, ...]
    spare: bool = False
    fill: float | None = None
    counts: bool = False


Axes = dict[str, TensorAxes]  # by the tensor's name in state_dict


def fixed_axes(tensors: Mapping[str, Tensor]) -> Axes:
    """Of tensors that never grow."""
    return {
        name: TensorAxes(name, tuple((AxisSegment(f"axis {i}", (n,), fixed=True),) for i, n in enumerate(x.shape)))
        for name, x in tensors.items()
    }


def module_axes(module: nn.Module, name: str) -> Axes:
    """What a module says of its own tensors by its method `axes`, named from outside, all others as ones that never
    grow.
    """
    own: Axes = module.axes() if hasattr(module, "axes") else {}  # type: ignore[operator]
    return axes_within(name, fixed_axes(module.state_dict()) | own)


def axes_within(name: str, axes: Axes) -> Axes:
    """Those of a part, as the whole calls them."""
    return {f"{name}.{own}": replace(x, key=f"{name}.{x.key}") for own, x in axes.items()}


def linear_axes(name: str, rows: Axis, columns: Axis) -> Axes:
    """Of a linear layer [rows, columns] and its bias."""
    both = {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    return {key: TensorAxes(key, axes) for key, axes in both.items()}


def observed_axis(spec: EnvSpec, one_hot: bool = True, without: tuple[str, ...] = ()) -> Axis:
    """Observations' leaves, flattened, in the spec's order; those with classes one-hot."""
    found: list[AxisSegment] = []
    for path, field in tree.leaves(spec.obs):
        if path not in without:
            found += _leaf(path, field, spec.classes.get(path, 0) if one_hot else 0)
    return tuple(found)


def _leaf(path: str, field: Field, classes: int | tuple[int, ...]) -> list[AxisSegment]:
    name = f"observation {path}".strip()
    if isinstance(classes, tuple):
        return [AxisSegment(f"{name}[{i}]", (n,), part=path) for i, n in enumerate(classes)]
    return [AxisSegment(name, (classes,) if classes else field.shape, part=path)]


@dataclass(frozen=True)
class AxisMatch:
    """Where numbers of one axis stand in another: old[i] becomes new[i]. silent: places of new numbers that begin with
    0. missing: parts that the other has no more.
    """

    old: np.ndarray
    new: np.ndarray
    silent: np.ndarray
    missing: tuple[str, ...] = ()


def match_axes(before: Axis, after: Axis) -> AxisMatch:
    """ValueError: some would be lost."""
    there, at = dict[str, tuple[AxisSegment, int]](), 0
    for segment in after:
        there[segment.name] = segment, at
        at += segment.size
    parts = {segment.part for segment in after} - {None}
    old, new, missing, place = list[int](), list[int](), dict[str, None](), 0
    for segment in before:
        found = there.get(segment.name)
        if found is not None:
            old += range(place, place + segment.size)
            new += (_corner(segment, found[0]) + found[1]).tolist()
        elif segment.part is None or segment.part in parts:
            raise ValueError(f"the {segment.name} would be missing")
        else:
            missing[segment.part] = None
        place += segment.size
    kept = {*new}
    silent = [n for s, start in there.values() if s.silent for n in range(start, start + s.size) if n not in kept]
    numbers = [np.array(x, np.int64) for x in (old, new, silent)]
    return AxisMatch(numbers[0], numbers[1], numbers[2], tuple(missing))


def _corner(old: AxisSegment, new: AxisSegment) -> np.ndarray:
    """Places of the old numbers among the new ones."""
    fits = len(old.shape) == len(new.shape) and all(a <= b for a, b in zip(old.shape, new.shape, strict=True))
    if not fits or (old.shape != new.shape and (old.fixed or new.fixed)):
        raise ValueError(f"the {old.name} would go from {list(old.shape)} to {list(new.shape)}")
    return np.arange(new.size).reshape(new.shape)[tuple(slice(n) for n in old.shape)].ravel()
