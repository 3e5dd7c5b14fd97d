"""Traits of environments and networks, and the runs that try them together in every system: test_traits.py
runs them, `markdown()` is their table for the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

TEST = "tests/systems/test_traits.py"
HOW = {"thread": "threads", "process": "processes"}
MARKS = {"learns": "L", "trains": "t", "untried": "–"}


@dataclass(frozen=True)
class Trait:
    title: str
    switches: tuple[str, ...] = ()  # of the game in tests/games/traits.py
    core: str = "none"


TRAITS = {"lstm": Trait("LSTM", ("memory",), "lstm"), "gru": Trait("GRU", ("memory",), "gru")}
TRAITS |= {"mask": Trait("masks", ("mask",)), "dict": Trait("dict obs.", ("dict",))}
TRAITS |= {"hybrid": Trait("hybrid act.", ("hybrid",)), "continuous": Trait("continuous", ("continuous",))}
APART = {("lstm", "gru")}  # a network has one core


@dataclass(frozen=True)
class Case:
    """One run of `system` with these traits on. It learns if its mean return must reach `goal`, else it trains."""

    system: str
    on: str
    traits: tuple[str, ...]
    goal: float | None = None

    @property
    def env(self) -> str:
        switches = dict.fromkeys(s for name in self.traits for s in TRAITS[name].switches)
        return "+".join(["toy:tests.games.traits:Traits", *switches])

    @property
    def settings(self) -> dict[str, str]:
        cores = [TRAITS[name].core for name in self.traits if TRAITS[name].core != "none"]
        return {"env": self.env, "on": self.on, "core": cores[0] if cores else "none"}

    def __str__(self) -> str:
        return f"{self.system} {HOW[self.on]} {'+'.join(self.traits)}"


REST = ("mask", "dict", "hybrid", "continuous")
# of Discrete actions alone: masks and dicts are in their own tests
VALUES = ("accel_dqn", "apex", "dqn", "gorila", "r2d2", "rainbow")
# of a bounded Box alone: dicts are in its own tests
REAL = ("apex_dpg",)
SYSTEMS = ("a2c", "a3c", "accel", "appo", "ga3c", "impala", "ppo")
# everything at once, in each system and as both kinds of workers: every pair is on together there
GOALS = {("a2c", "thread", "lstm"): 0.6, ("impala", "thread", "gru"): 0.6, ("ppo", "thread", "lstm"): 0.6}
TOGETHER = [
    Case(system, on, (core, *REST), GOALS.get((system, on, core)))
    for on in HOW
    for system in SYSTEMS
    for core in ("lstm", "gru")
]
# and each by itself: every pair with one of the two off
REACHED = {"gru": 0.7, "mask": 0.7, "dict": 0.7, "hybrid": 0.7, "continuous": 0.6}  # by a2c
ALONE = [
    Case(system, "thread", (name,), REACHED.get(name) if system == "a2c" else None)
    for system in SYSTEMS
    for name in TRAITS
]
CASES = [*TOGETHER, *ALONE]


def pairs() -> list[tuple[str, ...]]:
    """Every trait, then every two that can be together."""
    return [*((name,) for name in TRAITS), *(p for p in combinations(TRAITS, 2) if p not in APART)]


def verdict(system: str, on: str, traits: Iterable[str]) -> str:
    """What the runs with all of these traits on show: "learns", "trains", or "untried"."""
    found = [c for c in CASES if (c.system, c.on) == (system, on) and set(traits) <= set(c.traits)]
    return "learns" if any(c.goal is not None for c in found) else "trains" if found else "untried"


def markdown() -> list[str]:
    """The table as lines of Markdown: a row for each trait and each pair, a column for each system."""
    lines = ["| traits | " + " | ".join(SYSTEMS) + " |", "|---|" + ":-:|" * len(SYSTEMS)]
    for pair in pairs():
        title = " + ".join(TRAITS[name].title for name in pair)
        marks = (" ".join(MARKS[verdict(system, on, pair)] for on in HOW) for system in SYSTEMS)
        lines.append(f"| {title} | {' | '.join(marks)} |")
    learn = sum(c.goal is not None for c in CASES)
    return [
        *lines,
        "",
        f"The first mark is for workers as {', the second as '.join(HOW.values())}. `{TEST}` makes these "
        f"{len(CASES)} runs of the game in tests/games/traits.py.",
        f"**L** learns: the mean return of 100 games reaches a goal ({learn} runs). **t** trains: some updates without "
        "error, weights finite and changed.",
        f"{', '.join(VALUES)} take Discrete actions only; masks and dict observations: `tests/systems/test_traits.py`.",
        f"{', '.join(REAL)} takes continuous actions only; dict observations: `tests/systems/test_apex_dpg.py`.",
    ]
