"""What an environment shows and takes, as Polyplay describes it, and the way there from Gymnasium's spaces.

Dict and Tuple become dicts, a Tuple's parts with the keys "0", "1", …; what they are made of are leaves. A further
kind of leaf is a class and one line in `LEAVES`, and what `action_reader` and `observation_writer` make of its arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Field, Spec, Tree
from polyplay.envs.arrays import Casting, SpaceViolation, as_array, check_array, infinite, place_of

# Every leaf has `field`, the array of one lane's action, `kinds`, the kinds of dtypes that are taken for one, and
# `classes`, how many values each of its parts has; those of whole numbers `most`: numbers lie in 0 … most - 1.


@dataclass(frozen=True)
class Discrete:
    """Actions 0 … n-1: int64 [B]. (An environment's own `start` is added by its pool.)"""

    n: int

    field = Field((), "int64")
    kinds = "iu"
    classes = property(lambda self: (self.n,))
    most = property(lambda self: self.n)

    def __str__(self) -> str:
        return f"{self.n} discrete"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several numbers at once: int64 [B, *shape], the i-th (row by row) in 0 … nvec[i]-1."""

    shape: tuple[int, ...]
    nvec: tuple[int, ...]

    field = property(lambda self: Field(self.shape, "int64"))
    kinds = "iu"
    classes = property(lambda self: self.nvec)
    most = cached_property(lambda self: np.array(self.nvec, np.uint64).reshape(self.shape))

    def __str__(self) -> str:
        return f"{list(self.shape)} discrete of {', '.join(map(str, self.nvec[:8]))}{', …' * (len(self.nvec) > 8)}"


@dataclass(frozen=True)
class MultiBinary:
    """Several switches: int8 [B, *shape], 0 or 1."""

    shape: tuple[int, ...]

    field = property(lambda self: Field(self.shape, "int8"))
    kinds = "iub"
    classes = property(lambda self: (2,) * math.prod(self.shape))
    most = 2

    def __str__(self) -> str:
        return f"{list(self.shape)} binary"


@dataclass(frozen=True, eq=False)
class Box:
    """Real vectors: float32 [B, *shape]; policies may send any number, pools clip to [low, high]
    (float32 [*shape]).
    """

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray

    field = property(lambda self: Field(self.shape, "float32"))
    kinds = "f"
    classes = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box) or self.shape != other.shape:
            return False
        return np.array_equal((self.low, self.high), (other.low, other.high))

    def __hash__(self) -> int:
        return hash((self.shape, self.low.tobytes(), self.high.tobytes()))

    def __str__(self) -> str:
        low, high = float(self.low.min(initial=np.inf)), float(self.high.max(initial=-np.inf))
        return f"{list(self.shape)} real, within [{low:g}, {high:g}]"


class Conditional(dict[str, Any]):
    """Leaves of which the first in order, a Discrete, decides which others count: `uses` has the values of the first
    that use a part, by part. Parts that are not used are 0. (envs/conditional_actions makes it of a dict.)
    """

    def __init__(self, parts: Mapping[str, Leaf], uses: Mapping[str, tuple[int, ...]]):
        (self.first,) = parts.keys() - uses.keys()
        self.uses = {name: uses[name] for name in parts if name != self.first}
        super().__init__({name: parts[name] for name in (self.first, *self.uses)})

    def used(self, name: str) -> np.ndarray:
        """bool [values of the first]: those that use this part."""
        return np.isin(np.arange(self[self.first].n), self.uses[name])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conditional) and dict(self) == dict(other) and self.uses == other.uses

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


Writer = Callable[[object], None]  # of an environment's observations, see observation_writer
Whole = Discrete | MultiDiscrete | MultiBinary
Leaf = Whole | Box
ActionSpec = Leaf | dict[str, Any]  # of ActionSpecs


# --------------------------------------------------------------------------------- from Gymnasium


def subspaces(space: gym.Space) -> dict[str, gym.Space] | None:
    """The spaces that a Dict or a Tuple is made of; None: it is something else."""
    if isinstance(space, gym.Dict):
        return dict(space.spaces)
    return {str(i): s for i, s in enumerate(space.spaces)} if isinstance(space, gym.Tuple) else None


def _rounded(bounds: np.ndarray) -> np.ndarray:
    """Bounds as float32; those beyond its range are infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(bounds, np.float32)


def one_line(space: gym.Space) -> str:
    """A space as messages show it."""
    return " ".join(str(space).split())


def inner_path(path: str, key: str) -> str:
    """The path of what a part at `path` has under `key`."""
    return f"{path}/{key}" if path else key


LEAVES: dict[type, Callable[[Any], Leaf]] = {
    gym.Discrete: lambda space: Discrete(int(space.n)),
    gym.MultiDiscrete: lambda space: MultiDiscrete(tuple(space.shape), tuple(int(n) for n in space.nvec.flat)),
    gym.MultiBinary: lambda space: MultiBinary(tuple(space.shape)),
    gym.Box: lambda space: Box(tuple(space.shape), *(_rounded(x) for x in (space.low, space.high))),
}
NUMBERS = 16  # that an action can be, at least
SUPPORTED = {
    "observation": "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these: wrap the environment "
    "(gymnasium.wrappers.FlattenObservation, TransformObservation)",
    "action": "Discrete, MultiDiscrete, MultiBinary, floating Box, and Dict and Tuple of these: wrap the environment "
    "(gymnasium.wrappers.TransformAction)",
}


def leaf_of(space: gym.Space) -> Leaf | None:
    """The description of a space that is not made of others; None: it is of no known kind."""
    return next((describe(space) for kind, describe in LEAVES.items() if isinstance(space, kind)), None)


def _convert(space: gym.Space, title: str, what: str, leaf: Callable[[Any], Tree], path: str = "") -> Tree:
    """The tree of `space`'s leaves. Raises UserError: keys that make no path, no leaf at all, or one that is None."""
    inner = subspaces(space)
    if inner is None:
        found, empty = leaf(space), 0 in (space.shape or ())
        if found is None or empty:
            flaw = "has a dimension of width 0, so no numbers: leave it out" if empty else "is not supported"
            text = f"{what} space {one_line(space)} {place_of(path)}{flaw}"
            raise UserError(f"{title}: {text}; supported are {SUPPORTED[what]}")
        return found
    if not inner:
        raise UserError(f"{title}: {what} space {space} {place_of(path)}has no parts; leave it out")
    for key in inner:
        if not isinstance(key, str) or "/" in key or not key:
            raise UserError(f"{title}: {what} key {key!r} is not a name; keys must be strings without '/'")
    return {k: _convert(s, title, what, leaf, inner_path(path, k)) for k, s in inner.items()}


def observation(space: gym.Space, title: str) -> Spec:
    """Fields of an observation space. `title` names the environment in errors.

    Raises UserError: a space that is not supported.
    """

    def leaf(space: gym.Space) -> Field | None:
        if isinstance(space, gym.Box | gym.MultiDiscrete):
            return Field(tuple(space.shape), tree.stored_dtype(space.dtype, isinstance(space, gym.MultiDiscrete)))
        found = leaf_of(space)
        return None if found is None else found.field

    return _convert(space, title, "observation", leaf)


def classes(space: gym.Space) -> dict[str, int | tuple[int, ...]]:
    """Number of values of every Discrete leaf, numbers of every MultiDiscrete one, by path ("" for a bare
    observation); for the net's one-hot.
    """
    leaves = tree.leaves(_convert(space, "", "observation", leaf_of))
    many = {path: leaf for path, leaf in leaves if isinstance(leaf, Discrete | MultiDiscrete)}
    return {path: leaf.n if isinstance(leaf, Discrete) else leaf.nvec for path, leaf in many.items()}


def action(space: gym.Space, title: str) -> ActionSpec:
    """The action description of a Gymnasium space. Raises UserError: a space that is not supported."""

    def leaf(space: gym.Space) -> Leaf | None:
        if isinstance(space, gym.Box) and not np.issubdtype(space.dtype, np.floating):
            raise UserError(
                f"{title}: action space {one_line(space)} is a Box of whole numbers; supported are Discrete, "
                "MultiDiscrete, MultiBinary and floating Box: declare it as MultiDiscrete "
                "(gymnasium.wrappers.TransformAction)"
            )
        if isinstance(space, gym.Box) and _is_narrow(space):
            raise UserError(
                f"{title}: action space {one_line(space)}: float32, in which policies act, has fewer than {NUMBERS} "
                "numbers from low to high: declare -1 … 1 (gymnasium.wrappers.RescaleAction)"
            )
        return leaf_of(space)

    return _convert(space, title, "action", leaf)


def _is_narrow(space: gym.Box) -> bool:
    """Whether some part's bounds differ, but float32 has next to no numbers between them."""
    low, high = space.low.astype(float), space.high.astype(float)
    most = np.maximum(np.abs(low), np.abs(high))
    near = (low < high) & (most < np.finfo(np.float32).max)
    return bool((near & (NUMBERS * np.spacing(_rounded(most)).astype(float) > high - low)).any())


def fields(action: ActionSpec) -> Spec:
    """Of the arrays that actions are, without [B]."""
    return tree.map(lambda leaf: leaf.field, action)


def describe_fields(spec: Spec) -> str:
    """One line for people: `uint8 [4, 84, 84]` or `image: uint8 [3, 8, 8], goal: int64 []`."""
    parts = [(path, f"{field.dtype} {list(field.shape)}") for path, field in tree.leaves(spec)]
    return ", ".join(f"{path}: {text}" if path else text for path, text in parts)


def describe_actions(action: ActionSpec) -> str:
    """One line for people: `3 discrete` or `pick: 3 discrete, aim: [2] real, within [-1, 1] (pick 0, 2)`."""
    when = {}
    if isinstance(action, Conditional):
        when = {name: f" ({action.first} {', '.join(map(str, values))})" for name, values in action.uses.items()}
    return ", ".join(f"{path}: {leaf}{when.get(path, '')}" if path else str(leaf) for path, leaf in tree.leaves(action))


# --------------------------------------------------------------------------------------- per step


def check_action(space: ActionSpec, action: Tree, lanes: int, path: str = "") -> Tree:
    """`action` as arrays of `lanes` actions, each as its leaf's `field` says, in a dict where `space` is one.

    Raises ValueError: wrong keys, shape, kind or range (a policy's mistake, never an environment's).
    """
    if isinstance(space, dict):
        if not isinstance(action, Mapping) or action.keys() != space.keys():
            given = f"keys {list(action)}" if isinstance(action, Mapping) else type(action).__name__
            raise ValueError(f"actions {place_of(path)}must have keys {list(space)}, got {given}")
        return {k: check_action(s, action[k], lanes, inner_path(path, k)) for k, s in space.items()}
    array = np.asarray(action)
    if array.shape != (lanes, *space.field.shape) or array.dtype.kind not in space.kinds:
        want = f"{'floats' if space.kinds == 'f' else 'integers'} {[lanes, *space.field.shape]}"
        raise ValueError(f"actions {place_of(path)}must be {want}, got {array.dtype} {list(array.shape)}")
    if not isinstance(space, Box):
        array = array.astype(np.int64, copy=False)
        if beyond(space, array):
            want = f"lie in 0…{space.n - 1}" if isinstance(space, Discrete) else f"be {space}, counted from 0"
            raise ValueError(f"actions {place_of(path)}must {want}, got {array.min()}…{array.max()}")
    return array.astype(space.field.dtype, copy=False)


def beyond(leaf: Whole, numbers: np.ndarray) -> bool:
    """Whether some of these numbers, int64, are none of the leaf's."""
    numbers = numbers.view(np.uint64)  # what was negative is huge there
    if isinstance(leaf, MultiDiscrete):
        return bool((numbers >= leaf.most).any())
    return bool(numbers.max(initial=0) >= leaf.most)


def action_reader(space: gym.Space) -> Callable[[Tree], Any]:
    """From a row of the action's arrays to what the environment's own `step` takes: an element of its space."""
    inner = {k: action_reader(s) for k, s in (subspaces(space) or {}).items()}
    if isinstance(space, gym.Tuple):
        return lambda a: tuple(act(a[k]) for k, act in inner.items())
    if isinstance(space, gym.Dict):
        return lambda a: {k: act(a[k]) for k, act in inner.items()}
    if isinstance(space, gym.Discrete):
        kind, least = np.dtype(space.dtype).type, int(space.start)
        return lambda a: kind(int(a) + least)
    dtype = space.dtype
    if isinstance(space, gym.Box):
        low, high = space.low, space.high
        return lambda a: np.asarray(np.clip(a, low, high), dtype)
    start = _start(space)
    return lambda a: np.asarray(a + start).astype(dtype)


def _start(space: gym.Space) -> np.ndarray:
    """The environment's own first numbers, int64."""
    return np.asarray(getattr(space, "start", 0), np.int64)


def observation_writer(space: gym.Space, into: Tree, lane: int, path: str = "", casting: Casting = "safe") -> Writer:
    """A function that checks an observation against `space` and writes it in place into `into[lane]`. casting: which
    types of numbers a Box takes, as np.can_cast has it; with same_kind float64 for float32 too.

    It raises SpaceViolation where shape, type or keys are not the declared ones.
    """
    parts = subspaces(space)
    if parts is not None:
        inner = {k: observation_writer(s, into[k], lane, inner_path(path, k), casting) for k, s in parts.items()}
        return lambda obs: _write_parts(space, inner, obs, path)
    row = into[lane, ...]
    if isinstance(space, gym.Box):
        return _box_writer(space, row, path, casting)
    start, leaf = _start(space), leaf_of(space)
    assert isinstance(leaf, Whole)
    return lambda obs: _write_whole(space, leaf, start, row, obs, path)


def _write_parts(space: gym.Space, inner: dict[str, Writer], obs: object, path: str) -> None:
    if isinstance(space, gym.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(inner):
            given = f"{type(obs).__name__} of {len(obs)}" if isinstance(obs, tuple | list) else type(obs).__name__
            raise SpaceViolation(f"{place_of(path)}declared a tuple of {len(inner)}, given {given}", "keys")
        parts = list(obs)
    else:
        if not isinstance(obs, Mapping) or not inner.keys() <= obs.keys():
            given = f"keys {list(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
            raise SpaceViolation(f"{place_of(path)}declared keys {list(inner)}, given {given}", "keys")
        parts = [obs[key] for key in inner]
    for write, part in zip(inner.values(), parts, strict=True):
        write(part)


def _write_whole(space: gym.Space, leaf: Whole, start: np.ndarray, row: np.ndarray, obs: object, path: str) -> None:
    """Numbers from `start` on, counted from 0."""
    array = as_array(obs, None, space, path)
    if array.shape != row.shape or array.dtype.kind not in leaf.kinds:
        rule = "shape" if array.shape != row.shape else "dtype"
        raise SpaceViolation(f"{place_of(path)}declared {space}, given {array.dtype} {list(array.shape)}", rule)
    values = array.astype(np.int64) - start
    if beyond(leaf, values):
        raise SpaceViolation(f"{place_of(path)}declared {space}, given {' '.join(str(array).split())}", "bounds")
    row[...] = values


def _box_writer(space: gym.Box, row: np.ndarray, path: str, casting: Casting) -> Writer:
    shape, dtype, floating = space.shape, space.dtype, np.issubdtype(space.dtype, np.floating)

    def write(given: object) -> None:
        obs = given if type(given) is np.ndarray else as_array(given, dtype, dtype, path)
        check_array(obs, shape, dtype, path, casting)
        if floating and not np.isfinite(obs).all():
            raise SpaceViolation(f"{place_of(path)}{infinite(obs)}", "finite")
        row[...] = obs

    return write
