"""From a description to what its lanes show and take, and to the pool that serves it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace

from polyplay.envs import build, envpool, process_pool
from polyplay.envs.atari import Atari, NativePool
from polyplay.envs.atari import describe as describe_game
from polyplay.envs.base_pool import check_groups
from polyplay.envs.build import check_lanes
from polyplay.envs.inline_pool import InlinePool, VectorPool
from polyplay.envs.pool import Envs, EnvSpec, Pool, options
from polyplay.envs.process_pool import ProcessPool
from polyplay.envs.process_state import GlobalGenerators

GAMES = {  # modules with describe(envs) and connect(envs, seed, lane), loaded when a name asks: some bring Numba
    "toy:": "polyplay.games.toys",
    "game:": "polyplay.games.board_pool",
    "arena:": "polyplay.games.toys",
}


def _games(module: str) -> tuple[Callable[[Envs], EnvSpec], Callable[[Envs, int, int], Pool]]:
    """Its describe and connect."""
    return (
        lambda envs: importlib.import_module(module).describe(envs),
        lambda envs, seed, lane: importlib.import_module(module).connect(envs, seed, lane),
    )


# by how a name begins; all others are Gymnasium environments
POOLS: dict[str, tuple[Callable[[Envs], EnvSpec], Callable[[Envs, int, int], Pool]]] = {
    "ALE/": (describe_game, NativePool),
    "envpool:": (envpool.describe, envpool.EnvPoolPool),
    **{name: _games(module) for name, module in GAMES.items()},
}


_known: ContextVar[EnvSpec | None] = ContextVar("spec", default=None)


@contextlib.contextmanager
def known_spec(spec: EnvSpec) -> Iterator[None]:
    """Meanwhile every description of environments is of these, and none is made."""
    token = _known.set(spec)
    try:
        yield
    finally:
        _known.reset(token)


def describe(envs: Envs) -> EnvSpec:
    """What a lane of `envs` shows and takes. Raises UserError: also of lanes that make no whole matches."""
    spec = _spec_of(envs)
    _check(envs, spec)
    return spec


def whole_matches(envs: Envs) -> Envs:
    """The same with so many lanes more that they make whole matches, or as many as a vector environment always has.
    Raises UserError.
    """
    if "spec" in envs.__dict__:  # which was checked
        return envs
    spec = _spec_of(envs)
    together = spec.width * envs.groups if envs.fixed else 0
    made = replace(envs, lanes=together or -(-envs.lanes // spec.seats) * spec.seats)
    made.__dict__["spec"] = spec
    _check(made, spec)
    return made


def _check(envs: Envs, spec: EnvSpec) -> None:
    if spec.vector and _known.get() is None:
        check_lanes(envs, spec)
    if spec.seats > 1:
        check_groups(envs, spec.seats)


def _spec_of(envs: Envs) -> EnvSpec:
    if (known := _known.get()) is not None:
        return known
    for beginning, (own, _) in POOLS.items():
        if envs.title.startswith(beginning):
            return own(envs)
    return _describe_here(envs) if envs.inline else process_pool.describe(envs)


def _describe_here(envs: Envs) -> EnvSpec:
    """In this process, whose global generators stay as they are."""
    generators = GlobalGenerators(0)
    generators.enter()
    try:
        return build.describe(envs.name, envs.options)
    finally:
        generators.leave()


def connect(envs: Envs, seed: int, lane: int) -> Pool:
    """A pool of `envs`; `lane` is its first lane's number in the run. Raises UserError."""
    for beginning, (_, pool) in POOLS.items():
        if envs.title.startswith(beginning) and (pool is not NativePool or native(envs)):
            return pool(envs, seed, lane)
    if envs.spec.vector:
        return VectorPool(envs, seed, lane)
    return InlinePool(envs, seed, lane) if envs.inline else ProcessPool(envs, seed, lane)


def native(envs: Envs) -> bool:
    """Whether ale-py's vector environment serves these options of an Atari game."""
    return options(Atari, envs.options, envs.title).native
