"""Functions that choose a preset (named values of options) for an environment, and that plan populations of runs.

A system's presets for the games of its paper are in pages.toml. Presets that Polyplay tuned for other kinds of
environments (domains), or for single board games, are in tuned.toml. This module does not import torch.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, get_type_hints

from polyplay import systems
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.envs.atari import is_game
from polyplay.envs.pool import WRAPPERS, Envs, EnvSpec, task_order, task_words
from polyplay.envs.spaces import Discrete
from polyplay.population.rules import Evolution, Prior, combinations, parse_prior
from polyplay.population.trainer import PopulationPlan
from polyplay.systems import Page, System
from polyplay.workers.crew import Crew
from polyplay.workers.hosts.cluster import MachineInfo

AUTO = "auto"
MODULES = {  # domain by the module where Gymnasium's registry finds the class
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
}
EXAMPLES = {  # environment of a domain's preset, unless --env is given
    "atari": "ALE/Pong-v5",
    "classic": "CartPole-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "HalfCheetah-v5",
    "minigrid": "minigrid:MiniGrid-MemoryS7-v0",
    "images": "CarRacing-v3",
}
CLIPPED = ("clip", "sign")
LARGE, SIDE = 128, 84  # pixels of an image's smaller side: most without resizing; after resizing
SIDES = {"game:go": 19, "game:othello": 8}  # cells of a board's side, if the game's name has no size


def names(page: Page) -> list[str]:
    """Return the names of all presets of a system, including those that are tuned for domains."""
    return [*page.presets, *tuned(page)]


def tuned(page: Page) -> dict[str, dict[str, Any]]:
    """Return {domain: settings} of a system from tuned.toml. Besides options, settings may have `source` (where they
    come from) and `envs` (settings of single environments).
    """
    found: dict[str, dict[str, Any]] = systems.read_settings("tuned.toml").get((page.over or page).name, {})
    return found


def choose(page: Page, env: Any, **made: Any) -> str:
    """Return the name of the preset that fits an environment. made: keyword arguments for Envs, such as `kwargs`."""
    where, there = domain(env, **made), tuned(page)
    plain = "paper" if "paper" in page.presets else next(iter(page.presets))
    if str(page.Config().env).startswith("game:"):
        return _of_game(page, str(env))
    if where in ("atari", "toy") or not there:
        return where if where in there else plain
    if (spec := _described(env, **made)) is None:
        return where if where in there else plain
    if spec.image_leaves:  # presets for other domains are tuned for vectors of numbers
        return "images" if "images" in there else plain
    if where in there:
        return where
    likeliest = "classic" if isinstance(spec.action, Discrete) else "mujoco"
    return next((name for name in (likeliest, "classic", "mujoco") if name in there), plain)


def _described(env: Any, **made: Any) -> EnvSpec | None:
    """Return the environment's spec, or None if the environment cannot be made."""
    try:
        return Envs(env, 1, **made).spec
    except UserError:
        return None


def _of_game(page: Page, env: str) -> str:
    """Return the preset for this game, or else for the same game on the board of the nearest size, or else "quick"."""
    named = {settings(page, name).env: name for name in reversed(names(page))}
    sides = {game: _side(game) for game in named if game.split("+")[0] == env.split("+")[0]}
    nearest = min(sides, key=lambda game: abs(sides[game] - _side(env)), default="")
    return named.get(env) or named.get(nearest, "quick")


def _side(game: str) -> int:
    """Return the number of cells along one side of a game's board, or 0 if the number is not known."""
    given = [word.removeprefix("size=") for word in game.split("+") if word.startswith("size=")]
    return int(given[0]) if given and given[0].isdecimal() else SIDES.get(game.split("+")[0], 0)


def domain(env: Any, kwargs: Mapping[str, Any] | None = None, wrappers: tuple[str, ...] = (), **others: Any) -> str:
    """Return the domain (kind) of an environment: atari, toy, one of the values of MODULES, or other. Board games
    belong to the domain classic. kwargs, wrappers: as for Envs. Other arguments of Envs have no effect.
    """
    if not isinstance(env, str):
        return "other"
    if env.startswith("toy:"):
        return "toy"
    if is_game(env, {**(kwargs or {}), WRAPPERS: wrappers}):
        return "atari"
    if env.startswith("game:"):  # small vectors and discrete actions, as in classic
        return "classic"
    module, _, name = env.rpartition(":")
    import gymnasium

    if module in MODULES.values() and importlib.util.find_spec(module):
        importlib.import_module(module)  # the module registers its environments
    spec = gymnasium.registry.get(name)
    point = getattr(spec, "entry_point", "")
    return next((where for start, where in MODULES.items() if str(point).startswith(start)), "other")


def settings(page: Page, name: str, env: Any = None, automatic: bool = False, **made: Any) -> Any:
    """Return a preset's configuration. If the preset is tuned for a domain, add the environment's own settings.

    `automatic`: whether the user named no preset, so that Polyplay chose this one. `made`: keyword arguments for Envs.
    Raises UserError if the preset does not exist.
    """
    there = tuned(page)
    if name in page.presets:
        found = page.presets[name]()
        # a user's page is not adapted
        plain = ":" in page.name or not automatic or env is None or domain(env, **made) == "atari"
        return found if plain else _beyond_atari(found)
    if name not in there:
        near = difflib.get_close_matches(name, names(page), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--preset: '{name}' given, allowed for {page.name}: {', '.join([AUTO, *names(page)])}{hint}")
    section = dict(there[name])
    if automatic and env is not None and domain(env, **made) != name:
        section.pop("actions", None)  # the reference code of another domain does not apply
    like, own, _ = section.pop("like", None), section.pop("envs", {}).get(env, {}), section.pop("shown", None)
    values = {"env": EXAMPLES.get(name), **section, **own} | ({} if env is None else {"env": env})
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "source"}
    first = page.presets[like]() if like else page.Config()
    return replace(first if name == "atari" else _beyond_atari(first), **values)


def _beyond_atari(c: Any) -> Any:
    """Return a copy of `c` for environments other than Atari: with a fitting network and unclipped rewards."""
    known = {f.name for f in fields(c)}
    changes = {"network": "auto"} if "network" in known else {}
    changes |= {"reward": "none"} if vars(c).get("reward") in CLIPPED else {}
    return replace(c, **changes)


def shown_images(page: Page, name: str, env: Any, **made: Any) -> dict[str, Any]:
    """Return the run options by which a preset changes the images in observations. Images larger than LARGE pixels are
    resized, unless the preset gives a size.

    `made`: keyword arguments for Envs.
    """
    if domain(env, **made) == "atari" or str(env).startswith(("toy:", "game:")):
        return {}
    found: dict[str, Any] = dict(tuned(page).get(name, {}).get("shown", {}).get(env, {}))
    if (spec := _described(env, **made)) is None or not spec.image_leaves or spec.seats > 1:
        return found
    sizes = {f.shape[1:] for path, f in tree.leaves(spec.obs) if path in spec.image_leaves}
    if "size" not in found and len(sizes) == 1 and min(size := sizes.pop()) > LARGE:
        found["size"] = "x".join(str(round(n * SIDE / min(size))) for n in size)
    return found


def with_lanes_for_tasks(c: Any, given: Mapping[str, object]) -> Any:
    """Return a preset's configuration with enough parallel environments (lanes) for every task of a list in --env. If
    necessary, enlarge the batch, too. given: options that the user has set, which do not change.
    """
    n, known = len(task_order(task_words(given.get("env", c.env)))), vars(c)
    if n and "workers" in known and "lanes" not in known and "workers" not in given:  # each worker has one lane
        return replace(c, workers=-(-(c.workers or cores()) // n) * n)
    if n == 0 or "lanes" not in known or "lanes" in given:
        return c
    both = {**known, **given}
    parts = int(both.get("groups", 1)) * max(int(both.get("replicas", 1)), 1)
    if both.get("core", "none") != "none" and both.get("algo", "ppo") == "ppo" and "slots" not in known:
        parts *= int(both.get("minibatches", 1))
    unit = math.lcm(n, parts)
    lanes = -(-known["lanes"] // unit) * unit
    queued = {"slots", "batch"} <= known.keys() - given.keys()  # a batch has whole rollouts of all lanes of an actor
    each = lanes * known.get("learners", 1)
    return replace(c, lanes=lanes, **({"batch": -(-c.batch // each) * each} if queued else {}))


def with_fastest(c: Any, serial: bool) -> tuple[Any, dict[str, Any]]:
    """Return a preset's configuration, and the run options that it sets. If `evaluator` is "auto", the run uses the
    fastest backend and precision. With --serial, it uses PyTorch, so that the run repeats bitwise.
    """
    if vars(c).get("evaluator") != "auto":
        return c, {}
    return (replace(c, evaluator="torch"), {}) if serial else (c, {"precision": "auto"})


def use_shared_torso(c: Any) -> Any:
    """Return `c` with one network for policy and value instead of two, because both use the same recurrent core."""
    return replace(c, network="mlp") if c.network == "separate" else c


def warning(page: Page, name: str, env: Any, **made: Any) -> str:
    """Return a warning if a preset is meant for other kinds of environments, or "" if it fits."""
    where, fits = domain(env, **made), name if name in tuned(page) else domain(settings(page, name).env)
    if where in (fits, "toy", "other") or str(env).startswith("game:"):
        return ""
    if fits in ("atari", "images") and (spec := _described(env, **made)) is not None and spec.image_leaves:
        return ""  # both show images
    better = choose(page, env, **made)
    if better == name:
        return f"{page.name} has no settings for {where} environments such as {env}: it uses those for {fits}"
    return f"--preset {name} is for {fits} environments, but {env} is of kind {where}: omit --preset to use {better}"


# Populations of another system's runs: one configuration for both, and a member's own.


SIZE = 8  # default size of a population
SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}


def member_settings(c: Any, values: dict[str, Any] | None = None) -> Any:
    """Return the configuration of one member (one run) of a population. values: options that differ by member."""
    config = systems.load(c.over).Config
    return config(**{f.name: vars(c)[f.name] for f in fields(config)} | (values or {}))


def wire_member(c: Any, crew: Crew, values: dict[str, Any] | None = None) -> tuple[Crew, System]:
    """Build the system of one member of a population. Return (crew with workers that have not started, System)."""
    other = replace(crew)
    return other, systems.load(c.over).build(member_settings(c, values), other)


def priors_of(c: Any) -> dict[str, Prior]:
    """Return the ranges (priors) in --vary, by option. Raises UserError if an option or a range is wrong."""
    found: dict[str, Prior] = {}
    fields = get_type_hints(systems.load(c.over).Config)
    for text in c.vary:
        name = text.partition("=")[0].replace("-", "_")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"`polyplay train {c.over} --help` lists them"
            raise UserError(f"--vary: {name} given, but {c.over} has no such option; {hint}")
        if name in found:
            raise UserError(f"--vary: {name} given twice: give it one range or list")
        found[name] = parse_prior(name + text[len(name) :], partial(_read, fields[name]))
    return found


def _read(kind: Any, word: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[word.lower()]
        if kind is int:
            factor = SUFFIXES.get(word[-1:].lower(), 1)
            value = float(word[:-1] if factor > 1 else word) * factor
            if not value.is_integer():
                raise ValueError
            return int(value)
        return float(word) if kind is float else word
    except (ValueError, KeyError, OverflowError):
        kinds = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UserError(f"'{word}' given, allowed: {kinds[kind]}") from None


def plan_of(c: Any, crew: Crew, evolution: Evolution) -> PopulationPlan:
    """Return the plan for training a population of runs. Raises UserError if options contradict each other."""
    priors = evolution.priors
    lists = bool(priors) and all(p.kind == "list" for p in priors.values())
    grid = c.exploit == "none" and lists and not c.population
    size = len(combinations({name: p.choices for name, p in priors.items()})) if grid else c.population or SIZE
    if size < 2 and c.exploit != "none":
        raise UserError(f"--population: {size} given, allowed with --exploit {c.exploit}: 2 or more; or --exploit none")
    if size > 1 and not priors:
        raise UserError(f"--vary: nothing given for {size} members: name an option, as learning_rate=log:1e-5:1e-2")
    _, wired = wire_member(c, crew)
    total = int(crew.agent_steps(wired.envs, c.frames))
    machines = ", ".join(f"{info.name} ({info.cores} cores)" for info in _machines(crew))
    return PopulationPlan(evolution, c.over, size, total, c.score, crew.seed, grid, machines=machines)


def _machines(crew: Crew) -> list[MachineInfo]:
    """Return the other machines that train members, or [] without a cluster. Raises UserError if none is found."""
    if crew.cluster is None:
        return []
    if found := crew.cluster.machines():
        return found
    raise UserError("--hosts: there is no machine but this one; leave it out, or add one to the cluster")


def member_cores(crew: Crew) -> int:
    """Return the total number of CPU cores for training members, on this machine or on the other machines."""
    if crew.cluster is None or not crew.cluster.own_cores:
        return cores()
    return sum(info.cores for info in _machines(crew))
