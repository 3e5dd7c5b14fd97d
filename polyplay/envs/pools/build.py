"""One Gymnasium environment: built, and described."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium

from polyplay.common.errors import UserError
from polyplay.envs import masks, rules, spaces
from polyplay.envs.pool import EnvSpec, Factory


def build(make: Factory, title: str) -> Any:
    """One environment, or the vector environment that `make` makes. Raises UserError on one line: it can't be built, or
    is no gymnasium.Env.
    """
    from polyplay.envs.pools.vector_modes import single_lane

    try:
        env = single_lane(make, title)
    except UserError:
        raise
    except BaseException as e:
        raise UserError(f"{title}: could not be built: {one_line(e)} {rules.rule_suffix('build')}") from e
    if not all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
        raise UserError(f"{title}: gave {type(env).__name__}, which is no gymnasium.Env {rules.rule_suffix('build')}")
    return env


def inspect(env: gymnasium.Env, title: str) -> EnvSpec:
    """The description of an environment. Raises UserError: a space that is not supported."""
    shown = masks.without_mask(env.observation_space)
    try:
        obs = spaces.observation(shown, title)
        action = spaces.action(env.action_space, title)
    except UserError as e:
        raise UserError(f"{e} {rules.rule_suffix('spaces')}") from None
    limit = getattr(env.spec, "max_episode_steps", None)
    text = {
        "environment": title,
        "observation": spaces.describe_fields(obs),
        "actions": spaces.describe_actions(action),
        "time limit": f"{limit} steps" if limit else "the environment's own",
    }
    mask = masks.declared_mask(action, env.observation_space, title)
    if mask is not None:
        text["action mask"] = "from the observation"
    return EnvSpec(obs, action, describe=text, classes=spaces.classes(shown), mask=mask)


def describe(name: str | Factory, options: Mapping[str, object]) -> EnvSpec:
    """Build one environment, describe it, reset it for its info, close it. Raises UserError."""
    from polyplay.envs.make import factory

    title = name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))
    make = factory(name, options)
    env = build(make, title)
    try:
        if isinstance(env, gymnasium.vector.VectorEnv):
            from polyplay.envs.pools.vector_modes import describe as of_vector

            return of_vector(env, make, title)
        spec = inspect(env, title)
        mask = None if spec.mask is not None else masks.info_mask(spec.action, env, title)
        more = {"action mask": "from info"} if mask is not None else {}
        return replace(spec, mask=spec.mask if mask is None else mask, describe={**spec.describe, **more})
    finally:
        with contextlib.suppress(Exception):
            env.close()


def one_line(e: BaseException) -> str:
    """'ValueError: text (file.py:12)' of the innermost frame."""
    text = " ".join(str(e).split())
    frames = traceback.extract_tb(e.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}{': ' if text else ''}{text}{where}"
