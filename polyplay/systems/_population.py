"""What a population adds to another system's page: one configuration for both, and a member's own."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, get_type_hints

from polyplay import systems
from polyplay.common.errors import UserError
from polyplay.population.evolution import Evolution
from polyplay.population.priors import Prior, parse_prior
from polyplay.systems import System
from polyplay.workers.crew import Crew

SIZE = 8  # of a population, unless it says otherwise
SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}


def composed(page: Any, over: str) -> Any:
    """A page of population based training over the system of that name: its Config has the fields of both, its presets
    are that system's. Raises UserError: there is none, or it is a population itself.
    """
    there = over.lower() in systems.names()
    if not there or systems.is_population(systems.load(over)):
        known, given = systems.ordinary(), f"{over} given" + ", which is a population itself" * there
        near = difflib.get_close_matches(over, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--over: {given}, allowed: {', '.join(known)}{hint}")
    other = systems.load(over)
    config = dataclasses.make_dataclass("Config", [], bases=(page.Config, other.Config), frozen=True)
    config.__doc__ = page.Config.__doc__
    presets = {name: _lifted(config, make) for name, make in other.PRESETS.items()}
    own = {"__name__": page.__name__, "Config": config, "PRESETS": presets, "OVER": other}
    return SimpleNamespace(**own, ROW=page.ROW, build=page.build)


def _lifted(config: Any, make: Any) -> Any:
    """A preset of that system, as one of the population."""

    def preset() -> Any:
        return config(**vars(make()))

    preset.__doc__ = make.__doc__
    return preset


def member_settings(c: Any, values: dict[str, Any] | None = None) -> Any:
    """The configuration of one member, with `values` of what is varied."""
    page = systems.load(c.over)
    own = {f.name: getattr(c, f.name) for f in dataclasses.fields(page.Config)}
    return page.Config(**own | (values or {}))


def wire_member(c: Any, crew: Crew, values: dict[str, Any] | None = None) -> tuple[Crew, System]:
    """A member as it would run: its crew, which is not started, and its system."""
    other = replace(crew)
    return other, systems.load(c.over).build(member_settings(c, values), other)


def priors_of(c: Any) -> dict[str, Prior]:
    """What --vary says. Raises UserError."""
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
    """A value of an option of this type. Raises UserError."""
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


def evolution_of(c: Any, crew: Crew) -> Evolution:
    """The choices of a population. Raises UserError: those that contradict each other."""
    priors = priors_of(c)
    lists = bool(priors) and all(p.kind == "list" for p in priors.values())
    grid = c.exploit == "none" and lists and not c.population
    size = len(list(product(*(p.choices for p in priors.values())))) if grid else c.population or SIZE
    if size < 2 and c.exploit != "none":
        raise UserError(f"--population: {size} given, allowed with --exploit {c.exploit}: 2 or more; or --exploit none")
    if size > 1 and not priors:
        raise UserError(f"--vary: nothing given for {size} members: name an option, as learning_rate=log:1e-5:1e-2")
    _, wired = wire_member(c, crew)
    total = int(crew.total(wired.envs, c.budget))
    return Evolution(c.over, size, c.every, total, c.exploit, c.explore, c.score, priors, crew.seed, grid)
