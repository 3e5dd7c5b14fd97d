"""Games of teams, arena:ctf and arena:lanes, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyplay.core.errors import UserError
from polyplay.envs.pool import Envs, EnvSpec, options
from polyplay.games.ctf import CaptureTheFlag
from polyplay.games.ctf_rules import World
from polyplay.games.moba import LaneGame
from polyplay.games.moba_world import LaneWorld
from polyplay.games.toys import MatchPool, spec_of, switch

PREFIX = "arena:"
ARENAS: dict[str, tuple[type, Callable[[Any], Any]]] = {  # by name: options, and the game that they make
    "ctf": (World, CaptureTheFlag),
    "lanes": (LaneWorld, LaneGame),
}


def arena(envs: Envs) -> Any:
    """The game that `envs` names: arena:ctf, arena:lanes+team=2+lanes=1. Raises UserError."""
    name, *switches = envs.title.removeprefix(PREFIX).split("+")
    if name not in ARENAS:
        known = [PREFIX + k for k in ARENAS]
        raise UserError(
            f"--env: {envs.title} given, allowed: {', '.join(known)}, with options after a +: {known[0]}+size=21"
        )
    world, game = ARENAS[name]
    return game(options(world, {**dict(map(switch, switches)), **envs.options}, PREFIX + name))


def connect(envs: Envs, seed: int, lane: int) -> MatchPool:
    return MatchPool(envs, arena(envs), seed, lane)


def describe(envs: Envs) -> EnvSpec:
    """Raises UserError."""
    return spec_of(envs, arena(envs))
