"""Describe the environments of an `Envs`, and open a pool that steps them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.envs import build, process_pool
from polyplay.envs.atari import is_game, read_options
from polyplay.envs.base_pool import UnitPool, units_of_turn
from polyplay.envs.build import check_lanes
from polyplay.envs.pool import Envs, EnvSpec, Pool, task_words
from polyplay.envs.process_pool import ProcessPool
from polyplay.envs.process_state import GlobalGenerators
from polyplay.envs.shared_rows import check_groups
from polyplay.envs.vector_pool import NativePool, VectorPool

# Prefix of an environment's name → module with describe(envs) and, except for Atari, connect(envs, seed, lane). Modules
# are imported when needed, because some import Numba. All other names are Gymnasium environments.
POOLS = {
    "ALE/": "polyplay.envs.atari",
    "envpool:": "polyplay.envs.envpool",
    "toy:": "polyplay.games.toys",
    "game:": "polyplay.games.board_pool",
    "arena:": "polyplay.games.toys",
}


_known: ContextVar[EnvSpec | None] = ContextVar("spec", default=None)
_described: ContextVar[list[tuple[Envs, EnvSpec]] | None] = ContextVar("described", default=None)


@contextlib.contextmanager
def known_spec(spec: EnvSpec) -> Iterator[None]:
    """Within this context, use `spec` as the description of all environments, so that none is built to describe it."""
    token = _known.set(spec)
    try:
        yield
    finally:
        _known.reset(token)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Within this context, describe each Gymnasium environment only once."""
    token = _described.set([])
    try:
        yield
    finally:
        _described.reset(token)


def describe(envs: Envs) -> EnvSpec:
    """Describe a lane (parallel environment). Raises UserError if the environment is unknown or lanes do not fit."""
    spec = _spec_of(envs)
    _check(envs, spec)
    return spec


def whole_matches(envs: Envs) -> Envs:
    """Return `envs` with a number of lanes that fits the environment. For several players, the number is rounded up to
    whole matches. A vector environment may fix the number. Raises UserError if the environment refuses it.
    """
    if "spec" in envs.__dict__:  # checked already
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
    if envs.task_input != "none" and not task_words(envs.name):
        raise UserError(
            f"--task-input: {envs.task_input} given, but --env {envs.title} is one environment: leave it out"
        )
    if (own := _own(envs)) is not None:
        found: EnvSpec = own.describe(envs)
        return found
    there = _described.get()
    for other, spec in there or ():
        if (other.name, other.options) == (envs.name, envs.options):
            return spec
    spec = _describe_here(envs) if envs.inline else process_pool.describe(envs)
    if there is not None:
        there.append((envs, spec))
    return spec


def _own(envs: Envs) -> Any:
    if task_words(envs.name):
        return importlib.import_module("polyplay.envs.tasks")
    start = "ALE/" if is_game(envs.name, envs.options) else envs.title
    module = next((module for beginning, module in POOLS.items() if start.startswith(beginning)), None)
    return None if module is None else importlib.import_module(module)


def _describe_here(envs: Envs) -> EnvSpec:
    """Describe `envs` in this process, and leave the global random generators unchanged."""
    generators = GlobalGenerators(0)
    generators.enter()
    try:
        return build.describe(envs.name, envs.options)
    finally:
        generators.leave()


def connect(envs: Envs, seed: int, lane: int) -> Pool:
    """Make a pool that steps `envs`. lane: number of the pool's first lane in the run. Raises UserError."""
    if is_game(envs.name, envs.options) and not task_words(envs.name):
        if native(envs):
            return NativePool(envs, seed, lane)
    elif (own := _own(envs)) is not None:
        pool: Pool = own.connect(envs, seed, lane)
        return pool
    if envs.spec.vector:
        return VectorPool(envs, seed, lane)
    here, n = split_steps(envs)
    return ProcessPool(envs, seed, lane, n, here) if n else UnitPool(envs, seed, lane)


# Stepping lanes in another process costs 70 to 130 µs per turn (one step of a group): wake-up, cold caches, waiting,
# reading the answer (2 cores, 0 and 100 µs of acting between two turns). A smaller share of a turn is not worth a
# process. A turn of eight CartPoles takes 70 µs, of eight HalfCheetahs 370 µs.
SHARE = 1.5e-4  # seconds of stepping per turn that are worth another process


def split_steps(envs: Envs) -> tuple[bool, int]:
    """Return whether the caller's thread steps environments, and how many processes do. Results do not depend on it."""
    if envs.inline:
        return True, 0
    sides, turn = min(envs.workers or cores(), units_of_turn(envs)), envs.spec.step_time * units_of_turn(envs)
    if envs.inline is False or not turn or not envs.fixed:
        return False, sides
    if turn < SHARE:
        return True, 0
    return (True, min(sides, int(turn / SHARE)) - 1) if envs.helps else (False, sides)


def native(envs: Envs) -> bool:
    """Tell whether ale-py's vector environment plays this Atari game with its options."""
    return is_game(envs.name, envs.options) and read_options(envs.title, envs.options).native
