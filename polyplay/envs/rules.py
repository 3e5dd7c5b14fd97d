"""The rules of an environment, from rules.toml.

`polyplay check` checks all of them, training those that a step
shows; messages end with the rule's name.
"""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec
from polyplay.envs.spaces import ActionSpec, Box, Discrete, SpaceViolation, inner_path, place_of, subspaces

SHOWN = ("keys", "shape", "dtype")  # of an observation, and therefore of a missing one
ROUNDING = 4  # steps of a float that an observation may lie beyond its bounds
SMALL_IMAGE = 24  # pixels each way from which bytes are called an image
IMAGE = 64  # pixels each way from which three numbers of a shape are taken for an image's
OLD_LIMIT = "TimeLimit.truncated"  # a key of info, before gym 0.26
OLD_LIMIT_SEEN = f"info says {OLD_LIMIT} of a terminated episode, which is not read: "
OLD_LIMIT_SEEN += "return terminated=False, truncated=True"
MOST = float(np.finfo(np.float32).max)  # rewards are stored as float32


@dataclass(frozen=True)
class EnvRule:
    says: str
    fix: str
    run: str = "ends"  # what a run does when it is broken
    players: bool = False  # it is of environments with several players


_TEXT = Path(__file__).with_name("rules.toml").read_text("utf-8")
RULES = {name: EnvRule(**rule) for name, rule in tomllib.loads(_TEXT).items()}


def rule_suffix(rule: str) -> str:
    """The end of a message about a broken rule."""
    return f"(rule {rule}; polyplay check ENV explains)"


def rule_of(text: str) -> str | None:
    """The rule that a message names."""
    found = re.search(r"\(rule ([a-z-]+);", text)
    return found[1] if found else None


def without_rule(text: str) -> str:
    """The message without that end."""
    return re.sub(r" \(rule [a-z-]+; polyplay check ENV explains\)", "", text)


def rule_message(violation: SpaceViolation) -> str:
    """The message of a violation, with its rule."""
    observed = violation.rule in ("spaces", *SHOWN, "bounds")
    cure = f"; {RULES['bounds'].fix}" if violation.rule == "bounds" else ""
    start = "observation breaks its declared space: " if observed else ""
    return f"{start}{violation}{cure} {rule_suffix(violation.rule)}"


# -------------------------------------------------------------------------------- what networks take


def image_flaw(obs: Spec) -> str:
    """Why no network takes one image of this shape; "": it is none, or has its planes first."""
    if not isinstance(obs, Field):
        return ""
    shape = list(obs.shape)
    if len(shape) == 3 and min(shape[:2]) >= IMAGE > shape[2]:
        return f"observations {shape} look like [H, W, C], networks take [C, H, W]"
    last, first = len(shape) == 4 and min(shape[1:3]) >= IMAGE > shape[3], len(shape) == 4 and min(shape[2:]) >= IMAGE
    if last or first:
        form = "[S, H, W, C]" if last else "[S, C, H, W]"
        return f"observations {shape} look like a stack of images {form}, networks take one, [C, H, W]"
    return ""


def is_image(obs: Spec) -> bool:
    """Whether it is one image, as convolutions take it, of some size."""
    return isinstance(obs, Field) and len(obs.shape) == 3 and min(obs.shape[1:]) >= IMAGE


def flat_images(obs: Spec) -> list[str]:
    """What of the observations looks like an image to people, though a network for vectors reads its numbers."""
    found = [(path, f) for path, f in tree.leaves(obs) if f.dtype == "uint8" and len(f.shape) in (2, 3, 4)]
    seen = [(path, f.shape) for path, f in found if sorted(f.shape)[-2] >= SMALL_IMAGE]
    return [f"the image {path and f'{path} '}{list(shape)} as {math.prod(shape):,} numbers" for path, shape in seen]


def values_flaw(action: ActionSpec) -> str:
    """Why these actions have no values to learn; "": they have."""
    return "" if isinstance(action, Discrete) else "this system needs Discrete actions"


def deterministic_flaw(action: ActionSpec) -> str:
    """Why no deterministic policy learns these actions; "": one does."""
    bounded = isinstance(action, Box) and bool(np.isfinite(action.high / 2 - action.low / 2).all())
    return "" if bounded else "it learns bounded real vectors (a Box)"


# ---------------------------------------------------------------------------- what step and reset give


def read_reset(result: object) -> tuple[object, object]:
    """(observation, info) from what reset() returned. Raises SpaceViolation."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        old = "" if isinstance(result, tuple) else ", as gym's before 0.26 did"
        raise SpaceViolation(f"reset() must return (observation, info), given {describe_value(result)}{old}", "reset")
    return result[0], result[1]


def read_step(result: object) -> tuple[object, float, bool, bool, object]:
    """What step() returned, all but the observation checked. Raises SpaceViolation."""
    obs, reward, terminated, truncated, info = (
        result if type(result) is tuple and len(result) == 5 else step_parts(result)
    )
    if type(reward) is float and -MOST <= reward <= MOST and type(terminated) is bool and type(truncated) is bool:
        return obs, reward, terminated, truncated, info
    return obs, read_reward(reward), read_flag("terminated", terminated), read_flag("truncated", truncated), info


def step_parts(result: object) -> Sequence[Any]:
    """The five parts of what step() returned. Raises SpaceViolation: it has not five."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        wanted = "(observation, reward, terminated, truncated, info)"
        old = ", as gym's before 0.26 did" if isinstance(result, tuple) and len(result) == 4 else ""
        raise SpaceViolation(f"step() must return {wanted}, given {describe_value(result)}{old}", "step")
    return result


def read_reward(reward: object) -> float:
    """A reward. Raises SpaceViolation: not one finite number."""
    value = reward if type(reward) is float else _scalar(reward)
    if not -MOST <= value <= MOST:  # false for NaN too
        raise SpaceViolation(f"reward must be one finite number of float32, given {value}", "reward")
    return value


def _scalar(reward: Any) -> float:
    """From NumPy's and other libraries' numbers."""
    number = isinstance(reward, Real | np.bool_) or getattr(reward, "shape", None) == ()
    try:
        if number and not np.iscomplexobj(reward):
            return float(reward)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpaceViolation(f"reward must be one finite number, given {describe_value(reward)}", "reward")


def read_flag(name: str, value: object) -> bool:
    """terminated or truncated. Raises SpaceViolation: neither a boolean nor 0 or 1."""
    if type(value) is bool:
        return value
    if getattr(value, "shape", ()) != () or value not in (0, 1):
        raise SpaceViolation(f"{name} must be a boolean, given {describe_value(value)}", "flags")
    return bool(value)


def final_observation_flaw(violation: SpaceViolation, terminated: bool) -> SpaceViolation:
    """What is wrong with an observation of a step that ended the episode, as a violation of its own rule."""
    if violation.rule not in SHOWN:
        return violation
    how = "terminated" if terminated else "truncated"
    text = f"the step that {how} the episode has no real last observation: {violation}"
    return SpaceViolation(text, "final-observation")


def check_contains(space: gym.Space, obs: Any, path: str = "") -> str:
    """Raises SpaceViolation where `obs`, of the right shape and type, is not in `space`: other keys, beyond bounds.
    A line where it lies beyond them by no more than floats are rounded; "": it is in there.
    """
    try:
        if space.contains(obs):
            return ""
    except Exception as e:  # of a class derived from a space
        why = f"{type(space).__name__}.contains() raised {type(e).__name__}: {' '.join(str(e).split())}"
        raise SpaceViolation(f"{place_of(path)}{why}", "spaces") from None
    if isinstance(space, gym.Box):
        return near_bounds(space, np.asarray(obs), path)
    if isinstance(space, gym.Dict) and obs.keys() != space.spaces.keys():
        raise SpaceViolation(f"{place_of(path)}declared keys {list(space.spaces)}, given keys {list(obs)}", "keys")
    inner = subspaces(space)
    if inner is None:
        raise SpaceViolation(f"{place_of(path)}given what is not in {space}", "bounds")
    at = ((key, obs[key if isinstance(space, gym.Dict) else int(key)]) for key in inner)
    near = [check_contains(inner[key], part, inner_path(path, key)) for key, part in at]
    return next(filter(None, near), "")


def near_bounds(space: gym.Box, obs: np.ndarray, path: str) -> str:
    """As check_contains. Floats may lie beyond a bound by a few steps of their type at the size of the bounds."""
    over = np.maximum(np.subtract(space.low, obs, dtype=float), np.subtract(obs, space.high, dtype=float))
    if not (over > 0).any():
        return ""  # its type only: the writer looks at that
    where = tuple(int(i) for i in np.unravel_index(np.argmax(over), over.shape))
    low, high = space.low[where], space.high[where]
    what = f"{place_of(path)}{in_full(obs[where])} at {list(where)} is not in [{in_full(low)}, {in_full(high)}]"
    floats = [np.finfo(x.dtype).eps for x in (space, obs) if np.issubdtype(x.dtype, np.floating)]
    size = max(abs(float(x)) if np.isfinite(x) else 1.0 for x in (low, high))
    if over[where] > ROUNDING * max(floats, default=0.0) * size:
        raise SpaceViolation(what, "bounds")
    return f"a reset observation lies beyond its bounds, {what}, but only by rounding: such ones are taken as they are"


def in_full(number: Any) -> str:
    """A number with all digits that it has."""
    short = f"{number:g}"
    return short if float(short) == float(number) else str(number)


def rng_of(env: object) -> int:
    """What its random numbers come from, after a reset: the seed of `np_random`, or a print of the generator's state
    where the seed is unknown; -1: it has none.
    """
    inner = getattr(env, "unwrapped", env)
    seed = getattr(inner, "_np_random_seed", None)
    if isinstance(seed, int) and seed >= 0:
        return seed & (2**63 - 1)
    source = getattr(inner, "_np_random", None)
    state = getattr(getattr(source, "bit_generator", None), "state", None)
    return -1 if state is None else zlib.crc32(repr(state).encode()) + 2**62


def describe_value(value: object) -> str:
    """A wrong value, shortly."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    if shape:
        return f"{type(value).__name__} {list(shape)}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]


# Every lane has an environment of its own: a function that returns the same one twice is refused.


QUICK = 1.0  # seconds: what takes longer is not built a second time only to look at it
INNER = ("env", "aec_env", "par_env", "unwrapped")  # where wrappers have what they wrap

_taken: dict[int, tuple[Any, object]] = {}  # by its id: a part of an environment of this process, and whose it is


def wrapped_parts(env: Any) -> list[Any]:
    """An environment and all that it wraps, the outermost first."""
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
    return UserError(f"{title}: the function {why}: build it inside the function {rule_suffix('copies')}")
