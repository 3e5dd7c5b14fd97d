"""Build Gymnasium environments by name, choose reset modes of vector environments, and wrap MiniGrid environments."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from polyplay.core import user_modules
from polyplay.core.errors import UserError
from polyplay.core.user_modules import look_up
from polyplay.envs import atari, image_view, masks, pettingzoo, rules
from polyplay.envs.images import IMAGES
from polyplay.envs.pool import (
    OWN_LIMIT,
    RESET,
    WRAPPERS,
    Envs,
    EnvSpec,
    Factory,
    closest_names,
    spec_of_spaces,
    title_of,
)
from polyplay.envs.process_state import seeding_torch
from polyplay.envs.saved_state import wrappers_of
from polyplay.envs.spaces import declared_uses


class Symbols(gymnasium.ObservationWrapper):
    """Default wrapper of MiniGrid environments. Observations have the object, color and state of each visible cell, and
    the agent's direction. All are class numbers, which networks read as one-hot inputs. The mission text is left out.
    """

    note = "the mission, a text, is left out"

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        shown = env.observation_space
        assert isinstance(shown, gymnasium.spaces.Dict)
        kinds = np.array([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(STATE_TO_IDX.values()) + 1])
        shape = shown["image"].shape
        assert shape is not None
        cells = gymnasium.spaces.MultiDiscrete(np.broadcast_to(kinds, shape), dtype=np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"image": cells, "direction": shown["direction"]})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"image": observation["image"], "direction": observation["direction"]}


# Vector environments, made in a reset mode that keeps an episode's last observation.
#
# In modes NEXT_STEP and DISABLED, step() returns that observation; in mode SAME_STEP, info has it.


NEXT, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
RESETS = {NEXT: "its own, in the next step", OFF: "by us, lane by lane", None: ""}
BATCHED = ("num_envs", "single_observation_space", "single_action_space")  # attributes of environments with many lanes


def factory_keywords(make: Factory) -> set[str]:
    """Return which of the keywords num_envs, autoreset_mode and vector_kwargs a factory accepts."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return set()
    return ({"num_envs", "autoreset_mode", "vector_kwargs"} & set(parameters)) - set(getattr(make, "keywords", ()))


def build_vector(make: Factory, n: int) -> Any:
    """Build a vector environment with `n` lanes, if the factory can, in a reset mode that keeps an episode's last
    observation.

    Try the modes NEXT_STEP and DISABLED, or only DISABLED with reset options. Raises UserError if reset options are
    given and the environment has another mode.
    """
    given = make if isinstance(make, ResetOptions) else None
    wanted = (OFF, NEXT) if given else (NEXT, OFF)
    env = as_vector(_made(make, n, wanted))
    mode, own = autoreset_mode(env), type(env) in (SyncVectorEnv, AsyncVectorEnv)
    right = mode is OFF or (mode is NEXT and not given)
    if own and not right:
        env = _made_again(env, wanted[0])
        return given.give(env) if given else env
    if given and mode not in (None, OFF):
        env.close()
        why = f"{type(env.unwrapped).__name__} resets lanes by itself, without options"
        raise UserError(f"--env-options: given, but {why}: make it in mode DISABLED, or give a single environment")
    return env


def _made(make: Factory, n: int, wanted: Iterable[AutoresetMode]) -> Any:
    known = factory_keywords(make)
    if not known:
        return make()
    width = {"num_envs": n} if "num_envs" in known else {}
    for one in wanted if known - width.keys() else ():
        mode = {"autoreset_mode": one}
        with contextlib.suppress(Exception):
            env = make(**width, **(mode if "autoreset_mode" in known else {"vector_kwargs": mode}))
            if autoreset_mode(as_vector(env)) is one:
                return env
            env.close()
    env = make(**width)
    if not width or is_vector(as_vector(env)):
        return env
    env.close()  # a single environment: for this factory, num_envs has another meaning
    return make()


def _made_again(env: Any, mode: AutoresetMode) -> VectorEnv:
    """Rebuild Gymnasium's own vector environment in another reset mode, from the same environments or functions."""
    given = {name: vars(env)[name] for name in signature(type(env)).parameters if name in vars(env)}
    if isinstance(env, SyncVectorEnv):  # before Gymnasium 1.4, its functions may be an iterator that is used up
        given["env_fns"] = [lambda one=one: one for one in env.envs]
    else:
        env.close()
    made: VectorEnv = type(env)(**{**given, "autoreset_mode": mode})
    made.spec = env.spec
    return made


def is_vector(env: object) -> bool:
    """Tell whether `env` steps several lanes at once. Its class need not be VectorEnv, as in Isaac Lab."""
    return isinstance(env, VectorEnv) or all(hasattr(env, name) for name in BATCHED)


def as_vector(env: Any) -> Any:
    """Remove wrappers for single environments from an environment of several lanes. Return others unchanged."""
    inner = getattr(env, "unwrapped", env)
    return inner if not isinstance(env, VectorEnv) and is_vector(inner) else env


def named_mode(env: Any) -> Any:
    """Return the reset mode that a vector environment states, or None if it states none."""
    said = getattr(env.unwrapped, "autoreset_mode", None)
    if said is None and env.metadata is not VectorEnv.metadata:  # ale-py writes its mode into VectorEnv's own dict
        said = env.metadata.get("autoreset_mode")
    return said


def autoreset_mode(env: Any) -> AutoresetMode | None:
    """Return the reset mode of a vector environment. If the environment names no mode, return SAME_STEP, as before
    Gymnasium 1.0. Return None for an unknown mode, or for a single environment.
    """
    if not is_vector(env):
        return None
    said = named_mode(env)
    said = AutoresetMode.SAME_STEP if said is None else said
    word = said.value if isinstance(said, AutoresetMode) else str(said).replace("_", "")
    return next((mode for mode in AutoresetMode if mode.value.lower() == word.lower()), None)


def resets_lanes(env: VectorEnv) -> bool:
    """Tell whether the lanes of `env` can be reset separately at any time. Gymnasium's and ale-py's can."""
    inner = env.unwrapped
    return isinstance(inner, SyncVectorEnv | AsyncVectorEnv) or type(inner).__module__.startswith("ale_py.")


def describe_resets(env: VectorEnv) -> str:
    """Describe how lanes are reset."""
    mode = autoreset_mode(env)
    if mode is not AutoresetMode.SAME_STEP:
        return RESETS[mode]
    more = "is reset once more" if resets_lanes(env) else "makes the first step of its next episode unseen"
    return f"its own, in the same step: a lane that ends while others continue {more}"


def single_lane(make: Factory, title: str) -> gymnasium.Env | VectorEnv:
    """Build one environment, or a vector environment of one lane. If the number of lanes is fixed, it keeps that
    number. Raises UserError for EnvPool's environments and unsupported reset modes.
    """
    env = build_vector(make, 1)
    if any(c.__module__.startswith("envpool.") for c in type(env).__mro__):
        raise UserError(f"{title}: is an EnvPool, which takes its seeds when it is made; give --env envpool:TASK")
    masked = isinstance(env, VectorEnv)  # mode DISABLED needs a VectorEnv: other classes reset lanes in other ways
    allowed = [mode for mode in AutoresetMode if masked or mode is not OFF]
    if not is_vector(env) or autoreset_mode(env) in allowed:
        return env
    with contextlib.suppress(Exception):
        env.close()
    given = f"{type(env.unwrapped).__name__} says autoreset_mode {named_mode(env)!r}"
    raise UserError(f"{title}: {given}, allowed: {', '.join(mode.name for mode in allowed)}")


def mask_note(title: str) -> UserError:
    """Return the error that a vector environment has action masks, which are not supported."""
    return UserError(f"{title}: has action masks, which vector environments do not support; return a single one")


def check_lanes(envs: Envs, spec: EnvSpec) -> None:
    """Raise UserError if the vector environment cannot have the number of lanes that each group of the pool needs."""
    if not envs.fixed:
        why = f"a vector environment steps all its lanes at once, without at_once={envs.at_once}"
        raise UserError(f"{envs.title}: {why}")
    n = envs.lanes // envs.groups
    if spec.width not in (0, n):
        ways = f"give the function a parameter num_envs, or choose lanes so that each group has {spec.width}"
        raise UserError(f"{envs.title}: makes {spec.width} environments, but a group of the pool has lanes={n}: {ways}")


def not_an_env(made: Any) -> str:
    """Return why `made` is not an environment, with a remedy, or "" if it is an environment."""
    name = type(getattr(made, "unwrapped", made)).__name__
    if isinstance(made, type):
        return f"returned the class {made.__name__}, not an environment: return {made.__name__}()"
    if pettingzoo.is_parallel(made) or pettingzoo.is_turn_based(made):
        return ""
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        ways = (
            "import gymnasium as gym, or wrap it: shimmy.GymV26CompatibilityV0(env=…) or GymV21CompatibilityV0(env=…)"
        )
        return f"returned {name}, an environment of gym, which gymnasium replaced: {ways}"
    if not isinstance(made, gymnasium.Env | VectorEnv):
        ways = "inherit from gymnasium.Env, or give a PettingZoo environment possible_agents"
        return f"returned {'None' if made is None else name}, which is not a gymnasium.Env: {ways}"
    new = "def reset(self, *, seed=None, options=None), which returns (observation, info)"
    old = f"reset() of {name} takes no seed, as gym's before 0.26: write {new}"
    return _space_flaw(made) or ("" if _takes(made.unwrapped, "seed") else old)


def _space_flaw(env: Any) -> str:
    """Return the first flaw of an environment's declared spaces, with a remedy, or "" without a flaw."""
    single = "single_" if is_vector(env) else ""
    for which in (f"{single}observation_space", f"{single}action_space"):
        space, name = getattr(env, which, None), type(env.unwrapped).__name__
        if isinstance(space, gymnasium.Space):
            continue
        if type(space).__module__.partition(".")[0] == "gym":
            return f"{which} of {name} is a space of gym, which gymnasium replaced: import gymnasium as gym"
        is_what = "None" if space is None else f"{rules.describe_value(space)}, not a space"
        return f"{which} of {name} is {is_what}: set it in __init__, as in gymnasium.spaces.Discrete(2)"
    return ""


def _takes(env: Any, name: str) -> bool:
    """Tell whether reset() of `env` takes the keyword `name`."""
    try:
        parameters = signature(env.reset).parameters
    except (TypeError, ValueError):  # compiled code has no signature; the first reset tests the keyword
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


USUAL = {"minigrid": ("polyplay.envs.build:Symbols",)}  # package → default wrappers
VERSION = re.compile(r"-v\d+$")
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
ALLOWED = {  # option → allowed values
    "--env": "a Gymnasium id, ALE/Game-v5, toy:name, module:EnvId-v0 or module:callable",
    "--wrapper": "module:callable, a function that takes an environment and returns one",
    "--env-options": "NAME=VALUE …, or module:callable, a function of the run's progress (0 to 1) that returns a dict",
    "polyplay_bots": "module:callable, a function of observations and masks that returns actions",
}

# ------------------------------------------------------------------------------------------- by name


def factory(name: str | Factory, kwargs: Mapping[str, Any], progress: Any = None) -> Factory:
    """Return a function that builds the environment `name`, single or vector. `kwargs` and the function's own arguments
    go to the environment. `progress`: see Envs. Raises UserError if `name` does not exist.
    """
    if RESET in kwargs:
        plain = {k: v for k, v in kwargs.items() if k != RESET}
        return ResetOptions(factory(name, plain), kwargs[RESET], progress)
    if atari.is_game(name, kwargs):
        from polyplay.envs.atari_emulator import AtariEnv

        return lambda: AtariEnv(str(name), kwargs)
    if (shown := kwargs.get(IMAGES)) is not None:
        make = factory(name, {k: v for k, v in kwargs.items() if k != IMAGES})
        return image_view.wrapped(make, factory_keywords(make), shown, title_of(name))
    wrappers = kwargs.get(WRAPPERS)
    if wrappers:
        plain = {k: v for k, v in kwargs.items() if k != WRAPPERS}
        return _wrapped(_unwrapped(name, plain), wrappers)
    make = _unwrapped(name, kwargs)
    return _wrapped(make, USUAL[where]) if (where := _module(name)) in USUAL else make


def _unwrapped(name: str | Factory, kwargs: Mapping[str, Any]) -> Factory:
    """Like `factory`, but without wrappers."""
    if callable(name):
        return partial(name, **kwargs)
    module, colon, attribute = name.partition(":")
    if not colon:
        return _registered(name, kwargs)
    found = _import(module, name)
    if VERSION.search(attribute) or (attribute in gymnasium.registry and not hasattr(found, attribute)):
        return _registered(attribute, kwargs)
    return partial(imported(name), **kwargs)


def _module(name: str | Factory) -> str:
    """Return the package that implements a registered environment, or "" for names that are not registered."""
    known = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    return str(known.entry_point).partition(".")[0] if known else ""


def _wrapped(make: Factory, wrappers: Iterable[str]) -> Factory:
    """Return a function that builds the environment inside its wrappers. Raises UserError if a wrapper is missing."""
    around = [(name, imported(name, "--wrapper")) for name in wrappers]

    def build() -> gymnasium.Env:
        env = make()
        for name, wrap in around:
            env = _put_around(env, name, wrap)
        return env

    return build


class ResetOptions:
    """Builds environments whose resets get options. The options are fixed, or a curriculum computes them from the
    progress of the run. Raises UserError if the curriculum fails.
    """

    def __init__(self, make: Factory, given: Any, progress: Any):
        self.make, self.given, self.progress, self.keywords = make, given, progress, getattr(make, "keywords", ())
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = signature(make)
        if not isinstance(given, Mapping):
            self.curriculum = given if callable(given) else imported(given, "--env-options")
            _ = self.at(0.0), self.at(1.0)

    def __call__(self, **given: Any) -> Any:
        env = as_vector(self.make(**given))
        return self.give(env) if hasattr(env, "reset") else env  # objects without reset() are refused later

    def at(self, progress: float) -> dict[str, Any]:
        """Return the curriculum's options at `progress`, from 0 to 1. Raises UserError if the curriculum fails."""
        try:
            found = self.curriculum(progress)
        except Exception as e:
            raise _refusal("--env-options", title_of(self.given), f"it raised {one_line(e)}") from e
        if not isinstance(found, Mapping):
            text = f"it returned {rules.describe_value(found)} at progress {progress:g}"
            raise _refusal("--env-options", title_of(self.given), text)
        return dict(found)

    def now(self) -> dict[str, Any]:
        """Return the options for a reset now. Outside of a run, the progress is 1."""
        if isinstance(self.given, Mapping):
            return dict(self.given)
        return self.at(1.0 if self.progress is None else 1.0 - self.progress.remaining)

    def give(self, env: Any) -> Any:
        """Pass the options to all resets of `env`, and return `env`. Raises UserError if reset() takes no options."""
        inner = getattr(env, "unwrapped", env)
        if not _takes(inner, "options"):
            need = "write def reset(self, *, seed=None, options=None)"
            raise UserError(f"--env-options: given, but reset() of {type(inner).__name__} takes none: {need}")
        reset = env.reset

        @wraps(reset)
        def reset_with_options(*args: Any, options: Any = None, **more: Any) -> Any:
            return reset(*args, options={**self.now(), **(options or {})}, **more)

        env.reset = reset_with_options
        return env


def _put_around(env: gymnasium.Env, name: str, wrap: Callable[..., Any]) -> gymnasium.Env:
    """Wrap an environment. Raises UserError if the wrapper raises an exception, or does not return an environment."""
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
    """Return the callable named "module:attribute". Raises UserError if no such callable exists."""
    module, _, attribute = name.partition(":")
    found = _import(module, name, option)
    try:
        make = look_up(found, attribute)
    except AttributeError:
        public = [k for k, v in vars(found).items() if callable(v) and not k.startswith("_")]
        raise _refusal(option, name, f"{module} has no {attribute!r}{closest_names(attribute, public)}") from None
    if not callable(make):
        raise _refusal(option, name, f"{attribute} must be callable, not {type(make).__name__}")
    return make


def _import(module: str, name: str, option: str = "--env") -> ModuleType:
    return user_modules.import_module(module, name, option, ALLOWED[option])


def _registered(name: str, kwargs: Mapping[str, Any]) -> Factory:
    name, own = atari.registered(name)
    kwargs = {**own, **kwargs}
    known = gymnasium.registry.get(name)
    if known is None and (hint := user_modules.file_hint(name)):
        raise _refusal("--env", name, hint)
    if known is None and all(VERSION.sub("", k) != name for k in gymnasium.registry):  # the name exists in no version
        raise UserError(f"--env: unknown environment {name!r}{_hint(name)}; allowed: {ALLOWED['--env']}")
    if known is not None and known.entry_point is None:  # registered as a vector environment only

        def many(num_envs: int = 1) -> gymnasium.vector.VectorEnv:
            return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)

        return many
    return partial(gymnasium.make, name, disable_env_checker=True, **kwargs)


def _hint(name: str) -> str:
    if name.startswith(("MiniGrid-", "BabyAI-")):
        return f", did you mean 'minigrid:{name}'?"
    TOYS = importlib.import_module("polyplay.games.toys").TOYS

    return closest_names(name, [*atari.current_names(), *(f"toy:{toy}" for toy in TOYS)])


# ------------------------------------------------------------------------- building and description


def build_env(make: Factory, title: str) -> Any:
    """Build the environment of a factory. A turn-based PettingZoo environment becomes a parallel one. Raises UserError
    if this fails, or if the result is not an environment.
    """
    try:
        with seeding_torch():
            env = single_lane(make, title)
        flaw = not_an_env(env)
    except UserError:
        raise
    except BaseException as e:
        raise UserError(f"{title}: could not be built: {one_line(e)} {rules.rule_suffix('build')}") from e
    if flaw:
        raise UserError(f"{title}: {flaw} {rules.rule_suffix('build')}")
    return pettingzoo.parallel_of(env)


def inspect_env(env: Any, title: str) -> EnvSpec:
    """Describe an environment by its spaces. For a vector environment, describe one lane. Raises UserError if a space
    or an action mask is not supported.
    """
    if pettingzoo.is_parallel(env):
        return pettingzoo.inspect_players(env, title)
    limit = getattr(env.spec, "max_episode_steps", None)
    if not is_vector(env):
        seen, acted = env.observation_space, env.action_space
    else:
        seen, acted = env.single_observation_space, env.single_action_space
        if any(masks.mask_method(part) for part in (env, *getattr(env.unwrapped, "envs", ())[:1])):
            raise mask_note(title)
        limit = getattr(env.spec, "kwargs", {}).get("max_episode_steps", limit)  # make_vec keeps the limit here
    note = f" ({text})" if (text := getattr(env, "note", "")) else ""
    spec = spec_of_spaces(seen, acted, title, declared_uses(env), note)
    if spec.mask is not None and is_vector(env):
        raise mask_note(title)
    if isinstance(env, image_view.ImageWrapper | image_view.VectorImages):
        skip = max(env.view.options.skip, 1)
        spec = replace(spec, images=env.view.images, view=image_view.view_to_json(env.view), frames_per_step=skip)
        limit = limit and -(-limit // skip)  # in agent steps
    shown, taken, *mask = spec.describe.items()
    ends = "time limit", f"{limit} steps" if limit else OWN_LIMIT
    return replace(spec, describe=dict([("environment", title), shown, taken, ends, *mask]))


def describe(name: str | Factory, options: Mapping[str, object], timed: bool = False) -> EnvSpec:
    """Build an environment, describe it by its spaces and by the info of a reset, and close it. `timed`: whether to
    measure the seconds per step, for Gymnasium's own environments only. Raises UserError if the environment is not
    usable.
    """
    title = title_of(name)
    make = factory(name, options)
    begun = time.perf_counter()
    try:
        env = build_env(make, title)
    except UserError as e:
        raise _unknown_keyword(e.__cause__, name, options) or e from None
    took = time.perf_counter() - begun
    try:
        spec = _described(env, make, title)
        if timed and WRAPPERS not in options and _module(name) == OWN and not spec.vector:
            spec = replace(spec, step_time=step_time(env))
    finally:
        with contextlib.suppress(Exception, SystemExit):
            env.close()
    if took < rules.QUICK:
        rules.check_second(lambda: build_env(make, title), env, title)
    return spec


OWN = "gymnasium"  # package whose environments neither hang nor change the process that steps them
WINDOW, WINDOWS = 0.005, 5  # seconds of a measurement of a step, and number of measurements; the fastest counts


def step_time(env: gymnasium.Env) -> float:
    """Return the seconds per step with random actions, or 0 if they cannot be measured."""
    if any(type(layer).__module__.partition(".")[0] != OWN for layer in wrappers_of(env)):
        return 0.0
    try:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(64)]
        env.reset(seed=0)
        return min(_window(env, actions) for _ in range(WINDOWS))
    except Exception:  # the run reports the error
        return 0.0


def _window(env: gymnasium.Env, actions: list[Any]) -> float:
    steps, begun = 0, time.thread_time()
    while (took := time.thread_time() - begun) < WINDOW:
        _, _, terminated, truncated, _ = env.step(actions[steps % len(actions)])
        steps += 1
        if terminated or truncated:
            env.reset()
    return took / steps


def _described(env: Any, make: Factory, title: str) -> EnvSpec:
    spec = inspect_env(env, title)
    if is_vector(env):
        text = {**spec.describe, "vector": type(env.unwrapped).__name__, "resets": describe_resets(env)}
        width = 0 if "num_envs" in factory_keywords(make) else env.num_envs
        return replace(spec, describe=text, vector=True, width=width)
    if spec.kinds:
        mask, team = pettingzoo.seen_in_info(env, spec, title)
        spec = replace(spec, mask=spec.mask if mask is None else mask, team_reward=team)
        return spec if mask is None else replace(spec, describe={**spec.describe, "action mask": "from info"})
    if spec.mask is None:
        mask, source = masks.shown_mask(spec.action, env, title)
        text = {"action mask": source} if mask is not None else {}
        spec = replace(spec, mask=mask, describe={**spec.describe, **text})
    if spec.mask is not None and spec.frames_per_step > 1:
        why = f"{title} has action masks, which may change with every step"
        raise UserError(f"--frame-skip: given, but {why}: leave it out")
    return spec


def _unknown_keyword(why: BaseException | None, name: str | Factory, options: Mapping[str, object]) -> UserError | None:
    """Return an error about an option that the environment does not take, or None if `why` is another error."""
    found = UNEXPECTED.search(str(why)) if isinstance(why, TypeError) else None
    if found is None or found[1] not in options or found[1] == "render_mode":  # --video sets render_mode
        return None
    known = _keywords(name)
    which = f"{closest_names(found[1], known)}; allowed: {', '.join(known)}" if known else ""
    return UserError(f"--env-kwargs: {found[1]} given, which {title_of(name)} does not take{which}; leave it out")


def _keywords(name: str | Factory) -> list[str]:
    """Return the keyword arguments that an environment takes, or [] if they are unknown."""
    known = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    try:
        make: Any = known.entry_point if known else imported(name) if isinstance(name, str) else name
        make = load_env_creator(make) if isinstance(make, str) else make
        own = signature(make).parameters.values()
    except (TypeError, ValueError, UserError):
        return []
    named = [p.name for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named += ["max_episode_steps"] if known else []  # taken by gymnasium.make
    return [*named, *(["…"] if named and any(p.kind == p.VAR_KEYWORD for p in own) else [])]


def one_line(e: BaseException) -> str:
    """Format an error as 'ValueError: text (file.py:12)', with the file and line of the innermost frame."""
    if isinstance(e, SystemExit):
        return f"it {user_modules.ending(e)}"
    text = " ".join(str(e).split())
    frames = traceback.extract_tb(e.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}{': ' if text else ''}{text}{where}"
