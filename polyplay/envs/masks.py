"""Convert an environment's masks of legal actions (`action_mask`) to bool arrays with one shape for every lane.

A mask may be given under the key `action_mask` of a Dict observation, which networks do not see, or of `info` in each
reset and step. It may also come from the method action_masks() of the environment or of a wrapper, as in sb3-contrib.
For each kind of action, the mask may have these forms, where 1 means legal:

    Discrete(n)          [n]
    MultiDiscrete(nvec)  a tuple with an array [n] per number (nested as nvec is), or one array [sum(nvec)]
    MultiBinary(shape)   [*shape] of 0 (only 0 is legal), 1 (only 1) or 2 (both), or one array [2 · bits]: for each bit,
                         whether 0 is legal and whether 1 is legal
    Box                  None: a Box has no mask
    Tuple, Dict          a tuple or dict of the masks of its parts; None or a missing key for parts without a mask
    Conditional          a dict of the masks of its parts; for a part that only some values of the first part use,
                         one array, or [values, …] with an array for each value of the first part

Gymnasium's `space.sample(mask)` takes the form that is named first. In a row (the data of one step), a mask is a bool
array [number of all values], or [values of the first part, number of all values]. Composite actions have a dict of
these arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import ArrayLike

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec, Tree
from polyplay.envs import spaces
from polyplay.envs.spaces import ActionSpec, Conditional, Leaf, MultiBinary, MultiDiscrete, SpaceViolation

KEY = "action_mask"
METHOD = "action_masks"
MaskWriter = Callable[[object, object, bool], None]  # takes (observation, info, whether the row is an episode's last)


def whole_mask(action: ActionSpec, only_first: bool) -> Tree:
    """Return a mask that allows every action, or None if actions have no mask. `only_first`: allow only value 0."""
    if isinstance(action, dict):
        inner = {k: whole_mask(part, only_first) for k, part in action.items()}
        return {k: mask for k, mask in inner.items() if mask is not None} or None
    first = [np.arange(n) == 0 for n in action.classes]
    return (np.concatenate(first) | (not only_first)) if first else None


# ------------------------------------------------------------------------------------- declaration


def without_mask(space: gym.Space) -> gym.Space:
    """Return the observation space that networks see, which is `space` without its mask."""
    if not (isinstance(space, gym.Dict) and KEY in space.spaces):
        return space
    return gym.Dict({k: s for k, s in space.spaces.items() if k != KEY})


def declared_mask(action: ActionSpec, space: gym.Space, title: str) -> Spec | None:
    """Return the fields (shape, dtype) of the mask in the observation, or None. Raises UserError if it does not fit."""
    if not isinstance(space, gym.Dict) or KEY not in space.spaces:
        return None
    return mask_spec(action, _zeros(space.spaces[KEY]), f"{title}: the observation's")


def shown_mask(action: ActionSpec, env: gymnasium.Env, title: str) -> tuple[Spec | None, str]:
    """Reset `env`, and look for a mask in info, else in action_masks(). Return the fields (shape and dtype) of the
    mask, and its source. The fields are None if no mask is found or the reset fails. Raises UserError if action_masks()
    raises an exception, or if the mask does not fit the actions.
    """
    source = "info"
    try:
        _, info = env.reset(seed=0)
        given = info.get(KEY) if isinstance(info, Mapping) else None
    except (Exception, SystemExit):
        return None, ""
    if given is None and (method := mask_method(env)) is not None:
        source = f"{METHOD}()"
        try:
            given = method()
        except Exception as e:
            why = f"raised {type(e).__name__}: {' '.join(str(e).split())}"
            raise UserError(f"{title}: {source} {why}: repair it, or give it another name") from None
    return mask_spec(action, given, f"{title}: {source}'s"), f"from {source}"


def mask_method(env: Any) -> Callable[[], Tree] | None:
    """Return the method action_masks of an environment or of its wrappers, or None if there is none."""
    try:
        found = env.get_wrapper_attr(METHOD)
    except AttributeError:  # objects that are not a gymnasium.Env lack get_wrapper_attr
        found = getattr(env, METHOD, None)
    return found if callable(found) else None


def mask_spec(action: ActionSpec, given: Tree, title: str) -> Spec | None:
    """Return the fields (shape and dtype) of the mask `given`, or None. Raises UserError if it does not fit."""
    path, leaf, found, values = "", action, {}, _conditions(action)
    try:
        for path, (leaf, part) in _parts(action, given).items():
            if part is not None:
                found[path] = Field(_flat(leaf, part, values.get(path, 0)).shape, "bool")
    except SpaceViolation as e:
        what = f"{KEY} {spaces.place_of(path)}does not fit the actions, {spaces.describe_actions(leaf)}"
        raise UserError(f"{title} {what}: {e}; change its form, or rename it") from None
    return tree.nest(found) or None


def _zeros(space: gym.Space) -> Tree:
    inner = {k: _zeros(s) for k, s in (spaces.subspaces(space) or {}).items()}
    if isinstance(space, gym.Tuple):
        return tuple(inner.values())
    return inner or np.zeros(space.shape or (), np.int8)


# --------------------------------------------------------------------------------------- per step


def mask_writer(
    action: ActionSpec, into: Tree | None, lane: int, inside: bool, method: Callable[[], Tree] | None = None
) -> MaskWriter:
    """Return a function that writes a lane's mask into `into[lane]`.

    `inside`: whether the mask is in the observation, not in info.
    `method`: called if info has no mask.
    The function raises SpaceViolation if the mask is missing, has another form, or allows no action. In the last row of
    an episode, a mask may be missing or allow no action. All actions are then legal.
    """
    rows = {} if into is None else {path: row[lane] for path, row in tree.leaves(into)}
    values = {path: n for path, n in _conditions(action).items() if path in rows}

    def write(obs: object, info: object, last: bool) -> None:
        source = obs if inside else info
        given = source.get(KEY) if isinstance(source, Mapping) else None
        if given is None and not rows:
            return
        if given is None and method is not None and not last:
            given = method()
        path = ""
        try:
            for path, (leaf, part) in _parts(action, given).items():
                _write(leaf, rows.get(path), part, last, values.get(path, 0))
            for path in values:
                _check_used(action, path, rows, last)  # type: ignore[arg-type]
        except SpaceViolation as e:
            raise SpaceViolation(f"{KEY}{f' at {path!r}' if path else ''}: {e}", "mask") from None

    return write


def _conditions(action: ActionSpec) -> dict[str, int]:
    return dict.fromkeys(action.uses, action[action.first].n) if isinstance(action, Conditional) else {}


def _write(action: Leaf, row: np.ndarray | None, given: ArrayLike | None, last: bool, values: int) -> None:
    if row is None and given is not None:
        rule = "every reset and step must return it"
        raise SpaceViolation(f"present now, but missing after the first reset; {rule}")
    if row is None:
        return
    if given is None and not last:
        raise SpaceViolation("missing now, but present at first; every row but an episode's last needs it")
    found = np.True_ if given is None else _flat(action, given, values) if values else read_mask(action, given, last)
    if np.ndim(found) > row.ndim:
        raise SpaceViolation(f"declared {list(row.shape)} at first, given {list(np.shape(found))}")
    row[...] = found


def _check_used(action: Conditional, path: str, rows: Mapping[str, np.ndarray], last: bool) -> None:
    row, sizes = rows[path], np.array(action[path].classes)
    some = np.logical_or.reduceat(row, np.cumsum(sizes) - sizes, axis=-1)
    lacking = action.used(path) & rows.get(action.first, np.True_) & ~some.all(-1)
    if lacking.any():
        if not last:
            value = f"{action.first} {int(np.argmax(lacking))}"
            raise SpaceViolation(f"no value is legal for {value}, which is legal and uses this part")
        row |= np.repeat(~some, sizes, axis=-1)


def read_mask(action: Leaf, given: ArrayLike, last: bool = False) -> np.ndarray:
    """Convert a mask to bool [number of all values]. Raises SpaceViolation if its shape or values are wrong, or if all
    values of a number are illegal. If `last`, these values become legal instead.
    """
    row = _flat(action, given)
    sizes = np.array(action.classes)
    some = np.logical_or.reduceat(row, np.cumsum(sizes) - sizes)
    if not some.all():
        if not last:
            number = f" for number {int(np.argmin(some))}" if len(sizes) > 1 else ""
            raise SpaceViolation(f"no action is legal{number}")
        row = row | np.repeat(~some, sizes)
    return row


def _flat(action: Leaf, given: ArrayLike, values: int = 0) -> np.ndarray:
    """Convert a mask to a bool array. Raises SpaceViolation."""
    if not action.classes:
        raise SpaceViolation("a Box has no mask")
    total = sum(action.classes)
    want = f"{'a tuple of arrays, or ' * isinstance(action, MultiDiscrete)}[{total}]"
    if isinstance(action, MultiBinary):
        want = f"{list(action.shape)} of 0, 1 and 2, or {want}"
    want += f"; or {[values, total]}, one for each value of the first part" if values else ""
    try:
        array = _joined(action, given) if isinstance(action, MultiDiscrete) else np.asarray(given)
    except (TypeError, ValueError):
        raise SpaceViolation(f"given {type(given).__name__} that is not an array") from None
    either = isinstance(action, MultiBinary) and array.shape == action.shape
    if not either and array.shape not in ((total,), (values or -1, total)):
        raise SpaceViolation(f"declared {want}, given {list(array.shape)}")
    numbers = (0, 1, 2) if either else (0, 1)
    if array.dtype.kind != "b" and (array.dtype.kind not in "iuf" or not np.isin(array, numbers).all()):
        raise SpaceViolation(f"declared {want} of 0 and 1, given {' '.join(str(array).split())}")
    return np.stack([array != 1, array != 0], -1).reshape(-1) if either else array.astype(bool)


def _joined(action: MultiDiscrete, given: Any) -> np.ndarray:
    """Join a mask whose arrays are nested like `nvec` into one array. Convert any other mask to an array as it is."""
    pieces = [given]
    for _ in action.shape:
        pieces = [inner for piece in pieces if np.iterable(piece) for inner in piece]
    if [np.shape(piece) for piece in pieces] == [(n,) for n in action.nvec]:
        return np.concatenate(pieces)
    return np.asarray(given)


def _parts(action: ActionSpec, given: Tree, path: str = "") -> dict[str, tuple[Leaf, Tree]]:
    """Return the part of the mask for each part of the actions. Raises SpaceViolation if the mask's form is wrong."""
    if not isinstance(action, dict):
        return {path: (action, given)}
    if isinstance(given, tuple | list) and list(action) == [str(i) for i in range(len(given))]:
        given = dict(zip(action, given, strict=True))
    if not isinstance(given, Mapping | None):
        want = f"one part for each of {', '.join(action)}"
        raise SpaceViolation(f"{spaces.place_of(path)}declared {want}, given {type(given).__name__}")
    given = given or {}
    if not given.keys() <= action.keys():
        raise SpaceViolation(f"{spaces.place_of(path)}declared parts {', '.join(action)}, given keys {list(given)}")
    inner = [_parts(a, given.get(k), spaces.inner_path(path, k)) for k, a in action.items()]
    return {p: part for found in inner for p, part in found.items()}
