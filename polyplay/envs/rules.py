"""The rules of an environment. `polyplay check` checks all of them, training those that a step shows; messages end with
the rule's name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from polyplay.envs.spaces import SpaceViolation

ENDS, REPAIRS, REFUSES, SILENT = "ends", "restarts, then ends", "does not begin", "does not look"
SHOWN = ("keys", "shape", "dtype")  # of an observation, and therefore of a missing one
MOST = float(np.finfo(np.float32).max)  # rewards are stored as float32


@dataclass(frozen=True)
class EnvRule:
    says: str
    fix: str
    run: str = ENDS  # what a run does when it is broken


RULES = {
    "factory": EnvRule(
        "What builds it can be sent to another process.",
        "give module:callable or a function that closes over no lock, open file, window or running environment",
        REFUSES,
    ),
    "build": EnvRule(
        "It can be built, and is one gymnasium.Env.",
        "call the function in a fresh Python and install or mend what the error names; return a single environment",
        REFUSES,
    ),
    "spaces": EnvRule(
        "Its spaces are of supported kinds, and every copy declares the same.",
        "give it a wrapper that declares supported spaces, the same in every copy",
        REFUSES,
    ),
    "keys": EnvRule(
        "A composed observation has the declared keys.",
        "give every declared key at every step, and no others at a reset; or declare what is given",
    ),
    "shape": EnvRule(
        "An observation has the declared shape.",
        "declare the shape that is given; pad what varies to a fixed one",
    ),
    "dtype": EnvRule(
        "An observation's type fits into the declared one.",
        "return obs.astype(self.observation_space.dtype), or declare the type that is given",
    ),
    "bounds": EnvRule(
        "An observation lies within the declared bounds.",
        "widen low and high (-inf and inf are allowed), or clip the observation",
        "ends, at a reset",
    ),
    "mask": EnvRule(
        "An action mask fits the actions, is there from the first reset on, and leaves one legal.",
        "give it with every observation or info in a form that space.sample(mask) takes; end the episode where no "
        "action is left",
    ),
    "finite": EnvRule(
        "An observation holds no NaN and no infinity.",
        "find the division or overflow that makes it: np.seterr(all='raise'); clip, or end the episode there",
    ),
    "reward": EnvRule(
        "A reward is one finite number.",
        "return float(reward): no None, no array; bound what can overflow",
    ),
    "flags": EnvRule(
        "terminated and truncated are booleans: an end is terminated, a time limit is truncated.",
        "return bool(…) for both; leave time limits to gymnasium.wrappers.TimeLimit",
    ),
    "final-observation": EnvRule(
        "A step that ends an episode returns its real last observation.",
        "return the observation at the end too: after a truncation its value is what learning continues from",
    ),
    "autoreset": EnvRule(
        "It does not reset itself within step().",
        "leave out reset() in step() and wrappers that do it (Autoreset): the pool resets, after the last observation",
        SILENT,
    ),
    "seed": EnvRule(
        "Different seeds make different generators.",
        "begin reset() with super().reset(seed=seed) and draw from self.np_random; for a fixed level make a "
        "generator of its own, np.random.default_rng(0)",
    ),
    "determinism": EnvRule(
        "The same seed and the same actions give the same episodes.",
        "draw only from self.np_random, not from random, time or a set's order; some simulators can't",
        SILENT,
    ),
    "reset": EnvRule(
        "reset() returns (observation, info) and does not raise.",
        "call reset(seed=1) and reset() by hand, also after an episode; give it the keywords seed and options",
        REPAIRS,
    ),
    "step": EnvRule(
        "step() returns (observation, reward, terminated, truncated, info) and does not raise.",
        "call step() by hand with the action that is named; polyplay train … --serial stops in a debugger",
        REPAIRS,
    ),
    "hang": EnvRule(
        "A step or a reset ends within --step-timeout.",
        "find what it waits for at the place that is shown; raise --step-timeout if it is only slow",
        REPAIRS,
    ),
    "crash": EnvRule(
        "It leaves its process alive.",
        "mend the native code that crashes, or the memory limit that kills it; do not call sys.exit or os._exit",
        REPAIRS,
    ),
    "step-time": EnvRule(
        "How long steps and resets take: measured, no promise.",
        "a step near --step-timeout may be taken for a hang: raise it",
        SILENT,
    ),
}


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
    return f"{'observation breaks its declared space: ' if observed else ''}{violation} {rule_suffix(violation.rule)}"


# ---------------------------------------------------------------------------- what step and reset give


def read_reset(result: object) -> tuple[object, object]:
    """(observation, info) from what reset() returned. Raises SpaceViolation."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise SpaceViolation(f"reset() must return (observation, info), given {describe_value(result)}", "reset")
    return result[0], result[1]


def read_step(result: object) -> tuple[object, float, bool, bool, object]:
    """What step() returned, all but the observation checked. Raises SpaceViolation."""
    obs, reward, terminated, truncated, info = step_parts(result)
    if type(terminated) is not bool:
        terminated = read_flag("terminated", terminated)
    if type(truncated) is not bool:
        truncated = read_flag("truncated", truncated)
    return obs, read_reward(reward), terminated, truncated, info


def step_parts(result: object) -> Sequence[Any]:
    """The five parts of what step() returned. Raises SpaceViolation: it has not five."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        wanted = "(observation, reward, terminated, truncated, info)"
        raise SpaceViolation(f"step() must return {wanted}, given {describe_value(result)}", "step")
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
    except (TypeError, ValueError):
        pass
    raise SpaceViolation(f"reward must be one finite number, given {describe_value(reward)}", "reward")


def read_flag(name: str, value: object) -> bool:
    """terminated or truncated. Raises SpaceViolation: neither a boolean nor 0 or 1."""
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


def check_contains(space: gym.Space, obs: object, path: str = "") -> None:
    """Raises SpaceViolation where `obs`, of the right shape and type, is not in `space`: other keys, beyond bounds."""
    if space.contains(obs):
        return
    where = f"at {path!r} " if path else ""
    if isinstance(space, gym.Dict) and isinstance(obs, Mapping):
        if obs.keys() != space.spaces.keys():
            raise SpaceViolation(f"{where}declared keys {list(space.spaces)}, given keys {list(obs)}", "keys")
        for key, inner in space.spaces.items():
            check_contains(inner, obs[key], f"{path}/{key}" if path else key)
    if isinstance(space, gym.Tuple) and isinstance(obs, tuple | list) and len(obs) == len(space.spaces):
        for i, inner in enumerate(space.spaces):
            check_contains(inner, obs[i], f"{path}/{i}" if path else str(i))
    if isinstance(space, gym.Box) and (array := np.asarray(obs)).shape == space.shape:
        out = np.argwhere((array < space.low) | (array > space.high))
        if not len(out):
            return  # its type only: the writer looks at that
        at = tuple(int(i) for i in out[0])
        value, low, high = array[at], space.low[at], space.high[at]
        raise SpaceViolation(f"{where}{value:g} at {list(at)} is not in [{low:g}, {high:g}]", "bounds")
    raise SpaceViolation(f"{where}given what is not in {space}", "bounds")


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
