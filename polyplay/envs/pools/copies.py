"""Every lane has an environment of its own: a function that returns the same one twice is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from polyplay.common.errors import UserError
from polyplay.envs import rules

QUICK = 1.0  # seconds: what takes longer is not built a second time only to look at it
INNER = ("env", "aec_env", "par_env", "unwrapped")  # where wrappers have what they wrap

_taken: dict[int, tuple[Any, object]] = {}  # by its id: a part of an environment of this process, and whose it is


def wrapped_parts(env: Any) -> list[Any]:
    """An environment and all that it wraps or has as an attribute and steps, the outermost first."""
    found = [env]
    for part in found:
        inner = [getattr(part, name, None) for name in INNER] + list(getattr(part, "envs", None) or ())
        inner = [other for other in inner if callable(getattr(other, "step", None))]
        for other in [*inner, *filter(_is_stepped, getattr(part, "__dict__", {}).values())]:
            if all(other is not known for known in found):
                found.append(other)
    return found


def _is_stepped(part: Any) -> bool:
    """Whether it has a step() of its own, as environments and simulators do."""
    return not isinstance(part, type | ModuleType) and callable(getattr(type(part), "step", None))


def take(env: Any, owner: object, title: str) -> None:
    """From now on it is this owner's. Raises UserError: it, or what it wraps, is another's."""
    parts = wrapped_parts(env)
    for part in parts:
        if id(part) in _taken and _taken[id(part)][1] is not owner:
            raise twice(title, part)
    _taken.update((id(part), (part, owner)) for part in parts)


def give_back(owner: object) -> None:
    for key in [key for key, (_, whose) in list(_taken.items()) if whose is owner]:
        _taken.pop(key, None)


def check_second(build: Callable[[], Any], first: Any, title: str) -> None:
    """Raises UserError: a second call gives what the first gave, which is closed. One that fails is no fault here."""
    try:
        second = build()
    except UserError:  # there can be one at a time, perhaps
        return
    known = wrapped_parts(first)
    twin = [part for part in wrapped_parts(second) if any(part is other for other in known)]
    with contextlib.suppress(Exception, SystemExit):
        second.close()
    if twin:
        raise twice(title, twin[0])


def twice(title: str, part: Any) -> UserError:
    """The message about what two environments have in common."""
    name = type(getattr(part, "unwrapped", part)).__name__
    why = f"returned the same environment twice ({name}), but every lane needs its own"
    return UserError(f"{title}: the function {why}: build it inside the function {rules.rule_suffix('copies')}")
