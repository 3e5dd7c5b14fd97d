"""Rules that an environment must follow, as listed in rules.toml.

`polyplay check` checks all rules. Training checks the rules that a single step can break. Messages end with the rule's
name.
"""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec, Tree
from polyplay.envs.images import SMALLEST, is_image
from polyplay.envs.spaces import ActionSpec, Box, Conditional, Discrete, SpaceViolation

SHOWN = ("keys", "shape", "dtype")  # rules that an observation breaks if it is missing or has another form
MOST_COMBINATIONS = 512  # most combinations of an action's discrete parts: SAC's critics have an output for each
ROUNDING = 4  # rounding steps by which an observation may exceed its bounds
IMAGE = 64  # a part with three axes looks like an image if two sides have at least this length
OLD_LIMIT = "TimeLimit.truncated"  # key of info that marked time limits before gym 0.26
OLD_LIMIT_SEEN = f"info says {OLD_LIMIT} of a terminated episode, which is not read: "
OLD_LIMIT_SEEN += "return terminated=False, truncated=True"
BLANK_END = "a step that is both terminated and truncated shows only zeros, so it counts as terminated; "
BLANK_END += "ViZDoom's time limit does that: put a shorter gymnasium.wrappers.TimeLimit around it"
MOST = float(np.finfo(np.float32).max)  # largest reward, because rewards are stored as float32


@dataclass(frozen=True)
class EnvRule:
    says: str
    fix: str
    run: str = "ends"  # what a run does when the rule is broken
    players: bool = False  # whether the rule is only for environments with several players


_TEXT = Path(__file__).with_name("rules.toml").read_text("utf-8")
RULES = {name: EnvRule(**rule) for name, rule in tomllib.loads(_TEXT).items()}


def rule_suffix(rule: str) -> str:
    """Return the end of a message about a broken rule, with the rule's name."""
    return f"(rule {rule}; polyplay check ENV explains)"


def rule_of(text: str) -> str | None:
    """Return the rule that a message names, or None if it names none."""
    found = re.search(r"\(rule ([a-z-]+);", text)
    return found[1] if found else None


def without_rule(text: str) -> str:
    """Remove the rule's name from the end of a message."""
    return re.sub(r" \(rule [a-z-]+; polyplay check ENV explains\)", "", text)


def rule_message(violation: SpaceViolation) -> str:
    """Return the message of a violation, with the name of the broken rule."""
    observed = violation.rule in ("spaces", *SHOWN, "bounds")
    cure = f"; {RULES['bounds'].fix}" if violation.rule == "bounds" else ""
    start = "observation breaks its declared space: " if observed else ""
    return f"{start}{violation}{cure} {rule_suffix(violation.rule)}"


# -------------------------------------------------------------------------------- what networks take


def image_flaw(obs: Spec) -> str:
    """Return why networks cannot read an image in `obs`, or "" if they can. Images must be uint8 [planes, H, W]."""
    return next(filter(None, (_flaw_of(path, field) for path, field in tree.leaves(obs))), "")


def _flaw_of(path: str, obs: Field) -> str:
    seen, shape = f"observations {path and f'{path} '}{list(obs.shape)}", obs.shape
    if len(shape) == 3 and min(shape[:2]) >= IMAGE > shape[2]:
        return f"{seen} look like an image [H, W, C] of {obs.dtype}, networks take images of uint8"
    last, first = len(shape) == 4 and min(shape[1:3]) >= IMAGE > shape[3], len(shape) == 4 and min(shape[2:]) >= IMAGE
    if last or first:
        form = "[S, H, W, C]" if last else "[S, C, H, W]"
        return f"{seen} look like a stack of images {form} of {obs.dtype}, networks take images of uint8"
    return ""


def flat_images(obs: Spec, other: bool = False) -> list[str]:
    """Describe the images that a network for vectors would read as plain numbers. `other`: omit the images that
    networks for images can read.
    """
    found = [(path, f) for path, f in tree.leaves(obs) if f.dtype == "uint8" and len(f.shape) in (2, 3, 4)]
    seen = [(path, f.shape) for path, f in found if sorted(f.shape)[-2] >= SMALLEST and not (other and is_image(f))]
    return [f"the image {path and f'{path} '}{list(shape)} as {math.prod(shape):,} numbers" for path, shape in seen]


def is_blank(obs: Tree, lane: int) -> bool:
    """Tell whether a lane's observation is all zeros."""
    return not any(leaf[lane].any() for _, leaf in tree.leaves(obs))


def values_flaw(action: ActionSpec) -> str:
    """Return why a network of action values (as in DQN) cannot learn these actions, or "" if it can."""
    return "" if isinstance(action, Discrete) else "this system needs Discrete actions"


def deterministic_flaw(action: ActionSpec) -> str:
    """Return why a deterministic policy (as in TD3) cannot learn these actions, or "" if it can."""
    bounded = isinstance(action, Box) and bool(np.isfinite(action.high / 2 - action.low / 2).all())
    return "" if bounded else "it learns bounded real vectors (a Box)"


def critics_flaw(action: ActionSpec) -> str:
    """Return why SAC's critics cannot learn these actions, or "" if they can."""
    leaves = [leaf for _, leaf in tree.leaves(action)]
    known = all(isinstance(x, Discrete) or not deterministic_flaw(x) for x in leaves)
    values = math.prod(x.n for x in leaves if isinstance(x, Discrete))
    if isinstance(action, Conditional) or not known:
        return "it learns bounded real vectors (a Box), Discrete, and nests of both"
    few = isinstance(action, Discrete) or values <= MOST_COMBINATIONS
    return "" if few else f"its discrete parts have {values:,} combinations, at most {MOST_COMBINATIONS} allowed"


def rng_of(env: object) -> int:
    """Return a number that identifies an environment's random generator after a reset. The number is the seed of
    `np_random`. If the seed is unknown, it is a checksum of the generator's state. Without a generator, it is -1.
    """
    inner = getattr(env, "unwrapped", env)
    seed = getattr(inner, "_np_random_seed", None)
    if isinstance(seed, int) and seed >= 0:
        return seed & (2**63 - 1)
    source = getattr(inner, "_np_random", None)
    state = getattr(getattr(source, "bit_generator", None), "state", None)
    return -1 if state is None else zlib.crc32(repr(state).encode()) + 2**62


def describe_value(value: object) -> str:
    """Describe a wrong value briefly, for a message."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    if shape:
        return f"{type(value).__name__} {list(shape)}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]


# Each lane needs its own environment, so a function that returns the same environment twice is refused.


QUICK = 1.0  # seconds; an environment that takes longer to build is not built a second time for this check
INNER = ("env", "aec_env", "par_env", "unwrapped")  # attributes that hold the wrapped object in a wrapper

_taken: dict[int, tuple[Any, object]] = {}  # id → (part of an environment of this process, owner of the environment)


def wrapped_parts(env: Any) -> list[Any]:
    """Return an environment and everything that it wraps, from the outermost to the innermost."""
    found = [env]
    for part in found:
        inner = [getattr(part, name, None) for name in INNER] + list(getattr(part, "envs", None) or ())
        inner = [other for other in inner if callable(getattr(other, "step", None))]
        for other in [*inner, *filter(_is_stepped, getattr(part, "__dict__", {}).values())]:
            if all(other is not known for known in found):
                found.append(other)
    return found


def _is_stepped(part: Any) -> bool:
    return not isinstance(part, type | ModuleType) and callable(getattr(type(part), "step", None))


def take(env: Any, owner: object, title: str) -> None:
    """Record that `owner` uses all parts of an environment. Raises UserError if another owner uses one of them."""
    parts = wrapped_parts(env)
    for part in parts:
        if id(part) in _taken and _taken[id(part)][1] is not owner:
            raise twice(title, part)
    _taken.update((id(part), (part, owner)) for part in parts)


def give_back(owner: object) -> None:
    for key in [key for key, (_, whose) in list(_taken.items()) if whose is owner]:
        _taken.pop(key, None)


def check_second(build: Callable[[], Any], first: Any, title: str) -> None:
    """Build a second environment. Raises UserError if it shares a part with `first`, which has been closed."""
    try:
        second = build()
    except UserError:  # perhaps only one environment can exist at a time
        return
    known = wrapped_parts(first)
    twin = [part for part in wrapped_parts(second) if any(part is other for other in known)]
    with contextlib.suppress(Exception, SystemExit):
        second.close()
    if twin:
        raise twice(title, twin[0])


def twice(title: str, part: Any) -> UserError:
    """Return the error for two environments that share `part`."""
    name = type(getattr(part, "unwrapped", part)).__name__
    why = f"returned the same environment twice ({name}), but every lane needs its own"
    return UserError(f"{title}: the function {why}: build it inside the function {rule_suffix('copies')}")
