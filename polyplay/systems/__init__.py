"""One page per system: its `Config`, and `build`, the wiring; its presets and row of the table are in pages.toml."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, cast

from polyplay.core.errors import UserError
from polyplay.core.numbers import ValueUnits


@dataclass(frozen=True)
class System:
    """What a page's `build` answers: what reports and evaluation need to know of the wiring."""

    envs: Any  # Envs: the training environments
    policy: Any  # makes the network: policy() -> Policy
    metrics: tuple[str, ...]  # names the losses report
    resolved: dict[str, Any] = field(default_factory=dict)  # what stood for "choose": the values chosen
    epsilon: float = 0.0  # probability of a uniform random action in evaluations on Atari games, as published
    values: ValueUnits = field(default_factory=ValueUnits)  # units of the network's values
    player: Any = None  # player(network) -> Policy: what plays full games, where that is not the network alone

    @property
    def test_epsilon(self) -> float:
        """ε of evaluation, unless --epsilon says otherwise."""
        return self.epsilon if self.envs.title.startswith("ALE/") else 0.0


class Page(Protocol):
    """A module of this room, or `_presets.composed` of two."""

    __name__: str
    Config: Any  # the dataclass of its options
    PRESETS: Mapping[str, Callable[[], Any]]  # by name what makes a Config
    ROW: Mapping[str, str]  # of the table of systems
    OVER: Page | None  # only of populations: the page of their members' system; None: it is not chosen yet

    def build(self, c: Any, crew: Any) -> System:
        """Wire the system of this Config into the crew. Raises UserError: options that contradict each other."""


@cache
def read_settings(file: str) -> dict[str, Any]:
    """What a TOML file of this room has, by system."""
    return tomllib.loads((Path(__file__).parent / file).read_text("utf-8"))


def described(config: type) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """(presets, row) of the page with this Config, as pages.toml has them. A preset is a function without arguments."""
    row = dict(read_settings("pages.toml")[config.__module__.rpartition(".")[2]])
    presets = row.pop("presets")
    return {name: _preset(config, presets, name) for name in presets}, row


def _preset(config: type, presets: dict[str, Any], name: str) -> Callable[[], Any]:
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
    """Whether a page is of populations of another system's runs."""
    return "over" in page.Config.__dataclass_fields__


def members_page(page: Page) -> Page | None:
    """The page of a population's members; None: it is not chosen yet, or the page trains one agent."""
    return page.OVER if is_population(page) else None


def ordinary() -> list[str]:
    """The systems whose runs train one agent."""
    return [name for name in names() if not is_population(load(name))]


def load(name: str) -> Page:
    """The page (a module) of system `name`, in capitals or not."""
    known = names()
    if name.lower() in known:
        return cast("Page", importlib.import_module(f"{__name__}.{name.lower()}"))
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"SYSTEM: {name!r} given, allowed: {', '.join(known)}{hint}")
