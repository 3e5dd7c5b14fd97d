"""One Gymnasium environment, or a vector of them: found by its name, built, and described."""

from __future__ import annotations

import contextlib
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from polyplay.common import import_guard
from polyplay.common.errors import UserError
from polyplay.common.lookup import look_up
from polyplay.envs import masks, pettingzoo, rules, space_files, spaces, user_modules
from polyplay.envs.atari import old_ids
from polyplay.envs.conditional_actions import ATTRIBUTE, conditional_actions, declared_uses
from polyplay.envs.pool import WRAPPERS, EnvSpec, Factory, closest_names, title_of
from polyplay.envs.pools import copies
from polyplay.envs.pools.global_random import seed_torch
from polyplay.envs.pools.kinds import not_an_env
from polyplay.envs.pools.vector_modes import describe_resets, factory_keywords, mask_note, single_lane

USUAL = {"minigrid": ("polyplay.envs.minigrid:Symbols",)}  # by package: wrappers, unless others are named
VERSION = re.compile(r"-v\d+$")
MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)")
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
ALLOWED = {  # by option
    "--env": "a Gymnasium id, ALE/Game-v5, toy:name, module:EnvId-v0 or module:callable",
    "--wrapper": "module:callable, a function that takes an environment and returns one",
    "polyplay_bots": "module:callable, a function of observations and masks that returns actions",
}

# --------------------------------------------------------------------------------------- by its name


def factory(name: str | Factory, kwargs: Mapping[str, Any]) -> Factory:
    """A function that builds one environment, or a vector of them; its signature is the one that `name` has besides
    `kwargs`. Raises UserError: no such environment, module or attribute.
    """
    wrappers = kwargs.get(WRAPPERS)
    shown = bool(wrappers) or kwargs.get("obs_type") == "ram"
    if isinstance(name, str) and (instead := old_ids.replacement(name, shown)):
        raise _refusal("--env", name, instead)
    if wrappers:
        plain = {k: v for k, v in kwargs.items() if k != WRAPPERS}
        return _wrapped(_unwrapped(name, plain), wrappers)
    make = _unwrapped(name, kwargs)
    return _wrapped(make, USUAL[where]) if (where := _module(name)) in USUAL else make


def _unwrapped(name: str | Factory, kwargs: Mapping[str, Any]) -> Factory:
    """As `factory`, but for wrappers."""
    if callable(name):
        return partial(name, **kwargs)
    if name.startswith("ALE/"):
        from polyplay.envs.atari.emulator import AtariEnv

        return lambda: AtariEnv(name, kwargs)
    module, colon, attribute = name.partition(":")
    if not colon:
        return _registered(name, kwargs)
    found = _import(module, name)
    if VERSION.search(attribute) or (attribute in gymnasium.registry and not hasattr(found, attribute)):
        return _registered(attribute, kwargs)
    return partial(imported(name), **kwargs)


def _module(name: str | Factory) -> str:
    """The package that a registered environment is of; "": it is not registered."""
    known = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    return str(known.entry_point).partition(".")[0] if known else ""


def _wrapped(make: Factory, wrappers: Iterable[str]) -> Factory:
    """What builds the environment inside its wrappers. Raises UserError: there is no such wrapper."""
    around = [(name, imported(name, "--wrapper")) for name in wrappers]

    def build() -> gymnasium.Env:
        env = make()
        for name, wrap in around:
            env = _put_around(env, name, wrap)
        return env

    return build


def _put_around(env: gymnasium.Env, name: str, wrap: Callable[..., Any]) -> gymnasium.Env:
    """Raises UserError: the wrapper raises, or returns no environment."""
    try:
        found: gymnasium.Env = wrap(env)
    except UserError:
        raise
    except Exception as e:
        raise _refusal("--wrapper", name, f"it raised {one_line(e)}") from e
    if flaw := not_an_env(found):
        raise _refusal("--wrapper", name, f"it returned {rules.describe_value(found)}" if found is None else flaw)
    return found


def _refusal(option: str, name: str, why: str) -> UserError:
    return UserError(f"{option}: {name} given, {why}; allowed: {ALLOWED[option]}")


def imported(name: str, option: str = "--env") -> Callable[..., Any]:
    """What "module:attribute" names. Raises UserError: no such module or attribute, or one that cannot be called."""
    module, _, attribute = name.partition(":")
    found = _import(module, name, option)
    try:
        make = look_up(found, attribute)
    except AttributeError:
        public = [k for k, v in vars(found).items() if callable(v) and not k.startswith("_")]
        raise _refusal(option, name, f"{module} has no {attribute!r}{closest_names(attribute, public)}") from None
    if not callable(make):
        raise _refusal(option, name, f"{attribute} is no callable but {type(make).__name__}")
    return make


def _import(module: str, name: str, option: str = "--env") -> ModuleType:
    return user_modules.import_module(module, name, option, ALLOWED[option])


def _registered(name: str, kwargs: Mapping[str, Any]) -> Factory:
    old_ids.register(name)
    known = gymnasium.registry.get(name)
    if known is None and (hint := user_modules.file_hint(name)):
        raise _refusal("--env", name, hint)
    if known is None and all(VERSION.sub("", k) != name for k in gymnasium.registry):  # nor without its version
        raise UserError(f"--env: unknown environment {name!r}{_hint(name)}; allowed: {ALLOWED['--env']}")
    if known is not None and known.entry_point is None:  # there are only vectors of it

        def many(num_envs: int = 1) -> gymnasium.vector.VectorEnv:
            return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)

        return many
    return partial(gymnasium.make, name, disable_env_checker=True, **kwargs)


def _hint(name: str) -> str:
    if name.startswith(("MiniGrid-", "BabyAI-")):
        return f", did you mean 'minigrid:{name}'?"
    if game := old_ids.game_of(name):
        return f", did you mean 'ALE/{game}-v5'?"
    from polyplay.envs.toys.games import TOYS

    return closest_names(name, [*old_ids.current_names(), *(f"toy:{toy}" for toy in TOYS)])


# ------------------------------------------------------------------------------ built and described


def build_env(make: Factory, title: str) -> Any:
    """One environment, or the vector environment that `make` makes. Raises UserError on one line: it can't be built, or
    is no gymnasium.Env.
    """
    try:
        env = single_lane(make, title)
        flaw = not_an_env(env)
    except UserError:
        raise
    except BaseException as e:
        raise UserError(f"{title}: could not be built: {one_line(e)} {rules.rule_suffix('build')}") from e
    seed_torch()
    if flaw:
        raise UserError(f"{title}: {flaw} {rules.rule_suffix('build')}")
    return pettingzoo.parallel_of(env)


def inspect(env: gymnasium.Env | VectorEnv, title: str) -> EnvSpec:
    """The description of an environment, or of a lane of a vector one or of one of several players. Raises UserError: a
    space that is not supported, or a vector environment with action masks.
    """
    if pettingzoo.is_parallel(env):
        return pettingzoo.inspect_players(env, title)
    limit = getattr(env.spec, "max_episode_steps", None)
    if not isinstance(env, VectorEnv):
        seen, acted = env.observation_space, env.action_space
    else:
        seen, acted = env.single_observation_space, env.single_action_space
        if any(masks.mask_method(part) for part in (env, *getattr(env, "envs", ())[:1])):
            raise mask_note(title)
        limit = getattr(env.spec, "kwargs", {}).get("max_episode_steps", limit)  # where make_vec keeps another
    shown = masks.without_mask(seen)
    try:
        obs, action = spaces.observation(shown, title), spaces.action(acted, title)
    except UserError as e:
        raise UserError(f"{e} {rules.rule_suffix('spaces')}") from None
    action = conditional_actions(action, declared_uses(env), f"{title}: {ATTRIBUTE}")
    text = {
        "environment": title,
        "observation": spaces.describe_fields(obs) + (f" ({note})" if (note := getattr(env, "note", "")) else ""),
        "actions": spaces.describe_actions(action),
        "time limit": f"{limit} steps" if limit else "the environment's own",
    }
    mask = masks.declared_mask(action, seen, title)
    if mask is not None:
        if isinstance(env, VectorEnv):
            raise mask_note(title)
        text["action mask"] = "from the observation"
    own = {"observation": space_files.space_to_json(shown), "action": space_files.space_to_json(acted)}
    return EnvSpec(obs, action, describe=text, classes=spaces.classes(shown), mask=mask, spaces=own)


def describe(name: str | Factory, options: Mapping[str, object]) -> EnvSpec:
    """Build one environment, describe it, reset it for its info, close it. Raises UserError."""
    title = title_of(name)
    make = factory(name, options)
    begun = time.perf_counter()
    try:
        with user_modules.held_back():
            env = build_env(make, title)
    except UserError as e:
        raise _unknown_keyword(e.__cause__, name, options) or e from None
    took = time.perf_counter() - begun
    try:
        spec = _described(env, make, title)
    finally:
        with contextlib.suppress(Exception, SystemExit):
            env.close()
    if took < copies.QUICK:
        copies.check_second(lambda: build_env(make, title), env, title)
    return spec


def _described(env: Any, make: Factory, title: str) -> EnvSpec:
    """`env`, which `make` made, also by what it shows at a reset. Raises UserError."""
    spec = inspect(env, title)
    if isinstance(env, VectorEnv):
        text = {**spec.describe, "vector": type(env.unwrapped).__name__, "resets": describe_resets(env)}
        width = 0 if "num_envs" in factory_keywords(make) else env.num_envs
        return replace(spec, describe=text, vector=True, width=width)
    if spec.kinds:
        mask, team = pettingzoo.seen_in_info(env, spec, title)
        spec = replace(spec, mask=spec.mask if mask is None else mask, team_reward=team)
        return spec if mask is None else replace(spec, describe={**spec.describe, "action mask": "from info"})
    if spec.mask is None:
        mask, source = masks.shown_mask(spec.action, env, title)
        text = {"action mask": source} if mask is not None or (source := masks.passed_over(env)) else {}
        return replace(spec, mask=mask, describe={**spec.describe, **text})
    return spec


def _unknown_keyword(why: BaseException | None, name: str | Factory, options: Mapping[str, object]) -> UserError | None:
    """The message for one of `options` that the environment does not take, or for some that it needs; None: that is not
    `why` it was not built.
    """
    if isinstance(why, TypeError) and (lacks := MISSING.search(str(why))) and _is_ours(why):
        needed = [f"{word}=VALUE" for word in re.findall(r"'(\w+)'", lacks[1])]
        which = f"--env-kwargs {' '.join(needed)}"
        return UserError(f"--env-kwargs: nothing given, which {title_of(name)} needs to be built: {which}")
    found = UNEXPECTED.search(str(why)) if isinstance(why, TypeError) else None
    if found is None or found[1] not in options or found[1] == "render_mode":  # that one is asked for by --video
        return None
    known = _keywords(name)
    which = f"{closest_names(found[1], known)}; allowed: {', '.join(known)}" if known else ""
    return UserError(f"--env-kwargs: {found[1]} given, which {title_of(name)} does not take{which}; leave it out")


def _is_ours(e: BaseException) -> bool:
    """Whether it was raised by the call of what we were given, not somewhere inside of it."""
    frames = traceback.extract_tb(e.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(import_guard.OURS)


def _keywords(name: str | Factory) -> list[str]:
    """What can be given to an environment by name, as far as its own signature says that."""
    known = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    try:
        make: Any = known.entry_point if known else imported(name) if isinstance(name, str) else name
        make = load_env_creator(make) if isinstance(make, str) else make
        own = signature(make).parameters.values()
    except (TypeError, ValueError, UserError):
        return []
    named = [p.name for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named += ["max_episode_steps"] if known else []  # of gymnasium.make
    return [*named, *(["…"] if named and any(p.kind == p.VAR_KEYWORD for p in own) else [])]


def one_line(e: BaseException) -> str:
    """'ValueError: text (file.py:12)' of the innermost frame."""
    if isinstance(e, SystemExit):
        return f"it {user_modules.ending(e)}"
    text = " ".join(str(e).split())
    frames = traceback.extract_tb(e.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}{': ' if text else ''}{text}{where}"
