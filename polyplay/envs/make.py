"""From a name to an environment: which pool serves it, and how one environment of it is built."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

import gymnasium

from polyplay.common.errors import UserError
from polyplay.envs.pool import Envs, EnvSpec, Factory, Pool, closest_names, options

VERSION = re.compile(r"-v\d+$")


def describe(envs: Envs) -> EnvSpec:
    """What a lane of `envs` shows and takes. Raises UserError."""
    if envs.title.startswith("ALE/"):
        from polyplay.envs.atari.native import describe as of_native

        return of_native(envs)
    if envs.title.startswith("toy:"):
        from polyplay.envs.toys.games import describe as of_toy

        return of_toy(envs)
    if envs.title.startswith("envpool:"):
        from polyplay.envs.pools.envpool import describe as of_envpool

        return of_envpool(envs)
    if envs.inline:
        from polyplay.envs.pools.build import describe as of_gymnasium

        spec = of_gymnasium(envs.name, envs.options)
    else:
        from polyplay.envs.pools.client import describe as of_process

        spec = of_process(envs)
    if spec.vector:
        from polyplay.envs.pools.vector_modes import check_lanes

        check_lanes(envs, spec)
    return spec


def connect(envs: Envs, seed: int, lane: int) -> Pool:
    """A pool of `envs`; `lane` is its first lane's number in the run. Raises UserError."""
    if envs.title.startswith("ALE/") and native(envs):
        from polyplay.envs.atari.native import NativePool

        return NativePool(envs, seed, lane)
    if envs.title.startswith("toy:"):
        from polyplay.envs.toys.games import ToyPool

        return ToyPool(envs, seed, lane)
    if envs.title.startswith("envpool:"):
        from polyplay.envs.pools.envpool import EnvPoolPool

        return EnvPoolPool(envs, seed, lane)
    if envs.spec.vector:
        from polyplay.envs.pools.vector import VectorPool

        return VectorPool(envs, seed, lane)
    if envs.inline:
        from polyplay.envs.pools.inline import InlinePool

        return InlinePool(envs, seed, lane)
    from polyplay.envs.pools.process import ProcessPool

    return ProcessPool(envs, seed, lane)


def native(envs: Envs) -> bool:
    """Whether ale-py's vector environment serves these options of an Atari game."""
    from polyplay.envs.atari.presets import Atari

    return options(Atari, envs.options, envs.title).native


# ---------------------------------------------------------------------- one Gymnasium environment


def factory(name: str | Factory, kwargs: Mapping[str, Any]) -> Factory:
    """A function that builds one environment, or a vector of them; its signature is the one that `name` has besides
    `kwargs`. Raises UserError: no such environment, module or attribute.
    """
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


def imported(name: str) -> Callable[..., Any]:
    """What "module:attribute" names. Raises UserError: no such module or attribute, or one that cannot be called."""
    module, _, attribute = name.partition(":")
    found = _import(module, name)
    try:
        make = attrgetter(attribute)(found)
    except AttributeError:
        public = [k for k, v in vars(found).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"{name}: {module} has no {attribute!r}{closest_names(attribute, public)}") from None
    if not callable(make):
        raise UserError(f"{name}: {attribute} is no callable that returns a gymnasium.Env but {type(make).__name__}")
    return make


def _import(module: str, name: str) -> ModuleType:
    if os.getcwd() not in sys.path:  # a command line tool has no entry for it
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        what = f"no module {e.name!r}" + ("" if e.name == module else f", which {module} imports")
        raise UserError(f"{name}: {what}; it must be installed or lie in {os.getcwd()}") from None
    except Exception as e:
        raise UserError(f"{name}: importing {module} failed: {type(e).__name__}: {e}") from e


def _registered(name: str, kwargs: Mapping[str, Any]) -> Factory:
    known = gymnasium.registry.get(name)
    if known is None and not _versionless(name):
        raise UserError(
            f"unknown environment {name!r}{_hint(name)}; give a Gymnasium id, ALE/Game-v5, toy:name, "
            "module:EnvId-v0 or module:callable"
        )
    if known is not None and known.entry_point is None:  # there are only vectors of it

        def many(num_envs: int = 1) -> gymnasium.vector.VectorEnv:
            return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)

        return many
    return partial(gymnasium.make, name, disable_env_checker=True, **kwargs)


def _versionless(name: str) -> bool:
    return any(VERSION.sub("", known) == name for known in gymnasium.registry)


def _hint(name: str) -> str:
    from polyplay.envs.toys.games import TOYS

    try:
        from polyplay.envs.atari.native import games

        atari = games()
    except UserError:
        atari = {}
    game = re.sub("(NoFrameskip|Deterministic)$", "", VERSION.sub("", name))
    if game in atari:
        return f", did you mean 'ALE/{game}-v5'?"
    return closest_names(name, [*gymnasium.registry, *(f"toy:{k}" for k in TOYS), *(f"ALE/{g}-v5" for g in atari)])
