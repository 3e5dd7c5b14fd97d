"""What an environment shows, as an array of the declared type, or why it is none."""

from __future__ import annotations

from typing import Literal

import numpy as np

Casting = Literal["safe", "same_kind"]


class SpaceViolation(Exception):
    """An environment broke a rule of `envs/rules`; the message says declared and given, on one line."""

    def __init__(self, text: str, rule: str = "spaces"):
        super().__init__(text)
        self.rule = rule


def place_of(path: str) -> str:
    """The place of a part, as messages begin with it."""
    return f"at {path!r} " if path else ""


def check_array(obs: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, path: str, casting: Casting = "safe") -> None:
    """Raises SpaceViolation: another shape, or a type that does not fit into `dtype`."""
    if obs.shape != shape or (obs.dtype != dtype and not np.can_cast(obs.dtype, dtype, casting)):
        rule = "shape" if obs.shape != shape else "dtype"
        given = f"{obs.dtype} {list(obs.shape)}"
        raise SpaceViolation(f"{place_of(path)}declared {dtype} {list(shape)}, given {given}", rule)


def infinite(obs: np.ndarray) -> str:
    bad = np.argwhere(~np.isfinite(obs))
    return f"{obs[tuple(bad[0])]} at {bad[0].tolist()} of an observation, {len(bad)} of {obs.size} values not finite"


def as_array(obs: object, dtype: np.dtype | None, declared: object, path: str) -> np.ndarray:
    """Lists and Python numbers have no dtype of their own: they take the declared one, if that holds their numbers.
    Raises SpaceViolation.
    """
    own = isinstance(obs, list | tuple | bool | int | float)
    try:
        array = np.asarray(obs, dtype if own else None)
        if not own or dtype is None or dtype.kind not in "biu" or np.array_equal(array, np.asarray(obs)):
            return array
        raise OverflowError
    except OverflowError:
        rule, given = "dtype", f"{' '.join(str(obs).split())[:80]}, which it can't hold"
    except (TypeError, ValueError):
        rule, given = "shape", f"{type(obs).__name__} that is no array"
    raise SpaceViolation(f"{place_of(path)}declared {declared}, given {given}", rule)
