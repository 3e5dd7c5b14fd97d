"""Actions of several parts of which the first decides which others count: how an environment declares that.

`uses` has by part the values of the first that use it: {"unit": (2, 3), "way": (1,)} beside actions of {"verb":
Discrete(4), "unit": Discrete(5), "way": Discrete(9)}. The first part is the one that `uses` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from polyplay.common.errors import UserError
from polyplay.envs.spaces import ActionSpec, Conditional, Discrete, describe_actions

ATTRIBUTE = "action_uses"  # of a Gymnasium environment whose actions are a Dict


def declared_uses(env: Any) -> Any:
    """What an environment, or the outermost wrapper that has the attribute, declares; None: nothing."""
    while not hasattr(env, ATTRIBUTE) and hasattr(env, "env"):
        env = env.env
    return getattr(env, ATTRIBUTE, None)


def conditional_actions(action: ActionSpec, uses: Mapping[str, Iterable[int]] | None, what: str) -> ActionSpec:
    """`action` with what `uses` says of it; `what` it is called in errors. Raises UserError."""
    if uses is None:
        return action
    if not isinstance(action, dict) or any(isinstance(part, dict) for part in action.values()):
        seen = describe_actions(action)
        raise UserError(f"{what} given, the actions are {seen}; allowed with a Dict of parts that are no Dict or Tuple")
    if not isinstance(uses, Mapping):
        raise UserError(f"{what} is {uses!r}; allowed: a dict, by part the values of the first part that use it")
    if unknown := [name for name in uses if name not in action]:
        raise UserError(f"{what}: {unknown[0]!r} is no part of the actions; allowed: {', '.join(action)}")
    first = [name for name in action if name not in uses]
    if len(first) != 1 or len(action) == 1:
        left = ", ".join(first) or "none"
        raise UserError(f"{what} leaves out {left}; it must leave out one part, which decides on all that it names")
    if not isinstance(action[first[0]], Discrete):
        raise UserError(f"{what}: the part that it leaves out, {first[0]}, is {action[first[0]]}; allowed: a Discrete")
    return Conditional(action, {name: _values(name, uses[name], first[0], action, what) for name in uses})


def _values(name: str, given: Any, first: str, action: Mapping[str, Any], what: str) -> tuple[int, ...]:
    """Raises UserError: none, or what is no value of the first part."""
    n = action[first].n
    allowed = f"some of 0…{n - 1}, values of {first}"
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UserError(f"{what}: {name} is used by {given!r}; allowed: {allowed}")
    values = list(given)
    if not values:
        raise UserError(f"{what}: {name} is used by no value; allowed: {allowed}, or leave it out of the actions")
    if wrong := [v for v in values if not isinstance(v, Integral) or int(v) not in range(n)]:
        raise UserError(f"{what}: {name} is used by {wrong[0]!r}; allowed: {allowed}")
    return tuple(sorted({int(v) for v in values}))
