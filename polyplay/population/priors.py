"""Priors of hyperparameters: what --vary says, drawn from at the beginning, perturbed later, and never left. Pure.

Jaderberg et al. 2017, §4.1.1: a value is multiplied by 0.8 or by 1.2. Ray Tune moves in a list to a neighbour.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from polyplay.common.errors import UserError

FACTORS = (0.8, 1.2)
RANGES = ("log", "uniform")
FORMS = "NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=a,b,c, as in --vary learning_rate=log:1e-5:1e-2"


@dataclass(frozen=True)
class Prior:
    """What a hyperparameter may be, and how likely: a range, or a list. A range under log is on one side of 0."""

    name: str
    kind: Literal["log", "uniform", "list"]
    low: float = 0  # of a range
    high: float = 0
    choices: tuple[Any, ...] = ()  # of a list
    whole: bool = False  # a range of whole numbers

    def draw(self, rng: np.random.Generator) -> Any:
        """A value: uniform in a range, its logarithm uniform under log, each entry of a list as likely."""
        if self.kind == "list":
            return self.choices[rng.integers(len(self.choices))]
        half, u = 0.5 * self.whole, rng.random()  # the whole numbers at both ends are as likely as the others
        low, high = self.low - half, self.high + half
        if self.kind == "log":
            sign = math.copysign(1.0, high)
            return self._hold(sign * math.exp(math.log(sign * low) * (1 - u) + math.log(sign * high) * u))
        return self._hold(low * (1 - u) + high * u)

    def perturb(self, value: Any, rng: np.random.Generator) -> Any:
        """`value` × 0.8 or × 1.2, as likely, held to the range. A whole number always moves, by 1 at least, from an end
        of its range inwards; in a list the next or the one before is taken.
        """
        up = int(rng.integers(2))
        if self.kind == "list":
            return self._neighbour(self.choices.index(value), 1 if up else -1)
        moved = self._times(value, FACTORS[up])
        return self._times(value, FACTORS[not up]) if self.whole and moved == value else moved

    def contains(self, value: object) -> bool:
        """Whether it can be drawn."""
        if self.kind == "list":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high

    def label(self) -> str:
        """As it is written behind NAME= of --vary."""
        if self.kind == "list":
            return ",".join(map(str, self.choices))
        return f"{self.kind}:{self.low}:{self.high}"

    def _neighbour(self, i: int, step: int) -> Any:
        inside = 0 <= i + step < len(self.choices)
        return self.choices[i + step if inside else i - step]

    def _times(self, value: float, factor: float) -> float:
        """`value` times `factor`; of whole numbers the nearest, or the next in that direction."""
        moved = self._hold(value * factor)
        if self.whole and moved == value:
            return self._hold(value + (1 if (factor > 1) == (value >= 0) else -1))
        return moved

    def _hold(self, value: float) -> float:
        return min(max(round(value) if self.whole else value, self.low), self.high)


def initial(priors: Mapping[str, Prior], agents: int, seed: int) -> list[dict[str, float]]:
    """The values that each of several agents begins with: its own draw from priors of numbers, by the seed."""
    rngs = [np.random.default_rng([seed, agent, 0, 1]) for agent in range(agents)]  # copies draw from three numbers
    return [{name: float(prior.draw(rng)) for name, prior in priors.items()} for rng in rngs]


def prior_name(text: str) -> str:
    """The NAME of NAME=PRIOR. Raises UserError."""
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise UserError(f"--vary: '{text}' given, allowed: {FORMS}")
    return name


def parse_prior(text: str, read: Callable[[str], Any]) -> Prior:
    """The prior that a word of --vary says. read: turns a word into a value of the field, as --NAME would, or raises
    UserError. Raises UserError.
    """
    name = prior_name(text)
    kind, *ends = text[len(name) + 1 :].split(":")
    if kind in RANGES:
        return _range(text, kind, ends, read)
    if not ends or "," in text:
        return Prior(name, "list", choices=_choices(text, read))
    near = difflib.get_close_matches(kind.lower(), RANGES, 1)
    _refuse(text, f"'{kind}:'", "log:LOW:HIGH or uniform:LOW:HIGH" + (f"; did you mean {near[0]}?" if near else ""))


def _range(text: str, kind: str, words: list[str], read: Callable[[str], Any]) -> Prior:
    name = prior_name(text)
    if len(words) != 2 or "" in words:
        _refuse(text, f"'{':'.join(words)}'", f"two numbers as in {name}={kind}:LOW:HIGH")
    (low, high), (a, b) = (_number(text, word, read) for word in words), words
    if low == high:
        _refuse(text, f"LOW and HIGH {a}", f"LOW below HIGH; for a fixed value write {_fixed(name, a)} without --vary")
    if low > high:
        _refuse(text, f"LOW {a} and HIGH {b}", f"LOW below HIGH; write {name}={kind}:{b}:{a}")
    if kind == "log" and low <= 0:
        _refuse(text, f"LOW {a}", f"above 0 under log; raise it, or write {name}=uniform:{a}:{b}")
    whole = isinstance(low, int) and isinstance(high, int)
    low, high = (low, high) if whole else (float(low), float(high))
    return Prior(name, "log" if kind == "log" else "uniform", low, high, whole=whole)


def _number(text: str, word: str, read: Callable[[str], Any]) -> Any:
    value = _read(text, word, read)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse(text, f"'{word}'", f"a finite number; of anything else a list as in {prior_name(text)}=a,b,c")
    return value


def _choices(text: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    name = prior_name(text)
    words = text[len(name) + 1 :].split(",")
    if "" in words:
        _refuse(text, "an empty entry", "a value on both sides of a comma")
    if len(words) == 1:
        fixed = f"for a fixed value write {_fixed(name, words[0])} without --vary"
        _refuse(text, "one entry", f"two or more as in {name}=a,b,c, or a range as in {name}=log:LOW:HIGH; {fixed}")
    values = [_read(text, word, read) for word in words]
    for i, value in enumerate(values):
        if value in values[:i]:
            _refuse(text, f"'{words[i]}' twice", "each entry once; leave it out")
    return tuple(values)


def _read(text: str, word: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(word)
    except UserError as e:
        raise UserError(f"--vary {text}: {e}") from None


def _refuse(text: str, given: str, allowed: str) -> NoReturn:
    raise UserError(f"--vary {text}: {given} given, allowed: {allowed}")


def _fixed(name: str, word: str) -> str:
    return f"--{name.replace('_', '-')} {word}"
