"""What an environment shows and takes, as Polyplay describes it, and the way there from Gymnasium's spaces.

A further kind of space (MultiDiscrete, Tuple, …) is one line in `FIELDS` and its writer, or one in `ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay import tree
from polyplay.errors import UserError
from polyplay.tree import Field, Spec


@dataclass(frozen=True)
class Discrete:
    """Actions 0 … n-1: int64 [B]. (An environment's own `start` is added by its pool.)"""

    n: int

    def __str__(self) -> str:
        return f"{self.n} discrete"


@dataclass(frozen=True, eq=False)
class Box:
    """Real vectors: float32 [B, *shape]; policies may send any number, pools clip to [low, high]
    (float32 [*shape]).
    """

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.shape == other.shape
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.low.tobytes(), self.high.tobytes()))

    def __str__(self) -> str:
        low, high = float(self.low.min(initial=np.inf)), float(self.high.max(initial=-np.inf))
        return f"{list(self.shape)} real, within [{low:g}, {high:g}]"


ActionSpec = Discrete | Box


class Breach(Exception):
    """An environment broke a rule of `envs/rules`; the message says declared and given, on one line."""

    def __init__(self, text: str, rule: str = "spaces"):
        super().__init__(text)
        self.rule = rule


# --------------------------------------------------------------------------------- from Gymnasium


def _dict_field(space: gym.Dict, title: str) -> Spec:
    for key in space.spaces:
        if not isinstance(key, str) or "/" in key or not key:
            raise UserError(f"{title}: observation key {key!r} is not a name; keys must be strings without '/'")
    return {key: observation(inner, title) for key, inner in space.spaces.items()}


FIELDS: dict[type, Callable[[Any, str], Spec]] = {
    gym.Box: lambda space, title: Field(tuple(space.shape), np.dtype(space.dtype).name),
    gym.Discrete: lambda space, title: Field((), "int64"),
    gym.Dict: _dict_field,
}


def observation(space: Any, title: str) -> Spec:
    """Fields of an observation space. `title` names the environment in errors.

    Raises UserError: a space that is not supported.
    """
    for kind, convert in FIELDS.items():
        if isinstance(space, kind):
            return convert(space, title)
    raise UserError(
        f"{title}: observation space {space} is not supported; supported are Box, Discrete and Dict of "
        "these: wrap the environment (gymnasium.wrappers.FlattenObservation, TransformObservation)"
    )


def classes(space: Any, path: str = "") -> dict[str, int]:
    """Number of values of every Discrete leaf, by path ("" for a bare observation); for the net's one-hot."""
    if isinstance(space, gym.Discrete):
        return {path: int(space.n)}
    if isinstance(space, gym.Dict):
        inner = [classes(s, f"{path}/{k}" if path else k) for k, s in space.spaces.items()]
        return {k: n for found in inner for k, n in found.items()}
    return {}


def _box_action(space: gym.Box, title: str) -> Box:
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(f"{title}: action space {space} has whole numbers; supported are Discrete and floating Box")
    return Box(tuple(space.shape), np.asarray(space.low, np.float32), np.asarray(space.high, np.float32))


ACTIONS: dict[type, Callable[[Any, str], ActionSpec]] = {
    gym.Discrete: lambda space, title: Discrete(int(space.n)),
    gym.Box: _box_action,
}


def action(space: Any, title: str) -> ActionSpec:
    """The action description of a Gymnasium space. Raises UserError: a space that is not supported."""
    for kind, convert in ACTIONS.items():
        if isinstance(space, kind):
            return convert(space, title)
    raise UserError(
        f"{title}: action space {space} is not supported; supported are Discrete and floating Box: "
        "wrap the environment (gymnasium.wrappers.TransformAction)"
    )


def show(spec: Spec) -> str:
    """One line for people: `uint8 [4, 84, 84]` or `image: uint8 [3, 8, 8], goal: int64 []`."""
    parts = [(path, f"{field.dtype} {list(field.shape)}") for path, field in tree.leaves(spec)]
    return ", ".join(f"{path}: {text}" if path else text for path, text in parts)


# --------------------------------------------------------------------------------------- per step


def check_action(space: ActionSpec, action: Any, lanes: int) -> np.ndarray:
    """`action` as an array of `lanes` actions: int64 [lanes] in 0 … n-1, or float32 [lanes, *shape].

    Raises ValueError: wrong shape, kind or range (a policy's mistake, never an environment's).
    """
    array = np.asarray(action)
    if isinstance(space, Discrete):
        if array.shape != (lanes,) or array.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers [{lanes}], got {array.dtype} {list(array.shape)}")
        array = array.astype(np.int64, copy=False)
        if lanes and array.view(np.uint64).max() >= space.n:  # a negative number is a huge one there
            raise ValueError(f"actions must lie in 0…{space.n - 1}, got {array.min()}…{array.max()}")
        return array
    if array.shape != (lanes, *space.shape) or array.dtype.kind != "f":
        want = [lanes, *space.shape]
        raise ValueError(f"actions must be floats {want}, got {array.dtype} {list(array.shape)}")
    return array.astype(np.float32, copy=False)


def actor(space: Any) -> Callable[[np.ndarray], Any]:
    """From a row of the action array to what the environment's own `step` takes."""
    if isinstance(space, gym.Discrete):
        return lambda a: a + space.start
    low, high, dtype = space.low, space.high, space.dtype
    return lambda a: np.clip(a, low, high).astype(dtype)


def writer(space: Any, into: tree.Tree, lane: int, path: str = "") -> Callable[[Any], None]:
    """A function that checks an observation against `space` and writes it in place into `into[lane]`.

    It raises Breach where shape, type or keys are not the declared ones.
    """
    if isinstance(space, gym.Dict):
        inner = {k: writer(s, into[k], lane, f"{path}/{k}" if path else k) for k, s in space.spaces.items()}
        return lambda obs: _write_dict(inner, obs, path)
    row = into[lane, ...]
    if isinstance(space, gym.Discrete):
        return lambda obs: _write_discrete(space, row, obs, path)
    return _box_writer(space, row, path)


def _where(path: str) -> str:
    return f"at {path!r} " if path else ""


def _write_dict(inner: dict[str, Callable], obs: Any, path: str) -> None:
    if not isinstance(obs, Mapping) or not inner.keys() <= obs.keys():
        given = f"keys {list(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
        raise Breach(f"{_where(path)}declared keys {list(inner)}, given {given}", "keys")
    for key, write in inner.items():
        write(obs[key])


def _write_discrete(space: gym.Discrete, row: np.ndarray, obs: Any, path: str) -> None:
    array = np.asarray(obs)
    if array.shape != () or array.dtype.kind not in "iu":
        rule = "shape" if array.shape else "dtype"
        raise Breach(f"{_where(path)}declared {space}, given {array.dtype} {list(array.shape)}", rule)
    if not 0 <= (value := int(array) - int(space.start)) < space.n:
        raise Breach(f"{_where(path)}declared {space}, given {array}", "bounds")
    row[...] = value


def _box_writer(space: gym.Box, row: np.ndarray, path: str) -> Callable[[Any], None]:
    shape, dtype = space.shape, space.dtype
    floating = np.issubdtype(dtype, np.floating)

    def write(obs: Any) -> None:
        if type(obs) is not np.ndarray:
            obs = _as_array(obs, dtype)
        if obs.shape != shape or (obs.dtype != dtype and not np.can_cast(obs.dtype, dtype)):
            given = f"{obs.dtype} {list(obs.shape)}"
            rule = "shape" if obs.shape != shape else "dtype"
            raise Breach(f"{_where(path)}declared {dtype} {list(shape)}, given {given}", rule)
        if floating and not np.isfinite(obs).all():
            raise Breach(f"{_where(path)}{_infinite(obs)}", "finite")
        row[...] = obs

    return write


def _infinite(obs: np.ndarray) -> str:
    bad = np.argwhere(~np.isfinite(obs))
    return f"{obs[tuple(bad[0])]} at {bad[0].tolist()} of an observation, {len(bad)} of {obs.size} values not finite"


def _as_array(obs: Any, dtype: Any) -> np.ndarray:
    """Lists and Python numbers have no dtype of their own: they take the declared one, as in Gymnasium."""
    try:
        return np.asarray(obs, dtype if isinstance(obs, list | tuple | bool | int | float) else None)
    except (TypeError, ValueError):
        raise Breach(f"declared {dtype}, given {type(obs).__name__} that is no array", "shape") from None
