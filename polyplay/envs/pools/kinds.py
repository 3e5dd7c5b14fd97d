"""Whether an object is an environment; if not, what to write instead."""

from __future__ import annotations

from inspect import signature
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from polyplay.envs import pettingzoo, rules

KINDS = "gymnasium.Env, and no PettingZoo environment that has possible_agents"
OLD = "gym's before 0.26"
NEW = "def reset(self, *, seed=None, options=None), which returns (observation, info)"


def not_an_env(made: Any) -> str:
    """Why what a function returned is no environment, and what to do; "": it is one."""
    if isinstance(made, type):
        return f"gave the class {made.__name__}, no environment: return {made.__name__}()"
    if pettingzoo.is_parallel(made) or pettingzoo.is_turn_based(made):
        return ""
    if not isinstance(made, gymnasium.Env | VectorEnv):
        return _no_env(made)
    return _space_flaw(made) or _old_reset(made)


def _no_env(made: Any) -> str:
    name = type(made).__name__
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        ways = "import gymnasium as gym, or wrap it: shimmy.GymV26CompatibilityV0(env=…)"
        return f"gave {name}, an environment of gym, which gymnasium replaced: {ways}"
    methods = callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None))
    if not methods or hasattr(made, "agent_iter"):
        return f"gave {rules.describe_value(made) if made is None else name}, which is no {KINDS}"
    if not _takes_seed(made):
        ways = f"shimmy.GymV21CompatibilityV0 wraps it, or inherit from gymnasium.Env and write {NEW}"
        return f"reset() and step() of {name} are {OLD}: {ways}"
    return f"{name} is no gymnasium.Env: inherit from it, class {name}(gymnasium.Env)"


def _space_flaw(env: Any) -> str:
    """What is wrong with a space that an environment does not have."""
    single = "single_" if isinstance(env, VectorEnv) else ""
    for which in (f"{single}observation_space", f"{single}action_space"):
        space, name = getattr(env, which, None), type(env.unwrapped).__name__
        if isinstance(space, gymnasium.Space):
            continue
        if type(space).__module__.partition(".")[0] == "gym":
            return f"{which} of {name} is a space of gym, which gymnasium replaced: import gymnasium as gym"
        is_what = "None" if space is None else f"{rules.describe_value(space)}, no space"
        return f"{which} of {name} is {is_what}: set it in __init__, as in gymnasium.spaces.Discrete(2)"
    return ""


def _old_reset(env: Any) -> str:
    inner = env.unwrapped
    if _takes_seed(inner):
        return ""
    return f"reset() of {type(inner).__name__} takes no seed, as {OLD}: write {NEW}"


def _takes_seed(env: Any) -> bool:
    try:
        parameters = signature(env.reset).parameters
    except (TypeError, ValueError):  # of compiled code: its first reset tells
        return True
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
