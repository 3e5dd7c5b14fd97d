"""Describe spaces of observations and actions, and draw random actions.

Dict and Tuple spaces become dicts. The keys of a Tuple are "0", "1", …. All other spaces are leaves. A new kind of leaf
needs a class, an entry in `LEAVES`, and support in lane.action_reader and lane.observation_writer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec, Tree
from polyplay.envs.images import image_layout


class SpaceViolation(Exception):
    """Raised when an environment breaks a rule. The one-line message says what was declared and what was given."""

    def __init__(self, text: str, rule: str = "spaces"):
        super().__init__(text)
        self.rule = rule


def place_of(path: str) -> str:
    """Return the beginning of a message about the part of a space at `path`, or "" for the whole space."""
    return f"at {path!r} " if path else ""


# Every leaf class has `field`, shape and dtype of one lane's action; `space`, the Gymnasium space; `kinds`, the
# accepted kinds of dtypes (np.dtype.kind); and `classes`, the number of values of each of its numbers. Leaves of
# integers have `most`: their numbers are in 0 … most - 1.


@dataclass(frozen=True)
class Discrete:
    """Actions that are one integer from 0 to n-1, as int64 [B]. Pools add the `start` of the environment's space."""

    n: int

    field = Field((), "int64")
    kinds = "iu"
    classes = property(lambda self: (self.n,))
    most = cached_property(lambda self: np.array(self.n, np.uint64))
    space = property(lambda self: gym.Discrete(self.n))

    def __str__(self) -> str:
        return f"{self.n} discrete"


@dataclass(frozen=True)
class MultiDiscrete:
    """Actions of several integers, as int64 [B, *shape]. In row-major order, integer i is in 0 … nvec[i]-1."""

    shape: tuple[int, ...]
    nvec: tuple[int, ...]

    field = property(lambda self: Field(self.shape, "int64"))
    kinds = "iu"
    classes = property(lambda self: self.nvec)
    most = cached_property(lambda self: np.array(self.nvec, np.uint64).reshape(self.shape))
    space = property(lambda self: gym.MultiDiscrete(np.array(self.nvec).reshape(self.shape)))

    def __str__(self) -> str:
        return f"{list(self.shape)} discrete of {', '.join(map(str, self.nvec[:8]))}{', …' * (len(self.nvec) > 8)}"


@dataclass(frozen=True)
class MultiBinary:
    """Actions of several numbers that are 0 or 1, as int8 [B, *shape]."""

    shape: tuple[int, ...]

    field = property(lambda self: Field(self.shape, "int8"))
    kinds = "iub"
    classes = property(lambda self: (2,) * math.prod(self.shape))
    most = 2
    space = property(lambda self: gym.MultiBinary(self.shape))

    def __str__(self) -> str:
        return f"{list(self.shape)} binary"


@dataclass(frozen=True, eq=False)
class Box:
    """Actions of real numbers, as float32 [B, *shape]. Pools clip them to [low, high], both float32 [*shape]."""

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray

    field = property(lambda self: Field(self.shape, "float32"))
    kinds = "f"
    classes = ()
    space = property(lambda self: gym.Box(self.low, self.high, self.shape, np.float32))

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
    """An action of several parts. The first part, a Discrete, decides which of the other parts are used.

    `uses`: for each other part, the values of the first part that use it. Unused parts are 0.
    """

    def __init__(self, parts: Mapping[str, Leaf], uses: Mapping[str, tuple[int, ...]]):
        (self.first,) = parts.keys() - uses.keys()
        self.uses = {name: uses[name] for name in parts if name != self.first}
        super().__init__({name: parts[name] for name in (self.first, *self.uses)})

    def used(self, name: str) -> np.ndarray:
        """Return bool [values]: for each value of the first part, whether it uses the part `name`."""
        return np.isin(np.arange(self[self.first].n), self.uses[name])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conditional) and dict(self) == dict(other) and self.uses == other.uses

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


Whole = Discrete | MultiDiscrete | MultiBinary
Leaf = Whole | Box
ActionSpec = Leaf | dict[str, Any]  # the dict has ActionSpecs


# --------------------------------------------------------------------------------- from Gymnasium


def subspaces(space: gym.Space) -> dict[str, gym.Space] | None:
    """Return the parts of a Dict or Tuple space, or None for another space."""
    if isinstance(space, gym.Dict):
        return dict(space.spaces)
    return {str(i): s for i, s in enumerate(space.spaces)} if isinstance(space, gym.Tuple) else None


def _rounded(bounds: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(bounds, np.float32)


def one_line(space: gym.Space) -> str:
    """Format a space in one line, for messages."""
    return " ".join(str(space).split())


def inner_path(path: str, key: str) -> str:
    """Return the path of the part with `key` below `path`."""
    return f"{path}/{key}" if path else key


LEAVES: dict[type, Callable[[Any], Leaf]] = {
    gym.Discrete: lambda space: Discrete(int(space.n)),
    gym.MultiDiscrete: lambda space: MultiDiscrete(tuple(space.shape), tuple(int(n) for n in space.nvec.flat)),
    gym.MultiBinary: lambda space: MultiBinary(tuple(space.shape)),
    gym.Box: lambda space: Box(tuple(space.shape), *(_rounded(x) for x in (space.low, space.high))),
}
NUMBERS = 16  # least number of float32 values in an action's range
SUPPORTED = {
    "observation": "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these: wrap the environment "
    "(gymnasium.wrappers.FlattenObservation, TransformObservation)",
    "action": "Discrete, MultiDiscrete, MultiBinary, floating Box, and Dict and Tuple of these: wrap the environment "
    "(gymnasium.wrappers.TransformAction)",
}


def leaf_of(space: gym.Space) -> Leaf | None:
    """Describe a space without parts. Return None if its kind is unknown."""
    return next((describe(space) for kind, describe in LEAVES.items() if isinstance(space, kind)), None)


def _convert(space: gym.Space, title: str, what: str, leaf: Callable[[Any], Tree], path: str = "") -> Tree:
    """Convert a space to nested dicts of `leaf(part)`. Raises UserError if keys or parts are not supported."""
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
    """Return the fields of an observation space, with images as [planes, height, width]. Raises UserError if the space
    is not supported. title: the environment's name in errors.
    """

    def leaf(space: gym.Space) -> Field | None:
        if (layout := image_layout(space)) is not None:
            return Field(layout.shape, "uint8")
        if isinstance(space, gym.Box | gym.MultiDiscrete):
            return Field(tuple(space.shape), tree.stored_dtype(space.dtype, isinstance(space, gym.MultiDiscrete)))
        found = leaf_of(space)
        return None if found is None else found.field

    return _convert(space, title, "observation", leaf)


def classes(space: gym.Space) -> dict[str, int | tuple[int, ...]]:
    """Return {path: number of values} of each Discrete part, and {path: `nvec`} of each MultiDiscrete part. Networks
    read these parts as one-hot. A space without parts has the path "".
    """
    leaves = tree.leaves(_convert(space, "", "observation", leaf_of))
    many = {path: leaf for path, leaf in leaves if isinstance(leaf, Discrete | MultiDiscrete)}
    return {path: leaf.n if isinstance(leaf, Discrete) else leaf.nvec for path, leaf in many.items()}


def action(space: gym.Space, title: str) -> ActionSpec:
    """Describe the actions of a Gymnasium space. Raises UserError if the space is not supported."""

    def leaf(space: gym.Space) -> Leaf | None:
        if isinstance(space, gym.Box) and not np.issubdtype(space.dtype, np.floating):
            return None  # integers must be a MultiDiscrete
        if isinstance(space, gym.Box) and _is_narrow(space):
            flaw = f"float32, in which policies act, has fewer than {NUMBERS} numbers from low to high"
            cure = "declare -1 … 1 (gymnasium.wrappers.RescaleAction)"
            raise UserError(f"{title}: action space {one_line(space)}: {flaw}: {cure}")
        return leaf_of(space)

    return _convert(space, title, "action", leaf)


def _is_narrow(space: gym.Box) -> bool:
    """Tell whether float32 has fewer than NUMBERS values between the bounds of some element of a Box."""
    low, high = space.low.astype(float), space.high.astype(float)
    most = np.maximum(np.abs(low), np.abs(high))
    near = (low < high) & (most < np.finfo(np.float32).max)
    return bool((near & (NUMBERS * np.spacing(_rounded(most)).astype(float) > high - low)).any())


def fields(action: ActionSpec) -> Spec:
    """Return the fields (shape and dtype) of one lane's action arrays."""
    return tree.map(lambda leaf: leaf.field, action)


def describe_fields(spec: Spec) -> str:
    """Format fields in one line: `uint8 [4, 84, 84]` or `image: uint8 [3, 8, 8], goal: int64 []`."""
    parts = [(path, f"{field.dtype} {list(field.shape)}") for path, field in tree.leaves(spec)]
    return ", ".join(f"{path}: {text}" if path else text for path, text in parts)


def describe_actions(action: ActionSpec) -> str:
    """Format actions in one line: `3 discrete` or `pick: 3 discrete, aim: [2] real, within [-1, 1] (pick 0, 2)`."""
    when = {}
    if isinstance(action, Conditional):
        when = {name: f" ({action.first} {', '.join(map(str, values))})" for name, values in action.uses.items()}
    return ", ".join(f"{path}: {leaf}{when.get(path, '')}" if path else str(leaf) for path, leaf in tree.leaves(action))


# Declaration of actions with several parts, the first of which decides which other parts are used.
#
# `uses` maps a part to the values of the first part that use it: {"unit": (2, 3), "way": (1,)} with actions {"verb":
# Discrete(4), "unit": Discrete(5), "way": Discrete(9)}. The first part is the only one that is not a key of `uses`.


ATTRIBUTE = "action_uses"  # attribute of a Gymnasium environment whose actions are a Dict


def declared_uses(env: Any) -> Any:
    """Return the attribute `action_uses` of the outermost wrapper that has it, or of the environment, or None."""
    while not hasattr(env, ATTRIBUTE) and hasattr(env, "env"):
        env = env.env
    return getattr(env, ATTRIBUTE, None)


def conditional_actions(action: ActionSpec, uses: Mapping[str, Iterable[int]] | None, what: str) -> ActionSpec:
    """Make a Conditional of the actions, if `uses` is given. `what`: name of `uses` in errors. Raises UserError."""
    if uses is None:
        return action
    if not isinstance(action, dict) or any(isinstance(part, dict) for part in action.values()):
        seen = describe_actions(action)
        raise UserError(f"{what} given, the actions are {seen}; allowed with a Dict of parts that are no Dict or Tuple")
    first = [name for name in action if name not in uses] if isinstance(uses, Mapping) else []
    chosen = action[first[0]] if len(first) == 1 else None
    if not isinstance(chosen, Discrete) or len(uses) != len(action) - 1 or not uses:
        allowed = f"a dict of all of {', '.join(action)} but one, a Discrete that decides on the others"
        raise UserError(f"{what} is {uses!r}; allowed: {allowed}, with its values that use each")
    used = dict[str, tuple[int, ...]]()
    for name, given in uses.items():
        values = list(given) if isinstance(given, Iterable) else []
        if not values or not all(isinstance(v, Integral) and 0 <= int(v) < chosen.n for v in values):
            wrong = f"{what}: {name} is used by {given!r}"
            raise UserError(f"{wrong}; allowed: some of 0…{chosen.n - 1}, values of {first[0]}")
        used[name] = tuple(sorted({int(v) for v in values}))
    return Conditional(action, used)


# Uniformly random actions of any space, for ε-greedy evaluations and for checks of environments.


MOST = 1e6  # largest absolute value of a random real number


def action_width(space: ActionSpec) -> int:
    """Return how many uniform numbers random_actions needs. Raises UserError if real numbers have no bounds."""
    return sum(_width(leaf) for _, leaf in tree.leaves(space))


def _width(leaf: Leaf) -> int:
    if not isinstance(leaf, Box):
        return len(leaf.classes)
    if not (np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all()):
        raise UserError(f"--epsilon: actions of {leaf} have no uniform draw; allowed here: 0")
    return leaf.low.size


def random_actions(space: ActionSpec, uniforms: np.ndarray, mask: Tree | None = None) -> Tree:
    """Make actions [B, …] from uniform numbers [B, action_width] in (0, 1). All legal values are equally probable."""
    masks, made, at = {} if mask is None else dict(tree.leaves(mask)), dict[str, np.ndarray](), 0
    for path, leaf in tree.leaves(space):
        n, legal = _width(leaf), masks.get(path)
        if legal is not None and legal.ndim == 3:  # the mask depends on the value of the first part
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
    """Choose a legal value for each row of `legal`, bool [B, n], by random numbers `u` in (0, 1). Return int64 [B]."""
    place = (u * legal.sum(1)).astype(np.int64)
    return (legal.cumsum(1) > place[:, None]).argmax(1)


def action_sampler(space: ActionSpec, seed: int) -> Callable[..., Tree]:
    """Return a function draw(n, mask), which draws random legal actions for n lanes (parallel environments)."""
    rng, bounded = np.random.default_rng(seed), tree.map(_bounded, space)
    bounded = Conditional(bounded, space.uses) if isinstance(space, Conditional) else bounded
    width = action_width(bounded)

    def draw(n: int, mask: Tree | None = None) -> Tree:
        return random_actions(bounded, rng.random((n, width)), mask)

    return draw


def _bounded(leaf: Leaf) -> Leaf:
    """Give finite bounds to the numbers of a Box that have none."""
    if not isinstance(leaf, Box):
        return leaf
    low = np.where(np.isfinite(leaf.low), leaf.low, np.minimum(leaf.high, 0) - 1)
    high = np.where(np.isfinite(leaf.high), leaf.high, np.maximum(low, 0) + 1)
    return Box(leaf.shape, np.maximum(low, -MOST), np.minimum(high, MOST))


def mix_random(own: Tree, other: Tree, which: np.ndarray) -> Tree:
    """Return the actions `other` in lanes where `which`, bool [B], is true, and `own` in all other lanes."""

    def leaf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(which.reshape(-1, *[1] * (a.ndim - 1)), b, a).astype(a.dtype)

    return tree.map(leaf, own, other)


# Ranges of real actions, to convert a policy's −1 … 1 to an environment's units.


NO_BOUND = 1e30  # larger bounds count as missing: some environments declare numbers near the largest float
SEEN = 3.0  # nearly all outputs of a new policy (mean 0, deviation 1) have a smaller absolute value


@dataclass(frozen=True, eq=False)
class ActionRange:
    """Range of a Box, from middle - half to middle + half, both float32 [*shape]. Without bounds, it is -1 to 1."""

    middle: np.ndarray
    half: np.ndarray
    bounded: np.ndarray  # bool [*shape]: whether both bounds exist

    @classmethod
    def of(cls, box: Box) -> ActionRange:
        bounded = np.maximum(np.abs(box.low), np.abs(box.high)) < NO_BOUND
        low, high = np.where(bounded, box.low, -1.0), np.where(bounded, box.high, 1.0)
        return cls((low / 2 + high / 2).astype(np.float32), (high / 2 - low / 2).astype(np.float32), bounded)

    @property
    def unit(self) -> bool:
        """Whether the range of every number is -1 to 1."""
        return bool((self.middle == 0).all() and (self.half == 1).all())

    @property
    def far(self) -> bool:
        """Whether the outputs of a new policy (mean 0, standard deviation 1) hardly fit the bounds of some number: the
        bounds are far from 0, very close together, or very far apart.
        """
        beyond = np.abs(self.middle) - self.half > SEEN
        return bool((beyond | (self.half < 0.02 * SEEN) | (self.half > 10 * SEEN))[self.bounded].any())


def describe_scaling(action: ActionSpec, scaled: bool) -> str:
    """Describe how a policy's outputs for real numbers are scaled or clipped, or "" if there are no real numbers."""
    parts = {path: leaf for path, leaf in tree.leaves(action) if isinstance(leaf, Box)}
    found = [f"{path}: {text}" if path else text for path, leaf in parts.items() if (text := _scaling(leaf, scaled))]
    return "; ".join(found)


def _scaling(box: Box, scaled: bool) -> str:
    known, ends = ActionRange.of(box), f"[{box.low.min(initial=np.inf):g}, {box.high.max(initial=-np.inf):g}]"
    if not known.bounded.any():
        return "without bounds: a policy's numbers, at first of mean 0 and deviation 1, are taken as they are"
    if scaled and not known.unit:
        return f"a policy's −1 … 1 is scaled to {ends}"
    flaw = ", of which a new policy reaches next to nothing: give --actions scale" if known.far else ""
    return f"a policy's numbers are clipped to {ends}{flaw}"
