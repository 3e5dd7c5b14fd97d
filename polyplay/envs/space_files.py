"""Gymnasium's spaces as JSON and back, so that a trained policy can act where its environment is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.tree import Field
from polyplay.envs import spaces
from polyplay.envs.conditional_actions import conditional_actions
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Conditional, Discrete, MultiBinary, MultiDiscrete, subspaces

FILE = "spaces.json"  # in a run's directory


def space_to_json(space: gym.Space) -> Row:
    """A space of the kinds that are supported, or of a kind derived from one; its seed is left out."""
    if (inner := subspaces(space)) is not None:
        return {"kind": "Tuple" if isinstance(space, gym.Tuple) else "Dict", "parts": [*map(_part, inner.items())]}
    if isinstance(space, gym.Box):
        ends = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **ends}
    if isinstance(space, gym.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gym.MultiDiscrete):
        found = {"nvec": space.nvec.tolist(), "start": np.broadcast_to(space.start, space.nvec.shape).tolist()}
        return {"kind": "MultiDiscrete", **found, "dtype": str(space.dtype)}
    assert isinstance(space, gym.MultiBinary)
    return {"kind": "MultiBinary", "shape": list(space.shape)}


def _part(item: tuple[str, gym.Space]) -> Row:
    return {"key": item[0], "space": space_to_json(item[1])}


def _numbers(ends: np.ndarray) -> Any:
    """One number where all are the same, else all; text, because JSON knows no infinity."""
    flat, read = ends.ravel(), _reader(ends.dtype)
    return repr(read(flat[0])) if flat.size and (flat == flat[0]).all() else [repr(read(x)) for x in flat]


def _reader(dtype: np.dtype) -> Callable[[Any], int | float]:
    """What makes a plain number of one of this type, or of its text: whole ones may have more digits than a float."""
    return float if dtype.kind == "f" else int


def space_from_json(given: Row) -> gym.Space:
    """The inverse of `space_to_json`. Raises KeyError, TypeError or ValueError: it is damaged."""
    kind = given["kind"]
    if kind in ("Tuple", "Dict"):
        parts = {part["key"]: space_from_json(part["space"]) for part in given["parts"]}
        return gym.Tuple(list(parts.values())) if kind == "Tuple" else gym.Dict([*parts.items()])  # in this order
    if kind == "Box":
        shape, dtype = tuple(given["shape"]), np.dtype(given["dtype"])
        low, high = (_array(given[end], shape, dtype) for end in ("low", "high"))
        return gym.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return gym.Discrete(given["n"], start=given["start"], dtype=np.dtype(given["dtype"]).type)
    if kind == "MultiDiscrete":
        return gym.MultiDiscrete(given["nvec"], dtype=np.dtype(given["dtype"]).type, start=given["start"])
    if kind == "MultiBinary":
        return gym.MultiBinary(given["shape"])
    raise ValueError(f"kind {kind!r}")


def _array(ends: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    read = _reader(dtype)
    if isinstance(ends, str):
        return np.full(shape, read(ends), dtype)
    return np.array([read(x) for x in ends], dtype).reshape(shape)


def of_spec(spec: EnvSpec) -> tuple[gym.Space, gym.Space]:
    """The spaces of observations and actions that an environment declared, or that fit its description."""
    if spec.spaces is not None:
        return space_from_json(spec.spaces["observation"]), space_from_json(spec.spaces["action"])
    return _seen(spec), tree_space(tree.map(_acted, spec.action))


def byte_bounds(spec: EnvSpec) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The lowest and the highest number that every part of observations that is a Box of bytes was declared with, by
    path; 0 and 255 where nothing was declared.
    """
    fields = {path: f for path, f in tree.leaves(spec.obs) if f.dtype == "uint8" and path not in spec.classes}
    if not fields:
        return {}
    declared = {path: s for path, s in _parts_of(of_spec(spec)[0]) if isinstance(s, gym.Box)}
    fits = {path: path in declared and declared[path].shape == fields[path].shape for path in fields}
    found = {path: declared[path] if fits[path] else gym.Box(0, 255, f.shape, np.uint8) for path, f in fields.items()}
    return {path: (space.low, space.high) for path, space in found.items()}


def network_view(spec: EnvSpec) -> tuple[list[Any], list[Any]]:
    """What networks are made for: the parts of observations in their order, with their classes and the bounds of bytes;
    those of actions.
    """
    bounds = {path: tuple(end.tobytes() for end in ends) for path, ends in byte_bounds(spec).items()}
    seen = [(path, field, spec.classes.get(path), bounds.get(path)) for path, field in tree.leaves(spec.obs)]
    return seen, list(tree.leaves(spec.action))


def describe_views(spec: EnvSpec, other: EnvSpec) -> tuple[tuple[str, str], tuple[str, str]]:
    """Texts that tell the observations and the actions of two descriptions apart, where they differ."""
    shown = [spaces.describe_fields(s.obs) for s in (spec, other)]
    taken = [spaces.describe_actions(s.action) for s in (spec, other)]
    if len({*shown}) == 1:
        shown = [spaces.one_line(of_spec(s)[0]) for s in (spec, other)]
    return (shown[0], shown[1]), (taken[0], taken[1])


def _parts_of(space: gym.Space, path: str = "") -> Iterator[tuple[str, gym.Space]]:
    """The spaces that it is made of, by path."""
    inner = subspaces(space)
    if inner is None:
        yield path, space
    for key, part in (inner or {}).items():
        yield from _parts_of(part, spaces.inner_path(path, key))


def _seen(spec: EnvSpec) -> gym.Space:
    made = {path: _observed(field, spec.classes.get(path, 0)) for path, field in tree.leaves(spec.obs)}
    return tree_space(tree.nest(made))


def _observed(field: Field, classes: int | tuple[int, ...]) -> gym.Space:
    if isinstance(classes, tuple):
        return gym.MultiDiscrete(np.array(classes).reshape(field.shape))
    if classes:
        return gym.Discrete(classes)
    dtype = np.dtype(field.dtype)
    low, high = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gym.Box(low, high, field.shape, dtype.type)


def _acted(leaf: spaces.Leaf) -> gym.Space:
    if isinstance(leaf, Discrete):
        return gym.Discrete(leaf.n)
    if isinstance(leaf, MultiDiscrete):
        return gym.MultiDiscrete(np.array(leaf.nvec).reshape(leaf.shape))
    if isinstance(leaf, MultiBinary):
        return gym.MultiBinary(leaf.shape)
    assert isinstance(leaf, Box)
    return gym.Box(leaf.low, leaf.high, leaf.shape, np.float32)


def tree_space(parts: Any) -> gym.Space:
    """A Dict of dicts of spaces, or the space itself."""
    return gym.Dict([(k, tree_space(v)) for k, v in parts.items()]) if isinstance(parts, dict) else parts


# of an environment with several players; files of earlier versions lack it, and are read as of one player
_PLAYERS: Mapping[str, Callable[[Any], Any]] = {
    **{"seats": int, "teams": tuple, "kinds": tuple, "events": tuple, "team_reward": bool, "bots": dict}
}


def spec_to_json(spec: EnvSpec) -> Row:
    """What a network needs to know of an environment, and what its observations and actions look like outside."""
    seen, acted = of_spec(spec)
    mask = None if spec.mask is None else {path: list(field.shape) for path, field in tree.leaves(spec.mask)}
    about = {"frames_per_step": spec.frames_per_step, "describe": dict(spec.describe), "mask": mask}
    about |= {name: kind(getattr(spec, name)) for name, kind in _PLAYERS.items()}
    about |= {"uses": spec.action.uses} if isinstance(spec.action, Conditional) else {}
    return {"schema": 1, "observation": space_to_json(seen), "action": space_to_json(acted), **about}


def spec_from_json(given: Row, title: str) -> EnvSpec:
    """The inverse. Raises UserError: it is damaged, or of another version."""
    try:
        if given["schema"] != 1:
            raise ValueError(f"schema {given['schema']!r}, this version reads 1")
        both = {key: given[key] for key in ("observation", "action")}
        seen, acted = (space_from_json(part) for part in both.values())
        flat = None if given["mask"] is None else {k: Field(tuple(v), "bool") for k, v in given["mask"].items()}
        mask = None if flat is None else tree.nest(flat)
        obs, action = spaces.observation(seen, title), spaces.action(acted, title)
        action = conditional_actions(action, given.get("uses"), f"{title}: uses")
        frames, text = int(given["frames_per_step"]), dict(given["describe"])
        players = {name: kind(given[name]) for name, kind in _PLAYERS.items() if name in given}
    except UserError:
        raise
    except Exception as e:  # whatever Gymnasium makes of it
        raise UserError(f"{title} is damaged: {type(e).__name__}: {e}; put back a copy of it") from None
    return EnvSpec(obs, action, frames, text, spaces.classes(seen), mask, spaces=both, **players)
