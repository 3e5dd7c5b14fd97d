"""One page (module) per system: options `Config` and a function `build`. Presets and table rows are in pages.toml."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from polyplay.core import user_modules
from polyplay.core.errors import UserError


@dataclass(frozen=True)
class System:
    """Result of a page's `build`: facts about the system that reports and evaluations need."""

    envs: Any  # Envs: the training environments
    spec: Any  # LearnerSpec: the network and its loss
    more_metrics: tuple[str, ...] = ()  # names of metrics besides the loss's
    resolved: dict[str, Any] = field(default_factory=dict)  # values of options that were chosen automatically
    epsilon: float = 0.0  # probability of a uniform random action in evaluations on Atari games, as published
    player: Any = None  # player(network) -> Policy that plays full games, if the network alone does not

    @property
    def policy(self) -> Any:
        """Factory of the network: `policy()` makes a Policy."""
        return self.spec.policy

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics: those of the loss, followed by more_metrics."""
        return (*self.spec.loss.metrics, *self.more_metrics) if self.spec else ()

    @property
    def test_epsilon(self) -> float:
        """Probability ε of random actions in evaluations, unless --epsilon is given."""
        from polyplay.envs.atari import plays_games  # imports Gymnasium, which listing systems does not need

        return self.epsilon if plays_games(self.envs) else 0.0


@dataclass(frozen=True, eq=False)
class Page:
    """Definition of a system: its options, and a function that adds its workers to a crew.

    `Config`: a frozen dataclass of options with defaults. It has the fields `env` and `frames`.
    `build(c, crew)`: function that adds the workers of a system with options `c` to the crew, and returns a System. It
    raises UserError if options contradict each other.
    Raises UserError if `Config` or `build` is not of this kind.
    """

    Config: Any
    build: Callable[[Any, Any], System]
    presets: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # makers of a Config by preset, best first
    row: Mapping[str, str] = field(default_factory=dict)  # the system's row in the table of systems
    over: Page | None = None  # for populations only: the page of the members' system; None: not chosen yet
    name: str = ""  # name by which `load` finds the page

    def __post_init__(self) -> None:
        if not (isinstance(self.Config, type) and is_dataclass(self.Config)):
            raise UserError(f"Page: Config {self.Config!r} given, allowed: a dataclass of options")
        where, options = f"Page: Config {self.Config.__qualname__}", {f.name: f for f in fields(self.Config)}
        if lacking := [n for n, f in options.items() if f.default is MISSING and f.default_factory is MISSING]:
            raise UserError(f"{where} has no default for {', '.join(lacking)}: give every option one")
        if lacking := [n for n in ("env", "frames") if n not in options and "over" not in options]:
            raise UserError(f"{where} has no {', '.join(lacking)}: every system has options of these names")
        if not callable(self.build):
            raise UserError(f"Page: build {self.build!r} given, allowed: a function build(c, crew) that returns System")
        object.__setattr__(self, "presets", self.presets or {"default": self.Config})


@cache
def read_settings(file: str) -> dict[str, Any]:
    """Return the contents of a TOML file in this directory: settings by system."""
    return tomllib.loads((Path(__file__).parent / file).read_text("utf-8"))


def _preset(config: type, presets: dict[str, Any], name: str) -> Callable[[], Any]:
    """Return a function that makes a Config with the values of a preset in pages.toml."""
    values = dict(presets[name])
    about = values.pop("about", "")
    while like := values.pop("like", ""):
        values = {**presets[like], **values}
    values.pop("about", None)
    if not values:
        return config
    made = partial(config, **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    made.__doc__ = about
    return made


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def is_population(page: Page) -> bool:
    """Tell whether a page trains populations of another system's runs."""
    return "over" in page.Config.__dataclass_fields__


def ordinary() -> list[str]:
    """Return the systems that are not populations of another system's runs."""
    return [name for name in names() if not is_population(load(name))]


def load(name: str) -> Page:
    """Return the page of a system (upper or lower case), or a user's page module:NAME. Raises UserError."""
    if ":" in name:
        return replace(_find(name), name=name)
    known, own = names(), name.lower()
    if own in known:
        module, row = importlib.import_module(f"{__name__}.{own}"), dict(read_settings("pages.toml")[own])
        presets = row.pop("presets")
        made = {preset: _preset(module.Config, presets, preset) for preset in presets}
        return Page(module.Config, module.build, made, row, name=own)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"SYSTEM: {name!r} given, allowed: {', '.join(known)}{hint}")


def page_of(system: str, over: object = None) -> Page:
    """Return the page of a system. Raises UserError if it does not exist.

    over: the system of a population's members (None: the default). The page then also has the options and presets of
    this system. Raises UserError if `over` is a population itself.
    """
    page = load(system)
    if not is_population(page):
        return page
    over = str(over or page.Config().over)
    there = ":" in over or over.lower() in names()
    if not there or is_population(load(over)):
        known, given = ordinary(), f"{over} given" + ", which is a population itself" * there
        near = difflib.get_close_matches(over, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--over: {given}, allowed: {', '.join(known)}{hint}")
    other = load(over)
    config = make_dataclass("Config", [], bases=(page.Config, other.Config), frozen=True)
    config.__doc__ = page.Config.__doc__
    presets = {name: _lifted(config, make) for name, make in other.presets.items()}
    return replace(page, Config=config, presets=presets, over=other)


def _lifted(config: Any, make: Any) -> Any:
    def preset() -> Any:
        return config(**vars(make()))

    preset.__doc__ = make.__doc__
    return preset


def _find(name: str) -> Page:
    allowed = "module:NAME, where the module has NAME = Page(Config, build)"
    module, _, attribute = name.partition(":")
    try:
        found = user_modules.look_up(user_modules.import_module(module, name, "SYSTEM", allowed), attribute)
    except AttributeError:
        if module == "__main__":
            cure = "resume in that program, or move it into another file"
            raise UserError(f"SYSTEM: {attribute} is in the program that started the run, not here: {cure}") from None
        raise UserError(f"SYSTEM: {name} given, but {module} has no {attribute!r}; allowed: {allowed}") from None
    if not isinstance(found, Page):
        raise UserError(f"SYSTEM: {name} given, which is a {type(found).__name__}, not a Page; allowed: {allowed}")
    if is_population(found):
        raise UserError(f"SYSTEM: {name} given, whose Config has an option `over`, which only pbt may have: rename it")
    return found


def name_of(page: object) -> str:
    """Return module:NAME of a user's page, for workers and resumed runs. Raises UserError if no module has the page."""
    if not isinstance(page, Page):
        what = f"type {type(page).__name__}" if not isinstance(page, ModuleType | type) else f"{page.__name__}"
        raise UserError(f"SYSTEM: {what} given, allowed: a name, or a polyplay.systems.Page(Config, build)")
    for module in (page.Config.__module__, page.build.__module__, "__main__"):
        there = vars(sys.modules[module]) if module in sys.modules else {}
        if found := [name for name, value in there.items() if value is page]:
            return f"{module}:{found[0]}"
    where = "write NAME = Page(Config, build) in the file of its Config or its build, outside functions"
    raise UserError(f"SYSTEM: a Page given that has no name in a module: {where}")
